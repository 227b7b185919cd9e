//! The table of offsets, read in blocks from its start to its end.

use std::ops::Range;

use super::{Head, NUMBER_BYTES, number};
use crate::Error;
use crate::file::Input;

/// Offsets that are read at once: 1 MiB.
const BLOCK_OFFSETS: u64 = 1 << 18;

/// The places of the samples of a shard, in order [bytes from the start of the file].
pub(super) struct Offsets<'a> {
    input: &'a Input,
    what: &'static str,
    head: Head,
    /// The number of the next sample.
    sample: u64,
    /// Where it starts.
    start: u64,
    /// Ends of samples, from the one with this number on.
    block: Vec<u8>,
    block_at: u64,
}

impl<'a> Offsets<'a> {
    pub(super) fn new(input: &'a Input, what: &'static str, head: Head) -> Self {
        Self { input, what, head, sample: 0, start: head.start, block: Vec::new(), block_at: 0 }
    }

    /// The place of the next sample; `None` after the last one.
    pub(super) fn next(&mut self) -> Result<Option<Range<u64>>, Error> {
        let sample = self.sample;
        if sample == self.head.samples {
            return Ok(None);
        }
        if (sample - self.block_at) * NUMBER_BYTES == self.block.len() as u64 {
            let count = BLOCK_OFFSETS.min(self.head.samples - sample);
            self.block.resize((count * NUMBER_BYTES) as usize, 0);
            self.block_at = sample;
            self.input.read(at(sample), &mut self.block, self.what)?;
        }
        let end = number(&self.block, ((sample - self.block_at) * NUMBER_BYTES) as usize);
        if !(self.start..=self.input.bytes()).contains(&end) {
            let what = format!("{}: offset", self.what);
            let expected = format!("{} to {}, the end of the file", self.start, self.input.bytes());
            return Err(self.input.corrupt(at(sample), what, expected, end));
        }
        let place = self.start..end;
        (self.sample, self.start) = (sample + 1, end);
        Ok(Some(place))
    }
}

/// Where the end of a sample stands.
fn at(sample: u64) -> u64 {
    NUMBER_BYTES * (sample + 2)
}
