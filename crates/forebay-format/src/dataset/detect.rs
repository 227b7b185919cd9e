//! Tells other formats apart by their first bytes, so that the message says what the file is.
//!
//! Only names things; what an LMDB file is, the LMDB reader decides.

use std::io::ErrorKind;
use std::path::Path;

use crate::Error;
use crate::lmdb::{DataFile, Source};

/// Bytes that are looked at: tar has its mark at 257.
const HEAD_BYTES: usize = 600;

/// LMDB's magic number in both byte orders, and where it may stand \[bytes\].
const LMDB_MAGIC: [[u8; 4]; 2] = [[0xde, 0xc0, 0xef, 0xbe], [0xbe, 0xef, 0xc0, 0xde]];
const LMDB_MAGIC_AT: [usize; 3] = [12, 16, 24];

/// Marks of other formats: name, place, bytes.
const MARKS: [(&str, usize, &[u8]); 17] = [
    ("HDF5", 0, b"\x89HDF\r\n\x1a\n"),
    ("HDF5 (with a user block)", 512, b"\x89HDF\r\n\x1a\n"),
    ("a numpy array (npy)", 0, b"\x93NUMPY"),
    ("a zip archive (npz)", 0, b"PK\x03\x04"),
    ("MXNet RecordIO", 0, b"\x0a\x23\xd7\xce"),
    ("a tar archive", 257, b"ustar"),
    ("a gzip file", 0, b"\x1f\x8b"),
    ("a zstd file", 0, b"\x28\xb5\x2f\xfd"),
    ("a bzip2 file", 0, b"BZh"),
    ("an xz file", 0, b"\xfd7zXZ\0"),
    ("Parquet", 0, b"PAR1"),
    ("an Arrow file", 0, b"ARROW1"),
    ("Riegeli or ArrayRecord", 0, b"\x83\xaf\x70\xd1\x0d\x88\x4a\x3f"),
    ("SQLite", 0, b"SQLite format 3\0"),
    ("a JPEG image", 0, b"\xff\xd8\xff"),
    ("a PNG image", 0, b"\x89PNG\r\n\x1a\n"),
    ("a sidecar of Forebay", 0, b"\x8fFOREBAY"),
];

/// Files that tell what a directory is.
const DIRECTORY_MARKS: [(&str, &str); 3] =
    [("zarr.json", "a Zarr array"), (".zarray", "a Zarr array"), ("index.json", "MDS or LitData")];

/// Refuses a file or directory that is evidently something else than LMDB, naming it.
pub(super) fn refuse_others(path: &Path) -> Result<(), Error> {
    let other = if path.is_dir() { other_directory(path) } else { other_file(path)? };
    other.map_or(Ok(()), |name| {
        Err(Error::Unsupported {
            path: path.to_owned(),
            what: "a format other than LMDB".to_owned(),
            found: format!("it looks like {name}"),
            hint: "this version reads LMDB: the directory that holds data.mdb, or the data file".to_owned(),
        })
    })
}

fn other_directory(path: &Path) -> Option<&'static str> {
    if path.join("data.mdb").exists() {
        return None;
    }
    DIRECTORY_MARKS.iter().find(|(file, _)| path.join(file).exists()).map(|(_, name)| *name)
}

fn other_file(path: &Path) -> Result<Option<&'static str>, Error> {
    let file = DataFile::open(path)?;
    let mut head = [0; HEAD_BYTES];
    let mut count = 0;
    loop {
        match file.pread(count as u64, &mut head[count..]) {
            Ok(0) => return Ok(name_of(&head[..count])),
            Ok(more) => count += more,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(source) => {
                let action = format!("read {HEAD_BYTES} bytes");
                return Err(Error::Io { action, path: path.to_owned(), offset: Some(0), source });
            }
        }
    }
}

/// The format whose marks stand in these first bytes of a file; `None` for LMDB and for the unknown.
fn name_of(head: &[u8]) -> Option<&'static str> {
    let has = |at: usize, mark: &[u8]| head.get(at..at + mark.len()).is_some_and(|found| found == mark);
    if LMDB_MAGIC_AT.iter().any(|at| LMDB_MAGIC.iter().any(|magic| has(*at, magic))) {
        return None;
    }
    if let Some((name, ..)) = MARKS.iter().find(|(_, at, mark)| has(*at, mark)) {
        return Some(name);
    }
    is_tfrecord(head).then_some("TFRecord")
}

/// `TFRecord` has no mark, but the first eight bytes have a checksum behind them.
fn is_tfrecord(head: &[u8]) -> bool {
    let Some((length, rest)) = head.split_at_checked(8) else { return false };
    let Some(stored) = rest.first_chunk::<4>() else { return false };
    let masked = crc32c::crc32c(length).rotate_right(15).wrapping_add(0xa282_ead8);
    u32::from_le_bytes(*stored) == masked
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_are_told_apart_by_their_first_bytes() {
        for (name, at, mark) in MARKS {
            let mut head = vec![b'.'; HEAD_BYTES];
            head[at..at + mark.len()].copy_from_slice(mark);
            assert_eq!(name_of(&head), Some(name));
        }
        assert_eq!(name_of(b"PK"), None, "a mark that is cut is no mark");
        assert_eq!(name_of(&[]), None);
        assert_eq!(name_of(&[0; 600]), None);
        let mut database = vec![0; 600];
        database[16..20].copy_from_slice(&LMDB_MAGIC[0]);
        assert_eq!(name_of(&database), None);
    }

    #[test]
    fn tfrecord_is_known_by_its_first_checksum() {
        let length = 5_u64.to_le_bytes();
        let masked = crc32c::crc32c(&length).rotate_right(15).wrapping_add(0xa282_ead8);
        assert_eq!(name_of(&[&length[..], &masked.to_le_bytes()].concat()), Some("TFRecord"));
        assert_eq!(name_of(&[&length[..], &(masked ^ 1).to_le_bytes()].concat()), None);
    }
}
