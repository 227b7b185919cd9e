//! The next batch of a loader: handed out where it is ready, else waited for, with a look at who died meanwhile.

use std::sync::PoisonError;
use std::time::{Duration, Instant};

use crate::batch::Batch;
use crate::caller::Caller;
use crate::engine::Engine;
use crate::error::Error;
use crate::pass::{ATTENTION, Pass, STALL_WARNING};
use crate::ring::Taken;
use crate::stats::{self, Counter, count};

/// How often `next` looks whether a peer has died when it does not wait.
const LOOK_AROUND: Duration = Duration::from_secs(1);
/// A wait that takes so much longer than it was to take was not one: the process did not run.
const STOPPED: Duration = Duration::from_secs(3);

/// A batch and its place in the run.
pub struct Delivered {
    /// The batch.
    pub batch: Batch,
    /// Its epoch.
    pub epoch: u64,
    /// Its step within the epoch.
    pub step: u64,
}

impl Engine {
    /// The next batch of an iteration with its epoch and step, or `None` at the end of the epoch.
    ///
    /// # Errors
    /// [`Error::Stale`] where another iteration was begun, or this one ended by [`Engine::leave`].
    pub fn next(&self, iteration: u64, caller: &dyn Caller) -> Result<Option<Delivered>, Error> {
        let mut consumer = self.consumer()?;
        if consumer.iteration != iteration {
            return Err(Error::Stale);
        }
        let begun = Instant::now();
        let shared = &self.shared;
        let slot = shared.slot();
        if let Some(last) = consumer.last_return {
            count(slot, Counter::ComputeNs, begun.duration_since(last).as_nanos() as u64);
        }
        if let Some(error) = &consumer.failed {
            return Err(error.clone());
        }
        if consumer.step >= consumer.end || consumer.away {
            consumer.last_return = None;
            if !consumer.away {
                self.same_epoch(&mut consumer)?;
                self.end_of_epoch(caller)?;
            }
            return Ok(None);
        }
        let Some(pass) = consumer.pass.clone() else { return Ok(None) };
        // Where every batch is ready nobody waits, and a death would go unnoticed.
        let looked = if begun.duration_since(consumer.looked) > LOOK_AROUND {
            consumer.looked = begun;
            self.look_around(caller, || "found between two batches".into())
                .and_then(|()| self.same_epoch(&mut consumer))
        } else {
            Ok(())
        };
        let epoch = (consumer.end / self.steps_per_epoch()).saturating_sub(1);
        let taken = looked
            .and_then(|()| self.given_agree(epoch))
            .and_then(|()| self.wait_for_batch(&pass, consumer.step, begun, caller));
        let batch = match taken {
            Ok(batch) => batch,
            // The batch is still on its way; the next call finds it.
            Err(Error::Interrupted) => return Err(Error::Interrupted),
            Err(error) => {
                let error = self.or_modified(error);
                self.step_aside(&mut consumer);
                consumer.failed = Some(error.clone());
                return Err(error);
            }
        };
        let waited = begun.elapsed().as_nanos() as u64;
        count(slot, if consumer.filling { Counter::StartupNs } else { Counter::ExposedNs }, waited);
        consumer.filling = false;
        let steps = self.steps_per_epoch();
        let (epoch, step) = (consumer.step / steps, consumer.step % steps);
        consumer.step += 1;
        count(slot, Counter::Steps, 1);
        count(slot, Counter::Samples, batch.samples() as u64);
        stats::arrive(shared.region.ranks(), shared.me());
        if !consumer.warned_copies && shared.buffers.ring.keeps_all() {
            consumer.warned_copies = true;
            caller.warn(&format!(
                "loader \"{}\": all {} batch buffers of this rank are still in use, so further batches are allocated \
                 one by one; drop or copy batches you no longer need, or ask for more by strategy=Strategy(buffers=)",
                shared.options.name,
                shared.region.layout().buffers
            ));
        }
        for text in shared.bad_samples.news() {
            caller.warn(&format!("loader \"{}\": {text}", shared.options.name));
        }
        consumer.last_return = Some(Instant::now());
        Ok(Some(Delivered { batch, epoch, step }))
    }

    fn wait_for_batch(
        &self,
        pass: &Pass,
        step: u64,
        begun: Instant,
        caller: &dyn Caller,
    ) -> Result<Batch, Error> {
        let shared = &self.shared;
        let mut warnings = 0;
        // Time in which this very process did not run, stopped by a signal, is nobody's stall.
        let (mut stopped, mut looked) = (Duration::ZERO, begun);
        loop {
            match shared.buffers.ring.take(step, ATTENTION) {
                Taken::Item(batch) => return Ok(batch),
                Taken::Failed(error) => return Err(error),
                Taken::NotYet => {}
            }
            if let Some(error) = pass.failure() {
                return Err(error);
            }
            let waits = || {
                let what = shared.waiting_for.lock().unwrap_or_else(PoisonError::into_inner).clone();
                if what.is_empty() {
                    "waiting for its first bytes".into()
                } else {
                    format!("waiting for {what}")
                }
            };
            self.look_around(caller, waits)?;
            let round = looked.elapsed();
            looked = Instant::now();
            if round > STOPPED {
                stopped += round;
            }
            let elapsed = begun.elapsed().saturating_sub(stopped);
            if elapsed > STALL_WARNING * (warnings + 1) {
                warnings += 1;
                caller.warn(&format!(
                    "loader \"{}\": no batch for {} s, {}",
                    shared.options.name,
                    elapsed.as_secs(),
                    waits()
                ));
            }
            if elapsed.as_secs() > shared.options.timeout_s {
                return Err(Error::Timeout { seconds: shared.options.timeout_s, what: waits() });
            }
        }
    }

    /// What looks like damage may be a writer at work, which is the better reason.
    fn or_modified(&self, error: Error) -> Error {
        if !matches!(error, Error::Format(..) | Error::BadSample { .. }) {
            return error;
        }
        match self.shared.source.dataset().check_unchanged() {
            Err(modified @ forebay_format::Error::Modified { .. }) => modified.into(),
            _ => error,
        }
    }

    /// The check at the end of an epoch: the source is as it was when it was opened.
    fn end_of_epoch(&self, caller: &dyn Caller) -> Result<(), Error> {
        for warning in self.shared.source.dataset().check_unchanged()? {
            caller.warn(&warning);
        }
        Ok(())
    }
}
