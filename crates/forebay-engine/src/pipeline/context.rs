//! State that the threads of one process share for one loader.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use forebay_format::{DecodedUnits, Index};
use forebay_io::{Failing, FileIo, Mappings, ReadCounters, ReadError, ShardFiles, Transfer};
use forebay_plan::{LocatorTask, Order, OrderKind, home_of_reader, wanted_end};
use forebay_tier::{Fill, TieredFiles};
use forebay_types::{Extent, Rank, ShardId};

use crate::base::fallback::{Fallback, Wanted, record};
use crate::base::memory_ledger;
use crate::batch::buffer_pool::Claim;
use crate::batch::layout::{BatchLayout, Buffers};
use crate::config::options::Options;
use crate::config::shares::JobShares;
use crate::config::strategies::{Locator, Strategies};
use crate::config::tiers::TierPlan;
use crate::config::{Findings, Settings};
use crate::dataset::IndexedDataset;
use crate::dataset::field_decoders::Decoding;
use crate::mesh::Links;
use crate::pipeline::bad_samples::BadSamples;
use crate::pipeline::near::Near;
use crate::residents::ResidentPlan;
use crate::shm::block_state::{Presence, presence};
use crate::shm::counters::{Counter, EpochReads, Level, LevelCounts, count, count_level, monotonic_ns, set};
use crate::shm::position::{Position, SessionId};
use crate::shm::read_gate::ReadGate;
use crate::shm::region::{RankSlot, ReaderSlot, Region};
use crate::shm::stall::{Doing, GatherWait, NodeSnapshot, RankState, ReaderState, Waits};
use crate::store::{Store, StorePlan};

/// The state that stays the same from session to session.
pub(crate) struct Context {
    pub(crate) options: Options,
    pub(crate) settings: Settings,
    /// Cores that this rank may use.
    pub(crate) cores: usize,
    /// Facts that the leader gathered before it decided.
    pub(crate) findings: Findings,
    pub(crate) order: Order,
    pub(crate) node_ranks: Vec<Rank>,
    pub(crate) source: Arc<IndexedDataset>,
    pub(crate) index: Arc<Index>,
    /// Decoders of fields.
    pub(crate) decoding: Decoding,
    pub(crate) strategies: Strategies,
    pub(crate) files: Arc<ShardFiles>,
    /// The files, with the copies in tiers in front of them where there are tiers.
    pub(crate) io: Arc<dyn FileIo>,
    pub(crate) tiers: Option<Arc<TieredFiles>>,
    /// How the node uses its tiers, as the leader decided.
    pub(crate) tier_plan: Option<TierPlan>,
    /// What each node holds, if the order depends on it.
    pub(crate) job_shares: Option<JobShares>,
    pub(crate) store: Option<Arc<Store>>,
    pub(crate) store_plan: Option<StorePlan>,
    pub(crate) resident_plan: Option<ResidentPlan>,
    pub(crate) mappings: Option<Arc<Mappings>>,
    /// The levels that have bytes in memory.
    pub(crate) near: Near,
    /// Decoded units that this process keeps.
    pub(crate) decoded: DecodedUnits,
    /// Ranges in which reads in place have failed.
    pub(crate) failing: Failing,
    pub(crate) region: Arc<Region>,
    /// Links to the leaders of the other nodes; only on a leader in a job of several nodes.
    pub(crate) links: Option<Arc<Links>>,
    pub(crate) buffers: Arc<Buffers>,
    pub(crate) layout: Arc<BatchLayout>,
    pub(crate) given: ExplicitOrders,
    pub(crate) epoch_reads: EpochReads,
    /// Waits of the gather threads.
    pub(crate) waits: Mutex<Waits>,
    /// Samples that were replaced.
    pub(crate) bad_samples: BadSamples,
    /// Fallbacks of this rank since the loader was created.
    pub(crate) fallbacks: Mutex<Vec<Fallback>>,
    /// Returned together with its memory: when neither the loader nor a thread of it is left.
    pub(crate) loan: Option<memory_ledger::Loan>,
    /// The staging ring is untouched, or its pages were released since.
    pub(crate) untouched: AtomicBool,
}

/// What is dropped from the page cache at once \[bytes\]: the kernel keeps pages that it read as
/// one unit with others, up to its read-ahead of usually 128 KiB.
const DROP_BYTES: u64 = 128 << 10;

impl Context {
    pub(crate) fn local_rank(&self) -> usize {
        self.options.local_rank as usize
    }

    /// This rank's slot.
    pub(crate) fn slot(&self) -> &RankSlot {
        &self.region.ranks()[self.local_rank()]
    }

    /// Slots of the ranks that have not shut down.
    pub(crate) fn active(&self) -> impl Iterator<Item = (usize, &RankSlot)> {
        self.region.ranks().iter().enumerate().filter(|(_, slot)| presence(&slot.left) == Presence::Here)
    }

    /// Slots of the ranks that may touch shared memory: those that take part, and those that are
    /// leaving with a thread inside a read.
    pub(crate) fn present(&self) -> impl Iterator<Item = (usize, &RankSlot)> {
        self.region.ranks().iter().enumerate().filter(|(_, slot)| presence(&slot.left) != Presence::Gone)
    }

    /// The local rank in which a reader of a session runs ([`home_of_reader`]). A rank that is
    /// leaving is present until storage has answered its reads.
    ///
    /// All processes compute the same result: a rank that is gone does not return, and only the
    /// thread that runs the reader moves it.
    pub(crate) fn host(&self, reader: usize, session: SessionId) -> usize {
        let layout = self.region.layout();
        let moves = Position::from_word(self.region.readers()[reader].moves.load(Ordering::Acquire))
            .step_in(session) as usize;
        let is_present = |rank: usize| presence(&self.region.ranks()[rank].left) != Presence::Gone;
        home_of_reader(reader, layout.readers, layout.ranks, moves, is_present)
    }

    /// First step that is not needed, as far as known, where a requested epoch ends at `end`
    /// ([`wanted_end`]).
    pub(crate) fn wanted_end(&self, end: u64) -> u64 {
        wanted_end(self.options.expected_epochs, self.order.steps_per_epoch(), end)
    }

    /// Whether the order of an epoch is known: one that the user gives may still be missing.
    pub(crate) fn knows_order(&self, epoch: u64) -> bool {
        !matches!(self.order.kind(), OrderKind::Given { .. }) || self.given.get(epoch).is_some()
    }

    /// The file of a shard, for messages.
    pub(crate) fn path(&self, shard: ShardId) -> String {
        self.files.path(shard).display().to_string()
    }

    /// Wakes all waiting threads of the node.
    pub(crate) fn notify_all(&self) {
        self.region.filled().notify();
        self.region.gathered().notify();
        self.region.planning().notify();
    }

    /// The gate of the readers, for staggered reads.
    pub(crate) fn read_gate(&self) -> Option<&ReadGate> {
        self.options.strategy.stagger.map(|_| self.region.gate())
    }

    /// A plugged-in locator for these ranks of the node; `None` if the index locates samples.
    pub(crate) fn locator(&self, ranks: Vec<Rank>, start: u64) -> Option<Locator> {
        let factory = self.strategies.locators.as_ref()?;
        let (node, nodes) = match &self.links {
            Some(links) => {
                (links.own_node(), links.facts().0.iter().map(|node| node.ranks.clone()).collect())
            }
            None => (0, vec![self.options.local_ranks.clone()]),
        };
        let task = LocatorTask { order: self.order.clone(), ranks, start, node, nodes };
        Some(factory.locator(task, Arc::clone(&self.index)))
    }

    /// Reads bytes of an extent from `skip` on, which a step needs, first into `head`, then into
    /// `into`. Does not retry if a reader has `failed` to read their block.
    pub(crate) fn read_in_place(
        &self,
        step: u64,
        extent: Extent,
        skip: u64,
        failed: bool,
        head: &mut [u8],
        into: &mut [u8],
    ) -> Result<(), ReadError> {
        let place = (extent.shard, extent.offset + skip);
        let length = (head.len() + into.len()) as u64;
        let tiers = self.tiers.as_ref().filter(|tiers| !failed && tiers.lacks(place.0, place.1, length));
        let Some(tiers) = tiers else { return self.read_file(step, place, failed, head, into) };
        let epoch = self.reached_epoch();
        let fill = |into: &mut [u8]| {
            let transfer = Transfer { shard: place.0, offset: place.1, into };
            let how = Fill { epoch, direct: false, has_time: &|| false };
            tiers.fill(&mut [transfer], how, &mut |transfers| {
                transfers.iter_mut().try_for_each(|transfer| {
                    self.read_file(step, (transfer.shard, transfer.offset), false, &mut [], transfer.into)
                })
            })
        };
        if head.is_empty() {
            return fill(into);
        }
        let mut both = vec![0; head.len() + into.len()];
        fill(&mut both)?;
        let (first, rest) = both.split_at(head.len());
        head.copy_from_slice(first);
        into.copy_from_slice(rest);
        Ok(())
    }

    /// Reads bytes of a file, or their copies, and counts the requests.
    fn read_file(
        &self,
        step: u64,
        place: (ShardId, u64),
        failed: bool,
        head: &mut [u8],
        into: &mut [u8],
    ) -> Result<(), ReadError> {
        let counters = self.failing.read(&*self.io, failed, place, head, into)?;
        if counters.retries > 0 {
            count(self.slot(), Counter::Retries, counters.retries);
        }
        self.count_levels(self.epoch_of(step), &counters);
        Ok(())
    }

    /// Counts what this rank has copied to the tiers until now.
    pub(crate) fn count_copied(&self) {
        let Some(tiers) = &self.tiers else { return };
        set(self.slot(), Counter::CopiedBytes, tiers.copied_bytes());
        set(self.slot(), Counter::UncopiedBytes, tiers.skipped_bytes());
    }

    /// Adds to the columns of a level, for bytes that an epoch needs.
    pub(crate) fn count_level(&self, epoch: u64, level: Level, counts: LevelCounts) {
        count_level(self.slot(), level, counts);
        self.epoch_reads.add_level(epoch, level, counts.bytes);
    }

    /// The epoch of a step.
    pub(crate) fn epoch_of(&self, step: u64) -> u64 {
        step / self.order.steps_per_epoch().max(1)
    }

    /// Counts requests to the source and to the tiers.
    fn count_levels(&self, epoch: u64, counters: &ReadCounters) {
        let of = |bytes, operations: u64, skipped| LevelCounts {
            hits: operations.min(1),
            bytes,
            operations,
            skipped,
        };
        self.count_level(epoch, Level::Source, of(counters.read_bytes, counters.reads, 0));
        if self.tiers.is_some() {
            for (place, copies) in counters.copies.iter().enumerate() {
                let counts = of(copies.read_bytes, copies.reads, copies.failures);
                self.count_level(epoch, Level::Tier(place), counts);
            }
        }
    }

    /// The epoch in which this rank is.
    fn reached_epoch(&self) -> u64 {
        let position = Position::from_word(self.slot().position.load(Ordering::Acquire));
        self.epoch_of(position.step())
    }

    /// Asks the kernel to fetch a range, or its copies, into the page cache. May do nothing.
    pub(crate) fn will_need(&self, shard: ShardId, offset: u64, length: u64) {
        match &self.tiers {
            Some(tiers) => tiers.will_need(shard, offset, length),
            None => self.files.will_need(shard, offset, length),
        }
    }

    /// Allows the kernel to drop a range, and its copies, from the page cache. May do nothing.
    pub(crate) fn wont_need(&self, shard: ShardId, offset: u64, length: u64) {
        match &self.tiers {
            Some(tiers) => tiers.wont_need(shard, offset, length),
            None => self.files.wont_need(shard, offset, length),
        }
    }

    /// With `direct`, drops the pages of an extent that was read in place: a small read through the
    /// page cache costs less than one past it, but must not fill memory.
    pub(crate) fn leave_no_pages(&self, extent: Extent) {
        if self.settings.direct {
            let start = extent.offset / DROP_BYTES * DROP_BYTES;
            let end = (extent.offset + extent.length).next_multiple_of(DROP_BYTES);
            self.wont_need(extent.shard, start, end - start);
        }
    }

    /// Records a fallback.
    pub(crate) fn falls_back(&self, wanted: Wanted, reason: impl Into<String>) {
        let fallback = Fallback::new(wanted, reason);
        fallback.log(&self.options.name);
        record(&mut self.fallbacks.lock().unwrap_or_else(std::sync::PoisonError::into_inner), fallback);
    }

    /// Publishes that this process runs.
    pub(crate) fn is_alive(&self) {
        self.slot().alive.store(monotonic_ns(), Ordering::Release);
    }

    /// Records what the thread that fills a claim waits for, or that it no longer waits.
    pub(crate) fn waits_for(&self, claim: &Claim, waiting: Option<GatherWait>) {
        let mut waits = self.waits();
        waits.set(claim.ticket(), claim.step, waiting).publish(&self.slot().doing);
    }

    /// Activities of the node's ranks and readers, as published.
    pub(crate) fn node(&self, session: SessionId, now_ns: u64) -> NodeSnapshot {
        let position = |word: &AtomicU64| Position::from_word(word.load(Ordering::Acquire));
        let rank = |slot: &RankSlot| RankState {
            presence: presence(&slot.left),
            alive_ns: slot.alive.load(Ordering::Acquire),
            doing: Doing::load(&slot.doing),
            gathered: position(&slot.position),
            taken: position(&slot.taken),
        };
        let reader = |(number, slot): (usize, &ReaderSlot)| ReaderState {
            host: self.host(number, session),
            doing: Doing::load(&slot.doing),
            seeking: Doing::load(&slot.seeking),
            found: position(&slot.found),
        };
        NodeSnapshot {
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

/// Orders that the user supplies, by epoch.
#[derive(Default)]
pub(crate) struct ExplicitOrders {
    orders: Mutex<BTreeMap<u64, Arc<[u64]>>>,
}

impl ExplicitOrders {
    /// Stores the order of an epoch and drops those of epochs before the last one.
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
