//! What a leader keeps of a store: the server of its share, and the connection to the store daemon.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use forebay_transport::{Exporter, StoreId, UcxExporter};

use crate::error::Error;
use crate::host::Host;
use crate::mesh::Links;
use crate::store::daemon::StoreConnection;

/// Each loader has servers of its own, with one store.
pub(super) const STORE: StoreId = StoreId(0);

/// How long the end of a loader waits for other nodes that still fetch.
const LINGER: Duration = Duration::from_secs(10);

/// Serves the share of this node until it is dropped, and has the store daemon keep it.
pub(crate) struct Server {
    /// `None` on a single node.
    pub(super) exporter: Option<Exporter>,
    /// Lets others read the share, too.
    pub(super) _ucx: Option<UcxExporter>,
    /// Ranks of other nodes.
    pub(super) clients: usize,
    /// The connection to the store daemon, which holds the share for it.
    pub(super) daemon: Mutex<Option<StoreConnection>>,
}

impl Server {
    /// Ends the service.
    pub(crate) fn withdraw(&self) {
        if let Some(exporter) = &self.exporter {
            exporter.withdraw(STORE);
        }
    }

    /// Ranks of other nodes that are connected.
    fn connected(&self) -> usize {
        self.exporter.as_ref().map_or(0, |exporter| exporter.clients(STORE))
    }

    fn connections(&self) -> usize {
        self.exporter.as_ref().map_or(0, Exporter::connections)
    }

    /// Tells the store daemon that the share is not used any more.
    pub(crate) fn release_share(&self) {
        self.daemon.lock().unwrap_or_else(PoisonError::into_inner).take();
    }

    /// Waits until the ranks of all other nodes are connected: one that came later might find that
    /// this node has finished.
    pub(crate) fn wait_for_clients(
        &self,
        links: Option<&Links>,
        within: Duration,
        caller: &dyn Host,
    ) -> Result<(), Error> {
        let begun = Instant::now();
        while self.connected() < self.clients {
            if let Some(failure) = links.and_then(Links::failure) {
                return Err(failure.into());
            }
            if caller.interrupted() {
                return Err(Error::Interrupted);
            }
            if begun.elapsed() > within {
                return Err(Error::Timeout {
                    seconds: within.as_secs(),
                    what: format!(
                        "waiting for ranks of other nodes to connect to the share of this one (expected {}, found {})",
                        self.clients,
                        self.connected()
                    ),
                });
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// Waits a moment for other nodes that still fetch.
    pub(crate) fn linger(&self) {
        let begun = Instant::now();
        while self.connections() > 0 && begun.elapsed() < LINGER {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
