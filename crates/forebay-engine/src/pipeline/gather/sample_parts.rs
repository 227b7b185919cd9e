//! Columns in several pieces: put together from wherever their bytes are, decoded where they have
//! to be.
//!
//! Most columns are one stored extent, which `sample` copies at once. The others come here: records
//! of several parts, rows that are spread over chunks, and coded units that no reader decoded.

use std::sync::Arc;

use forebay_format::CodecError;
use forebay_types::{CodecChain, Extent, Piece};

use crate::error::Error;
use crate::pipeline::context::Context;
use crate::pipeline::gather::in_place::InPlace;
use crate::pipeline::gather::sample::{Bytes, Pick, Scratch, Step};
use crate::pipeline::plan_queue::PlannedSegment;
use crate::shm::counters::{Counter, count};

impl<'a> Step<'a> {
    /// Puts a column together that lies in several places, or has to be decoded; false when the
    /// claim became void.
    pub(crate) fn assemble(
        &self,
        pick: Pick<'a>,
        column: usize,
        scratch: &mut Scratch,
        in_place: &InPlace<'a>,
    ) -> Result<bool, Error> {
        let located = &pick.planned.located;
        let Scratch { columns, units, encoded, .. } = scratch;
        let (value, last) = (&mut columns[column], &mut units[column]);
        value.clear();
        for slice in located.slices(pick.need, column) {
            let (start, end) = (slice.offset as usize, (slice.offset + slice.length) as usize);
            let pieces = &located.pieces()[located.unit_pieces(slice.unit)];
            if located.units()[slice.unit as usize].codecs == CodecChain::STORED {
                encoded.clear();
                if !self.collect(pick.planned, slice.unit, false, in_place, encoded)? {
                    return Ok(false);
                }
                if let [Piece::Extent(extent), ..] = pieces {
                    self.check(located, slice.unit, *extent, encoded, &(start..end))?;
                }
                value.extend_from_slice(&encoded[start..end]);
                continue;
            }
            let mut failed = false;
            if let [Piece::Extent(extent)] = pieces {
                match self.decoded(pick.planned, slice.unit, *extent, in_place) {
                    None => return Ok(false),
                    Some(Bytes::There(unit)) => {
                        value.extend_from_slice(&unit[start..end]);
                        continue;
                    }
                    Some(Bytes::InFile { failed: found }) => failed = found,
                }
            }
            if !last.is(located, slice.unit)
                && let Some(kept) = self.shared().kept_unit(located, slice.unit)
            {
                last.set(located, slice.unit, kept);
            }
            if !last.is(located, slice.unit) {
                encoded.clear();
                if !self.collect(pick.planned, slice.unit, failed, in_place, encoded)? {
                    return Ok(false);
                }
                let codecs = located.units()[slice.unit as usize].codecs;
                let mut bytes = last.begin(located, slice.unit);
                self.shared()
                    .index
                    .decode_unit(codecs, encoded, &mut bytes)
                    .map_err(|error| undecodable(self.shared(), pick, slice.unit, &error))?;
                let bytes = Arc::new(bytes);
                self.shared().keep_unit(located, slice.unit, Arc::clone(&bytes));
                last.set(located, slice.unit, bytes);
            }
            value.extend_from_slice(&last.bytes[start..end]);
        }
        Ok(true)
    }

    /// Appends the bytes of a unit as they stand in its file; false when the claim became void.
    /// `failed`: the reader that should have decoded it could not read it.
    fn collect(
        &self,
        planned: &'a PlannedSegment,
        unit: u32,
        failed: bool,
        in_place: &InPlace<'a>,
        into: &mut Vec<u8>,
    ) -> Result<bool, Error> {
        let located = &planned.located;
        for piece in located.unit_pieces(unit) {
            match located.pieces()[piece] {
                Piece::Literal { first, length } => {
                    let (first, length) = (first as usize, length as usize);
                    into.extend_from_slice(&located.literals()[first..first + length]);
                }
                // What a reader decodes has no parts: read it all.
                Piece::Extent(extent) if planned.plan.parts(piece as u32).is_empty() => {
                    if let Some(bytes) = in_place.get(extent) {
                        into.extend_from_slice(bytes);
                    } else if !self.append_from_file(extent, failed, into)? {
                        return Ok(false);
                    }
                }
                Piece::Extent(extent) => {
                    if !self.append(planned, piece as u32, extent, in_place, into)? {
                        return Ok(false);
                    }
                }
            }
        }
        Ok(true)
    }

    /// Reads the bytes of an extent; false when the claim became void.
    fn append_from_file(&self, extent: Extent, failed: bool, into: &mut Vec<u8>) -> Result<bool, Error> {
        let context = self.shared();
        let start = into.len();
        into.resize(start + extent.length as usize, 0);
        let into = &mut into[start..];
        let read = || context.read_in_place(self.claim.step, extent, 0, failed, &mut [], into);
        if self.ask_storage(extent, read)?.is_none() {
            return Ok(false);
        }
        count(context.slot(), Counter::UnstagedBytes, extent.length);
        Ok(true)
    }

    fn append(
        &self,
        planned: &'a PlannedSegment,
        piece: u32,
        extent: Extent,
        in_place: &InPlace<'a>,
        into: &mut Vec<u8>,
    ) -> Result<bool, Error> {
        let mut offset = extent.offset;
        for part in planned.plan.parts(piece) {
            let here = Extent { offset, length: part.length, ..extent };
            offset += part.length;
            match self.part(planned, *part, here, in_place) {
                None => return Ok(false),
                Some(Bytes::There(bytes)) => into.extend_from_slice(bytes),
                Some(Bytes::InFile { failed }) => {
                    if !self.append_from_file(here, failed, into)? {
                        return Ok(false);
                    }
                }
            }
        }
        Ok(true)
    }
}

fn undecodable(context: &Context, pick: Pick<'_>, unit: u32, error: &CodecError) -> Error {
    let located = &pick.planned.located;
    let extent = located.pieces()[located.unit_pieces(unit)].iter().find_map(|piece| match piece {
        Piece::Extent(extent) => Some(*extent),
        Piece::Literal { .. } => None,
    });
    let (path, offset) =
        extent.map_or((String::new(), 0), |extent| (context.path(extent.shard), extent.offset));
    Error::BadSample {
        sample: pick.sample().0,
        path,
        offset,
        what: format!("{}: {}", error.codec, error.what),
        expected: error.expected.clone(),
        found: error.found.clone(),
    }
}
