//! The part that all processes write: counters, stale marks, foreign files and the wish ring.
//!
//! Nobody trusts it: the daemon checks every wish, and a program only ever decides to read the
//! source because of what stands here.

use crate::bytes::WORD_BYTES;
use crate::counter::{STRIPE_WORDS, STRIPES, TableCounter};
use crate::hash::file_hash;
use crate::layout::Layout;
use crate::record::{Identity, RecordId};
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::wishes::WishRing;

/// The part that all processes write.
#[derive(Clone, Copy)]
pub struct SharedPart<'a> {
    counters: &'a [AtomicU64],
    marks: &'a [AtomicU64],
    foreign: &'a [AtomicU64],
    wishes: WishRing<'a>,
}

impl<'a> SharedPart<'a> {
    /// Part 2 of a table's memory, if it is long enough.
    #[must_use]
    pub fn new(file: &'a [AtomicU64], layout: Layout) -> Option<Self> {
        let words = file.get(layout.part_1_bytes() / WORD_BYTES..)?;
        Some(Self {
            counters: words.get(Layout::counters())?,
            marks: words.get(layout.marks())?,
            foreign: words.get(layout.foreign())?,
            wishes: WishRing::new(words.get(layout.ring())?),
        })
    }

    /// Adds to a counter; `stripe` is any number that differs between processes.
    pub fn count(&self, stripe: usize, counter: TableCounter, add: u64) {
        let word = (stripe % STRIPES) * STRIPE_WORDS + counter.word();
        if let Some(word) = self.counters.get(word) {
            word.fetch_add(add, Ordering::Relaxed);
        }
    }

    /// What all processes have counted.
    #[must_use]
    pub fn total(&self, counter: TableCounter) -> u64 {
        let stripes = self.counters.chunks(STRIPE_WORDS);
        let values = stripes.filter_map(|stripe| stripe.get(counter.word()));
        values.fold(0, |total, word| total.wrapping_add(word.load(Ordering::Relaxed)))
    }

    /// Notes that the source of a record was opened for writing.
    pub fn mark_stale(&self, id: RecordId) {
        if let Some(word) = self.marks.get((id.0 / u64::BITS) as usize) {
            word.fetch_or(1 << (id.0 % u64::BITS), Ordering::Release);
        }
    }

    /// Whether the source of a record was opened for writing.
    #[must_use]
    pub fn is_stale(&self, id: RecordId) -> bool {
        let word = self.marks.get((id.0 / u64::BITS) as usize);
        word.is_some_and(|word| word.load(Ordering::Acquire) & 1 << (id.0 % u64::BITS) != 0)
    }

    /// The records whose source was opened for writing.
    pub fn stale(&self) -> impl Iterator<Item = RecordId> + use<'a> {
        self.marks.iter().enumerate().flat_map(|(word, bits)| {
            let bits = bits.load(Ordering::Acquire);
            let set = (0..u64::BITS).filter(move |bit| bits & 1 << bit != 0);
            set.map(move |bit| RecordId(word as u32 * u64::BITS + bit))
        })
    }

    /// Whether somebody found that a file is no source: finding it out again takes long.
    #[must_use]
    pub fn is_foreign(&self, file: &Identity) -> bool {
        let (word, key) = self.foreign_word(file);
        word.is_some_and(|word| word.load(Ordering::Relaxed) == key)
    }

    /// Remembers that a file is no source, until another one takes its place.
    pub fn remember_foreign(&self, file: &Identity) {
        let (word, key) = self.foreign_word(file);
        if let Some(word) = word {
            word.store(key, Ordering::Relaxed);
        }
    }

    /// The place of a file, and what stands there for it. A file that was moved has another one.
    fn foreign_word(&self, file: &Identity) -> (Option<&'a AtomicU64>, u64) {
        let key = file_hash(file.device ^ file.changed_ns.cast_unsigned(), file.inode) | 1;
        let place = (key >> u32::BITS).checked_rem(self.foreign.len() as u64);
        (place.and_then(|place| self.foreign.get(place as usize)), key)
    }

    /// The ring of wishes.
    #[must_use]
    pub fn wishes(&self) -> WishRing<'a> {
        self.wishes
    }
}
