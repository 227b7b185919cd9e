//! What a leader does with those of other nodes while its loader is made: links first, agreement
//! last.
//!
//! Between the two it may build an index for minutes. All that time it is asked whether to go on,
//! and then it looks whether a follower has died and whether another node has given up, so that
//! nobody waits for a loader that will not be. A node that cannot make it tells the others why: it
//! is made on all nodes or on none.

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

/// How often a caller that is asked all the time looks around.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// The making of one loader, as the leader of a node has it.
pub(crate) struct Creation {
    listener: Mutex<Option<Listener>>,
    links: OnceLock<Arc<Links>>,
}

impl Creation {
    pub(crate) fn new(listener: Option<Listener>) -> Self {
        Self { listener: Mutex::new(listener), links: OnceLock::new() }
    }

    /// The links, once they are there; a job of one node has none.
    pub(crate) fn links(&self) -> Option<&Arc<Links>> {
        self.links.get()
    }

    /// Links the leader to those of the other nodes; its door closes then.
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
                caller.warn(&format!("loader \"{}\": waiting for {who} to make it, too", options.name));
            }
            !caller.interrupted()
        })?;
        Ok(())
    }

    /// Tells the other nodes why this one cannot make the loader.
    pub(crate) fn abandon(&self, error: &Error) {
        if let Some(links) = self.links() {
            links.abandon(&error.to_string(), error.is_loss());
        }
    }
}

/// The caller of a leader, interrupted also by what makes its work useless.
pub(crate) struct CancellableHost<'a> {
    caller: &'a dyn Host,
    making: &'a Creation,
    dead: Dead<'a>,
    looked: Mutex<(Option<Instant>, Option<Error>)>,
}

impl<'a> CancellableHost<'a> {
    pub(crate) fn new(caller: &'a dyn Host, making: &'a Creation, dead: Dead<'a>) -> Self {
        Self { caller, making, dead, looked: Mutex::default() }
    }

    /// The error of a work that was interrupted is what interrupted it.
    pub(crate) fn reason(self, error: Error) -> Error {
        let (_, found) = self.looked.into_inner().unwrap_or_else(PoisonError::into_inner);
        match (error, found) {
            (Error::Interrupted, Some(found)) => found,
            (error, _) => error,
        }
    }

    fn is_useless(&self) -> bool {
        let mut looked = self.looked.lock().unwrap_or_else(PoisonError::into_inner);
        if looked.1.is_none() && looked.0.is_none_or(|at| at.elapsed() > LOOK_EVERY) {
            looked.0 = Some(Instant::now());
            looked.1 = match (self.dead)() {
                Some(peer) => Some(Error::died_in_making(peer)),
                None => self.making.links().and_then(|links| links.failure()).map(Error::from),
            };
        }
        looked.1.is_some()
    }
}

impl Host for CancellableHost<'_> {
    fn interrupted(&self) -> bool {
        self.caller.interrupted() || self.is_useless()
    }

    fn progress(&self, what: &str, done: u64, all: u64) -> bool {
        self.caller.progress(what, done, all) && !self.is_useless()
    }

    fn waits_for_others(&self) {
        self.caller.waits_for_others();
    }

    fn find_hdf5_structure(&self, path: &Path, options: &OpenOptions) -> Option<Vec<u8>> {
        self.caller.find_hdf5_structure(path, options)
    }

    fn warn(&self, text: &str) {
        self.caller.warn(text);
    }
}
