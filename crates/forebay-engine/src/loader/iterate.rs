//! Delivers the next batch of a loader; while it waits for it, checks for failed peers.

use std::sync::atomic::Ordering;
use std::sync::{Arc, TryLockError};
use std::time::{Duration, Instant};

use forebay_host::{failpoint, fork};
use forebay_types::{Extent, Rank};

use crate::batch::buffer_pool::Taken;
use crate::batch::layout::Batch;
use crate::error::Error;
use crate::host::Host;
use crate::host::offload::offload;
use crate::host::warnings::Warnings;
use crate::loader::Engine;
use crate::loader::elsewhere::RankWait;
use crate::pipeline::session::{ATTENTION, Session};
use crate::shm::counters::{self, Counter, count, monotonic_ns};
use crate::shm::position::{AWAY, Position};
use crate::shm::stall::{Actor, GatherWait, NodeSnapshot, StallCause};
use crate::shm::wait_clock::WaitClock;

/// How often `next` checks for failed peers when it does not wait.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// If one timed wait takes this long, the process was suspended (SIGSTOP): do not count it.
const SUSPENDED_AFTER: Duration = Duration::from_secs(3);

/// A batch with its epoch and step.
pub struct Delivered {
    /// The batch.
    pub batch: Batch,
    /// Its epoch.
    pub epoch: u64,
    /// Its step within the epoch.
    pub step: u64,
    /// Which of its samples `fill` repeats; `None` where it repeats none.
    pub repeated: Option<Vec<bool>>,
}

/// How long the links may take to report a process whose connection is already closed.
const LOSS_IS_KNOWN_WITHIN: Duration = Duration::from_secs(3);

impl Engine {
    /// The next batch of an iteration with its epoch and step, or `None` at the end of the epoch.
    ///
    /// # Errors
    /// [`Error::Stale`] where another iteration was begun, or this one ended by [`Engine::leave`].
    pub fn next(&self, iteration: u64, caller: &dyn Host) -> Result<Option<Delivered>, Error> {
        let mut consumer = self.consumer()?;
        if consumer.iteration != iteration {
            return Err(Error::Stale);
        }
        let begun = Instant::now();
        let context = &self.context;
        let slot = context.slot();
        if let Some(last) = consumer.last_return {
            count(slot, Counter::ComputeNs, begun.duration_since(last).as_nanos() as u64);
        }
        if let Some(error) = &consumer.failed {
            return Err(error.clone());
        }
        if consumer.step >= consumer.end || consumer.detached {
            consumer.last_return = None;
            if !consumer.detached {
                self.check_same_epoch(&mut consumer)?;
                self.end_of_epoch(caller)?;
            }
            return Ok(None);
        }
        let Some(session) = consumer.session.clone() else { return Ok(None) };
        // While all batches are ready, no wait would notice a death.
        let checked = if begun.duration_since(consumer.checked) > CHECK_INTERVAL {
            consumer.checked = begun;
            self.check_liveness(caller, || "found between two batches".into())
                .and_then(|()| self.check_same_epoch(&mut consumer))
        } else {
            Ok(())
        };
        let epoch = (consumer.end / self.steps_per_epoch()).saturating_sub(1);
        let taken = checked.and_then(|()| self.check_given_orders(epoch)).and_then(|()| {
            slot.waits.store(1, Ordering::Relaxed);
            let step = consumer.step;
            consumer.caller_fill.fill(&session, step);
            let taken = self.wait_for_batch(&session, step, begun, caller);
            slot.waits.store(0, Ordering::Relaxed);
            taken
        });
        let batch = match taken {
            Ok(batch) => batch,
            // The batch is still in preparation; the next call takes it.
            Err(Error::Interrupted) => return Err(Error::Interrupted),
            Err(error) => {
                let error = self.loss_or(self.modified_or(error, caller), caller);
                self.detach(&mut consumer);
                consumer.failed = Some(error.clone());
                return Err(error);
            }
        };
        let waited = begun.elapsed().as_nanos() as u64;
        count(slot, if consumer.filling { Counter::StartupNs } else { Counter::ExposedNs }, waited);
        consumer.filling = false;
        consumer.caller_fill.delivered(&session);
        let steps = self.steps_per_epoch();
        let (epoch, step) = (consumer.step / steps, consumer.step % steps);
        consumer.step += 1;
        if self.server.is_some() && failpoint::loses_share() {
            self.withdraw_share();
        }
        count(slot, Counter::Steps, 1);
        count(slot, Counter::Samples, batch.samples() as u64);
        counters::record_delivery(context.region.ranks(), context.local_rank());
        if !consumer.warned_copies && context.buffers.ring.keeps_all() {
            consumer.warned_copies = true;
            caller.warn(&format!(
                "loader \"{}\": all {} batch buffers of this rank are still in use, so further batches are allocated \
                 one by one; drop or copy batches you no longer need, or ask for more by strategy=Strategy(batch_buffers=)",
                context.options.name,
                context.region.layout().buffers
            ));
        }
        for text in context.bad_samples.take_warnings() {
            caller.warn(&format!("loader \"{}\": {text}", context.options.name));
        }
        consumer.last_return = Some(Instant::now());
        let repeated = context.order.repeated(epoch, step, Rank(context.options.rank));
        Ok(Some(Delivered { batch, epoch, step, repeated }))
    }

    /// Whether [`Engine::next`] would return at once. If not, a thread of this rank begins to fill
    /// the batch where a buffer is free; unlike a wait, this never makes the batch a private one.
    #[must_use]
    pub fn is_ready(&self, iteration: u64) -> bool {
        if fork::in_forked_child(self.generation) {
            return true;
        }
        let consumer = match self.consumer.try_lock() {
            Ok(consumer) => consumer,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            // Another thread waits in `next`, or closes the loader.
            Err(TryLockError::WouldBlock) => return false,
        };
        let has_ended = consumer.step >= consumer.end || consumer.detached;
        if consumer.closed || consumer.iteration != iteration || consumer.failed.is_some() || has_ended {
            return true;
        }
        let Some(session) = &consumer.session else { return true };
        self.context.buffers.ring.is_ready(consumer.step) || session.failure().is_some()
    }

    fn wait_for_batch(
        &self,
        session: &Session,
        step: u64,
        begun: Instant,
        caller: &dyn Host,
    ) -> Result<Batch, Error> {
        let context = &self.context;
        let mut warnings = Warnings::before(self.limit());
        let mut waited = WaitClock::new(monotonic_ns());
        let mut wait = RankWait::new(context);
        // Time in which this process itself was suspended is not a stall.
        let (mut suspended, mut checked_at) = (Duration::ZERO, begun);
        loop {
            match context.buffers.ring.take(step, ATTENTION) {
                Taken::Item(batch) => return Ok(batch),
                Taken::Failed(error) => return Err(error),
                Taken::NotYet => {}
            }
            if let Some(error) = session.failure() {
                return Err(error);
            }
            self.check_liveness(caller, || self.describe_wait(session, step))?;
            let round = checked_at.elapsed();
            checked_at = Instant::now();
            if round > SUSPENDED_AFTER {
                suspended += round;
            }
            // Processes that run publish it on this notification.
            context.region.planning().notify();
            let now_ns = monotonic_ns();
            let (node, cause) = self.stall_cause(session, step, now_ns);
            let awaited = match cause {
                StallCause::Rank { local, runs: true } => Some(local),
                _ => None,
            };
            wait.check(awaited, |local| self.name_of(local))?;
            let description = || self.describe_cause(session, step, &node, cause);
            let elapsed = begun.elapsed().saturating_sub(suspended);
            if warnings.is_due(elapsed) {
                self.warn_of_wait(caller, elapsed, &description());
            }
            if waited.count(now_ns, cause) >= self.limit() {
                return Err(Error::Timeout { seconds: context.options.timeout_s, what: description() });
            }
        }
    }

    /// Finds why a step is not ready.
    fn stall_cause(&self, session: &Session, step: u64, now_ns: u64) -> (NodeSnapshot, StallCause) {
        let context = &self.context;
        let mut node = context.node(session.number, now_ns);
        // Threads that fill later steps may wait for something else.
        node.ranks[context.local_rank()].doing = context.waits().doing_of(step);
        let cause = node.cause();
        (node, cause)
    }

    fn describe_cause(&self, session: &Session, step: u64, node: &NodeSnapshot, cause: StallCause) -> String {
        match cause {
            StallCause::Unknown { .. } => self.describe_wait(session, step),
            StallCause::OtherNodes if self.context.store.is_some() => self.describe_wait(session, step),
            StallCause::OtherNodes => "waiting for the read token, which other nodes hold".into(),
            StallCause::Rank { local, runs: false } => {
                format!("waiting for {}, whose process does not run", self.name_of(local))
            }
            StallCause::Rank { local, runs: true } => {
                let steps = self.steps_per_epoch().max(1);
                let progress = match node.ranks[local].gathered.step_in(session.number) {
                    AWAY => String::new(),
                    at => format!(": it has read ahead to step {} of epoch {}", at % steps, at / steps),
                };
                format!(
                    "waiting for {}, which takes no further batch{progress}; {}",
                    self.name_of(local),
                    self.if_alone(local)
                )
            }
            StallCause::Storage { actor, since_ns, .. } => {
                self.describe_read(session, step, node, actor, since_ns)
            }
        }
    }

    /// The read in flight, as far as this process can see.
    fn describe_read(
        &self,
        session: &Session,
        step: u64,
        node: &NodeSnapshot,
        actor: Actor,
        since_ns: u64,
    ) -> String {
        let context = &self.context;
        let (thread, host, read) = match actor {
            Actor::Reader(number) => {
                let begun = &context.region.readers()[number].begun;
                let begun = Position::from_word(begun.load(Ordering::Acquire)).step_in(session.number);
                let read = begun.checked_sub(1).and_then(|sequence| extent_of(session, sequence));
                (format!("reader {number} of "), node.readers[number].host, read)
            }
            Actor::Root(number) => (format!("root {number} of "), node.readers[number].host, None),
            Actor::Rank(local) => {
                let own = (local == context.local_rank()).then(|| context.waits().of(step)).flatten();
                let read = match own {
                    Some(GatherWait::Reading { extent, .. }) => Some(extent),
                    _ => None,
                };
                (String::new(), local, read)
            }
        };
        let what = read.map_or_else(|| "pages of the dataset".into(), |extent| self.describe_extent(extent));
        let lasts = match since_ns {
            0 => ", which has closed its loader, still reads".to_owned(),
            since => {
                format!(" has been reading for {} s:", node.now_ns.saturating_sub(since) / 1_000_000_000)
            }
        };
        format!("waiting for storage: {thread}{}{lasts} {what}", self.name_of(host))
    }

    fn describe_extent(&self, extent: Extent) -> String {
        let path = self.context.path(extent.shard);
        format!("{path} at offset {} ({} bytes)", extent.offset, extent.length)
    }

    /// Bytes that the share of another node has.
    fn describe_share(&self, extent: Extent) -> String {
        let what = self.describe_extent(extent);
        match self.context.store.as_ref().and_then(|store| store.holder(extent)) {
            Some(node) => format!("the share of node {node}, which does not answer: {what}"),
            None => what,
        }
    }

    /// What the thread that fills a step waits for.
    fn describe_wait(&self, session: &Session, step: u64) -> String {
        let context = &self.context;
        let waiting = context.waits().of(step);
        let what = match waiting {
            None => "its first bytes".into(),
            Some(GatherWait::Plan) => format!("the plan of step {step}"),
            Some(GatherWait::Reading { extent, .. }) => self.describe_extent(extent),
            Some(GatherWait::Share { extent }) => self.describe_share(extent),
            Some(GatherWait::Pages { .. }) => "pages of the dataset that are not in memory".into(),
            Some(GatherWait::Block { sequence, extent }) => {
                let reader = (sequence % context.region.layout().readers as u64) as usize;
                let host = context.host(reader, session.number);
                format!(
                    "{}, which reader {reader} on local rank {host} should read",
                    self.describe_extent(extent)
                )
            }
        };
        format!("waiting for {what}")
    }

    /// The error, or [`forebay_format::Error::Modified`] if a writer has changed the files since
    /// they were opened: that explains what looks like damage.
    fn modified_or(&self, error: Error, caller: &dyn Host) -> Error {
        if !matches!(error, Error::Format(..) | Error::BadSample { .. }) {
            return error;
        }
        let source = Arc::clone(&self.context.source);
        let is_modified = move |_: &dyn Host| match source.dataset().check_unchanged() {
            Err(modified @ forebay_format::Error::Modified { .. }) => Ok(Some(modified.into())),
            _ => Ok(None),
        };
        self.ask_storage(caller, is_modified).ok().flatten().unwrap_or(error)
    }

    /// The error, or the loss of a process that explains why the share of a node cannot be reached.
    fn loss_or(&self, error: Error, caller: &dyn Host) -> Error {
        if !matches!(error, Error::Share(..)) {
            return error;
        }
        let begun = Instant::now();
        while begun.elapsed() < LOSS_IS_KNOWN_WITHIN {
            match self.check_liveness(caller, || error.to_string()) {
                Err(loss) if loss.is_loss() => return loss,
                _ => std::thread::sleep(Duration::from_millis(20)),
            }
        }
        error
    }

    /// Checks at the end of an epoch that the files are as they were when they were opened.
    fn end_of_epoch(&self, caller: &dyn Host) -> Result<(), Error> {
        let source = Arc::clone(&self.context.source);
        for warning in self.ask_storage(caller, move |_| Ok(source.dataset().check_unchanged()?))? {
            caller.warn(&warning);
        }
        Ok(())
    }

    /// Asks for the state of the files, within the limit of this loader.
    fn ask_storage<T: Send + 'static>(
        &self,
        caller: &dyn Host,
        work: impl FnOnce(&dyn Host) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let options = &self.context.options;
        let what = format!("loader \"{}\" checks whether its files have changed", options.name);
        offload(caller, &what, options.timeout_s, work)
    }
}

/// The bytes of a block that lie in its first file, from the first to the last.
fn extent_of(session: &Session, sequence: u64) -> Option<Extent> {
    let (planned, index) = session.plans.next_block(sequence, 0, 1)?;
    let block = planned.plan.blocks.get(index).filter(|block| block.sequence == sequence)?;
    let first = block.first_read as usize;
    let reads = &planned.plan.reads[first..first + block.reads as usize];
    let shard = reads.first()?.shard;
    let of_shard = || reads.iter().filter(|read| read.shard == shard);
    let offset = of_shard().map(|read| read.file_offset).min()?;
    let end = of_shard().map(|read| read.file_offset + read.length).max()?;
    Some(Extent { shard, offset, length: end - offset })
}
