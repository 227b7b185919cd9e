//! Where samples lie: the result of an index for a list of samples.

use std::ops::Range;

use crate::Extent;

/// A contiguous part of a unit's encoded bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece {
    /// Bytes of a shard.
    Extent(Extent),
    /// Bytes that are in no file (the magic that `RecordIO` drops): a range of
    /// [`Located::literals`].
    Literal {
        /// First byte in the literals.
        first: u32,
        /// Number of bytes.
        length: u32,
    },
}

impl Piece {
    /// Length \[bytes\].
    #[must_use]
    pub fn length(&self) -> u64 {
        match self {
            Self::Extent(extent) => extent.length,
            Self::Literal { length, .. } => u64::from(*length),
        }
    }
}

/// The codecs of a unit: an entry in the index's table of chains.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CodecChain(pub u16);

impl CodecChain {
    /// The bytes in the file are the decoded bytes.
    pub const STORED: Self = Self(0);
}

/// The smallest part that is decoded at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unit {
    /// First piece in [`Located::pieces`].
    pub first_piece: u32,
    /// Number of pieces.
    pub pieces: u32,
    /// Codecs, in the order of decoding.
    pub codecs: CodecChain,
    /// Size after decoding \[bytes\]; for stored units the sum of the pieces.
    pub decoded_bytes: u64,
    /// What the format checks the first bytes of the unit against, or 0 for no check. For LMDB: the
    /// page number of the overflow run, whose header is part of the unit.
    pub guard: u64,
}

/// Part of a decoded unit that belongs to a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slice {
    /// Index in [`Located::units`].
    pub unit: u32,
    /// First byte in the decoded unit.
    pub offset: u64,
    /// Length \[bytes\].
    pub length: u64,
}

/// The units and slices of a list of samples, in one reusable arena.
///
/// Sample `i` (its place in the list, not its id), column `c` owns the slices `starts[i * columns +
/// c] .. starts[i * columns + c + 1]`; their concatenation is the column's value.
#[derive(Clone, Debug, Default)]
pub struct Located {
    columns: usize,
    starts: Vec<u32>,
    slices: Vec<Slice>,
    units: Vec<Unit>,
    pieces: Vec<Piece>,
    literals: Vec<u8>,
}

impl Located {
    /// Empties the arena, keeps its memory, and sets the number of columns per sample (at least 1).
    pub fn clear(&mut self, columns: usize) {
        assert!(columns > 0, "a sample has at least one column");
        self.columns = columns;
        self.starts.clear();
        self.starts.push(0);
        self.slices.clear();
        self.units.clear();
        self.pieces.clear();
        self.literals.clear();
    }

    /// Adds a stored unit of one extent and returns its number.
    pub fn push_stored_unit(&mut self, extent: Extent, guard: u64) -> u32 {
        self.push_unit(&[Piece::Extent(extent)], CodecChain::STORED, extent.length, guard)
    }

    /// Adds a unit and returns its number.
    pub fn push_unit(&mut self, pieces: &[Piece], codecs: CodecChain, decoded_bytes: u64, guard: u64) -> u32 {
        let unit = Unit {
            first_piece: self.pieces.len() as u32,
            pieces: pieces.len() as u32,
            codecs,
            decoded_bytes,
            guard,
        };
        self.pieces.extend_from_slice(pieces);
        self.units.push(unit);
        self.units.len() as u32 - 1
    }

    /// Adds literal bytes and returns their piece.
    pub fn push_literal(&mut self, bytes: &[u8]) -> Piece {
        let first = self.literals.len() as u32;
        self.literals.extend_from_slice(bytes);
        Piece::Literal { first, length: bytes.len() as u32 }
    }

    /// Adds a slice to the current column.
    pub fn push_slice(&mut self, slice: Slice) {
        debug_assert!((slice.unit as usize) < self.units.len(), "a slice names a unit that exists");
        self.slices.push(slice);
    }

    /// Ends the current column. Call it once per sample and column, in order.
    pub fn end_column(&mut self) {
        self.starts.push(self.slices.len() as u32);
    }

    /// Number of samples.
    #[must_use]
    pub fn samples(&self) -> usize {
        (self.starts.len().saturating_sub(1)).checked_div(self.columns).unwrap_or(0)
    }

    /// Number of columns per sample.
    #[must_use]
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// Slices of one column of the sample at `position` in the list.
    #[must_use]
    pub fn slices(&self, position: usize, column: usize) -> &[Slice] {
        let entry = position * self.columns + column;
        &self.slices[self.starts[entry] as usize..self.starts[entry + 1] as usize]
    }

    /// All units.
    #[must_use]
    pub fn units(&self) -> &[Unit] {
        &self.units
    }

    /// All pieces; [`Located::unit_pieces`] returns those of a unit.
    #[must_use]
    pub fn pieces(&self) -> &[Piece] {
        &self.pieces
    }

    /// The range of [`Located::pieces`] that a unit owns.
    #[must_use]
    pub fn unit_pieces(&self, unit: u32) -> Range<usize> {
        let unit = &self.units[unit as usize];
        unit.first_piece as usize..(unit.first_piece + unit.pieces) as usize
    }

    /// Literal bytes of all pieces.
    #[must_use]
    pub fn literals(&self) -> &[u8] {
        &self.literals
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ShardId;

    #[test]
    fn columns_of_samples_are_found_again() {
        let extent = |offset, length| Extent { shard: ShardId(0), offset, length };
        let mut located = Located::default();
        located.clear(2);
        for sample in 0..3_u64 {
            let image = located.push_stored_unit(extent(sample * 100, 90), 0);
            located.push_slice(Slice { unit: image, offset: 10, length: 80 });
            located.end_column();
            let magic = located.push_literal(&[1, 2]);
            let label = located.push_unit(
                &[Piece::Extent(extent(5000 + sample, 1)), magic],
                CodecChain::STORED,
                3,
                0,
            );
            located.push_slice(Slice { unit: label, offset: 0, length: 3 });
            located.end_column();
        }
        assert_eq!((located.samples(), located.columns()), (3, 2));
        let slice = located.slices(2, 0)[0];
        assert_eq!((slice.offset, slice.length), (10, 80));
        assert_eq!(located.pieces()[located.unit_pieces(slice.unit)][0], Piece::Extent(extent(200, 90)));
        assert_eq!(located.unit_pieces(located.slices(1, 1)[0].unit).len(), 2);
        assert_eq!(located.literals(), &[1, 2, 1, 2, 1, 2]);
    }
}
