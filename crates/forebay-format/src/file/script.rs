//! Test support: a file whose system calls are answered by a script.

use std::collections::VecDeque;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use forebay_io::ReadAt;

use super::Input;

/// Answers each read with the next outcome of a list: the number of bytes, each 7, or an error.
/// Pauses are recorded, not slept. A read after the last outcome panics.
#[derive(Debug)]
pub(crate) struct Script {
    outcomes: Mutex<VecDeque<io::Result<usize>>>,
    pauses: Mutex<Vec<Duration>>,
}

impl Script {
    pub(crate) fn new(outcomes: impl IntoIterator<Item = io::Result<usize>>) -> Arc<Self> {
        Arc::new(Self { outcomes: Mutex::new(outcomes.into_iter().collect()), pauses: Mutex::default() })
    }

    /// The script as the file `x.mdb`.
    pub(crate) fn input(self: &Arc<Self>) -> Input {
        Input::from_source(Path::new("x.mdb"), Arc::clone(self) as _).expect("a size")
    }

    /// The pauses so far.
    pub(crate) fn pauses(&self) -> Vec<Duration> {
        self.pauses.lock().expect("not poisoned").clone()
    }

    /// Number of outcomes that no read has taken.
    pub(crate) fn left(&self) -> usize {
        self.outcomes.lock().expect("not poisoned").len()
    }
}

impl ReadAt for Script {
    fn bytes(&self) -> io::Result<u64> {
        Ok(1 << 20)
    }

    fn pread(&self, _offset: u64, into: &mut [u8]) -> io::Result<usize> {
        let outcome = self.outcomes.lock().expect("not poisoned").pop_front();
        let count = outcome.expect("an outcome for each read")?;
        into[..count].fill(7);
        Ok(count)
    }

    fn pause(&self, time: Duration) {
        self.pauses.lock().expect("not poisoned").push(time);
    }
}

/// An outcome: the read fails with EIO.
pub(crate) fn eio() -> io::Result<usize> {
    Err(io::Error::from_raw_os_error(5))
}
