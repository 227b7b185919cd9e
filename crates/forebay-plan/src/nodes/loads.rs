//! How a node loads what it keeps of a dataset in memory: threads take parts of it, one after the
//! other, and read each once, in the order of the files. What follows each other in a file is one
//! read.

use forebay_types::Extent;

use crate::nodes::chunk_map::Geometry;

/// Chunks that a thread reads at a time for a store: large reads reach all servers of a striped
/// file, and disks seek once for all chunks that follow each other.
pub const LOAD_CHUNKS: usize = 8;

/// Bytes that a thread reads at a time for resident units \[bytes\].
pub const LOAD_BYTES: u64 = 8 << 20;

/// Threads that load from storage of other nodes, and from local storage.
const NETWORK_THREADS: usize = 8;
const LOCAL_THREADS: usize = 2;

/// How many threads load. `is_local`: from storage of this node.
#[must_use]
pub fn load_threads(is_local: bool) -> usize {
    if is_local { LOCAL_THREADS } else { NETWORK_THREADS }
}

/// What to read for chunks: their bytes in the order of the chunks, as few ranges of files.
pub fn ranges_of_chunks<'a>(chunks: impl IntoIterator<Item = &'a Geometry>) -> Vec<Extent> {
    let mut ranges: Vec<Extent> = Vec::new();
    for chunk in chunks {
        chunk.files_of(&(0..chunk.bytes), |shard, offset, length| match ranges.last_mut() {
            Some(last) if last.shard == shard && last.offset + last.length == offset => last.length += length,
            _ => ranges.push(Extent { shard, offset, length }),
        });
    }
    ranges
}

#[cfg(test)]
mod tests {
    use forebay_types::{CHUNK_BYTES, ShardId};

    use super::*;
    use crate::nodes::chunk_map::ChunkMap;

    #[test]
    fn more_threads_load_over_a_network() {
        assert!(load_threads(false) > load_threads(true));
    }

    #[test]
    fn chunks_that_follow_each_other_in_a_file_are_read_together() {
        // Chunks 0 to 2 and 3 to 4.
        let map = ChunkMap::of_files(&[2 * CHUNK_BYTES + 5, 2 * CHUNK_BYTES]);
        let ranges = |chunks: &[u64]| {
            let chunks: Vec<Geometry> = chunks.iter().filter_map(|chunk| map.geometry(*chunk)).collect();
            let found = ranges_of_chunks(&chunks);
            let bytes: u64 = chunks.iter().map(|chunk| chunk.bytes).sum();
            assert_eq!(found.iter().map(|range| range.length).sum::<u64>(), bytes);
            found
        };
        let range = |shard, offset, length| Extent { shard: ShardId(shard), offset, length };
        for (chunks, expected) in [
            (&[][..], vec![]),
            (&[0, 1, 2], vec![range(0, 0, 2 * CHUNK_BYTES + 5)]),
            (&[0, 2], vec![range(0, 0, CHUNK_BYTES), range(0, 2 * CHUNK_BYTES, 5)]),
            (&[2, 3, 4], vec![range(0, 2 * CHUNK_BYTES, 5), range(1, 0, 2 * CHUNK_BYTES)]),
        ] {
            assert_eq!(ranges(chunks), expected, "{chunks:?}");
        }
    }
}
