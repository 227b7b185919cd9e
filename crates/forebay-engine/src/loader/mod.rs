//! A loader of one rank, created together with the other ranks of the node.
//!
//! Life of a loader:
//!
//! 1. `new` (collective), in phases: the ranks agree, and the leader loads or builds the index and
//!    decides the settings (`agreed`); each rank maps what was decided (`decided`) and opens what
//!    it reads from (`opened`).
//! 2. `start` sets where the next iteration begins.
//! 3. `next` returns batches, then `None` at the end of the epoch; `leave` ends it early.
//! 4. `start` again, or `close`.
//!
//! A start at the epoch after the last one continues the session. Any other start begins a new
//! session, which all remaining ranks of the node must request alike.

mod agreed;
pub(crate) mod creation;
mod decided;
mod elsewhere;
mod explicit_order;
mod idle_memory;
pub(crate) mod iterate;
mod leader_setup;
mod liveness;
#[cfg(test)]
mod one_rank;
mod opened;
mod report;
mod scanned_index;
mod start;
#[cfg(test)]
mod tests;
mod token_threads;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use forebay_format::DecodedUnits;
use forebay_host::fork;
use forebay_plan::config::AccessChoice;
use forebay_plan::{OrderState, TokenClient};
use forebay_types::{Field, Rank};

use crate::batch::layout::{BatchLayout, Buffers};
use crate::config::options::Options;
use crate::config::strategies::Strategies;
use crate::config::tiers;
use crate::dataset::IndexedDataset;
use crate::dataset::field_decoders::{Decoding, Delivery};
use crate::dataset::shuffle_quality::ShuffleQuality;
use crate::error::Error;
use crate::host::Host;
use crate::loader::agreed::{Agreed, Making};
use crate::loader::creation::Creation;
use crate::loader::decided::Decided;
use crate::loader::leader_setup::LeaderOwn;
use crate::loader::liveness::FailureDetector;
use crate::loader::opened::Opened;
use crate::loader::token_threads::TokenThreads;
use crate::mesh::{FailureSink, Listener};
use crate::pipeline::bad_samples::BadSamples;
use crate::pipeline::context::{Context, ExplicitOrders};
use crate::pipeline::gather::in_caller::CallerFill;
use crate::pipeline::session::Session;
use crate::shm::block_state::{Presence, publish_presence};
use crate::shm::counters::{Counter, EpochReads, Level, LevelCounts, count};
use crate::shm::position::{AWAY, SessionId};
use crate::shm::region::Region;
use crate::store::Server;

/// See the module header.
pub struct Engine {
    pub(crate) context: Arc<Context>,
    pub(crate) failure_detector: Arc<FailureDetector>,
    /// Of a leader, for staggered reads.
    token_threads: Option<TokenThreads>,
    /// Of a leader with an in-memory store: serves the share of its node.
    server: Option<Server>,
    pub(crate) consumer: Arc<Mutex<Consumer>>,
    /// Epochs that the user declared or began, whichever is more; 0 before either.
    pub(crate) epochs: AtomicU64,
    pub(crate) generation: u64,
    pub(crate) huge_pages: bool,
    /// `close` was called: waits end, so that it can lock the consumer.
    closing: AtomicBool,
}

#[allow(clippy::struct_excessive_bools)] // independent facts, not a state in disguise
pub(crate) struct Consumer {
    pub(crate) session: Option<Arc<Session>>,
    /// The previous session, while one of its threads may touch shared memory.
    pub(crate) ending: Option<Arc<Session>>,
    /// The last session that was begun or agreed on.
    pub(crate) sessions: SessionId,
    /// A session that all ranks agreed on, and for which this one has published that it is at rest:
    /// its first step and the end of its epoch.
    pub(crate) agreed: Option<(u64, u64)>,
    /// Next step to deliver (absolute).
    pub(crate) step: u64,
    /// First step after the epoch that was started last.
    pub(crate) end: u64,
    /// Start of the iteration (absolute step).
    pub(crate) begun: u64,
    /// Number of the iteration that batches belong to; any other one is stale.
    pub(crate) iteration: u64,
    /// Ranks that left after they requested another start than this one, and their position word:
    /// each is reported once.
    pub(crate) reported: Vec<(usize, u64)>,
    /// The rank has left the iteration or not begun one: the node continues without it.
    pub(crate) detached: bool,
    /// The next batch is the first of a session: the wait for it is the start-up fill.
    pub(crate) filling: bool,
    pub(crate) last_return: Option<Instant>,
    /// When `next` last checked for failed peers.
    pub(crate) checked: Instant,
    pub(crate) warned_copies: bool,
    /// The user was warned that the order shuffles too little for this number of epochs.
    pub(crate) warned_shuffle: bool,
    pub(crate) closed: bool,
    /// Why the iteration ended early; raised again until the next `start`.
    pub(crate) failed: Option<Error>,
    /// Where this thread fills batches itself.
    pub(crate) caller_fill: CallerFill,
}

impl Consumer {
    /// Leaves the iteration: the node continues without this rank.
    pub(crate) fn detach(&mut self, context: &Context) {
        self.last_return = None;
        if self.detached {
            return;
        }
        self.detached = true;
        let unused = context.buffers.ring.pause();
        if let Some(session) = &self.session {
            session.publish_detached();
        }
        drop(unused);
        context.notify_all();
    }
}

impl Engine {
    /// Creates a loader together with the other ranks of the node, and with the nodes of
    /// `options.links`, for which a leader listens already.
    pub fn new(
        source: Arc<IndexedDataset>,
        options: Options,
        strategies: Strategies,
        listener: Option<Listener>,
        caller: &dyn Host,
    ) -> Result<Self, Error> {
        let creation = Creation::new(listener);
        Self::make(source, options, strategies, &creation, caller)
            .inspect_err(|error| creation.abandon(error))
    }

    /// Goes through the phases: [`Agreed`], [`Decided`], [`Opened`].
    fn make(
        source: Arc<IndexedDataset>,
        options: Options,
        strategies: Strategies,
        creation: &Creation,
        caller: &dyn Host,
    ) -> Result<Self, Error> {
        let making = Making { source: &source, options: &options, strategies: &strategies, creation, caller };
        let Agreed { membership, reply, fds, mut own } = Agreed::reach(&making)?;
        let mut decided = Decided::of(reply, fds, own.index.take(), &making)?;
        let Opened { files, io, tiers, mappings, store, near, fallbacks } =
            Opened::open(&making, &mut decided, &mut own)?;
        let Decided { reply, cores, region, huge_pages, index, order, .. } = decided;
        let settings = reply.settings;
        let LeaderOwn { loan, seek, server, .. } = own;
        count(&region.ranks()[options.local_rank as usize], Counter::LocateNs, seek.as_nanos() as u64);
        let decoding = Decoding::new(index.fields(), &options.decode)?;
        let layout = BatchLayout::new(decoding.fields(), order.largest_batch(), settings.ragged_bytes)
            .ok_or_else(|| Error::local("the leader's decisions do not fit the dataset"))?;
        let failure_detector = Arc::new(FailureDetector {
            region: Arc::clone(&region),
            membership,
            nodes: reply.nodes,
            loader: options.name.clone(),
            outlived: settings.direct || settings.access == AccessChoice::IoUring,
        });
        let links = creation.links().cloned();
        if let Some(links) = &links {
            links.attach(&(Arc::clone(&failure_detector) as Arc<dyn FailureSink>));
        }
        let token_threads = options.strategy.stagger_groups().zip(options.links.as_ref()).zip(links.as_ref());
        if token_threads.is_none() && options.local_rank == 0 {
            region.gate().set_free();
        }
        let token_threads = token_threads.map(|((groups, nodes), links)| {
            let client = TokenClient::new(nodes.own_node, nodes.nodes.0.len(), groups);
            TokenThreads::start(client, &region, links)
        });
        let token_threads = token_threads.transpose().map_err(Error::threads("a thread for read tokens"))?;
        let epochs = options.expected_epochs.unwrap_or(0);
        let decoded = DecodedUnits::new(settings.kept_unit_bytes);
        let context = Arc::new(Context {
            node_ranks: options.local_ranks.iter().map(|rank| Rank(*rank)).collect(),
            buffers: Buffers::new(Arc::clone(&region), options.local_rank as usize),
            layout: Arc::new(layout),
            given: ExplicitOrders::default(),
            epoch_reads: EpochReads::default(),
            waits: Mutex::default(),
            bad_samples: BadSamples::default(),
            fallbacks: Mutex::new(fallbacks),
            loan,
            untouched: AtomicBool::new(true),
            options,
            settings,
            cores,
            findings: reply.findings,
            order,
            source,
            index,
            decoding,
            strategies,
            files,
            io,
            tiers,
            tier_plan: reply.tiers,
            job_shares: reply.shares,
            store,
            store_plan: reply.store,
            resident_plan: reply.residents,
            mappings,
            near,
            decoded,
            failing: forebay_io::Failing::default(),
            region,
            links,
        });
        elsewhere::record(&context);
        let engine = Self {
            context,
            failure_detector,
            token_threads,
            server,
            consumer: Arc::new(Mutex::new(Consumer {
                session: None,
                ending: None,
                sessions: SessionId::default(),
                agreed: None,
                step: 0,
                end: 0,
                begun: 0,
                iteration: 0,
                reported: Vec::new(),
                detached: true,
                filling: true,
                last_return: None,
                checked: Instant::now(),
                warned_copies: false,
                warned_shuffle: false,
                closed: false,
                failed: None,
                caller_fill: CallerFill::default(),
            })),
            epochs: AtomicU64::new(epochs),
            generation: fork::generation(),
            huge_pages,
            closing: AtomicBool::new(false),
        };
        engine.lend_memory();
        let (store, residents) = (&engine.context.store_plan, &engine.context.resident_plan);
        let of_store = store.as_ref().map(|plan| (plan.loaded_bytes, plan.kept_bytes));
        let loaded = of_store.or(residents.as_ref().map(|plan| (plan.loaded_bytes, 0)));
        if let (Some((bytes, kept_bytes)), 0) = (loaded, engine.context.local_rank()) {
            let counts = LevelCounts { bytes, ..LevelCounts::default() };
            engine.context.count_level(0, Level::Source, counts);
            count(engine.context.slot(), Counter::KeptBytes, kept_bytes);
        }
        if tracing::enabled!(tracing::Level::DEBUG) {
            let config = engine.config().to_string();
            tracing::debug!(loader = engine.context.options.name, config, "the loader is made");
        }
        Ok(engine)
    }

    /// Steps per epoch.
    pub fn steps_per_epoch(&self) -> u64 {
        self.context.order.steps_per_epoch()
    }

    /// The last epoch whose steps fit into a position.
    pub fn last_epoch(&self) -> u64 {
        ((AWAY - 1) / self.steps_per_epoch().max(1)).saturating_sub(1)
    }

    /// Writes and checks the states of this loader.
    pub fn order_state(&self) -> OrderState {
        OrderState::new(self.context.order.clone(), self.context.source.fingerprint())
    }

    /// Epochs that the user declared or began, whichever is more; `None` before either.
    pub(crate) fn known_epochs(&self) -> Option<u64> {
        Some(self.epochs.load(Ordering::Relaxed)).filter(|epochs| *epochs > 0)
    }

    /// Quality of the order's shuffle.
    pub fn shuffle_quality(&self) -> ShuffleQuality {
        ShuffleQuality::of(&self.context.order, self.known_epochs(), self.context.index.unit_samples())
    }

    /// The fields of a batch.
    pub fn fields(&self) -> &[Field] {
        self.context.decoding.fields()
    }

    /// What Python gets of each field.
    pub fn deliveries(&self) -> impl Iterator<Item = Delivery> {
        self.context.decoding.deliveries()
    }

    pub(crate) fn consumer(&self) -> Result<MutexGuard<'_, Consumer>, Error> {
        if fork::in_forked_child(self.generation) {
            return Err(Error::Forked);
        }
        let consumer = self.consumer.lock().unwrap_or_else(PoisonError::into_inner);
        if consumer.closed { Err(Error::Closed) } else { Ok(consumer) }
    }

    /// Checks for interruption, closing and failed peers; each wait calls it.
    pub(crate) fn check_liveness(&self, caller: &dyn Host, what: impl Fn() -> String) -> Result<(), Error> {
        if caller.interrupted() {
            return Err(Error::Interrupted);
        }
        if self.closing.load(Ordering::Acquire) {
            return Err(Error::Closed);
        }
        let links = self.context.links.as_ref();
        for warning in links.map(|links| links.take_warnings()).unwrap_or_default() {
            caller.warn(&format!("loader \"{}\": {warning}", self.context.options.name));
        }
        let tiers = self.context.tiers.as_ref();
        for warning in tiers.map(|tiers| tiers.take_warnings()).unwrap_or_default() {
            caller.warn(&format!("loader \"{}\": {warning}", self.context.options.name));
        }
        let Some(loss) = self.failure_detector.lost() else { return Ok(()) };
        if let Some(links) = links {
            links.report_loss(loss);
        }
        Err(self.failure_detector.error(loss, what()))
    }

    /// Ends an iteration early, or with `None` the current one. The node continues without this
    /// rank until its next `start`.
    ///
    /// Does nothing for a stale iteration.
    pub fn leave(&self, iteration: Option<u64>) -> Result<(), Error> {
        let mut consumer = self.consumer()?;
        if iteration.is_none_or(|number| number == consumer.iteration) {
            consumer.iteration += 1;
            self.detach(&mut consumer);
        }
        Ok(())
    }

    pub(crate) fn detach(&self, consumer: &mut Consumer) {
        consumer.detach(&self.context);
    }

    /// Shuts down: ends this rank's threads; the other ranks continue without it. Delivered batches
    /// stay valid.
    ///
    /// Takes about a second at most, whatever storage does. Threads that are inside a read stay
    /// behind, with all memory that they may touch; the last of them publishes that the rank is
    /// gone.
    pub fn close(&self) {
        if fork::in_forked_child(self.generation) {
            return;
        }
        self.closing.store(true, Ordering::Release);
        let mut consumer = self.consumer.lock().unwrap_or_else(PoisonError::into_inner);
        if consumer.closed {
            return;
        }
        consumer.closed = true;
        if let Some(session) = &consumer.session {
            session.stop();
        }
        self.detach(&mut consumer);
        let context = Arc::clone(&self.context);
        let gone = move || {
            publish_presence(&context.slot().left, Presence::Gone);
            context.notify_all();
        };
        match consumer.session.take().or(consumer.ending.take()) {
            Some(session) => {
                session.end();
                publish_presence(&self.context.slot().left, Presence::Leaving);
                self.context.notify_all();
                session.when_out(Box::new(gone));
            }
            None => gone(),
        }
        if let Some(threads) = &self.token_threads {
            threads.end();
        }
        if let Some(tiers) = &self.context.tiers {
            tiers::close(tiers);
        }
        if let Some(store) = &self.context.store {
            store.close();
        }
        if let Some(server) = &self.server {
            server.linger();
            server.release_share();
        }
        if let Some(links) = &self.context.links {
            links.close();
            self.failure_detector.count(links.messages(), links.received());
        }
    }

    /// Ends the service of this node's share, as if its server had failed.
    pub(crate) fn withdraw_share(&self) {
        if let Some(server) = &self.server {
            server.withdraw();
        }
    }

    /// Sets the number of groups of nodes that read one after another; `None`: the number that
    /// measures best.
    ///
    /// # Errors
    /// If the loader does not stagger reads, or for 0 groups.
    pub fn set_stagger(&self, groups: Option<u32>) -> Result<(), Error> {
        let _consumer = self.consumer()?;
        let wrong =
            |message: &str, hint: &str| Err(Error::Options { message: message.into(), hint: hint.into() });
        if self.context.options.strategy.stagger.is_none() {
            return wrong(
                "the readers of this loader take no turns",
                "make it with stagger=\"auto\" or a number of groups",
            );
        }
        if groups == Some(0) {
            return wrong("stagger is 0", "readers take turns in at least one group");
        }
        let gate = self.context.region.gate();
        gate.wanted_groups.store(u64::from(groups.unwrap_or(0)) + 1, Ordering::Release);
        gate.changes.notify();
        Ok(())
    }

    /// The region, to measure its memory.
    pub fn region(&self) -> &Arc<Region> {
        &self.context.region
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.close();
    }
}
