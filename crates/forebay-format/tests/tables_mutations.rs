//! Damaged Arrow and Parquet files: an error, or rows whose bytes lie within the file.
//!
//! The sound files are written by `scripts/golden_tables.py` with pyarrow. Neither format has
//! checksums that are always there, so damage may also change values.
//!
//! 3,600 files by default, 240,000 with `FOREBAY_LONG_TESTS=1`.

use std::path::Path;
use std::sync::Arc;

use crate::support::lmdb_writer::Random;
use forebay_format::{Error, Index, arrow, parquet};
use forebay_types::{CodecChain, Located, Piece, SampleId, Slice};

/// Rows of each golden file.
const ROWS: u64 = 12;

type IndexOf = fn(Vec<u8>) -> Result<Vec<u8>, Error>;

/// Name, bytes and reader of each golden file.
fn golden() -> Vec<(String, Vec<u8>, IndexOf)> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/tables");
    let mut found: Vec<_> = std::fs::read_dir(directory)
        .expect("the golden tables")
        .map(|entry| {
            let path = entry.expect("an entry").path();
            let is_arrow = path.extension().is_some_and(|suffix| suffix == "arrow");
            let index: IndexOf = if is_arrow { arrow::index_of_bytes } else { parquet::index_of_bytes };
            (path.display().to_string(), std::fs::read(&path).expect("a golden table"), index)
        })
        .collect();
    found.sort_by(|left, right| left.0.cmp(&right.0));
    found
}

/// Number of rows; locates all, decodes each unit and checks that all extents lie in the file.
fn read(file: &[u8], index: IndexOf) -> Result<u64, Error> {
    let index = Index::from_bytes(Arc::new(index(file.to_vec())?), 0).expect("an index just made");
    let ids: Vec<SampleId> = (0..index.samples().min(64)).map(SampleId).collect();
    let mut located = Located::default();
    index.locate(&ids, &mut located).expect("sound blocks");
    for (number, unit) in located.units().iter().enumerate() {
        for piece in &located.pieces()[located.unit_pieces(number as u32)] {
            let Piece::Extent(extent) = piece else { continue };
            assert!(extent.end() <= file.len() as u64, "an extent within the file");
            if unit.codecs != CodecChain::STORED && unit.decoded_bytes < 1 << 20 {
                let encoded = &file[extent.offset as usize..extent.end() as usize];
                let _ = index.decode_unit(unit.codecs, encoded, &mut vec![0; unit.decoded_bytes as usize]);
            }
        }
    }
    Ok(index.samples())
}

/// The bytes of each column of a row, as `scripts/golden_tables.py` chose the values.
fn expected(row: u64) -> Vec<Vec<u8>> {
    vec![
        (row as i16).to_le_bytes().to_vec(),
        row.to_string().repeat(row as usize % 4).into_bytes(),
        vec![u8::from(row.is_multiple_of(3))],
        (0..(row % 3) as i32).flat_map(i32::to_le_bytes).collect(),
        [row as f32, 0.0 - row as f32].into_iter().flat_map(f32::to_le_bytes).collect(),
        vec![b"ab"[row as usize % 2]],
        vec![row as u8; row as usize],
        row.to_le_bytes().to_vec(),
    ]
}

/// The bytes of each column of a row, decoded.
fn columns(file: &[u8], index: &Index, row: u64) -> Vec<Vec<u8>> {
    let mut located = Located::default();
    index.locate(&[SampleId(row)], &mut located).expect("a row");
    let decoded = |number: u32| {
        let unit = &located.units()[number as usize];
        let encoded: Vec<u8> = located.pieces()[located.unit_pieces(number)]
            .iter()
            .flat_map(|piece| match piece {
                Piece::Extent(extent) => &file[extent.offset as usize..extent.end() as usize],
                Piece::Literal { .. } => panic!("bytes that are in no file"),
            })
            .copied()
            .collect();
        let mut bytes = vec![0; unit.decoded_bytes as usize];
        index.decode_unit(unit.codecs, &encoded, &mut bytes).expect("sound units");
        bytes
    };
    (0..located.columns())
        .map(|column| {
            let slices = located.slices(0, column);
            let bytes = |slice: &Slice| {
                decoded(slice.unit)[slice.offset as usize..][..slice.length as usize].to_vec()
            };
            slices.iter().flat_map(bytes).collect()
        })
        .collect()
}

#[test]
fn sound_tables_have_all_rows_with_their_values() {
    let files = golden();
    assert_eq!(files.len(), 12);
    for (name, bytes, index) in files {
        assert_eq!(read(&bytes, index).expect(&name), ROWS, "{name}");
        let index = Index::from_bytes(Arc::new(index(bytes.clone()).expect(&name)), 0).expect(&name);
        let names: Vec<&str> = index.fields().iter().map(|field| field.name.as_str()).collect();
        assert_eq!(names, ["number", "text", "flag", "list", "pair", "label", "image", "time"], "{name}");
        for row in 0..ROWS {
            assert_eq!(columns(&bytes, &index, row), expected(row), "{name}, row {row}");
        }
    }
}

#[test]
fn damaged_tables_are_refused_or_read_within_the_file() {
    let rounds = if std::env::var_os("FOREBAY_LONG_TESTS").is_some() { 20_000 } else { 300 };
    let mut refused = 0;
    for (seed, (_, sound, index)) in golden().into_iter().enumerate() {
        let mut random = Random(seed as u64);
        for round in 0..rounds {
            let mut bytes = sound.clone();
            if round % 4 == 0 {
                bytes.truncate(random.below(sound.len() as u64) as usize);
            } else {
                for _ in 0..=random.below(4) {
                    let place = random.below(sound.len() as u64) as usize;
                    // Numbers at the bounds of their types do more than random ones.
                    let values = [0, 1, 0x7f, 0x80, 0xff, random.below(256) as u8];
                    bytes[place] = values[random.below(6) as usize];
                }
            }
            refused += u64::from(read(&bytes, index).is_err());
        }
    }
    assert!(refused > 100, "{refused}");
}
