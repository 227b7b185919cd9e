//! What must be kept of an order so that a run resumes exactly, also on another number of ranks.
//!
//! The position itself is one integer, the absolute step, and is kept by the caller; the batch per rank follows from
//! the global batch and the number of ranks.

use serde::{Deserialize, Serialize};

use crate::order::{Kind, Last, Order, OrderError, OrderSpec, list};

/// Version of the definitions: rises when a constant or a rule of an order changes, so that no run resumes on another
/// stream unnoticed.
const VERSION: u32 = 1;

/// The parameters that define the stream of global batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OrderState {
    /// Version of the definition of orders.
    pub version: u32,
    /// Kind of order, with the sizes of its groups.
    pub kind: Kind,
    /// What the end of an epoch does.
    pub last: Last,
    /// Seed.
    pub seed: u64,
    /// N, samples of the data set.
    pub samples: u64,
    /// G, samples per step over all ranks.
    pub global_batch: u64,
    /// L, lanes.
    pub lanes: u64,
}

impl OrderState {
    pub(crate) fn of(order: &Order) -> Self {
        let spec = order.spec();
        Self {
            version: VERSION,
            kind: spec.kind,
            last: spec.last,
            seed: spec.seed,
            samples: spec.samples,
            global_batch: order.global_batch(),
            lanes: order.lanes(),
        }
    }

    /// Numbers of ranks on which the same stream can go on, ascending.
    #[must_use]
    pub fn allowed_ranks(&self) -> Vec<u64> {
        crate::order::allowed_ranks(self.kind, self.lanes)
    }

    /// The order that continues this stream on `ranks` ranks.
    ///
    /// # Errors
    /// Where the number of ranks does not fit the stream: the message lists those that would work. A state of another
    /// version, or one that contradicts itself.
    pub fn spec(&self, ranks: u64) -> Result<OrderSpec, OrderError> {
        self.check_resume(ranks)?;
        Ok(OrderSpec {
            kind: self.kind,
            last: self.last,
            seed: self.seed,
            samples: self.samples,
            batch: self.global_batch / ranks,
            ranks,
            lanes: Some(self.lanes),
        })
    }

    /// Checks that the stream can go on, on `ranks` ranks.
    ///
    /// # Errors
    /// As [`OrderState::spec`].
    pub fn check_resume(&self, ranks: u64) -> Result<(), OrderError> {
        if self.version != VERSION {
            return Err(OrderError::StateVersion { found: self.version, expected: VERSION });
        }
        if self.lanes == 0 || !self.global_batch.is_multiple_of(self.lanes) {
            return Err(OrderError::StateDiffers {
                what: "lanes",
                found: self.lanes.to_string(),
                expected: format!("a divisor of the global batch of {}", self.global_batch),
            });
        }
        let works = self.allowed_ranks();
        if works.binary_search(&ranks).is_err() {
            return Err(OrderError::ResumeRanks {
                ranks,
                kind: self.kind.name(),
                global_batch: self.global_batch,
                lanes: self.lanes,
                works: list(&works),
            });
        }
        Ok(())
    }

    /// Checks that `order` continues this stream.
    ///
    /// # Errors
    /// Names the first difference, with both values.
    pub fn check_order(&self, order: &Order) -> Result<(), OrderError> {
        self.check_resume(order.spec().ranks)?;
        let now = Self::of(order);
        let differs =
            |what, found: String, expected: String| Err(OrderError::StateDiffers { what, found, expected });
        if self.samples != now.samples {
            return differs("samples of the data set", now.samples.to_string(), self.samples.to_string());
        }
        if self.kind != now.kind {
            return differs("order", now.kind.to_string(), self.kind.to_string());
        }
        if self.last != now.last {
            return differs("last", now.last.name().into(), self.last.name().into());
        }
        if self.seed != now.seed {
            return differs("seed", now.seed.to_string(), self.seed.to_string());
        }
        if self.global_batch != now.global_batch {
            return differs("global batch", now.global_batch.to_string(), self.global_batch.to_string());
        }
        if self.lanes != now.lanes {
            return differs("lanes", now.lanes.to_string(), self.lanes.to_string());
        }
        Ok(())
    }
}
