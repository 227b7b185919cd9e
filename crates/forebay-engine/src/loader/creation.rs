//! Creation of a loader across nodes: the leaders link first, and agree at the end.
//!
//! Between the two a leader may build an index for minutes. Meanwhile it polls for cancellation,
//! dead followers and failed nodes, so that the others fail fast. A node that cannot create the
//! loader reports why: it is created on all nodes or on none.

use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use forebay_format::OpenOptions;

use crate::config::options::Options;
use crate::error::Error;
use crate::host::Host;
use crate::host::warnings::STALL_WARNING;
use crate::mesh::{Links, Listener};
use crate::rendezvous::Dead;

/// Minimum interval between checks for failures: the work polls more often.
const CHECK_INTERVAL: Duration = Duration::from_millis(20);

/// The creation of one loader, on the leader of a node.
pub(crate) struct Creation {
    listener: Mutex<Option<Listener>>,
    links: OnceLock<Arc<Links>>,
}

impl Creation {
    pub(crate) fn new(listener: Option<Listener>) -> Self {
        Self { listener: Mutex::new(listener), links: OnceLock::new() }
    }

    /// The links, once they exist; a job of one node has none.
    pub(crate) fn links(&self) -> Option<&Arc<Links>> {
        self.links.get()
    }

    /// Links the leader to those of the other nodes, then closes its listening socket.
    pub(crate) fn link(
        &self,
        options: &Options,
        deadline: Duration,
        caller: &CancellableHost<'_>,
    ) -> Result<(), Error> {
        let listener = self.listener.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some((spec, listener)) = options.links.as_ref().zip(listener) else { return Ok(()) };
        let mut check = || !caller.interrupted();
        let links = Links::connect(&listener, spec, &options.job, &options.name, deadline, &mut check)?;
        self.links.get_or_init(|| Arc::new(links));
        Ok(())
    }

    /// Waits until all nodes have made the loader.
    pub(crate) fn agree(&self, options: &Options, caller: &CancellableHost<'_>) -> Result<(), Error> {
        let Some(links) = self.links() else { return Ok(()) };
        let begun = Instant::now();
        let mut warned = false;
        links.agree_made(&mut |who| {
            if begun.elapsed() > STALL_WARNING && !warned {
                warned = true;
                caller.warn(&format!("loader \"{}\": waiting for {who} to create it", options.name));
            }
            !caller.interrupted()
        })?;
        Ok(())
    }

    /// Reports to the other nodes why this one cannot create the loader.
    pub(crate) fn abandon(&self, error: &Error) {
        if let Some(links) = self.links() {
            links.abandon(&error.to_string(), error.is_loss());
        }
    }
}

/// The caller of a leader, which a failed follower or node also interrupts.
pub(crate) struct CancellableHost<'a> {
    caller: &'a dyn Host,
    creation: &'a Creation,
    dead: Dead<'a>,
    last: Mutex<(Option<Instant>, Option<Error>)>,
}

impl<'a> CancellableHost<'a> {
    pub(crate) fn new(caller: &'a dyn Host, creation: &'a Creation, dead: Dead<'a>) -> Self {
        Self { caller, creation, dead, last: Mutex::default() }
    }

    /// Replaces [`Error::Interrupted`] by the failure that interrupted the work.
    pub(crate) fn reason(self, error: Error) -> Error {
        let (_, found) = self.last.into_inner().unwrap_or_else(PoisonError::into_inner);
        match (error, found) {
            (Error::Interrupted, Some(found)) => found,
            (error, _) => error,
        }
    }

    fn is_cancelled(&self) -> bool {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if last.1.is_none() && last.0.is_none_or(|at| at.elapsed() > CHECK_INTERVAL) {
            last.0 = Some(Instant::now());
            last.1 = match (self.dead)() {
                Some(peer) => Some(Error::died_during_creation(peer)),
                None => self.creation.links().and_then(|links| links.failure()).map(Error::from),
            };
        }
        last.1.is_some()
    }
}

impl Host for CancellableHost<'_> {
    fn interrupted(&self) -> bool {
        self.caller.interrupted() || self.is_cancelled()
    }

    fn progress(&self, what: &str, done: u64, all: u64) -> bool {
        self.caller.progress(what, done, all) && !self.is_cancelled()
    }

    fn waits_for_others(&self) {
        self.caller.waits_for_others();
    }

    fn find_structure(&self, path: &Path, options: &OpenOptions) -> Option<Vec<u8>> {
        self.caller.find_structure(path, options)
    }

    fn warn(&self, text: &str) {
        self.caller.warn(text);
    }
}
