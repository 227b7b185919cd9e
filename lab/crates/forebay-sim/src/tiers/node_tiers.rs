//! What the tiers of a node hold, and what is on its way there.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use forebay_model::{Condition, FileId, FileSystem, Kernel, ModelTime, NodeId, OpenFile};
use forebay_plan::{LOOK_FOR_BUFFER_EVERY, buffer_wait};
use forebay_types::{CHUNK_BYTES, Pieces};

use crate::error::Error;
use crate::job::Job;
use crate::tier::Tier;
use crate::tiers::plan::TierPlan;

/// The file with the slots of a tier: the copy of a chunk in slot s begins at s chunks.
pub(crate) const SLOTS: FileId = FileId(0);

/// The tiers of a node.
#[derive(Debug)]
pub(crate) struct NodeTiers {
    pub(crate) plan: Arc<TierPlan>,
    pub(crate) levels: Vec<Level>,
    /// Chunks that have a slot, or are on their way to one.
    copies: HashMap<u64, ChunkCopy>,
    /// Memory of copies on their way \[B\].
    used_bytes: u64,
    /// Copies that wait to be written.
    pub(crate) offers: VecDeque<Offer>,
    /// A copy waits to be written.
    pub(crate) offered: Condition,
    /// Bytes that were copied \[B\].
    pub(crate) copied_bytes: u64,
    /// Bytes that should have been copied, and were not, for want of memory \[B\].
    pub(crate) skipped_bytes: u64,
}

/// A tier of a node.
#[derive(Debug)]
pub(crate) struct Level {
    /// None: memory, which takes no time but that of copying.
    pub(crate) storage: Option<LevelStorage>,
    /// Slots that chunks have.
    used_slots: u64,
    /// Until when reads are under way.
    pub(crate) reading_until: ModelTime,
}

/// The file system of a tier.
#[derive(Debug)]
pub(crate) struct LevelStorage {
    pub(crate) files: FileSystem,
    pub(crate) node: NodeId,
    pub(crate) open: OpenFile,
}

/// What there is of a chunk.
#[derive(Clone, Copy, Debug, Default)]
struct ChunkCopy {
    /// Its slot, and the tier that it is in.
    at: Option<(u8, u64)>,
    present: Pieces,
    /// On their way.
    claimed: Pieces,
}

/// Pieces that are in memory, and to be written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Offer {
    pub(crate) chunk: u64,
    pub(crate) level: u8,
    pub(crate) pieces: Pieces,
    /// From where on in the chunk, and how many \[B\].
    pub(crate) start: u64,
    pub(crate) bytes: u64,
}

/// Whether memory for a copy can be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Buffer {
    Taken,
    /// Perhaps at this time.
    Later(ModelTime),
    Refused,
}

impl NodeTiers {
    /// Empty tiers.
    pub(crate) fn new(
        job: &Job,
        plan: Arc<TierPlan>,
        kernel: &mut Kernel,
        seed: u64,
    ) -> Result<NodeTiers, Error> {
        let level = |(tier, slots): (&Tier, &u64)| {
            let storage = tier.file_system(&job.machine, seed)?.map(|(mut files, node)| {
                let open = files.client(node).open(SLOTS, slots * CHUNK_BYTES);
                LevelStorage { files, node, open }
            });
            Ok::<_, Error>(Level { storage, used_slots: 0, reading_until: 0 })
        };
        let levels = job.tiers.iter().zip(&plan.slots).map(level).collect::<Result<Vec<Level>, Error>>()?;
        Ok(NodeTiers {
            plan,
            levels,
            copies: HashMap::new(),
            used_bytes: 0,
            offers: VecDeque::new(),
            offered: kernel.condition(),
            copied_bytes: 0,
            skipped_bytes: 0,
        })
    }

    /// The pieces of a chunk that a tier has; the tier, and the chunk's slot there.
    pub(crate) fn present(&self, chunk: u64) -> Option<(u8, u64, Pieces)> {
        let copy = self.copies.get(&chunk)?;
        let (level, slot) = copy.at?;
        Some((level, slot, copy.present))
    }

    /// The pieces of a chunk that are on their way.
    pub(crate) fn claimed(&self, chunk: u64) -> Pieces {
        self.copies.get(&chunk).map_or(Pieces::NONE, |copy| copy.claimed)
    }

    /// Records that pieces are on their way.
    pub(crate) fn claim(&mut self, chunk: u64, pieces: Pieces) {
        let copy = self.copies.entry(chunk).or_default();
        copy.claimed = copy.claimed.union(pieces);
    }

    /// Gives claims up.
    pub(crate) fn release(&mut self, chunk: u64, pieces: Pieces) {
        let copy = self.copies.entry(chunk).or_default();
        copy.claimed = copy.claimed.minus(pieces);
    }

    /// Memory for copies, of all processes \[B\].
    pub(crate) fn buffer_bytes(&self) -> u64 {
        self.plan.buffer_bytes
    }

    /// Takes memory for a copy that was wanted first at `since`.
    pub(crate) fn take_buffer(
        &mut self,
        now: ModelTime,
        since: ModelTime,
        bytes: u64,
        has_time: bool,
    ) -> Buffer {
        if self.used_bytes + bytes <= self.buffer_bytes() {
            self.used_bytes += bytes;
            return Buffer::Taken;
        }
        let most = buffer_wait(has_time).as_nanos() as u64;
        if bytes > self.buffer_bytes() || now - since > most {
            return Buffer::Refused;
        }
        Buffer::Later(now + LOOK_FOR_BUFFER_EVERY.as_nanos() as u64)
    }

    /// Gives memory back.
    pub(crate) fn give_buffer(&mut self, bytes: u64) {
        self.used_bytes -= bytes;
    }

    /// Hands a copy over to those that write.
    pub(crate) fn offer(&mut self, offer: Offer) {
        self.offers.push_back(offer);
    }

    /// The slot for a copy; `None` if its tier is full.
    pub(crate) fn slot_for(&mut self, offer: &Offer) -> Option<u64> {
        let copy = self.copies.entry(offer.chunk).or_default();
        if let Some((_, slot)) = copy.at {
            return Some(slot);
        }
        let level = &mut self.levels[usize::from(offer.level)];
        let is_free = level.used_slots < self.plan.slots[usize::from(offer.level)];
        is_free.then(|| {
            let slot = level.used_slots;
            level.used_slots += 1;
            copy.at = Some((offer.level, slot));
            slot
        })
    }

    /// Ends a copy: its pieces are in the tier, or were not written.
    pub(crate) fn end_copy(&mut self, offer: &Offer, is_written: bool) {
        self.give_buffer(offer.bytes);
        let copy = self.copies.entry(offer.chunk).or_default();
        copy.claimed = copy.claimed.minus(offer.pieces);
        if is_written {
            copy.present = copy.present.union(offer.pieces);
            self.copied_bytes += offer.bytes;
        }
    }
}
