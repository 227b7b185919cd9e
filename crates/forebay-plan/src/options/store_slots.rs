//! How many chunks of its share a node holds in an in-memory store.

use forebay_types::CHUNK_BYTES;

use crate::options::StoreSize;

/// Divisor of the free memory that a share may take if the user does not say.
const MEMORY_SHARE: u64 = 2;

/// A kept share with this part of its chunks more or less than what `auto` would hold is held as it
/// is: the free memory differs a little from job to job.
const KEPT_TOLERANCE: u64 = 8;

/// Why a share has no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoShareRoom {
    /// The user gave it `bytes`, and less memory is free.
    Memory {
        /// What the user gave \[bytes\].
        bytes: u64,
    },
    /// The user gave it `bytes`, and a limit on address space leaves less.
    AddressSpace {
        /// What the user gave \[bytes\].
        bytes: u64,
        /// What is left \[bytes\].
        left: u64,
    },
}

/// Chunks of a share of `owned` chunks that a node has room for, with `free` bytes of memory;
/// `kept` chunks of the dataset are in memory. A share is mapped: a limit on address space leaves
/// `mappable` bytes for it.
///
/// # Errors
/// Less room than the user gave.
pub fn store_slots(
    size: StoreSize,
    owned: u64,
    free: u64,
    kept: Option<u64>,
    mappable: Option<u64>,
) -> Result<u64, NoShareRoom> {
    let most = mappable.map_or(owned, |bytes| owned.min(bytes / CHUNK_BYTES));
    match size {
        StoreSize::Bytes(bytes) if bytes.min(owned * CHUNK_BYTES) > free => {
            Err(NoShareRoom::Memory { bytes })
        }
        StoreSize::Bytes(bytes) if owned.min(bytes / CHUNK_BYTES) > most => {
            Err(NoShareRoom::AddressSpace { bytes, left: most * CHUNK_BYTES })
        }
        StoreSize::Bytes(bytes) => Ok(owned.min(bytes / CHUNK_BYTES)),
        StoreSize::Measured(_) => {
            let wanted = most.min(free / MEMORY_SHARE / CHUNK_BYTES);
            let is_close = |kept: &u64| *kept <= most && kept.abs_diff(wanted) <= wanted / KEPT_TOLERANCE;
            Ok(kept.filter(|kept| wanted < owned && is_close(kept)).unwrap_or(wanted))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Auto;

    #[test]
    fn a_share_takes_what_is_given_or_half_of_what_is_free() {
        let slots = |size, owned, free, kept| store_slots(size, owned, free * CHUNK_BYTES, kept, None).ok();
        let auto = StoreSize::Measured(Auto::Auto);
        for (size, owned, free, kept, expected) in [
            (StoreSize::Bytes(40 * CHUNK_BYTES), 100, 50, None, Some(40)),
            (StoreSize::Bytes(40 * CHUNK_BYTES), 30, 35, None, Some(30)),
            (StoreSize::Bytes(40 * CHUNK_BYTES), 100, 39, None, None),
            (auto, 100, 300, None, Some(100)),
            (auto, 100, 100, None, Some(50)),
            // A kept share of about this length stays as it is.
            (auto, 100, 100, Some(45), Some(45)),
            (auto, 100, 100, Some(56), Some(56)),
            (auto, 100, 100, Some(57), Some(50)),
            (auto, 100, 100, Some(43), Some(50)),
            // What fits is held whole; chunks of another layout may be more than are owned.
            (auto, 100, 300, Some(95), Some(100)),
            (auto, 100, 190, Some(101), Some(95)),
        ] {
            assert_eq!(slots(size, owned, free, kept), expected, "{size:?} {owned} {free} {kept:?}");
        }
    }

    #[test]
    fn a_share_fits_into_the_address_space_that_a_limit_leaves() {
        let mappable = Some(20 * CHUNK_BYTES);
        let slots = |size, kept| store_slots(size, 100, 300 * CHUNK_BYTES, kept, mappable);
        let auto = StoreSize::Measured(Auto::Auto);
        assert!(matches!(slots(auto, None), Ok(20)));
        // A kept share is mapped, too.
        assert!(matches!(slots(auto, Some(21)), Ok(20)));
        assert!(matches!(slots(StoreSize::Bytes(20 * CHUNK_BYTES), None), Ok(20)));
        let bytes = 21 * CHUNK_BYTES;
        let error = NoShareRoom::AddressSpace { bytes, left: 20 * CHUNK_BYTES };
        assert_eq!(slots(StoreSize::Bytes(bytes), None), Err(error));
    }
}
