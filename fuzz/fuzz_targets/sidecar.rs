//! Any bytes as a sidecar, as one of its blocks, as its description, or as a `Datum`.
//!
//! Checksums are repaired before reading, so that damage is not caught by them.
#![no_main]

#[path = "../../crates/forebay-format/tests/support/lmdb_writer.rs"]
#[allow(dead_code)]
mod lmdb_writer;
#[path = "../../crates/forebay-format/tests/support/table.rs"]
#[allow(dead_code)]
mod table;

use std::sync::{Arc, OnceLock};

use forebay_format::sidecar::IndexEntry;
use forebay_format::{DatumSchema, FieldOut, Index, Pixels, Schema};
use forebay_types::{Located, SampleId};
use libfuzzer_sys::fuzz_target;
use table::Parts;

/// Records of the sidecar whose parts are exchanged: of lengths 0 to 1,000, so that blocks are free in their lengths.
const RECORDS: u64 = 300;

fn sound() -> &'static [u8] {
    static SOUND: OnceLock<Vec<u8>> = OnceLock::new();
    SOUND.get_or_init(|| {
        let length = |index| if index == 0 { 0 } else { 1000 };
        let entry = |index| IndexEntry::Plain { class: 0, start: 8192 + 1000 * index, length: length(index) };
        let entries: Vec<IndexEntry> = (0..RECORDS).map(entry).collect();
        table::sidecar(&entries)
    })
}

fn read(bytes: Vec<u8>) {
    let Ok(index) = Index::from_bytes(Arc::new(bytes), table::FINGERPRINT) else { return };
    let mut located = Located::default();
    let last = index.samples().saturating_sub(1);
    for ids in [&[SampleId(0)][..], &[SampleId(last), SampleId(last / 2)]] {
        if index.locate(ids, &mut located).is_ok() {
            assert!(table::inside(&located, index.shards()), "places within the file");
        }
    }
}

fn decode(message: &[u8]) {
    for (pixels, shape, bytes) in
        [(Pixels::Uint8, [1, 2, 3], 6), (Pixels::Float32, [1, 2, 3], 24), (Pixels::Encoded, [0; 3], 0)]
    {
        let (mut image, mut label, mut taken) = (vec![0; bytes], [0; 8], 0);
        let mut take = |bytes: &[u8]| taken = bytes.len();
        let image = if bytes == 0 { FieldOut::Ragged(&mut take) } else { FieldOut::Dense(&mut image) };
        let schema = Schema::CaffeDatum(DatumSchema { pixels, shape });
        let _ = schema.decode(&[message], &mut [image, FieldOut::Dense(&mut label)]);
        assert!(taken <= message.len());
    }
}

fuzz_target!(|bytes: &[u8]| {
    let Some((mode, bytes)) = bytes.split_first() else { return };
    match mode % 5 {
        0 => read(bytes.to_vec()),
        1 => {
            if let Some(parts) = Parts::of(bytes) {
                read(parts.join());
            }
        }
        2 => {
            let mut parts = Parts::of(sound()).expect("a sound sidecar");
            parts.blocks[0] = [&[0], bytes].concat();
            read(parts.join());
        }
        3 => {
            let mut parts = Parts::of(sound()).expect("a sound sidecar");
            parts.set_description(bytes);
            read(parts.join());
        }
        _ => decode(bytes),
    }
});
