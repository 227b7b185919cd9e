//! How a dataset is cut into the units that the nodes of a job share out, and which chunks a share
//! lies in.
//!
//! - A unit is a run of consecutive samples, about as long as `unit_bytes` says. It ends before
//!   the first sample that begins in another aligned span of that length, if it has half of it. In
//!   a file whose samples follow each other, units so are aligned like the chunks of tiers. A
//!   single sample that lies elsewhere, as LMDB writes a few, does not end it.
//! - Where the samples of a file do not lie in the order of their numbers, units are cut by length
//!   alone.
//! - Samples that are decoded together begin at the same byte, so they are in one unit.
//!
//! Each walk looks at all samples once, and reports its progress, which may end it.

use forebay_types::{CHUNK_BYTES, ChunkPlaces, Extent, Located, Piece, SampleId, SamplePlaces};

use crate::nodes::chunk_set::ChunkSet;
use crate::nodes::shares::{NodeShares, ShareUnit};
use crate::nodes::store_layout::NO_OWNER;

/// Samples that are located at a time.
const SAMPLES_AT_ONCE: u64 = 1 << 14;

/// What identifies a dataset among the keys of permutations and hashes.
#[must_use]
pub fn dataset_key(fingerprint: u128) -> u64 {
    (fingerprint >> 64) as u64 ^ fingerprint as u64
}

/// Reports the samples that were looked at, and all; an error ends the walk.
pub type Progress<'a, E> = &'a mut dyn FnMut(u64, u64) -> Result<(), E>;

/// Cuts the dataset into units.
///
/// # Errors
/// Those of the index and of `progress`.
pub fn share_units<P: SamplePlaces, E: From<P::Error>>(
    places: &P,
    chunks: &dyn ChunkPlaces,
    unit_bytes: u64,
    progress: Progress<'_, E>,
) -> Result<Vec<ShareUnit>, E> {
    let mut cutter = Cutter { unit_bytes, ..Cutter::default() };
    walk(places, progress, |sample, extents, new| {
        let longest = extents.iter().max_by_key(|extent| extent.length);
        let span = longest.and_then(|extent| place(chunks, extent)).map(|place| place / unit_bytes);
        let bytes = new.iter().map(|extent| extent.length).sum();
        cutter.push(Placed { sample, span, bytes });
    })?;
    Ok(cutter.finish())
}

/// A sample, and the aligned span that it begins in.
#[derive(Clone, Copy, Debug)]
struct Placed {
    sample: SampleId,
    span: Option<u64>,
    bytes: u64,
}

/// Cuts samples into units, one sample later than they come.
#[derive(Debug, Default)]
struct Cutter {
    unit_bytes: u64,
    units: Vec<ShareUnit>,
    /// The span of the last unit's samples.
    span: Option<u64>,
    /// The last sample, which has no unit yet.
    held: Option<Placed>,
}

impl Cutter {
    fn push(&mut self, next: Placed) {
        if let Some(held) = self.held.replace(next) {
            self.put(held, Some(next));
        }
    }

    fn finish(mut self) -> Vec<ShareUnit> {
        if let Some(held) = self.held.take() {
            self.put(held, None);
        }
        self.units
    }

    /// Adds a sample to the last unit, or begins one with it. `next` is the one after it.
    fn put(&mut self, Placed { sample, span, bytes }: Placed, next: Option<Placed>) {
        let lies_elsewhere =
            self.span.is_some() && span != self.span && next.is_some_and(|next| next.span == self.span);
        match self.units.last_mut() {
            Some(unit) if lies_elsewhere => {
                unit.bytes += bytes;
                return;
            }
            Some(unit) if span == self.span || unit.bytes < self.unit_bytes / 2 => unit.bytes += bytes,
            _ => self.units.push(ShareUnit { first_sample: sample, bytes }),
        }
        self.span = span.or(self.span);
    }
}

/// The chunks of which a node's share has at least as much as chance would give half of it.
///
/// # Errors
/// Those of the index and of `progress`.
pub fn chunks_of_share<P: SamplePlaces, E: From<P::Error>>(
    places: &P,
    map: &dyn ChunkPlaces,
    shares: &NodeShares,
    node: usize,
    progress: Progress<'_, E>,
) -> Result<ChunkSet, E> {
    let mut chunks = vec![(0_u64, 0_u64); map.chunks() as usize];
    walk(places, progress, |sample, _, new| {
        let is_own = shares.node_of(sample) == node;
        for extent in new {
            for (chunk, bytes) in parts(map, *extent) {
                if let Some((all, own)) = chunks.get_mut(chunk as usize) {
                    *all += bytes;
                    *own += if is_own { bytes } else { 0 };
                }
            }
        }
    })?;
    let least = 2 * shares.nodes().len() as u64;
    Ok(chunks.into_iter().map(|(all, own)| own > 0 && own.saturating_mul(least) >= all).collect())
}

/// The node that holds most samples of each chunk.
///
/// # Errors
/// Those of the index and of `progress`.
pub fn chunk_owners<P: SamplePlaces, E: From<P::Error>>(
    places: &P,
    map: &dyn ChunkPlaces,
    shares: &NodeShares,
    progress: Progress<'_, E>,
) -> Result<Vec<u16>, E> {
    // Bytes of each node; nearly all chunks are of one or two.
    let mut chunks: Vec<Vec<(u16, u64)>> = vec![Vec::new(); map.chunks() as usize];
    walk(places, progress, |sample, _, new| {
        let node = shares.node_of(sample) as u16;
        for extent in new {
            for (chunk, bytes) in parts(map, *extent) {
                let Some(nodes) = chunks.get_mut(chunk as usize) else { continue };
                match nodes.iter_mut().find(|(other, _)| *other == node) {
                    Some((_, held)) => *held += bytes,
                    None => nodes.push((node, bytes)),
                }
            }
        }
    })?;
    // Of nodes with the same bytes, the first: all leaders must find the same.
    let owner = |nodes: Vec<(u16, u64)>| {
        nodes.into_iter().max_by_key(|(node, bytes)| (*bytes, std::cmp::Reverse(*node)))
    };
    Ok(chunks.into_iter().map(|nodes| owner(nodes).map_or(NO_OWNER, |(node, _)| node)).collect())
}

/// Calls `visit` with each sample, its extents, and those of them that the sample before did not
/// have: samples that are decoded together share theirs.
fn walk<P: SamplePlaces, E: From<P::Error>>(
    places: &P,
    progress: Progress<'_, E>,
    mut visit: impl FnMut(SampleId, &[Extent], &[Extent]),
) -> Result<(), E> {
    let samples = places.samples();
    let mut located = Located::default();
    let (mut extents, mut new, mut before) = (Vec::new(), Vec::new(), Vec::new());
    for first in (0..samples).step_by(SAMPLES_AT_ONCE as usize) {
        progress(first, samples)?;
        let ids: Vec<SampleId> = (first..samples.min(first + SAMPLES_AT_ONCE)).map(SampleId).collect();
        places.locate(&ids, &mut located)?;
        for (number, id) in ids.iter().enumerate() {
            std::mem::swap(&mut before, &mut extents);
            extents.clear();
            for slice in (0..located.columns()).flat_map(|column| located.slices(number, column)) {
                let pieces = &located.pieces()[located.unit_pieces(slice.unit)];
                extents.extend(pieces.iter().filter_map(|piece| match piece {
                    Piece::Extent(extent) => Some(*extent),
                    Piece::Literal { .. } => None,
                }));
            }
            new.clear();
            new.extend(extents.iter().filter(|extent| !before.contains(extent)));
            visit(*id, &extents, &new);
        }
    }
    Ok(())
}

/// The place of an extent's first byte among all bytes of the dataset's chunks \[bytes\].
fn place(chunks: &dyn ChunkPlaces, extent: &Extent) -> Option<u64> {
    chunks.chunk_at(extent.shard, extent.offset).map(|place| place.chunk * CHUNK_BYTES + place.offset)
}

/// The chunks that an extent touches, and its bytes in each.
fn parts(chunks: &dyn ChunkPlaces, extent: Extent) -> impl Iterator<Item = (u64, u64)> + '_ {
    let mut done = 0;
    std::iter::from_fn(move || {
        let place = chunks.chunk_at(extent.shard, extent.offset + done).filter(|_| done < extent.length)?;
        let bytes = (place.chunk_bytes - place.offset).min(extent.length - done);
        done += bytes;
        Some((place.chunk, bytes))
    })
}

#[cfg(test)]
mod tests {
    use forebay_types::{ChunkPlace, PIECE_BYTES, Rank, ShardId, Slice};

    use super::*;

    fn cut(spans: &[u64]) -> Vec<u64> {
        let mut cutter = Cutter { unit_bytes: 4, ..Cutter::default() };
        for (number, span) in (0..).zip(spans) {
            cutter.push(Placed { sample: SampleId(number), span: Some(*span), bytes: 1 });
        }
        let units = cutter.finish();
        assert_eq!(units.iter().map(|unit| unit.bytes).sum::<u64>(), spans.len() as u64);
        units.iter().map(|unit| unit.first_sample.0).collect()
    }

    /// Samples of 64 KiB, one after another in files of 2.5 MiB.
    struct Records;

    const FILE_BYTES: u64 = 5 * CHUNK_BYTES / 2;
    const FILE_SAMPLES: u64 = FILE_BYTES / PIECE_BYTES;

    impl SamplePlaces for Records {
        type Error = String;

        fn samples(&self) -> u64 {
            2 * FILE_SAMPLES
        }

        fn shard_bytes(&self) -> Vec<u64> {
            vec![FILE_BYTES; 2]
        }

        fn locate(&self, ids: &[SampleId], out: &mut Located) -> Result<(), String> {
            out.clear(1);
            for SampleId(id) in ids {
                let (shard, offset) = (ShardId((id / FILE_SAMPLES) as u32), id % FILE_SAMPLES * PIECE_BYTES);
                let unit = out.push_stored_unit(Extent { shard, offset, length: PIECE_BYTES }, 0);
                out.push_slice(Slice { unit, offset: 0, length: PIECE_BYTES });
                out.end_column();
            }
            Ok(())
        }
    }

    impl ChunkPlaces for Records {
        fn chunks(&self) -> u64 {
            6
        }

        fn chunk_at(&self, shard: ShardId, offset: u64) -> Option<ChunkPlace> {
            let rest = FILE_BYTES.checked_sub(offset / CHUNK_BYTES * CHUNK_BYTES).filter(|rest| *rest > 0)?;
            let chunk = u64::from(shard.0) * 3 + offset / CHUNK_BYTES;
            Some(ChunkPlace { chunk, chunk_bytes: rest.min(CHUNK_BYTES), offset: offset % CHUNK_BYTES })
        }
    }

    #[test]
    fn files_are_cut_into_units_and_their_chunks_belong_to_the_node_that_has_most_of_them() {
        let mut go_on = |_: u64, _: u64| Ok::<(), String>(());
        let units = share_units(&Records, &Records, CHUNK_BYTES, &mut go_on).unwrap();
        let starts: Vec<u64> = units.iter().map(|unit| unit.first_sample.0).collect();
        assert_eq!(starts, [0, 16, 32, 40, 56, 72]);
        assert!(units.iter().all(|unit| unit.bytes == CHUNK_BYTES || unit.bytes == CHUNK_BYTES / 2));
        let nodes = [vec![Rank(0)], vec![Rank(1)]];
        let shares = NodeShares::new(Records.samples(), &units, &nodes, 7);
        let owners = chunk_owners(&Records, &Records, &shares, &mut go_on).unwrap();
        let holders: Vec<u16> = (0..6).map(|unit| shares.holder(unit) as u16).collect();
        assert_eq!(owners, holders);
        for node in 0..2 {
            let own = chunks_of_share(&Records, &Records, &shares, node, &mut go_on).unwrap();
            let held = |chunk: u64| own.place(chunk).is_some();
            assert!((0..6).all(|chunk| held(chunk) == (usize::from(owners[chunk as usize]) == node)));
        }
    }

    #[test]
    fn a_walk_ends_where_its_progress_is_refused() {
        let mut refuse = |_: u64, _: u64| Err("stop".to_owned());
        assert_eq!(share_units(&Records, &Records, CHUNK_BYTES, &mut refuse).unwrap_err(), "stop");
    }

    #[test]
    fn units_begin_with_spans() {
        assert_eq!(cut(&[0, 0, 0, 0, 1, 1, 1, 1, 2, 2]), [0, 4, 8]);
    }

    #[test]
    fn a_sample_that_lies_elsewhere_does_not_move_the_ends_of_units() {
        assert_eq!(cut(&[0, 0, 0, 7, 0, 1, 1, 1, 1, 2, 2]), [0, 5, 9]);
        assert_eq!(cut(&[0, 0, 0, 0, 7, 1, 1, 1, 1, 2, 2]), [0, 4, 9]);
    }

    #[test]
    fn samples_in_random_places_are_cut_by_length() {
        assert_eq!(cut(&[9, 3, 8, 1, 7, 2, 6, 4]), [0, 2, 4, 6]);
    }
}
