//! Bounds the dirty pages that copies make.
//!
//! Without this, the kernel collects written bytes until it makes every writer of the node wait.
//! After each part of 8 MiB that is written to a level, its write-back begins, and the part before
//! must reach the device. So a process has about two parts of dirty pages on a level. What lies on
//! the device leaves the page cache: reads bring back what the program uses.

use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::level::storage::LevelStorage;

/// What this process has written to a level and not flushed.
pub(crate) struct DirtyParts {
    part_bytes: u64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    writing: Vec<Extent>,
    writing_bytes: u64,
    flushing: Vec<Extent>,
}

/// Bytes of a slab that follow each other.
struct Extent {
    slab: u32,
    offset: u64,
    bytes: u64,
}

impl DirtyParts {
    /// Nothing is dirty.
    pub(crate) fn new(part_bytes: u64) -> Self {
        Self { part_bytes, state: Mutex::default() }
    }

    /// Bytes were written to a slab; flushes if they complete a part.
    ///
    /// # Errors
    /// Written bytes, perhaps earlier ones, did not reach the device.
    pub(crate) fn written(
        &self,
        level: &dyn LevelStorage,
        slab: u32,
        offset: u64,
        bytes: u64,
    ) -> io::Result<()> {
        if level.is_memory() {
            return Ok(());
        }
        let part = {
            let mut state = self.lock();
            state.writing_bytes += bytes;
            match state.writing.last_mut() {
                Some(last) if last.slab == slab && last.offset + last.bytes == offset => last.bytes += bytes,
                _ => state.writing.push(Extent { slab, offset, bytes }),
            }
            if state.writing_bytes < self.part_bytes {
                return Ok(());
            }
            state.writing_bytes = 0;
            std::mem::take(&mut state.writing)
        };
        for one in &part {
            level.start_flush(one.slab, one.offset, one.bytes)?;
        }
        let before = std::mem::replace(&mut self.lock().flushing, part);
        before.iter().try_for_each(|one| level.finish_flush(one.slab, one.offset, one.bytes))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
