//! The gate of a node: its readers touch storage only while it is open.
//!
//! Words in shared memory, and the rules around them:
//!
//! 1. a reader that wants to read counts itself among the *asking* and rings; once the gate is
//!    *open* it counts itself *inside*, looks at the gate again, and is in only if it is open
//!    still;
//! 2. it stays inside as long as it has something to read, a segment at most; then it closes the
//!    gate for all, and goes out;
//! 3. whoever opened the gate gives the token on when it is closed and nobody is inside.
//!
//! The count comes before the look, and the closing before the look at the count, with a full fence
//! between them on both sides: so nobody reads without the token. `tests/loom_gate.rs` checks it. A
//! gate that is *free* lets everybody pass: where no arbiter decides for the node, and where the
//! process that ran it has left.

use std::time::Duration;

use forebay_host::EventCount;
use forebay_host::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// What came of asking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// Inside; [`ReadGate::leave`] must follow.
    Inside,
    /// All may read.
    Free,
    /// The wait was to be stopped.
    Stopped,
}

/// See the module header; all zeros is a gate that is closed.
#[derive(Debug, Default)]
#[repr(C, align(128))]
pub struct ReadGate {
    open: AtomicU32,
    inside: AtomicU32,
    asking: AtomicU32,
    free: AtomicU32,
    /// Bytes that were read inside since somebody asked for that.
    read_bytes: AtomicU64,
    /// Groups of nodes that read in turn, as far as this node knows; 0: not told yet.
    pub(crate) groups: AtomicU64,
    /// What a rank of this node wants that number to be, plus 1 (1: to be measured), and 0 once
    /// that was passed on.
    pub(crate) wanted_groups: AtomicU64,
    /// Rung when anything of it changes.
    pub(crate) changes: EventCount,
}

impl ReadGate {
    /// Goes inside; waits for it up to `patience` at a time until `stop` says to end.
    pub fn enter(&self, patience: Duration, stop: impl Fn() -> bool) -> Entry {
        if self.is_free() {
            return Entry::Free;
        }
        self.asking.fetch_add(1, Ordering::SeqCst);
        self.changes.notify();
        let entry = loop {
            self.changes.wait(|| stop() || self.is_free() || self.is_open(), patience);
            if stop() {
                break Entry::Stopped;
            }
            if self.is_free() {
                break Entry::Free;
            }
            self.inside.fetch_add(1, Ordering::SeqCst);
            // SYNC: gate. The count before the look at the gate; pairs with the fence in `is_left`.
            fence(Ordering::SeqCst);
            if self.is_open() {
                break Entry::Inside;
            }
            self.inside.fetch_sub(1, Ordering::SeqCst);
            self.changes.notify();
        };
        self.asking.fetch_sub(1, Ordering::SeqCst);
        self.changes.notify();
        entry
    }

    /// Goes out, and closes the gate for all.
    pub fn leave(&self) {
        self.open.store(0, Ordering::SeqCst);
        self.inside.fetch_sub(1, Ordering::SeqCst);
        self.changes.notify();
    }

    /// Counts bytes that were read inside.
    pub fn count(&self, bytes: u64) {
        self.read_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// The bytes that were counted since the last call.
    pub fn take_bytes(&self) -> u64 {
        self.read_bytes.swap(0, Ordering::Relaxed)
    }

    /// Opens the gate; the caller has the token.
    pub fn open(&self) {
        self.open.store(1, Ordering::SeqCst);
        self.changes.notify();
    }

    /// Lets everybody pass from now on.
    pub fn set_free(&self) {
        self.free.store(1, Ordering::SeqCst);
        self.changes.notify();
    }

    /// Whether anybody asks to go inside.
    pub fn is_asked(&self) -> bool {
        self.asking.load(Ordering::SeqCst) > 0
    }

    /// Whether the gate is closed and nobody is inside; a gate that nobody asks for any more is
    /// closed here.
    pub fn is_left(&self) -> bool {
        if self.is_open() && self.inside.load(Ordering::SeqCst) == 0 && !self.is_asked() {
            self.open.store(0, Ordering::SeqCst);
        }
        if self.is_open() {
            return false;
        }
        // SYNC: gate. The closing before the look at the count; pairs with the fence in `enter`.
        fence(Ordering::SeqCst);
        self.inside.load(Ordering::SeqCst) == 0
    }

    fn is_open(&self) -> bool {
        self.open.load(Ordering::SeqCst) != 0
    }

    /// Whether everybody may pass.
    pub fn is_free(&self) -> bool {
        self.free.load(Ordering::SeqCst) != 0
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_millis(1);

    #[test]
    fn a_gate_is_left_when_the_last_reader_is_out() {
        let gate = ReadGate::default();
        assert_eq!(gate.enter(SHORT, || true), Entry::Stopped);
        assert!(gate.is_left() && !gate.is_asked());
        gate.open();
        assert_eq!(gate.enter(SHORT, || false), Entry::Inside);
        assert_eq!(gate.enter(SHORT, || false), Entry::Inside);
        assert!(!gate.is_left());
        gate.leave();
        assert!(!gate.is_left());
        // The first one out closed it for all.
        assert_eq!(gate.enter(SHORT, || true), Entry::Stopped);
        gate.leave();
        assert!(gate.is_left());
    }

    #[test]
    fn a_gate_that_nobody_uses_is_closed_again_and_a_free_one_lets_all_pass() {
        let gate = ReadGate::default();
        gate.open();
        assert!(gate.is_left());
        assert_eq!(gate.enter(SHORT, || true), Entry::Stopped);
        gate.set_free();
        assert_eq!(gate.enter(SHORT, || false), Entry::Free);
    }
}
