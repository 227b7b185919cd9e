//! Any bytes as a Parquet file, and as pages of a column of any type.
#![no_main]

mod located;

use forebay_format::codec::{Codec, ParquetColumn, ParquetNulls, decode};
use forebay_format::parquet::index_of_bytes;
use libfuzzer_sys::fuzz_target;

const TYPES: [(&str, u32); 7] = [
    ("BOOLEAN", 1),
    ("INT32", 2),
    ("INT64", 8),
    ("FLOAT", 4),
    ("DOUBLE", 8),
    ("BYTE_ARRAY", 0),
    ("FIXED_LEN_BYTE_ARRAY", 5),
];
const COMPRESSIONS: [&str; 4] = ["UNCOMPRESSED", "SNAPPY", "ZSTD", "LZ4_RAW"];

fuzz_target!(|data: &[u8]| {
    located::locate(data.len() as u64, index_of_bytes(data.to_vec()));
    let [choice, mode, encoded @ ..] = data else { return };
    let (choice, mode) = (*choice, *mode);
    let (physical, item_bytes) = TYPES[usize::from(choice) % TYPES.len()];
    let column = ParquetColumn {
        physical: physical.to_owned(),
        item_bytes,
        compression: COMPRESSIONS[usize::from(choice >> 3) % COMPRESSIONS.len()].to_owned(),
        definition: i16::from(choice >> 5 & 3),
        repetition: i16::from(choice >> 7),
        always_compressed: mode & 1 != 0,
        nulls: match mode >> 1 & 3 {
            0 | 1 => ParquetNulls::None,
            2 => ParquetNulls::Zeros,
            _ => ParquetNulls::Mask(i16::from(mode >> 3 & 3)),
        },
    };
    let _ = decode(&[Codec::Parquet(column)], encoded, &mut vec![0; usize::from(choice) * 16]);
});
