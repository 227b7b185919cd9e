//! How much memory a loader may use on its node.
//!
//! The budget is `node_memory=` or the default, less the memory that other loaders of the job hold.
//! The control group and the free memory bound it. So does `RLIMIT_AS`: each rank maps the region,
//! so the rank with the least address space left decides. Of that the default takes up to half, and
//! a mapping of the dataset up to a quarter. The rest is for thread stacks, the script, and the
//! allocator's arenas, which reserve 64 MiB per thread if possible.

use serde::{Deserialize, Serialize};

/// Largest default budget \[bytes\]: 2.5 GiB hold the windows of the default order for samples of
/// 110 KB on 16 ranks.
const MAX_DEFAULT_BYTES: u64 = 2560 << 20;
/// The default budget is the memory of the node divided by this.
const DEFAULT_PART: u64 = 4;
/// Divisor of the remaining address space for the default budget.
const DEFAULT_ADDRESS_PART: u64 = 2;
/// Divisor of the remaining address space for a mapping of the dataset.
const MAPPED_ADDRESS_PART: u64 = 4;

/// Facts of the memory of a node.
#[derive(Clone, Copy, Debug)]
pub struct MemoryFacts {
    /// Value of `node_memory=` \[bytes\].
    pub requested_bytes: Option<u64>,
    /// Default memory of a loader \[bytes\].
    pub default_bytes: u64,
    /// Free memory for this job on the node \[bytes\].
    pub free_bytes: u64,
    /// Least address space that a rank with a limit has left \[bytes\].
    pub address_left_bytes: Option<u64>,
    /// Memory of the budget that other loaders hold \[bytes\].
    pub held_bytes: u64,
}

/// The bound of a loader's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MemoryBound {
    /// Address space that `RLIMIT_AS` leaves \[bytes\].
    AddressSpace(u64),
    /// Memory that is free on the node for the job \[bytes\].
    Free(u64),
}

impl MemoryBound {
    /// The size of the bound \[bytes\].
    #[must_use]
    pub fn bytes(self) -> u64 {
        match self {
            Self::AddressSpace(bytes) | Self::Free(bytes) => bytes,
        }
    }
}

/// The memory that a loader may use on its node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Budget {
    /// The requested or default memory \[bytes\].
    pub requested_bytes: u64,
    /// Whether it is the default.
    pub is_default: bool,
    /// Part of it that other loaders and retained values hold \[bytes\].
    pub held_bytes: u64,
    /// What a loader may take on loan if the rest is too little: all but memory that is never
    /// released \[bytes\].
    pub lendable_bytes: u64,
    /// Its bound, which also limits `node_memory=`.
    pub bound: MemoryBound,
    /// Whether the default is less than it would be without a limit of this process or group.
    pub is_cut: bool,
    /// Whether the default is half of the address space that is left.
    pub is_half_of_address_space: bool,
}

impl Budget {
    /// Memory that is left for this loader \[bytes\]; 0 if others hold more than its request.
    #[must_use]
    pub fn left_bytes(&self) -> u64 {
        self.requested_bytes.saturating_sub(self.held_bytes)
    }

    /// What is left beside `bytes` more that are held.
    #[must_use]
    pub fn beside(&self, bytes: u64) -> Self {
        let lendable_bytes = self.lendable_bytes.saturating_sub(bytes);
        Self { held_bytes: self.held_bytes + bytes, lendable_bytes, ..*self }
    }
}

/// Default budget of a job on a node whose memory, or the limit of its control group, is
/// `limit_bytes`: a quarter of it, at most 2.5 GiB.
#[must_use]
pub fn default_memory_bytes(limit_bytes: u64) -> u64 {
    (limit_bytes / DEFAULT_PART).min(MAX_DEFAULT_BYTES)
}

/// The memory that a loader may use.
///
/// # Errors
/// The bound, if the request exceeds it.
pub fn budget(facts: &MemoryFacts) -> Result<Budget, MemoryBound> {
    let MemoryFacts { requested_bytes, default_bytes, free_bytes, address_left_bytes, held_bytes } = *facts;
    let bound = match address_left_bytes {
        Some(left) if left < free_bytes => MemoryBound::AddressSpace(left),
        _ => MemoryBound::Free(free_bytes),
    };
    let of_address = address_left_bytes.map_or(u64::MAX, |left| left / DEFAULT_ADDRESS_PART);
    if requested_bytes.is_some_and(|asked| asked > bound.bytes()) {
        return Err(bound);
    }
    Ok(Budget {
        requested_bytes: requested_bytes.unwrap_or(default_bytes.min(free_bytes).min(of_address)),
        is_default: requested_bytes.is_none(),
        held_bytes,
        lendable_bytes: 0,
        bound,
        is_cut: requested_bytes.is_none() && free_bytes.min(of_address) < default_bytes,
        is_half_of_address_space: requested_bytes.is_none() && of_address < default_bytes.min(free_bytes),
    })
}

/// Whether each rank may map a dataset of `file_bytes`.
#[must_use]
pub fn may_map(file_bytes: u64, address_left_bytes: Option<u64>) -> bool {
    address_left_bytes.is_none_or(|left| file_bytes <= left / MAPPED_ADDRESS_PART)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn facts(asked_mib: Option<u64>, address_mib: Option<u64>) -> MemoryFacts {
        MemoryFacts {
            requested_bytes: asked_mib.map(|mib| mib * MIB),
            default_bytes: 2560 * MIB,
            free_bytes: 8192 * MIB,
            address_left_bytes: address_mib.map(|mib| mib * MIB),
            held_bytes: 0,
        }
    }

    #[test]
    fn the_default_is_a_quarter_of_the_memory_up_to_a_maximum() {
        for (limit_mib, default_mib) in [(0, 0), (1024, 256), (10_240, 2560), (131_072, 2560)] {
            assert_eq!(default_memory_bytes(limit_mib * MIB), default_mib * MIB);
        }
    }

    #[test]
    fn address_space_bounds_the_default_and_what_is_asked_for() {
        let free = MemoryBound::Free(8192 * MIB);
        let address = MemoryBound::AddressSpace(1536 * MIB);
        for (asked, left, expected) in [
            (None, None, Ok((2560, free, false))),
            (None, Some(100 << 20), Ok((2560, free, false))),
            (None, Some(1536), Ok((768, address, true))),
            (None, Some(8000), Ok((2560, MemoryBound::AddressSpace(8000 * MIB), false))),
            (Some(1000), Some(1536), Ok((1000, address, false))),
            (Some(2000), Some(1536), Err(address)),
            (Some(9000), None, Err(free)),
        ] {
            let found = budget(&facts(asked, left));
            let found = found.map(|one| (one.requested_bytes / MIB, one.bound, one.is_half_of_address_space));
            assert_eq!(found, expected, "{asked:?} of {left:?}");
        }
    }

    #[test]
    fn others_hold_a_part_of_the_budget_or_more_than_all_of_it() {
        let left = |held_mib| {
            let facts = MemoryFacts { held_bytes: held_mib * MIB, ..facts(Some(100), None) };
            budget(&facts).map(|budget| budget.left_bytes() / MIB)
        };
        assert_eq!((left(0), left(30), left(300)), (Ok(100), Ok(70), Ok(0)));
    }

    #[test]
    fn files_are_mapped_where_that_leaves_address_space_for_the_rest() {
        assert!(may_map(1 << 50, None));
        assert!(may_map(384 * MIB, Some(1536 * MIB)));
        assert!(!may_map(385 * MIB, Some(1536 * MIB)));
    }
}
