//! The serving side of a node: exports shares to the ranks of the job.
//!
//! One or two threads serve all connections ([`worker.rs`](crate::server::worker)); nothing here
//! waits for a training process or an interpreter. Shares come and go while the server runs.

use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;

use forebay_host::{ThreadError, allow_open_files, fork};

use crate::error::TransportError;
use crate::message::auth::{Authenticator, DatasetDigest, Secret, StoreId};
use crate::server::registry::ServingNode;
use crate::server::share::Share;
use crate::server::worker::{Inbox, Worker};

/// Bytes that a connection sends before it is the turn of the next one \[bytes\].
const TURN_BYTES: usize = 1 << 20;
/// Open files that the rest of the process needs.
const OTHER_FILES: u64 = 1024;

/// How a node serves.
#[derive(Clone, Debug)]
pub struct ExporterOptions {
    /// Index of this node in the job.
    pub node: u32,
    /// Proves that a peer belongs to the job.
    pub secret: Secret,
    /// Where to listen; port 0 lets the kernel choose.
    pub address: SocketAddr,
    /// Number of server threads, 1 or 2.
    pub threads: usize,
    /// Most authenticated connections: ranks of the job times stores.
    pub max_connections: usize,
}

/// Serves the shares of this node until it is dropped.
#[derive(Debug)]
pub struct Exporter {
    node: Arc<ServingNode>,
    inboxes: Vec<Arc<Inbox>>,
    threads: Vec<JoinHandle<()>>,
    address: SocketAddr,
    /// Closes the listener in forked children. Connections are not: there may be more of them than
    /// places. If this process is killed while such a child lives, clients find that it is silent.
    _fork: fork::ClosedInChild,
    listener: Arc<TcpListener>,
    born: u64,
}

impl Exporter {
    /// Listens, and starts the server threads. No share is exported yet.
    pub fn start(options: &ExporterOptions) -> Result<Self, TransportError> {
        if !(1..=2).contains(&options.threads) {
            return Err(TransportError::usage(format!(
                "{} server threads (expected 1 or 2)",
                options.threads
            )));
        }
        raise_open_files(options.max_connections as u64);
        let failed = || TransportError::system(format!("serve shares at {}", options.address));
        let listener = TcpListener::bind(options.address).map_err(failed())?;
        listener.set_nonblocking(true).map_err(failed())?;
        let address = listener.local_addr().map_err(failed())?;
        let listener = Arc::new(listener);
        let authenticator = Authenticator::new(&options.secret);
        let node = ServingNode::new(options.node, authenticator, options.max_connections, TURN_BYTES);
        let inboxes: Vec<_> = (0..options.threads)
            .map(|_| Inbox::new().map(Arc::new))
            .collect::<Result<_, _>>()
            .map_err(failed())?;
        let mut exporter = Self {
            node: Arc::new(node),
            inboxes: inboxes.clone(),
            threads: Vec::new(),
            address,
            _fork: fork::ClosedInChild::new(listener.as_raw_fd()),
            listener: Arc::clone(&listener),
            born: fork::generation(),
        };
        let mut source = Some((listener, inboxes.clone()));
        for inbox in inboxes {
            let worker = Worker::new(Arc::clone(&exporter.node), inbox, source.take()).map_err(failed())?;
            let thread = std::thread::Builder::new().name("forebay-export".into());
            let thread = thread.spawn(move || worker.run());
            exporter.threads.push(thread.map_err(|error| ThreadError::new("start a server thread", &error))?);
        }
        Ok(exporter)
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Exports the share of a store; `dataset` must be the same on all nodes.
    pub fn export(
        &self,
        store: StoreId,
        share: Arc<dyn Share>,
        dataset: DatasetDigest,
    ) -> Result<(), TransportError> {
        tracing::debug!(store = store.0, bytes = share.bytes(), "exporting a share");
        let added = self.node.add(store, share, dataset);
        let twice = || TransportError::usage(format!("store {} is exported twice by this node", store.0));
        added.then_some(()).ok_or_else(twice)
    }

    /// Ends the export of a store and closes its connections; the threads release the share soon.
    /// Returns whether it was exported.
    pub fn withdraw(&self, store: StoreId) -> bool {
        let removed = self.node.remove(store);
        self.inboxes.iter().for_each(|inbox| inbox.wake());
        removed
    }

    /// Number of authenticated connections.
    pub fn connections(&self) -> usize {
        self.node.connections()
    }

    /// Number of authenticated connections to the share of a store.
    pub fn clients(&self, store: StoreId) -> usize {
        self.node.clients(store)
    }

    /// Payload of all complete answers so far \[bytes\].
    pub fn sent_bytes(&self) -> u64 {
        self.node.sent_bytes.load(Ordering::Relaxed)
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        if fork::in_forked_child(self.born) {
            // There are no threads. The listener is closed, and its number may be in use again.
            std::mem::forget(Arc::clone(&self.listener));
            return;
        }
        self.node.stopping.store(true, Ordering::Release);
        self.inboxes.iter().for_each(|inbox| inbox.wake());
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a server thread has panicked");
            }
        }
    }
}

/// Raises the soft limit of open files, if it may, for this many connections.
fn raise_open_files(connections: u64) {
    let wanted = connections.saturating_add(OTHER_FILES);
    if !allow_open_files(wanted) {
        tracing::warn!(wanted, "few open files are allowed for connections");
    }
}
