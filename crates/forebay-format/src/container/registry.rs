//! The formats: detects the format of a file from its first bytes, and opens it.
//!
//! A format that is not read is named in the error; of what has no mark the first bytes are shown.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::Container;
use super::array_record::ArrayRecord;
use super::arrow::{self, ArrowFile};
use super::folder::Folder;
use super::hdf5::{self, Hdf5File};
use super::index_json;
use super::length_delimited::FramedFile;
use super::litdata;
use super::lmdb::Database;
use super::mds;
use super::npy::Arrays;
use super::parquet::ParquetFile;
use super::raw::RawFile;
use super::recordio::RecordIo;
use super::tar::{self, TarFile};
use super::tfrecord::{self, TfRecord};
use super::tokens::TokenFile;
use crate::error::hex;
use crate::file::{Compression, Input};
use crate::{Error, Format, OpenOptions};

/// Bytes that are read to detect the format: tar has its mark at 257.
const HEAD_BYTES: usize = 600;

/// Bytes that are shown of what has no mark.
const SHOWN_BYTES: usize = 16;

/// LMDB's magic number in both byte orders, and its possible offsets \[bytes\].
const LMDB_MAGIC: [[u8; 4]; 2] = [[0xde, 0xc0, 0xef, 0xbe], [0xbe, 0xef, 0xc0, 0xde]];
const LMDB_MAGIC_AT: [usize; 3] = [12, 16, 24];

/// Marks of formats: name, place, bytes, and the format, where it is one that is read.
const MARKS: [(&str, usize, &[u8], Option<Format>); 20] = [
    ("HDF5", 0, b"\x89HDF\r\n\x1a\n", Some(Format::Hdf5)),
    ("HDF5 (with a user block)", 512, b"\x89HDF\r\n\x1a\n", Some(Format::Hdf5)),
    ("a numpy array (npy)", 0, b"\x93NUMPY", Some(Format::Npy)),
    ("a zip archive (npz)", 0, b"PK\x03\x04", Some(Format::Npz)),
    ("an empty zip archive (npz)", 0, b"PK\x05\x06", Some(Format::Npz)),
    ("MXNet RecordIO", 0, b"\x0a\x23\xd7\xce", Some(Format::RecordIo)),
    ("a tar archive", 257, b"ustar", Some(Format::Tar)),
    ("a zlib stream", 0, b"\x78\x9c", None),
    ("a zlib stream", 0, b"\x78\x01", None),
    ("a zlib stream", 0, b"\x78\x5e", None),
    ("a zlib stream", 0, b"\x78\xda", None),
    ("Parquet", 0, b"PAR1", Some(Format::Parquet)),
    ("Parquet with an encrypted footer", 0, b"PARE", None),
    ("an Arrow file", 0, b"ARROW1", Some(Format::Arrow)),
    ("Feather, version 1", 0, b"FEA1", None),
    ("ArrayRecord", 0, b"\x83\xaf\x70\xd1\x0d\x88\x4a\x3f", Some(Format::ArrayRecord)),
    ("SQLite", 0, b"SQLite format 3\0", None),
    ("a JPEG image", 0, b"\xff\xd8\xff", None),
    ("a PNG image", 0, b"\x89PNG\r\n\x1a\n", None),
    ("a sidecar of Forebay", 0, b"\x8fFOREBAY", None),
];

/// Files that identify the kind of a directory.
const DIRECTORY_MARKS: [(&str, &str); 2] = [("zarr.json", "a Zarr array"), (".zarray", "a Zarr array")];

/// Entries of a directory that are checked to find out whether its files hold one sample each.
const PROBED_ENTRIES: usize = 64;

/// Opens a file, or the files that a directory lists.
pub(crate) fn open(
    format: Format,
    path: &Path,
    options: &OpenOptions,
) -> Result<Vec<Arc<dyn Container>>, Error> {
    let file: Arc<dyn Container> = match format {
        Format::ArrayRecord => Arc::new(ArrayRecord::open(path)?),
        Format::Lmdb => Arc::new(Database::open(path, options.database.as_deref())?),
        Format::LitData => return Ok(shared(litdata::open(path, options)?)),
        Format::Mds => return Ok(shared(mds::open(path, options)?)),
        Format::Tokens => return Ok(shared(TokenFile::open(path, options)?)),
        Format::Npy => Arc::new(Arrays::npy(Input::open(path)?, &options.fields, options.sample_axis)?),
        Format::Npz => Arc::new(Arrays::npz(Input::open(path)?, &options.fields, options.sample_axis)?),
        Format::Raw => Arc::new(RawFile::open(path, options)?),
        Format::RecordIo => Arc::new(FramedFile::<RecordIo>::open(path)?),
        Format::TfRecord => Arc::new(FramedFile::<TfRecord>::open(path)?),
        Format::Hdf5 => Arc::new(Hdf5File::open(path, options)?),
        Format::Tar => Arc::new(TarFile::open(path, options)?),
        Format::Folder => Arc::new(Folder::open(path, options)?),
        Format::Arrow => Arc::new(ArrowFile::open(path, options)?),
        Format::Parquet => Arc::new(ParquetFile::open(path, options)?),
    };
    Ok(vec![file])
}

fn shared(files: Vec<impl Container>) -> Vec<Arc<dyn Container>> {
    files.into_iter().map(|file| Arc::new(file) as _).collect()
}

/// Apparent format of a file or directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Detected {
    Like(Format),
    /// Something that is not read.
    Other(&'static str),
    /// A file that is compressed as a whole.
    Compressed(&'static Compression),
    Unknown,
    /// No bytes at all: a shard without records, whose format follows from the other shards.
    Empty,
}

/// The format of all these files: the one that the caller chose, or the one that was detected.
pub(crate) fn detect(paths: &[PathBuf], options: &OpenOptions) -> Result<Format, Error> {
    if let Some(format) = options.format {
        return Ok(format);
    }
    let mut known: Option<(Format, &PathBuf)> = None;
    for path in paths {
        let looks = if path.is_dir() { directory(path)? } else { file(path)? };
        let format = match looks {
            Detected::Like(format) => format,
            Detected::Empty => continue,
            Detected::Other(name) => return Err(refused(path, format!("it looks like {name}"))),
            Detected::Compressed(compression) => {
                let found = format!("it looks like a file compressed with {}", compression.name);
                return Err(unsupported(path, found, compression.hint(path)));
            }
            Detected::Unknown => return Err(refused(path, begin(path)?)),
        };
        match known {
            None => known = Some((format, path)),
            Some((first, _)) if first == format => {}
            Some((first, first_path)) => {
                let message = format!(
                    "{} is {}, {} is {}",
                    first_path.display(),
                    first.name(),
                    path.display(),
                    format.name()
                );
                let hint = "the files of a dataset are of one format".to_owned();
                return Err(Error::Usage { message, hint });
            }
        }
    }
    known.map(|(format, _)| format).ok_or_else(|| empty(paths))
}

/// Files without bytes have no format, unless the caller states it.
fn empty(paths: &[PathBuf]) -> Error {
    let (path, found) = match paths {
        [path] => (path, "the file is empty".to_owned()),
        paths => (&paths[0], format!("all {} files are empty", paths.len())),
    };
    let hint = "write or copy it again, or state its format with format=".to_owned();
    Error::Unsupported { path: path.clone(), what: "a dataset without samples".to_owned(), found, hint }
}

fn refused(path: &Path, found: String) -> Error {
    let formats = Format::ALL.map(Format::name).join(", ");
    unsupported(path, found, format!("formats that are read: {formats}; format= names the one that it is"))
}

fn unsupported(path: &Path, found: String, hint: String) -> Error {
    Error::Unsupported { path: path.to_owned(), what: "this format".to_owned(), found, hint }
}

/// What there is where nothing has a mark.
fn begin(path: &Path) -> Result<String, Error> {
    if path.is_dir() {
        return Ok("the directory holds nothing that is not hidden".to_owned());
    }
    let mut head = [0; SHOWN_BYTES];
    let count = Input::open(path)?.read_most(0, &mut head)?;
    Ok(format!("no format that is read begins with {}", hex(&head[..count])))
}

fn directory(path: &Path) -> Result<Detected, Error> {
    if ["data.mdb", "lock.mdb"].iter().any(|file| path.join(file).exists()) {
        return Ok(Detected::Like(Format::Lmdb));
    }
    if let Some((_, name)) = DIRECTORY_MARKS.iter().find(|(file, _)| path.join(file).exists()) {
        return Ok(Detected::Other(name));
    }
    if index_json::is_in(path) {
        let found = index_json::format(path)?;
        return Ok(found.map_or(
            Detected::Other("a directory with an index.json of neither MDS nor LitData"),
            Detected::Like,
        ));
    }
    let visible = visible(path)?;
    if visible.is_empty() {
        return Ok(Detected::Unknown);
    }
    // A directory of files that each hold many samples is rather a data set of these.
    if let Some(first) = visible.into_iter().filter(|path| path.is_file()).min()
        && let Detected::Like(format) = file(&first)?
    {
        return Err(Error::Usage {
            message: format!(
                "{} may be a folder whose files are samples, or one of {} files of many samples, like {}",
                path.display(),
                format.name(),
                first.display()
            ),
            hint: format!("name the files, for example \"{}/*\", or pass format=\"folder\"", path.display()),
        });
    }
    Ok(Detected::Like(Format::Folder))
}

/// The first entries of a directory but hidden ones, in no order.
fn visible(directory: &Path) -> Result<Vec<PathBuf>, Error> {
    let entries = directory.read_dir().map_err(|source| Error::Io {
        action: "list".to_owned(),
        path: directory.to_owned(),
        offset: None,
        source,
    })?;
    let visible = entries.flatten().filter(|entry| !entry.file_name().as_bytes().starts_with(b"."));
    Ok(visible.take(PROBED_ENTRIES).map(|entry| entry.path()).collect())
}

fn file(path: &Path) -> Result<Detected, Error> {
    let mut head = [0; HEAD_BYTES];
    let input = Input::open(path)?;
    let count = input.read_most(0, &mut head)?;
    let looks = if count == 0 { Detected::Empty } else { looks(&head[..count]) };
    // A user block may hold anything; if its contents look like a format, that format is taken.
    Ok(if looks != Detected::Unknown {
        looks
    } else if hdf5::signature(&input)?.is_some() {
        Detected::Like(Format::Hdf5)
    } else if mds::is_shard(&input) {
        Detected::Like(Format::Mds)
    } else {
        Detected::Unknown
    })
}

/// What these first bytes of a file look like.
fn looks(head: &[u8]) -> Detected {
    let has = |at: usize, mark: &[u8]| head.get(at..at + mark.len()).is_some_and(|found| found == mark);
    if LMDB_MAGIC_AT.iter().any(|at| LMDB_MAGIC.iter().any(|magic| has(*at, magic))) {
        return Detected::Like(Format::Lmdb);
    }
    if let Some((name, _, _, format)) = MARKS.iter().find(|(_, at, mark, _)| has(*at, mark)) {
        return format.map_or(Detected::Other(name), Detected::Like);
    }
    if let Some(compression) = Compression::of(head) {
        return Detected::Compressed(compression);
    }
    if tar::is_header(head) {
        return Detected::Like(Format::Tar);
    }
    if arrow::is_stream(head) {
        return Detected::Like(Format::Arrow);
    }
    if is_tfrecord(head) { Detected::Like(Format::TfRecord) } else { Detected::Unknown }
}

/// `TFRecord` has no mark, but a checksum follows the first eight bytes.
fn is_tfrecord(head: &[u8]) -> bool {
    head.first_chunk().is_some_and(|header| tfrecord::length_of(header).is_some())
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
    }

    #[test]
    fn tfrecord_is_known_by_its_first_checksum() {
        let length = 5_u64.to_le_bytes();
        let masked = tfrecord::masked_crc32c(&length);
        assert_eq!(looks(&[&length[..], &masked.to_le_bytes()].concat()), Detected::Like(Format::TfRecord));
        assert_eq!(looks(&[&length[..], &(masked ^ 1).to_le_bytes()].concat()), Detected::Unknown);
    }
}
