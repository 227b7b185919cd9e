//! Any bytes as the structure of an HDF5 file, as such a file, and as encoded bytes of every codec.
#![no_main]

mod located;

use forebay_format::codec::{BlockCodec, Codec, decode};
use forebay_format::hdf5::index_of_bytes;
use libfuzzer_sys::fuzz_target;

/// A version 2 superblock of a file of any length.
const SUPERBLOCK: [u8; 36] = *b"\x89HDF\r\n\x1a\n\x02\x08\x08\0\
    \0\0\0\0\0\0\0\0\xff\xff\xff\xff\xff\xff\xff\xff\0\0\0\0\0\0\0\0";

fn index(file: Vec<u8>, structure: &[u8]) {
    located::locate(file.len() as u64, index_of_bytes(file, structure));
}

fuzz_target!(|data: &[u8]| {
    let mut file = SUPERBLOCK.to_vec();
    // Room for what the seeds' structure names.
    file.resize(20_000, 0);
    index(file, data);
    index(data.to_vec(), b"\x0f\0\0\0{\"datasets\":[]}");

    let Some((&choice, encoded)) = data.split_first() else { return };
    let item_bytes = u32::from(choice >> 4) + 1;
    let blocks = [BlockCodec::Stored, BlockCodec::Lz4, BlockCodec::Zstd][usize::from(choice) % 3];
    let mut into = vec![0; usize::from(choice) * 16];
    for chain in [
        vec![Codec::Deflate],
        vec![Codec::Zstd],
        vec![Codec::Lzf],
        vec![Codec::Lz4],
        vec![Codec::Fletcher32, Codec::Lzf, Codec::Shuffle { item_bytes }],
        vec![Codec::Bitshuffle { item_bytes, block_items: 64, blocks }],
        vec![Codec::Lzf, Codec::NulTerminated { item_bytes, strings: vec![(0, item_bytes)] }],
    ] {
        let _ = decode(&chain, encoded, &mut into);
    }
});
