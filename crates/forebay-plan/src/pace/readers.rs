//! The readers of a node: which blocks each of them fills, and in which rank it runs.
//!
//! Reader k of R fills the blocks q with q mod R = k, in order. All processes of a node compute the
//! same, so no reader is told what to do.

/// The first block from `sequence` on that `reader` of `readers` fills.
#[must_use]
pub fn next_block_of_reader(sequence: u64, reader: u64, readers: u64) -> u64 {
    sequence + (reader + readers - sequence % readers) % readers
}

/// The reader that fills a block; that of a node without readers is 0.
#[must_use]
pub fn reader_of_block(sequence: u64, readers: usize) -> usize {
    (sequence % readers.max(1) as u64) as usize
}

/// The local rank in which reader k of R runs: ⌊k·ranks/R⌋, plus the number of its moves, or the
/// next rank that is present.
#[must_use]
pub fn home_of_reader(
    reader: usize,
    readers: usize,
    ranks: usize,
    moves: usize,
    is_present: impl Fn(usize) -> bool,
) -> usize {
    let nominal = reader * ranks / readers + moves;
    (0..ranks).map(|step| (nominal + step) % ranks).find(|rank| is_present(*rank)).unwrap_or(nominal % ranks)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_go_to_the_readers_in_turn() {
        for (sequence, reader, readers, expected) in
            [(0, 0, 1, 0), (7, 0, 1, 7), (0, 2, 4, 2), (3, 2, 4, 6), (6, 2, 4, 6), (7, 0, 4, 8)]
        {
            let found = next_block_of_reader(sequence, reader, readers);
            assert_eq!(found, expected, "reader {reader} of {readers} from block {sequence}");
            assert_eq!(reader_of_block(found, readers as usize), reader as usize);
        }
        assert_eq!(reader_of_block(5, 0), 0);
    }

    #[test]
    fn readers_are_spread_over_the_ranks_and_leave_those_that_are_gone() {
        for (reader, readers, ranks, moves, gone, expected) in [
            (0, 2, 8, 0, &[][..], 0),
            (1, 2, 8, 0, &[], 4),
            (1, 2, 8, 1, &[], 5),
            (1, 2, 8, 4, &[], 0),
            (1, 2, 8, 0, &[4, 5], 6),
            (1, 2, 8, 0, &[4, 5, 6, 7], 0),
            (3, 4, 4, 0, &[3], 0),
            (2, 3, 1, 0, &[], 0),
            // All are gone: no thread of it runs.
            (1, 2, 2, 0, &[0, 1], 1),
        ] {
            let found = home_of_reader(reader, readers, ranks, moves, |rank| !gone.contains(&rank));
            assert_eq!(
                found, expected,
                "reader {reader} of {readers}, {ranks} ranks, {moves} moves, {gone:?}"
            );
        }
    }
}
