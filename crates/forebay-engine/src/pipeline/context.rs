//! What the threads of one process share for one loader.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use forebay_format::Index;
use forebay_io::{Failing, Mappings, ReadError, ShardFiles};
use forebay_plan::{Kind, LocatorTask, Order};
use forebay_types::{Extent, Rank, ShardId};

use crate::base::fallback::{Fallback, Wanted, record};
use crate::base::memory_ledger;
use crate::batch::buffer_pool::Claim;
use crate::batch::layout::{BatchLayout, Buffers};
use crate::config::options::Options;
use crate::config::strategies::{Locator, Strategies};
use crate::config::{Findings, Settings};
use crate::dataset::IndexedDataset;
use crate::mesh::Links;
use crate::pipeline::bad_samples::BadSamples;
use crate::shm::block_state::{Presence, presence};
use crate::shm::counters::{Counter, EpochReads, Level, LevelCounts, count, count_level, monotonic_ns};
use crate::shm::position::{Position, SessionId};
use crate::shm::read_gate::ReadGate;
use crate::shm::region::{RankSlot, ReaderSlot, Region};
use crate::shm::stall::{Doing, GatherWait, Node, RankFacts, ReaderFacts, Waits};

/// Everything that stays the same from pass to pass.
pub(crate) struct Context {
    pub(crate) options: Options,
    pub(crate) settings: Settings,
    /// What the leader found before it decided.
    pub(crate) findings: Findings,
    pub(crate) order: Order,
    pub(crate) node_ranks: Vec<Rank>,
    pub(crate) source: Arc<IndexedDataset>,
    pub(crate) index: Arc<Index>,
    pub(crate) strategies: Strategies,
    pub(crate) files: Arc<ShardFiles>,
    pub(crate) mappings: Option<Mappings>,
    /// Where reads in place have failed.
    pub(crate) failing: Failing,
    pub(crate) region: Arc<Region>,
    /// Links to the leaders of the other nodes: of a leader in a job of several nodes.
    pub(crate) links: Option<Arc<Links>>,
    pub(crate) buffers: Arc<Buffers>,
    pub(crate) layout: Arc<BatchLayout>,
    pub(crate) given: ExplicitOrders,
    pub(crate) epoch_reads: EpochReads,
    /// What the gather threads are waiting for.
    pub(crate) waits: Mutex<Waits>,
    /// Samples in whose place others stand.
    pub(crate) bad_samples: BadSamples,
    /// What this rank could not have since.
    pub(crate) fallbacks: Mutex<Vec<Fallback>>,
    /// Given back with the memory that it stands for: when neither the loader nor a thread of it is
    /// left.
    pub(crate) share: Option<memory_ledger::Share>,
    /// Nobody has touched the staging ring, or its pages were given up since.
    pub(crate) untouched: AtomicBool,
}

impl Context {
    pub(crate) fn local_rank(&self) -> usize {
        self.options.local_rank as usize
    }

    /// This rank's slot.
    pub(crate) fn slot(&self) -> &RankSlot {
        &self.region.ranks()[self.local_rank()]
    }

    /// Slots of the ranks that have not said goodbye.
    pub(crate) fn active(&self) -> impl Iterator<Item = (usize, &RankSlot)> {
        self.region.ranks().iter().enumerate().filter(|(_, slot)| presence(&slot.left) == Presence::Here)
    }

    /// Slots of the ranks that may touch shared memory: those that take part, and those that
    /// storage keeps from leaving.
    pub(crate) fn present(&self) -> impl Iterator<Item = (usize, &RankSlot)> {
        self.region.ranks().iter().enumerate().filter(|(_, slot)| presence(&slot.left) != Presence::Gone)
    }

    /// The local rank in which a reader runs in a session: ⌊k·ranks/readers⌋, or as many places
    /// behind it as the reader was handed on, or the next rank that is still there. A rank that is
    /// leaving is there until storage has answered its reads.
    ///
    /// All processes come to the same answer: who is gone does not come back, and only the thread
    /// that runs the reader hands it on.
    pub(crate) fn host(&self, reader: usize, session: SessionId) -> usize {
        let ranks = self.region.layout().ranks;
        let moves = Position::from_word(self.region.readers()[reader].moves.load(Ordering::Acquire))
            .step_in(session) as usize;
        let nominal = reader * ranks / self.region.layout().readers + moves;
        (0..ranks)
            .map(|step| (nominal + step) % ranks)
            .find(|rank| presence(&self.region.ranks()[*rank].left) != Presence::Gone)
            .unwrap_or(nominal % ranks)
    }

    /// First step that nobody will ask for, as far as that was said: behind the epochs of the
    /// options, and behind `end`, where an epoch ends that was asked for all the same.
    pub(crate) fn wanted_end(&self, end: u64) -> u64 {
        let said = |epochs: u64| epochs.saturating_mul(self.order.steps_per_epoch()).max(end);
        self.options.epochs.map_or(u64::MAX, said)
    }

    /// Whether the order of an epoch is known: one that the user gives may still be missing.
    pub(crate) fn knows_order(&self, epoch: u64) -> bool {
        self.order.spec().kind != Kind::Given || self.given.get(epoch).is_some()
    }

    /// The file of a shard, for messages.
    pub(crate) fn path(&self, shard: ShardId) -> String {
        self.files.path(shard).display().to_string()
    }

    /// Wakes everyone on the node who waits for anything.
    pub(crate) fn notify_all(&self) {
        self.region.filled().notify();
        self.region.gathered().notify();
        self.region.planning().notify();
    }

    /// The gate that readers wait at, where only some nodes may read at a time.
    pub(crate) fn read_gate(&self) -> Option<&ReadGate> {
        self.options.strategy.stagger.map(|_| self.region.gate())
    }

    /// A plugged-in locator for these ranks of the node; `None` where the index locates samples.
    pub(crate) fn locator(&self, ranks: Vec<Rank>, start: u64) -> Option<Locator> {
        let factory = self.strategies.locators.as_ref()?;
        let (node, nodes) = match &self.links {
            Some(links) => {
                (links.own_node(), links.facts().0.iter().map(|node| node.ranks.clone()).collect())
            }
            None => (0, vec![self.options.local_ranks.clone()]),
        };
        let task = LocatorTask { order: self.order, ranks, start, node, nodes };
        Some(factory.locator(task, Arc::clone(&self.index)))
    }

    /// Reads bytes of an extent from `skip` on, first into `head`, then into `into`; once where
    /// `failed` says that a reader tried to read their block in vain.
    pub(crate) fn read_in_place(
        &self,
        extent: Extent,
        skip: u64,
        failed: bool,
        head: &mut [u8],
        into: &mut [u8],
    ) -> Result<(), ReadError> {
        let place = (extent.shard, extent.offset + skip);
        let counters = self.failing.read(&self.files, failed, place, head, into)?;
        if counters.retries > 0 {
            count(self.slot(), Counter::Retries, counters.retries);
        }
        let counts = LevelCounts {
            hits: 1,
            bytes: counters.read_bytes,
            operations: counters.reads,
            ..LevelCounts::default()
        };
        count_level(self.slot(), Level::Source, counts);
        Ok(())
    }

    /// Records that something is done in another way than was wanted.
    pub(crate) fn falls_back(&self, wanted: Wanted, reason: impl Into<String>) {
        let fallback = Fallback::new(wanted, reason);
        fallback.log(&self.options.name);
        record(&mut self.fallbacks.lock().unwrap_or_else(std::sync::PoisonError::into_inner), fallback);
    }

    /// Says that this process runs.
    pub(crate) fn is_alive(&self) {
        self.slot().alive.store(monotonic_ns(), Ordering::Release);
    }

    /// Notes what the thread that fills a claim waits for, or that it waits no more.
    pub(crate) fn waits_for(&self, claim: &Claim, waiting: Option<GatherWait>) {
        let mut waits = self.waits();
        waits.set(claim.ticket(), claim.step, waiting).publish(&self.slot().doing);
    }

    /// What the ranks and readers of the node do, as far as they say so.
    pub(crate) fn node(&self, session: SessionId, now_ns: u64) -> Node {
        let position = |word: &AtomicU64| Position::from_word(word.load(Ordering::Acquire));
        let rank = |slot: &RankSlot| RankFacts {
            presence: presence(&slot.left),
            alive_ns: slot.alive.load(Ordering::Acquire),
            doing: Doing::load(&slot.doing),
            gathered: position(&slot.position),
            taken: position(&slot.taken),
        };
        let reader = |(number, slot): (usize, &ReaderSlot)| ReaderFacts {
            host: self.host(number, session),
            doing: Doing::load(&slot.doing),
            seeking: Doing::load(&slot.seeking),
            found: position(&slot.found),
        };
        Node {
            now_ns,
            session,
            own: self.local_rank(),
            ranks: self.region.ranks().iter().map(rank).collect(),
            readers: self.region.readers().iter().enumerate().map(reader).collect(),
            roots: self.settings.locating_roots,
        }
    }

    pub(crate) fn waits(&self) -> std::sync::MutexGuard<'_, Waits> {
        self.waits.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// Orders that the user gives, by epoch.
#[derive(Default)]
pub(crate) struct ExplicitOrders {
    orders: Mutex<BTreeMap<u64, Arc<[u64]>>>,
}

impl ExplicitOrders {
    /// Keeps the order of an epoch and forgets those of epochs before the last one.
    pub(crate) fn put(&self, epoch: u64, ids: Arc<[u64]>) {
        let mut orders = self.lock();
        orders.insert(epoch, ids);
        orders.retain(|kept, _| *kept + 1 >= epoch);
    }

    pub(crate) fn get(&self, epoch: u64) -> Option<Arc<[u64]>> {
        self.lock().get(&epoch).cloned()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<u64, Arc<[u64]>>> {
        self.orders.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}
