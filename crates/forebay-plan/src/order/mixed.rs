//! Orders of mixtures: `sequential`, `shuffle` and `group` within each source.

use std::sync::Arc;

use forebay_types::{Rank, SampleId};

use super::{LastBatch, MAX_SAMPLES, Order, OrderError, OrderKind, OrderSpec, PermutationCache};
use crate::order::group::Shape;
use crate::order::mixture::{Draws, LaneDraws, Mixture, WindowDraws};

impl Order {
    /// The order of a mixture: `spec.kind` says in which order each source is passed. N is the
    /// number of samples of an epoch, T·G, so that what `spec` has there is not used.
    ///
    /// # Errors
    /// As [`Order::new`]; a kind or an end of an epoch that mixtures do not have; a source that is
    /// too small for one step.
    pub fn mixed(spec: OrderSpec, mixture: Mixture) -> Result<Self, OrderError> {
        if !matches!(spec.kind, OrderKind::Sequential | OrderKind::Shuffle | OrderKind::Group { .. }) {
            return Err(OrderError::MixtureKind { kind: spec.kind.name() });
        }
        if spec.last_batch == LastBatch::Carry {
            return Err(OrderError::MixtureLast { last: spec.last_batch.name() });
        }
        let mut order = Self::new(OrderSpec { samples: MAX_SAMPLES, last_batch: LastBatch::Drop, ..spec })?;
        let lanes = order.shape.map_or(1, |shape| shape.lanes);
        let steps = mixture.steps(lanes, order.global_batch / lanes)?;
        order.steps = order.steps.all_whole(steps);
        order.spec.samples = steps * order.global_batch;
        order.shape = order.shape.map(|shape| Shape { samples: order.spec.samples, ..shape });
        order.mixture = Some(Arc::new(mixture));
        Ok(order)
    }

    /// The mixture of the dataset, if it is one.
    #[must_use]
    pub fn mixture(&self) -> Option<&Mixture> {
        self.mixture.as_deref()
    }

    /// The draws of an epoch of a mixture without lanes.
    pub(crate) fn draws(&self, mixture: &Mixture, epoch: u64) -> Draws {
        Draws::new(mixture, self.spec.seed, epoch, self.spec.kind == OrderKind::Shuffle)
    }

    /// The draws of a lane in an epoch of a mixture in the order `group`.
    pub(crate) fn lane_draws<'a>(&self, mixture: &'a Mixture, lane: u64, epoch: u64) -> LaneDraws<'a> {
        let OrderKind::Group { samples, .. } = self.spec.kind else {
            unreachable!("only the order group has lanes to choose")
        };
        LaneDraws::new(mixture, (lane, self.lanes), samples, self.spec.seed, epoch)
    }

    /// [`Order::batch`] of a mixture.
    pub(super) fn mixture_batch(
        &self,
        mixture: &Mixture,
        epoch: u64,
        step: u64,
        rank: Rank,
        kept: &mut PermutationCache,
        out: &mut Vec<SampleId>,
    ) {
        let Some(shape) = &self.shape else {
            let run = self.run(epoch, step, rank);
            let draws = kept.draws(epoch, || self.draws(mixture, epoch));
            let positions = run.first..run.first + run.count;
            return out.extend(positions.map(|position| SampleId(draws.sample(mixture, position))));
        };
        let (sequences, windows) = kept.lane_draws(epoch, mixture);
        let first = step * self.lane_batch();
        let positions = first..first + self.lane_batch();
        for (place, lane) in self.lanes_of(rank).enumerate() {
            if windows.get(place).is_none_or(|(kept, _)| *kept != lane) {
                windows.truncate(place);
                windows.push((lane, WindowDraws::new(mixture)));
            }
            let window_at = |position| shape.window_at(lane, position);
            let draws = self.lane_draws(mixture, lane, epoch);
            draws.samples(positions.clone(), window_at, sequences, &mut windows[place].1, out);
        }
    }
}
