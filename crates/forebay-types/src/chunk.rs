//! How a dataset is cut: chunks of 1 MiB, and pieces of 64 KiB in a chunk.

use std::ops::Range;

/// Length of a chunk \[bytes\]; the last one of a source may be shorter.
pub const CHUNK_BYTES: u64 = 1 << 20;

/// Length of a piece \[bytes\]; the last one of a source may be shorter.
pub const PIECE_BYTES: u64 = 64 << 10;

/// The longest announcement of bytes to a file system \[bytes\]: those of other nodes take no more
/// in one request.
pub const MAX_ANNOUNCED_BYTES: u64 = 1 << 20;

/// Levels of copies, at most.
pub const MAX_COPY_LEVELS: usize = 7;

/// Most bytes of an answer of another node \[bytes\]: a step of a rank, far above what a batch
/// buffer holds.
pub const MAX_ANSWER_BYTES: u64 = 1 << 30;

/// Most parts of a share that one request to another node asks for: parsed, they take 256 KiB of a
/// server, which holds one request per connection.
pub const MAX_REQUEST_PARTS: usize = 16 << 10;

/// Pieces of a chunk.
pub const PIECES: u32 = (CHUNK_BYTES / PIECE_BYTES) as u32;

/// Number of a chunk in its dataset: those of the first source, then those of the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChunkId(pub u64);

/// A set of pieces of one chunk; piece i is bit i.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Pieces(pub u16);

impl Pieces {
    /// No piece.
    pub const NONE: Self = Self(0);
    /// All pieces of a whole chunk.
    pub const ALL: Self = Self(u16::MAX);

    /// The pieces from number `range.start` up to, not including, `range.end`.
    fn numbers(range: Range<u64>) -> Self {
        let below = |end: u64| if end >= u64::from(PIECES) { u32::from(u16::MAX) } else { (1 << end) - 1 };
        Self((below(range.end) & !below(range.start)) as u16)
    }

    /// The pieces that have a byte of `range` [bytes from the start of the chunk].
    #[must_use]
    pub fn touching(range: Range<u64>) -> Self {
        if range.is_empty() {
            return Self::NONE;
        }
        Self::numbers(range.start / PIECE_BYTES..range.end.div_ceil(PIECE_BYTES))
    }

    /// The pieces that lie wholly in `range` [bytes from the start of the chunk]; the chunk has
    /// `chunk_bytes` bytes, so that its last piece may be short.
    #[must_use]
    pub fn inside(range: Range<u64>, chunk_bytes: u64) -> Self {
        let end = if range.end >= chunk_bytes {
            chunk_bytes.div_ceil(PIECE_BYTES)
        } else {
            range.end / PIECE_BYTES
        };
        let start = range.start.div_ceil(PIECE_BYTES);
        if start >= end { Self::NONE } else { Self::numbers(start..end) }
    }

    /// All pieces of a chunk of so many bytes.
    #[must_use]
    pub fn of_length(chunk_bytes: u64) -> Self {
        Self::touching(0..chunk_bytes)
    }

    /// The pieces of both sets.
    #[must_use]
    pub fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// The pieces that are in both sets.
    #[must_use]
    pub fn intersection(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// The pieces that are not in `other`.
    #[must_use]
    pub fn minus(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Whether all pieces of `other` are in this set.
    #[must_use]
    pub fn contains(self, other: Self) -> bool {
        other.minus(self).is_empty()
    }

    /// Number of pieces.
    #[must_use]
    pub fn count(self) -> u32 {
        self.0.count_ones()
    }

    /// Numbers of the pieces, in order.
    pub fn iter(self) -> impl Iterator<Item = u32> {
        (0..PIECES).filter(move |number| self.0 & (1 << number) != 0)
    }

    /// Runs of pieces that follow each other, in order: numbers of the first and behind the last.
    pub fn runs(self) -> impl Iterator<Item = Range<u32>> {
        let mut rest = u32::from(self.0);
        std::iter::from_fn(move || {
            if rest == 0 {
                return None;
            }
            let start = rest.trailing_zeros();
            let end = start + (rest >> start).trailing_ones();
            rest &= !((1 << end) - 1);
            Some(start..end)
        })
    }
}

/// The bytes of a run of pieces in a chunk of `chunk_bytes` [bytes from the start of the chunk].
#[must_use]
pub fn run_bytes(run: &Range<u32>, chunk_bytes: u64) -> Range<u64> {
    u64::from(run.start) * PIECE_BYTES..(u64::from(run.end) * PIECE_BYTES).min(chunk_bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_short_chunk_ends_in_a_short_piece() {
        assert_eq!(Pieces::of_length(PIECE_BYTES + 1), Pieces(0b11));
        assert_eq!(Pieces::inside(0..PIECE_BYTES + 1, PIECE_BYTES + 1), Pieces(0b11));
        assert_eq!(Pieces::inside(0..PIECE_BYTES + 1, CHUNK_BYTES), Pieces(0b1));
        assert_eq!(Pieces::of_length(CHUNK_BYTES), Pieces::ALL);
        assert_eq!(Pieces::touching(CHUNK_BYTES - 1..CHUNK_BYTES), Pieces(1 << 15));
        assert_eq!(Pieces::touching(5..5), Pieces::NONE);
    }

    proptest! {
        #[test]
        fn sets_are_what_their_bytes_are(start in 0..CHUNK_BYTES, length in 0..CHUNK_BYTES, chunk in 1..=CHUNK_BYTES) {
            let range = start.min(chunk)..(start + length).min(chunk);
            let (touching, inside) = (Pieces::touching(range.clone()), Pieces::inside(range.clone(), chunk));
            for number in 0..PIECES {
                let bytes = run_bytes(&(number..number + 1), chunk);
                let here = bytes.start < bytes.end;
                prop_assert_eq!(touching.0 & (1 << number) != 0, here && bytes.start < range.end && range.start < bytes.end && !range.is_empty());
                prop_assert_eq!(inside.0 & (1 << number) != 0, here && range.start <= bytes.start && bytes.end <= range.end);
            }
            let numbers: Vec<u32> = touching.runs().flatten().collect();
            prop_assert_eq!(numbers, touching.iter().collect::<Vec<_>>());
        }
    }
}
