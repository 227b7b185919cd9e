//! Loads the resident units of a node: reads each byte once, in the order of the files, in large
//! reads, into memory that is sealed before anyone maps it.

use std::ops::Range;
use std::os::fd::OwnedFd;

use forebay_format::Index;
use forebay_host::Draft;
use forebay_io::{Failing, ShardFiles};
use forebay_plan::{NodeShares, Order, kept_ranges};
use forebay_types::{Extent, Located};

use crate::error::Error;
use crate::host::Host;
use crate::host::parts_in_threads::{LOADS_SHARE, load_threads, work_in_threads};
use crate::residents::memory::{PlacedRange, place_all, table};

/// Bytes that a thread reads at a time: large reads reach all servers of a striped file.
const PART_BYTES: u64 = 8 << 20;

/// Reads the units that an order says a node keeps; returns their memory, and the bytes read.
pub(crate) fn load(
    order: &Order,
    node: usize,
    index: &Index,
    files: &ShardFiles,
    caller: &dyn Host,
) -> Result<(OwnedFd, u64), Error> {
    let ranges = match order.shares() {
        Some(shares) => ranges_of(order.resident_units(node), shares, index)?,
        None => Vec::new(),
    };
    let (placed, bytes) = place_all(&ranges);
    let draft = Draft::new("forebay-share", bytes)?;
    draft.write(0, &table(&placed))?;
    let pieces = pieces_of(&placed);
    let parts = cut(&pieces);
    let failing = Failing::default();
    let work = |part: usize, memory: &mut Vec<u8>| {
        read_part(&pieces[parts[part].clone()], files, &failing, &draft, memory)
    };
    let read = work_in_threads(parts.len(), load_threads(files), LOADS_SHARE, bytes, caller, work)?;
    Ok((draft.seal()?, read))
}

/// The ranges of bytes of units, in the order of the files; none twice.
fn ranges_of(units: &[usize], shares: &NodeShares, index: &Index) -> Result<Vec<Extent>, Error> {
    let mut located = Located::default();
    let mut all: Vec<Extent> = Vec::new();
    for unit in units {
        all.extend(kept_ranges(index, shares.unit_samples(*unit), &mut located)?);
    }
    all.sort_unstable();
    // Units overlap only where gaps of one reach into another.
    let mut ranges: Vec<Extent> = Vec::new();
    for range in all {
        match ranges.last_mut() {
            Some(last) if last.shard == range.shard && range.offset <= last.end() => {
                last.length = last.length.max(range.end() - last.offset);
            }
            _ => ranges.push(range),
        }
    }
    Ok(ranges)
}

/// Cuts ranges into pieces that are no longer than a part.
fn pieces_of(ranges: &[PlacedRange]) -> Vec<PlacedRange> {
    let pieces = ranges.iter().flat_map(|range| {
        (0..range.extent.length).step_by(PART_BYTES as usize).map(|done| {
            let (Extent { shard, offset, length }, place) = (range.extent, range.place + done);
            let length = (length - done).min(PART_BYTES);
            PlacedRange { extent: Extent { shard, offset: offset + done, length }, place }
        })
    });
    pieces.collect()
}

/// Cuts pieces into parts of consecutive ones.
fn cut(ranges: &[PlacedRange]) -> Vec<Range<usize>> {
    let mut parts: Vec<Range<usize>> = Vec::new();
    let mut bytes = 0;
    for (number, range) in ranges.iter().enumerate() {
        match parts.last_mut() {
            Some(part) if bytes + range.extent.length <= PART_BYTES => {
                part.end = number + 1;
                bytes += range.extent.length;
            }
            _ => {
                parts.push(number..number + 1);
                bytes = range.extent.length;
            }
        }
    }
    parts
}

/// Reads pieces into their places.
fn read_part(
    pieces: &[PlacedRange],
    files: &ShardFiles,
    failing: &Failing,
    draft: &Draft,
    memory: &mut Vec<u8>,
) -> Result<u64, Error> {
    let mut total = 0;
    for PlacedRange { extent, place } in pieces {
        memory.resize(extent.length as usize, 0);
        failing.read(files, false, (extent.shard, extent.offset), &mut [], memory)?;
        draft.write(*place, memory)?;
        total += extent.length;
    }
    Ok(total)
}
