//! Reads headers that lie among data: large reads where records are small, small ones where they
//! are large.
//!
//! [`crate::file::HeaderScan`] does not fit: in tar small members lie beside large ones, and
//! opening a file reads its first sample only. So each leap reads 4 KiB, reads grow only as long as
//! neighbours follow, and headers have any length.

use crate::Error;
use crate::file::Input;

/// First and least read \[bytes\]: headers and small records that are neighbours.
const MIN_BYTES: usize = 4 << 10;

/// Largest read \[bytes\]; more does not make any storage faster.
const MAX_BYTES: usize = 1 << 20;

/// Data up to this length are read to reach the header after them \[bytes\]: another request takes
/// as long on shared storage (0.1 ms at 1 GB/s).
const GAP_BYTES: u64 = 64 << 10;

/// A stretch of a file that was read.
pub(super) struct Window<'a> {
    input: &'a Input,
    start: u64,
    bytes: Vec<u8>,
    /// Length of the next read \[bytes\].
    next_bytes: usize,
}

impl<'a> Window<'a> {
    pub(super) fn new(input: &'a Input) -> Self {
        Self { input, start: 0, bytes: Vec::new(), next_bytes: MIN_BYTES }
    }

    /// Reads at `offset`; returns fewer bytes than requested only at the end of the file.
    pub(super) fn read(&mut self, offset: u64, into: &mut [u8]) -> Result<usize, Error> {
        let mut done = 0;
        while done < into.len() {
            let at = offset.saturating_add(done as u64);
            let held =
                usize::try_from(at.wrapping_sub(self.start)).ok().and_then(|skip| self.bytes.get(skip..));
            let held = match held {
                Some(held) if !held.is_empty() => held,
                _ => {
                    self.fill(at, into.len() - done)?;
                    &self.bytes
                }
            };
            if held.is_empty() {
                break;
            }
            let count = held.len().min(into.len() - done);
            into[done..done + count].copy_from_slice(&held[..count]);
            done += count;
        }
        Ok(done)
    }

    fn fill(&mut self, at: u64, wanted: usize) -> Result<(), Error> {
        let end = self.start + self.bytes.len() as u64;
        let is_near = at >= end && at - end <= GAP_BYTES.min(self.next_bytes as u64);
        self.next_bytes = if is_near { (self.next_bytes * 2).min(MAX_BYTES) } else { MIN_BYTES };
        let left = self.input.bytes().saturating_sub(at);
        let length = left.min(self.next_bytes.max(wanted) as u64) as usize;
        self.bytes.resize(length, 0);
        self.start = at;
        let count = self.input.read_most(at, &mut self.bytes)?;
        self.bytes.truncate(count);
        Ok(())
    }
}
