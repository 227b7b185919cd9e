//! Any bytes as an Arrow file or stream, and as encoded bytes of the codecs of its buffers.
#![no_main]

mod located;

use forebay_format::arrow::index_of_bytes;
use forebay_format::codec::{Codec, decode};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    located::locate(data.len() as u64, index_of_bytes(data.to_vec()));
    let Some((&choice, encoded)) = data.split_first() else { return };
    let mut into = vec![0; usize::from(choice) * 16];
    for chain in [vec![Codec::Lz4Frame], vec![Codec::Bits], vec![Codec::Zstd, Codec::Bits]] {
        let _ = decode(&chain, encoded, &mut into);
    }
});
