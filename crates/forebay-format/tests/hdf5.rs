//! Structures of HDF5 files, sound and damaged: an index whose places lie in the file, or an error that says what is wrong.
//!
//! h5py finds structures, and is believed as little as a file. Sound ones are made up here; the real thing is compared with h5py in
//! `tests/test_hdf5.py`. Damaged: every number of the description exchanged, bits of the tables and of the superblock flipped, anything
//! cut. 6,000 of them by default, 300,000 with `FOREBAY_LONG_TESTS=1`.

mod support {
    pub mod lmdb_writer;
    #[allow(dead_code, reason = "for sidecars of one column")]
    pub mod table;
}

use std::env;
use std::sync::Arc;

use forebay_format::hdf5::index_of_bytes;
use forebay_format::{Error, Index};
use forebay_types::{Located, Piece, SampleId};
use serde_json::{Value, json};
use support::lmdb_writer::Random;
use support::table::inside;

const FILE_BYTES: usize = 20_000;

/// A file whose superblock is sound.
fn file() -> Vec<u8> {
    let mut file = Random(1).bytes(FILE_BYTES);
    file[..12].copy_from_slice(b"\x89HDF\r\n\x1a\n\x02\x08\x08\x00");
    file[12..36].copy_from_slice(
        &[0, u64::MAX, FILE_BYTES as u64]
            .iter()
            .flat_map(|address: &u64| address.to_le_bytes())
            .collect::<Vec<_>>(),
    );
    file
}

#[allow(clippy::needless_pass_by_value, reason = "layouts are written where they are needed")]
fn dataset(name: &str, item_bytes: u32, shape: &[u64], layout: Value) -> Value {
    let (dtype, numpy) = match item_bytes {
        1 => (json!("uint8"), Value::Null),
        4 => (json!("float32"), Value::Null),
        _ => (Value::Null, json!(format!("|V{item_bytes}"))),
    };
    let fill = vec![7; item_bytes as usize];
    json!({ "name": name, "dtype": dtype, "numpy": numpy, "item_bytes": item_bytes, "shape": shape, "fill": fill, "layout": layout })
}

fn filter(id: u32, values: &[u32]) -> Value {
    json!({ "id": id, "name": "", "values": values })
}

/// Places of chunks, one behind the other from `start` on, for the table: every chunk but each seventh is there.
fn chunks(table: &mut Vec<u8>, start: u64, count: u64, length: u64, mask: u32) -> u64 {
    let mut place = start;
    let mut there = 0;
    for number in (0..count).filter(|number| number % 7 != 3) {
        for word in [number, place, length] {
            table.extend(word.to_le_bytes());
        }
        table.extend(mask.to_le_bytes());
        place += length;
        there += 1;
    }
    there
}

/// A structure with every layout.
fn structure() -> (Value, Vec<u8>) {
    let mut table = Vec::new();
    let compact: Vec<u8> = (0..40).collect();
    table.extend(&compact);
    let rows = chunks(&mut table, 2000, 5, 64 * 4, 0);
    let tiles = chunks(&mut table, 6000, 15, 50, 0);
    let stored = chunks(&mut table, 100, 5, 8 * 5 * 3, 3);
    let chunked = |shape: &[u64], filters: Value, chunks: u64| json!({ "chunked": { "shape": shape, "filters": filters, "chunks": chunks } });
    let description = json!({ "datasets": [
        dataset("plain", 4, &[40, 6], json!({ "contiguous": { "offset": 4096 } })),
        dataset("compact", 1, &[40], json!("compact")),
        dataset("missing", 4, &[40, 2, 2], json!("missing")),
        dataset("rows", 4, &[40, 8], chunked(&[8, 8], json!([]), rows)),
        dataset("tiles", 4, &[40, 6], chunked(&[8, 2], json!([filter(2, &[4]), filter(1, &[6])]), tiles)),
        dataset("odd", 5, &[40, 3], chunked(&[8, 3], json!([filter(32000, &[]), filter(3, &[])]), stored)),
    ] });
    (description, table)
}

fn join(description: &Value, table: &[u8]) -> Vec<u8> {
    let text = serde_json::to_vec(description).expect("JSON");
    [&(text.len() as u32).to_le_bytes()[..], &text, table].concat()
}

/// Locates every sample, and looks where it is.
fn look(bytes: Vec<u8>) -> (u64, Located) {
    let index = Index::from_bytes(Arc::new(bytes), 0).expect("an index just made");
    let ids: Vec<SampleId> = (0..index.samples().min(500)).map(SampleId).collect();
    let mut located = Located::default();
    index.locate(&ids, &mut located).expect("sound blocks");
    assert!(inside(&located, index.shards()));
    (index.samples(), located)
}

#[test]
fn every_layout_is_found_where_the_structure_says() {
    let (description, table) = structure();
    let (samples, located) = look(index_of_bytes(file(), &join(&description, &table)).expect("sound"));
    assert_eq!((samples, located.columns()), (40, 6));
    let place = |position, column| {
        let slice = located.slices(position, column)[0];
        let unit = located.unit_pieces(slice.unit);
        (located.pieces()[unit].first().copied(), slice.offset, slice.length)
    };
    let extent = |found: (Option<Piece>, u64, u64)| match found {
        (Some(Piece::Extent(extent)), offset, length) => (extent.offset, extent.length, offset, length),
        other => panic!("{other:?}"),
    };
    assert_eq!(extent(place(9, 0)), (4096 + 9 * 24, 24, 0, 24));
    assert!(matches!(place(9, 1), (Some(Piece::Literal { length: 1, .. }), 0, 1)));
    assert_eq!(place(9, 2), (None, 0, 16));
    // The row of a stored chunk by itself; of a coded one, the chunk and a slice of it.
    assert_eq!(extent(place(9, 3)), (2000 + 256 + 32, 32, 0, 32));
    assert_eq!(located.slices(9, 4).len(), 3);
    assert_eq!(place(9, 4), (None, 0, 8), "of a chunk that was never written, the row alone");
    assert_eq!(located.slices(9, 4)[1].offset, 8, "of a coded one, its second row");
}

#[test]
fn refusals_are_told_in_the_words_of_who_found_them() {
    let told = |description: Value| index_of_bytes(file(), &join(&description, &[])).expect_err("refused");
    let error =
        told(json!({ "unsupported": { "what": "virtual data", "found": "a.h5", "hint": "open a.h5" } }));
    assert_eq!(error.to_string(), "memory.h5: virtual data is not supported: a.h5");
    assert_eq!(error.hint(), Some("open a.h5"));
    let error = told(json!({ "usage": { "message": "no dataset", "hint": "" } }));
    assert!(matches!(error, Error::Usage { .. }), "{error}");
    let error = told(json!({ "corrupt": { "what": "x", "offset": 7, "expected": "a", "found": "b" } }));
    assert_eq!(error.to_string(), "memory.h5: x at offset 7: expected a, found b");
    assert!(index_of_bytes(file(), &[]).is_err());
    assert!(index_of_bytes(file(), &join(&json!({ "datasets": [] }), &[])).is_err());
}

#[test]
fn shapes_that_take_no_room_in_the_file_are_bounded() {
    let refused = |one: Value| {
        let error = index_of_bytes(file(), &join(&json!({ "datasets": [one] }), &[])).expect_err("too large");
        error.to_string()
    };
    let never = refused(dataset("x", 4, &[1 << 40], json!("missing")));
    assert!(never.contains("never written"), "{never}");
    let chunked = json!({ "chunked": { "shape": [1], "filters": [], "chunks": 0 } });
    assert!(refused(dataset("x", 4, &[1 << 40], chunked)).contains("never written"));
    assert!(refused(dataset("x", 4, &[1 << 40, 0], json!("missing"))).contains("empty"));
    let cut = json!({ "chunked": { "shape": [1, 1], "filters": [], "chunks": 0 } });
    assert!(refused(dataset("x", 1, &[4, 1 << 30], cut)).contains("runs of bytes"));
    let bomb = json!({ "chunked": { "shape": [1_u64 << 40], "filters": [filter(1, &[])], "chunks": 1 } });
    let table: Vec<u8> = [0_u64, 100, 50].iter().flat_map(|word| word.to_le_bytes()).chain([0; 4]).collect();
    let bomb = join(&json!({ "datasets": [dataset("x", 4, &[1 << 40], bomb)] }), &table);
    assert!(index_of_bytes(file(), &bomb).expect_err("a bomb").to_string().contains("what becomes"));
}

#[test]
fn damaged_structures_and_files_are_refused_or_stay_within_the_file() {
    let long = env::var_os("FOREBAY_LONG_TESTS").is_some_and(|value| value == "1");
    let (description, table) = structure();
    let sound = join(&description, &table);
    let text = serde_json::to_string(&description).expect("JSON");
    let mut random = Random(2);
    let (mut refused, mut accepted) = (0, 0);
    for round in 0..if long { 300_000 } else { 6000 } {
        let (mut file, mut bytes) = (file(), sound.clone());
        match round % 6 {
            0 | 1 => bytes = join_text(&exchange_number(&text, &mut random), &table),
            2 => flip(&mut bytes[4 + text.len()..], &mut random),
            3 => flip(&mut bytes, &mut random),
            4 => flip(&mut file[8..40], &mut random),
            _ if random.below(2) == 0 => bytes.truncate(random.below(bytes.len() as u64) as usize),
            _ => file.truncate(random.below(FILE_BYTES as u64) as usize),
        }
        match index_of_bytes(file, &bytes) {
            Ok(index) => {
                look(index);
                accepted += 1;
            }
            Err(Error::Corrupt { .. } | Error::Unsupported { .. } | Error::Usage { .. }) => refused += 1,
            Err(other) => panic!("round {round}: {other}"),
        }
    }
    assert!(refused > accepted && accepted > 300, "{refused} refused, {accepted} accepted");
}

fn join_text(text: &str, table: &[u8]) -> Vec<u8> {
    [&(text.len() as u32).to_le_bytes()[..], text.as_bytes(), table].concat()
}

fn flip(bytes: &mut [u8], random: &mut Random) {
    for _ in 0..=random.below(3) {
        let bit = random.below(8 * bytes.len() as u64);
        bytes[bit as usize / 8] ^= 1 << (bit % 8);
    }
}

/// Puts a hostile number in the place of one that stands in the text.
fn exchange_number(text: &str, random: &mut Random) -> String {
    let bytes = text.as_bytes();
    let starts: Vec<usize> = (1..bytes.len())
        .filter(|at| bytes[*at].is_ascii_digit() && !bytes[*at - 1].is_ascii_digit())
        .collect();
    let start = starts[random.below(starts.len() as u64) as usize];
    let end = (start..bytes.len()).find(|at| !bytes[*at].is_ascii_digit()).unwrap_or(bytes.len());
    let hostile = [0, 1, 2, 3, 5, 39, 41, 255, 1 << 16, 1 << 31, 1 << 32, 1 << 40, 1 << 62, u64::MAX];
    let number = hostile[random.below(hostile.len() as u64) as usize];
    format!("{}{number}{}", &text[..start], &text[end..])
}
