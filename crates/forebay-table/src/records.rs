//! The records and their indexes: publication by the daemon, look-up by programs.
//!
//! The daemon stores the fields of the source, then the state `Copying`, then the index entries; it
//! stores the fields of the copy, then the state `Whole`. All stores of states are Release, all
//! loads Acquire. No field is stored twice, so whoever sees a state sees the fields that it stands
//! for. The word of the state also holds fields of the source, which stay the same from `Copying`
//! on.

use crate::devices::Devices;
use crate::error::TableError;
use crate::hash::file_hash;
use crate::index::{Index, slots};
use crate::record::{CopyFile, CopyIdentity, Identity, MAX_LEVELS, RecordId, RecordState, SourceFile};
use crate::sync::atomic::{AtomicU64, Ordering};

/// Words of a record: 112 bytes.
pub const RECORD_WORDS: usize = 14;

/// State (8 bits), place of the source's device (8), mode (16) and user (32).
const STATE: usize = 0;
const INODE: usize = 1;
const BYTES: usize = 2;
const MODIFIED: usize = 3;
const CHANGED: usize = 4;
const BORN: usize = 5;
/// Group (low half) and number of links.
const GROUP: usize = 6;
/// Blocks (low 40 bits) and block size in units of 512 bytes.
const BLOCKS: usize = 7;
const PATH_HASH: usize = 8;
/// Number (low 56 bits), level (3), and place of the copy's device (5).
const COPY_NUMBER: usize = 10;
const COPY_INODE: usize = 11;
const COPY_MODIFIED: usize = 12;
const COPY_CHANGED: usize = 13;

const STATE_MASK: u64 = 0xff;
const DEVICE_SHIFT: u32 = 8;
const MODE_SHIFT: u32 = 16;
const USER_SHIFT: u32 = 32;
pub const MAX_MODE: u64 = 0xffff;

const BLOCKS_BITS: u32 = 40;
pub const MAX_BLOCKS: u64 = (1 << BLOCKS_BITS) - 1;
pub const BLOCK_BYTES_UNIT: u64 = 512;
pub const MAX_BLOCK_BYTES: u64 = ((1 << (u64::BITS - BLOCKS_BITS)) - 1) * BLOCK_BYTES_UNIT;
const NUMBER_BITS: u32 = 56;
pub const MAX_NUMBER: u64 = (1 << NUMBER_BITS) - 1;
const LEVEL_BITS: u32 = MAX_LEVELS.ilog2();
/// Stands for "the file system has no time of birth".
const NO_BIRTH: i64 = i64::MIN;

/// Words of one index.
#[must_use]
pub const fn index_words(capacity: u32) -> usize {
    slots(capacity).div_ceil(2) as usize
}

/// What the table knows of a file that a program has opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CopyStatus {
    /// Nothing.
    Unknown,
    /// Only records of earlier contents of the file.
    Changed,
    /// Its copy is not served any more.
    Stale(RecordId),
    /// The daemon decided not to copy it.
    Refused(RecordId),
    /// Its copy is being made.
    Copying(RecordId),
    /// Its copy is whole.
    Whole(RecordId),
}

/// The records of a table, and their indexes.
#[derive(Clone, Copy)]
pub struct Records<'a> {
    devices: Devices<'a>,
    words: &'a [AtomicU64],
    by_source: Index<'a>,
    by_copy: Index<'a>,
    by_path: Index<'a>,
}

impl<'a> Records<'a> {
    /// Records in memory that holds nothing but zeros, or what `Records` has written there.
    ///
    /// Takes `MAX_DEVICES`, `capacity * RECORD_WORDS` and `3 * index_words(capacity)` words.
    #[must_use]
    pub fn new(
        devices: &'a [AtomicU64],
        words: &'a [AtomicU64],
        indexes: &'a [AtomicU64],
        capacity: u32,
    ) -> Self {
        let mut parts = indexes.chunks(index_words(capacity));
        let mut next = || Index::new(parts.next().unwrap_or(&[]), capacity);
        let devices = Devices::new(devices);
        Self { devices, words, by_source: next(), by_copy: next(), by_path: next() }
    }

    /// The words of a record; a corrupt index may name one that does not exist.
    fn record(&self, id: RecordId) -> Option<&'a [AtomicU64; RECORD_WORDS]> {
        self.words.get(id.0 as usize * RECORD_WORDS..)?.first_chunk()
    }

    /// The state of a record.
    #[must_use]
    pub fn state(&self, id: RecordId) -> RecordState {
        self.record(id).map_or(RecordState::Empty, |words| state_of(words[STATE].load(Ordering::Acquire)))
    }

    /// Looks for a file by its identity; the records that come last in [`CopyStatus`] count first.
    #[must_use]
    pub fn find(&self, identity: &Identity) -> CopyStatus {
        let mut found = CopyStatus::Unknown;
        for id in self.by_source.candidates(file_hash(identity.device, identity.inode)) {
            let Some(words) = self.record(id) else { continue };
            let state_word = words[STATE].load(Ordering::Acquire);
            let known = self.source_identity(words, state_word);
            if (known.device, known.inode) != (identity.device, identity.inode) {
                continue;
            }
            let this = match state_of(state_word) {
                _ if known != *identity => CopyStatus::Changed,
                RecordState::Empty | RecordState::Gone => CopyStatus::Unknown,
                RecordState::Copying => CopyStatus::Copying(id),
                RecordState::Refused => CopyStatus::Refused(id),
                RecordState::Whole => CopyStatus::Whole(id),
                RecordState::Stale => CopyStatus::Stale(id),
            };
            found = found.max(this);
        }
        found
    }

    /// All records of a file, whatever its content was.
    pub fn of_file(&self, device: u64, inode: u64) -> impl Iterator<Item = RecordId> + use<'a> {
        let records = *self;
        self.by_source.candidates(file_hash(device, inode)).filter(move |id| {
            records.record(*id).is_some_and(|words| {
                let state_word = words[STATE].load(Ordering::Acquire);
                words[INODE].load(Ordering::Relaxed) == inode && records.device(state_word) == device
            })
        })
    }

    /// The whole record of a path's hash.
    #[must_use]
    pub fn find_path(&self, hash: u128) -> Option<RecordId> {
        self.of_path(hash).filter(|id| self.state(*id) == RecordState::Whole).last()
    }

    /// All records of a path's hash.
    pub fn of_path(&self, hash: u128) -> impl Iterator<Item = RecordId> + use<'a> {
        let records = *self;
        self.by_path.candidates(hash as u64).filter(move |id| {
            records.record(*id).is_some_and(|words| {
                let low = words[PATH_HASH].load(Ordering::Relaxed);
                let high = words[PATH_HASH + 1].load(Ordering::Relaxed);
                u128::from(low) | u128::from(high) << 64 == hash
            })
        })
    }

    /// The source of the copy that has this identity, served or not: descriptors outlive both.
    #[must_use]
    pub fn source_of(&self, copy: &CopyIdentity, bytes: u64) -> Option<SourceFile> {
        self.source_if(copy, bytes, |known| known == *copy)
    }

    /// The same of a copy that was deleted, which has changed its change time. While it is open, no
    /// other file has its inode.
    #[must_use]
    pub fn source_of_deleted(&self, copy: &CopyIdentity, bytes: u64) -> Option<SourceFile> {
        self.source_if(copy, bytes, |known| CopyIdentity { changed_ns: copy.changed_ns, ..known } == *copy)
    }

    fn source_if(
        &self,
        copy: &CopyIdentity,
        bytes: u64,
        is_copy: impl Fn(CopyIdentity) -> bool,
    ) -> Option<SourceFile> {
        self.by_copy
            .candidates(file_hash(copy.device, copy.inode))
            .filter(|id| self.state(*id) >= RecordState::Whole)
            .filter_map(|id| self.record(id))
            .find(|words| is_copy(self.copy_identity(words)) && words[BYTES].load(Ordering::Relaxed) == bytes)
            .map(|words| self.source_file(words))
    }

    /// The records whose copy is this file, whatever its content.
    pub fn of_copy(&self, device: u64, inode: u64) -> impl Iterator<Item = RecordId> + use<'a> {
        let records = *self;
        self.by_copy.candidates(file_hash(device, inode)).filter(move |id| {
            records.record(*id).is_some_and(|words| {
                let copy = records.copy_identity(words);
                (copy.device, copy.inode) == (device, inode)
            })
        })
    }

    /// The source of a record that is not empty.
    #[must_use]
    pub fn source(&self, id: RecordId) -> Option<SourceFile> {
        (self.state(id) != RecordState::Empty)
            .then(|| self.record(id).map(|words| self.source_file(words)))?
    }

    /// The copy of a record that is, or was, whole.
    #[must_use]
    pub fn copy(&self, id: RecordId) -> Option<CopyFile> {
        if self.state(id) < RecordState::Whole {
            return None;
        }
        let words = self.record(id)?;
        let number = words[COPY_NUMBER].load(Ordering::Relaxed);
        let identity = self.copy_identity(words);
        (identity != CopyIdentity::default()).then_some(CopyFile {
            level: (number >> NUMBER_BITS) as u8 % MAX_LEVELS as u8,
            number: number & MAX_NUMBER,
            identity,
        })
    }

    /// Stores the source of an empty record and enters it.
    pub fn add(&self, id: RecordId, source: &SourceFile, path_hash: u128) -> Result<(), TableError> {
        let words = self.record(id).ok_or(TableError::Full)?;
        let store = |word: usize, value: u64| words[word].store(value, Ordering::Relaxed);
        let identity = &source.identity;
        let device = self.place_of(identity.device)?;
        store(INODE, identity.inode);
        store(BYTES, identity.bytes);
        store(MODIFIED, identity.modified_ns.cast_unsigned());
        store(CHANGED, identity.changed_ns.cast_unsigned());
        store(BORN, source.born_ns.unwrap_or(NO_BIRTH).cast_unsigned());
        store(GROUP, u64::from(source.group) | u64::from(source.links) << 32);
        store(BLOCKS, source.blocks | (source.block_bytes / BLOCK_BYTES_UNIT) << BLOCKS_BITS);
        store(PATH_HASH, path_hash as u64);
        store(PATH_HASH + 1, (path_hash >> 64) as u64);
        let facts = device << DEVICE_SHIFT
            | (u64::from(source.mode) & MAX_MODE) << MODE_SHIFT
            | u64::from(source.user) << USER_SHIFT;
        words[STATE].store(facts | RecordState::Copying as u64, Ordering::Release);
        let is_entered = self.by_source.insert(file_hash(identity.device, identity.inode), id)
            && (path_hash == 0 || self.by_path.insert(path_hash as u64, id));
        if is_entered { Ok(()) } else { Err(TableError::Full) }
    }

    /// Stores the copy of a record that is being copied, and serves it.
    pub fn publish(&self, id: RecordId, copy: &CopyFile) -> Result<(), TableError> {
        let words = self.record(id).ok_or(TableError::Full)?;
        let store = |word: usize, value: u64| words[word].store(value, Ordering::Relaxed);
        let device = self.place_of(copy.identity.device)?;
        let place = u64::from(copy.level) | device << LEVEL_BITS;
        store(COPY_NUMBER, copy.number | place << NUMBER_BITS);
        store(COPY_INODE, copy.identity.inode);
        store(COPY_MODIFIED, copy.identity.modified_ns.cast_unsigned());
        store(COPY_CHANGED, copy.identity.changed_ns.cast_unsigned());
        // Entered before it is served: a program that opens the copy can translate its stat.
        if !self.by_copy.insert(file_hash(copy.identity.device, copy.identity.inode), id) {
            return Err(TableError::Full);
        }
        self.set_state(id, RecordState::Whole);
        Ok(())
    }

    /// Stores the state of a record. The daemon alone does.
    pub fn set_state(&self, id: RecordId, state: RecordState) {
        if let Some(words) = self.record(id) {
            let facts = words[STATE].load(Ordering::Relaxed) & !STATE_MASK;
            words[STATE].store(facts | state as u64, Ordering::Release);
        }
    }

    fn place_of(&self, device: u64) -> Result<u64, TableError> {
        self.devices.place_of(device).ok_or(TableError::TooLarge { field: "device", found: device })
    }

    /// The device of the source.
    fn device(&self, state_word: u64) -> u64 {
        self.devices.at((state_word >> DEVICE_SHIFT) as u8 as usize)
    }

    fn source_identity(&self, words: &[AtomicU64; RECORD_WORDS], state_word: u64) -> Identity {
        let load = |word: usize| words[word].load(Ordering::Relaxed);
        Identity {
            device: self.device(state_word),
            inode: load(INODE),
            bytes: load(BYTES),
            modified_ns: load(MODIFIED).cast_signed(),
            changed_ns: load(CHANGED).cast_signed(),
        }
    }

    fn source_file(&self, words: &[AtomicU64; RECORD_WORDS]) -> SourceFile {
        let load = |word: usize| words[word].load(Ordering::Relaxed);
        let (state_word, born_ns) = (load(STATE), load(BORN).cast_signed());
        SourceFile {
            identity: self.source_identity(words, state_word),
            born_ns: (born_ns != NO_BIRTH).then_some(born_ns),
            mode: (state_word >> MODE_SHIFT & MAX_MODE) as u32,
            user: (state_word >> USER_SHIFT) as u32,
            group: load(GROUP) as u32,
            links: (load(GROUP) >> 32) as u32,
            blocks: load(BLOCKS) & MAX_BLOCKS,
            block_bytes: (load(BLOCKS) >> BLOCKS_BITS) * BLOCK_BYTES_UNIT,
        }
    }

    fn copy_identity(&self, words: &[AtomicU64; RECORD_WORDS]) -> CopyIdentity {
        let load = |word: usize| words[word].load(Ordering::Relaxed);
        CopyIdentity {
            device: self.devices.at((load(COPY_NUMBER) >> (NUMBER_BITS + LEVEL_BITS)) as usize),
            inode: load(COPY_INODE),
            modified_ns: load(COPY_MODIFIED).cast_signed(),
            changed_ns: load(COPY_CHANGED).cast_signed(),
        }
    }
}

fn state_of(state_word: u64) -> RecordState {
    RecordState::of(state_word & STATE_MASK)
}
