//! The header: what the table is for, its levels and its source prefixes.

use crate::bytes::{self, WORD_BYTES};
use crate::error::TableError;
use crate::layout::{
    BYTES_WORD, CAPACITY_WORD, GENERATION_WORD, LEVEL_PATH_WORD, LEVELS_WORD, Layout, MAGIC, MAGIC_WORD,
    MAX_LEVEL_PATH_BYTES, MAX_PREFIX_PATH_BYTES, MAX_PREFIXES, PART_1_BYTES_WORD, PREFIX_PATH_WORD,
    PREFIXES_WORD, RECORDS_WORD, RETIRED, VERSION, VERSION_WORD, WISHES_WORD,
};
use crate::record::MAX_LEVELS;
use crate::sync::atomic::{AtomicU64, Ordering};

/// How the table is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags {
    /// The sources do not change: programs look paths up before they ask the source.
    pub frozen: bool,
    /// The daemon compares copies with their sources.
    pub check: bool,
}

impl Flags {
    fn to_bits(self) -> u32 {
        u32::from(self.frozen) | u32::from(self.check) << 1
    }

    fn of_bits(bits: u32) -> Self {
        Self { frozen: bits & 1 != 0, check: bits & 2 != 0 }
    }
}

/// Whether copies of a level are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServingState {
    /// They are.
    Open,
    /// They are not, because the level failed.
    Out,
}

/// Files below a directory are sources; those on its device, also by relative paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourcePrefix<'a> {
    /// `st_dev` of the files.
    pub device: u64,
    /// Canonical path of the directory, or of a file.
    pub path: &'a [u8],
}

/// What a table is made with.
#[derive(Clone, Copy, Debug, Default)]
pub struct Settings<'a> {
    /// How it is used.
    pub flags: Flags,
    /// Number of this table among those that the daemon has made; the largest number stands for a
    /// table that is retired.
    pub generation: u64,
    /// Directories of the levels.
    pub levels: &'a [&'a [u8]],
    /// What the sources are.
    pub prefixes: &'a [SourcePrefix<'a>],
}

/// The header of a table, in its first words.
#[derive(Clone, Copy)]
pub struct TableHeader<'a>(&'a [AtomicU64]);

impl<'a> TableHeader<'a> {
    /// Writes a header; the magic number last.
    pub fn write(
        words: &'a [AtomicU64],
        layout: Layout,
        settings: &Settings<'_>,
    ) -> Result<Self, TableError> {
        check_count("number of levels", settings.levels.len(), MAX_LEVELS)?;
        check_count("number of prefixes", settings.prefixes.len(), MAX_PREFIXES)?;
        let store = |word: usize, value: u64| words[word].store(value, Ordering::Relaxed);
        store(VERSION_WORD, u64::from(VERSION) | u64::from(settings.flags.to_bits()) << 32);
        store(BYTES_WORD, layout.bytes() as u64);
        store(GENERATION_WORD, settings.generation);
        store(PART_1_BYTES_WORD, layout.part_1_bytes() as u64);
        store(CAPACITY_WORD, layout.capacity().into());
        store(WISHES_WORD, layout.wishes().into());
        store(LEVELS_WORD, settings.levels.len() as u64);
        store(PREFIXES_WORD, settings.prefixes.len() as u64);
        for (level, path) in settings.levels.iter().enumerate() {
            store_path(&words[Layout::level(level)][LEVEL_PATH_WORD..], path, MAX_LEVEL_PATH_BYTES)?;
        }
        for (number, prefix) in settings.prefixes.iter().enumerate() {
            let words = &words[Layout::prefix(number)];
            words[0].store(prefix.device, Ordering::Relaxed);
            store_path(&words[PREFIX_PATH_WORD..], prefix.path, MAX_PREFIX_PATH_BYTES)?;
        }
        words[MAGIC_WORD].store(MAGIC, Ordering::Release);
        Ok(Self(words))
    }

    /// Checks a header against the memory that it stands in, and returns the layout.
    pub fn read(words: &'a [AtomicU64]) -> Result<(Self, Layout), TableError> {
        let short = |expected_bytes| TableError::Short {
            expected_bytes,
            found_bytes: (words.len() * WORD_BYTES) as u64,
        };
        if words.len() < Layout::prefix(MAX_PREFIXES).start {
            return Err(short((Layout::prefix(MAX_PREFIXES).start * WORD_BYTES) as u64));
        }
        let load = |word: usize| words[word].load(Ordering::Relaxed);
        let magic = words[MAGIC_WORD].load(Ordering::Acquire);
        if magic != MAGIC {
            return Err(TableError::Magic(magic));
        }
        if load(VERSION_WORD) as u32 != VERSION {
            return Err(TableError::Version { expected: VERSION, found: load(VERSION_WORD) as u32 });
        }
        if load(GENERATION_WORD) == RETIRED {
            return Err(TableError::Retired);
        }
        let number = |field, word| {
            u32::try_from(load(word)).map_err(|_| TableError::Header { field, found: load(word) })
        };
        let layout =
            Layout::new(number("capacity", CAPACITY_WORD)?, number("number of wishes", WISHES_WORD)?)?;
        for (field, word, expected) in [
            ("length", BYTES_WORD, layout.bytes()),
            ("length of part 1", PART_1_BYTES_WORD, layout.part_1_bytes()),
        ] {
            if load(word) != expected as u64 {
                return Err(TableError::Header { field, found: load(word) });
            }
        }
        if words.len() < layout.part_1_bytes() / WORD_BYTES {
            return Err(short(layout.part_1_bytes() as u64));
        }
        check_count("number of levels", load(LEVELS_WORD) as usize, MAX_LEVELS)?;
        check_count("number of prefixes", load(PREFIXES_WORD) as usize, MAX_PREFIXES)?;
        Ok((Self(words), layout))
    }

    pub fn flags(&self) -> Flags {
        Flags::of_bits((self.0[VERSION_WORD].load(Ordering::Relaxed) >> 32) as u32)
    }

    pub fn generation(&self) -> u64 {
        self.0[GENERATION_WORD].load(Ordering::Acquire)
    }

    pub fn retire(&self) {
        retire(self.0);
    }

    /// How many records are taken.
    pub fn records(&self) -> u64 {
        self.0[RECORDS_WORD].load(Ordering::Relaxed)
    }

    pub fn set_records(&self, records: u64) {
        self.0[RECORDS_WORD].store(records, Ordering::Relaxed);
    }

    /// The number of levels; somebody may have changed it since it was checked.
    pub fn levels(&self) -> usize {
        (self.0[LEVELS_WORD].load(Ordering::Relaxed) as usize).min(MAX_LEVELS)
    }

    pub fn level_state(&self, level: u8) -> ServingState {
        if usize::from(level) >= self.levels() {
            return ServingState::Out;
        }
        match self.0[Layout::level(level.into()).start].load(Ordering::Acquire) {
            0 => ServingState::Open,
            _ => ServingState::Out,
        }
    }

    pub fn set_level_state(&self, level: u8, state: ServingState) {
        if usize::from(level) < self.levels() {
            self.0[Layout::level(level.into()).start].store(state as u64, Ordering::Release);
        }
    }

    /// Copies the path of a level; returns its length.
    pub fn level_path(&self, level: u8, into: &mut [u8; MAX_LEVEL_PATH_BYTES + 1]) -> Option<usize> {
        if usize::from(level) >= self.levels() {
            return None;
        }
        bytes::load(&self.0[Layout::level(level.into())][LEVEL_PATH_WORD..], into);
        into.iter().position(|byte| *byte == 0)
    }

    /// Whether a source prefix is on this device.
    pub fn is_source_device(&self, device: u64) -> bool {
        self.prefixes().any(|words| words[0].load(Ordering::Relaxed) == device)
    }

    /// Whether a path, as it is written, is one of a source on this device.
    pub fn is_source_path(&self, device: u64, path: &[u8]) -> bool {
        self.prefixes()
            .filter(|words| words[0].load(Ordering::Relaxed) == device)
            .any(|words| begins_with(path, &words[PREFIX_PATH_WORD..]))
    }

    /// Whether a path, as it is written, is one of a source, on whatever device.
    pub fn is_below_source(&self, path: &[u8]) -> bool {
        self.prefixes().any(|words| begins_with(path, &words[PREFIX_PATH_WORD..]))
    }

    fn prefixes(&self) -> impl Iterator<Item = &'a [AtomicU64]> + use<'a> {
        let words = self.0;
        let count = (words[PREFIXES_WORD].load(Ordering::Relaxed) as usize).min(MAX_PREFIXES);
        (0..count).map(move |prefix| &words[Layout::prefix(prefix)])
    }
}

/// Ends the use of the table in this memory, if it is one: programs that have mapped it map the
/// next one, which should be in its place by now.
pub fn retire(words: &[AtomicU64]) {
    if words.get(MAGIC_WORD).is_some_and(|magic| magic.load(Ordering::Acquire) == MAGIC)
        && let Some(generation) = words.get(GENERATION_WORD)
    {
        generation.store(RETIRED, Ordering::Release);
    }
}

/// Whether a path is the one in the words, or below it.
fn begins_with(path: &[u8], words: &[AtomicU64]) -> bool {
    for (number, word) in words.iter().enumerate() {
        let value = word.load(Ordering::Relaxed).to_le_bytes();
        for (place, byte) in value.iter().enumerate() {
            let at = number * WORD_BYTES + place;
            match (byte, path.get(at)) {
                (0, None) => return true,
                (0, Some(next)) => return *next == b'/' || (at > 0 && path[at - 1] == b'/'),
                (byte, Some(found)) if byte == found => {}
                _ => return false,
            }
        }
    }
    false
}

fn store_path(words: &[AtomicU64], path: &[u8], max_bytes: usize) -> Result<(), TableError> {
    if path.len() > max_bytes || path.contains(&0) {
        return Err(TableError::Path { bytes: path.len(), max_bytes });
    }
    bytes::store(words, path);
    Ok(())
}

fn check_count(field: &'static str, found: usize, max: usize) -> Result<(), TableError> {
    if found > max { Err(TableError::Header { field, found: found as u64 }) } else { Ok(()) }
}
