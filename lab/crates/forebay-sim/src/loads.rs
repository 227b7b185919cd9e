//! What a node reads into its memory before the loader begins, in the parts that its threads take.

use std::collections::VecDeque;

use forebay_plan::{ChunkMap, Geometry, LOAD_BYTES, LOAD_CHUNKS, ranges_of_chunks};
use forebay_types::Extent;

/// Chunks of a share, in the order of its slots.
pub(crate) fn loads_of_chunks(map: &ChunkMap, chunks: impl Iterator<Item = u64>) -> VecDeque<Vec<Extent>> {
    let chunks: Vec<Geometry> = chunks.filter_map(|chunk| map.geometry(chunk)).collect();
    chunks.chunks(LOAD_CHUNKS).map(ranges_of_chunks).collect()
}

/// Ranges of the files; long ones are cut.
pub(crate) fn loads_of_ranges(ranges: &[Extent]) -> VecDeque<Vec<Extent>> {
    let mut parts: VecDeque<Vec<Extent>> = VecDeque::new();
    let mut bytes = 0;
    for range in ranges {
        for done in (0..range.length).step_by(LOAD_BYTES as usize) {
            let length = (range.length - done).min(LOAD_BYTES);
            let piece = Extent { offset: range.offset + done, length, ..*range };
            match parts.back_mut() {
                Some(part) if bytes + length <= LOAD_BYTES => {
                    part.push(piece);
                    bytes += length;
                }
                _ => {
                    parts.push_back(vec![piece]);
                    bytes = length;
                }
            }
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use forebay_types::ShardId;

    use super::*;

    #[test]
    fn long_ranges_are_cut_and_short_ones_read_together() {
        let extent = |offset, length| Extent { shard: ShardId(0), offset, length };
        let ranges = [extent(0, 5), extent(10, LOAD_BYTES - 5), extent(LOAD_BYTES * 2, LOAD_BYTES + 1)];
        let parts = loads_of_ranges(&ranges);
        let bytes: Vec<u64> = parts.iter().map(|part| part.iter().map(|one| one.length).sum()).collect();
        assert_eq!(bytes, [LOAD_BYTES, LOAD_BYTES, 1]);
        let starts: Vec<u64> = parts.iter().flatten().map(|one| one.offset).collect();
        assert_eq!(starts, [0, 10, LOAD_BYTES * 2, LOAD_BYTES * 3]);
    }

    #[test]
    fn chunks_are_read_several_at_a_time() {
        let map = ChunkMap::of_files(&[20 << 20, 100]);
        let parts = loads_of_chunks(&map, 0..map.chunks());
        let ranges: Vec<usize> = parts.iter().map(Vec::len).collect();
        assert_eq!(ranges, [1, 1, 2]);
        assert_eq!(parts.iter().flatten().map(|one| one.length).sum::<u64>(), (20 << 20) + 100);
    }
}
