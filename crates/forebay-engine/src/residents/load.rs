//! Loads the resident units of a node: reads each byte once, in the order of the files, in large
//! reads, into memory that is sealed before anyone maps it.

use std::ops::Range;
use std::os::fd::OwnedFd;

use forebay_format::Index;
use forebay_host::Draft;
use forebay_io::{Failing, ShardFiles};
use forebay_plan::{LOAD_BYTES, Order, load_threads, ranges_of_units};
use forebay_types::Extent;

use crate::error::Error;
use crate::host::Host;
use crate::host::parts_in_threads::{LOADS_SHARE, work_in_threads};
use crate::residents::memory::{PlacedRange, place_all, table};

/// Reads the units that an order says a node keeps; returns their memory, and the bytes read.
pub(crate) fn load(
    order: &Order,
    node: usize,
    index: &Index,
    files: &ShardFiles,
    caller: &dyn Host,
) -> Result<(OwnedFd, u64), Error> {
    let ranges = match order.shares() {
        Some(shares) => ranges_of_units(index, shares, order.resident_units(node))?,
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
    let read =
        work_in_threads(parts.len(), load_threads(files.is_local()), LOADS_SHARE, bytes, caller, work)?;
    Ok((draft.seal()?, read))
}

/// Cuts ranges into pieces that are no longer than a part.
fn pieces_of(ranges: &[PlacedRange]) -> Vec<PlacedRange> {
    let pieces = ranges.iter().flat_map(|range| {
        (0..range.extent.length).step_by(LOAD_BYTES as usize).map(|done| {
            let (Extent { shard, offset, length }, place) = (range.extent, range.place + done);
            let length = (length - done).min(LOAD_BYTES);
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
            Some(part) if bytes + range.extent.length <= LOAD_BYTES => {
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
