//! Any bytes as a shard of MDS, and as a chunk of `LitData` whose leaves the first byte chooses.
#![no_main]

use std::path::Path;
use std::sync::Arc;

use forebay_format::file::Input;
use forebay_format::offset_table::OffsetTable;
use forebay_format::{OpenOptions, SchemaChoice, litdata, mds};
use libfuzzer_sys::fuzz_target;

const LEAVES: [&[&str]; 4] = [
    &["bytes"],
    &["no_header_numpy:5"],
    &["bytes", "bool", "numpy", "int", "no_header_numpy:5", "tensor", "str", "no_header_tensor:2", "float"],
    &["tensor", "numpy"],
];

fn check(shard: &OffsetTable, bytes: &[u8]) {
    let _ = shard.walk(&|_| true, &mut |places| {
        for (start, length) in places {
            let end = start.checked_add(*length);
            assert!(end.is_some_and(|end| end <= bytes.len() as u64), "a value within the file");
        }
        Ok(())
    });
    let _ = shard.check_lengths(&|_| true);
}

fuzz_target!(|bytes: &[u8]| {
    let input = |bytes: &[u8]| {
        Input::from_source(Path::new("fuzzed"), Arc::new(bytes.to_vec())).expect("a file in memory")
    };
    for schema in [SchemaChoice::Auto, SchemaChoice::Raw] {
        let options = OpenOptions { schema, ..OpenOptions::default() };
        if let Ok(shard) = mds::read(input(bytes), &options) {
            check(&shard, bytes);
        }
        let Some((first, rest)) = bytes.split_first() else { return };
        let leaves = LEAVES[usize::from(*first) % LEAVES.len()];
        if let Ok(chunk) = litdata::read_chunk(input(rest), leaves, &options) {
            check(&chunk, rest);
        }
    }
});
