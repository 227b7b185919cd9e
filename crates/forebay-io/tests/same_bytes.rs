//! All accesses deliver the same bytes.

use std::sync::{Arc, OnceLock};

use crate::support::{self, Aligned, Shards, requesting};
use forebay_io::{Failing, Mappings, Reader, ShardFiles, Transfer};
use forebay_types::ShardId;
use proptest::prelude::*;

/// The last byte of each stands elsewhere in its page.
const SIZES: [usize; 4] = [1, 4096, 70_001, 3 << 20 | 5];

fn shards() -> &'static (Shards, Arc<ShardFiles>, Mappings) {
    static SHARDS: OnceLock<(Shards, Arc<ShardFiles>, Mappings)> = OnceLock::new();
    SHARDS.get_or_init(|| {
        let shards = Shards::new(&SIZES);
        let files = shards.open(true);
        let mappings = Mappings::open(&files).expect("mapped");
        (shards, files, mappings)
    })
}

/// A range of a shard, long and short ones alike.
fn range() -> impl Strategy<Value = (u32, usize, usize)> {
    (0..SIZES.len() as u32).prop_flat_map(|shard| {
        let size = SIZES[shard as usize];
        (Just(shard), 0..size, 0_u32..22).prop_flat_map(move |(shard, offset, power)| {
            let most = (size - offset).min(1 << power);
            (Just(shard), Just(offset), 0..=most)
        })
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn buffered_accesses_deliver_the_bytes_of_the_file(
        ranges in prop::collection::vec(range(), 0..40),
        depth in 1_usize..12,
    ) {
        let (shards, files, mappings) = shards();
        for access in requesting() {
            let mut reader = Reader::new(Arc::clone(files), access, false, depth);
            prop_assert_eq!(reader.take_refusals(), []);
            let mut memory: Vec<Vec<u8>> = ranges.iter().map(|(_, _, length)| vec![0; *length]).collect();
            let mut transfers: Vec<Transfer<'_>> = ranges
                .iter()
                .zip(&mut memory)
                .map(|((shard, offset, _), into)| Transfer { shard: ShardId(*shard), offset: *offset as u64, into })
                .collect();
            reader.fill(&mut transfers).expect("read");
            for ((shard, offset, length), bytes) in ranges.iter().zip(&memory) {
                prop_assert!(*bytes == shards.contents[*shard as usize][*offset..offset + length]);
            }
            let counters = reader.counters();
            let total: usize = ranges.iter().map(|(_, _, length)| length).sum();
            prop_assert_eq!(counters.read_bytes, total as u64);
        }
        for (shard, offset, length) in &ranges {
            let expected = &shards.contents[*shard as usize][*offset..offset + length];
            prop_assert_eq!(mappings.bytes(ShardId(*shard), *offset as u64, *length as u64), Some(expected));
            let split = length / 3;
            let mut bytes = vec![0; *length];
            let (head, into) = bytes.split_at_mut(split);
            Failing::default().read(files, false, (ShardId(*shard), *offset as u64), head, into).expect("read");
            prop_assert!(bytes == expected);
        }
    }

    #[test]
    fn aligned_transfers_deliver_the_bytes_of_the_file_up_to_its_end(
        places in prop::collection::vec((0..SIZES.len() as u32, 0_usize..1 << 20, 1_usize..80), 1..12),
        direct_files in any::<bool>(),
    ) {
        let (shards, direct, _) = shards();
        // Where O_DIRECT is refused the same plan, with its padded tails, goes through the page
        // cache.
        let files = if direct_files { Arc::clone(direct) } else { shards.open(false) };
        let ranges: Vec<(u32, usize, usize)> = places
            .into_iter()
            .map(|(shard, page, pages)| {
                let all = SIZES[shard as usize].div_ceil(4096);
                let page = page % all;
                (shard, page * 4096, pages.min(all - page) * 4096)
            })
            .collect();
        for access in requesting() {
            let mut reader = Reader::new(Arc::clone(&files), access, true, 8);
            prop_assert_eq!(reader.take_refusals().is_empty(), files.is_direct());
            let mut memory: Vec<Aligned> = ranges.iter().map(|(_, _, length)| Aligned::new(*length)).collect();
            let mut transfers: Vec<Transfer<'_>> = ranges
                .iter()
                .zip(&mut memory)
                .map(|((shard, offset, _), memory)| {
                    Transfer { shard: ShardId(*shard), offset: *offset as u64, into: memory.bytes() }
                })
                .collect();
            reader.fill(&mut transfers).expect("read");
            for ((shard, offset, length), memory) in ranges.iter().zip(&mut memory) {
                let contents = &shards.contents[*shard as usize];
                let end = contents.len().min(offset + length);
                prop_assert!(memory.bytes()[..end - offset] == contents[*offset..end]);
            }
        }
    }
}

#[test]
fn a_padded_transfer_ends_at_the_next_aligned_offset_at_most() {
    let (_, files, _) = shards();
    for access in requesting() {
        let mut reader = Reader::new(Arc::clone(files), access, true, 8);
        let mut memory = Aligned::new(8192);
        let transfer = Transfer { shard: ShardId(1), offset: 0, into: memory.bytes() };
        assert!(reader.fill(&mut [transfer]).is_err());
    }
}

#[test]
fn an_empty_shard_is_read_and_mapped_without_complaint() {
    let shards = Shards::new(&[0]);
    let files = shards.open(true);
    for access in requesting() {
        let mut reader = Reader::new(Arc::clone(&files), access, false, 8);
        reader.fill(&mut [support::transfer(0, &mut [])]).expect("nothing to read");
        reader.fill(&mut []).expect("no transfers");
        assert!(reader.fill(&mut [support::transfer(0, &mut [0])]).is_err());
    }
}
