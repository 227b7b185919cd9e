//! The gate of a node, where nodes read in turns: its readers read only while it is open. The
//! engine keeps the same in shared memory (`read_gate.rs`).

use std::cell::{Cell, RefCell};

use forebay_model::{Condition, Kernel, ModelTime};
use forebay_plan::TokenHost;

/// See the module header.
#[derive(Debug)]
pub(crate) struct Gate {
    is_open: bool,
    is_free: bool,
    /// Readers that may read.
    inside: u32,
    /// Readers that want to.
    asking: u32,
    /// Bytes that were read inside since the token client asked.
    read_bytes: u64,
    /// Any of these has changed.
    pub(crate) changes: Condition,
}

impl Gate {
    pub(crate) fn new(kernel: &mut Kernel) -> Gate {
        let changes = kernel.condition();
        Gate { is_open: false, is_free: false, inside: 0, asking: 0, read_bytes: 0, changes }
    }
}

/// What a reader needs in order to read, for one segment at a time.
#[derive(Debug, Default)]
pub(crate) struct ReadToken {
    /// First step of the segment that it is held for.
    segment: Option<u64>,
    is_asking: bool,
}

impl ReadToken {
    /// Takes the token for a segment; false: the reader has to wait for a change of the gate. A
    /// node without a gate needs none.
    pub(crate) fn take(
        &mut self,
        segment: u64,
        gate: Option<&mut Gate>,
        kernel: &mut Kernel,
        wake_ns: u64,
    ) -> bool {
        let Some(gate) = gate.filter(|gate| self.segment != Some(segment) && !gate.is_free) else {
            return true;
        };
        self.leave(gate, kernel, wake_ns);
        if !self.is_asking {
            self.is_asking = true;
            gate.asking += 1;
            kernel.notify_after(gate.changes, wake_ns);
        }
        if gate.is_open {
            (self.is_asking, self.segment) = (false, Some(segment));
            gate.asking -= 1;
            gate.inside += 1;
        }
        gate.is_open
    }

    /// Counts bytes that were read under it.
    pub(crate) fn count(&self, bytes: u64, gate: Option<&mut Gate>) {
        if let Some(gate) = gate.filter(|_| self.segment.is_some()) {
            gate.read_bytes += bytes;
        }
    }

    /// Gives it back, if it is held: before each wait for anything but storage.
    pub(crate) fn give_back(&mut self, gate: Option<&mut Gate>, kernel: &mut Kernel, wake_ns: u64) {
        if let Some(gate) = gate {
            self.leave(gate, kernel, wake_ns);
        }
    }

    /// The first reader that leaves closes the gate for all.
    fn leave(&mut self, gate: &mut Gate, kernel: &mut Kernel, wake_ns: u64) {
        if self.segment.take().is_some() {
            gate.is_open = false;
            gate.inside -= 1;
            kernel.notify_after(gate.changes, wake_ns);
        }
    }
}

/// What the token client of a node acts on; its messages are collected.
pub(crate) struct GateHost<'a> {
    gate: RefCell<&'a mut Gate>,
    now: ModelTime,
    sent: RefCell<Vec<(usize, Vec<u8>)>>,
    has_opened: Cell<bool>,
}

impl<'a> GateHost<'a> {
    pub(crate) fn new(gate: &'a mut Gate, now: ModelTime) -> GateHost<'a> {
        GateHost { gate: RefCell::new(gate), now, sent: RefCell::default(), has_opened: Cell::new(false) }
    }

    /// Wakes readers that may read now, and returns the messages to other nodes.
    pub(crate) fn finish(self, kernel: &mut Kernel, wake_ns: u64) -> Vec<(usize, Vec<u8>)> {
        if self.has_opened.get() {
            kernel.notify_after(self.gate.borrow().changes, wake_ns);
        }
        self.sent.into_inner()
    }
}

impl TokenHost for GateHost<'_> {
    fn is_asked(&self) -> bool {
        self.gate.borrow().asking > 0
    }

    fn is_left(&self) -> bool {
        let gate = &mut **self.gate.borrow_mut();
        if gate.inside == 0 && gate.asking == 0 {
            gate.is_open = false;
        }
        !gate.is_open && gate.inside == 0
    }

    fn open(&self, _groups: u64) {
        self.gate.borrow_mut().is_open = true;
        self.has_opened.set(true);
    }

    fn free(&self) {
        self.gate.borrow_mut().is_free = true;
        self.has_opened.set(true);
    }

    fn wake(&self) {}

    fn take_read_bytes(&self) -> u64 {
        std::mem::take(&mut self.gate.borrow_mut().read_bytes)
    }

    fn is_regrouped(&self) -> bool {
        false
    }

    fn take_groups(&self) -> Option<u64> {
        None
    }

    fn send(&self, node: usize, message: Vec<u8>) -> bool {
        self.sent.borrow_mut().push((node, message));
        true
    }

    fn is_gone(&self, _node: usize) -> bool {
        false
    }

    fn now_ns(&self) -> u64 {
        self.now
    }
}
