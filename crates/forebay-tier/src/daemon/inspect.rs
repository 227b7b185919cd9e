//! What a tier holds on its storage, read without a daemon and without changing anything.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use forebay_types::CHUNK_BYTES;
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;

use crate::daemon::file_store::FileStore;
use crate::daemon::protocol::{LevelUsage, SourceUsage};
use crate::daemon::replay::{FoundCopy, FoundSource, ReadLog, read_log};
use crate::error::TierError;
use crate::level::slab_files::SlabFiles;
use crate::level::storage::LevelStorage;
use crate::read_all::read_all;
use crate::source::identity::{SourceKey, SourceState};

/// A tier whose log was read.
pub struct StoredTier {
    tier: PathBuf,
    path: PathBuf,
    identity: (u64, u64),
    storage: SlabFiles,
    sources: Vec<FoundSource>,
    copies: Vec<FoundCopy>,
    files: FileStore,
    lost_log_bytes: u64,
}

/// A piece whose bytes are not those that were copied.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct DamagedPiece {
    /// The source that it is a copy of.
    pub source: String,
    /// The slab, or copy of a file, that has it.
    pub slab: PathBuf,
    /// First byte there \[bytes\].
    pub offset: u64,
    /// Length \[bytes\].
    pub bytes: u64,
    /// What is wrong.
    pub problem: String,
}

/// What a comparison with all checksums found.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Verified {
    /// Pieces, and copies of files, that were compared.
    pub pieces: u64,
    /// Their bytes \[bytes\].
    pub bytes: u64,
    /// Those that are wrong.
    pub damaged: Vec<DamagedPiece>,
    /// Bytes after the last sound record of the log. They are ignored, and so are copies that only
    /// they tell of.
    pub lost_log_bytes: u64,
}

/// What a comparison of copies with their sources found.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct ComparedSources {
    /// Pieces, and copies of files, that were compared.
    pub pieces: u64,
    /// Their bytes \[bytes\].
    pub bytes: u64,
    /// Sources whose copies differ.
    pub differing: Vec<DifferingSource>,
    /// Sources that were changed after their copies were last used, or are gone: these copies are
    /// not used any more.
    pub outdated: Vec<String>,
    /// Sources that were not compared: folders of one file per sample, whose order their index has.
    pub folders: Vec<String>,
}

/// A source whose copies are not its bytes, though it was not changed after their last use.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct DifferingSource {
    /// Where the source is.
    pub source: String,
    /// Its key; none for a file that a run has copied.
    pub key: Option<SourceKey>,
    /// Number of the copy of a file that a run has made.
    pub file: Option<u64>,
    /// Pieces that differ.
    pub pieces: u64,
    /// First byte of the source in the first of them \[bytes\].
    pub offset: u64,
}

impl StoredTier {
    /// Reads the log of the tier at a path that the user gave; `None` if it holds nothing of this
    /// user.
    ///
    /// # Errors
    /// A directory or log that cannot be read.
    pub fn open(tier: &Path) -> Result<Option<Self>, TierError> {
        let path = tier.join(format!("forebay-{}", rustix::process::geteuid().as_raw())).join("v1");
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let open = |path: &Path| -> Result<Option<OwnedFd>, TierError> {
            match rustix::fs::open(path, flags, Mode::empty()) {
                Ok(directory) => Ok(Some(directory)),
                Err(Errno::NOENT) => Ok(None),
                Err(error) => Err(TierError::io(path, "open the directory")(error)),
            }
        };
        let (Some(directory), Some(slabs)) = (open(&path)?, open(&path.join("slabs"))?) else {
            return Ok(None);
        };
        let storage = SlabFiles::new(slabs).map_err(TierError::io(&path, "inspect the file system"))?;
        let stat = rustix::fs::fstat(&directory).map_err(TierError::io(&path, "inspect"))?;
        let ReadLog { sources, copies, files, lost_bytes } = read_log(directory.as_fd(), &path, 0)?;
        let files = FileStore::open(directory.as_fd(), &files, lost_bytes, false)
            .map_err(TierError::io(&path, "list copies of files"))?;
        let identity = (stat.st_dev, stat.st_ino);
        let tier = tier.to_owned();
        let lost_log_bytes = lost_bytes;
        Ok(Some(Self { tier, path, identity, storage, sources, copies, files, lost_log_bytes }))
    }

    /// Device and inode of its directory.
    #[must_use]
    pub fn identity(&self) -> (u64, u64) {
        self.identity
    }

    /// What it holds. The quota is not known without a daemon.
    ///
    /// # Errors
    /// Slabs that cannot be inspected.
    pub fn usage(&self) -> Result<LevelUsage, TierError> {
        let failed = |action| TierError::io(&self.path, action);
        let mut taken_bytes = self.files.taken_bytes();
        let slabs = self.storage.slabs().map_err(failed("list slabs"))?;
        for slab in &slabs {
            taken_bytes += self.storage.taken_bytes(*slab).map_err(failed("inspect a slab"))?;
        }
        let mut held: BTreeMap<SourceKey, (u64, u64)> = BTreeMap::new();
        for found in self.copies.iter().filter(|found| !found.pieces.is_empty()) {
            let (chunks, pieces) = held.entry(found.key).or_default();
            *chunks += 1;
            *pieces += found.sums.len() as u64;
        }
        let known = self.sources.iter().filter_map(|source| Some((source, held.get(&source.key)?)));
        let sources = known.map(|(source, (chunks, pieces))| SourceUsage {
            path: source.path.clone(),
            key: source.key,
            bytes: source.bytes,
            chunks: *chunks,
            pieces: *pieces,
            used_unix_s: source.used_unix_s,
            is_used: false,
        });
        Ok(LevelUsage {
            name: self.tier.display().to_string(),
            path: self.path.display().to_string(),
            quota_bytes: 0,
            taken_bytes,
            slabs: slabs.len() as u64,
            is_memory: self.storage.is_memory(),
            state: "stored".into(),
            sources: sources.collect(),
            roots: self.files.usage(),
        })
    }

    /// Compares every piece, and every copy of a file, with its checksum. `progress` gets how many
    /// are done and all of them, and says whether to go on.
    pub fn verify(&self, progress: &mut dyn FnMut(u64, u64) -> bool) -> Verified {
        let pieces: u64 = self.copies.iter().map(|found| found.sums.len() as u64).sum();
        let all = pieces + self.files.files().count() as u64;
        let mut verified = Verified { lost_log_bytes: self.lost_log_bytes, ..Verified::default() };
        for found in &self.copies {
            if !progress(verified.pieces, all) {
                return verified;
            }
            let source = self.sources.iter().find(|source| source.key == found.key);
            for sum in &found.sums {
                let offset = u64::from(found.slot) * CHUNK_BYTES + u64::from(sum.start);
                let mut bytes = vec![0; sum.bytes as usize];
                let problem = match self.storage.read(found.slab, offset, &mut bytes) {
                    // The daemon has deleted the slab by now, or will not find it.
                    Err(error) if error.kind() == ErrorKind::NotFound => continue,
                    Err(error) => Some(error.to_string()),
                    Ok(()) => {
                        let crc = crc32c::crc32c(&bytes);
                        (crc != sum.crc).then(|| format!("expected crc32c {:08x}, found {crc:08x}", sum.crc))
                    }
                };
                verified.pieces += 1;
                verified.bytes += u64::from(sum.bytes);
                verified.damaged.extend(problem.map(|problem| DamagedPiece {
                    source: source.map_or_else(String::new, |source| source.path.clone()),
                    slab: self.path.join("slabs").join(format!("{:06}", found.slab)),
                    offset,
                    bytes: u64::from(sum.bytes),
                    problem,
                }));
            }
        }
        for (number, held) in self.files.files() {
            if !progress(verified.pieces, all) {
                return verified;
            }
            let bytes = held.source.identity.bytes;
            let problem = match self.checksum(number, bytes) {
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                Err(error) => Some(error.to_string()),
                Ok(crc) => {
                    (crc != held.crc).then(|| format!("expected crc32c {:08x}, found {crc:08x}", held.crc))
                }
            };
            verified.pieces += 1;
            verified.bytes += bytes;
            verified.damaged.extend(problem.map(|problem| DamagedPiece {
                source: held.source_path().display().to_string(),
                slab: self.path.join("files").join(format!("{number:016x}")),
                offset: 0,
                bytes,
                problem,
            }));
        }
        verified
    }

    /// Compares every piece, and every copy of a file, with its source. `progress` is as for
    /// [`StoredTier::verify`].
    pub fn compare(&self, progress: &mut dyn FnMut(u64, u64) -> bool) -> ComparedSources {
        let pieces: u64 = self.copies.iter().map(|found| found.sums.len() as u64).sum();
        let all = pieces + self.files.files().count() as u64;
        let mut compared = ComparedSources::default();
        let mut done = 0;
        for source in &self.sources {
            let here: Vec<&FoundCopy> = self.copies.iter().filter(|found| found.key == source.key).collect();
            let of_source: u64 = here.iter().map(|found| found.sums.len() as u64).sum();
            if of_source == 0 {
                continue;
            }
            let changed_by = i64::try_from(source.used_unix_s).unwrap_or(i64::MAX);
            match open_unchanged(Path::new(&source.path), source.bytes, changed_by) {
                Ok(file) => {
                    if !self.compare_source(source, &here, &file, (done, all), &mut compared, progress) {
                        return compared;
                    }
                }
                Err(true) => compared.folders.push(source.path.clone()),
                Err(false) => compared.outdated.push(source.path.clone()),
            }
            done += of_source;
        }
        for (number, held) in self.files.files() {
            if !progress(done, all) {
                return compared;
            }
            done += 1;
            let path = held.source_path();
            let bytes = held.source.identity.bytes;
            // A file with other times is another one: its copy is not used.
            let is_same = |file: &File| {
                rustix::fs::fstat(file).is_ok_and(|stat| {
                    let (now, then) = (SourceState::of(&stat), &held.source.identity);
                    (now.modified_ns, now.changed_ns) == (then.modified_ns, then.changed_ns)
                })
            };
            let file = open_unchanged(&path, bytes, i64::MAX).ok().filter(is_same);
            let (Some(file), Ok(copy)) = (file, self.files.open_file(number)) else {
                compared.outdated.push(path.display().to_string());
                continue;
            };
            compared.pieces += 1;
            compared.bytes += bytes;
            if let Some(offset) = first_difference(&file, &File::from(copy), bytes) {
                compared.differing.push(DifferingSource {
                    source: path.display().to_string(),
                    key: None,
                    file: Some(number),
                    pieces: 1,
                    offset,
                });
            }
        }
        compared
    }

    /// Compares the pieces of a source; false if it is not to go on.
    fn compare_source(
        &self,
        source: &FoundSource,
        here: &[&FoundCopy],
        file: &File,
        (mut done, all): (u64, u64),
        compared: &mut ComparedSources,
        progress: &mut dyn FnMut(u64, u64) -> bool,
    ) -> bool {
        let (mut copy, mut now) = (Vec::new(), Vec::new());
        let mut differing: Option<DifferingSource> = None;
        for found in here {
            if !progress(done, all) {
                return false;
            }
            for sum in &found.sums {
                done += 1;
                let offset = found.chunk * CHUNK_BYTES + u64::from(sum.start);
                copy.resize(sum.bytes as usize, 0);
                now.resize(sum.bytes as usize, 0);
                let slot = u64::from(found.slot) * CHUNK_BYTES + u64::from(sum.start);
                // What cannot be read is not served: `verify` names it.
                if self.storage.read(found.slab, slot, &mut copy).is_err() {
                    continue;
                }
                compared.pieces += 1;
                compared.bytes += u64::from(sum.bytes);
                if read_all(file, offset, &mut now).is_err() || now != copy {
                    let (key, path) = (Some(source.key), source.path.clone());
                    let new = DifferingSource { source: path, key, file: None, pieces: 0, offset };
                    let entry = differing.get_or_insert(new);
                    entry.pieces += 1;
                    entry.offset = entry.offset.min(offset);
                }
            }
        }
        compared.differing.extend(differing);
        true
    }

    /// Checksum of the copy of a file.
    fn checksum(&self, number: u64, bytes: u64) -> io::Result<u32> {
        let mut file = File::from(self.files.open_file(number)?);
        let mut block = vec![0; CHUNK_BYTES as usize];
        let (mut crc, mut done) = (0, 0);
        loop {
            match file.read(&mut block) {
                Ok(0) if done == bytes => return Ok(crc),
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => {
                    crc = crc32c::crc32c_append(crc, &block[..count]);
                    done += count as u64;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

/// A source that has this size and was last changed at the latest then [s since 1970]; else whether
/// it is a folder.
fn open_unchanged(path: &Path, bytes: u64, changed_by: i64) -> Result<File, bool> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let Ok(file) = rustix::fs::open(path, flags, Mode::empty()) else {
        // Several folders are named together.
        let first = path.to_str().and_then(|path| path.split(", ").next());
        return Err(first.is_some_and(|first| Path::new(first).is_dir()));
    };
    let stat = rustix::fs::fstat(&file).map_err(|_| false)?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => Err(true),
        FileType::RegularFile if stat.st_size as u64 == bytes && stat.st_ctime <= changed_by => {
            Ok(File::from(file))
        }
        _ => Err(false),
    }
}

/// The first byte of the first block in which two files differ.
fn first_difference(one: &File, other: &File, bytes: u64) -> Option<u64> {
    let (mut here, mut there) = (Vec::new(), Vec::new());
    (0..bytes).step_by(CHUNK_BYTES as usize).find(|start| {
        let length = CHUNK_BYTES.min(bytes - start) as usize;
        here.resize(length, 0);
        there.resize(length, 0);
        let is_read = read_all(one, *start, &mut here).is_ok() && read_all(other, *start, &mut there).is_ok();
        !is_read || here != there
    })
}
