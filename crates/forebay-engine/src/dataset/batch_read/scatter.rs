//! Reads the columns of samples and copies them to their places.
//!
//! Units are the middle: a read fetches pieces of units, and each unit has a list of its uses, the
//! parts of it that go to a place. So threads need no order among reads, and no memory but that of
//! the read at hand:
//!
//! - A piece of a stored unit is copied to the uses that overlap it.
//! - A coded unit of one piece is decoded and copied to its uses. One of several pieces is
//!   collected until the last of them was read.
//! - A large value that a read fetches alone goes straight to its place.
//!
//! The first read that takes as long as storage does shows that the page cache has not everything:
//! from then on, the kernel is asked for the next reads ahead.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use forebay_format::UnitKey;
use forebay_plan::RandomRead;
use forebay_types::{CodecChain, Extent, Located, Piece, Unit};

use crate::dataset::batch_read::place::Place;
use crate::dataset::batch_read::workers::{ThreadMemory, first_bytes};
use crate::dataset::batch_read::{BatchRead, OpenFiles};
use crate::error::Error;

/// From this length on a value goes straight to its place \[bytes\], if a read fetches it alone: a
/// copy within the processor's cache costs less for shorter ones.
const STRAIGHT_BYTES: u64 = 16 << 10;

/// Maximum size of the header before a value or of the checksum after it \[bytes\]; an LMDB page
/// header has 24.
const MAX_MARGIN: u64 = 64;

/// A read that takes longer, besides its copy, was not answered by the page cache: that takes a few
/// microseconds, and flash about 80.
const MISS: Duration = Duration::from_micros(40);

/// Slowest copy from the page cache [bytes per µs]; memory that nothing else uses takes 5,000.
const COPY_BYTES_PER_US: u64 = 2000;

/// Reads that the kernel is asked for ahead: what storage of one node takes at once.
const READS_AHEAD: usize = 64;

/// Part of a decoded unit that goes to a place.
struct Use {
    /// First byte in the unit.
    first: u64,
    place: Place,
    /// Index of the sample, for errors.
    sample: u32,
}

impl Use {
    fn end(&self) -> u64 {
        self.first + self.place.bytes() as u64
    }
}

/// A coded unit of several pieces, not all of which were read yet.
struct Partial {
    encoded: Vec<u8>,
    missing: usize,
}

/// See the module header.
pub(super) struct Scatter<'a> {
    batch: &'a BatchRead,
    files: &'a OpenFiles,
    /// The uses of unit `u` are `uses[first_uses[u]..first_uses[u + 1]]`.
    uses: Vec<Use>,
    first_uses: Vec<u32>,
    unit_of_piece: Vec<u32>,
    partial: Mutex<HashMap<u32, Partial>>,
    misses: AtomicBool,
    announced: AtomicUsize,
}

/// The first extent of a unit.
pub(super) fn first_extent(located: &Located, unit: u32) -> Option<Extent> {
    located.pieces()[located.unit_pieces(unit)].iter().find_map(|piece| match piece {
        Piece::Extent(extent) => Some(*extent),
        Piece::Literal { .. } => None,
    })
}

impl<'a> Scatter<'a> {
    /// Prepares the copies to `places`: one for each sample and column, sample by sample.
    pub(super) fn new(batch: &'a BatchRead, places: &[Place]) -> Self {
        let located = &batch.located;
        let columns = located.columns();
        let slices = || {
            (0..batch.samples.len() * columns).flat_map(|cell| {
                located.slices(cell / columns, cell % columns).iter().map(move |slice| (cell, slice))
            })
        };
        let mut ends = vec![0_u32; located.units().len() + 1];
        for (_, slice) in slices() {
            ends[slice.unit as usize + 1] += 1;
        }
        for unit in 1..ends.len() {
            ends[unit] += ends[unit - 1];
        }
        let first_uses = ends.clone();
        let mut uses: Vec<Option<Use>> = Vec::new();
        uses.resize_with(*ends.last().unwrap_or(&0) as usize, || None);
        let (mut before, mut filled) = (usize::MAX, 0);
        for (cell, slice) in slices() {
            if cell != before {
                (before, filled) = (cell, 0);
            }
            let place = places[cell].part(filled, slice.length);
            filled += slice.length;
            let next = &mut ends[slice.unit as usize];
            uses[*next as usize] = Some(Use { first: slice.offset, place, sample: (cell / columns) as u32 });
            *next += 1;
        }
        let mut unit_of_piece = vec![0; located.pieces().len()];
        for unit in 0..located.units().len() as u32 {
            unit_of_piece[located.unit_pieces(unit)].fill(unit);
        }
        Self {
            batch,
            files: &batch.files,
            uses: uses.into_iter().flatten().collect(),
            first_uses,
            unit_of_piece,
            partial: Mutex::default(),
            misses: AtomicBool::new(false),
            announced: AtomicUsize::new(0),
        }
    }

    fn uses(&self, unit: u32) -> &[Use] {
        let unit = unit as usize;
        &self.uses[self.first_uses[unit] as usize..self.first_uses[unit + 1] as usize]
    }

    fn unit(&self, unit: u32) -> &Unit {
        &self.batch.located.units()[unit as usize]
    }

    /// Copies what is in no file: literals, and units that have no extent. Called once, before the
    /// reads.
    pub(super) fn without_reads(&self) -> Result<(), Error> {
        let located = &self.batch.located;
        for number in 0..located.units().len() as u32 {
            let unit = self.unit(number);
            let pieces = &located.pieces()[located.unit_pieces(number)];
            if unit.codecs == CodecChain::STORED {
                let mut first = 0;
                for piece in pieces {
                    if let Piece::Literal { first: literal, length } = *piece {
                        let bytes = &located.literals()[literal as usize..][..length as usize];
                        self.copy(number, first, bytes);
                    }
                    first += piece.length();
                }
            } else if first_extent(located, number).is_none() {
                let encoded = self.collected(number).encoded;
                self.decode(number, &encoded, &mut Vec::new())?;
            }
        }
        Ok(())
    }

    /// Makes a read and copies what it fetched.
    pub(super) fn read(&self, number: usize, memory: &mut ThreadMemory) -> Result<(), Error> {
        let reads = self.batch.reads.reads();
        let read = &reads[number];
        self.announce(number);
        let begun = Instant::now();
        let done = self.fetch(read, memory);
        let copy = Duration::from_micros(read.extent.length / COPY_BYTES_PER_US);
        if begun.elapsed() > MISS + copy {
            self.misses.store(true, Ordering::Relaxed);
        }
        done
    }

    /// Asks the kernel for the reads after this one, once the page cache has missed one.
    fn announce(&self, number: usize) {
        if !self.misses.load(Ordering::Relaxed) {
            return;
        }
        let reads = self.batch.reads.reads();
        let end = (number + 1 + READS_AHEAD).min(reads.len());
        let begun = self.announced.fetch_max(end, Ordering::Relaxed).max(number + 1);
        for read in reads.get(begun..end).unwrap_or_default() {
            self.files.will_need(read.extent);
        }
    }

    fn fetch(&self, read: &RandomRead, memory: &mut ThreadMemory) -> Result<(), Error> {
        let pieces = self.batch.reads.pieces(read);
        if self.uses_kept(pieces) {
            return Ok(());
        }
        if let [(extent, piece)] = pieces
            && let Some(place) = self.alone(*extent, *piece)
        {
            return self.straight(*extent, self.unit_of_piece[*piece as usize], place);
        }
        let ThreadMemory { read: buffer, decoded, .. } = memory;
        let buffer = first_bytes(buffer, read.extent.length as usize);
        match self.files.read(read.extent, 0, &mut [], buffer) {
            Ok(()) => {
                for (extent, piece) in pieces {
                    let first = (extent.offset - read.extent.offset) as usize;
                    self.piece(*piece, *extent, &buffer[first..first + extent.length as usize], decoded)?;
                }
            }
            Err(error) if pieces.len() == 1 => return Err(error.into()),
            // What cannot be read may be a gap.
            Err(_) => {
                for (extent, piece) in pieces {
                    let bytes = &mut buffer[..extent.length as usize];
                    self.files.read(*extent, 0, &mut [], bytes)?;
                    self.piece(*piece, *extent, bytes, decoded)?;
                }
            }
        }
        Ok(())
    }

    /// Uses the pieces of a read without it, if their units were decoded before and are kept.
    fn uses_kept(&self, pieces: &[(Extent, u32)]) -> bool {
        let kept = |(_, piece): &(Extent, u32)| {
            let number = self.unit_of_piece[*piece as usize];
            let unit = self.unit(number);
            let key = UnitKey::of(&self.batch.located, number).filter(|_| unit.pieces == 1)?;
            Some((number, self.batch.decoded.get(key, unit.decoded_bytes)?))
        };
        let Some(units) = pieces.iter().map(kept).collect::<Option<Vec<_>>>() else { return false };
        for (number, unit) in units {
            self.copy(number, 0, &unit);
        }
        true
    }

    /// The use of a piece that is a stored unit with one large use.
    fn alone(&self, extent: Extent, piece: u32) -> Option<&Use> {
        let number = self.unit_of_piece[piece as usize];
        let (unit, [used]) = (self.unit(number), self.uses(number)) else { return None };
        let is_straight = unit.codecs == CodecChain::STORED
            && unit.pieces == 1
            && used.place.bytes() as u64 >= STRAIGHT_BYTES
            && used.first <= MAX_MARGIN
            && extent.length - used.end() <= MAX_MARGIN;
        is_straight.then_some(used)
    }

    /// Reads a value straight to its place, and what stands around it to check it by.
    fn straight(&self, extent: Extent, unit: u32, used: &Use) -> Result<(), Error> {
        let mut margins = [0; 2 * MAX_MARGIN as usize];
        let (head, tail) = margins.split_at_mut(MAX_MARGIN as usize);
        let head = &mut head[..used.first as usize];
        let tail = &mut tail[..(extent.length - used.end()) as usize];
        // SAFETY: a place of the caller's, of which this thread alone writes this part: each read
        // is made by one thread, and no unit is in two reads.
        let into = unsafe { used.place.bytes_mut() };
        self.files.read(extent, 0, head, into)?;
        if self.has_checksum(self.unit(unit)) {
            self.files.read(extent, used.end(), &mut [], tail)?;
        }
        self.check(unit, extent, head, into, tail)
    }

    /// Uses a piece that was read.
    fn piece(&self, piece: u32, extent: Extent, bytes: &[u8], decoded: &mut Vec<u8>) -> Result<(), Error> {
        let number = self.unit_of_piece[piece as usize];
        let unit = self.unit(number);
        if unit.codecs == CodecChain::STORED {
            if unit.pieces == 1 {
                let value =
                    self.uses(number).first().map_or(0..0, |used| used.first as usize..used.end() as usize);
                let (head, tail) = (&bytes[..value.start], &bytes[value.end..]);
                self.check(number, extent, head, &bytes[value], tail)?;
            }
            self.copy(number, self.first_of(number, piece), bytes);
            return Ok(());
        }
        if unit.pieces == 1 {
            return self.decode(number, bytes, decoded);
        }
        let complete = {
            let mut partial = self.partial.lock().unwrap_or_else(PoisonError::into_inner);
            let collected = partial.entry(number).or_insert_with(|| self.collected(number));
            let first = self.first_of(number, piece) as usize;
            collected.encoded[first..first + bytes.len()].copy_from_slice(bytes);
            collected.missing -= 1;
            if collected.missing == 0 { partial.remove(&number) } else { None }
        };
        complete.map_or(Ok(()), |complete| self.decode(number, &complete.encoded, decoded))
    }

    /// Where a piece begins in the encoded bytes of its unit.
    fn first_of(&self, unit: u32, piece: u32) -> u64 {
        let located = &self.batch.located;
        let pieces = located.unit_pieces(unit).start..piece as usize;
        located.pieces()[pieces].iter().map(Piece::length).sum()
    }

    /// A unit of which only the literals are there.
    fn collected(&self, unit: u32) -> Partial {
        let located = &self.batch.located;
        let mut partial = Partial { encoded: Vec::new(), missing: 0 };
        for piece in &located.pieces()[located.unit_pieces(unit)] {
            match *piece {
                Piece::Literal { first, length } => {
                    let bytes = &located.literals()[first as usize..][..length as usize];
                    partial.encoded.extend_from_slice(bytes);
                }
                Piece::Extent(extent) => {
                    partial.encoded.resize(partial.encoded.len() + extent.length as usize, 0);
                    partial.missing += 1;
                }
            }
        }
        partial
    }

    /// Copies bytes of a stored or decoded unit, which begin at `first` in it, to its uses.
    fn copy(&self, unit: u32, first: u64, bytes: &[u8]) {
        let end = first + bytes.len() as u64;
        for used in self.uses(unit) {
            let (from, to) = (used.first.max(first), used.end().min(end));
            if from >= to {
                continue;
            }
            let part = used.place.part(from - used.first, to - from);
            // SAFETY: a place of the caller's. This thread alone writes this part of it: a place
            // is the use of one cell, its parts are bytes of different slices, and each byte of a
            // unit is read, decoded or copied from a literal once.
            let into = unsafe { part.bytes_mut() };
            into.copy_from_slice(&bytes[(from - first) as usize..(to - first) as usize]);
        }
    }

    /// Decodes a unit and copies it to its uses.
    fn decode(&self, unit: u32, encoded: &[u8], decoded: &mut Vec<u8>) -> Result<(), Error> {
        let Unit { codecs, decoded_bytes, .. } = *self.unit(unit);
        let kept = &self.batch.decoded;
        let key = UnitKey::of(&self.batch.located, unit).filter(|_| kept.would_keep(decoded_bytes));
        if let Some(decoded) = key.and_then(|key| kept.get(key, decoded_bytes)) {
            self.copy(unit, 0, &decoded);
            return Ok(());
        }
        let mut new = if key.is_some() { vec![0; decoded_bytes as usize] } else { Vec::new() };
        let into = match key {
            Some(_) => new.as_mut_slice(),
            None => first_bytes(decoded, decoded_bytes as usize),
        };
        self.batch.index.decode_unit(codecs, encoded, into).map_err(|error| {
            let place = first_extent(&self.batch.located, unit);
            let path = place.map_or_else(Default::default, |extent| self.files.path(extent.shard));
            let sample = self.uses(unit).first().map_or(0, |used| used.sample);
            Error::BadSample {
                sample: self.batch.samples[sample as usize].0,
                path: path.display().to_string(),
                offset: place.map_or(0, |extent| extent.offset),
                what: format!("{} of a chunk of {} bytes: {}", error.codec, encoded.len(), error.what),
                expected: error.expected,
                found: error.found,
            }
        })?;
        self.copy(unit, 0, into);
        if let Some(key) = key {
            kept.keep(key, Arc::new(new));
        }
        Ok(())
    }

    fn has_checksum(&self, unit: &Unit) -> bool {
        unit.codecs == CodecChain::STORED && unit.pieces == 1 && self.batch.index.has_checksums()
    }

    /// Checks a stored unit of one piece by what the format keeps around the value.
    fn check(
        &self,
        number: u32,
        extent: Extent,
        head: &[u8],
        value: &[u8],
        tail: &[u8],
    ) -> Result<(), Error> {
        let (unit, index) = (self.unit(number), &self.batch.index);
        let checked = index.check_unit(unit, extent, head).and_then(|()| {
            if self.has_checksum(unit) { index.check_data(extent, head, value, tail) } else { Ok(()) }
        });
        // The index knows files by short names.
        checked.map_err(|error| match error {
            forebay_format::Error::Corrupt { offset, what, expected, found, .. } => {
                let path = self.files.path(extent.shard);
                forebay_format::Error::Corrupt { path, offset, what, expected, found }.into()
            }
            other => other.into(),
        })
    }
}
