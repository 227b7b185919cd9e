//! Reads that fill the tiers: what is missing there is read from the source in whole pieces, and
//! copied.
//!
//! 1. The bytes of each transfer that have a copy are read there (`tiered_files.rs`).
//! 2. Bytes that follow each other and have none are one request to the source. Where the placement
//!    wants them, whole pieces are copied to the writer's memory once they have landed.
//! 3. Of a piece that the transfer covers in part, the rest is one request more. A short transfer
//!    (a small sample) is widened to whole pieces instead: one request to a copy buffer, from which
//!    what was asked for is copied to its place.
//! 4. Pieces that another process is copying are waited for a moment, if that saves more than a
//!    piece.
//!
//! In each 8 MiB that are copied, a block is read again before it is offered: a source that changes
//! while it is read, and keeps its times, is not copied.
//!
//! A copy buffer is in use from the arrival of its bytes until they are written. Only the parts of
//! 3 need one during the read: otherwise reads ahead would hold all of them.
//!
//! Reads that fail are made again as they were asked for: bytes that nobody asked for must not make
//! a sample fail.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use forebay_io::{ReadError, Transfer};
use forebay_plan::{
    ChunkRead, Geometry, LOOK_AT_OTHERS_EVERY, LOOK_FOR_BUFFER_EVERY, PieceRead, PieceRun, WAIT_FOR_OTHERS,
    buffer_wait, is_one_request, is_widened, pieces_at_once, waits_for_others,
};
use forebay_types::{ChunkId, Pieces, ShardId};

use crate::client::Attached;
use crate::copy::buffers::CopyBuffer;
use crate::copy::offer::{Offer, OfferedChunk, OfferedPiece, SourceCheck};
use crate::read::source_sample::source_bytes;
use crate::read::tiered_files::{ALIGN_BYTES, Copies, TieredFiles};
use crate::source::sampled::{BLOCK_BYTES, pick};
use crate::source::watch::{SourceWatch, now_ns};
use crate::table::LevelState;
use crate::table::entry::ChunkEntry;

/// How transfers are completed.
#[derive(Clone, Copy)]
pub struct Fill<'a> {
    /// The epoch: sources are looked at once in each.
    pub epoch: u64,
    /// Offsets and memory are aligned for `O_DIRECT`.
    pub direct: bool,
    /// Whether nobody waits for the bytes yet, so that the read may wait for a copy buffer: then a
    /// burst of reads ahead is copied, too.
    pub has_time: &'a dyn Fn() -> bool,
}

/// Bytes of a transfer in pieces of one chunk that are treated alike.
struct Segment {
    geometry: Geometry,
    run: PieceRun,
}

impl Segment {
    fn requested_bytes(&self) -> u64 {
        self.run.bytes.end - self.run.bytes.start
    }

    /// What is read for it, widened [bytes from the start of the chunk].
    fn read(&self) -> Range<u64> {
        match self.run.read {
            PieceRead::Copying { .. } => self.geometry.bytes_of(&self.run.pieces),
            _ => self.run.bytes.clone(),
        }
    }

    /// The tier it is copied to.
    fn level(&self) -> Option<u8> {
        match self.run.read {
            PieceRead::Copying { level, .. } => Some(level),
            _ => None,
        }
    }

    /// Its pieces, for bytes that start `at` in a buffer with the first byte of `read`.
    fn offered(&self, level: u8, at: usize) -> OfferedChunk {
        let read = self.read();
        let piece = |piece: u32| {
            let here = self.geometry.bytes_of(&(piece..piece + 1));
            OfferedPiece {
                piece: piece as u8,
                start: here.start as u32,
                bytes: (here.end - here.start) as u32,
                at: at + (here.start - read.start) as usize,
            }
        };
        OfferedChunk {
            chunk: self.geometry.chunk,
            level,
            pieces: self.run.pieces.clone().map(piece).collect(),
        }
    }

    /// Its claim, which this process holds.
    fn claimed(&self, attached: &Arc<Attached>) -> Claimed {
        let pieces = self.run.pieces.clone().fold(Pieces::NONE, |all, piece| all.union(Pieces(1 << piece)));
        Claimed { attached: Arc::clone(attached), chunks: vec![(self.geometry.chunk, pieces)] }
    }
}

/// A part of a file, and its place in a copy buffer.
struct Part {
    shard: ShardId,
    offset: u64,
    place: Range<usize>,
}

/// A widened request.
struct Widened {
    buffer: CopyBuffer,
    /// What is read, one behind the other in the buffer.
    parts: Vec<Part>,
    chunks: Vec<OfferedChunk>,
    claims: Claimed,
}

/// Pieces whose bytes, or some of them, arrive at their place in a transfer.
struct Landing {
    segment: Segment,
    level: u8,
    claims: Claimed,
    transfer: usize,
    /// The bytes that are asked for, in the transfer.
    place: Range<usize>,
    /// For a piece in part: its memory, and what is read for the rest of it.
    rest: Option<(CopyBuffer, Vec<Part>)>,
}

/// Claims that are given up, unless the writer takes them.
struct Claimed {
    attached: Arc<Attached>,
    chunks: Vec<(ChunkId, Pieces)>,
}

impl Drop for Claimed {
    fn drop(&mut self) {
        for (chunk, pieces) in &self.chunks {
            self.attached.claims.release(*chunk, *pieces);
        }
    }
}

impl TieredFiles {
    /// Completes all transfers by `read`, which reads through this [`forebay_io::FileIo`]; copies
    /// what the tiers lack.
    ///
    /// # Errors
    /// Those of `read`.
    pub fn fill(
        &self,
        transfers: &mut [Transfer<'_>],
        how: Fill<'_>,
        read: &mut dyn FnMut(&mut [Transfer<'_>]) -> Result<(), ReadError>,
    ) -> Result<(), ReadError> {
        let attached = self.client.attached();
        for transfer in transfers.iter() {
            self.watch.begin_read(transfer.shard, how.epoch);
        }
        self.verify_for(&attached, transfers);
        let planned: Vec<Vec<Segment>> =
            transfers.iter().map(|transfer| self.segments(&attached, transfer)).collect();
        let copies = self.copies.as_ref();
        let is_copying = |segment: &Segment| segment.level().is_some();
        let Some(copies) = copies.filter(|_| planned.iter().flatten().any(is_copying)) else {
            return read(transfers);
        };
        let filled = self.fill_copying(copies, &attached, transfers, planned, how, read);
        if filled.is_ok() { filled } else { read(transfers) }
    }

    /// Compares the copies that transfers need with their checksums, where that must be done first.
    fn verify_for(&self, attached: &Attached, transfers: &[Transfer<'_>]) {
        let mut chunks = Vec::new();
        for transfer in transfers.iter().filter(|transfer| self.watch.is_usable(transfer.shard)) {
            let shard = transfer.shard;
            let end = (transfer.offset + transfer.into.len() as u64).min(self.files.bytes(shard));
            let mut offset = transfer.offset;
            while offset < end {
                let Some((geometry, start)) = self.map.locate(shard, offset) else {
                    break;
                };
                offset += geometry.bytes - start;
                if matches!(attached.table.get(geometry.chunk), ChunkEntry::Unverified { .. })
                    && !chunks.contains(&geometry.chunk)
                {
                    chunks.push(geometry.chunk);
                }
            }
        }
        self.verify(attached, &chunks);
    }

    /// Whether a tier lacks bytes that the placement wants there, so that [`TieredFiles::fill`]
    /// would copy them, or has copies that it would compare first.
    #[must_use]
    pub fn lacks(&self, shard: ShardId, offset: u64, length: u64) -> bool {
        if !self.watch.is_usable(shard) {
            return false;
        }
        let makes_copies = self.copies.is_some() && self.watch.is_copyable(shard);
        let attached = self.client.attached();
        let end = (offset + length).min(self.files.bytes(shard));
        let mut offset = offset;
        while offset < end {
            let Some((geometry, start)) = self.map.locate(shard, offset) else { return false };
            let range = start..geometry.bytes.min(start + (end - offset));
            offset += range.end - range.start;
            if matches!(attached.table.get(geometry.chunk), ChunkEntry::Unverified { .. }) {
                return true;
            }
            let have = self.present(&attached, &geometry).map_or(Pieces::NONE, |(_, _, pieces)| pieces);
            let is_lacking = !have.contains(geometry.touching(&range));
            if makes_copies && is_lacking && (self.placement)(geometry.chunk).is_some() {
                return true;
            }
        }
        false
    }

    /// Whether this process copies what it reads of a chunk, as far as is known before the read.
    pub(crate) fn will_copy(&self, shard: ShardId, chunk: ChunkId) -> bool {
        self.copies.is_some() && self.watch.is_copyable(shard) && (self.placement)(chunk).is_some()
    }

    fn fill_copying(
        &self,
        copies: &Copies,
        attached: &Arc<Attached>,
        transfers: &mut [Transfer<'_>],
        planned: Vec<Vec<Segment>>,
        how: Fill<'_>,
        read: &mut dyn FnMut(&mut [Transfer<'_>]) -> Result<(), ReadError>,
    ) -> Result<(), ReadError> {
        let begun_ns = now_ns();
        let mut requests: Vec<Transfer<'_>> = Vec::new();
        let mut widened: Vec<Widened> = Vec::new();
        // Number of the widened request, its bytes, and where they go.
        let mut asked: Vec<(usize, Range<usize>, &mut [u8])> = Vec::new();
        let mut landing: Vec<Landing> = Vec::new();
        for (number, (transfer, segments)) in transfers.iter_mut().zip(planned).enumerate() {
            let shard = transfer.shard;
            let mut at = transfer.offset;
            let mut rest = &mut *transfer.into;
            let mut segments = segments.into_iter().peekable();
            while let Some(first) = segments.next() {
                let begun = first.run.read;
                let mut run = vec![first];
                while let Some(next) = segments.next_if(|segment| is_one_request(begun, segment.run.read)) {
                    run.push(next);
                }
                let length: u64 = run.iter().map(Segment::requested_bytes).sum();
                let read_bytes: u64 =
                    run.iter().map(|segment| segment.read().end - segment.read().start).sum();
                let is_widened = is_widened(run.iter().map(|segment| segment.run.read), read_bytes);
                let request = if is_widened { self.widened(copies, attached, &run, how) } else { None };
                // Around the page cache, a request may go on behind the end of the file.
                let is_rest = request.is_none() && segments.peek().is_none();
                let taken = if is_rest { rest.len() } else { length as usize };
                let (mut into, behind) = std::mem::take(&mut rest).split_at_mut(taken);
                rest = behind;
                if let Some((request, places)) = request {
                    for place in places {
                        let (here, behind) = std::mem::take(&mut into).split_at_mut(place.len());
                        asked.push((widened.len(), place, here));
                        into = behind;
                    }
                    widened.push(request);
                } else {
                    requests.push(Transfer { shard, offset: at, into });
                    if !is_widened {
                        let mut place = (at - transfer.offset) as usize;
                        for segment in run {
                            let end = place + segment.requested_bytes() as usize;
                            let landed = self.landing(copies, attached, segment, number, place..end, how);
                            landing.extend(landed);
                            place = end;
                        }
                    }
                }
                at += length;
            }
        }
        for Widened { buffer, parts, .. } in &mut widened {
            push_parts(&mut requests, buffer, parts);
        }
        for (buffer, parts) in landing.iter_mut().filter_map(|landing| landing.rest.as_mut()) {
            push_parts(&mut requests, buffer, parts);
        }
        read(&mut requests)?;
        drop(requests);
        for (number, place, into) in asked {
            into.copy_from_slice(&widened[number].buffer[place]);
        }
        for Widened { buffer, parts, chunks, mut claims } in widened {
            let shards = parts.iter().map(|part| part.shard).collect();
            self.offer(copies, buffer, chunks, &mut claims, shards, begun_ns);
        }
        // Those that hold a buffer come first: the others may wait for one.
        landing.sort_by_key(|landing| landing.rest.is_none());
        for landing in landing {
            let from = &transfers[landing.transfer].into[landing.place.clone()];
            self.copy_landed(copies, landing, from, how, begun_ns);
        }
        Ok(())
    }

    /// Copies pieces that have landed, unless there is no memory for it.
    fn copy_landed(&self, copies: &Copies, landing: Landing, from: &[u8], how: Fill<'_>, begun_ns: i64) {
        let Landing { segment, level, mut claims, rest, .. } = landing;
        let read = segment.read();
        let place = (segment.run.bytes.start - read.start) as usize;
        let buffer = match rest {
            Some((buffer, _)) => Some(buffer),
            None => take_buffer(copies, from.len(), how),
        };
        let Some(mut buffer) = buffer else {
            self.counters.skipped_bytes.fetch_add(from.len() as u64, Ordering::Relaxed);
            return;
        };
        buffer[place..place + from.len()].copy_from_slice(from);
        let mut shards = Vec::new();
        segment.geometry.files_of(&read, |shard, _, _| shards.push(shard));
        self.offer(copies, buffer, vec![segment.offered(level, 0)], &mut claims, shards, begun_ns);
    }

    /// Hands bytes that were read from `begun_ns` on to the writer, with their claims.
    fn offer(
        &self,
        copies: &Copies,
        buffer: CopyBuffer,
        chunks: Vec<OfferedChunk>,
        claims: &mut Claimed,
        mut shards: Vec<ShardId>,
        begun_ns: i64,
    ) {
        shards.dedup();
        let check = ReadCheck { watch: Arc::clone(&self.watch), shards, begun_ns };
        let mut source: Arc<dyn SourceCheck> = Arc::new(check);
        if self.files.are_of_samples() {
            // They do not stay open for long, and the writer would open each again.
            if !source.is_unchanged() {
                return;
            }
            source = Arc::new(Checked);
        }
        let bytes = chunks.iter().flat_map(|chunk| &chunk.pieces).map(|piece| u64::from(piece.bytes)).sum();
        if copies.is_sample_due(bytes)
            && let Some(shard) = self.differing(&buffer, &chunks)
        {
            self.watch.differs(shard);
            return;
        }
        claims.chunks.clear();
        copies.writer.offer(Offer { buffer, chunks, source });
    }

    /// The file of a block of what was read, if the source has other bytes there by now.
    fn differing(&self, buffer: &CopyBuffer, chunks: &[OfferedChunk]) -> Option<ShardId> {
        let seed = now_ns() as u64;
        let chunk = chunks.get(pick(seed, 0, chunks.len().max(1) as u64) as usize)?;
        let piece = chunk.pieces.get(pick(seed, 1, chunk.pieces.len().max(1) as u64) as usize)?;
        let block = pick(seed, 2, u64::from(piece.bytes).div_ceil(BLOCK_BYTES).max(1)) * BLOCK_BYTES;
        let end = (block + BLOCK_BYTES).min(u64::from(piece.bytes));
        let (start, at) = (u64::from(piece.start) + block, piece.at + block as usize);
        let geometry = self.map.geometry(chunk.chunk.0)?;
        let range = start..u64::from(piece.start) + end;
        let now = source_bytes(&self.files, &geometry, &range)?;
        let mut first = None;
        geometry.files_of(&range, |shard, _, _| first = first.or(Some(shard)));
        first.filter(|_| now != buffer[at..at + now.len()])
    }

    /// How a segment of a transfer is copied; `None` if it is not.
    fn landing(
        &self,
        copies: &Copies,
        attached: &Arc<Attached>,
        segment: Segment,
        transfer: usize,
        place: Range<usize>,
        how: Fill<'_>,
    ) -> Option<Landing> {
        let level = segment.level()?;
        let claims = segment.claimed(attached);
        let read = segment.read();
        let mut rest = None;
        let asked = &segment.run.bytes;
        if read != *asked {
            let mut bytes = (read.end - read.start) as usize;
            let mut parts = Vec::new();
            for missing in [read.start..asked.start, asked.end..read.end] {
                let mut at = (missing.start - read.start) as usize;
                segment.geometry.files_of(&missing, |shard, offset, length| {
                    parts.push(Part { shard, offset, place: at..at + length as usize });
                    at += length as usize;
                });
            }
            if how.direct {
                bytes = bytes.max(self.align_end(&mut parts));
            }
            let Some(buffer) = copies.buffers.take(bytes) else {
                self.counters.skipped_bytes.fetch_add(read.end - read.start, Ordering::Relaxed);
                return None;
            };
            rest = Some((buffer, parts));
        }
        Some(Landing { segment, level, claims, transfer, place, rest })
    }

    /// What there is to do for a transfer, in the order of its bytes.
    fn segments(&self, attached: &Attached, transfer: &Transfer<'_>) -> Vec<Segment> {
        let mut segments: Vec<Segment> = Vec::new();
        let pool_bytes = self.copies.as_ref().map(|copies| copies.buffers.limit_bytes() as u64);
        let most_pieces = pieces_at_once(pool_bytes);
        let shard = transfer.shard;
        let end = (transfer.offset + transfer.into.len() as u64).min(self.files.bytes(shard));
        let mut offset = transfer.offset;
        while offset < end {
            let Some((geometry, start)) = self.map.locate(shard, offset) else { break };
            let range = start..geometry.bytes.min(start + (end - offset));
            offset += range.end - range.start;
            let needed = geometry.touching(&range);
            let (copied, copying, level) = self.missing(attached, &geometry, shard, needed, &range);
            let read = ChunkRead { bytes: range, needed, copied, copying, level };
            for run in read.runs(most_pieces, |run| geometry.bytes_of(run)) {
                segments.push(Segment { geometry: geometry.clone(), run });
            }
        }
        segments
    }

    /// Pieces that a level has, pieces that this process now copies, and the tier they go to.
    fn missing(
        &self,
        attached: &Attached,
        geometry: &Geometry,
        shard: ShardId,
        needed: Pieces,
        range: &Range<u64>,
    ) -> (Pieces, Pieces, Option<u8>) {
        if !self.watch.is_usable(shard) {
            return (Pieces::NONE, Pieces::NONE, None);
        }
        let copied = || self.present(attached, geometry).map_or(Pieces::NONE, |(_, _, pieces)| pieces);
        let mut have = copied();
        let mut lacking = needed.minus(have);
        let may_copy = |place: u8| {
            let level = attached.levels.get(usize::from(place)).map(|level| level.number);
            level.is_some_and(|number| attached.table.level(number) == LevelState::Open)
                && self.health.state(place) == LevelState::Open
        };
        if lacking.is_empty() || self.copies.is_none() || !self.watch.is_copyable(shard) {
            return (have, Pieces::NONE, None);
        }
        let Some(level) = (self.placement)(geometry.chunk).filter(|level| may_copy(*level)) else {
            return (have, Pieces::NONE, None);
        };
        let begun = Instant::now();
        let mut granted = attached.claims.claim(geometry.chunk, lacking);
        loop {
            // What was published between the look and the claim.
            have = copied();
            let late = granted.intersection(have);
            attached.claims.release(geometry.chunk, late);
            granted = granted.minus(late);
            lacking = needed.minus(have).minus(granted);
            let waits_for: u64 = lacking
                .runs()
                .map(|run| geometry.bytes_of(&run))
                .map(|bytes| bytes.end.min(range.end).saturating_sub(bytes.start.max(range.start)))
                .sum();
            if !waits_for_others(waits_for) || begun.elapsed() > WAIT_FOR_OTHERS {
                // Another process copies these.
                self.counters.skipped_bytes.fetch_add(waits_for, Ordering::Relaxed);
                return (have, granted, Some(level));
            }
            std::thread::sleep(LOOK_AT_OTHERS_EVERY);
            granted = granted.union(attached.claims.claim(geometry.chunk, lacking));
        }
    }

    /// Around the page cache a file is read up to the next aligned byte behind its end. Returns the
    /// bytes of the buffer for that.
    fn align_end(&self, parts: &mut [Part]) -> usize {
        let Some(Part { shard, offset, place }) = parts.last_mut() else { return 0 };
        if *offset + place.len() as u64 == self.files.bytes(*shard) {
            place.end = place.start + place.len().next_multiple_of(ALIGN_BYTES);
        }
        place.end
    }

    /// One request for segments that follow each other, and where in the buffer the bytes are that
    /// were asked for; `None` if they are read as they are asked for.
    fn widened(
        &self,
        copies: &Copies,
        attached: &Arc<Attached>,
        run: &[Segment],
        how: Fill<'_>,
    ) -> Option<(Widened, Vec<Range<usize>>)> {
        let mut claims = Claimed { attached: Arc::clone(attached), chunks: Vec::new() };
        let mut parts: Vec<Part> = Vec::new();
        let mut chunks: Vec<OfferedChunk> = Vec::new();
        let mut places: Vec<Range<usize>> = Vec::new();
        let mut filled = 0;
        let mut wanted = 0;
        for segment in run {
            let Segment { geometry, run: PieceRun { bytes, .. } } = segment;
            let read = segment.read();
            let start = filled;
            geometry.files_of(&read, |file, offset, length| {
                let end = filled + length as usize;
                match parts.last_mut() {
                    Some(last) if last.shard == file && last.offset + last.place.len() as u64 == offset => {
                        last.place.end = end;
                    }
                    _ => parts.push(Part { shard: file, offset, place: filled..end }),
                }
                filled = end;
            });
            let place = start + (bytes.start - read.start) as usize;
            places.push(place..place + (bytes.end - bytes.start) as usize);
            if let Some(level) = segment.level() {
                claims.chunks.append(&mut segment.claimed(attached).chunks);
                wanted += read.end - read.start;
                let mut offered = segment.offered(level, start);
                match chunks.last_mut() {
                    Some(last) if last.chunk == offered.chunk => last.pieces.append(&mut offered.pieces),
                    _ => chunks.push(offered),
                }
            }
        }
        let mut bytes = filled;
        if how.direct {
            bytes = bytes.max(self.align_end(&mut parts));
        }
        let Some(buffer) = take_buffer(copies, bytes, how) else {
            self.counters.skipped_bytes.fetch_add(wanted, Ordering::Relaxed);
            return None;
        };
        Some((Widened { buffer, parts, chunks, claims }, places))
    }
}

/// Adds the requests for the parts.
fn push_parts<'a>(requests: &mut Vec<Transfer<'a>>, buffer: &'a mut CopyBuffer, parts: &[Part]) {
    let mut memory = &mut buffer[..];
    let mut at = 0;
    for Part { shard, offset, place } in parts {
        let (_, behind) = std::mem::take(&mut memory).split_at_mut(place.start - at);
        let (into, behind) = behind.split_at_mut(place.len());
        requests.push(Transfer { shard: *shard, offset: *offset, into });
        memory = behind;
        at = place.end;
    }
}

/// A copy buffer; waits for one while there is time.
fn take_buffer(copies: &Copies, bytes: usize, how: Fill<'_>) -> Option<CopyBuffer> {
    let begun = Instant::now();
    loop {
        let taken = copies.buffers.take(bytes);
        let most = buffer_wait((how.has_time)());
        if taken.is_some() || bytes > copies.buffers.limit_bytes() || begun.elapsed() > most {
            return taken;
        }
        std::thread::sleep(LOOK_FOR_BUFFER_EVERY);
    }
}

/// A request whose files were looked at after it was read.
struct Checked;

impl SourceCheck for Checked {
    fn is_unchanged(&self) -> bool {
        true
    }
}

/// Looks at the files of a request after it was read.
struct ReadCheck {
    watch: Arc<SourceWatch>,
    shards: Vec<ShardId>,
    begun_ns: i64,
}

impl SourceCheck for ReadCheck {
    fn is_unchanged(&self) -> bool {
        self.shards.iter().all(|shard| self.watch.is_unchanged(*shard, self.begun_ns))
    }
}
