//! The files of a dataset, with copies in tiers in front of them.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use forebay_io::{At, Descriptor, FileIo, LevelId, LevelSet, ShardFiles, Span, pread_span};
use forebay_plan::{ChunkMap, Geometry};
use forebay_types::{CHUNK_BYTES, ChunkId, Pieces, ShardId};

use crate::client::connection::CHUNKS_AT_ONCE;
use crate::client::{Attached, TierClient};
use crate::copy::buffers::CopyBuffers;
use crate::copy::offer::{Copied, Publisher};
use crate::copy::writer::Writer;
use crate::error::TierError;
use crate::level::health::{Health, LevelOperation};
use crate::level::memory::SlabMaps;
use crate::level::storage::LevelStorage;
use crate::log::PieceSum;
use crate::source::identity::SourceState;
use crate::source::sampled::BYTES_PER_BLOCK;
use crate::source::watch::SourceWatch;
use crate::table::LevelState;
use crate::table::entry::{ChunkEntry, SlotId};

/// Alignment of reads around the page cache \[bytes\].
pub(crate) const ALIGN_BYTES: usize = 4096;

/// Which tier a chunk is to be copied to: its place in the user's list.
pub type PlacementFn = Arc<dyn Fn(ChunkId) -> Option<u8> + Send + Sync>;

/// How a process uses tiers.
pub struct TierSetup {
    /// The files of the dataset, or what holds their bytes.
    pub files: Arc<ShardFiles>,
    /// The files themselves, which are watched for changes.
    pub watched: Arc<ShardFiles>,
    /// What they were when the sources were named; empty for files of one sample each.
    pub states: Vec<SourceState>,
    /// How the files are cut.
    pub map: ChunkMap,
    /// Where copies go.
    pub placement: PlacementFn,
    /// Memory for copies on their way \[bytes\]; 0: this process makes no copies.
    pub buffer_bytes: usize,
}

/// See the module header.
pub struct TieredFiles {
    pub(crate) files: Arc<ShardFiles>,
    pub(crate) client: Arc<TierClient>,
    pub(crate) map: ChunkMap,
    pub(crate) watch: Arc<SourceWatch>,
    pub(crate) health: Arc<Health>,
    pub(crate) placement: PlacementFn,
    pub(crate) copies: Option<Copies>,
    pub(crate) counters: TierCounters,
    /// Mappings of the slabs of each tier that is memory.
    maps: Vec<SlabMaps>,
}

/// What a process needs to make copies.
pub(crate) struct Copies {
    pub(crate) buffers: Arc<CopyBuffers>,
    pub(crate) writer: Writer,
    /// Bytes that may be copied until a block is read again \[bytes\].
    until_sample: AtomicU64,
}

impl Copies {
    /// Whether a block of these bytes is to be read again.
    pub(crate) fn is_sample_due(&self, bytes: u64) -> bool {
        let left = self.until_sample.load(Ordering::Relaxed);
        // Two threads that come at once may count for one.
        self.until_sample.store(left.checked_sub(bytes).unwrap_or(BYTES_PER_BLOCK), Ordering::Relaxed);
        left < bytes
    }
}

/// What the copies of a process have come to.
#[derive(Default)]
pub(crate) struct TierCounters {
    pub(crate) copied_bytes: Arc<AtomicU64>,
    pub(crate) skipped_bytes: AtomicU64,
}

impl TieredFiles {
    /// Reads through the copies that a client knows of.
    ///
    /// # Errors
    /// The daemon knows another dataset, or the system refuses threads.
    pub fn new(client: Arc<TierClient>, setup: TierSetup) -> Result<Self, TierError> {
        let TierSetup { files, watched, states, map, placement, buffer_bytes } = setup;
        let attached = client.attached();
        if attached.table.chunks() != map.chunks() {
            return Err(TierError::Protocol {
                attempt: "attach",
                expected: format!("{} chunks", map.chunks()),
                found: format!("{} chunks", attached.table.chunks()),
            });
        }
        let names: Vec<String> = attached.levels.iter().map(|level| level.name.clone()).collect();
        let health = Health::new(&names);
        let counters = TierCounters::default();
        let copies = match buffer_bytes {
            0 => None,
            bytes => {
                let publisher = DaemonPublisher {
                    client: Arc::clone(&client),
                    copied_bytes: Arc::clone(&counters.copied_bytes),
                };
                let writer =
                    Writer::start(attached.storages.clone(), Arc::new(publisher), Arc::clone(&health))?;
                Some(Copies { buffers: CopyBuffers::new(bytes), writer, until_sample: AtomicU64::new(0) })
            }
        };
        let watch = Arc::new(SourceWatch::new(watched, &states));
        let maps = attached.levels.iter().map(|_| SlabMaps::default()).collect();
        Ok(Self { files, client, map, watch, health, placement, copies, counters, maps })
    }

    /// What is known since this process attached.
    #[must_use]
    pub fn attached(&self) -> Arc<Attached> {
        self.client.attached()
    }

    /// Bytes of copies that this process has published \[bytes\].
    #[must_use]
    pub fn copied_bytes(&self) -> u64 {
        self.counters.copied_bytes.load(Ordering::Relaxed)
    }

    /// Bytes that this process read from the source and should have copied, and did not \[bytes\].
    #[must_use]
    pub fn skipped_bytes(&self) -> u64 {
        self.counters.skipped_bytes.load(Ordering::Relaxed)
    }

    /// Takes what should be told to the user.
    pub fn take_warnings(&self) -> Vec<String> {
        // What the daemon found: it allocates and logs.
        let attached = self.client.attached();
        for (place, level) in attached.levels.iter().enumerate() {
            if attached.table.level(level.number) == LevelState::Out {
                self.health.given_up(place as u8);
            }
        }
        let mut warnings = self.health.take_warnings();
        warnings.extend(self.watch.take_warnings());
        warnings
    }

    /// The bytes of a range of a file, if a copy in memory has them, and the tier's place in the
    /// user's list. They count only where `guard::faults` is afterwards what it was before.
    #[must_use]
    pub fn in_memory(&self, shard: ShardId, offset: u64, length: u64) -> Option<(usize, &[u8])> {
        let attached = self.client.attached();
        let (place, slot, start) = self.memory_place(&attached, shard, offset, length)?;
        let first = u64::from(slot.slot) * CHUNK_BYTES + start;
        let range = first as usize..(first + length) as usize;
        let bytes = self.maps[place].bytes(&*attached.storages[place], slot.slab, range)?;
        Some((place, bytes))
    }

    /// The tier in memory that has all bytes of a range of a file, which may be in several chunks.
    #[must_use]
    pub fn memory_level(&self, shard: ShardId, offset: u64, length: u64) -> Option<usize> {
        let attached = self.client.attached();
        let (mut at, end) = (offset, offset + length);
        let mut first = None;
        if attached.levels.iter().any(|level| level.is_memory) {
            self.watch.look_sometimes(shard);
        }
        while at < end {
            let (geometry, start) = self.map.locate(shard, at)?;
            let here = (geometry.bytes - start).min(end - at);
            let (place, ..) = self.memory_place(&attached, shard, at, here)?;
            first.get_or_insert(place);
            at += here;
        }
        first
    }

    /// The tier in memory, and the slot, of bytes in one chunk; their start in it.
    fn memory_place(
        &self,
        attached: &Attached,
        shard: ShardId,
        offset: u64,
        length: u64,
    ) -> Option<(usize, SlotId, u64)> {
        if !attached.levels.iter().any(|level| level.is_memory) || !self.watch.is_usable(shard) {
            return None;
        }
        let (geometry, start) = self.map.locate(shard, offset)?;
        let (place, slot, pieces) = self.present(attached, &geometry)?;
        let is_whole = start + length <= geometry.bytes
            && attached.levels[place].is_memory
            && pieces.contains(geometry.touching(&(start..start + length)));
        is_whole.then_some((place, slot, start))
    }

    /// Gives up tiers in memory of which a page was lost; whether there are any.
    pub fn notice_lost(&self) -> bool {
        let lost = self.maps.iter().enumerate().filter(|(_, maps)| maps.is_any_lost());
        let mut is_any = false;
        for (place, _) in lost {
            is_any = true;
            if self.health.failed(place as u8, LevelOperation::Read, &io::Error::from_raw_os_error(libc::EIO))
            {
                self.client.level_failed(place as u8);
            }
        }
        is_any
    }

    /// Waits until all copies that were offered are published; false if that takes too long.
    #[must_use]
    pub fn finish_copies(&self, within: Duration) -> bool {
        self.copies.as_ref().is_none_or(|copies| copies.writer.finish(within))
    }

    /// Makes no more copies, and leaves the daemon after those under way, or after `within`.
    pub fn close(&self, within: Duration) {
        let _ = self.finish_copies(within);
        self.client.close();
    }

    /// What a chunk's pieces are, and where: those that can be read now.
    pub(crate) fn present(
        &self,
        attached: &Attached,
        geometry: &Geometry,
    ) -> Option<(usize, SlotId, Pieces)> {
        let entry = match attached.table.get(geometry.chunk) {
            ChunkEntry::Absent | ChunkEntry::Unverified { .. } => return None,
            ChunkEntry::Present { at, pieces } => (at, pieces),
        };
        let place = attached.place_of(entry.0.level)?;
        let is_used = attached.table.level(entry.0.level) != LevelState::Out
            && self.health.state(place as u8) != LevelState::Out;
        is_used.then_some((place, entry.0, entry.1))
    }

    /// Compares the checksums of chunks that must be before they are used.
    pub(crate) fn verify(&self, attached: &Attached, chunks: &[ChunkId]) {
        let mut buffer = Vec::new();
        for chunks in chunks.chunks(CHUNKS_AT_ONCE) {
            let Ok(unverified) = self.client.sums(chunks) else { return };
            let good: Vec<(ChunkId, Pieces)> = unverified
                .iter()
                .map(|found| {
                    let storage = &attached.storages[usize::from(found.at.level)];
                    (found.chunk, good_pieces(&**storage, found.at, &found.sums, &mut buffer))
                })
                .collect();
            if !good.is_empty() {
                let _ = self.client.verified(&good);
            }
        }
    }

    /// The span of a copy that has the byte at `at`, if there is one.
    fn copy_span(&self, at: At, length: usize, left_out: LevelSet) -> Option<Span<'_>> {
        if !self.watch.is_usable(at.shard) {
            return None;
        }
        let (geometry, start) = self.map.locate(at.shard, at.offset)?;
        let attached = self.client.attached();
        let (place, slot, pieces) = self.present(&attached, &geometry)?;
        let level = LevelId::copy(place);
        if left_out.contains(level) {
            return None;
        }
        let piece = geometry.piece_at(start);
        let run = pieces.runs().find(|run| run.contains(&piece))?;
        let length = (geometry.bytes_of(&run).end - start).min(length as u64);
        let storage = &attached.storages[place];
        let offset = u64::from(slot.slot) * CHUNK_BYTES + start;
        // The last piece of a file may have any length.
        let direct = at.direct && (offset | length).is_multiple_of(ALIGN_BYTES as u64);
        // A slab that is gone is no failure: its dataset was not in use for a moment.
        let descriptor = storage.open(slot.slab, direct).or_else(|_| storage.open(slot.slab, false)).ok()?;
        let descriptor = Descriptor::Shared(descriptor);
        Some(Span { source: at, level, descriptor, offset, length: length as usize })
    }

    /// How many bytes from `at` on, which has no copy that can be read, come before one that has.
    fn uncopied_length(&self, at: At, length: usize, left_out: LevelSet) -> usize {
        if !self.watch.is_usable(at.shard) {
            return length;
        }
        let attached = self.client.attached();
        let mut ahead = 0;
        while ahead < length as u64 {
            let Some((geometry, start)) = self.map.locate(at.shard, at.offset + ahead) else { break };
            let copied = match self.present(&attached, &geometry) {
                Some((place, _, pieces)) if !left_out.contains(LevelId::copy(place)) => pieces,
                _ => Pieces::NONE,
            };
            let own = geometry.piece_at(start);
            if let Some(piece) = copied.iter().find(|piece| *piece > own || *piece == own && ahead > 0) {
                let begin = geometry.bytes_of(&(piece..piece + 1)).start;
                return (ahead + begin.saturating_sub(start)).min(length as u64) as usize;
            }
            ahead += geometry.bytes - start;
        }
        length
    }
}

impl FileIo for TieredFiles {
    fn files(&self) -> &ShardFiles {
        &self.files
    }

    fn span(&self, at: At, length: usize, left_out: LevelSet) -> io::Result<Span<'_>> {
        match self.copy_span(at, length, left_out) {
            Some(span) => Ok(span),
            None => self.files.source_span(at, self.uncopied_length(at, length, left_out)),
        }
    }

    fn copy_failed(&self, level: LevelId, _: At, error: &io::Error) {
        let Some(place) = level.copy_number() else { return };
        if self.health.failed(place as u8, LevelOperation::Read, error) {
            self.client.level_failed(place as u8);
        }
    }

    fn answered(&self, level: LevelId, bytes: usize, took: Duration) {
        self.health.read(level.copy_number().map(|place| place as u8), bytes as u64, took);
    }

    fn pread(&self, span: &Span<'_>, head: &mut [u8], into: &mut [u8]) -> io::Result<usize> {
        let begun = Instant::now();
        let mark = span.level.copy_number().map(|place| self.health.begin_read(place as u8));
        let answer = pread_span(span, head, into);
        let bytes = answer.as_ref().map_or(0, |bytes| *bytes as u64);
        match mark {
            Some(mark) => mark.end(bytes),
            None => self.health.read(None, bytes, begun.elapsed()),
        }
        answer
    }
}

/// The pieces of a slot whose bytes have their checksums. Pieces that follow each other are one
/// read.
pub(crate) fn good_pieces(
    storage: &dyn LevelStorage,
    at: SlotId,
    sums: &[PieceSum],
    buffer: &mut Vec<u8>,
) -> Pieces {
    let slot = u64::from(at.slot) * CHUNK_BYTES;
    let mut good = Pieces::NONE;
    let valid: Vec<&PieceSum> = sums.iter().filter(|sum| sum.is_valid()).collect();
    for run in valid.chunk_by(|one, next| one.start + one.bytes == next.start) {
        let (first, last) = (run[0], run[run.len() - 1]);
        let length = (last.start + last.bytes - first.start) as usize;
        buffer.resize(buffer.len().max(length), 0);
        let bytes = &mut buffer[..length];
        if storage.read(at.slab, slot + u64::from(first.start), bytes).is_err() {
            continue;
        }
        for sum in run {
            let start = (sum.start - first.start) as usize;
            if crc32c::crc32c(&bytes[start..start + sum.bytes as usize]) == sum.crc {
                good = good.union(Pieces(1 << sum.piece));
            }
        }
    }
    good
}

/// Publishes the copies of this process through the daemon.
struct DaemonPublisher {
    client: Arc<TierClient>,
    copied_bytes: Arc<AtomicU64>,
}

impl Publisher for DaemonPublisher {
    fn place(&self, wanted: &[(ChunkId, u8)]) -> Result<Vec<Option<SlotId>>, TierError> {
        self.client.place(wanted)
    }

    fn publish(&self, copied: &[Copied]) -> Result<(), TierError> {
        self.client.publish(copied)?;
        let attached = self.client.attached();
        for copy in copied {
            attached.claims.release(copy.chunk, copy.numbers());
            let bytes = copy.sums.iter().map(|sum| u64::from(sum.bytes)).sum();
            self.copied_bytes.fetch_add(bytes, Ordering::Relaxed);
        }
        Ok(())
    }

    fn give_up(&self, chunk: ChunkId, pieces: Pieces) {
        self.client.attached().claims.release(chunk, pieces);
    }

    fn level_failed(&self, level: u8) {
        self.client.level_failed(level);
    }
}
