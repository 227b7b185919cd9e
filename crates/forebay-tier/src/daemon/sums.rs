//! Checksums of the pieces of a copy, as the daemon keeps them: it has those of every copy that is
//! not in memory, so they are packed.

use forebay_types::{PIECE_BYTES, Pieces};

use crate::log::PieceSum;

/// See the module header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Sums {
    /// Pieces of [`PIECE_BYTES`], of which the last may be shorter, at their places.
    Even { pieces: Pieces, last_bytes: u32, crcs: Box<[u32]> },
    /// Pieces of any length.
    Any(Box<[PieceSum]>),
}

impl Sums {
    /// The checksums of pieces, in the order of their numbers.
    pub(super) fn new(sums: &[PieceSum]) -> Self {
        let piece_bytes = PIECE_BYTES as u32;
        let is_even = |(place, sum): (usize, &PieceSum)| {
            sum.piece < 16
                && sum.start == u32::from(sum.piece) * piece_bytes
                && (sum.bytes == piece_bytes || place + 1 == sums.len())
        };
        if !sums.iter().enumerate().all(is_even) {
            return Self::Any(sums.into());
        }
        Self::Even {
            pieces: sums.iter().fold(Pieces::NONE, |all, sum| all.union(Pieces(1 << sum.piece))),
            last_bytes: sums.last().map_or(0, |sum| sum.bytes),
            crcs: sums.iter().map(|sum| sum.crc).collect(),
        }
    }

    /// The same unpacked.
    pub(super) fn to_vec(&self) -> Vec<PieceSum> {
        match self {
            Self::Any(sums) => sums.to_vec(),
            Self::Even { pieces, last_bytes, crcs } => {
                let piece_bytes = PIECE_BYTES as u32;
                let sum = |(place, (piece, crc)): (usize, (u32, &u32))| PieceSum {
                    piece: piece as u8,
                    start: piece * piece_bytes,
                    bytes: if place + 1 == crcs.len() { *last_bytes } else { piece_bytes },
                    crc: *crc,
                };
                pieces.iter().zip(&**crcs).enumerate().map(sum).collect()
            }
        }
    }

    /// Takes further checksums; those of the same piece replace earlier ones.
    pub(super) fn add(&mut self, more: &[PieceSum]) {
        let mut all = self.to_vec();
        add_sums(&mut all, more);
        *self = Self::new(&all);
    }
}

/// Adds checksums to a list in the order of pieces; those of the same piece replace earlier ones.
pub(super) fn add_sums(held: &mut Vec<PieceSum>, more: &[PieceSum]) {
    for sum in more {
        match held.binary_search_by_key(&sum.piece, |held| held.piece) {
            Ok(at) => held[at] = *sum,
            Err(at) => held.insert(at, *sum),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn checksums_are_unpacked_as_they_were(numbers: u16, last_bytes in 1..=PIECE_BYTES as u32, odd: bool, crc: u32) {
            let mut sums: Vec<PieceSum> = Pieces(numbers)
                .iter()
                .map(|piece| PieceSum {
                    piece: piece as u8,
                    start: piece * PIECE_BYTES as u32,
                    bytes: PIECE_BYTES as u32,
                    crc: crc.wrapping_add(piece),
                })
                .collect();
            if let Some(last) = sums.last_mut() {
                last.bytes = last_bytes;
            }
            if odd && let Some(first) = sums.first_mut() {
                first.start += 1;
            }
            let packed = Sums::new(&sums);
            prop_assert_eq!(packed.to_vec(), sums.clone());
            // In any parts they come to the same.
            let mut in_parts = Sums::new(&[]);
            for sum in sums.iter().rev() {
                in_parts.add(&[*sum]);
            }
            prop_assert_eq!(in_parts.to_vec(), sums);
        }
    }
}
