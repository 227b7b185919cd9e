//! The copies of whole files on one level: which there are, of which roots, and what they take.
//!
//! A copy is the file `files/NUMBER` (16 hexadecimal digits). No number is used twice, so whoever
//! knows a number never finds another file under it.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use forebay_plan::file_room_bytes;
use forebay_table::{CopyIdentity, SourceFile};
use rustix::fs::{AtFlags, Dir, FallocateFlags, Mode, OFlags};
use rustix::io::Errno;

use crate::daemon::protocol::RootUsage;
use crate::daemon::replay::FoundFiles;
use crate::log::{FileCopyRecord, FileTimes, Record};
use crate::source::identity::SourceState;
use crate::table::entry::MAX_FILES;

/// The directory of the copies.
const FILES: &str = "files";

/// Bytes of the shortest record of a copy: what was lost of a log may have named one in each.
const RECORD_BYTES: u64 = 17;
const MAX_LOST_FILES: u64 = 1 << 20;

/// A source of runs, as this daemon numbers them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct RootId(pub(super) u32);

/// A copy that is whole.
#[derive(Clone, Debug)]
pub(super) struct HeldFile {
    /// The path of the root.
    pub(super) root: PathBuf,
    /// Below the root.
    pub(super) path: PathBuf,
    pub(super) source: SourceFile,
    pub(super) crc: u32,
    /// Its own times, if it was written or compared since the machine was started. While the file
    /// has them, nothing has changed it.
    pub(super) times: Option<FileTimes>,
}

impl HeldFile {
    /// Where its source was.
    pub(super) fn source_path(&self) -> PathBuf {
        if self.path.as_os_str().is_empty() { self.root.clone() } else { self.root.join(&self.path) }
    }

    fn taken_bytes(&self) -> u64 {
        file_room_bytes(self.source.identity.bytes)
    }
}

/// A root whose files have copies, or that a run uses.
#[derive(Clone, Debug, Default)]
struct Root {
    /// Its number in the log.
    number: Option<u32>,
    used_unix_s: u64,
    users: u32,
}

/// See the module header.
#[derive(Default)]
pub(super) struct FileStore {
    directory: Option<OwnedFd>,
    files: BTreeMap<u64, HeldFile>,
    /// What copies that are being written take \[bytes\].
    begun: HashMap<u64, u64>,
    roots: HashMap<PathBuf, Root>,
    next_root: u32,
    next: u64,
    taken_bytes: u64,
}

impl FileStore {
    /// The copies that a log tells of and that are there. `deletes`: all others go.
    pub(super) fn open(
        level: BorrowedFd<'_>,
        found: &FoundFiles,
        lost_log_bytes: u64,
        deletes: bool,
    ) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        if deletes {
            match rustix::fs::mkdirat(level, FILES, Mode::RWXU) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(error) => return Err(error.into()),
            }
        }
        let directory = match rustix::fs::openat(level, FILES, flags, Mode::empty()) {
            Ok(directory) => directory,
            Err(Errno::NOENT) => return Ok(Self::default()),
            Err(error) => return Err(error.into()),
        };
        let mut store = Self { next: found.next, ..Self::default() };
        for (number, path) in &found.roots {
            let used_unix_s = found.used.get(number).copied().unwrap_or(0);
            store.roots.insert(path.clone(), Root { number: Some(*number), used_unix_s, users: 0 });
            store.next_root = store.next_root.max(number + 1);
        }
        for entry in Dir::read_from(&directory)? {
            let entry = entry?;
            let name = entry.file_name();
            let Some(number) = number_of(name.to_bytes()) else { continue };
            store.next = store.next.max(number + 1);
            let held = found.files.get(&number).and_then(|file| {
                let record = &file.copy;
                let root = found.roots.get(&record.root)?.clone();
                let stat = rustix::fs::statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
                (stat.st_size as u64 == record.source.identity.bytes).then(|| HeldFile {
                    root,
                    path: record.path.clone(),
                    source: record.source,
                    crc: record.crc,
                    times: file.times.filter(|_| file.is_recent),
                })
            });
            if let Some(held) = held {
                store.taken_bytes += held.taken_bytes();
                store.files.insert(number, held);
            } else if deletes {
                let _ = rustix::fs::unlinkat(&directory, name, AtFlags::empty());
            }
        }
        store.next += (lost_log_bytes / RECORD_BYTES).min(MAX_LOST_FILES);
        store.directory = Some(directory);
        Ok(store)
    }

    /// What all copies take, also those that are being written \[bytes\].
    pub(super) fn taken_bytes(&self) -> u64 {
        self.taken_bytes
    }

    /// The copies that are whole.
    pub(super) fn files(&self) -> impl Iterator<Item = (u64, &HeldFile)> {
        self.files.iter().map(|(number, held)| (*number, held))
    }

    /// What it holds of each root, by path.
    pub(super) fn usage(&self) -> Vec<RootUsage> {
        let mut found: BTreeMap<&Path, RootUsage> = BTreeMap::new();
        for held in self.files.values() {
            let usage = found.entry(&held.root).or_insert_with(|| {
                let root = self.roots.get(&held.root);
                RootUsage {
                    path: held.root.display().to_string(),
                    files: 0,
                    bytes: 0,
                    used_unix_s: root.map_or(0, |root| root.used_unix_s),
                    is_used: root.is_some_and(|root| root.users > 0),
                }
            });
            usage.files += 1;
            usage.bytes += held.source.identity.bytes;
        }
        found.into_values().collect()
    }

    /// Number of records that name what is there.
    pub(super) fn records(&self) -> u64 {
        2 * (self.files.len() + self.roots.len()) as u64
    }

    /// The root that was used least recently of those that nobody uses.
    pub(super) fn oldest_root(&self) -> Option<(u64, PathBuf)> {
        let held: HashSet<&PathBuf> = self.files.values().map(|held| &held.root).collect();
        let unused = self.roots.iter().filter(|(path, root)| root.users == 0 && held.contains(path));
        unused.map(|(path, root)| (root.used_unix_s, path.clone())).min()
    }

    /// Copies of files below a root.
    pub(super) fn of_root(&self, root: &Path) -> Vec<u64> {
        self.files.iter().filter(|(_, held)| held.root == root).map(|(number, _)| *number).collect()
    }

    /// Copies of files at or below a path that no run uses.
    pub(super) fn unused_below(&self, path: &Path) -> Vec<u64> {
        let is_used = |held: &HeldFile| self.roots.get(&held.root).is_some_and(|root| root.users > 0);
        let unused =
            self.files.iter().filter(|(_, held)| !is_used(held) && held.source_path().starts_with(path));
        unused.map(|(number, _)| *number).collect()
    }

    /// A run begins to use a root; the record that says so.
    pub(super) fn use_root(&mut self, path: &Path, now_unix_s: u64) -> Option<Record> {
        let root = self.roots.entry(path.to_owned()).or_default();
        root.users += 1;
        root.used_unix_s = now_unix_s;
        root.number.map(|number| Record::FileRootUsed { number, unix_s: now_unix_s })
    }

    /// A run does not use it any more.
    pub(super) fn leave_root(&mut self, path: &Path, now_unix_s: u64) -> Option<Record> {
        let root = self.roots.get_mut(path)?;
        root.users = root.users.saturating_sub(1);
        root.used_unix_s = now_unix_s;
        root.number.map(|number| Record::FileRootUsed { number, unix_s: now_unix_s })
    }

    /// An empty file of so many bytes.
    pub(super) fn begin(&mut self, bytes: u64) -> io::Result<(u64, OwnedFd)> {
        let number = self.next;
        if number >= MAX_FILES {
            return Err(Errno::NOSPC.into());
        }
        let directory = self.directory.as_ref().ok_or(Errno::ROFS)?;
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = rustix::fs::openat(directory, name(number), flags, Mode::RUSR | Mode::WUSR)?;
        self.next += 1;
        let reserved = match rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, bytes) {
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => rustix::fs::ftruncate(&file, bytes),
            other => other,
        };
        if let Err(error) = reserved {
            let _ = rustix::fs::unlinkat(directory, name(number), AtFlags::empty());
            return Err(error.into());
        }
        self.begun.insert(number, file_room_bytes(bytes));
        self.taken_bytes += file_room_bytes(bytes);
        Ok((number, file))
    }

    /// The records of a copy that is whole: that of its root, where the log does not know it.
    pub(super) fn records_of(&self, number: u64, held: &HeldFile) -> (Vec<Record>, u32) {
        let known = self.roots.get(&held.root);
        let root = known.and_then(|root| root.number).unwrap_or(self.next_root);
        let mut records = Vec::new();
        if known.is_none_or(|root| root.number.is_none()) {
            records.push(Record::FileRoot { number: root, path: held.root.clone() });
            let unix_s = known.map_or(0, |root| root.used_unix_s);
            records.push(Record::FileRootUsed { number: root, unix_s });
        }
        records.extend(records_of(number, root, held));
        (records, root)
    }

    /// Its records are logged.
    pub(super) fn finished(&mut self, number: u64, root: u32, held: HeldFile) {
        self.begun.remove(&number);
        let entry = self.roots.entry(held.root.clone()).or_default();
        if entry.number.is_none() {
            entry.number = Some(root);
            self.next_root = self.next_root.max(root + 1);
        }
        self.files.insert(number, held);
    }

    /// What identifies a copy; `None` if it is not as it was written or compared.
    pub(super) fn identity(&self, number: u64) -> Option<CopyIdentity> {
        let held = self.files.get(&number)?;
        let directory = self.directory.as_ref()?;
        let stat = rustix::fs::statat(directory, name(number), AtFlags::SYMLINK_NOFOLLOW).ok()?;
        let identity = identity_of(&stat);
        let is_unchanged = held.times == Some(times_of(&identity));
        (is_unchanged && stat.st_size as u64 == held.source.identity.bytes).then_some(identity)
    }

    /// Opens a copy to read it.
    pub(super) fn open_file(&self, number: u64) -> io::Result<OwnedFd> {
        let directory = self.directory.as_ref().ok_or(Errno::NOENT)?;
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        Ok(rustix::fs::openat(directory, name(number), flags, Mode::empty())?)
    }

    /// Forgets and deletes a copy, whole or not; the record that says so, if the log knew it.
    pub(super) fn remove(&mut self, number: u64) -> Option<Record> {
        let known = self.files.remove(&number);
        let taken = known.as_ref().map(HeldFile::taken_bytes).or_else(|| self.begun.remove(&number));
        self.taken_bytes -= taken.unwrap_or(0);
        if let Some(directory) = &self.directory {
            let _ = rustix::fs::unlinkat(directory, name(number), AtFlags::empty());
        }
        known.map(|_| Record::FileGone { file: number })
    }

    /// A copy was compared while it was as `identity` says; the records that say so.
    pub(super) fn trust(&mut self, number: u64, identity: &CopyIdentity) -> Option<Vec<Record>> {
        let held = self.files.get_mut(&number)?;
        held.times = Some(times_of(identity));
        let root = self.roots.get(&held.root)?.number?;
        Some(records_of(number, root, held).collect())
    }

    /// All that a log which is written anew must say before and after it names the boot.
    pub(super) fn all_records(&mut self) -> [Vec<Record>; 2] {
        let mut first = Vec::new();
        let mut numbers = HashMap::new();
        self.roots.retain(|path, root| root.users > 0 || self.files.values().any(|held| held.root == *path));
        for (path, root) in &mut self.roots {
            let number = numbers.len() as u32;
            root.number = Some(number);
            numbers.insert(path.clone(), number);
            first.push(Record::FileRoot { number, path: path.clone() });
            first.push(Record::FileRootUsed { number, unix_s: root.used_unix_s });
        }
        self.next_root = numbers.len() as u32;
        // Numbers that were used are not used again.
        if let Some(last) = self.next.checked_sub(1).filter(|last| !self.files.contains_key(last)) {
            first.push(Record::FileGone { file: last });
        }
        let mut recent = Vec::new();
        for (number, held) in &self.files {
            let records = records_of(*number, numbers[&held.root], held);
            if held.times.is_some() { recent.extend(records) } else { first.extend(records) }
        }
        [first, recent]
    }

    /// Deletes all; for levels in memory.
    pub(super) fn delete_all(&mut self) {
        let numbers: Vec<u64> = self.files.keys().chain(self.begun.keys()).copied().collect();
        for number in numbers {
            self.remove(number);
        }
    }
}

/// What identifies a copy that is open.
pub(crate) fn identity_of(stat: &rustix::fs::Stat) -> CopyIdentity {
    let SourceState { modified_ns, changed_ns, .. } = SourceState::of(stat);
    CopyIdentity { device: stat.st_dev, inode: stat.st_ino, modified_ns, changed_ns }
}

/// The own times of a copy.
pub(super) fn times_of(identity: &CopyIdentity) -> FileTimes {
    FileTimes { modified_ns: identity.modified_ns, changed_ns: identity.changed_ns }
}

fn records_of(file: u64, root: u32, held: &HeldFile) -> impl Iterator<Item = Record> + use<> {
    let mut source = held.source;
    source.identity.device = 0;
    let copy =
        Record::FileCopy(FileCopyRecord { file, root, crc: held.crc, source, path: held.path.clone() });
    [copy].into_iter().chain(held.times.map(|times| Record::FileTimes { file, times }))
}

pub(super) fn name(number: u64) -> String {
    format!("{number:016x}")
}

fn number_of(name: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(name).ok().filter(|text| text.len() == 16)?;
    u64::from_str_radix(text, 16).ok().filter(|number| *number < MAX_FILES)
}
