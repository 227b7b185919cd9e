//! What is missing of a group of samples: neither staged nor mapped.

use forebay_types::Extent;

/// A large value on its way to its place in the batch.
pub(super) struct Value<'m> {
    pub(super) slot: usize,
    pub(super) column: usize,
    pub(super) extent: Extent,
    /// Bytes in front of the value in its unit.
    pub(super) head: usize,
    pub(super) unit: u32,
    pub(super) into: &'m mut [u8],
}

/// All that is missing.
pub(super) struct Missing<'m> {
    /// Values that go to the batch.
    pub(super) large: Vec<Value<'m>>,
    /// Extents for memory of the thread.
    pub(super) small: Vec<Extent>,
}
