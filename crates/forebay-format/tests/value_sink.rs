//! Building an index of inline values reads all data; whoever keeps them need not read them again.

use std::sync::{Arc, Mutex};

use crate::support::dataset::{Scratch, open};
use crate::support::lmdb_writer::records;
use forebay_format::ValueSink;
use forebay_types::{Located, Piece, SampleId};

/// Shards as far as they were read; what was not read is `None`.
#[derive(Debug)]
struct Memory(Vec<Mutex<Vec<Option<u8>>>>);

impl ValueSink for Memory {
    fn take(&self, shard: usize, offset: u64, bytes: &[u8]) {
        let mut memory = self.0[shard].lock().expect("not poisoned");
        for (at, byte) in bytes.iter().enumerate() {
            memory[offset as usize + at] = Some(*byte);
        }
    }
}

#[test]
fn every_value_among_the_tree_pages_is_handed_on_while_the_index_is_built() {
    let scratch = Scratch::new();
    let parts = [3_u64, 4].map(|seed| records(seed, 3000, |random| 1 + random.below(300) as usize));
    let paths = [scratch.lmdb("a", &parts[0]), scratch.lmdb("b", &parts[1])];
    let dataset = open(&[&paths[0], &paths[1]]);
    let inline_bytes = dataset.inline_bytes().expect("all values are inline");
    assert!(inline_bytes <= dataset.shards().iter().map(|shard| shard.bytes).sum());
    for threads in [1, 4] {
        let sizes = dataset.shards().iter().map(|shard| Mutex::new(vec![None; shard.bytes as usize]));
        let memory = Arc::new(Memory(sizes.collect()));
        let built = dataset
            .read_into(&(memory.clone() as Arc<dyn ValueSink>))
            .build_index(threads, &|_| true)
            .expect("a sound file");
        assert_eq!(built.report.samples, 6000);
        let index = dataset.index(Arc::new(built.bytes)).expect("an index just built");
        let mut located = Located::default();
        for (sample, (_, value)) in parts.iter().flatten().enumerate() {
            index.locate(&[SampleId(sample as u64)], &mut located).expect("a sample");
            let slice = located.slices(0, 0)[0];
            let Piece::Extent(extent) = located.pieces()[located.unit_pieces(slice.unit)][0] else {
                panic!("an inline value is one extent")
            };
            let start = (extent.offset + slice.offset) as usize;
            let kept = memory.0[extent.shard.0 as usize].lock().expect("not poisoned");
            let found: Option<Vec<u8>> = kept[start..start + slice.length as usize].iter().copied().collect();
            assert_eq!(found.as_ref(), Some(value), "sample {sample}, {threads} threads");
        }
    }
}

#[test]
fn values_with_pages_of_their_own_are_not_read_by_the_build_and_so_not_kept() {
    let scratch = Scratch::new();
    let small = records(5, 10, |_| 20);
    let large = records(6, 10, |_| 20_000);
    assert_eq!(open(&[&scratch.lmdb("large", &large)]).inline_bytes(), None);
    let both = [scratch.lmdb("small", &small), scratch.lmdb("large", &large)];
    assert_eq!(open(&[&both[0], &both[1]]).inline_bytes(), None);
}
