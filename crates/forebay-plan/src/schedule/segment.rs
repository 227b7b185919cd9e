//! Segments: samples of a node that are located, planned and read at once.

use forebay_types::SampleId;

/// One sample, and where it goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Demand {
    /// The sample.
    pub sample: SampleId,
    /// Which rank of the node: an index into the ranks that the schedule was made for.
    pub local_rank: u32,
    /// Step, relative to the segment's first.
    pub step: u32,
    /// Slot in the batch of that rank and step.
    pub slot: u32,
}

/// Samples that are read together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Segment {
    /// First absolute step (epoch·T + step) that needs one of them.
    pub first_step: u64,
    /// Last absolute step that may need one of them, inclusive.
    pub last_step: u64,
    /// The samples, by step.
    pub demands: Vec<Demand>,
}
