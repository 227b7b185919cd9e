//! Where the chunks of a dataset lie in the shares of an in-memory store.
//!
//! How it works, in order:
//! 1. Each chunk has an owner: the node that holds most of its samples (`node_shares`), or none.
//! 2. A node with fewer slots than chunks holds those that come first in a keyed permutation of its
//!    chunks. The others stay at the source. So each step has about the same part from there.
//! 3. The chunks that a node holds fill its slots in the order of their numbers: a share is read
//!    from the files in their order.
//!
//! Promises: the same numbers give the same layout in all processes of a job. Chunks that follow
//! each other in a file follow each other in the share, if the node holds both and no chunk between
//! them.

use crate::permutation::{Key, Permutation, Purpose};

/// The owner of a chunk that no node holds.
pub const NO_OWNER: u16 = u16::MAX;

/// Slot of a chunk that stays at the source.
const NO_SLOT: u32 = u32::MAX;

/// Which slot of which node's share holds each chunk; see the module header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreLayout {
    owners: Box<[u16]>,
    slots: Box<[u32]>,
    /// Chunks that each node holds.
    held: Box<[u64]>,
}

impl StoreLayout {
    /// The layout for these owners of the chunks, where each node has room for `slots` chunks.
    /// `key` identifies the dataset.
    #[must_use]
    pub fn new(owners: &[u16], slots: &[u64], key: u64) -> Self {
        let mut owned = vec![0_u64; slots.len()];
        for owner in owners.iter().filter(|owner| usize::from(**owner) < slots.len()) {
            owned[usize::from(*owner)] += 1;
        }
        let orders: Vec<Option<Permutation>> = (0..)
            .zip(owned.iter().zip(slots))
            .map(|(node, (owned, slots))| {
                let key = Key::new(key, Purpose::Store).with(node);
                (owned > slots && *slots > 0).then(|| Permutation::new(key, *owned))
            })
            .collect();
        let (mut seen, mut held) = (vec![0_u64; slots.len()], vec![0_u64; slots.len()]);
        let slot_of = |owner: &u16| {
            let node = usize::from(*owner);
            if node >= slots.len() {
                return NO_SLOT;
            }
            let number = seen[node];
            seen[node] += 1;
            let is_held = match &orders[node] {
                Some(order) => order.at(number) < slots[node],
                None => slots[node] > 0,
            };
            if !is_held {
                return NO_SLOT;
            }
            held[node] += 1;
            (held[node] - 1) as u32
        };
        let slots = owners.iter().map(slot_of).collect();
        Self { owners: owners.into(), slots, held: held.into() }
    }

    /// Chunks of the dataset.
    #[must_use]
    pub fn chunks(&self) -> u64 {
        self.owners.len() as u64
    }

    /// The node that holds a chunk, and the slot of its share; `None` if it stays at the source.
    #[must_use]
    pub fn locate(&self, chunk: u64) -> Option<(usize, u64)> {
        let chunk = usize::try_from(chunk).ok()?;
        let slot = self.slots.get(chunk).copied().filter(|slot| *slot != NO_SLOT)?;
        Some((usize::from(self.owners[chunk]), u64::from(slot)))
    }

    /// Chunks that a node holds.
    #[must_use]
    pub fn held(&self, node: usize) -> u64 {
        self.held.get(node).copied().unwrap_or_default()
    }

    /// The chunks that a node holds, in the order of their slots.
    pub fn chunks_of(&self, node: usize) -> impl Iterator<Item = u64> + '_ {
        (0..self.chunks()).filter(move |chunk| self.locate(*chunk).is_some_and(|(owner, _)| owner == node))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn each_held_chunk_has_a_slot_of_its_own(
            owners in prop::collection::vec(prop_oneof![0_u16..4, Just(NO_OWNER)], 0..300),
            slots in prop::collection::vec(0_u64..120, 4), key: u64,
        ) {
            let layout = StoreLayout::new(&owners, &slots, key);
            for (node, room) in slots.iter().enumerate() {
                let owned = owners.iter().filter(|owner| usize::from(**owner) == node).count() as u64;
                prop_assert_eq!(layout.held(node), owned.min(*room));
                let chunks: Vec<u64> = layout.chunks_of(node).collect();
                for (slot, chunk) in (0..).zip(&chunks) {
                    prop_assert_eq!(layout.locate(*chunk), Some((node, slot)));
                    prop_assert_eq!(usize::from(owners[*chunk as usize]), node);
                }
                prop_assert_eq!(chunks.len() as u64, layout.held(node));
            }
            prop_assert_eq!(layout.locate(owners.len() as u64), None);
        }
    }

    #[test]
    fn chunks_at_the_source_are_spread_over_the_dataset() {
        let owners = vec![0_u16; 6400];
        let layout = StoreLayout::new(&owners, &[3200], 5);
        for part in 0..64 {
            let held = (part * 100..part * 100 + 100).filter(|chunk| layout.locate(*chunk).is_some()).count();
            assert!((25..=75).contains(&held), "{held} of 100");
        }
    }
}
