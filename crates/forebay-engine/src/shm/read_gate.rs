//! The gate of a node: its readers touch storage only while it is open.
//!
//! Words in shared memory, and the rules around them:
//!
//! 1. A reader that wants to read increments *asking* and notifies. Once the gate is *open* it
//!    increments *inside* and checks the gate again: it may read only if the gate is still open.
//! 2. It stays inside while it has something to read, for at most a segment. Then it closes the
//!    gate for all readers, and leaves.
//! 3. The thread that opened the gate passes the token on when the gate is closed and no reader is
//!    inside.
//!
//! Readers increment before they check, and the other side closes before it checks the count, with
//! a full fence between: so no reader reads without the token. `tests/loom_gate.rs` checks this. A
//! *free* gate admits all readers: where nodes take no turns, or after the process of the token
//! client has left.

use std::time::Duration;

use forebay_host::EventCount;
use forebay_host::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// Result of [`ReadGate::enter`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GateEntry {
    /// Inside; [`ReadGate::leave`] must follow.
    Inside,
    /// All may read.
    Free,
    /// The wait was stopped.
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
    /// Bytes that were read inside since the last [`ReadGate::take_bytes`].
    read_bytes: AtomicU64,
    /// Number of groups of nodes that read one after another; 0: not known yet.
    pub(crate) groups: AtomicU64,
    /// The number that a rank of this node requests, plus 1 (1: to be measured); 0 once the request
    /// was forwarded.
    pub(crate) wanted_groups: AtomicU64,
    /// Notified on each change.
    pub(crate) changes: EventCount,
}

impl ReadGate {
    /// Enters the gate; checks `stop` at least once per `interval` while it waits.
    pub fn enter(&self, interval: Duration, stop: impl Fn() -> bool) -> GateEntry {
        if self.is_free() {
            return GateEntry::Free;
        }
        self.asking.fetch_add(1, Ordering::SeqCst);
        self.changes.notify();
        let entry = loop {
            self.changes.wait(|| stop() || self.is_free() || self.is_open(), interval);
            if stop() {
                break GateEntry::Stopped;
            }
            if self.is_free() {
                break GateEntry::Free;
            }
            self.inside.fetch_add(1, Ordering::SeqCst);
            // SYNC: gate. The increment before the check; pairs with the fence in `is_left`.
            fence(Ordering::SeqCst);
            if self.is_open() {
                break GateEntry::Inside;
            }
            self.inside.fetch_sub(1, Ordering::SeqCst);
            self.changes.notify();
        };
        self.asking.fetch_sub(1, Ordering::SeqCst);
        self.changes.notify();
        entry
    }

    /// Leaves, and closes the gate for all readers.
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

    /// Admits all readers from now on.
    pub fn set_free(&self) {
        self.free.store(1, Ordering::SeqCst);
        self.changes.notify();
    }

    /// Whether any reader waits to enter.
    pub fn is_asked(&self) -> bool {
        self.asking.load(Ordering::SeqCst) > 0
    }

    /// Whether the gate is closed and no reader is inside; closes a gate that no reader uses.
    pub fn is_left(&self) -> bool {
        if self.is_open() && self.inside.load(Ordering::SeqCst) == 0 && !self.is_asked() {
            self.open.store(0, Ordering::SeqCst);
        }
        if self.is_open() {
            return false;
        }
        // SYNC: gate. The close before the check of the count; pairs with the fence in `enter`.
        fence(Ordering::SeqCst);
        self.inside.load(Ordering::SeqCst) == 0
    }

    fn is_open(&self) -> bool {
        self.open.load(Ordering::SeqCst) != 0
    }

    /// Whether all readers may pass.
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
        assert_eq!(gate.enter(SHORT, || true), GateEntry::Stopped);
        assert!(gate.is_left() && !gate.is_asked());
        gate.open();
        assert_eq!(gate.enter(SHORT, || false), GateEntry::Inside);
        assert_eq!(gate.enter(SHORT, || false), GateEntry::Inside);
        assert!(!gate.is_left());
        gate.leave();
        assert!(!gate.is_left());
        // The first one out closed it for all.
        assert_eq!(gate.enter(SHORT, || true), GateEntry::Stopped);
        gate.leave();
        assert!(gate.is_left());
    }

    #[test]
    fn an_unused_gate_is_closed_again_and_a_free_one_admits_all() {
        let gate = ReadGate::default();
        gate.open();
        assert!(gate.is_left());
        assert_eq!(gate.enter(SHORT, || true), GateEntry::Stopped);
        gate.set_free();
        assert_eq!(gate.enter(SHORT, || false), GateEntry::Free);
    }
}
