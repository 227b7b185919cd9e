//! Ranks of a node that do something each for itself.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use forebay_model::{Kernel, ModelTime};

/// When each rank goes on.
pub(crate) struct RankTurns(BinaryHeap<Reverse<(ModelTime, usize)>>);

impl RankTurns {
    /// All ranks go on now.
    pub(crate) fn new(now: ModelTime, ranks: usize) -> RankTurns {
        RankTurns((0..ranks).map(|rank| Reverse((now, rank))).collect())
    }

    /// Lets all ranks go on whose time has come: `go_on` returns when its rank continues, if it
    /// does. Returns when the next one continues, or `None` once all are done.
    pub(crate) fn run(
        &mut self,
        kernel: &mut Kernel,
        mut go_on: impl FnMut(usize, &mut Kernel) -> Option<ModelTime>,
    ) -> Option<ModelTime> {
        loop {
            let Reverse((time, rank)) = *self.0.peek()?;
            if time > kernel.now() {
                return Some(time);
            }
            self.0.pop();
            self.0.extend(go_on(rank, kernel).map(|time| Reverse((time, rank))));
        }
    }
}
