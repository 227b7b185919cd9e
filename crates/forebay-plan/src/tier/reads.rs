//! How the bytes of a read are completed where there are storage tiers: which pieces a tier has,
//! which are read as they are asked for, and which are read whole, to be copied.

use std::ops::Range;

use forebay_types::{PIECE_BYTES, PIECES, Pieces};

/// Longest run of bytes that goes to a copy buffer as a whole, widened.
const WIDENED_BYTES: u64 = 4 * PIECE_BYTES;

/// Where the bytes of a piece come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PieceRead {
    /// A tier has them.
    Copied,
    /// They are read from the source as they are asked for.
    Source,
    /// They are read from the source, and this process copies them to a tier.
    Copying {
        /// The tier.
        level: u8,
        /// Whether all bytes of the pieces are asked for.
        whole: bool,
    },
}

/// A read of some pieces of one chunk.
#[derive(Clone, Debug)]
pub struct ChunkRead {
    /// The bytes that are asked for [bytes from the start of the chunk].
    pub bytes: Range<u64>,
    /// The pieces that they are in.
    pub needed: Pieces,
    /// Pieces that a tier has.
    pub copied: Pieces,
    /// Pieces that this process copies.
    pub copying: Pieces,
    /// The tier that they are copied to; `None`: none are copied.
    pub level: Option<u8>,
}

/// Pieces of a chunk that follow each other and are treated alike.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PieceRun {
    /// The pieces.
    pub pieces: Range<u32>,
    /// The bytes that are asked for [bytes from the start of the chunk].
    pub bytes: Range<u64>,
    /// Where they come from.
    pub read: PieceRead,
}

impl ChunkRead {
    /// The runs of pieces, in their order; copies of at most `most_pieces` each, and so are reads
    /// of the source. `bytes_of` are the bytes of pieces that follow each other.
    #[must_use]
    pub fn runs(&self, most_pieces: u32, bytes_of: impl Fn(&Range<u32>) -> Range<u64>) -> Vec<PieceRun> {
        let mut runs: Vec<PieceRun> = Vec::new();
        let mut pieces = self.needed.iter().peekable();
        while let Some(first) = pieces.next() {
            let read = self.read_of(first, &bytes_of);
            let mut behind = first + 1;
            let is_short = |behind: u32| read == PieceRead::Copied || behind - first < most_pieces;
            while pieces.next_if(|next| self.read_of(*next, &bytes_of) == read && is_short(behind)).is_some()
            {
                behind += 1;
            }
            let whole = bytes_of(&(first..behind));
            let bytes = whole.start.max(self.bytes.start)..whole.end.min(self.bytes.end);
            runs.push(PieceRun { pieces: first..behind, bytes, read });
        }
        runs
    }

    fn read_of(&self, number: u32, bytes_of: impl Fn(&Range<u32>) -> Range<u64>) -> PieceRead {
        let piece = Pieces(1 << number);
        match self.level {
            _ if self.copied.contains(piece) => PieceRead::Copied,
            Some(level) if self.copying.contains(piece) => {
                let all = bytes_of(&(number..number + 1));
                let whole = self.bytes.start <= all.start && all.end <= self.bytes.end;
                PieceRead::Copying { level, whole }
            }
            _ => PieceRead::Source,
        }
    }
}

/// Most pieces of one copy, where copies on their way take up to `pool_bytes`: several fit.
#[must_use]
pub fn pieces_at_once(pool_bytes: Option<u64>) -> u32 {
    pool_bytes.map_or(PIECES, |bytes| (bytes / 2 / PIECE_BYTES).clamp(1, u64::from(PIECES)) as u32)
}

/// Whether runs that follow each other are one request: what a tier has is asked for apart from
/// what it lacks.
#[must_use]
pub fn is_one_request(one: PieceRead, next: PieceRead) -> bool {
    (one == PieceRead::Copied) == (next == PieceRead::Copied)
}

/// Whether runs that follow each other are one request to a copy buffer, widened to whole pieces:
/// they end inside a piece that is copied, and are short. `read_bytes` are their bytes with the
/// rest of such pieces.
#[must_use]
pub fn is_widened(mut reads: impl Iterator<Item = PieceRead>, read_bytes: u64) -> bool {
    reads.any(|read| matches!(read, PieceRead::Copying { whole: false, .. })) && read_bytes <= WIDENED_BYTES
}

/// Whether pieces that another process is copying are waited for, rather than read again: if that
/// saves a piece.
#[must_use]
pub fn waits_for_others(lacking_bytes: u64) -> bool {
    lacking_bytes >= PIECE_BYTES
}

#[cfg(test)]
mod tests {
    use forebay_types::{CHUNK_BYTES, run_bytes};

    use super::*;

    const P: u64 = PIECE_BYTES;

    fn whole(level: u8) -> PieceRead {
        PieceRead::Copying { level, whole: true }
    }

    fn in_part(level: u8) -> PieceRead {
        PieceRead::Copying { level, whole: false }
    }

    #[test]
    fn what_a_tier_has_is_a_request_of_its_own() {
        for (one, next, expected) in [
            (PieceRead::Copied, PieceRead::Copied, true),
            (PieceRead::Copied, PieceRead::Source, false),
            (whole(0), PieceRead::Copied, false),
            (whole(0), PieceRead::Source, true),
            (in_part(0), whole(1), true),
        ] {
            assert_eq!(is_one_request(one, next), expected, "{one:?}, {next:?}");
        }
    }

    #[test]
    fn pieces_that_are_read_alike_are_one_run() {
        let run = |pieces, bytes, read| PieceRun { pieces, bytes, read };
        for (bytes, copied, copying, level, most_pieces, expected) in [
            // No tier takes copies.
            (100..3 * P, 0, 0, None, 16, vec![run(0..3, 100..3 * P, PieceRead::Source)]),
            (100..3 * P, 0b111, 0, None, 16, vec![run(0..3, 100..3 * P, PieceRead::Copied)]),
            // Whole pieces, and those that are asked for in part.
            (0..2 * P, 0, 0b11, Some(1), 16, vec![run(0..2, 0..2 * P, whole(1))]),
            (
                100..3 * P + 5,
                0,
                0b1111,
                Some(0),
                16,
                vec![
                    run(0..1, 100..P, in_part(0)),
                    run(1..3, P..3 * P, whole(0)),
                    run(3..4, 3 * P..3 * P + 5, in_part(0)),
                ],
            ),
            // Another process copies piece 1, a tier has piece 2.
            (
                0..4 * P,
                0b100,
                0b1001,
                Some(0),
                16,
                vec![
                    run(0..1, 0..P, whole(0)),
                    run(1..2, P..2 * P, PieceRead::Source),
                    run(2..3, 2 * P..3 * P, PieceRead::Copied),
                    run(3..4, 3 * P..4 * P, whole(0)),
                ],
            ),
            // Few pieces fit into the memory for copies.
            (
                0..3 * P,
                0,
                0b111,
                Some(0),
                2,
                vec![run(0..2, 0..2 * P, whole(0)), run(2..3, 2 * P..3 * P, whole(0))],
            ),
            (0..3 * P, 0b111, 0, Some(0), 2, vec![run(0..3, 0..3 * P, PieceRead::Copied)]),
        ] {
            let read = ChunkRead {
                needed: Pieces::touching(bytes.clone()),
                bytes,
                copied: Pieces(copied),
                copying: Pieces(copying),
                level,
            };
            assert_eq!(read.runs(most_pieces, |run| run_bytes(run, CHUNK_BYTES)), expected, "{read:?}");
        }
    }

    #[test]
    fn several_copies_fit_into_the_memory_for_them() {
        for (pool_bytes, expected) in
            [(None, 16), (Some(0), 1), (Some(4 * P), 2), (Some(32 * P), 16), (Some(1 << 30), 16)]
        {
            assert_eq!(pieces_at_once(pool_bytes), expected, "{pool_bytes:?}");
        }
    }

    #[test]
    fn short_reads_of_parts_of_pieces_are_widened() {
        for (reads, read_bytes, expected) in [
            (&[in_part(0)][..], P, true),
            (&[PieceRead::Source, in_part(0)], 4 * P, true),
            (&[whole(0), in_part(0)], 4 * P + 1, false),
            (&[whole(0)], P, false),
            (&[PieceRead::Source], P, false),
        ] {
            assert_eq!(is_widened(reads.iter().copied(), read_bytes), expected, "{reads:?}, {read_bytes}");
        }
        assert!(waits_for_others(P) && !waits_for_others(P - 1));
    }
}
