//! What the daemon finds of a file of a source.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use forebay_table::{CopyIdentity, Identity, SourceFile};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Statx, StatxFlags, flistxattr, makedev, open, statx};

use crate::daemon::file_store::identity_of;
use crate::source::identity::SourceState;

/// Opens a file to copy it: no link, no pipe, nothing that waits.
pub(super) fn open_source(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
    Ok(open(path, flags, Mode::empty())?)
}

/// Opens a file that a program opened by this path, to copy it, and returns its path without links
/// and `..`. Nothing but plain files is opened: to open a device may change something.
pub(super) fn open_wanted(path: &Path) -> io::Result<(OwnedFd, PathBuf)> {
    let place = open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    if !is_regular(&source_file(place.as_fd())?) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let link = format!("/proc/self/fd/{}", place.as_raw_fd());
    let real = std::fs::read_link(&link)?;
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    Ok((open(link, flags, Mode::empty())?, real))
}

/// What identifies an open file, and all that `stat` shows of it. The time of its last access is
/// not asked for, as FUSE would ask the server.
pub(super) fn source_file(file: BorrowedFd<'_>) -> io::Result<SourceFile> {
    Ok(of_statx(&statx(file, c"", AtFlags::EMPTY_PATH, wanted())?))
}

/// What identifies an open copy.
pub(super) fn copy_identity(file: BorrowedFd<'_>) -> io::Result<CopyIdentity> {
    Ok(identity_of(&rustix::fs::fstat(file)?))
}

/// The same of a name in a directory.
pub(super) fn source_file_at(directory: BorrowedFd<'_>, name: &std::ffi::CStr) -> io::Result<SourceFile> {
    Ok(of_statx(&statx(directory, name, AtFlags::SYMLINK_NOFOLLOW, wanted())?))
}

fn wanted() -> StatxFlags {
    (StatxFlags::BASIC_STATS | StatxFlags::BTIME) - StatxFlags::ATIME
}

fn of_statx(found: &Statx) -> SourceFile {
    let ns = |time: rustix::fs::StatxTimestamp| {
        time.tv_sec.saturating_mul(1_000_000_000).saturating_add(time.tv_nsec.into())
    };
    let told = StatxFlags::from_bits_retain(found.stx_mask);
    SourceFile {
        identity: Identity {
            device: makedev(found.stx_dev_major, found.stx_dev_minor),
            inode: found.stx_ino,
            bytes: found.stx_size,
            modified_ns: ns(found.stx_mtime),
            changed_ns: ns(found.stx_ctime),
        },
        born_ns: told.contains(StatxFlags::BTIME).then(|| ns(found.stx_btime)),
        mode: found.stx_mode.into(),
        user: found.stx_uid,
        group: found.stx_gid,
        links: found.stx_nlink,
        blocks: found.stx_blocks,
        block_bytes: found.stx_blksize.into(),
    }
}

/// Whether it is a plain file.
pub(super) fn is_regular(file: &SourceFile) -> bool {
    FileType::from_raw_mode(file.mode) == FileType::RegularFile
}

/// When its last change was, as copies need it.
pub(super) fn state(file: &SourceFile) -> SourceState {
    let Identity { bytes, modified_ns, changed_ns, .. } = file.identity;
    SourceState { bytes, modified_ns, changed_ns }
}

/// Whether it has attributes that a copy would not show: access lists, and the user's own.
pub(super) fn has_attributes(file: &OwnedFd) -> bool {
    let mut names = [0_u8; 4096];
    match flistxattr(file.as_fd(), &mut names[..]) {
        Ok(length) => names[..length]
            .split(|byte| *byte == 0)
            .any(|name| name.starts_with(b"user.") || name == b"system.posix_acl_access"),
        Err(rustix::io::Errno::RANGE) => true,
        // File systems without attributes.
        Err(_) => false,
    }
}

/// Endings of files that databases keep beside theirs while these are in use.
const DATABASE_LOGS: [&str; 3] = ["-wal", "-shm", "-journal"];

/// The first bytes of a database of `SQLite`.
const SQLITE: &[u8] = b"SQLite format 3\0";

/// Whether a file is, or may be, part of a database that programs change while others read it.
pub(super) fn is_database(file: BorrowedFd<'_>, path: &Path) -> bool {
    let mut first = [0; SQLITE.len()];
    let is_sqlite = rustix::io::pread(file, &mut first[..], 0).is_ok_and(|_| first == SQLITE);
    is_sqlite
        || DATABASE_LOGS.iter().any(|ending| {
            let mut beside = OsString::from(path);
            beside.push(ending);
            rustix::fs::access(beside.as_os_str(), rustix::fs::Access::EXISTS).is_ok()
        })
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};

    use super::*;

    #[test]
    fn a_database_is_known_by_its_first_bytes_and_by_the_log_beside_it() {
        let place = tempfile::tempdir().unwrap();
        let is_found = |name: &str| {
            let path = place.path().join(name);
            is_database(File::open(&path).unwrap().as_fd(), &path)
        };
        fs::write(place.path().join("a"), "SQLite format 3\0 and more").unwrap();
        fs::write(place.path().join("b"), "SQLite").unwrap();
        assert!(is_found("a") && !is_found("b"));
        for ending in DATABASE_LOGS {
            let log = place.path().join(format!("b{ending}"));
            fs::write(&log, "").unwrap();
            assert!(is_found("b"));
            fs::remove_file(log).unwrap();
        }
    }

    #[test]
    fn a_wanted_file_has_its_path_without_links_and_nothing_else_is_opened() {
        let place = tempfile::tempdir().unwrap();
        let at = |name: &str| place.path().canonicalize().unwrap().join(name);
        fs::create_dir(at("d")).unwrap();
        fs::write(at("d/a"), "x").unwrap();
        std::os::unix::fs::symlink("d/a", at("link")).unwrap();
        for name in ["d/a", "link", "d/../link"] {
            assert_eq!(open_wanted(&at(name)).unwrap().1, at("d/a"), "{name}");
        }
        assert!(open_wanted(&at("d")).is_err() && open_wanted(Path::new("/dev/null")).is_err());
    }
}
