//! The end of a run: no more copies are begun.

use std::sync::atomic::Ordering;

use crate::daemon::run::worker::Worker;

impl Worker {
    /// Ends copies under way, and comparisons, and says so.
    pub(super) fn finish(&mut self) -> bool {
        if self.shared.is_finished.load(Ordering::Acquire) {
            return false;
        }
        self.waiting.clear();
        self.late.clear();
        self.staged.clear();
        self.wanted.clear();
        let is_busy = !self.copying.is_empty() || !self.flushing.is_empty() || !self.to_compare.is_empty();
        if !is_busy && self.copiers.under_way() == 0 {
            self.shared.is_finished.store(true, Ordering::Release);
        }
        true
    }
}
