//! What the first bytes of a file show: its format, or what it is instead.
//!
//! Most formats have a mark. `TFRecord` and old tar files have a checksum instead, MDS a table, and
//! text has letters. Marks of two bytes come last: anything may begin with them.

use std::path::Path;

use flate2::{Decompress, FlushDecompress};

use super::arrow;
use super::hdf5;
use super::mds;
use super::tar;
use super::tfrecord;
use crate::error::hex;
use crate::file::{Compression, Input, Text};
use crate::{Error, Format};

/// Bytes that are read to detect the format: tar has its mark at 257.
pub(crate) const HEAD_BYTES: usize = 600;

/// Bytes that are shown of what has no mark.
const SHOWN_BYTES: usize = 16;

/// LMDB's magic number in both byte orders, and its possible offsets \[bytes\].
const LMDB_MAGIC: [[u8; 4]; 2] = [[0xde, 0xc0, 0xef, 0xbe], [0xbe, 0xef, 0xc0, 0xde]];
const LMDB_MAGIC_AT: [usize; 3] = [12, 16, 24];

/// Marks of formats: name, place, bytes, and the format, where it is one that is read.
const MARKS: [(&str, usize, &[u8], Option<Format>); 29] = [
    ("HDF5", 0, b"\x89HDF\r\n\x1a\n", Some(Format::Hdf5)),
    ("HDF5 (with a user block)", 512, b"\x89HDF\r\n\x1a\n", Some(Format::Hdf5)),
    ("a numpy array (npy)", 0, b"\x93NUMPY", Some(Format::Npy)),
    ("a zip archive (npz)", 0, b"PK\x03\x04", Some(Format::Npz)),
    ("an empty zip archive (npz)", 0, b"PK\x05\x06", Some(Format::Npz)),
    ("MXNet RecordIO", 0, b"\x0a\x23\xd7\xce", Some(Format::RecordIo)),
    ("a tar archive", 257, b"ustar", Some(Format::Tar)),
    ("Parquet", 0, b"PAR1", Some(Format::Parquet)),
    ("Parquet with an encrypted footer", 0, b"PARE", Some(Format::Parquet)),
    ("an Arrow file", 0, b"ARROW1", Some(Format::Arrow)),
    ("Feather, version 1", 0, b"FEA1", None),
    ("ArrayRecord", 0, b"\x83\xaf\x70\xd1\x0d\x88\x4a\x3f", Some(Format::ArrayRecord)),
    ("SQLite", 0, b"SQLite format 3\0", None),
    ("a JPEG image", 0, b"\xff\xd8\xff", None),
    ("a PNG image", 0, b"\x89PNG\r\n\x1a\n", None),
    ("a GIF image", 0, b"GIF8", None),
    ("a RIFF file (WAV, WebP, AVI)", 0, b"RIFF", None),
    ("HDF4", 0, b"\x0e\x03\x13\x01", None),
    ("netCDF, version 3", 0, b"CDF\x01", None),
    ("netCDF, version 3", 0, b"CDF\x02", None),
    ("netCDF, version 3", 0, b"CDF\x05", None),
    ("Avro", 0, b"Obj\x01", None),
    ("a model file (GGUF)", 0, b"GGUF", None),
    ("a pickle of Python", 0, b"\x80\x04\x95", None),
    ("a pickle of torch", 0, b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46", None),
    ("an index of Megatron-LM", 0, b"MMIDIDX\0\0", None),
    ("a program or library (ELF)", 0, b"\x7fELF", None),
    ("a document (PDF)", 0, b"%PDF-", None),
    ("a sidecar of Forebay", 0, b"\x8fFOREBAY", None),
];

/// Bytes that are decoded to see whether the rest fits to that mark \[bytes\].
const ZLIB_DECODED_BYTES: usize = 64 << 10;

/// First bytes of zlib streams: two bytes, so that other formats are tried before.
const ZLIB: [[u8; 2]; 4] = [[0x78, 0x9c], [0x78, 0x01], [0x78, 0x5e], [0x78, 0xda]];

/// Longest header of safetensors \[bytes\], as its library has it.
const MAX_SAFETENSORS_HEADER_BYTES: u64 = 100_000_000;

/// Apparent format of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Detected {
    Like(Format),
    /// Something that is not read.
    Other(&'static str),
    /// A file that is compressed as a whole.
    Compressed(&'static Compression),
    /// Letters in lines.
    Text(Text),
    Unknown,
    /// No bytes at all: a shard without records, whose format follows from the other shards.
    Empty,
}

/// What a file looks like.
pub(crate) fn file(path: &Path) -> Result<Detected, Error> {
    of(&Input::open(path)?)
}

/// The same of an open one.
pub(crate) fn of(input: &Input) -> Result<Detected, Error> {
    let mut head = [0; HEAD_BYTES];
    let count = input.read_most(0, &mut head)?;
    let head = &head[..count];
    if head.is_empty() {
        return Ok(Detected::Empty);
    }
    let looks = looks(head);
    // A user block may hold anything; if its contents look like a format, that format is taken.
    Ok(if looks != Detected::Unknown {
        looks
    } else if hdf5::signature(input)?.is_some() {
        Detected::Like(Format::Hdf5)
    } else if mds::is_shard(input) {
        Detected::Like(Format::Mds)
    } else if head.iter().all(|byte| *byte == 0) && tar::is_archive_of_nothing(input)? {
        Detected::Like(Format::Tar)
    } else if arrow::is_stream_of_any_layout(input)? {
        Detected::Like(Format::Arrow)
    } else {
        vaguely(head)
    })
}

/// What these first bytes of a file look like, by marks and checksums of at least three bytes.
pub(crate) fn looks(head: &[u8]) -> Detected {
    let has = |at: usize, mark: &[u8]| head.get(at..at + mark.len()).is_some_and(|found| found == mark);
    // Its first bytes are a length, which may look like any short mark.
    if is_tfrecord(head) {
        return Detected::Like(Format::TfRecord);
    }
    if LMDB_MAGIC_AT.iter().any(|at| LMDB_MAGIC.iter().any(|magic| has(*at, magic))) {
        return Detected::Like(Format::Lmdb);
    }
    if let Some((name, _, _, format)) = MARKS.iter().find(|(_, at, mark, _)| has(*at, mark)) {
        return format.map_or(Detected::Other(name), Detected::Like);
    }
    if let Some(compression) = Compression::of(head) {
        return Detected::Compressed(compression);
    }
    if is_safetensors(head) {
        return Detected::Other("a model file (safetensors)");
    }
    if tar::is_header(head) {
        return Detected::Like(Format::Tar);
    }
    if arrow::is_stream(head) { Detected::Like(Format::Arrow) } else { Detected::Unknown }
}

/// The same by what has no mark to speak of.
fn vaguely(head: &[u8]) -> Detected {
    if is_zlib(head) {
        return Detected::Other("a zlib stream");
    }
    match Text::of(head) {
        Some(text) => Detected::Text(text),
        None if head.starts_with(b"ORC") => Detected::Other("ORC"),
        None if is_utf_16(head) => Detected::Other("text in UTF-16"),
        None => Detected::Unknown,
    }
}

/// Text in UTF-16 has a mark of two bytes, and then letters.
fn is_utf_16(head: &[u8]) -> bool {
    let (text, unit): (_, fn([u8; 2]) -> u16) = match head {
        [0xff, 0xfe, text @ ..] => (text, u16::from_le_bytes),
        [0xfe, 0xff, text @ ..] => (text, u16::from_be_bytes),
        _ => return false,
    };
    let mut units: Vec<u16> = text.as_chunks().0.iter().map(|pair| unit(*pair)).collect();
    // The last character may be cut.
    units.pop_if(|last| (0xd800..0xdc00).contains(last));
    let is_letter = |letter: char| !letter.is_control() || letter.is_ascii_whitespace();
    String::from_utf16(&units).is_ok_and(|text| !text.is_empty() && text.chars().all(is_letter))
}

/// `TFRecord` has no mark, but a checksum follows the first eight bytes.
fn is_tfrecord(head: &[u8]) -> bool {
    head.first_chunk().is_some_and(|header| tfrecord::length_of(header).is_some())
}

/// A zlib stream has a mark of two bytes, and then something that can be decoded.
fn is_zlib(head: &[u8]) -> bool {
    let mut decoded = vec![0; ZLIB_DECODED_BYTES];
    ZLIB.iter().any(|mark| head.starts_with(mark))
        && Decompress::new(true).decompress(head, &mut decoded, FlushDecompress::None).is_ok()
}

/// Safetensors begin with the length of an object of JSON.
fn is_safetensors(head: &[u8]) -> bool {
    let Some((length, rest)) = head.split_first_chunk() else { return false };
    let length = u64::from_le_bytes(*length);
    (2..=MAX_SAFETENSORS_HEADER_BYTES).contains(&length) && rest.starts_with(b"{\"")
}

/// The first bytes of a file, for a message.
pub(crate) fn shown(path: &Path) -> Result<String, Error> {
    let mut head = [0; SHOWN_BYTES];
    let count = Input::open(path)?.read_most(0, &mut head)?;
    Ok(hex(&head[..count]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_are_told_apart_by_their_first_bytes() {
        for (name, at, mark, format) in MARKS {
            let mut head = vec![b'.'; HEAD_BYTES];
            head[at..at + mark.len()].copy_from_slice(mark);
            assert_eq!(looks(&head), format.map_or(Detected::Other(name), Detected::Like));
        }
        assert_eq!(looks(b"PK"), Detected::Unknown, "a mark that is cut is no mark");
        assert_eq!(looks(&[]), Detected::Unknown);
        assert_eq!(looks(&[0; 600]), Detected::Unknown);
        let mut database = vec![0; 600];
        database[16..20].copy_from_slice(&LMDB_MAGIC[0]);
        assert_eq!(looks(&database), Detected::Like(Format::Lmdb));
        let model = [&64_u64.to_le_bytes()[..], b"{\"__metadata__\":"].concat();
        assert_eq!(looks(&model), Detected::Other("a model file (safetensors)"));
    }

    #[test]
    fn zlib_is_known_by_more_than_two_bytes() {
        let mut stream = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::default());
        std::io::Write::write_all(&mut stream, &[7; 100]).expect("memory");
        let stream = stream.finish().expect("memory");
        assert_eq!(vaguely(&stream), Detected::Other("a zlib stream"));
        let tokens: Vec<u8> = [0x9c78_u16, 17, 9, 40_000, 3].iter().flat_map(|id| id.to_le_bytes()).collect();
        assert_eq!(vaguely(&tokens), Detected::Unknown);
    }

    #[test]
    fn orc_and_utf_16_are_told_apart_from_text_and_tokens() {
        let utf_16: Vec<u8> =
            "\u{feff}It was a dark night.\n".encode_utf16().flat_map(u16::to_le_bytes).collect();
        assert_eq!(vaguely(&utf_16), Detected::Other("text in UTF-16"));
        let tokens: Vec<u8> = [0xfeff_u16, 0xd801, 7, 300].iter().flat_map(|id| id.to_le_bytes()).collect();
        assert_eq!(vaguely(&tokens), Detected::Unknown);
        assert_eq!(vaguely(b"ORC\x0a\x11\x00\xff"), Detected::Other("ORC"));
        assert_eq!(vaguely(b"ORCHARD\n"), Detected::Text(Text::Plain));
    }

    #[test]
    fn tfrecord_is_known_by_its_first_checksum_whatever_the_length_looks_like() {
        // Lengths that begin like zlib and gzip.
        for length in [5_u64, 0x178, 0x9c78, 0x8_8b1f] {
            let length = length.to_le_bytes();
            let masked = tfrecord::masked_crc32c(&length);
            let head = |masked: u32| [&length[..], &masked.to_le_bytes()].concat();
            assert_eq!(looks(&head(masked)), Detected::Like(Format::TfRecord));
            assert_ne!(looks(&head(masked ^ 1)), Detected::Like(Format::TfRecord));
        }
    }
}
