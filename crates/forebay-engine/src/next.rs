//! The next batch of a loader: handed out where it is ready, else waited for, with a look at who died meanwhile.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use forebay_types::Extent;

use crate::aside::aside;
use crate::batch::Batch;
use crate::blame::{Fault, Node, Waiting, Who};
use crate::caller::Caller;
use crate::engine::Engine;
use crate::error::Error;
use crate::pass::{ATTENTION, Pass};
use crate::position::{AWAY, Position};
use crate::ring::Taken;
use crate::stats::{self, Counter, count, monotonic_ns};
use crate::waited::{Waited, Warnings};

/// How often `next` looks whether a peer has died when it does not wait.
const LOOK_AROUND: Duration = Duration::from_secs(1);
/// A wait that lasts so long at once was none: the process did not run.
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
                let error = self.or_modified(error, caller);
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
                 one by one; drop or copy batches you no longer need, or ask for more by strategy=Strategy(batch_buffers=)",
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
        let mut warnings = Warnings::before(self.limit());
        let mut waited = Waited::new(monotonic_ns());
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
            self.look_around(caller, || self.words_of_wait(pass, step))?;
            let round = looked.elapsed();
            looked = Instant::now();
            if round > STOPPED {
                stopped += round;
            }
            // Processes that run say so when they are rung for.
            shared.region.planning().notify();
            let now_ns = monotonic_ns();
            let (node, fault) = self.fault_of_step(pass, step, now_ns);
            let words = || self.words_of_fault(pass, step, &node, fault);
            let elapsed = begun.elapsed().saturating_sub(stopped);
            if warnings.is_due(elapsed) {
                self.warn_of_wait(caller, elapsed, &words());
            }
            if waited.count(now_ns, fault) >= self.limit() {
                return Err(Error::Timeout { seconds: shared.options.timeout_s, what: words() });
            }
        }
    }

    /// Finds out what holds up a step.
    fn fault_of_step(&self, pass: &Pass, step: u64, now_ns: u64) -> (Node, Fault) {
        let shared = &self.shared;
        let mut node = shared.node(pass.number, now_ns);
        // Threads that fill later steps may wait for something else.
        node.ranks[shared.me()].doing = shared.waits().doing_of(step);
        let fault = node.fault();
        (node, fault)
    }

    fn words_of_fault(&self, pass: &Pass, step: u64, node: &Node, fault: Fault) -> String {
        match fault {
            Fault::Unknown { .. } => self.words_of_wait(pass, step),
            Fault::Turn => "waiting for the turn of this node to read, which other nodes have".into(),
            Fault::Rank { local, runs: false } => {
                format!("waiting for {}, whose process does not run", self.name_of(local))
            }
            Fault::Rank { local, runs: true } => {
                let steps = self.steps_per_epoch().max(1);
                let place = match node.ranks[local].gathered.step_in(pass.number) {
                    AWAY => String::new(),
                    at => format!(": it has read ahead to step {} of epoch {}", at % steps, at / steps),
                };
                format!("waiting for {}, which takes no further batch{place}", self.name_of(local))
            }
            Fault::Storage { who, since_ns, .. } => self.words_of_stall(pass, step, node, who, since_ns),
        }
    }

    /// Which read is under way, as far as this process can tell.
    fn words_of_stall(&self, pass: &Pass, step: u64, node: &Node, who: Who, since_ns: u64) -> String {
        let shared = &self.shared;
        let (thread, host, read) = match who {
            Who::Reader(number) => {
                let begun = &shared.region.readers()[number].begun;
                let begun = Position::from_word(begun.load(Ordering::Acquire)).step_in(pass.number);
                let read = begun.checked_sub(1).and_then(|sequence| extent_of(pass, sequence));
                (format!("reader {number} of "), node.readers[number].host, read)
            }
            Who::Root(number) => (format!("root {number} of "), node.readers[number].host, None),
            Who::Rank(local) => {
                let own = (local == shared.me()).then(|| shared.waits().of(step)).flatten();
                let read = match own {
                    Some(Waiting::Reading { extent, .. }) => Some(extent),
                    _ => None,
                };
                (String::new(), local, read)
            }
        };
        let what = read.map_or_else(|| "pages of the data set".into(), |extent| self.place(extent));
        let lasts = match since_ns {
            0 => ", which has closed its loader, still reads".to_owned(),
            since => {
                format!(" has been reading for {} s:", node.now_ns.saturating_sub(since) / 1_000_000_000)
            }
        };
        format!("waiting for storage: {thread}{}{lasts} {what}", self.name_of(host))
    }

    fn place(&self, extent: Extent) -> String {
        let path = self.shared.path(extent.shard);
        format!("{path} at offset {} ({} bytes)", extent.offset, extent.length)
    }

    /// What the thread that fills a step waits for.
    fn words_of_wait(&self, pass: &Pass, step: u64) -> String {
        let shared = &self.shared;
        let waiting = shared.waits().of(step);
        let what = match waiting {
            None => "its first bytes".into(),
            Some(Waiting::Plan) => format!("the plan of step {step}"),
            Some(Waiting::Reading { extent, .. }) => self.place(extent),
            Some(Waiting::Pages { .. }) => "pages of the data set that are not in memory".into(),
            Some(Waiting::Block { sequence, extent }) => {
                let reader = (sequence % shared.region.layout().readers as u64) as usize;
                let host = shared.host(reader, pass.number);
                format!("{}, which reader {reader} on local rank {host} should read", self.place(extent))
            }
        };
        format!("waiting for {what}")
    }

    /// What looks like damage may be a writer at work, which is the better reason.
    fn or_modified(&self, error: Error, caller: &dyn Caller) -> Error {
        if !matches!(error, Error::Format(..) | Error::BadSample { .. }) {
            return error;
        }
        let source = Arc::clone(&self.shared.source);
        let is_modified = move |_: &dyn Caller| match source.dataset().check_unchanged() {
            Err(modified @ forebay_format::Error::Modified { .. }) => Ok(Some(modified.into())),
            _ => Ok(None),
        };
        self.ask_storage(caller, is_modified).ok().flatten().unwrap_or(error)
    }

    /// The check at the end of an epoch: the source is as it was when it was opened.
    fn end_of_epoch(&self, caller: &dyn Caller) -> Result<(), Error> {
        let source = Arc::clone(&self.shared.source);
        for warning in self.ask_storage(caller, move |_| Ok(source.dataset().check_unchanged()?))? {
            caller.warn(&warning);
        }
        Ok(())
    }

    /// Asks for the state of the files, within the limit of this loader.
    fn ask_storage<T: Send + 'static>(
        &self,
        caller: &dyn Caller,
        work: impl FnOnce(&dyn Caller) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let options = &self.shared.options;
        let what = format!("loader \"{}\" looks whether its files have changed", options.name);
        aside(caller, &what, options.timeout_s, work)
    }
}

/// The bytes of a block that lie in its first file, from the first to the last.
fn extent_of(pass: &Pass, sequence: u64) -> Option<Extent> {
    let (planned, place) = pass.plans.next_block(sequence, 0, 1)?;
    let block = planned.plan.blocks.get(place).filter(|block| block.sequence == sequence)?;
    let first = block.first_read as usize;
    let reads = &planned.plan.reads[first..first + block.reads as usize];
    let shard = reads.first()?.shard;
    let of_shard = || reads.iter().filter(|read| read.shard == shard);
    let offset = of_shard().map(|read| read.file_offset).min()?;
    let end = of_shard().map(|read| read.file_offset + read.length).max()?;
    Some(Extent { shard, offset, length: end - offset })
}
