//! Copies of whole files, as the runs of the daemon use them: which roots are used, which files
//! below them have copies, and on which levels.
//!
//! A *root* is a source of `forebay run`. Copies of files below a root that a run uses are never
//! evicted.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use forebay_plan::{NoCopy, file_room_bytes, first_with_room};
use forebay_table::{CopyFile, CopyIdentity, SourceFile};
use rustix::fs::Mode;

use crate::daemon::cache::{Cache, unix_s};
use crate::daemon::file_store::{HeldFile, RootId, identity_of, times_of};
use crate::daemon::level::DaemonLevel;
use crate::source::identity::SourceKey;
use crate::table::LevelState;

/// A copy of this daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct CopyId {
    /// The level.
    pub(crate) level: u8,
    /// Its number on the level, which no other copy ever has.
    pub(crate) number: u64,
}

/// A file of a source, and where it lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FileFacts {
    /// The root that it lies below.
    pub(crate) root: RootId,
    /// Its path below the root; empty if the root is the file.
    pub(crate) path: PathBuf,
    /// What `stat` says of it. Copies that a log tells of have no device (0).
    pub(crate) source: SourceFile,
}

/// A copy that is being written: finish or abandon it.
#[derive(Debug)]
#[must_use]
pub(crate) struct NewCopy {
    /// Its file: all zeros, with its space reserved.
    pub(crate) file: OwnedFd,
    /// Its level and number.
    pub(crate) id: CopyId,
}

/// A copy that a level has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KnownCopy {
    /// Its level and number.
    pub(crate) id: CopyId,
    /// What it is a copy of; `root` is the root that was asked for.
    pub(crate) facts: FileFacts,
    /// crc32c of its bytes.
    pub(crate) crc: u32,
    /// What identifies it, if it is as it was written, or compared, since the machine was started.
    /// Another one must be compared before it is served.
    pub(crate) copy: Option<CopyFile>,
}

/// When a source was last used \[unix s\]; `None` if somebody uses it.
type LastUsed<'a> = dyn Fn(&SourceKey) -> Option<u64> + 'a;

/// Sources and chunks whose copies were deleted.
type Gone = Vec<(SourceKey, u64)>;

impl Cache {
    /// A run begins to use a root, with copies on these levels.
    pub(crate) fn use_root(&mut self, path: &Path, levels: &[u8]) -> RootId {
        let id = RootId(self.next_root);
        self.next_root += 1;
        self.roots.insert(id, path.to_owned());
        for level in levels {
            let level = &mut self.levels[usize::from(*level)];
            let record = level.files.use_root(path, unix_s());
            level.append(record.as_slice());
        }
        id
    }

    /// A run no longer uses a root; `levels` as in [`Self::use_root`].
    pub(crate) fn leave_root(&mut self, root: RootId, levels: &[u8]) {
        let Some(path) = self.roots.remove(&root) else { return };
        for level in levels {
            let level = &mut self.levels[usize::from(*level)];
            let record = level.files.leave_root(&path, unix_s());
            level.append(record.as_slice());
        }
    }

    /// An empty file on the first of these levels that has room for it, reserved in full.
    pub(crate) fn begin_copy(&mut self, levels: &[u8], bytes: u64) -> Result<NewCopy, NoCopy> {
        let is_used = |number: &u8| self.levels[usize::from(*number)].state != LevelState::Out;
        let with_quota = |number| (number, self.levels[usize::from(number)].parts.quota_bytes);
        let used: Vec<(u8, u64)> = levels.iter().copied().filter(is_used).map(with_quota).collect();
        first_with_room(bytes, used, |level| {
            let begun = self.reclaiming(level, |level, used, gone| level.begin_file(bytes, used, gone));
            begun.map(|(number, file)| NewCopy { file, id: CopyId { level, number } })
        })
    }

    /// Lets a level delete what nobody uses until it takes no more than its quota, which may have
    /// been larger before.
    pub(crate) fn keep_quota(&mut self, number: u8) {
        self.reclaiming(number, DaemonLevel::keep_quota);
    }

    /// Does something for which a level may delete what nobody uses.
    fn reclaiming<T>(
        &mut self,
        number: u8,
        act: impl FnOnce(&mut DaemonLevel, &LastUsed, &mut Gone) -> T,
    ) -> T {
        let sources = &self.sources;
        let last_used = |key: &SourceKey| {
            let known = sources.get(key);
            known.map_or(Some(0), |known| (known.users == 0).then_some(known.about.used_unix_s))
        };
        let mut gone = Vec::new();
        let level = &mut self.levels[usize::from(number)];
        let before = level.state;
        let done = act(level, &last_used, &mut gone);
        let is_changed = level.state != before;
        self.forget(number, &gone);
        if is_changed {
            self.publish_state(number);
        }
        done
    }

    /// Logs a copy whose bytes are written, and says what identifies it from now on; `None` if it
    /// is lost, as it is not that long or the level failed.
    pub(crate) fn finish_copy(&mut self, copy: NewCopy, facts: &FileFacts, crc: u32) -> Option<CopyFile> {
        let NewCopy { file, id } = copy;
        let root = self.roots.get(&facts.root).cloned();
        let level = &mut self.levels[usize::from(id.level)];
        let finished = root.and_then(|root| {
            let held = HeldFile { root, path: facts.path.clone(), source: facts.source, crc, times: None };
            level.finish_file(id.number, &file, held)
        });
        if finished.is_none() {
            level.files.remove(id.number);
        }
        finished.map(|identity| CopyFile { level: id.level, number: id.number, identity })
    }

    /// Deletes a copy that is not finished.
    pub(crate) fn abandon_copy(&mut self, copy: NewCopy) {
        let NewCopy { file, id } = copy;
        drop(file);
        self.levels[usize::from(id.level)].files.remove(id.number);
    }

    /// The copies on these levels of files below a root, also those that were made for another
    /// root. The nearest level comes first.
    pub(crate) fn copies_of(&self, root: RootId, levels: &[u8]) -> Vec<KnownCopy> {
        let Some(path) = self.roots.get(&root) else { return Vec::new() };
        let mut found = Vec::new();
        for number in levels {
            let level = &self.levels[usize::from(*number)];
            if level.state == LevelState::Out {
                continue;
            }
            for (file, held) in level.files.files() {
                let below = if held.root == *path {
                    held.path.clone()
                } else {
                    let whole = held.source_path();
                    let Ok(below) = whole.strip_prefix(path) else { continue };
                    below.to_owned()
                };
                let id = CopyId { level: *number, number: file };
                found.push(KnownCopy {
                    id,
                    facts: FileFacts { root, path: below, source: held.source },
                    crc: held.crc,
                    copy: self.copy_file(id),
                });
            }
        }
        found
    }

    /// How many copies a level has, and the sum of their sizes \[bytes\].
    pub(crate) fn copies_on(&self, level: u8) -> (u64, u64) {
        let files = self.levels[usize::from(level)].files.files();
        files.fold((0, 0), |(count, bytes), (_, held)| (count + 1, bytes + held.source.identity.bytes))
    }

    /// What identifies a copy; `None` if it is not as it was written or compared. One system call.
    fn copy_file(&self, id: CopyId) -> Option<CopyFile> {
        let identity = self.levels[usize::from(id.level)].files.identity(id.number)?;
        Some(CopyFile { level: id.level, number: id.number, identity })
    }

    /// A copy is right that was compared while it was as `identity` says. Returns what identifies
    /// it; `None` if it was changed since.
    pub(crate) fn trust_copy(&mut self, id: CopyId, identity: &CopyIdentity) -> Option<CopyFile> {
        let level = &mut self.levels[usize::from(id.level)];
        let records = level.files.trust(id.number, identity)?;
        level.append(&records);
        self.copy_file(id)
    }

    /// Deletes a copy.
    pub(crate) fn delete_copy(&mut self, id: CopyId) {
        self.levels[usize::from(id.level)].delete_files(&[id.number]);
    }

    /// Opens a copy to compare it. If somebody has allowed to write it, that is taken back.
    pub(crate) fn open_copy(&self, id: CopyId) -> io::Result<OwnedFd> {
        let file = self.levels[usize::from(id.level)].files.open_file(id.number)?;
        let found = Mode::from_raw_mode(rustix::fs::fstat(&file)?.st_mode);
        if found != Mode::RUSR {
            // Nothing can be changed in a tier that is read-only.
            let _ = rustix::fs::fchmod(&file, Mode::RUSR);
        }
        Ok(file)
    }

    /// Whether a level takes and serves copies.
    pub(crate) fn level_state(&self, level: u8) -> LevelState {
        self.levels[usize::from(level)].state
    }
}

impl DaemonLevel {
    fn keep_quota(&mut self, last_used: &LastUsed, gone: &mut Gone) {
        while self.planned_bytes() > self.parts.quota_bytes && self.reclaim(last_used, gone) {}
    }

    /// An empty file of so many bytes, if there is room: what nobody uses goes for it.
    fn begin_file(&mut self, bytes: u64, last_used: &LastUsed, gone: &mut Gone) -> Option<(u64, OwnedFd)> {
        if self.state != LevelState::Open {
            return None;
        }
        let needed = file_room_bytes(bytes);
        while self.planned_bytes() + needed > self.parts.quota_bytes {
            if !self.reclaim(last_used, gone) {
                return None;
            }
        }
        match self.files.begin(bytes) {
            Ok(begun) => Some(begun),
            Err(error) => {
                self.failed(&error);
                None
            }
        }
    }

    /// Logs a copy; `None` if that fails, or it is not as long as its source.
    fn finish_file(&mut self, number: u64, file: &OwnedFd, mut held: HeldFile) -> Option<CopyIdentity> {
        if let Err(error) = rustix::fs::fchmod(file, Mode::RUSR) {
            self.failed(&error.into());
            return None;
        }
        let stat = rustix::fs::fstat(file).ok()?;
        if stat.st_size as u64 != held.source.identity.bytes || stat.st_nlink == 0 {
            return None;
        }
        let identity = identity_of(&stat);
        held.times = Some(times_of(&identity));
        let (records, root) = self.files.records_of(number, &held);
        self.append(&records).then(|| {
            self.files.finished(number, root, held);
            identity
        })
    }

    /// Deletes copies of files.
    pub(super) fn delete_files(&mut self, numbers: &[u64]) {
        let records: Vec<_> = numbers.iter().filter_map(|number| self.files.remove(*number)).collect();
        // A record of a copy without its file does no harm.
        self.append(&records);
    }
}
