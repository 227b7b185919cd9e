//! Structures of HDF5 files, sound and damaged: an index whose places lie in the file, or an error
//! that says what is wrong.
//!
//! h5py finds structures, and is believed as little as a file. Sound ones are made up here; the
//! real thing is compared with h5py in `tests/formats/test_hdf5.py`. Damaged: every number of the
//! description exchanged, bits of the tables and of the superblock flipped, anything cut. 6,000 of
//! them by default, 300,000 with `FOREBAY_LONG_TESTS=1`.

use std::env;
use std::sync::Arc;

use crate::support::hdf5_writer::{FILE_BYTES, dataset, file, filter, join, structure};
use crate::support::lmdb_writer::Random;
use crate::support::table::inside;
use forebay_format::hdf5::index_of_bytes;
use forebay_format::{Error, Index};
use forebay_types::{Located, Piece, SampleId};
use serde_json::{Value, json};

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
    assert_eq!((samples, located.columns()), (40, 8));
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
    assert_eq!(extent(place(9, 6)), (8000 - 12 * 9, 4, 0, 4));
    assert_eq!(extent(place(9, 7)), (9000 + 9 * 8, 8, 0, 8));
}

#[test]
fn refusals_are_told_in_the_words_of_who_found_them() {
    let told = |description: Value| index_of_bytes(file(), &join(&description, &[])).expect_err("refused");
    let error =
        told(json!({ "unsupported": { "what": "virtual data", "found": "a.h5", "hint": "open a.h5" } }));
    assert_eq!(error.to_string(), "memory.h5: not supported: virtual data (a.h5)");
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
