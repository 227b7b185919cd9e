//! Runs: the extents of a segment in file order, joined where one read is better than two.

use forebay_types::{CodecChain, Extent, Located, Piece};

use crate::read::plan::IoLimits;

/// A stretch of one file that becomes one or more reads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadRun {
    pub(crate) extent: Extent,
    /// The pieces in it: a range of the sorted list.
    pub(crate) first: u32,
    pub(crate) pieces: u32,
}

/// Bits of a sort key that hold the offset; the shard has the others.
const OFFSET_BITS: u32 = 48;

pub(crate) fn sorted_pieces(located: &Located) -> Vec<(Extent, u32)> {
    let extents = || {
        located.pieces().iter().enumerate().filter_map(|(number, piece)| match piece {
            Piece::Extent(extent) => Some((*extent, number as u32)),
            Piece::Literal { .. } => None,
        })
    };
    // Small keys sort faster than extents: one word where shard and offset fit it, which they
    // nearly always do.
    let fits =
        |extent: &Extent| extent.offset >> OFFSET_BITS == 0 && extent.shard.0 >> (64 - OFFSET_BITS) == 0;
    if !extents().all(|(extent, _)| fits(&extent)) {
        let mut sorted: Vec<(Extent, u32)> = extents().collect();
        sorted.sort_unstable_by_key(|(extent, number)| (extent.shard, extent.offset, *number));
        return sorted;
    }
    let mut keys: Vec<(u64, u32)> = extents()
        .map(|(extent, number)| (u64::from(extent.shard.0) << OFFSET_BITS | extent.offset, number))
        .collect();
    keys.sort_unstable();
    keys.into_iter()
        .filter_map(|(_, number)| match located.pieces()[number as usize] {
            Piece::Extent(extent) => Some((extent, number)),
            Piece::Literal { .. } => None,
        })
        .collect()
}

/// Marks the pieces of stored units.
pub(crate) fn stored_pieces(located: &Located) -> Vec<bool> {
    let mut stored = vec![false; located.pieces().len()];
    for (number, unit) in located.units().iter().enumerate() {
        stored[located.unit_pieces(number as u32)].fill(unit.codecs == CodecChain::STORED);
    }
    stored
}

/// Marks the pieces that may be read in place: the only piece of a stored unit that one slice of
/// one sample uses.
pub(crate) fn lonely_pieces(located: &Located, limits: &IoLimits) -> Vec<bool> {
    let Some(least) = limits.in_place_bytes else { return Vec::new() };
    if located.units().iter().all(|unit| unit.decoded_bytes < least) {
        return Vec::new();
    }
    let mut users = vec![0_u32; located.units().len()];
    for sample in 0..located.samples() {
        for column in 0..located.columns() {
            for slice in located.slices(sample, column) {
                users[slice.unit as usize] += 1;
            }
        }
    }
    let mut alone = vec![false; located.pieces().len()];
    for (number, unit) in located.units().iter().enumerate() {
        if unit.pieces == 1
            && unit.codecs == CodecChain::STORED
            && unit.decoded_bytes >= least
            && users[number] == 1
        {
            alone[unit.first_piece as usize] = true;
        }
    }
    alone
}

pub(crate) fn align_down(value: u64, align: u64) -> u64 {
    value / align * align
}

/// Joins sorted extents into runs.
pub(crate) fn coalesce(sorted: &[(Extent, u32)], shard_bytes: &[u64], limits: &IoLimits) -> Vec<ReadRun> {
    let align = limits.align_bytes.max(1);
    let mut runs: Vec<ReadRun> = Vec::new();
    for (number, (extent, _)) in sorted.iter().enumerate() {
        debug_assert!(
            shard_bytes.get(extent.shard.0 as usize).is_none_or(|bytes| extent.end() <= *bytes),
            "an index never leads behind the end of a file"
        );
        let start = align_down(extent.offset, align);
        let end = extent.end().next_multiple_of(align);
        if let Some(run) = runs.last_mut()
            && run.extent.shard == extent.shard
        {
            let run_end = run.extent.end();
            let joined = end.max(run_end) - run.extent.offset;
            // What overlaps must be read once, however long it gets; it is cut again later.
            let overlaps = start < run_end;
            // Where reads end at boundaries a run is cut there later, however long it gets.
            let fits = limits.boundary_bytes.is_some() || joined <= limits.max_read_bytes;
            if overlaps || (start - run_end <= limits.gap_bytes && fits) {
                run.extent.length = joined;
                run.pieces += 1;
                continue;
            }
        }
        runs.push(ReadRun {
            extent: Extent { offset: start, length: end - start, ..*extent },
            first: number as u32,
            pieces: 1,
        });
    }
    runs
}

/// Cuts a run into what may be read at once: at the boundaries, and no longer than the storage
/// likes.
pub(crate) fn cut(run: Extent, limits: &IoLimits) -> impl Iterator<Item = Extent> {
    let most = limits.max_read_bytes.max(1);
    let boundary_bytes = limits.boundary_bytes;
    let mut start = run.offset;
    std::iter::from_fn(move || {
        let left = run.end().checked_sub(start).filter(|left| *left > 0)?;
        let boundary = boundary_bytes.map_or(most, |bytes| bytes - start % bytes);
        let read = Extent { offset: start, length: left.min(most).min(boundary), ..run };
        start = read.end();
        Some(read)
    })
}
