//! The token under which a reader reads, where only some nodes may read at a time: it is taken
//! before the first read of a segment, and given back when there is nothing to read, or with the
//! segment.

use crate::pipeline::session::{Session, WAKEUP_INTERVAL};
use crate::shm::counters::{Counter, count};
use crate::shm::read_gate::{GateEntry, ReadGate};

/// See the module header. Given back when it is dropped, at the latest.
pub(crate) struct ReadToken<'a> {
    session: &'a Session,
    /// `None`: all read whenever they like.
    gate: Option<&'a ReadGate>,
    /// First step of the segment that it is held for.
    segment: Option<u64>,
}

impl<'a> ReadToken<'a> {
    pub(crate) fn new(session: &'a Session) -> Self {
        Self { session, gate: session.context.read_gate(), segment: None }
    }

    /// Waits until reads for a segment may be made; false when the session was stopped.
    pub(crate) fn take(&mut self, segment: u64) -> bool {
        let Some(gate) = self.gate else { return true };
        if self.segment == Some(segment) {
            return true;
        }
        self.give_back();
        match gate.enter(WAKEUP_INTERVAL, || self.session.is_stopped()) {
            GateEntry::Inside => {
                self.segment = Some(segment);
                count(self.session.context.slot(), Counter::StaggerTokens, 1);
                true
            }
            GateEntry::Free => true,
            GateEntry::Stopped => false,
        }
    }

    /// Counts bytes that were read under it.
    pub(crate) fn count(&self, bytes: u64) {
        if let Some(gate) = self.gate.filter(|_| self.segment.is_some()) {
            gate.count(bytes);
        }
    }

    /// Gives it back, if it is held: to be called before each wait.
    pub(crate) fn give_back(&mut self) {
        if let Some(gate) = self.gate.filter(|_| self.segment.take().is_some()) {
            gate.leave();
        }
    }
}

impl Drop for ReadToken<'_> {
    fn drop(&mut self) {
        self.give_back();
    }
}
