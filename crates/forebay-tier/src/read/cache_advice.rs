//! Advice to the kernel about its page cache: for bytes that have a copy, about the copy.

use std::num::NonZeroU64;

use forebay_types::{CHUNK_BYTES, Pieces, ShardId};
use rustix::fs::Advice;

use crate::read::tiered_files::TieredFiles;

impl TieredFiles {
    /// Asks the kernel to fetch a range of a file, or its copies, into the page cache. May do
    /// nothing. What will be copied is asked for in whole pieces.
    pub fn will_need(&self, shard: ShardId, offset: u64, length: u64) {
        // Pieces that follow each other in the file are one request.
        let mut missing: Option<(u64, u64)> = None;
        let ask = |range: &mut Option<(u64, u64)>| {
            if let Some((start, end)) = range.take() {
                self.files.will_need(shard, start, end - start);
            }
        };
        self.advise(shard, offset, length, Advice::WillNeed, &mut |start, end| {
            if let Some((_, last)) = &mut missing
                && *last == start
            {
                *last = end;
            } else {
                ask(&mut missing);
                missing = Some((start, end));
            }
        });
        ask(&mut missing);
    }

    /// Allows the kernel to drop a range of a file, and its copies, from the page cache. May do
    /// nothing.
    pub fn wont_need(&self, shard: ShardId, offset: u64, length: u64) {
        let is_open_for_good = !self.files.are_of_samples();
        if is_open_for_good {
            self.files.wont_need(shard, offset, length);
        }
        self.advise(shard, offset, length, Advice::DontNeed, &mut |start, end| {
            if !is_open_for_good {
                self.files.wont_need(shard, start, end - start);
            }
        });
    }

    /// Gives advice about copies; `missing` gets the ranges of the file that have none: start, end.
    fn advise(
        &self,
        shard: ShardId,
        offset: u64,
        length: u64,
        advice: Advice,
        missing: &mut dyn FnMut(u64, u64),
    ) {
        let attached = self.client.attached();
        let end = (offset + length).min(self.files.bytes(shard));
        let mut at = offset;
        while at < end {
            let Some((geometry, start)) = self.map.locate(shard, at) else {
                return missing(at, end);
            };
            let range = start..geometry.bytes.min(start + (end - at));
            let here = Some(()).filter(|()| self.watch.is_usable(shard));
            let here = here.and_then(|()| self.present(&attached, &geometry));
            let have = here.map_or(Pieces::NONE, |(_, _, pieces)| pieces);
            let needed = geometry.touching(&range);
            if let Some((place, slot, _)) = here
                && !attached.levels[place].is_memory
                && let Ok(slab) = attached.storages[place].open(slot.slab, false)
            {
                for run in needed.intersection(have).runs() {
                    let bytes = geometry.bytes_of(&run);
                    let (first, last) = (bytes.start.max(range.start), bytes.end.min(range.end));
                    let place = u64::from(slot.slot) * CHUNK_BYTES + first;
                    let _ = rustix::fs::fadvise(&slab, place, NonZeroU64::new(last - first), advice);
                }
            }
            let is_copied = advice == Advice::WillNeed && self.will_copy(shard, geometry.chunk);
            for run in needed.minus(have).runs() {
                let bytes = geometry.bytes_of(&run);
                let whole = is_copied && !self.files.are_of_samples();
                let (first, last) = if whole {
                    (bytes.start, bytes.end)
                } else {
                    (bytes.start.max(range.start), bytes.end.min(range.end))
                };
                // Offsets in the chunk are offsets in the file, from another start on.
                missing((at + first).saturating_sub(start), at + last - start);
            }
            at += range.end - range.start;
        }
    }
}
