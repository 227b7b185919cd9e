//! The directory of a level: `TIER/forebay-UID/v1/{lock, log, slabs/}`, for its user alone.
//!
//! Below the tier itself no symbolic link is followed: each directory is opened by its name in the
//! one above, inspected, and only then used.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use forebay_io::file_system;
use forebay_plan::options::TierSpec;
use rustix::fs::{Access, AtFlags, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{Flock, FlockType};

use crate::error::TierError;
use crate::level::directory_checks::{check_file_system, check_private, unmade, unopened};

const VERSION: &str = "v1";
const SLABS: &str = "slabs";
const LOCK: &str = "lock";

const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);
/// Opens a link itself, and what nobody may read.
const ENTRY: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// An open level directory.
#[derive(Debug)]
pub struct TierDirectory {
    /// Its path.
    pub path: PathBuf,
    /// It.
    pub directory: OwnedFd,
    /// Its slabs.
    pub slabs: OwnedFd,
    /// Device and inode.
    pub identity: (u64, u64),
    /// Whether nothing can be written there.
    pub is_read_only: bool,
}

impl TierDirectory {
    /// Opens the directory of a tier, and makes what is missing of it.
    ///
    /// # Errors
    /// A tier that is no directory, is on a network file system, or whose directory is not this
    /// user's alone.
    pub fn open(spec: &TierSpec) -> Result<Self, TierError> {
        let tier =
            rustix::fs::open(&spec.path, DIRECTORY, Mode::empty()).map_err(|errno| unopened(spec, errno))?;
        let kind = file_system(&tier).map_err(TierError::io(&spec.path, "inspect the file system"))?;
        check_file_system(spec, &kind)?;
        let own_path = spec.path.join(format!("forebay-{}", rustix::process::geteuid().as_raw()));
        let path = own_path.join(VERSION);
        let own = enter(spec, &tier, &own_path)?;
        let directory = enter(spec, &own, &path)?;
        let slabs = enter(spec, &directory, &path.join(SLABS))?;
        let stat = rustix::fs::fstat(&directory).map_err(TierError::io(&path, "inspect"))?;
        let is_read_only =
            rustix::fs::accessat(&directory, ".", Access::WRITE_OK, AtFlags::empty()) == Err(Errno::ROFS);
        Ok(Self { path, directory, slabs, identity: (stat.st_dev, stat.st_ino), is_read_only })
    }

    /// Takes the lock of the level for a daemon. It ends with the process, or when the descriptor
    /// is closed.
    ///
    /// # Errors
    /// Another process has the lock, or the file cannot be opened or locked.
    pub fn lock(&self, spec: &TierSpec) -> Result<OwnedFd, TierError> {
        if self.is_read_only {
            return self.directory.try_clone().map_err(TierError::io(&self.path, "open"));
        }
        let path = self.path.join(LOCK);
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = rustix::fs::openat(self.directory.as_fd(), LOCK, flags, Mode::RUSR | Mode::WUSR)
            .map_err(TierError::io(&path, "open the lock"))?;
        loop {
            return match rustix::fs::fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => Ok(file),
                Err(Errno::AGAIN | Errno::ACCESS) => Err(TierError::of_tier(
                    spec,
                    format!("expected a tier that no other daemon uses, found {}", holder(&file)),
                    "give each node, and each FOREBAY_RUNTIME_DIR, a tier of its own",
                )),
                Err(Errno::INTR) => continue,
                Err(errno) => Err(TierError::io(&path, "lock")(errno)),
            };
        }
    }
}

/// The process that holds the lock, as far as this node knows.
fn holder(file: &OwnedFd) -> String {
    let found = rustix::process::fcntl_getlk(file, &Flock::from(FlockType::WriteLock));
    match found.ok().flatten().and_then(|lock| lock.pid) {
        Some(pid) => format!("one in process {}", pid.as_raw_nonzero()),
        None => "one of another node or container".into(),
    }
}

/// Opens a directory by its name in the one above, and makes it where it is missing.
fn enter(spec: &TierSpec, above: &OwnedFd, path: &Path) -> Result<OwnedFd, TierError> {
    let name = path.file_name().expect("directories of a tier have names");
    match rustix::fs::mkdirat(above, name, Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(errno) => return Err(unmade(spec, path, errno)),
    }
    let failed = |action| TierError::io(path, action);
    let entry = rustix::fs::openat(above, name, ENTRY, Mode::empty()).map_err(failed("open"))?;
    check_private(spec, path, &rustix::fs::fstat(&entry).map_err(failed("inspect"))?)?;
    rustix::fs::openat(&entry, ".", DIRECTORY, Mode::empty()).map_err(failed("open the directory"))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
    use std::os::unix::process::CommandExt;
    use std::process::{Command, Stdio};

    use super::*;
    use crate::level::own_mounts::{bind, bind_read_only, with_own_mounts};

    const SIZE: u64 = 8 << 20;

    fn tier(path: &Path) -> TierSpec {
        TierSpec { path: path.to_owned(), bytes: SIZE, keep: false, force: false }
    }

    fn open(path: &Path) -> Result<TierDirectory, TierError> {
        TierDirectory::open(&tier(path))
    }

    fn own_name() -> String {
        format!("forebay-{}", rustix::process::geteuid().as_raw())
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().mode() & 0o777
    }

    fn assert_refused<T: std::fmt::Debug>(result: Result<T, TierError>, path: &Path) {
        match result {
            Err(TierError::Tier { tier, .. }) => assert_eq!(tier, path.display().to_string()),
            other => panic!("expected a refusal, found {other:?}"),
        }
    }

    #[test]
    fn directories_are_made_for_the_user_alone_and_found_again() {
        let place = tempfile::tempdir().unwrap();
        let made = open(place.path()).unwrap();
        let own = place.path().join(own_name());
        for path in [&own, &own.join("v1"), &own.join("v1/slabs")] {
            assert_eq!(mode(path), 0o700, "{}", path.display());
        }
        assert_eq!((made.path.as_path(), made.is_read_only), (own.join("v1").as_path(), false));
        let link = place.path().join("link");
        symlink(place.path(), &link).unwrap();
        assert_eq!(open(&link).unwrap().identity, made.identity);
    }

    #[test]
    fn what_other_versions_and_others_put_there_stays() {
        let place = tempfile::tempdir().unwrap();
        open(place.path()).unwrap();
        let own = place.path().join(own_name());
        fs::create_dir(own.join("v2")).unwrap();
        let strangers = ["v2/log", "v1/notes", "v1/slabs/notes"].map(|name| own.join(name));
        for path in &strangers {
            fs::write(path, "mine").unwrap();
        }
        open(place.path()).unwrap();
        assert!(strangers.iter().all(|path| fs::read(path).unwrap() == b"mine"));
    }

    #[test]
    fn what_is_no_directory_is_refused() {
        let place = tempfile::tempdir().unwrap();
        let path = |name: &str| place.path().join(name);
        fs::write(path("file"), "").unwrap();
        symlink(path("loop"), path("loop")).unwrap();
        for name in ["missing", "file", "loop"] {
            assert_refused(open(&path(name)), &path(name));
        }
        assert!(!path("missing").exists());
    }

    #[test]
    fn links_files_and_open_modes_within_a_tier_are_refused() {
        for below in ["", "/v1", "/v1/slabs"] {
            let place = tempfile::tempdir().unwrap();
            open(place.path()).unwrap();
            let path = place.path().join(own_name() + below);
            for open_to_others in [0o710, 0o702, 0o777] {
                fs::set_permissions(&path, fs::Permissions::from_mode(open_to_others)).unwrap();
                assert_refused(open(place.path()), place.path());
            }
            fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
            open(place.path()).unwrap();
            let elsewhere = place.path().join("elsewhere");
            fs::rename(&path, &elsewhere).unwrap();
            symlink(&elsewhere, &path).unwrap();
            assert_refused(open(place.path()), place.path());
            fs::remove_file(&path).unwrap();
            fs::write(&path, "").unwrap();
            assert_refused(open(place.path()), place.path());
        }
    }

    #[test]
    fn a_directory_of_another_user_is_refused() {
        let place = tempfile::tempdir().unwrap();
        open(place.path()).unwrap();
        if chown(place.path().join(own_name()), Some(65_534), None).is_err() {
            eprintln!("skipped: only root can give a directory away");
            return;
        }
        assert_refused(open(place.path()), place.path());
    }

    #[test]
    fn a_tier_that_the_user_may_not_write_to_is_refused() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("closed");
        fs::create_dir(&path).unwrap();
        fs::set_permissions(place.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let as_nobody = move || {
            let user: libc::uid_t = 65_534;
            // SAFETY: it changes the user of this thread alone.
            if unsafe { libc::syscall(libc::SYS_setresuid, user, user, user) } != 0 {
                eprintln!("skipped: only root can act as another user");
                return;
            }
            assert_refused(open(&path), &path);
            assert!(fs::read_dir(&path).unwrap().next().is_none());
        };
        std::thread::spawn(as_nobody).join().unwrap();
    }

    #[test]
    fn a_read_only_tier_serves_what_it_has() {
        with_own_mounts(|| {
            let place = tempfile::tempdir().unwrap();
            let (disk, mounted) = (place.path().join("disk"), place.path().join("mounted"));
            fs::create_dir(&disk).unwrap();
            fs::create_dir(&mounted).unwrap();
            bind_read_only(&disk, &mounted);
            assert_refused(open(&mounted), &mounted);
            let made = open(&disk).unwrap();
            let found = open(&mounted).unwrap();
            assert!(found.is_read_only && !made.is_read_only);
            assert_eq!(found.identity, made.identity);
            found.lock(&tier(&mounted)).unwrap();
        });
    }

    #[test]
    fn a_tier_is_the_same_through_a_bind_mount() {
        with_own_mounts(|| {
            let place = tempfile::tempdir().unwrap();
            let (disk, mounted) = (place.path().join("disk"), place.path().join("mounted"));
            fs::create_dir(&disk).unwrap();
            fs::create_dir(&mounted).unwrap();
            bind(&disk, &mounted);
            assert_eq!(open(&disk).unwrap().identity, open(&mounted).unwrap().identity);
        });
    }

    #[test]
    fn a_lock_keeps_other_processes_out_until_it_ends() {
        let place = tempfile::tempdir().unwrap();
        let spec = tier(place.path());
        let opened = open(place.path()).unwrap();
        let path = opened.path.join(LOCK);
        drop(opened.lock(&spec).unwrap());
        let mut command = Command::new("cat");
        command.stdin(Stdio::piped());
        let hold = move || {
            // A program that is started keeps the lock, with a descriptor that stays open.
            let file = rustix::fs::open(&path, OFlags::RDWR, Mode::empty())?;
            rustix::fs::fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive)?;
            std::mem::forget(file);
            Ok(())
        };
        // SAFETY: between fork and exec, `hold` makes only system calls.
        let mut other = unsafe { command.pre_exec(hold) }.spawn().unwrap();
        let error = opened.lock(&spec).unwrap_err();
        assert!(error.to_string().contains(&other.id().to_string()), "{error}");
        assert_refused(Err::<(), _>(error), place.path());
        drop(other.stdin.take());
        other.wait().unwrap();
        opened.lock(&spec).unwrap();
    }
}
