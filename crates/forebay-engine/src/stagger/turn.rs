//! A reader's turn: it begins before the first read of a tranche and ends when there is nothing to read, or with the tranche.

use super::gate::{Entry, Gate};
use crate::pass::{PATIENCE, Pass};
use crate::stats::{Counter, count};

/// See the module header. A turn ends when it is dropped, at the latest.
pub(crate) struct Turn<'a> {
    pass: &'a Pass,
    gate: Option<&'a Gate>,
    /// First step of the tranche that it is for, while it lasts.
    tranche: Option<u64>,
}

impl<'a> Turn<'a> {
    pub(crate) fn new(pass: &'a Pass) -> Self {
        let gate = pass.shared.options.stagger.map(|_| pass.shared.region.gate());
        Self { pass, gate, tranche: None }
    }

    /// Waits until reads for a tranche may be made; false when the pass was stopped.
    pub(crate) fn begin(&mut self, tranche: u64) -> bool {
        let Some(gate) = self.gate else { return true };
        if self.tranche == Some(tranche) {
            return true;
        }
        self.end();
        match gate.enter(PATIENCE, || self.pass.is_stopped()) {
            Entry::Inside => {
                self.tranche = Some(tranche);
                count(self.pass.shared.slot(), Counter::StaggerTokens, 1);
                true
            }
            Entry::Free => true,
            Entry::Stopped => false,
        }
    }

    /// Counts bytes that were read in it.
    pub(crate) fn count(&self, bytes: u64) {
        if let Some(gate) = self.gate.filter(|_| self.tranche.is_some()) {
            gate.count(bytes);
        }
    }

    /// Ends it, if there is one: to be called before every wait.
    pub(crate) fn end(&mut self) {
        if let Some(gate) = self.gate.filter(|_| self.tranche.take().is_some()) {
            gate.leave();
        }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.end();
    }
}
