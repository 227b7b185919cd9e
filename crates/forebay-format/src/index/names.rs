//! Which file a sample has, where samples have files of their own.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::sync::Arc;

use forebay_io::{Links, SampleFile, SampleFileTable};
use forebay_types::{SampleId, ShardId};

use super::Index;
use super::cache::{Cache, Held};
use crate::index::sidecar::block::BlockError;
use crate::index::sidecar::names::{Directory, FileNames, decode_directories};
use crate::index::sidecar::{self, Contents, StoredIn};
use crate::{Error, Format, SidecarError};

/// Memory for names in use \[bytes\]: those of a million files, coded.
const NAMES_BYTES: u64 = 16 << 20;

/// Memory that the directories of a dataset may take \[bytes\]; a million of them take half of it.
const MAX_DIRECTORY_BYTES: usize = 256 << 20;

/// The names of a sidecar.
#[derive(Debug)]
pub(super) struct Names {
    /// The column whose records are the files.
    column: usize,
    /// For each shard, which is a folder, its directories.
    directories: Arc<[Vec<Directory>]>,
    cache: Cache<FileNames>,
}

impl Held for FileNames {
    fn bytes(&self) -> u64 {
        self.bytes()
    }
}

impl Names {
    /// Reads the directories; `None` where samples have no files of their own.
    pub(super) fn read(bytes: &[u8], contents: &Contents) -> Result<Option<Self>, SidecarError> {
        let Some(column) = contents.meta.column_of_files() else { return Ok(None) };
        let mut block = contents.first_directory_block();
        let records = u64::from(contents.header.block_records);
        let mut directories = Vec::with_capacity(contents.meta.directories.len());
        let mut held_bytes = 0;
        for count in &contents.meta.directories {
            let mut known = Vec::new();
            while (known.len() as u64) < *count {
                let left = (*count - known.len() as u64).min(records) as usize;
                let stored = contents.stored_block(bytes, block)?;
                let at = |error| contents.block_error(block, error);
                let body = sidecar::unpack_block(stored).map_err(at)?;
                held_bytes += body.len() + left * size_of::<Directory>();
                if held_bytes > MAX_DIRECTORY_BYTES {
                    return Err(at(BlockError::new(
                        "directories",
                        format!("{MAX_DIRECTORY_BYTES} bytes at most"),
                        held_bytes,
                    )));
                }
                decode_directories(&body, left, &mut known).map_err(at)?;
                block += 1;
            }
            directories.push(known);
        }
        let cache = Cache::new(contents.name_blocks as usize, NAMES_BYTES);
        Ok(Some(Self { column, directories: directories.into(), cache }))
    }

    /// [`Index::apart`].
    pub(super) fn apart(&self, contents: &Contents) -> Self {
        let cache = Cache::new(contents.name_blocks as usize, NAMES_BYTES);
        Self { column: self.column, directories: Arc::clone(&self.directories), cache }
    }
}

impl Index {
    /// Whether every sample is a file, whose number in extents is that of the sample.
    pub fn has_sample_files(&self) -> bool {
        self.meta().format == Format::Folder
    }

    /// Size of the file of a sample \[bytes\].
    pub fn file_bytes(&self, file: ShardId) -> Result<u64, Error> {
        let Some(names) = &self.names else { return Err(no_files()) };
        let (block, index) = self.block_of(SampleId(u64::from(file.0)))?;
        let shard = self.shard_of(|shard| shard.first_block <= block);
        let mut bytes = 0;
        self.with_block(names.column, shard, block, |found| {
            let place = found.place(index as usize);
            if !place.is_exception() {
                bytes = place.plain().2;
            }
        })?;
        Ok(bytes)
    }

    /// The file of a sample.
    pub fn sample_file(&self, file: ShardId) -> Result<SampleFile, Error> {
        let Some(names) = &self.names else { return Err(no_files()) };
        let (block, index) = self.block_of(SampleId(u64::from(file.0)))?;
        let shard = self.shard_of(|shard| shard.first_block <= block);
        let directories = &names.directories[shard];
        let contents = &self.contents;
        let number = contents.first_name_block() + block as usize;
        let expand = || {
            let stored = self.stored_block(number)?;
            let body = sidecar::unpack_block(stored).map_err(|error| contents.block_error(number, error))?;
            let records = self.records_of(shard, block);
            FileNames::decode(body.into_owned(), records, directories.len() as u64)
                .map_err(|error| contents.block_error(number, error))
        };
        let found = names.cache.with(block as usize, expand, |found| found.get(index as usize));
        let (directory, name) = found.map_err(|error| self.unusable(error))?;
        let mut path = path_of(directories, directory);
        path.push(OsString::from_vec(name));
        Ok(SampleFile { shard, name: path, bytes: self.file_bytes(file)? })
    }

    /// The directories of a folder, with the folder itself, and the modification time of each
    /// [ns since 1970].
    pub(crate) fn directories(&self, shard: usize) -> impl Iterator<Item = (PathBuf, i64)> {
        let directories = self.names.as_ref().map_or(&[][..], |names| &names.directories[shard]);
        directories
            .iter()
            .enumerate()
            .map(|(number, directory)| (path_of(directories, number as u32), directory.modified_ns))
    }
}

impl SampleFileTable for Index {
    fn len(&self) -> usize {
        self.records() as usize
    }

    fn file(&self, file: ShardId) -> io::Result<SampleFile> {
        self.sample_file(file).map_err(io::Error::other)
    }

    fn file_bytes(&self, file: ShardId) -> io::Result<u64> {
        Index::file_bytes(self, file).map_err(io::Error::other)
    }

    fn links(&self) -> Links {
        self.links
    }
}

/// The way from the folder to a directory.
fn path_of(directories: &[Directory], mut number: u32) -> PathBuf {
    let mut names = Vec::new();
    // Parents have lower numbers, as was checked.
    while number > 0 {
        let directory = &directories[number as usize];
        names.push(OsString::from_vec(directory.name.clone()));
        number = directory.parent;
    }
    names.iter().rev().collect()
}

fn no_files() -> Error {
    Error::Usage {
        message: "the samples of this dataset have no files of their own".to_owned(),
        hint: String::new(),
    }
}

impl sidecar::Meta {
    /// The column whose records are files, if samples have files of their own.
    pub(crate) fn column_of_files(&self) -> Option<usize> {
        self.columns.iter().position(|classes| classes.iter().any(|class| class.stored_in == StoredIn::File))
    }
}
