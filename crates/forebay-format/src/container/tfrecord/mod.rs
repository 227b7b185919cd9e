//! `TFRecord`: records back to back, each with its length before it and checksums of both.
//!
//! A record is `u64 length`, `u32 masked crc32c of the length`, the data,
//! `u32 masked crc32c of the data`, all little-endian. [`walk`] goes from header to header and
//! checks the checksum of every length; it does not read the data and their checksums.
//! [`check_record`] checks one record's data. The layout to the byte is `docs/formats/tfrecord.md`.
//! Source: `TensorFlow`'s "`TFRecord` and tf.train.Example".

mod framing;

pub use crate::unit_check::tfrecord::{HEAD_BYTES, TAIL_BYTES, check_record, length_of, masked_crc32c};
pub(crate) use framing::TfRecord;

use crate::Error;
use crate::file::HeaderScan;
use crate::file::Input;
use crate::index::sidecar::{IndexEntry, RecordClass};

/// How the records of a file lie.
pub(crate) fn class() -> RecordClass {
    RecordClass { head_bytes: HEAD_BYTES, tail_bytes: TAIL_BYTES, ..RecordClass::tight("record") }
}

/// Goes from header to header of a file; `each` gets the location of every record, as a plain entry
/// of class 0.
///
/// Fails where the checksum of a length is wrong or a record does not end within the file
/// ([`Error::Corrupt`]), and where the file is compressed as a whole ([`Error::Unsupported`]).
pub fn walk(
    input: &Input,
    progress: &dyn Fn(u64) -> bool,
    each: &mut dyn FnMut(IndexEntry) -> Result<(), Error>,
) -> Result<(), Error> {
    let mut headers = HeaderScan::new(input, progress);
    let mut at = 0;
    while at < input.bytes() {
        let (length, end) = record_at(&mut headers, at)?;
        each(IndexEntry::Plain { class: 0, start: at, length })?;
        at = end;
    }
    Ok(())
}

/// Reads the header at `at`: the length of the record, and where it ends, checksum included.
fn record_at(headers: &mut HeaderScan<'_>, at: u64) -> Result<(u64, u64), Error> {
    let input = headers.input();
    let left = input.bytes() - at;
    let least = u64::from(HEAD_BYTES + TAIL_BYTES);
    let header = headers.get::<{ HEAD_BYTES as usize }>(at, "TFRecord: header of a record");
    // What is compressed may be shorter than a header: the compression is named all the same.
    let Some(length) = header.as_ref().ok().and_then(length_of) else {
        if at == 0
            && let Some(error) = compressed(headers)?
        {
            return Err(error);
        }
        let header = header?;
        let (length, stored) = header.split_at(8);
        let stored = u32::from_le_bytes(*stored.first_chunk().expect("4 bytes"));
        let expected = format!("{:#010x}", masked_crc32c(length));
        let what = "TFRecord: checksum of the length of a record";
        return Err(input.corrupt(at, what, expected, format!("{stored:#010x}")));
    };
    match length.checked_add(least) {
        Some(bytes) if bytes <= left => Ok((length, at + bytes)),
        _ => {
            let found = format!("{length} bytes and {left} bytes to the end of the file");
            let expected = format!("at most {} bytes of data", left.saturating_sub(least));
            Err(input.corrupt(at, "TFRecord: length of a record", expected, found))
        }
    }
}

/// The error of a file that is compressed as a whole, if this one is.
fn compressed(headers: &mut HeaderScan<'_>) -> Result<Option<Error>, Error> {
    if headers.input().bytes() < 2 {
        return Ok(None);
    }
    let (name, option, hint) = match headers.get::<2>(0, "TFRecord: first bytes")? {
        [0x1f, 0x8b] => ("gzip", "GZIP", "decompress it with `gunzip`"),
        // The window's size and the level are arbitrary; their sum with 256 times the first byte is
        // a multiple of 31.
        [0x78, 0x01 | 0x5e | 0x9c | 0xda] => ("zlib", "ZLIB", "decompress it with `zlib-flate -uncompress`"),
        _ => return Ok(None),
    };
    Ok(Some(headers.input().unsupported(
        "a TFRecord file that is compressed as a whole",
        format!("{name} (TFRecordOptions(compression_type=\"{option}\"))"),
        format!("its records cannot be read one by one; {hint}, or write it without compression"),
    )))
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use super::*;

    fn record(data: &[u8]) -> Vec<u8> {
        let length = (data.len() as u64).to_le_bytes();
        [&length, &masked_crc32c(&length).to_le_bytes()[..], data, &masked_crc32c(data).to_le_bytes()]
            .concat()
    }

    fn input(file: &[u8]) -> Input {
        Input::from_source(Path::new("x"), Arc::new(file.to_vec())).expect("a file in memory")
    }

    fn places(file: &[u8]) -> Result<Vec<(u64, u64)>, String> {
        let mut places = Vec::new();
        walk(&input(file), &|_| true, &mut |entry| {
            let IndexEntry::Plain { class: 0, start, length } = entry else { panic!("plain") };
            places.push((start, length));
            Ok(())
        })
        .map_err(|error| error.to_string())?;
        Ok(places)
    }

    #[test]
    fn the_checksum_is_that_of_other_writers() {
        // The header of a record of 5 bytes, from a file of TensorFlow's own writer.
        assert_eq!(masked_crc32c(&5_u64.to_le_bytes()).to_le_bytes(), [0xea, 0xb2, 0x04, 0x3e]);
    }

    #[test]
    fn records_are_found_in_order() {
        let file = [record(b"first"), record(b""), record(&vec![7; 300_000]), record(b"last")].concat();
        assert_eq!(places(&file), Ok(vec![(0, 5), (21, 0), (37, 300_000), (300_053, 4)]));
        assert_eq!(places(&[]), Ok(vec![]), "an empty file holds no records");
        assert!(check_record(&file[300_053..], 300_053, Path::new("x")).is_ok());
    }

    #[test]
    fn damage_is_named_with_its_place() {
        let file = [record(b"first"), record(b"second")].concat();
        for (cut, text) in [
            (
                file.len() - 1,
                "x: TFRecord: length of a record at offset 21: expected at most 5 bytes of data, found 6 bytes and 21 bytes to the end",
            ),
            (
                30,
                "x: TFRecord: header of a record at offset 21: expected 12 bytes, found the end of the file after 9 bytes",
            ),
            (1, "x: TFRecord: header of a record at offset 0: expected 12 bytes"),
        ] {
            let error = places(&file[..cut]).expect_err("cut");
            assert!(error.starts_with(text), "{error}");
        }
        let mut flipped = file.clone();
        flipped[21] ^= 1;
        let error = places(&flipped).expect_err("another length");
        assert!(
            error.starts_with("x: TFRecord: checksum of the length of a record at offset 21: expected 0x"),
            "{error}"
        );
        let hostile = u64::MAX.to_le_bytes();
        let hostile = [&hostile, &masked_crc32c(&hostile).to_le_bytes()[..], &[0; 99]].concat();
        let error = places(&hostile).expect_err("a hostile length");
        assert!(
            error.contains("expected at most 95 bytes of data, found 18446744073709551615 bytes"),
            "{error}"
        );
        let mut flipped = record(b"data");
        flipped[13] ^= 1;
        let error = check_record(&flipped, 100, Path::new("x")).expect_err("other data").to_string();
        assert!(
            error.starts_with("x: TFRecord: checksum of the data of a record at offset 116: expected 0x"),
            "{error}"
        );
        let error = check_record(&flipped[..19], 100, Path::new("x")).expect_err("short").to_string();
        assert!(
            error.contains("length of a record at offset 100: expected 3 bytes, found 4 bytes"),
            "{error}"
        );
    }

    #[test]
    fn compressed_files_are_named_with_the_way_out() {
        for (head, name) in [([0x1f, 0x8b], "gzip"), ([0x78, 0x9c], "zlib"), ([0x78, 0x01], "zlib")] {
            for length in [2, 5, 100] {
                let mut file = vec![0; length];
                file[..2].copy_from_slice(&head);
                let error = walk(&input(&file), &|_| true, &mut |_| Ok(()));
                let Err(Error::Unsupported { found, hint, .. }) = error else { panic!("{error:?}") };
                assert!(found.starts_with(name) && hint.contains("decompress"), "{found}");
            }
        }
    }
}
