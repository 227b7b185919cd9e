//! The directory of a level: `TIER/forebay-UID/v1/{lock, log, slabs/}`, for its user alone.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, FlockOperation, Mode, OFlags, Stat};
use rustix::io::Errno;

use crate::error::TierError;
use crate::spec::TierSpec;

const VERSION: &str = "v1";
const SLABS: &str = "slabs";
const LOCK: &str = "lock";

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
    /// A tier that is no directory, or whose directory is not this user's alone.
    pub fn open(spec: &TierSpec) -> Result<Self, TierError> {
        let wrong = |problem: String, hint: &str| TierError::Tier {
            tier: spec.path.display().to_string(),
            problem,
            hint: hint.into(),
        };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let tier = rustix::fs::open(&spec.path, flags, Mode::empty()).map_err(|errno| match errno {
            Errno::NOENT => wrong("expected a directory, found nothing".into(), "make it first: mkdir -p"),
            Errno::NOTDIR => wrong("expected a directory, found a file".into(), ""),
            other => wrong(format!("cannot open it: {}", std::io::Error::from(other)), ""),
        })?;
        let user = rustix::process::geteuid().as_raw();
        let own = format!("forebay-{user}");
        let mut path = spec.path.join(&own);
        let mut is_read_only = false;
        let mut step = |parent: &OwnedFd, name: &str, path: &Path| -> Result<OwnedFd, TierError> {
            match rustix::fs::mkdirat(parent, name, Mode::RWXU) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(Errno::ROFS) => is_read_only = true,
                Err(errno) => return Err(TierError::io(path, "make the directory")(errno)),
            }
            let opened = rustix::fs::openat(parent, name, flags | OFlags::NOFOLLOW, Mode::empty())
                .map_err(TierError::io(path, "open the directory"))?;
            let stat = rustix::fs::fstat(&opened).map_err(TierError::io(path, "inspect"))?;
            check(&stat, user).map_err(|problem| wrong(format!("{}: {problem}", path.display()), ""))?;
            Ok(opened)
        };
        let own = step(&tier, &own, &path)?;
        path.push(VERSION);
        let directory = step(&own, VERSION, &path)?;
        let slabs = step(&directory, SLABS, &path.join(SLABS))?;
        let stat = rustix::fs::fstat(&directory).map_err(TierError::io(&path, "inspect"))?;
        let is_read_only = is_read_only
            || rustix::fs::accessat(&directory, ".", rustix::fs::Access::WRITE_OK, AtFlags::empty())
                == Err(Errno::ROFS);
        Ok(Self { path, directory, slabs, identity: (stat.st_dev, stat.st_ino), is_read_only })
    }

    /// Takes the lock of the level for a daemon; `None` if another process has it. It ends with the
    /// process, or when the descriptor is closed.
    ///
    /// # Errors
    /// The file cannot be opened or locked.
    pub fn try_lock(&self) -> Result<Option<OwnedFd>, TierError> {
        if self.is_read_only {
            return Ok(Some(self.directory.try_clone().map_err(TierError::io(&self.path, "open"))?));
        }
        let path = self.path.join(LOCK);
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = rustix::fs::openat(self.directory.as_fd(), LOCK, flags, Mode::RUSR | Mode::WUSR)
            .map_err(TierError::io(&path, "open the lock"))?;
        loop {
            return match rustix::fs::fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => Ok(Some(file)),
                Err(Errno::AGAIN | Errno::ACCESS) => Ok(None),
                Err(Errno::INTR) => continue,
                Err(errno) => Err(TierError::io(&path, "lock")(errno)),
            };
        }
    }
}

fn check(stat: &Stat, user: u32) -> Result<(), String> {
    if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
        return Err("expected a directory".into());
    }
    if stat.st_uid != user {
        return Err(format!("expected a directory of user {user}, found one of user {}", stat.st_uid));
    }
    let mode = stat.st_mode & 0o777;
    if mode & 0o077 != 0 {
        return Err(format!("expected mode 0700, found {mode:04o}"));
    }
    Ok(())
}
