//! Shards that begin with a table of offsets: those of MDS and of `LitData`.
//!
//! A shard is `u32 samples`, `u32 offsets[samples + 1]`, and the samples from the first offset on.
//! A sample is the `u32` length of each value that has no fixed one, then all values in order. All
//! integers are little-endian. A format says which values there are ([`Value`]); an array may have
//! its type and shape before it ([`ArrayHeader`]).
//!
//! With at most one length per sample, the table alone says where values are: the samples are not
//! read. Else the scan reads the lengths. [`OffsetTable::check_lengths`] reads all of them.

mod array_header;
mod container;
mod offsets;
mod value;

use std::ops::Range;

pub(crate) use array_header::ArrayHeader;
pub(crate) use value::{Elements, Value};

use crate::container::{Column, header_digest};
use crate::file::{HeaderScan, Input};
use crate::index::sidecar::{RecordClass, ShardState};
use crate::{Error, OpenOptions};
use offsets::Offsets;
use value::pick;

/// Visits the place of each chosen value of a sample: its start in the file and its length
/// \[bytes\].
pub type Visit<'a> = dyn FnMut(&[(u64, u64)]) -> Result<(), Error> + 'a;

/// Bytes of an offset and of a length \[bytes\].
const NUMBER_BYTES: u64 = 4;

/// Samples between two reports of progress.
const TELL_EVERY: u64 = 1 << 16;

/// The head of a shard.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Head {
    /// Number of samples.
    pub(crate) samples: u64,
    /// Where the samples begin [bytes from the start of the file].
    pub(crate) start: u64,
}

impl Head {
    /// Reads the number of samples and the first offset.
    pub(crate) fn read(input: &Input, what: &str) -> Result<Self, Error> {
        let mut bytes = [0; 2 * NUMBER_BYTES as usize];
        input.read(0, &mut bytes, what)?;
        let head = Self { samples: number(&bytes, 0), start: number(&bytes, 4) };
        if head.table_end() > input.bytes() {
            let expected = format!("at most {} samples, whose offsets the file holds", input.bytes() / 4);
            return Err(input.corrupt(0, format!("{what}: number of samples"), expected, head.samples));
        }
        if !(head.table_end()..=input.bytes()).contains(&head.start) {
            let expected = format!("{} to {}", head.table_end(), input.bytes());
            return Err(input.corrupt(4, format!("{what}: first offset"), expected, head.start));
        }
        Ok(head)
    }

    /// The end of the last sample [bytes from the start of the file].
    pub(crate) fn last_offset(&self, input: &Input) -> Result<u64, Error> {
        let mut bytes = [0; NUMBER_BYTES as usize];
        input.read(self.table_end() - NUMBER_BYTES, &mut bytes, "last offset")?;
        Ok(number(&bytes, 0))
    }

    /// Where the table of offsets ends [bytes from the start of the file].
    pub(crate) fn table_end(&self) -> u64 {
        NUMBER_BYTES * (self.samples + 2)
    }
}

/// A shard, open for reading.
#[derive(Debug)]
pub struct OffsetTable {
    input: Input,
    /// The name of the format, for messages.
    what: &'static str,
    head: Head,
    values: Vec<Value>,
    /// The values that are fields.
    chosen: Vec<usize>,
    state: ShardState,
}

impl OffsetTable {
    /// Takes a file with this head, whose samples have these values; `described` is what else the
    /// format says of the file.
    pub(crate) fn new(
        input: Input,
        what: &'static str,
        head: Head,
        mut values: Vec<Value>,
        options: &OpenOptions,
        described: &[u8],
    ) -> Result<Self, Error> {
        let chosen = pick(&input, &values, &options.fields)?;
        if options.schema == crate::SchemaChoice::Raw {
            values.iter_mut().for_each(Value::keep_stored);
        }
        let mut text = head.samples.to_le_bytes().to_vec();
        text.extend_from_slice(described);
        let state = header_digest(&text);
        let mut shard = Self { input, what, head, values, chosen, state };
        shard.resolve()?;
        Ok(shard)
    }

    /// Number of samples.
    pub fn samples(&self) -> u64 {
        self.head.samples
    }

    /// The columns of a sample.
    fn columns(&self) -> Vec<Column> {
        let column = |number: &usize| Column {
            field: self.values[*number].field(),
            classes: vec![RecordClass::tight("value")],
        };
        self.chosen.iter().map(column).collect()
    }

    /// Finds out from the first sample which type and shape arrays with a header have.
    fn resolve(&mut self) -> Result<(), Error> {
        if !self.chosen.iter().any(|number| self.values[*number].is_open()) {
            return Ok(());
        }
        let Some(place) = Offsets::new(&self.input, self.what, self.head).next()? else { return Ok(()) };
        let scan = &mut HeaderScan::new(&self.input, &|_| true);
        let places = self.places(scan, 0, &place)?;
        for (number, (start, length)) in places.into_iter().enumerate() {
            let value = &mut self.values[number];
            if value.is_open() && self.chosen.contains(&number) {
                value.settle(value.read_header(scan, start, length, 0)?);
            }
        }
        Ok(())
    }

    /// Visits all samples; `progress` gets the offset \[bytes\].
    pub fn walk(&self, progress: &dyn Fn(u64) -> bool, visit: &mut Visit<'_>) -> Result<(), Error> {
        let open = self.values.iter().filter(|value| value.bytes.is_none()).count();
        let has_headers = self.chosen.iter().any(|number| self.values[*number].has_header());
        self.scan(progress, open > 1 || has_headers, visit)
    }

    /// Compares the length of every value with that of its sample.
    pub fn check_lengths(&self, progress: &dyn Fn(u64) -> bool) -> Result<(), Error> {
        self.scan(progress, true, &mut |_| Ok(()))
    }

    /// Visits all samples; with `reads`, lengths are read where the table implies them.
    fn scan(&self, progress: &dyn Fn(u64) -> bool, reads: bool, visit: &mut Visit<'_>) -> Result<(), Error> {
        let mut offsets = Offsets::new(&self.input, self.what, self.head);
        let mut scan = HeaderScan::new(&self.input, progress);
        let mut chosen = vec![(0, 0); self.chosen.len()];
        // Headers are read in the order of the file.
        let mut in_order: Vec<usize> = (0..self.chosen.len()).collect();
        in_order.sort_unstable_by_key(|column| self.chosen[*column]);
        let mut sample = 0;
        while let Some(place) = offsets.next()? {
            let places = if reads {
                self.places(&mut scan, sample, &place)?
            } else {
                self.implied_places(sample, &place)?
            };
            for column in &in_order {
                let number = self.chosen[*column];
                let (start, length) = places[number];
                chosen[*column] = self.values[number].elements(&mut scan, start, length, sample)?;
            }
            visit(&chosen)?;
            if sample % TELL_EVERY == 0 && !progress(place.end) {
                return Err(Error::Interrupted);
            }
            sample += 1;
        }
        Ok(())
    }

    /// Where the values of a sample lie, by the lengths before them.
    fn places(
        &self,
        scan: &mut HeaderScan<'_>,
        sample: u64,
        place: &Range<u64>,
    ) -> Result<Vec<(u64, u64)>, Error> {
        let open = self.values.iter().filter(|value| value.bytes.is_none()).count() as u64;
        let mut at = place.start + NUMBER_BYTES * open;
        if at > place.end {
            let expected = format!("at least {} bytes, for {open} lengths", NUMBER_BYTES * open);
            return Err(self.corrupt(
                place.start,
                &format!("sample {sample}"),
                expected,
                place.end - place.start,
            ));
        }
        let lengths = scan.bytes(place.start, (NUMBER_BYTES * open) as usize, self.what)?;
        let mut places = Vec::with_capacity(self.values.len());
        let mut read = 0;
        for value in &self.values {
            let length = value.bytes.unwrap_or_else(|| {
                read += 1;
                number(lengths, 4 * (read - 1))
            });
            places.push((at, length));
            // Lengths have 32 bits, and there are few.
            at += length;
        }
        self.check_end(sample, place, at)?;
        Ok(places)
    }

    /// Where the values of a sample lie, of which at most one has no fixed length.
    fn implied_places(&self, sample: u64, place: &Range<u64>) -> Result<Vec<(u64, u64)>, Error> {
        let fixed: u64 = self.values.iter().filter_map(|value| value.bytes).sum();
        let open = self.values.iter().filter(|value| value.bytes.is_none()).count() as u64;
        let least = fixed + NUMBER_BYTES * open;
        let rest = (place.end - place.start).checked_sub(least);
        let Some(rest) = rest else {
            let expected = format!("at least {least} bytes");
            return Err(self.corrupt(
                place.start,
                &format!("sample {sample}"),
                expected,
                place.end - place.start,
            ));
        };
        let mut at = place.start + NUMBER_BYTES * open;
        let mut places = Vec::with_capacity(self.values.len());
        for value in &self.values {
            let length = value.bytes.unwrap_or(rest);
            places.push((at, length));
            at += length;
        }
        self.check_end(sample, place, at)?;
        Ok(places)
    }

    fn check_end(&self, sample: u64, place: &Range<u64>, found: u64) -> Result<(), Error> {
        if found == place.end {
            return Ok(());
        }
        let what = format!("lengths of the values of sample {sample}");
        let expected = format!("{} bytes, as the table of offsets says", place.end - place.start);
        Err(self.corrupt(place.start, &what, expected, found - place.start))
    }

    fn corrupt(&self, offset: u64, what: &str, expected: String, bytes: u64) -> Error {
        self.input.corrupt(offset, format!("{}: {what}", self.what), expected, format!("{bytes} bytes"))
    }
}

/// The number at this place.
fn number(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32::from_le_bytes(*bytes[at..].first_chunk().expect("four bytes")))
}
