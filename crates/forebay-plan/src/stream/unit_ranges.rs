//! Which bytes of the files the samples of a unit lie in.
//!
//! Ranges are joined over small gaps: what the format keeps between records, and the rest of a page
//! after a value.

use std::collections::HashSet;
use std::ops::Range;

use forebay_types::{CodecChain, Extent, Located, Piece, SampleId, SamplePlaces};

use crate::nodes::shares::NodeShares;
use crate::nodes::units::Progress;
use crate::stream::memory::UnitBytes;

/// Longest gap that readers join reads over \[bytes\]: the page cache fetches the page anyway.
const READ_GAP_BYTES: u64 = 4 << 10;

/// Gap between records that is kept in memory, whatever their length \[bytes\]: framing costs less
/// than another range.
const FRAMING_BYTES: u64 = 64;

/// What a range takes in the table of ranges that are kept in memory \[bytes\].
pub const RANGE_ENTRY_BYTES: u64 = 32;

/// Units between two reports of progress.
const UNITS_AT_ONCE: usize = 256;

/// What a unit costs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UnitCost {
    /// In memory.
    pub memory: UnitBytes,
    /// Bytes that are read from the files for it \[bytes\].
    pub read_bytes: u64,
}

/// What each unit costs, where a resident one takes `range_bytes` more for each of its ranges.
///
/// # Errors
/// Those of the index and of `progress`.
pub fn unit_costs<P: SamplePlaces, E: From<P::Error>>(
    places: &P,
    shares: &NodeShares,
    range_bytes: u64,
    progress: Progress<'_, E>,
) -> Result<Vec<UnitCost>, E> {
    let mut located = Located::default();
    let mut costs = Vec::with_capacity(shares.units());
    for unit in 0..shares.units() {
        let samples = shares.unit_samples(unit);
        if unit % UNITS_AT_ONCE == 0 {
            progress(samples.start, shares.samples())?;
        }
        let mut extents = locate(places, samples, &mut located)?;
        let kept = join(&extents, memory_gap);
        let length = |ranges: &[Extent]| ranges.iter().map(|range| range.length).sum::<u64>();
        let resident = length(&kept) + range_bytes * kept.len() as u64;
        let read_bytes = length(&join(&extents, |_| READ_GAP_BYTES));
        let mut staged = read_bytes;
        if located.units().iter().any(|unit| unit.codecs != CodecChain::STORED) {
            extents.clear();
            staged = decoded_bytes(&located, &mut extents);
            extents.sort_unstable();
            staged += length(&join(&extents, |_| READ_GAP_BYTES));
        }
        costs.push(UnitCost { memory: UnitBytes { resident, staged }, read_bytes });
    }
    Ok(costs)
}

/// The ranges of bytes that are kept in memory for these samples, in the order of the files.
///
/// # Errors
/// Those of the index.
pub fn kept_ranges<P: SamplePlaces>(
    places: &P,
    samples: Range<u64>,
    located: &mut Located,
) -> Result<Vec<Extent>, P::Error> {
    Ok(join(&locate(places, samples, located)?, memory_gap))
}

/// The ranges of bytes that are kept in memory for units, in the order of the files; none twice.
///
/// # Errors
/// Those of the index.
pub fn ranges_of_units<P: SamplePlaces>(
    places: &P,
    shares: &NodeShares,
    units: &[usize],
) -> Result<Vec<Extent>, P::Error> {
    let mut located = Located::default();
    let mut all: Vec<Extent> = Vec::new();
    for unit in units {
        all.extend(kept_ranges(places, shares.unit_samples(*unit), &mut located)?);
    }
    all.sort_unstable();
    // Units overlap only where gaps of one reach into another.
    Ok(join(&all, |_| 0))
}

/// The extents of these samples, sorted; empty ones left out.
fn locate<P: SamplePlaces>(
    places: &P,
    samples: Range<u64>,
    located: &mut Located,
) -> Result<Vec<Extent>, P::Error> {
    let ids: Vec<SampleId> = samples.map(SampleId).collect();
    places.locate(&ids, located)?;
    let mut extents: Vec<Extent> = located.pieces().iter().filter_map(extent_of).collect();
    extents.sort_unstable();
    Ok(extents)
}

fn extent_of(piece: &Piece) -> Option<Extent> {
    match piece {
        Piece::Extent(extent) if extent.length > 0 => Some(*extent),
        Piece::Extent(_) | Piece::Literal { .. } => None,
    }
}

/// Bytes of the coded units after decoding; adds the extents of the others to `stored`.
fn decoded_bytes(located: &Located, stored: &mut Vec<Extent>) -> u64 {
    let mut seen = HashSet::new();
    let mut bytes = 0;
    for (number, unit) in (0..).zip(located.units()) {
        let pieces = &located.pieces()[located.unit_pieces(number)];
        if unit.codecs == CodecChain::STORED {
            stored.extend(pieces.iter().filter_map(extent_of));
        } else if pieces.iter().find_map(extent_of).is_none_or(|first| seen.insert(first)) {
            bytes += unit.decoded_bytes;
        }
    }
    bytes
}

/// Gap before an extent that is kept in memory: at most half as long as the extent.
fn memory_gap(extent: &Extent) -> u64 {
    (extent.length / 2).clamp(FRAMING_BYTES, READ_GAP_BYTES)
}

/// Joins sorted extents over gaps of up to `gap` bytes before the next one.
fn join(extents: &[Extent], gap: impl Fn(&Extent) -> u64) -> Vec<Extent> {
    let mut ranges: Vec<Extent> = Vec::new();
    for extent in extents {
        match ranges.last_mut() {
            Some(last)
                if last.shard == extent.shard && extent.offset <= last.end().saturating_add(gap(extent)) =>
            {
                last.length = last.length.max(extent.end() - last.offset);
            }
            _ => ranges.push(*extent),
        }
    }
    ranges
}

#[cfg(test)]
mod tests {
    use forebay_types::ShardId;
    use proptest::prelude::*;

    use super::*;

    fn extent(shard: u32, offset: u64, length: u64) -> Extent {
        Extent { shard: ShardId(shard), offset, length }
    }

    #[test]
    fn ranges_are_joined_over_framing_and_the_rest_of_a_page() {
        let joined = |extents: &[Extent]| join(extents, memory_gap);
        assert_eq!(joined(&[extent(0, 12, 100), extent(0, 128, 100)]), [extent(0, 12, 216)]);
        assert_eq!(joined(&[extent(0, 16, 16_000), extent(0, 16_400, 16_000)]), [extent(0, 16, 32_384)]);
        let apart = [extent(0, 0, 100), extent(0, 200, 100), extent(1, 0, 100)];
        assert_eq!(joined(&apart), apart);
    }

    proptest! {
        #[test]
        fn each_extent_is_in_one_range(
            mut extents in prop::collection::vec(
                (0_u32..3, 0_u64..100_000, 1_u64..9_000).prop_map(|(shard, offset, length)| extent(shard, offset, length)),
                0..60,
            ),
        ) {
            extents.sort_unstable();
            let ranges = join(&extents, memory_gap);
            for extent in &extents {
                let holds = |range: &&Extent| range.shard == extent.shard && range.offset <= extent.offset && extent.end() <= range.end();
                prop_assert_eq!(ranges.iter().filter(holds).count(), 1);
            }
            for pair in ranges.windows(2) {
                prop_assert!((pair[0].shard, pair[0].end()) < (pair[1].shard, pair[1].offset));
            }
        }
    }
}
