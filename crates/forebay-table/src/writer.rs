//! The table as the daemon writes it.

use crate::bytes::WORD_BYTES;
use crate::error::TableError;
use crate::hash::path_hash;
use crate::header::{ServingState, Settings, TableHeader};
use crate::layout::Layout;
use crate::record::{CopyFile, RecordId, RecordState, SourceFile};
use crate::records::{BLOCK_BYTES_UNIT, MAX_BLOCK_BYTES, MAX_BLOCKS, MAX_MODE, MAX_NUMBER, Records};
use crate::sync::atomic::{AtomicU64, Ordering};

/// Fills a table. There is one writer of a table at a time.
pub struct TableWriter<'a> {
    header: TableHeader<'a>,
    records: Records<'a>,
    capacity: u32,
    next: u32,
}

impl<'a> TableWriter<'a> {
    /// Makes an empty table in `layout.bytes()` bytes of zeros.
    pub fn create(
        words: &'a [AtomicU64],
        layout: Layout,
        settings: &Settings<'_>,
    ) -> Result<Self, TableError> {
        let short = TableError::Short {
            expected_bytes: layout.bytes() as u64,
            found_bytes: (words.len() * WORD_BYTES) as u64,
        };
        if words.len() * WORD_BYTES < layout.bytes() {
            return Err(short);
        }
        if let Some(word) =
            words[..layout.indexes().end].iter().find(|word| word.load(Ordering::Relaxed) != 0)
        {
            return Err(TableError::Header { field: "empty memory", found: word.load(Ordering::Relaxed) });
        }
        let header = TableHeader::write(words, layout, settings)?;
        let (devices, capacity) = (&words[Layout::devices()], layout.capacity());
        let records = Records::new(devices, &words[layout.records()], &words[layout.indexes()], capacity);
        Ok(Self { header, records, capacity, next: 0 })
    }

    /// The records.
    #[must_use]
    pub fn records(&self) -> &Records<'a> {
        &self.records
    }

    /// Adds a source that is being copied; with its path where programs may look that up.
    ///
    /// After an error the record is lost, and the others are as before.
    pub fn add(&mut self, source: &SourceFile, path: Option<&[u8]>) -> Result<RecordId, TableError> {
        check_size("mode", source.mode.into(), MAX_MODE)?;
        check_size("number of blocks", source.blocks, MAX_BLOCKS)?;
        check_size("block size", source.block_bytes, MAX_BLOCK_BYTES)?;
        if !source.block_bytes.is_multiple_of(BLOCK_BYTES_UNIT) {
            return Err(TableError::TooLarge { field: "block size", found: source.block_bytes });
        }
        if self.next == self.capacity {
            return Err(TableError::Full);
        }
        let id = RecordId(self.next);
        self.next += 1;
        self.header.set_records(self.next.into());
        let added = self.records.add(id, source, path.map_or(0, path_hash));
        added.inspect_err(|_| self.records.set_state(id, RecordState::Gone))?;
        Ok(id)
    }

    /// Serves the copy of a source that is being copied. The copy must be whole in its file.
    pub fn publish(&mut self, id: RecordId, copy: &CopyFile) -> Result<(), TableError> {
        check_size("number of the copy", copy.number, MAX_NUMBER)?;
        check_size("level", copy.level.into(), (self.header.levels() as u64).saturating_sub(1))?;
        if self.records.state(id) != RecordState::Copying {
            return Err(TableError::Header {
                field: "state of the record",
                found: self.records.state(id) as u64,
            });
        }
        self.records.publish(id, copy).inspect_err(|_| self.records.set_state(id, RecordState::Gone))
    }

    /// Moves a record on: `Refused`, `Stale` or `Gone`. A state never goes back.
    pub fn advance(&mut self, id: RecordId, state: RecordState) {
        debug_assert!(state != RecordState::Whole, "publish() serves a copy");
        if self.records.state(id) < state {
            self.records.set_state(id, state);
        }
    }

    /// Serves copies of a level, or no more.
    pub fn set_level_state(&mut self, level: u8, state: ServingState) {
        self.header.set_level_state(level, state);
    }

    /// Ends the use of this table: programs that have mapped it map the next one, which should be
    /// in its place by now.
    pub fn retire(&mut self) {
        self.header.retire();
    }
}

fn check_size(field: &'static str, found: u64, max: u64) -> Result<(), TableError> {
    if found > max { Err(TableError::TooLarge { field, found }) } else { Ok(()) }
}
