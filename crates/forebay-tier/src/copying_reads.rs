//! Reads that fill the tiers: what is missing there is read from the source in whole pieces, and
//! copied.
//!
//! 1. The bytes of each transfer that have a copy are read there (`tiered_files.rs`).
//! 2. Bytes that follow each other and have none are one request to the source. Where the placement
//!    wants them, the request is widened to whole pieces, and goes to a copy buffer: what was asked
//!    for is copied from there to its place, and the writer copies the pieces to their tier.
//! 3. Pieces that another process is copying are waited for a moment, if that saves more than a
//!    piece.
//!
//! A widened read that fails is made again as it was asked for: bytes that nobody asked for must
//! not make a sample fail.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use forebay_io::{At, ReadError, Transfer};
use forebay_types::ShardId;

use crate::chunk::{ChunkId, PIECE_BYTES, PIECES, Pieces};
use crate::chunk_map::Geometry;
use crate::client::Attached;
use crate::copy_buffers::CopyBuffer;
use crate::entry::Entry;
use crate::offer::{Offer, OfferedChunk, OfferedPiece, SourceCheck};
use crate::source_watch::{SourceWatch, now_ns};
use crate::table::LevelState;
use crate::tiered_files::{ALIGN_BYTES, Copies, TieredFiles};

/// Longest wait for pieces that another process is copying.
const WAIT_FOR_OTHERS: Duration = Duration::from_millis(200);

/// Interval between two looks at them.
const LOOK_EVERY: Duration = Duration::from_micros(500);

/// Interval between two looks for a free copy buffer.
const LOOK_FOR_BUFFER_EVERY: Duration = Duration::from_millis(1);

/// Longest wait for one.
const WAIT_FOR_BUFFER: Duration = Duration::from_secs(1);

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
    /// The pieces.
    pieces: Range<u32>,
    /// The bytes that are asked for [bytes from the start of the chunk].
    bytes: Range<u64>,
    kind: Kind,
}

impl Segment {
    /// What is read for it \[bytes\]: whole pieces, where they are copied.
    fn read_bytes(&self) -> u64 {
        let read = match self.kind {
            Kind::Copying(_) => self.geometry.bytes_of(&self.pieces),
            _ => self.bytes.clone(),
        };
        read.end - read.start
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// A level has them.
    Copied,
    /// They are read from the source as they are asked for.
    Source,
    /// They are read from the source, and this process copies them to this tier.
    Copying(u8),
}

/// A request to the source that goes to a buffer.
struct Copying {
    buffer: CopyBuffer,
    /// Parts of files, one behind the other in the buffer.
    parts: Vec<(ShardId, u64, usize)>,
    chunks: Vec<OfferedChunk>,
    claims: Claimed,
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
            self.watch.begin_epoch(transfer.shard, how.epoch);
        }
        let planned: Vec<Vec<Segment>> =
            transfers.iter().map(|transfer| self.segments(&attached, transfer)).collect();
        let copies = self.copies.as_ref();
        let is_copying = |segment: &Segment| matches!(segment.kind, Kind::Copying(_));
        let Some(copies) = copies.filter(|_| planned.iter().flatten().any(is_copying)) else {
            return read(transfers);
        };
        let filled = self.fill_copying(copies, &attached, transfers, planned, how, read);
        if filled.is_ok() { filled } else { read(transfers) }
    }

    /// Whether a tier lacks bytes that the placement wants there, so that [`TieredFiles::fill`]
    /// would copy them.
    #[must_use]
    pub fn lacks(&self, shard: ShardId, offset: u64, length: u64) -> bool {
        if self.copies.is_none() || !self.watch.is_copyable(shard) {
            return false;
        }
        let attached = self.client.attached();
        let end = (offset + length).min(self.files.bytes(shard));
        let mut offset = offset;
        while offset < end {
            let at = At { shard, offset, direct: false };
            let Some((geometry, start)) = self.map.locate(at) else { return false };
            let range = start..geometry.bytes.min(start + (end - offset));
            offset += range.end - range.start;
            let have = self.present(&attached, &geometry).map_or(Pieces::NONE, |(_, _, pieces)| pieces);
            if !have.contains(geometry.touching(&range)) && (self.placement)(geometry.chunk).is_some() {
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
        let mut plain: Vec<Transfer<'_>> = Vec::new();
        let mut copying: Vec<Copying> = Vec::new();
        // Number of the request, its bytes, and where they go.
        let mut landing: Vec<(usize, Range<usize>, &mut [u8])> = Vec::new();
        for (transfer, segments) in transfers.iter_mut().zip(planned) {
            let shard = transfer.shard;
            let mut at = transfer.offset;
            let mut rest = &mut *transfer.into;
            // A run goes to one buffer, so it must be shorter than the pool.
            let mut run_bytes = 0;
            let most_bytes = copies.buffers.limit_bytes() as u64 / 4 * 3;
            let goes_on = |one: &Segment, next: &Segment| {
                run_bytes += one.read_bytes();
                let goes_on = (one.kind == Kind::Copied) == (next.kind == Kind::Copied)
                    && run_bytes + next.read_bytes() <= most_bytes;
                run_bytes = if goes_on { run_bytes } else { 0 };
                goes_on
            };
            let mut runs = segments.chunk_by(goes_on).peekable();
            while let Some(run) = runs.next() {
                let length: u64 = run.iter().map(|segment| segment.bytes.end - segment.bytes.start).sum();
                let request = self.copying(copies, attached, shard, run, how);
                // Around the page cache, a request may go on behind the end of the file.
                let is_rest = request.is_none() && runs.peek().is_none();
                let taken = if is_rest { rest.len() } else { length as usize };
                let (mut into, behind) = std::mem::take(&mut rest).split_at_mut(taken);
                rest = behind;
                if let Some((request, places)) = request {
                    for place in places {
                        let (here, behind) = std::mem::take(&mut into).split_at_mut(place.len());
                        landing.push((copying.len(), place, here));
                        into = behind;
                    }
                    copying.push(request);
                } else {
                    plain.push(Transfer { shard, offset: at, into });
                }
                at += length;
            }
        }
        let mut requests: Vec<Transfer<'_>> = Vec::with_capacity(plain.len() + copying.len());
        requests.extend(plain);
        for Copying { buffer, parts, .. } in &mut copying {
            let mut memory = &mut buffer[..];
            for (shard, offset, length) in parts {
                let (into, behind) = std::mem::take(&mut memory).split_at_mut(*length);
                requests.push(Transfer { shard: *shard, offset: *offset, into });
                memory = behind;
            }
        }
        read(&mut requests)?;
        drop(requests);
        for (number, place, into) in landing {
            into.copy_from_slice(&copying[number].buffer[place]);
        }
        for Copying { buffer, parts, chunks, mut claims } in copying {
            let mut shards: Vec<ShardId> = parts.iter().map(|(shard, ..)| *shard).collect();
            shards.dedup();
            let check = ReadCheck { watch: Arc::clone(&self.watch), shards, begun_ns };
            // Files of one sample do not stay open for long.
            if self.files.are_of_samples() && !check.is_unchanged() {
                continue;
            }
            claims.chunks.clear();
            copies.writer.offer(Offer { buffer, chunks, source: Arc::new(check) });
        }
        Ok(())
    }

    /// What there is to do for a transfer, in the order of its bytes.
    fn segments(&self, attached: &Attached, transfer: &Transfer<'_>) -> Vec<Segment> {
        let mut segments: Vec<Segment> = Vec::new();
        // Several fit into the pool.
        let pool = self.copies.as_ref().map(|copies| copies.buffers.limit_bytes() as u64 / 2 / PIECE_BYTES);
        let most_pieces = pool.map_or(PIECES, |pieces| pieces.clamp(1, u64::from(PIECES)) as u32);
        let shard = transfer.shard;
        let end = (transfer.offset + transfer.into.len() as u64).min(self.files.bytes(shard));
        let mut offset = transfer.offset;
        while offset < end {
            let Some((geometry, start)) = self.map.locate(At { shard, offset, direct: false }) else { break };
            let range = start..geometry.bytes.min(start + (end - offset));
            offset += range.end - range.start;
            let needed = geometry.touching(&range);
            let (copied, copying, level) = self.missing(attached, &geometry, shard, needed, &range);
            let kind_of = |piece: u32| {
                let piece = Pieces(1 << piece);
                match level {
                    _ if copied.contains(piece) => Kind::Copied,
                    Some(level) if copying.contains(piece) => Kind::Copying(level),
                    _ => Kind::Source,
                }
            };
            let mut pieces = needed.iter().peekable();
            while let Some(first) = pieces.next() {
                let kind = kind_of(first);
                let mut behind = first + 1;
                let is_short = |behind: u32| kind == Kind::Copied || behind - first < most_pieces;
                while pieces.next_if(|next| kind_of(*next) == kind && is_short(behind)).is_some() {
                    behind += 1;
                }
                let whole = geometry.bytes_of(&(first..behind));
                let bytes = whole.start.max(range.start)..whole.end.min(range.end);
                segments.push(Segment { geometry: geometry.clone(), pieces: first..behind, bytes, kind });
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
        if matches!(attached.table.get(geometry.chunk), Entry::Unverified { .. }) {
            self.verify(attached, geometry.chunk);
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
            if waits_for < PIECE_BYTES || begun.elapsed() > WAIT_FOR_OTHERS {
                return (have, granted, Some(level));
            }
            std::thread::sleep(LOOK_EVERY);
            granted = granted.union(attached.claims.claim(geometry.chunk, lacking));
        }
    }

    /// One request for segments that follow each other, and where in the buffer the bytes are that
    /// were asked for; `None` if they are read as they are asked for.
    fn copying(
        &self,
        copies: &Copies,
        attached: &Arc<Attached>,
        shard: ShardId,
        run: &[Segment],
        how: Fill<'_>,
    ) -> Option<(Copying, Vec<Range<usize>>)> {
        let mut claims = Claimed { attached: Arc::clone(attached), chunks: Vec::new() };
        let mut parts: Vec<(ShardId, u64, usize)> = Vec::new();
        let mut chunks: Vec<OfferedChunk> = Vec::new();
        let mut places: Vec<Range<usize>> = Vec::new();
        let mut filled = 0;
        let mut wanted = 0;
        for Segment { geometry, pieces, bytes, kind } in run {
            let read = match kind {
                Kind::Copying(_) => geometry.bytes_of(pieces),
                _ => bytes.clone(),
            };
            let start = filled;
            geometry.files_of(&read, |file, offset, length| {
                match parts.last_mut() {
                    Some((last, from, known)) if *last == file && *from + *known as u64 == offset => {
                        *known += length as usize;
                    }
                    _ => parts.push((file, offset, length as usize)),
                }
                filled += length as usize;
            });
            let place = start + (bytes.start - read.start) as usize;
            places.push(place..place + (bytes.end - bytes.start) as usize);
            if let Kind::Copying(level) = kind {
                let offered = pieces.clone().map(|piece| {
                    let here = geometry.bytes_of(&(piece..piece + 1));
                    OfferedPiece {
                        piece: piece as u8,
                        start: here.start as u32,
                        bytes: (here.end - here.start) as u32,
                        at: start + (here.start - read.start) as usize,
                    }
                });
                let offered: Vec<OfferedPiece> = offered.collect();
                let mask = offered.iter().fold(Pieces::NONE, |all, one| all.union(Pieces(1 << one.piece)));
                claims.chunks.push((geometry.chunk, mask));
                wanted += read.end - read.start;
                match chunks.last_mut() {
                    Some(last) if last.chunk == geometry.chunk => last.pieces.extend(offered),
                    _ => chunks.push(OfferedChunk { chunk: geometry.chunk, level: *level, pieces: offered }),
                }
            }
        }
        if chunks.is_empty() {
            return None;
        }
        let mut bytes = filled;
        if how.direct
            && let Some((last, offset, length)) = parts.last_mut()
        {
            // Around the page cache a file is read up to the next aligned byte behind its end.
            if *last == shard && *offset + *length as u64 == self.files.bytes(shard) {
                let more = length.next_multiple_of(ALIGN_BYTES) - *length;
                *length += more;
                bytes += more;
            }
        }
        let Some(buffer) = take_buffer(copies, bytes, how) else {
            self.counters.skipped_bytes.fetch_add(wanted, Ordering::Relaxed);
            return None;
        };
        Some((Copying { buffer, parts, chunks, claims }, places))
    }
}

/// A copy buffer; waits for one while there is time.
fn take_buffer(copies: &Copies, bytes: usize, how: Fill<'_>) -> Option<CopyBuffer> {
    let begun = Instant::now();
    loop {
        let taken = copies.buffers.take(bytes);
        let gives_up = bytes > copies.buffers.limit_bytes() || begun.elapsed() > WAIT_FOR_BUFFER;
        if taken.is_some() || gives_up || !(how.has_time)() {
            return taken;
        }
        std::thread::sleep(LOOK_FOR_BUFFER_EVERY);
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
