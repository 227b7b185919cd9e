//! The requests for a read of a node with tiers: what has a copy is read there, the rest from the
//! source, whole pieces where they are copied.

use std::ops::Range;

use forebay_model::ModelTime;
use forebay_plan::{
    ChunkMap, ChunkRead, Geometry, PieceRead, PieceRun, is_one_request, is_widened, pieces_at_once,
    waits_for_others,
};
use forebay_types::{CHUNK_BYTES, Extent, Pieces};

use crate::request::{Holder, Request};
use crate::tiers::node_tiers::{Buffer, NodeTiers, Offer};

/// Bytes of a read in pieces of one chunk that are treated alike.
struct Segment {
    geometry: Geometry,
    run: PieceRun,
}

/// A copy that is made of a read once its bytes are there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlannedCopy {
    pub(crate) offer: Offer,
    /// Whether its memory is taken.
    pub(crate) has_buffer: bool,
}

/// What a read takes.
#[derive(Debug, Default)]
pub(crate) struct PlannedRead {
    pub(crate) requests: Vec<Request>,
    pub(crate) copies: Vec<PlannedCopy>,
}

impl Segment {
    fn bytes(&self) -> u64 {
        self.run.bytes.end - self.run.bytes.start
    }

    /// What is read for it, widened [B from the start of the chunk].
    fn read(&self) -> Range<u64> {
        match self.run.read {
            PieceRead::Copying { .. } => self.geometry.bytes_of(&self.run.pieces),
            _ => self.run.bytes.clone(),
        }
    }

    /// The copy that is made of it.
    fn offer(&self) -> Option<Offer> {
        let PieceRead::Copying { level, .. } = self.run.read else { return None };
        let read = self.read();
        let pieces = self.run.pieces.clone().fold(Pieces::NONE, |all, piece| all.union(Pieces(1 << piece)));
        let (start, bytes) = (read.start, read.end - read.start);
        Some(Offer { chunk: self.geometry.chunk.0, level, pieces, start, bytes })
    }
}

impl NodeTiers {
    /// Whether a read waits for pieces that are on their way from another one.
    pub(crate) fn waits_for_copies(&self, chunks: &ChunkMap, read: Extent) -> bool {
        parts_of(chunks, read).any(|(geometry, range)| {
            let claimed = self.claimed(geometry.chunk.0).intersection(geometry.touching(&range));
            let bytes_in =
                |bytes: Range<u64>| bytes.end.min(range.end).saturating_sub(bytes.start.max(range.start));
            waits_for_others(claimed.runs().map(|run| bytes_in(geometry.bytes_of(&run))).sum())
        })
    }

    /// The requests for a read, which was begun at `since`, and the copies of it; their pieces are
    /// claimed.
    ///
    /// # Errors
    ///
    /// When to try again, if a copy has to wait for memory.
    pub(crate) fn plan_read(
        &mut self,
        chunks: &ChunkMap,
        read: Extent,
        (now, since): (ModelTime, ModelTime),
        has_time: bool,
    ) -> Result<PlannedRead, ModelTime> {
        let segments = self.segments(chunks, read);
        let mut planned = PlannedRead::default();
        let mut at = read.offset;
        for run in segments.chunk_by(|one, next| is_one_request(one.run.read, next.run.read)) {
            let length: u64 = run.iter().map(Segment::bytes).sum();
            let begin = at;
            at += length;
            if run[0].run.read == PieceRead::Copied {
                for segment in run {
                    let Some((level, slot, _)) = self.present(segment.geometry.chunk.0) else { continue };
                    let holder = Holder::Level(usize::from(level));
                    let offset = slot * CHUNK_BYTES + segment.run.bytes.start;
                    planned.requests.push(Request { holder, offset, length: segment.bytes() });
                }
                continue;
            }
            let widened_bytes = run.iter().map(|segment| segment.read().end - segment.read().start).sum();
            let is_widened = is_widened(run.iter().map(|segment| segment.run.read), widened_bytes);
            let mut has_buffer = false;
            if is_widened {
                match self.take_buffer(now, since, widened_bytes, has_time) {
                    Buffer::Taken => has_buffer = true,
                    Buffer::Later(due) => {
                        self.forget(&planned);
                        return Err(due);
                    }
                    Buffer::Refused => {
                        let offers = run.iter().filter_map(Segment::offer);
                        self.skipped_bytes += offers.map(|offer| offer.bytes).sum::<u64>();
                    }
                }
            }
            if has_buffer {
                let copied: u64 = run.iter().filter_map(Segment::offer).map(|offer| offer.bytes).sum();
                // What is read beside is copied to its place at once.
                self.give_buffer(widened_bytes - copied);
                for segment in run {
                    push_files(&mut planned.requests, segment, &segment.read());
                    planned.copies.extend(segment.offer().map(|offer| PlannedCopy { offer, has_buffer }));
                }
                continue;
            }
            planned.requests.push(Request { holder: Holder::Source(read.shard), offset: begin, length });
            if is_widened {
                continue;
            }
            for segment in run {
                let Some(offer) = segment.offer() else { continue };
                let (whole, asked) = (segment.read(), segment.run.bytes.clone());
                let mut has_buffer = false;
                if whole != asked {
                    // The rest of a piece is read into the memory of the copy.
                    if self.take_buffer(now, now, offer.bytes, false) != Buffer::Taken {
                        self.skipped_bytes += offer.bytes;
                        continue;
                    }
                    has_buffer = true;
                    push_files(&mut planned.requests, segment, &(whole.start..asked.start));
                    push_files(&mut planned.requests, segment, &(asked.end..whole.end));
                }
                planned.copies.push(PlannedCopy { offer, has_buffer });
            }
        }
        for PlannedCopy { offer, .. } in &planned.copies {
            self.claim(offer.chunk, offer.pieces);
        }
        Ok(planned)
    }

    /// Gives back what a plan has taken that is not carried out.
    fn forget(&mut self, planned: &PlannedRead) {
        for copy in planned.copies.iter().filter(|copy| copy.has_buffer) {
            self.give_buffer(copy.offer.bytes);
        }
    }

    /// What there is to do for a read, in the order of its bytes.
    fn segments(&self, chunks: &ChunkMap, read: Extent) -> Vec<Segment> {
        let most_pieces = pieces_at_once(self.plan.makes_copies.then_some(self.buffer_bytes()));
        let mut segments = Vec::new();
        for (geometry, bytes) in parts_of(chunks, read) {
            let chunk = geometry.chunk.0;
            let needed = geometry.touching(&bytes);
            let copied = self.present(chunk).map_or(Pieces::NONE, |(_, _, pieces)| pieces);
            let level = self.plan.level(chunk).filter(|_| self.plan.makes_copies);
            let copying = needed.minus(copied).minus(self.claimed(chunk));
            let copying = if level.is_some() { copying } else { Pieces::NONE };
            let of_chunk = ChunkRead { bytes, needed, copied, copying, level };
            let runs = of_chunk.runs(most_pieces, |run| geometry.bytes_of(run));
            segments.extend(runs.into_iter().map(|run| Segment { geometry: geometry.clone(), run }));
        }
        segments
    }
}

/// The chunks that a read touches, and its bytes in each [B from the start of the chunk].
pub(crate) fn parts_of(chunks: &ChunkMap, read: Extent) -> impl Iterator<Item = (Geometry, Range<u64>)> {
    let mut at = read.offset;
    std::iter::from_fn(move || {
        let (geometry, start) = chunks.locate(read.shard, at).filter(|_| at < read.end())?;
        let range = start..geometry.bytes.min(start + (read.end() - at));
        at += range.end - range.start;
        Some((geometry, range))
    })
}

/// Adds requests to the source for bytes of a chunk; those that follow each other are one.
fn push_files(requests: &mut Vec<Request>, segment: &Segment, range: &Range<u64>) {
    segment.geometry.files_of(range, |shard, offset, length| match requests.last_mut() {
        Some(last) if last.holder == Holder::Source(shard) && last.offset + last.length == offset => {
            last.length += length;
        }
        _ => requests.push(Request { holder: Holder::Source(shard), offset, length }),
    });
}
