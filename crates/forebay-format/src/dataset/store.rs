//! Where sidecars, and other small files about a dataset, are kept, and which ones are trusted.
//!
//! There are two places. Beside the data (`data.mdb.forebay`): written on request only, used if the
//! file belongs to the owner of the data, to root or to the user. In the user's cache directory:
//! used if the directory belongs to the user and is closed to others. Symbolic links to a sidecar
//! or to the cache directory are not followed. A sidecar that cannot be used is skipped with a
//! reason. Its contents are untrusted in any case.
//!
//! A sidecar is written to a temporary file in the same directory, synced and renamed, so a reader
//! finds either the old one or the new one.

use std::ffi::OsString;
use std::fmt;
use std::fs::{self, DirBuilder, File};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;
use xxhash_rust::xxh3::xxh3_128;

use super::Dataset;
use crate::container::folder;
use crate::{Error, Format, OpenOptions, SidecarError};

/// Ending of the names of sidecars.
const SIDECAR_ENDING: &str = "forebay";

/// Largest sidecar that is read, for a dataset of this many records \[bytes\]. Sidecars take 20
/// bytes per record at worst.
const fn most_bytes(records: u64) -> u64 {
    records.saturating_mul(64).saturating_add(64 << 20)
}

/// Which cache directory is used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CachePolicy {
    directory: Option<PathBuf>,
}

/// Location of a sidecar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SidecarLocation {
    /// In the user's cache directory.
    Cache,
    /// Beside the data file, for all users of it.
    Beside,
}

/// A sidecar of a dataset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundSidecar {
    /// The file.
    pub path: PathBuf,
    /// Its location.
    pub place: SidecarLocation,
    /// Its contents, with the right fingerprint and correct checksums.
    pub bytes: Vec<u8>,
}

/// Result of a search for a sidecar.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lookup {
    /// The sidecar, if there is one that can be used.
    pub found: Option<FoundSidecar>,
    /// Why others were skipped.
    pub warnings: Vec<String>,
    /// Sidecars of earlier states of the data, or of an earlier version, in the user's cache
    /// directory: the user has rewritten files or has a newer Forebay, so nothing is wrong.
    pub stale: Vec<String>,
}

impl CachePolicy {
    /// The user's directory: `FOREBAY_CACHE_DIR`, else `forebay` in `XDG_CACHE_HOME`, else in
    /// `~/.cache`; none if no variable names one.
    pub fn from_environment() -> Self {
        let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        // The specification of XDG_CACHE_HOME requires that relative paths are ignored.
        let xdg = variable("XDG_CACHE_HOME").filter(|path| path.is_absolute());
        let directory = variable("FOREBAY_CACHE_DIR")
            .or_else(|| xdg.map(|path| path.join("forebay")))
            .or_else(|| variable("HOME").map(|path| path.join(".cache/forebay")));
        Self { directory }
    }

    /// This directory.
    pub fn at(directory: impl Into<PathBuf>) -> Self {
        Self { directory: Some(directory.into()) }
    }

    /// No cache directory.
    pub fn none() -> Self {
        Self { directory: None }
    }

    /// The directory, if there is one.
    pub fn directory(&self) -> Option<&Path> {
        self.directory.as_deref()
    }

    /// Opens the directory if it is ours and closed to others; `None` where there is none yet.
    fn open(&self) -> Result<Option<OwnedFd>, Error> {
        let Some(path) = &self.directory else { return Ok(None) };
        let refused = |why: String, hint: String| {
            Err(Error::Usage {
                message: format!("{}: not used as cache directory: {why}", path.display()),
                hint,
            })
        };
        let directory = match open_directory(path, OFlags::NOFOLLOW) {
            Ok(directory) => directory,
            Err(Errno::NOENT) => return Ok(None),
            Err(Errno::LOOP | Errno::NOTDIR) => {
                let hint = "name a real directory in FOREBAY_CACHE_DIR".to_owned();
                return refused("it is a symbolic link or no directory".to_owned(), hint);
            }
            Err(errno) => return Err(failed("open the cache directory", path, errno)),
        };
        let status = rustix::fs::fstat(&directory).map_err(|errno| failed("inspect", path, errno))?;
        let user = rustix::process::geteuid().as_raw();
        if status.st_uid != user {
            let hint = "name a directory of your own in FOREBAY_CACHE_DIR".to_owned();
            return refused(format!("it belongs to user {}, not to user {user}", status.st_uid), hint);
        }
        let mode = status.st_mode & 0o777;
        if mode & 0o077 != 0 {
            let hint = format!(
                "close it with `chmod 700 {}`, or name another one in FOREBAY_CACHE_DIR",
                path.display()
            );
            return refused(format!("it is open to others (mode {mode:03o}, expected 700)"), hint);
        }
        Ok(Some(directory))
    }

    /// Opens the directory, made if need be.
    fn open_or_make(&self) -> Result<OwnedFd, Error> {
        let Some(path) = &self.directory else {
            return Err(Error::Usage {
                message: "there is no cache directory to write to".to_owned(),
                hint: "name one in FOREBAY_CACHE_DIR".to_owned(),
            });
        };
        if let Some(directory) = self.open()? {
            return Ok(directory);
        }
        // Missing parent directories are made closed to others as well; existing ones stay as they
        // are.
        match DirBuilder::new().recursive(true).mode(0o700).create(path) {
            Ok(()) => {}
            Err(source) => {
                let action = "make the cache directory".to_owned();
                return Err(Error::Io { action, path: path.clone(), offset: None, source });
            }
        }
        self.open()?.ok_or_else(|| failed("open the cache directory", path, Errno::NOENT))
    }
}

fn open_directory(path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
    rustix::fs::open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | flags, Mode::empty())
}

fn failed(action: &str, path: &Path, errno: Errno) -> Error {
    Error::Io { action: action.to_owned(), path: path.to_owned(), offset: None, source: errno.into() }
}

impl Dataset {
    /// Searches beside the data and in the cache directory. Never fails: what cannot be used is
    /// skipped with a warning.
    pub fn find_sidecar(&self, cache: &CachePolicy) -> Lookup {
        let mut stale = Vec::new();
        let is_earlier = |error: &SidecarError| match error {
            SidecarError::Stale { .. } | SidecarError::Outdated { .. } => true,
            SidecarError::Version { expected, found } => found < expected,
            _ => false,
        };
        let check = |place, path: &Path, bytes| match self.checked_sidecar(bytes) {
            Err(error) if place == SidecarLocation::Cache && is_earlier(&error) => {
                stale.push(format!("{}: sidecar ignored: {error}", path.display()));
                Ok(None)
            }
            checked => checked.map(Some),
        };
        let (found, warnings) = self.find_kept(cache, SIDECAR_ENDING, "sidecar", check);
        let found = found.map(|(path, place, bytes)| FoundSidecar { path, place, bytes });
        Lookup { found, warnings, stale }
    }

    /// Searches for the file of this dataset with this ending: the first one that `check` accepts,
    /// and why others were skipped. One of which `check` returns nothing is skipped without a word.
    /// `what` names the kind of file in messages.
    pub fn find_kept<T, E: fmt::Display>(
        &self,
        cache: &CachePolicy,
        ending: &str,
        what: &str,
        mut check: impl FnMut(SidecarLocation, &Path, Vec<u8>) -> Result<Option<T>, E>,
    ) -> (Option<(PathBuf, SidecarLocation, T)>, Vec<String>) {
        let mut warnings = Vec::new();
        for place in [SidecarLocation::Beside, SidecarLocation::Cache] {
            let path = match self.kept_path(place, cache, ending) {
                Ok(Some(path)) => path,
                Ok(None) => continue,
                Err(error) => {
                    warnings.push(warning(&error));
                    continue;
                }
            };
            match self.read_kept(place, cache, &path, what) {
                Ok(Some(bytes)) => match check(place, &path, bytes) {
                    Ok(Some(checked)) => return (Some((path, place, checked)), warnings),
                    Ok(None) => {}
                    Err(error) => warnings.push(format!("{}: {what} ignored: {error}", path.display())),
                },
                Ok(None) => {}
                Err(reason) => warnings.push(reason),
            }
        }
        (None, warnings)
    }

    /// Writes a sidecar to its place in one step, and returns the file.
    ///
    /// A cache directory that belongs to another user or is open to others is [`Error::Usage`].
    pub fn write_sidecar(
        &self,
        bytes: &[u8],
        place: SidecarLocation,
        cache: &CachePolicy,
    ) -> Result<PathBuf, Error> {
        self.write_kept(bytes, place, cache, SIDECAR_ENDING)
    }

    /// Writes what is kept of this dataset under an ending.
    pub fn write_kept(
        &self,
        bytes: &[u8],
        place: SidecarLocation,
        cache: &CachePolicy,
        ending: &str,
    ) -> Result<PathBuf, Error> {
        let (directory, mode) = match place {
            SidecarLocation::Cache => (cache.open_or_make()?, 0o600),
            SidecarLocation::Beside => {
                let path = self.data_directory();
                let directory = open_directory(path, OFlags::empty())
                    .map_err(|errno| failed("open the directory of the data", path, errno))?;
                (directory, 0o644)
            }
        };
        let path = self.kept_path(place, cache, ending)?.ok_or_else(|| Error::Usage {
            message: "there is no cache directory to write to".to_owned(),
            hint: "name one in FOREBAY_CACHE_DIR".to_owned(),
        })?;
        write_whole(&directory, &path, mode, bytes).map_err(|source| Error::Io {
            action: "write it".to_owned(),
            path: path.clone(),
            offset: None,
            source,
        })?;
        Ok(path)
    }

    /// The directory of the first data file.
    fn data_directory(&self) -> &Path {
        match self.shards[0].path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        }
    }

    /// Where the file of this dataset with an ending is kept; `None` without a cache directory.
    fn kept_path(
        &self,
        place: SidecarLocation,
        cache: &CachePolicy,
        ending: &str,
    ) -> Result<Option<PathBuf>, Error> {
        let mut key = self.options.key(self.format);
        key.push(0);
        match place {
            SidecarLocation::Beside => {
                let file = self.shards[0].path.file_name().unwrap_or_default();
                let mut name = OsString::from(file);
                if self.shards.len() > 1 || self.options != OpenOptions::default() {
                    // Several datasets begin with this file: the plain name belongs to the file
                    // alone.
                    for shard in &self.shards {
                        key.extend(shard.path.file_name().unwrap_or_default().as_bytes());
                        key.push(0);
                    }
                    name.push(format!(".{:016x}", xxh3_128(&key) as u64));
                }
                name.push(".");
                name.push(ending);
                Ok(Some(self.data_directory().join(name)))
            }
            SidecarLocation::Cache => {
                let Some(directory) = &cache.directory else { return Ok(None) };
                for shard in &self.shards {
                    let path = fs::canonicalize(&shard.path).map_err(|source| Error::Io {
                        action: "find the place of".to_owned(),
                        path: shard.path.clone(),
                        offset: None,
                        source,
                    })?;
                    key.extend(path.as_os_str().as_bytes());
                    key.push(0);
                }
                Ok(Some(directory.join(format!("{:032x}.{ending}", xxh3_128(&key)))))
            }
        }
    }

    /// Checks the contents of a sidecar against the files, and its checksums.
    fn checked_sidecar(&self, bytes: Vec<u8>) -> Result<Vec<u8>, SidecarError> {
        let bytes = Arc::new(bytes);
        let index = self.checked_index(Arc::<Vec<u8>>::clone(&bytes))?;
        index.check_blocks()?;
        let folders: Vec<&Path> = self.shards.iter().map(|shard| &*shard.path).collect();
        folder::check_sizes(&index, &folders, self.options.follow_symlinks)?;
        drop(index);
        Ok(Arc::into_inner(bytes).expect("the index is gone"))
    }

    /// Reads a kept file, if its place and owner are trusted. Does not check the contents.
    fn read_kept(
        &self,
        place: SidecarLocation,
        cache: &CachePolicy,
        path: &Path,
        what: &str,
    ) -> Result<Option<Vec<u8>>, String> {
        let ignored = |why: String| format!("{}: {what} ignored: {why}", path.display());
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let opened = match place {
            SidecarLocation::Beside => rustix::fs::open(path, flags, Mode::empty()),
            SidecarLocation::Cache => match cache.open() {
                Ok(Some(directory)) => {
                    let name = path.file_name().unwrap_or_default();
                    rustix::fs::openat(&directory, name, flags, Mode::empty())
                }
                Ok(None) => return Ok(None),
                Err(error) => return Err(warning(&error)),
            },
        };
        let file = match opened {
            Ok(fd) => File::from(fd),
            Err(Errno::NOENT) => return Ok(None),
            Err(Errno::LOOP) => return Err(ignored("it is a symbolic link".to_owned())),
            Err(errno) => return Err(ignored(format!("cannot open it: {}", io::Error::from(errno)))),
        };
        let status = file.metadata().map_err(|error| ignored(format!("cannot inspect it: {error}")))?;
        if !status.is_file() {
            return Err(ignored("it is not a regular file".to_owned()));
        }
        self.check_owner(place, status.uid()).map_err(ignored)?;
        let records: u64 = self.entries().unwrap_or_else(|| match self.format {
            // Only the sidecar knows the files of a folder; their numbers have 32 bits.
            Format::Folder => u64::from(u32::MAX),
            // How many there are is not known: a sample takes a byte at least.
            _ => self.shards.iter().map(|shard| shard.bytes).sum(),
        });
        if status.len() > most_bytes(records) {
            let most = most_bytes(records);
            return Err(ignored(format!("it has {} bytes, at most {most} are plausible", status.len())));
        }
        let mut bytes = Vec::with_capacity(status.len() as usize);
        file.take(most_bytes(records))
            .read_to_end(&mut bytes)
            .map_err(|error| ignored(format!("cannot read it: {error}")))?;
        Ok(Some(bytes))
    }

    /// A sidecar beside the data must belong to a user who could change the data, or to this user.
    fn check_owner(&self, place: SidecarLocation, owner: u32) -> Result<(), String> {
        let user = rustix::process::geteuid().as_raw();
        let data_owner = match place {
            SidecarLocation::Cache => user,
            SidecarLocation::Beside => fs::metadata(&self.shards[0].path).map_or(user, |status| status.uid()),
        };
        let trusted = match place {
            SidecarLocation::Cache => vec![user],
            SidecarLocation::Beside => vec![data_owner, user, 0],
        };
        if trusted.contains(&owner) {
            Ok(())
        } else {
            Err(format!(
                "it belongs to user {owner}, not to the owner of the data ({data_owner}), root or you ({user})"
            ))
        }
    }
}

/// An error as one line.
fn warning(error: &Error) -> String {
    error.hint().map_or_else(|| error.to_string(), |hint| format!("{error}; {hint}"))
}

/// Writes a file in one step: a temporary one beside it, synced, then renamed.
fn write_whole(directory: &OwnedFd, path: &Path, mode: u32, bytes: &[u8]) -> io::Result<()> {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let name = path.file_name().unwrap_or_default();
    let mut temporary = OsString::from(".");
    temporary.push(name);
    temporary.push(format!(".{}.{}.tmp", process::id(), NUMBER.fetch_add(1, Ordering::Relaxed)));
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let written = rustix::fs::openat(directory, &temporary, flags, Mode::from_raw_mode(mode))
        .map_err(io::Error::from)
        .and_then(|fd| {
            let mut file = File::from(fd);
            file.write_all(bytes)?;
            file.sync_all()?;
            rustix::fs::renameat(directory, &temporary, directory, name)?;
            Ok(())
        });
    if written.is_err() {
        // The file may not even be there; what counts is the first error.
        let _ = rustix::fs::unlinkat(directory, &temporary, AtFlags::empty());
        return written;
    }
    // If a directory cannot be synced (some network file systems), the system writes it when it
    // likes.
    let _ = rustix::fs::fsync(directory);
    Ok(())
}
