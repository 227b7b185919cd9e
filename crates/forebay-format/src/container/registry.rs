//! The formats: detects that of a file or directory, and opens it.
//!
//! A format that is not read is named in the error; of what has no mark the first bytes are shown.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::Container;
use super::array_record::ArrayRecord;
use super::arrow::ArrowFile;
use super::directory;
use super::folder::Folder;
use super::folder::manifest::ManifestFolder;
use super::hdf5::Hdf5File;
use super::length_delimited::FramedFile;
use super::litdata;
use super::lmdb::Database;
use super::mds;
use super::npy::Arrays;
use super::parquet::ParquetFile;
use super::raw::RawFile;
use super::recordio::RecordIo;
use super::signature::{self, Detected};
use super::tar::TarFile;
use super::tfrecord::TfRecord;
use super::tokens::TokenFile;
use crate::file::Input;
use crate::{Error, Format, OpenOptions};

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
        Format::Folder if options.manifest.is_some() => Arc::new(ManifestFolder::open(path, options)?),
        Format::Folder => Arc::new(Folder::open(path, options)?),
        Format::Arrow => Arc::new(ArrowFile::open(path, options)?),
        Format::Parquet => Arc::new(ParquetFile::open(path, options)?),
    };
    Ok(vec![file])
}

fn shared(files: Vec<impl Container>) -> Vec<Arc<dyn Container>> {
    files.into_iter().map(|file| Arc::new(file) as _).collect()
}

/// The format of all these files: the one that the caller chose, or the one that was detected.
pub(crate) fn detect(paths: &[PathBuf], options: &OpenOptions) -> Result<Format, Error> {
    if let Some(format) = options.format {
        return Ok(format);
    }
    let mut known: Option<(Format, &PathBuf)> = None;
    for path in paths {
        let Some(format) = (if path.is_dir() { directory(path)? } else { file(path)? }) else { continue };
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
        [path] if path.is_dir() => (path, "the directory holds nothing that is not hidden".to_owned()),
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

/// The format of a directory; `None` for one without entries.
fn directory(path: &Path) -> Result<Option<Format>, Error> {
    match directory::detect(path)? {
        directory::DirectoryKind::Like(format) => Ok(Some(format)),
        directory::DirectoryKind::Other(name) => Err(refused(path, format!("it looks like {name}"))),
        directory::DirectoryKind::Empty => Ok(None),
    }
}

/// The format of a file; `None` for one without bytes.
fn file(path: &Path) -> Result<Option<Format>, Error> {
    match signature::file(path)? {
        Detected::Like(format) => Ok(Some(format)),
        Detected::Empty => Ok(None),
        Detected::Other(name) => Err(refused(path, format!("it looks like {name}"))),
        Detected::Compressed(compression) => {
            let found = format!("it looks like a file compressed with {}", compression.name);
            Err(unsupported(path, found, compression.hint(path)))
        }
        Detected::Text(text) => {
            Err(unsupported(path, format!("it looks like {}", text.name()), text.hint(path)))
        }
        Detected::Unknown => {
            Err(refused(path, format!("no format that is read begins with {}", signature::shown(path)?)))
        }
    }
}
