//! Where a sample of one stored extent lies: what a locator finds without the index.

use crate::{Extent, Located, Slice};

/// Where a sample lies that is one stored extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SampleLocation {
    /// The header before the value, and the value.
    pub extent: Extent,
    /// Length of that header \[bytes\].
    pub head_bytes: u32,
    /// What the header is checked against, or 0; see [`Unit::guard`](crate::Unit::guard).
    pub guard: u64,
}

impl SampleLocation {
    /// Adds the sample to those that were located.
    pub fn push(&self, out: &mut Located) {
        let unit = out.push_stored_unit(self.extent, self.guard);
        let head = u64::from(self.head_bytes);
        out.push_slice(Slice { unit, offset: head, length: self.extent.length - head });
        out.end_column();
    }
}
