//! What a directory is: a dataset of some format, or a folder whose files are samples.
//!
//! Files with marks of a format decide at once. Of anything else a folder is made, unless something
//! in it holds many samples: then each file of a dataset would silently be one sample.
//!
//! How far it looks: a million files cannot be opened only to look, on storage where each takes a
//! trip to a server. Names come with the listing. The first bytes are read of files whose names
//! promise many samples, and of the first file of a directory. Of the directories below, up to
//! [`PROBED_DIRECTORIES`] are listed, evenly spread, as far as [`LISTED_ENTRIES`], and in each its
//! first directory down to [`MAX_DEPTH`]. The scan, which lists everything, looks at all names
//! ([`Folder`](super::folder)).

use std::ffi::{OsStr, OsString};
use std::fs::FileType;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::folder::foreign::{self, Foreign};
use super::index_json;
use super::signature::{self, Detected};
use crate::{Error, Format};

/// Files that identify the kind of a directory.
const LMDB: [&str; 2] = ["data.mdb", "lock.mdb"];
const ZARR: [&str; 3] = ["zarr.json", ".zarray", ".zgroup"];

/// A directory in a table of Delta Lake, which says which files are of its latest version.
const DELTA: &str = "_delta_log";

/// The names of what they mark.
const ZARR_ARRAY: &str = "a Zarr array";
const DELTA_TABLE: &str = "a table of Delta Lake: DeltaTable.to_pyarrow_table() has its latest version";

/// Entries of a directory that are listed to find out what it is.
const LISTED_ENTRIES: usize = 1024;

/// Directories of a folder that are looked into.
const PROBED_DIRECTORIES: usize = 8;

/// Directories that are looked into below each other.
const MAX_DEPTH: usize = 4;

/// Files with a telling name of which the first bytes are read, per directory.
const PROBED_FILES: usize = 4;

/// What a directory is.
#[derive(Debug)]
pub(super) enum DirectoryKind {
    Like(Format),
    /// Something that is not read.
    Other(&'static str),
    /// Nothing but what is hidden.
    Empty,
}

/// Finds out what a directory is; an error where it holds many samples, but not as a format of
/// directories.
pub(super) fn detect(path: &Path) -> Result<DirectoryKind, Error> {
    let entries = Entries::list(path)?;
    if let Some(kind) = entries.kind(path)? {
        return Ok(kind);
    }
    if entries.files.is_empty() && entries.directories.is_empty() {
        return Ok(DirectoryKind::Empty);
    }
    // A directory of files that each hold many samples is rather a dataset of these. Files beside
    // directories are no samples: only the first one is looked at.
    let is_flat = entries.directories.is_empty();
    if let Some((name, format)) = entries.first_file(path, |name| is_flat && foreign::is_array(name)) {
        return Err(Error::Usage {
            message: format!(
                "{} may be a folder whose files are samples, or one of {} files of many samples, like {}",
                path.display(),
                format.name(),
                path.join(name).display()
            ),
            hint: format!(
                "name the files, for example {:?}, or pass format=\"folder\"",
                foreign::meant(path, Path::new(name))
            ),
        });
    }
    if is_flat && let Some((name, found)) = entries.foreign(path) {
        return Err(foreign::refuse(path, Path::new(name), found));
    }
    if let Some(error) = entries.refuse_splits(path) {
        return Err(error);
    }
    for name in spread(&entries.directories) {
        // Arrays may be samples, unless the one directory with them would be the only class.
        let may_be_samples = entries.directories.len() > 1;
        refuse_many(path, Path::new(name), may_be_samples, 1)?;
    }
    Ok(DirectoryKind::Like(Format::Folder))
}

/// Refuses a folder for what is in a directory of it.
fn refuse_many(folder: &Path, name: &Path, arrays_may_be: bool, depth: usize) -> Result<(), Error> {
    let path = folder.join(name);
    // A directory that cannot be listed is named by the scan.
    let Ok(entries) = Entries::list(&path) else { return Ok(()) };
    match entries.kind(&path) {
        Ok(Some(DirectoryKind::Like(format))) => {
            return Err(foreign::refuse(folder, name, Foreign::of_many(format)));
        }
        Ok(Some(DirectoryKind::Other(what @ (ZARR_ARRAY | DELTA_TABLE)))) => {
            return Err(foreign::refuse_unread(&path, what));
        }
        // Some other index.json may be a sample.
        _ => {}
    }
    let may_be_sample = |format| arrays_may_be && foreign::may_be_sample(format);
    let first = entries.first_file(&path, |_| false).filter(|(_, format)| !may_be_sample(*format));
    let first = first.map(|(file, format)| (file, Foreign::of_many(format)));
    if let Some((file, found)) = first.or_else(|| entries.foreign(&path)) {
        return Err(foreign::refuse(folder, &name.join(file), found));
    }
    if let Some(error) = entries.refuse_splits(&path) {
        return Err(error);
    }
    match entries.directories.first() {
        Some(first) if depth < MAX_DEPTH => refuse_many(folder, &name.join(first), arrays_may_be, depth + 1),
        _ => Ok(()),
    }
}

/// Up to [`PROBED_DIRECTORIES`] names, evenly spread, the first and the last among them.
fn spread(names: &[OsString]) -> impl Iterator<Item = &OsString> {
    let count = names.len().min(PROBED_DIRECTORIES);
    (0..count).map(move |place| &names[place * (names.len() - 1) / (count - 1).max(1)])
}

/// The first entries of a directory, sorted.
#[derive(Debug, Default)]
struct Entries {
    files: Vec<OsString>,
    directories: Vec<OsString>,
    /// Names of files that identify the kind of the directory.
    marks: Vec<&'static str>,
    /// Whether there are no others.
    is_complete: bool,
}

impl Entries {
    fn list(path: &Path) -> Result<Self, Error> {
        let error =
            |source| Error::Io { action: "list".to_owned(), path: path.to_owned(), offset: None, source };
        let mut found = Self::default();
        let mut listing = path.read_dir().map_err(error)?;
        for entry in listing.by_ref().take(LISTED_ENTRIES).flatten() {
            let name = entry.file_name();
            let mut marks = LMDB.iter().chain(&ZARR).chain(&[index_json::NAME, DELTA]);
            found.marks.extend(marks.find(|mark| name == **mark));
            if name.as_bytes().starts_with(b".") || foreign::is_leftover(name.as_bytes()) {
                continue;
            }
            let is = |kind: fn(&FileType) -> bool, of_link: fn(&Path) -> bool| match entry.file_type() {
                Ok(found) if found.is_symlink() => of_link(&entry.path()),
                found => found.is_ok_and(|found| kind(&found)),
            };
            if is(FileType::is_dir, Path::is_dir) {
                found.directories.push(name);
            } else if is(FileType::is_file, Path::is_file) {
                found.files.push(name);
            }
        }
        found.is_complete = listing.next().is_none();
        found.files.sort();
        found.directories.sort();
        Ok(found)
    }

    fn has(&self, path: &Path, name: &str) -> bool {
        self.marks.contains(&name) || (!self.is_complete && path.join(name).exists())
    }

    /// What the files with marks say.
    fn kind(&self, path: &Path) -> Result<Option<DirectoryKind>, Error> {
        if LMDB.iter().any(|name| self.has(path, name)) {
            return Ok(Some(DirectoryKind::Like(Format::Lmdb)));
        }
        if ZARR.iter().any(|name| self.has(path, name)) {
            return Ok(Some(DirectoryKind::Other(ZARR_ARRAY)));
        }
        if self.has(path, DELTA) {
            return Ok(Some(DirectoryKind::Other(DELTA_TABLE)));
        }
        if !self.has(path, index_json::NAME) || !index_json::is_in(path) {
            return Ok(None);
        }
        let found = index_json::format(path)?;
        Ok(Some(found.map_or(
            DirectoryKind::Other("a directory with an index.json of neither MDS nor LitData"),
            DirectoryKind::Like,
        )))
    }

    /// The first file, or the first whose name is as asked for, if it is of a format; and that
    /// format.
    fn first_file(&self, path: &Path, is_asked: impl Fn(&[u8]) -> bool) -> Option<(&OsStr, Format)> {
        let asked = self.files.iter().find(|name| is_asked(name.as_bytes()));
        let name = asked.or(self.files.first())?;
        // A file that cannot be read is named when it is.
        match signature::file(&path.join(name)) {
            Ok(Detected::Like(format)) => Some((name, format)),
            _ => None,
        }
    }

    /// One of the first files with telling names that is no sample.
    fn foreign(&self, path: &Path) -> Option<(&OsStr, Foreign)> {
        let names = self.files.iter().map(|name| name.as_bytes());
        foreign::suspects(names).take(PROBED_FILES).find_map(|(name, promise)| {
            let name = OsStr::from_bytes(name);
            promise.kept(&path.join(name)).map(|found| (name, found))
        })
    }

    fn refuse_splits(&self, path: &Path) -> Option<Error> {
        foreign::refuse_splits(path, self.directories.iter().map(|name| name.as_bytes()))
    }
}
