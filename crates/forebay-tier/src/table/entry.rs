//! Where the copy of a chunk is: one word of the table.

use forebay_types::Pieces;

/// Levels, at most.
pub const MAX_LEVELS: usize = forebay_types::MAX_COPY_LEVELS;

/// Slabs of a level, at most.
pub const MAX_SLABS: u32 = 1 << SLAB_BITS;

/// Slots of a slab, at most: 1 GiB.
pub const MAX_SLOTS: u16 = 1 << SLOT_BITS;

/// Numbers of file copies on a level end here.
pub const MAX_FILES: u64 = 1 << 56;

const SLOT_BITS: u32 = 10;
const SLAB_BITS: u32 = 21;
const LEVEL_BITS: u32 = 3;
const PIECE_BITS: u32 = 16;

/// Room for one chunk in a slab of a level.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SlotId {
    /// Number of the level, counted from 0, the nearest.
    pub level: u8,
    /// Number of the slab in the level.
    pub slab: u32,
    /// Number of the slot in the slab.
    pub slot: u16,
}

/// What is known of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChunkEntry {
    /// There is no copy.
    Absent,
    /// The pieces were copied for an earlier job: their checksums must be compared before they are
    /// used.
    Unverified {
        /// Where.
        at: SlotId,
        /// Which, at least one.
        pieces: Pieces,
    },
    /// The pieces can be read.
    Present {
        /// Where.
        at: SlotId,
        /// Which, at least one.
        pieces: Pieces,
    },
}

impl ChunkEntry {
    /// The word in the table: state (2 bits), level (3), pieces (16), slab (21), slot (10).
    #[must_use]
    pub fn to_word(self) -> u64 {
        let (state, at, pieces) = match self {
            Self::Absent => return 0,
            Self::Unverified { at, pieces } => (1, at, pieces),
            Self::Present { at, pieces } => (2, at, pieces),
        };
        let mut word: u64 = state;
        word = (word << LEVEL_BITS) | u64::from(at.level);
        word = (word << PIECE_BITS) | u64::from(pieces.0);
        word = (word << SLAB_BITS) | u64::from(at.slab);
        (word << SLOT_BITS) | u64::from(at.slot)
    }

    /// What a word says; a word that [`ChunkEntry::to_word`] does not make is
    /// [`ChunkEntry::Absent`].
    #[must_use]
    pub fn from_word(word: u64) -> Self {
        let mut rest = word;
        let mut take = |bits: u32| {
            let field = rest & ((1 << bits) - 1);
            rest >>= bits;
            field
        };
        let (slot, slab) = (take(SLOT_BITS) as u16, take(SLAB_BITS) as u32);
        let pieces = Pieces(take(PIECE_BITS) as u16);
        let at = SlotId { level: take(LEVEL_BITS) as u8, slab, slot };
        if pieces.is_empty() || usize::from(at.level) >= MAX_LEVELS {
            return Self::Absent;
        }
        match rest {
            1 => Self::Unverified { at, pieces },
            2 => Self::Present { at, pieces },
            _ => Self::Absent,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn words_keep_entries(level in 0..MAX_LEVELS as u8, slab in 0..MAX_SLABS, slot in 0..MAX_SLOTS, pieces in 1_u16.., present: bool) {
            let (at, pieces) = (SlotId { level, slab, slot }, Pieces(pieces));
            let entry = if present { ChunkEntry::Present { at, pieces } } else { ChunkEntry::Unverified { at, pieces } };
            prop_assert_eq!(ChunkEntry::from_word(entry.to_word()), entry);
        }

        #[test]
        fn any_word_is_an_entry_or_absent(word: u64) {
            let entry = ChunkEntry::from_word(word);
            prop_assert!(entry == ChunkEntry::Absent || entry.to_word() == word);
        }
    }
}
