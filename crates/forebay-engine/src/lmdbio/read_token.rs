//! A reader's turn: it begins before the first read of a segment and ends when there is nothing to read, or with the segment.

use crate::pipeline::session::{Session, WAKEUP_INTERVAL};
use crate::shm::counters::{Counter, count};
use crate::shm::read_gate::{Entry, ReadGate};

/// See the module header. A turn ends when it is dropped, at the latest.
pub(crate) struct ReadToken<'a> {
    session: &'a Session,
    gate: Option<&'a ReadGate>,
    /// First step of the segment that it is for, while it lasts.
    segment: Option<u64>,
}

impl<'a> ReadToken<'a> {
    pub(crate) fn new(session: &'a Session) -> Self {
        let gate = session.context.options.stagger.map(|_| session.context.region.gate());
        Self { session, gate, segment: None }
    }

    /// Waits until reads for a segment may be made; false when the session was stopped.
    pub(crate) fn begin(&mut self, segment: u64) -> bool {
        let Some(gate) = self.gate else { return true };
        if self.segment == Some(segment) {
            return true;
        }
        self.end();
        match gate.enter(WAKEUP_INTERVAL, || self.session.is_stopped()) {
            Entry::Inside => {
                self.segment = Some(segment);
                count(self.session.context.slot(), Counter::StaggerTokens, 1);
                true
            }
            Entry::Free => true,
            Entry::Stopped => false,
        }
    }

    /// Counts bytes that were read in it.
    pub(crate) fn count(&self, bytes: u64) {
        if let Some(gate) = self.gate.filter(|_| self.segment.is_some()) {
            gate.count(bytes);
        }
    }

    /// Ends it, if there is one: to be called before every wait.
    pub(crate) fn end(&mut self) {
        if let Some(gate) = self.gate.filter(|_| self.segment.take().is_some()) {
            gate.leave();
        }
    }
}

impl Drop for ReadToken<'_> {
    fn drop(&mut self) {
        self.end();
    }
}
