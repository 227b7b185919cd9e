//! Which chunk and piece a byte of the dataset is in.
//!
//! - A file is cut into chunks of 1 MiB, a chunk into pieces of 64 KiB; each file begins a chunk.
//! - Where each sample is a file, whole files follow each other in a chunk, as many as fit. A piece
//!   is one of them, or several neighbours where a chunk has more than 16. A file that is longer
//!   than a chunk has its chunks for itself.

use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use forebay_types::{
    CHUNK_BYTES, ChunkId, ChunkPlace, ChunkPlaces, PIECE_BYTES, PIECES, Pieces, ShardId, run_bytes,
};

/// Length of a file \[bytes\].
pub type FileBytes = Arc<dyn Fn(ShardId) -> io::Result<u64> + Send + Sync>;

/// Where the bytes of a dataset are in chunks.
pub struct ChunkMap {
    kind: SourceKind,
    chunks: u64,
}

enum SourceKind {
    /// First chunk and size of each file.
    Files(Vec<(u64, u64)>),
    SampleFiles {
        file_bytes: FileBytes,
        /// First file of each chunk, and at the end the number of files.
        first_files: Vec<u32>,
        /// The chunk that was asked for last.
        last: Mutex<Option<Geometry>>,
    },
}

/// How one chunk is made. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// The chunk.
    pub chunk: ChunkId,
    /// Its length \[bytes\].
    pub bytes: u64,
    shape: Shape,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Shape {
    /// Bytes of one file, from `offset` on, in pieces of the same length.
    OneFile { shard: ShardId, offset: u64 },
    /// Whole files.
    Files(Arc<Files>),
}

#[derive(Debug, PartialEq, Eq)]
struct Files {
    /// The end of each piece [bytes from the start of the chunk].
    ends: Vec<u32>,
    /// The files that have bytes, in order.
    parts: Vec<Part>,
}

/// A file in a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Part {
    shard: ShardId,
    /// First byte in the chunk.
    start: u64,
    bytes: u64,
}

impl Geometry {
    /// The pieces that have a byte of `range` [bytes from the start of the chunk].
    #[must_use]
    pub fn touching(&self, range: &Range<u64>) -> Pieces {
        let Shape::Files(files) = &self.shape else { return Pieces::touching(range.clone()) };
        if range.is_empty() {
            return Pieces::NONE;
        }
        let first = files.ends.partition_point(|end| u64::from(*end) <= range.start);
        let behind = files.ends.partition_point(|end| u64::from(*end) < range.end) + 1;
        let below = |end: usize| ((1_u32 << end.min(PIECES as usize)) - 1) as u16;
        Pieces(below(behind.min(files.ends.len())) & !below(first))
    }

    /// The bytes of pieces that follow each other [bytes from the start of the chunk].
    #[must_use]
    pub fn bytes_of(&self, run: &Range<u32>) -> Range<u64> {
        match &self.shape {
            Shape::OneFile { .. } => run_bytes(run, self.bytes),
            Shape::Files(files) => {
                let end_of = |number: u32| match number {
                    0 => 0,
                    number => u64::from(files.ends[number as usize - 1]),
                };
                end_of(run.start)..end_of(run.end)
            }
        }
    }

    /// The piece of a byte [bytes from the start of the chunk].
    #[must_use]
    pub fn piece_at(&self, offset: u64) -> u32 {
        match &self.shape {
            Shape::OneFile { .. } => (offset / PIECE_BYTES) as u32,
            Shape::Files(files) => files.ends.partition_point(|end| u64::from(*end) <= offset) as u32,
        }
    }

    /// Calls `found` with the parts of files that make up `range` [bytes from the start of the
    /// chunk]: file, first byte there, length.
    pub fn files_of(&self, range: &Range<u64>, mut found: impl FnMut(ShardId, u64, u64)) {
        match &self.shape {
            Shape::OneFile { shard, offset } => {
                let end = range.end.min(self.bytes);
                if range.start < end {
                    found(*shard, offset + range.start, end - range.start);
                }
            }
            Shape::Files(files) => {
                for part in &files.parts {
                    let (start, end) =
                        (part.start.max(range.start), (part.start + part.bytes).min(range.end));
                    if start < end {
                        found(part.shard, start - part.start, end - start);
                    }
                }
            }
        }
    }

    fn of_file(chunk: ChunkId, shard: ShardId, offset: u64, bytes: u64) -> Self {
        Self { chunk, bytes, shape: Shape::OneFile { shard, offset } }
    }

    fn of_sample_files(file_bytes: &FileBytes, first_files: &[u32], chunk: usize) -> Option<Self> {
        let first = first_files[chunk];
        let alone = |other: Option<&u32>| other == Some(&first);
        let chunk_id = ChunkId(chunk as u64);
        if alone(first_files.get(chunk + 1)) || (chunk > 0 && alone(first_files.get(chunk - 1))) {
            let start = first_files.partition_point(|other| *other < first);
            let offset = (chunk - start) as u64 * CHUNK_BYTES;
            let bytes = file_bytes(ShardId(first)).ok()?.checked_sub(offset)?.min(CHUNK_BYTES);
            return Some(Self::of_file(chunk_id, ShardId(first), offset, bytes));
        }
        let mut parts = Vec::new();
        let mut start = 0;
        for file in first..first_files[chunk + 1] {
            let bytes = file_bytes(ShardId(file)).ok()?;
            if bytes > 0 {
                parts.push(Part { shard: ShardId(file), start, bytes });
                start += bytes;
            }
        }
        if start > CHUNK_BYTES {
            return None;
        }
        let pieces = parts.len().min(PIECES as usize);
        let ends = (1..=pieces).map(|number| {
            let last = &parts[number * parts.len() / pieces - 1];
            (last.start + last.bytes) as u32
        });
        let files = Files { ends: ends.collect(), parts };
        Some(Self { chunk: chunk_id, bytes: start, shape: Shape::Files(Arc::new(files)) })
    }
}

impl ChunkMap {
    /// Files of these sizes \[bytes\].
    #[must_use]
    pub fn of_files(sizes: &[u64]) -> Self {
        let mut chunks = 0;
        let files = sizes
            .iter()
            .map(|bytes| {
                let first = chunks;
                chunks += bytes.div_ceil(CHUNK_BYTES);
                (first, *bytes)
            })
            .collect();
        Self { kind: SourceKind::Files(files), chunks }
    }

    /// As many files of one sample each.
    ///
    /// # Errors
    /// Those of `file_bytes`.
    pub fn of_sample_files(files: usize, file_bytes: FileBytes) -> io::Result<Self> {
        let mut first_files = Vec::new();
        let mut room = 0;
        for file in 0..files as u32 {
            let bytes = file_bytes(ShardId(file))?;
            if bytes <= room {
                room -= bytes;
                continue;
            }
            let chunks = bytes.div_ceil(CHUNK_BYTES).max(1);
            first_files.extend((0..chunks).map(|_| file));
            // Behind a long file nothing follows in its chunks.
            room = if chunks == 1 { CHUNK_BYTES - bytes } else { 0 };
        }
        let chunks = first_files.len() as u64;
        first_files.push(files as u32);
        Ok(Self { kind: SourceKind::SampleFiles { file_bytes, first_files, last: Mutex::default() }, chunks })
    }

    /// Number of chunks.
    #[must_use]
    pub fn chunks(&self) -> u64 {
        self.chunks
    }

    /// Numbers of chunks of each source: of each file, or of all sample files together.
    #[must_use]
    pub fn chunks_of_sources(&self) -> Vec<u64> {
        match &self.kind {
            SourceKind::Files(files) => files.iter().map(|(_, bytes)| bytes.div_ceil(CHUNK_BYTES)).collect(),
            SourceKind::SampleFiles { .. } => vec![self.chunks],
        }
    }

    /// A chunk; `None` if there is no such chunk, or its files have no length.
    #[must_use]
    pub fn geometry(&self, chunk: u64) -> Option<Geometry> {
        if chunk >= self.chunks {
            return None;
        }
        match &self.kind {
            SourceKind::Files(files) => {
                // Files without bytes have no chunk of their own: the last that begins there has.
                let shard = files.partition_point(|(first, _)| *first <= chunk) - 1;
                let (first, bytes) = files[shard];
                let offset = (chunk - first) * CHUNK_BYTES;
                let length = CHUNK_BYTES.min(bytes.checked_sub(offset)?);
                Some(Geometry::of_file(ChunkId(chunk), ShardId(shard as u32), offset, length))
            }
            SourceKind::SampleFiles { file_bytes, first_files, .. } => {
                Geometry::of_sample_files(file_bytes, first_files, chunk as usize)
            }
        }
    }

    /// The chunk of a byte of a file, and the byte's offset in it \[bytes\]; `None` behind the end
    /// of the file, or where it has no length.
    #[must_use]
    pub fn locate(&self, shard: ShardId, at: u64) -> Option<(Geometry, u64)> {
        match &self.kind {
            SourceKind::Files(files) => {
                let (first, bytes) = *files.get(shard.0 as usize)?;
                if at >= bytes {
                    return None;
                }
                let number = at / CHUNK_BYTES;
                let start = number * CHUNK_BYTES;
                let geometry =
                    Geometry::of_file(ChunkId(first + number), shard, start, CHUNK_BYTES.min(bytes - start));
                Some((geometry, at - start))
            }
            SourceKind::SampleFiles { file_bytes, first_files, last } => {
                let of_file = first_files.partition_point(|first| *first <= shard.0).checked_sub(1)?;
                let mut chunk = of_file;
                if first_files[of_file] == shard.0 {
                    // The first of the chunks that a long file has.
                    let first = first_files.partition_point(|first| *first < shard.0);
                    chunk = first + (at / CHUNK_BYTES) as usize;
                    if chunk > of_file || chunk >= self.chunks as usize {
                        return None;
                    }
                }
                let lock = || last.lock().unwrap_or_else(PoisonError::into_inner);
                let held = lock().clone().filter(|held| held.chunk.0 == chunk as u64);
                let geometry = match held {
                    Some(held) => held,
                    None => Geometry::of_sample_files(file_bytes, first_files, chunk)?,
                };
                *lock() = Some(geometry.clone());
                let start = match &geometry.shape {
                    Shape::OneFile { offset, .. } => at.checked_sub(*offset)?,
                    Shape::Files(files) => {
                        let place = files.parts.partition_point(|part| part.shard < shard);
                        let part = files.parts.get(place).filter(|part| part.shard == shard)?;
                        part.start + Some(at).filter(|at| *at < part.bytes)?
                    }
                };
                if start >= geometry.bytes {
                    return None;
                }
                Some((geometry, start))
            }
        }
    }
}

impl ChunkPlaces for ChunkMap {
    fn chunks(&self) -> u64 {
        self.chunks()
    }

    fn chunk_at(&self, shard: ShardId, offset: u64) -> Option<ChunkPlace> {
        let (geometry, offset) = self.locate(shard, offset)?;
        Some(ChunkPlace { chunk: geometry.chunk.0, chunk_bytes: geometry.bytes, offset })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn of_samples(sizes: Vec<u64>) -> ChunkMap {
        let files = sizes.len();
        ChunkMap::of_sample_files(files, Arc::new(move |file| Ok(sizes[file.0 as usize]))).unwrap()
    }

    fn shard(number: usize) -> ShardId {
        ShardId(number as u32)
    }

    /// Every byte has one place, and the parts of its piece lead back to it.
    fn check(map: &ChunkMap, sizes: &[u64], step: u64) -> Result<(), TestCaseError> {
        let mut seen = std::collections::HashMap::new();
        for (number, bytes) in sizes.iter().enumerate() {
            prop_assert!(map.locate(shard(number), *bytes).is_none());
            let mut offset = 0;
            while offset < *bytes {
                let (geometry, start) = map.locate(shard(number), offset).unwrap();
                prop_assert!(geometry.chunk.0 < map.chunks() && start < geometry.bytes);
                prop_assert_eq!(map.geometry(geometry.chunk.0), Some(geometry.clone()));
                prop_assert!(
                    geometry.bytes <= CHUNK_BYTES
                        && geometry.touching(&(0..geometry.bytes)).count() <= PIECES
                );
                let piece = geometry.piece_at(start);
                let run = geometry.bytes_of(&(piece..piece + 1));
                prop_assert!(run.contains(&start));
                prop_assert_eq!(geometry.touching(&(start..start + 1)), Pieces(1 << piece));
                let mut files = Vec::new();
                geometry.files_of(&(start..start + 1), |shard, offset, length| {
                    files.push((shard, offset, length));
                });
                prop_assert_eq!(files, vec![(shard(number), offset, 1)]);
                let mut whole = 0;
                geometry.files_of(&run, |_, _, length| whole += length);
                prop_assert_eq!(whole, run.end - run.start);
                let before = seen.insert((geometry.chunk, start), (number, offset));
                prop_assert!(before.is_none(), "{before:?} and {number} {offset} are one place");
                offset += step;
            }
        }
        Ok(())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn bytes_of_files_have_one_place_each(sizes in prop::collection::vec(0..3 * CHUNK_BYTES, 1..6)) {
            let map = ChunkMap::of_files(&sizes);
            prop_assert_eq!(map.chunks_of_sources().iter().sum::<u64>(), map.chunks());
            check(&map, &sizes, 40_961)?;
        }

        #[test]
        fn bytes_of_sample_files_have_one_place_each(
            sizes in prop::collection::vec(prop_oneof![0_u64..5_000, 0_u64..300_000, 0..3 * CHUNK_BYTES], 1..200),
        ) {
            let map = of_samples(sizes.clone());
            check(&map, &sizes, 40_961)?;
        }
    }

    #[test]
    fn a_file_of_a_sample_that_fits_into_a_chunk_is_in_one() {
        let sizes = vec![400_000, 400_000, 400_000, 2_500_000, 10, 0, 20];
        let map = of_samples(sizes);
        let chunk = |file, offset| map.locate(shard(file), offset).unwrap().0.chunk.0;
        assert_eq!([chunk(0, 0), chunk(1, 399_999), chunk(2, 0)], [0, 0, 1]);
        assert_eq!([chunk(3, 0), chunk(3, 2_499_999), chunk(4, 0), chunk(6, 19)], [2, 4, 5, 5]);
        assert_eq!(map.chunks(), 6);
    }
}
