//! Makes up structures of HDF5 files as `forebay._formats.hdf5_structure` hands them over, and a
//! file for them.

use serde_json::{Value, json};

use super::lmdb_writer::Random;

pub const FILE_BYTES: usize = 20_000;

/// A file whose superblock is sound.
pub fn file() -> Vec<u8> {
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
pub fn dataset(name: &str, item_bytes: u32, shape: &[u64], layout: Value) -> Value {
    let (dtype, numpy) = match item_bytes {
        1 => (json!("uint8"), Value::Null),
        4 => (json!("float32"), Value::Null),
        _ => (Value::Null, json!(format!("|V{item_bytes}"))),
    };
    let fill = vec![7; item_bytes as usize];
    json!({ "name": name, "dtype": dtype, "numpy": numpy, "item_bytes": item_bytes, "shape": shape, "fill": fill, "layout": layout })
}

pub fn filter(id: u32, values: &[u32]) -> Value {
    json!({ "id": id, "name": "", "values": values })
}

/// Places of chunks, one behind the other from `start` on, for the table: every chunk but each
/// seventh is there.
pub fn chunks(table: &mut Vec<u8>, start: u64, count: u64, length: u64, mask: u32) -> u64 {
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
pub fn structure() -> (Value, Vec<u8>) {
    let mut table = Vec::new();
    let compact: Vec<u8> = (0..40).collect();
    table.extend(&compact);
    let rows = chunks(&mut table, 2000, 5, 64 * 4, 0);
    let tiles = chunks(&mut table, 6000, 15, 50, 0);
    let stored = chunks(&mut table, 100, 5, 8 * 5 * 3, 3);
    let chunked = |shape: &[u64], filters: Value, chunks: u64| json!({ "chunked": { "shape": shape, "filters": filters, "chunks": chunks } });
    // Rows of 0 to 12 bytes, and the last one first in the file.
    for row in 0..40 {
        for word in [8000 - 12 * row, row % 4 * 4] {
            table.extend((word as u64).to_le_bytes());
        }
    }
    let mut strings = dataset("strings", 8, &[40], json!({ "contiguous": { "offset": 9000 } }));
    strings["strings"] = json!([[0, 4], [5, 3]]);
    let description = json!({ "datasets": [
        dataset("plain", 4, &[40, 6], json!({ "contiguous": { "offset": 4096 } })),
        dataset("compact", 1, &[40], json!("compact")),
        dataset("missing", 4, &[40, 2, 2], json!("missing")),
        dataset("rows", 4, &[40, 8], chunked(&[8, 8], json!([]), rows)),
        dataset("tiles", 4, &[40, 6], chunked(&[8, 2], json!([filter(2, &[4]), filter(1, &[6])]), tiles)),
        dataset("odd", 5, &[40, 3], chunked(&[8, 3], json!([filter(32000, &[]), filter(3, &[])]), stored)),
        dataset("varying", 4, &[40], json!("rows")),
        strings,
    ] });
    (description, table)
}

pub fn join(description: &Value, table: &[u8]) -> Vec<u8> {
    let text = serde_json::to_vec(description).expect("JSON");
    [&(text.len() as u32).to_le_bytes()[..], &text, table].concat()
}
