//! Prefetch, and dropping pages: for bytes that have a copy, of the copy.

use forebay_model::{ByteRange, ModelTime};
use forebay_types::{CHUNK_BYTES, Extent, Pieces};

use crate::tiers::parts_of;
use crate::world::World;

impl World<'_> {
    /// Asks for bytes that a node will need, and returns how many requests that took. What will be
    /// copied is asked for in whole pieces.
    pub(crate) fn will_need(&mut self, now: ModelTime, node: usize, read: Extent) -> u64 {
        let (copied, missing) = self.split(node, read, true);
        let mut sent = 0;
        for (level, range) in copied {
            if let Some(storage) = &mut self.tiers[node].levels[level].storage {
                sent += storage.files.will_need(now, storage.node, storage.open, range);
            }
        }
        for range in missing {
            let open = self.open(node, read.shard.0);
            sent += self.storage.will_need(now, self.nodes[node].id, open, range);
        }
        sent
    }

    /// Drops bytes that a node has read from its page cache.
    pub(crate) fn wont_need(&mut self, node: usize, read: Extent) {
        if !self.tiers.is_empty() {
            for (level, range) in self.split(node, read, false).0 {
                if let Some(storage) = &mut self.tiers[node].levels[level].storage {
                    storage.files.client(storage.node).wont_need(storage.open, range);
                }
            }
        }
        let open = self.open(node, read.shard.0);
        let range = ByteRange { offset: read.offset, length: read.length };
        self.storage.client(self.nodes[node].id).wont_need(open, range);
    }

    /// What of a range has copies, with the tier, and what has none; that in whole pieces if it
    /// `is_needed` and will be copied.
    fn split(&self, node: usize, read: Extent, is_needed: bool) -> (Vec<(usize, ByteRange)>, Vec<ByteRange>) {
        let Some(tiers) = self.tiers.get(node) else {
            return (Vec::new(), vec![ByteRange { offset: read.offset, length: read.length }]);
        };
        let (mut copied, mut missing): (Vec<_>, Vec<ByteRange>) = (Vec::new(), Vec::new());
        let mut at = read.offset;
        for (geometry, range) in parts_of(self.chunks, read) {
            let chunk = geometry.chunk.0;
            let present = tiers.present(chunk);
            let have = present.map_or(Pieces::NONE, |(_, _, pieces)| pieces);
            let needed = geometry.touching(&range);
            if let Some((level, slot, _)) = present {
                for run in needed.intersection(have).runs() {
                    let bytes = geometry.bytes_of(&run);
                    let (first, last) = (bytes.start.max(range.start), bytes.end.min(range.end));
                    let offset = slot * CHUNK_BYTES + first;
                    copied.push((usize::from(level), ByteRange { offset, length: last - first }));
                }
            }
            let is_copied = is_needed && tiers.plan.makes_copies && tiers.plan.level(chunk).is_some();
            let whole = is_copied && !self.places.has_sample_files();
            for run in needed.minus(have).runs() {
                let bytes = geometry.bytes_of(&run);
                let (first, last) = if whole {
                    (bytes.start, bytes.end)
                } else {
                    (bytes.start.max(range.start), bytes.end.min(range.end))
                };
                // Offsets in the chunk are offsets in the file, from another start on.
                let (begin, end) = ((at + first).saturating_sub(range.start), at + last - range.start);
                match missing.last_mut() {
                    Some(before) if before.offset + before.length == begin => before.length += end - begin,
                    _ => missing.push(ByteRange { offset: begin, length: end - begin }),
                }
            }
            at += range.end - range.start;
        }
        (copied, missing)
    }
}
