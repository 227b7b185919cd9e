//! Where the parts of the shared region of a node begin.
//!
//! ```text
//! header | a slot per rank | a slot per reader | a word per block | sample locations
//! | staging ring | batch buffers per rank
//! ```
//!
//! The control part is all before the staging ring. The engine lays its memory out by this, and
//! checks at compile time that its structures have these sizes.

use serde::{Deserialize, Serialize};

use super::ALIGN;

/// The header: event counts and what all ranks share \[bytes\].
pub const REGION_HEADER_BYTES: usize = 512;
/// What a rank publishes \[bytes\].
pub const RANK_SLOT_BYTES: usize = 1408;
/// What a reader publishes \[bytes\].
pub const READER_SLOT_BYTES: usize = 128;
/// Words of the location of a sample.
pub const LOCATION_WORDS: usize = 4;
const WORD_BYTES: usize = 8;

/// Sizes of the parts of a node's shared region; the same in all its processes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RegionSizes {
    /// Ranks on the node.
    pub ranks: usize,
    /// Readers on the node.
    pub readers: usize,
    /// Block words, which is how many blocks can be alive at once.
    pub blocks: usize,
    /// Steps whose sample locations are kept in shared memory; 0 where no roots locate samples.
    pub location_steps: u64,
    /// Samples of all ranks of the node in one step.
    pub step_needs: u64,
    /// Size of the staging ring \[bytes\].
    pub staging_bytes: u64,
    /// Size of one batch buffer \[bytes\].
    pub buffer_bytes: u64,
    /// Batch buffers per rank.
    pub buffers: usize,
}

impl RegionSizes {
    /// Size of everything \[bytes\].
    #[must_use]
    pub fn total_bytes(&self) -> u64 {
        RegionLayout::new(self).buffers as u64 + self.buffer_bytes * (self.buffers * self.ranks) as u64
    }
}

/// Where the parts of a region begin \[bytes\]; the header is the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionLayout {
    /// Slots of the ranks.
    pub ranks: usize,
    /// Slots of the readers.
    pub readers: usize,
    /// Words of the blocks.
    pub words: usize,
    /// Locations of samples.
    pub locations: usize,
    /// The staging ring: the control part ends here.
    pub staging: usize,
    /// The batch buffers.
    pub buffers: usize,
}

impl RegionLayout {
    /// Of a region of these sizes.
    #[must_use]
    pub fn new(sizes: &RegionSizes) -> Self {
        let ranks = REGION_HEADER_BYTES;
        let readers = ranks + sizes.ranks * RANK_SLOT_BYTES;
        let words = readers + sizes.readers * READER_SLOT_BYTES;
        let locations = words + sizes.blocks * WORD_BYTES;
        let located = sizes.location_steps as usize * sizes.step_needs as usize;
        let control_bytes = locations + located * LOCATION_WORDS * WORD_BYTES;
        let staging = control_bytes.next_multiple_of(ALIGN as usize);
        let buffers = staging + sizes.staging_bytes as usize;
        Self { ranks, readers, words, locations, staging, buffers }
    }

    /// Size of the control part \[bytes\].
    #[must_use]
    pub fn control_bytes(&self) -> u64 {
        self.staging as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: RegionSizes = RegionSizes {
        ranks: 1,
        readers: 0,
        blocks: 0,
        location_steps: 0,
        step_needs: 0,
        staging_bytes: 0,
        buffer_bytes: 4096,
        buffers: 2,
    };

    #[test]
    fn each_part_begins_where_the_one_before_ends_and_the_ring_with_a_page() {
        for (sizes, control, total) in [
            (SMALL, 512 + 1408, 4096 + 2 * 4096),
            (RegionSizes { ranks: 36, buffers: 8, ..SMALL }, 512 + 36 * 1408, 13 * 4096 + 36 * 8 * 4096),
            (
                RegionSizes { readers: 4, blocks: 1024, staging_bytes: 1 << 26, ..SMALL },
                512 + 1408 + 4 * 128 + 1024 * 8,
                3 * 4096 + (1 << 26) + 2 * 4096,
            ),
            // A location has four words.
            (
                RegionSizes { location_steps: 16, step_needs: 512, ..SMALL },
                512 + 1408 + 16 * 512 * 32,
                65 * 4096 + 2 * 4096,
            ),
        ] {
            let layout = RegionLayout::new(&sizes);
            assert_eq!(layout.control_bytes(), u64::try_from(control).unwrap().next_multiple_of(4096));
            assert_eq!(layout.buffers as u64, layout.control_bytes() + sizes.staging_bytes);
            assert_eq!(sizes.total_bytes(), total, "{sizes:?}");
        }
    }
}
