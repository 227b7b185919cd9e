//! Codecs: chunks that HDF5's own filters wrote come back, and damaged ones are an error or other
//! bytes, never anything else.
//!
//! The golden chunks are written by `scripts/golden_codecs.py` with h5py and hdf5plugin. If one no
//! longer decodes, a codec is wrong: the files that people have do not change.

use crate::support::lmdb_writer::Random;
use forebay_format::codec::{BlockCodec, Codec, decode};
use forebay_format::hdf5::{Filter, chain};
use serde::Deserialize;

#[derive(Deserialize)]
struct Golden {
    name: String,
    item_bytes: usize,
    items: u64,
    mask: u32,
    filters: Vec<Filter>,
    encoded: String,
}

impl Golden {
    fn all() -> Vec<Self> {
        serde_json::from_str(include_str!("golden/codecs.json")).expect("the golden chunks")
    }

    fn chain(&self) -> Vec<Codec> {
        chain(&self.filters, self.mask).expect("known filters")
    }

    fn encoded(&self) -> Vec<u8> {
        let digits = self.encoded.as_bytes().chunks(2);
        digits
            .map(|pair| {
                u8::from_str_radix(std::str::from_utf8(pair).expect("ASCII"), 16).expect("hexadecimal")
            })
            .collect()
    }

    /// As `data` in the script.
    fn decoded(&self) -> Vec<u8> {
        (0..self.items)
            .flat_map(|number| (number * number / 5000).to_le_bytes().into_iter().take(self.item_bytes))
            .collect()
    }
}

#[test]
fn chunks_of_the_filters_own_libraries_come_back() {
    let all = Golden::all();
    assert_eq!(all.len(), 38);
    for golden in &all {
        let wanted = golden.decoded();
        let mut found = vec![0; wanted.len()];
        decode(&golden.chain(), &golden.encoded(), &mut found)
            .unwrap_or_else(|error| panic!("{}: {error}", golden.name));
        assert!(found == wanted, "{}", golden.name);
    }
}

#[test]
fn another_length_than_the_chunk_has_is_an_error() {
    for golden in Golden::all() {
        let (chain, encoded, wanted) = (golden.chain(), golden.encoded(), golden.decoded());
        for length in [0, 1, wanted.len() - 1, wanted.len() + 1, 2 * wanted.len() + 7] {
            // All chunks have the same few bytes more or less where a codec keeps them as they are.
            assert!(decode(&chain, &encoded, &mut vec![0; length]).is_err(), "{}: {length}", golden.name);
        }
        for cut in (0..encoded.len()).step_by(1 + encoded.len() / 300) {
            let mut found = vec![0; wanted.len()];
            let decoded = decode(&chain, &encoded[..cut], &mut found);
            // A zlib stream without its last bytes is noticed by its checksum alone.
            assert!(decoded.is_err(), "{}: cut to {cut} of {}", golden.name, encoded.len());
        }
    }
}

#[test]
fn a_flipped_bit_under_a_checksum_is_an_error_and_elsewhere_never_a_panic() {
    let mut random = Random(5);
    for golden in Golden::all() {
        let (chain, encoded, wanted) = (golden.chain(), golden.encoded(), golden.decoded());
        let is_checked = matches!(chain.first(), Some(Codec::Fletcher32)) || chain.contains(&Codec::Deflate);
        for _ in 0..300 {
            let mut damaged = encoded.clone();
            let bit = random.below(8 * damaged.len() as u64);
            damaged[bit as usize / 8] ^= 1 << (bit % 8);
            let mut found = vec![0; wanted.len()];
            let decoded = decode(&chain, &damaged, &mut found);
            if is_checked {
                // Bits of zlib's header say how it was made, which does not matter.
                assert!(decoded.is_err() || found == wanted, "{}: bit {bit}", golden.name);
            }
        }
    }
}

#[test]
fn noise_and_hostile_headers_are_refused() {
    let mut random = Random(6);
    let item_bytes = 4;
    let chains = [
        vec![Codec::Deflate],
        vec![Codec::Zstd],
        vec![Codec::Lzf],
        vec![Codec::Lz4],
        vec![Codec::Fletcher32, Codec::Lzf, Codec::Shuffle { item_bytes }],
        vec![Codec::Bitshuffle { item_bytes, block_items: 64, blocks: BlockCodec::Lz4 }],
        vec![Codec::Bitshuffle { item_bytes, block_items: 64, blocks: BlockCodec::Zstd }],
        vec![Codec::Bitshuffle { item_bytes: 3, block_items: 8, blocks: BlockCodec::Stored }],
        vec![Codec::Deflate, Codec::NulTerminated { item_bytes, strings: vec![(1, 3)] }],
    ];
    let mut refused = 0;
    for round in 0..4000 {
        let length = random.below(300) as usize;
        let mut noise = random.bytes(length);
        let mut into = vec![0; random.below(2000) as usize];
        if round % 2 == 0 && length >= 12 {
            // A header that is right, and a block length that may be anything.
            noise[..8].copy_from_slice(&(into.len() as u64).to_be_bytes());
            let block_bytes = [0, 1, 4, 32, 8192, u32::MAX, u32::MAX - 31][random.below(7) as usize];
            noise[8..12].copy_from_slice(&block_bytes.to_be_bytes());
        }
        for chain in &chains {
            refused += u32::from(decode(chain, &noise, &mut into).is_err());
        }
    }
    assert!(refused > 31_000, "{refused}");
}

#[test]
fn a_fill_value_is_repeated_and_takes_no_bytes() {
    let chain = [Codec::Fill { value: vec![1, 2, 3] }];
    let mut found = vec![0; 8];
    decode(&chain, &[], &mut found).expect("no bytes");
    assert_eq!(found, [1, 2, 3, 1, 2, 3, 1, 2]);
    assert!(decode(&chain, &[0], &mut found).is_err());
}

#[test]
fn what_stands_after_the_first_nul_of_a_string_becomes_zeros() {
    let chain = [Codec::NulTerminated { item_bytes: 6, strings: vec![(0, 2), (3, 3)] }];
    let mut found = vec![9; 12];
    decode(&chain, &[0, 7, 0, 7, 0, 7, 1, 2, 7, 1, 2, 3], &mut found).expect("two elements");
    assert_eq!(found, [0, 0, 0, 7, 0, 0, 1, 2, 7, 1, 2, 3]);
    for bytes in [0, 5, 11, 13] {
        assert!(decode(&chain, &vec![0; bytes], &mut found).is_err(), "{bytes}");
        assert!(bytes == 0 || decode(&chain, &vec![0; bytes], &mut vec![0; bytes]).is_err(), "{bytes}");
    }
}

#[test]
fn errors_name_the_codec_what_was_expected_and_what_was_found() {
    let golden =
        Golden::all().into_iter().find(|golden| golden.name == "fletcher32, 5 items").expect("there");
    let mut encoded = golden.encoded();
    encoded[3] ^= 1;
    let error = decode(&golden.chain(), &encoded, &mut [0; 20]).expect_err("a flipped bit");
    assert_eq!(error.to_string(), "fletcher32: checksum: expected 0x00000000, found 0x00090001");
    let error = decode(&[Codec::Lzf], &[0x20, 0x01], &mut [0; 3]).expect_err("nothing before");
    assert_eq!(error.to_string(), "lzf: distance: expected at most 0, found 2");
}
