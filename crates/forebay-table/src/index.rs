//! An open-addressed index: from a hash to the numbers of the records that may have it.
//!
//! A slot has 32 bits: the number of a record plus one in the lower bits, bits of its hash in the
//! rest; 0 is a free slot. Nothing is ever removed. The daemon alone inserts, after it has stored
//! the record (Release); a reader that loads the slot (Acquire) finds the record.

use crate::record::RecordId;
use crate::sync::atomic::{AtomicU64, Ordering};

/// How many slots an entry may be away from its place.
const MAX_PROBES: u32 = 512;
const SLOTS_PER_WORD: u32 = 2;

/// Slots for so many records: two thirds are taken in a full table.
pub const fn slots(capacity: u32) -> u32 {
    capacity + capacity.div_ceil(2)
}

#[derive(Clone, Copy)]
pub struct Index<'a> {
    words: &'a [AtomicU64],
    slots: u32,
    /// Bits that the largest number of a record takes.
    number_bits: u32,
}

impl<'a> Index<'a> {
    pub fn new(words: &'a [AtomicU64], capacity: u32) -> Self {
        Self { words, slots: slots(capacity), number_bits: u32::BITS - capacity.leading_zeros() }
    }

    /// The slots of a hash, in the order in which they are taken.
    fn probes(&self, hash: u64) -> impl Iterator<Item = u32> + use<> {
        let slots = self.slots;
        let first = (((hash & u64::from(u32::MAX)) * u64::from(slots)) >> u32::BITS) as u32;
        (0..MAX_PROBES.min(slots)).map(move |probe| {
            let slot = first + probe;
            if slot < slots { slot } else { slot - slots }
        })
    }

    /// The bits of a hash that a slot holds.
    fn tag(&self, hash: u64) -> u32 {
        (((hash >> u32::BITS) & u64::from(u32::MAX)) << self.number_bits) as u32
    }

    fn number_mask(&self) -> u32 {
        ((1_u64 << self.number_bits) - 1) as u32
    }

    fn load(&self, slot: u32) -> u32 {
        let Some(word) = self.words.get((slot / SLOTS_PER_WORD) as usize) else { return 0 };
        (word.load(Ordering::Acquire) >> (slot % SLOTS_PER_WORD * u32::BITS)) as u32
    }

    /// The records that may have this hash, oldest first.
    pub fn candidates(self, hash: u64) -> impl Iterator<Item = RecordId> + use<'a> {
        let (tag, mask) = (self.tag(hash), self.number_mask());
        self.probes(hash)
            .map(move |slot| self.load(slot))
            .take_while(|entry| *entry != 0)
            .filter(move |entry| entry & !mask == tag)
            .filter_map(move |entry| (entry & mask).checked_sub(1).map(RecordId))
    }

    /// Enters a record; `false` if there is no slot for it. Only one thread may insert.
    pub fn insert(&self, hash: u64, record: RecordId) -> bool {
        let Some(slot) = self.probes(hash).find(|slot| self.load(*slot) == 0) else { return false };
        let Some(word) = self.words.get((slot / SLOTS_PER_WORD) as usize) else { return false };
        let entry = u64::from(self.tag(hash) | (record.0 + 1));
        word.fetch_or(entry << (slot % SLOTS_PER_WORD * u32::BITS), Ordering::Release);
        true
    }
}
