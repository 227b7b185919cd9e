//! Finds all files of the sources, in the order of their paths.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::thread::Builder;

use forebay_table::SourceFile;
use rustix::fs::{Dir, FileType, Mode, OFlags, open};

use super::copiers::FileKey;
use super::file_facts::{is_regular, source_file, source_file_at};

const THREADS: usize = 4;

/// A file of a source.
#[derive(Clone, Debug)]
pub(super) struct ScannedFile {
    /// Number of the source.
    pub(super) root: usize,
    /// Below the source; empty if the source is the file.
    pub(super) path: PathBuf,
    pub(super) file: SourceFile,
}

/// How far a scan is.
#[derive(Default)]
pub(super) struct Scanned {
    pub(super) files: AtomicU64,
    pub(super) bytes: AtomicU64,
}

/// What a scan comes to.
#[derive(Default)]
pub(super) struct Scan {
    pub(super) files: Vec<ScannedFile>,
    /// Files outside of the sources to which links within lead.
    pub(super) outside: Vec<FileKey>,
    /// The first file or directory that could not be read.
    pub(super) problem: Option<String>,
}

/// Directories that are still to be read.
struct Work {
    directories: Vec<(usize, PathBuf)>,
    busy: usize,
}

/// All plain files below these directories; links are not followed. What cannot be read is left
/// out.
pub(super) fn scan(roots: &[PathBuf], scanned: &Scanned, is_ended: &AtomicBool) -> Scan {
    let mut results = Scan::default();
    let mut work = Work { directories: Vec::new(), busy: 0 };
    for (root, path) in roots.iter().enumerate() {
        match one(path) {
            Ok(Some(file)) => results.files.push(ScannedFile { root, path: PathBuf::new(), file }),
            Ok(None) => work.directories.push((root, PathBuf::new())),
            Err(error) => results.problem = Some(format!("{}: {error}", path.display())),
        }
    }
    let (work, wake) = (Mutex::new(work), Condvar::new());
    let results = Mutex::new(results);
    let read_directories = || {
        while let Some((root, directory)) = next(&work, &wake, is_ended) {
            let mut listed = Listed::default();
            let read = list(&roots[root], root, &directory, &mut listed, scanned);
            let outside: Vec<FileKey> = listed.links.iter().filter_map(|link| outside(link, roots)).collect();
            {
                let mut results = results.lock().unwrap_or_else(PoisonError::into_inner);
                results.files.append(&mut listed.files);
                results.outside.extend(outside);
                if let Err(error) = read {
                    let path = roots[root].join(&directory);
                    results.problem.get_or_insert(format!("{}: {error}", path.display()));
                }
            }
            let mut work = work.lock().unwrap_or_else(PoisonError::into_inner);
            work.directories.append(&mut listed.directories);
            work.busy -= 1;
            wake.notify_all();
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..THREADS {
            // Fewer threads do the same.
            let _ = Builder::new().name("forebay-scan".into()).spawn_scoped(scope, read_directories);
        }
        read_directories();
    });
    let mut results = results.into_inner().unwrap_or_else(PoisonError::into_inner);
    results.files.sort_unstable_by(|one, other| (one.root, &one.path).cmp(&(other.root, &other.path)));
    results
}

/// The file or directory outside of the sources to which a link leads.
fn outside(link: &Path, roots: &[PathBuf]) -> Option<FileKey> {
    let target = link.canonicalize().ok()?;
    if roots.iter().any(|root| target.starts_with(root)) {
        return None;
    }
    let found = target.metadata().ok()?;
    Some((found.dev(), found.ino()))
}

/// The next directory; none when all are read.
fn next(work: &Mutex<Work>, wake: &Condvar, is_ended: &AtomicBool) -> Option<(usize, PathBuf)> {
    let mut guard = work.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        if is_ended.load(Ordering::Relaxed) {
            return None;
        }
        if let Some(directory) = guard.directories.pop() {
            guard.busy += 1;
            return Some(directory);
        }
        if guard.busy == 0 {
            wake.notify_all();
            return None;
        }
        guard = wake.wait(guard).unwrap_or_else(PoisonError::into_inner);
    }
}

/// The source itself, if it is a file.
fn one(path: &Path) -> io::Result<Option<SourceFile>> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let file: OwnedFd = open(path, flags, Mode::empty())?;
    let found = source_file(file.as_fd())?;
    Ok(is_regular(&found).then_some(found))
}

/// What a directory has.
#[derive(Default)]
struct Listed {
    files: Vec<ScannedFile>,
    directories: Vec<(usize, PathBuf)>,
    links: Vec<PathBuf>,
}

fn list(
    root_path: &Path,
    root: usize,
    directory: &Path,
    listed: &mut Listed,
    scanned: &Scanned,
) -> io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let opened = open(root_path.join(directory), flags, Mode::empty())?;
    for entry in Dir::read_from(&opened)? {
        let entry = entry?;
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        let path = directory.join(std::ffi::OsStr::from_bytes(name.to_bytes()));
        match entry.file_type() {
            FileType::Directory => listed.directories.push((root, path)),
            FileType::Symlink => listed.links.push(root_path.join(path)),
            FileType::RegularFile | FileType::Unknown => {
                let name = CString::from(name);
                let Ok(file) = source_file_at(opened.as_fd(), &name) else { continue };
                if FileType::from_raw_mode(file.mode) == FileType::Directory {
                    listed.directories.push((root, path));
                } else if is_regular(&file) {
                    scanned.files.fetch_add(1, Ordering::Relaxed);
                    scanned.bytes.fetch_add(file.identity.bytes, Ordering::Relaxed);
                    listed.files.push(ScannedFile { root, path, file });
                }
            }
            _ => {}
        }
    }
    Ok(())
}
