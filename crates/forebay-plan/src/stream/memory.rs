//! Memory of the order `opportunistic`: which units each node keeps, beside windows of a size.
//!
//! How it works, in order:
//! 1. A keyed permutation orders the units of a node's share. The node keeps the first ones that
//!    its memory for resident units holds. More memory keeps all that less memory kept.
//! 2. A window has at most as many bytes as the largest units of the dataset, and no more than a
//!    node streams. In staging memory are a window, which samples are drawn from, and the section
//!    that is read meanwhile, or a few MiB.
//! 3. Windows that need more than the memory of their own take it from resident units, where the
//!    node divides its memory.
//!
//! All nodes compute the same.

use serde::{Deserialize, Serialize};

use crate::nodes::shares::NodeShares;
use crate::permutation::{Key, Permutation, Purpose};
use crate::stream::sections::{TurnRule, section_units};

/// Largest block of staging memory \[bytes\]: at the seam of the ring, up to one is lost.
const MAX_BLOCK_BYTES: u64 = 32 << 20;

/// Least of a window that is read ahead \[bytes\]: a few requests keep the servers of a striped
/// file busy.
const MIN_AHEAD_BYTES: u64 = 4 << 20;

/// Divisor of a window's bytes for what alignment takes: blocks begin at pages, reads at cache
/// lines.
const ALIGNMENT_PART: u64 = 64;

/// Staging memory for windows of `window_bytes` that are read in sections of `section_bytes`
/// \[bytes\].
fn staging_bytes(window_bytes: u64, section_bytes: u64) -> u64 {
    let ahead = section_bytes.max(window_bytes.min(MIN_AHEAD_BYTES));
    let seam = section_bytes.min(MAX_BLOCK_BYTES);
    let held = window_bytes.saturating_add(ahead);
    held.saturating_add(seam + held / ALIGNMENT_PART)
}

/// What a unit takes in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UnitBytes {
    /// While it is resident: as it is stored \[bytes\].
    pub resident: u64,
    /// In staging memory: decoded \[bytes\].
    pub staged: u64,
}

/// Memory of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeMemory {
    /// For resident units \[bytes\].
    pub resident_bytes: u64,
    /// For streamed units, in staging memory \[bytes\].
    pub staging_bytes: u64,
    /// Whether windows that need more take it from resident units.
    pub divides: bool,
}

/// See the module header.
#[derive(Clone, Debug)]
pub struct StreamMemory {
    nodes: Box<[NodeMemory]>,
    rule: TurnRule,
    /// Node of each unit.
    holders: Box<[usize]>,
    /// For each unit, the bytes of the units of its node up to it, in the order in which they are
    /// kept.
    kept_bytes: Box<[u64]>,
    /// Bytes of the 0, 1, 2, ... largest units.
    largest_bytes: Box<[u64]>,
    /// Most that each node streams \[bytes\].
    slice_bytes: Box<[u64]>,
}

impl StreamMemory {
    /// Of nodes with this memory and these shares, whose ranks take `batch` samples each per step.
    /// `unit_bytes` is what each unit takes in memory. `key` identifies the dataset.
    ///
    /// # Panics
    /// Where the numbers of units or nodes differ.
    #[must_use]
    pub fn new(
        shares: &NodeShares,
        batch: u64,
        unit_bytes: &[UnitBytes],
        nodes: Vec<NodeMemory>,
        key: u64,
    ) -> Self {
        assert_eq!((unit_bytes.len(), nodes.len()), (shares.units(), shares.nodes().len()));
        let holders: Box<[usize]> = (0..shares.units()).map(|unit| shares.holder(unit)).collect();
        let mut units = vec![Vec::new(); nodes.len()];
        for (unit, node) in holders.iter().enumerate() {
            units[*node].push(unit);
        }
        let mut kept_bytes = vec![0; unit_bytes.len()];
        for (node, units) in units.iter().enumerate() {
            let key = Key::new(key, Purpose::Store).with(node as u64);
            let order = Permutation::new(key, units.len() as u64);
            let mut sum = 0_u64;
            for place in 0..units.len() as u64 {
                let unit = units[order.at(place) as usize];
                sum = sum.saturating_add(unit_bytes[unit].resident);
                kept_bytes[unit] = sum;
            }
        }
        let mut sorted: Vec<u64> = unit_bytes.iter().map(|unit| unit.staged).collect();
        sorted.sort_unstable_by(|one, other| other.cmp(one));
        let mut sum = 0_u64;
        let largest_bytes: Box<[u64]> = std::iter::once(0)
            .chain(sorted.iter().map(|bytes| {
                sum = sum.saturating_add(*bytes);
                sum
            }))
            .collect();
        // A slice has the samples of the node's ranks at most, and units of its own sizes.
        let slice = |ranks: usize| {
            let even = u128::from(sum) * ranks as u128 / u128::from(shares.ranks().max(1));
            (even + even / 8).min(u128::from(sum)) as u64 + 2 * sorted.first().copied().unwrap_or(0)
        };
        let slice_bytes = shares.nodes().map(|ranks| slice(ranks.len())).collect();
        let rule = TurnRule::new(shares, batch);
        Self { nodes: nodes.into(), rule, holders, kept_bytes: kept_bytes.into(), largest_bytes, slice_bytes }
    }

    /// Most bytes of a window of `window` units on a node.
    ///
    /// # Panics
    /// Where there is no such node.
    #[must_use]
    pub fn window_bytes(&self, window: u64, node: usize) -> u64 {
        let most = self.largest_bytes.len() as u64 - 1;
        self.largest_bytes[window.min(most) as usize].min(self.slice_bytes[node])
    }

    /// Staging memory of a node for windows of `window` units, and what is read meanwhile
    /// \[bytes\].
    ///
    /// # Panics
    /// Where there is no such node.
    #[must_use]
    pub fn staging_bytes(&self, window: u64, node: usize) -> u64 {
        let section = section_units(window, self.rule.turns(window));
        staging_bytes(self.window_bytes(window, node), self.window_bytes(section, node))
    }

    /// Whether the holder of a unit keeps it beside windows of `window` units.
    ///
    /// # Panics
    /// Where there is no such unit.
    #[must_use]
    pub fn keeps(&self, window: u64, unit: usize) -> bool {
        self.kept_bytes[unit] <= self.resident_bytes(window, self.holders[unit])
    }

    /// Memory of a node for resident units, beside windows of `window` units \[bytes\].
    ///
    /// # Panics
    /// Where there is no such node.
    #[must_use]
    pub fn resident_bytes(&self, window: u64, node: usize) -> u64 {
        let memory = &self.nodes[node];
        let needed = self.staging_bytes(window, node);
        let taken = if memory.divides { needed.saturating_sub(memory.staging_bytes) } else { 0 };
        memory.resident_bytes.saturating_sub(taken)
    }

    /// Whether any node divides its memory.
    #[must_use]
    pub fn divides(&self) -> bool {
        self.nodes.iter().any(|memory| memory.divides)
    }

    /// Units of the longest window for which each node has memory; 0 if one has none for a window
    /// of 1.
    #[must_use]
    pub fn longest_window(&self) -> u64 {
        let fits = |window: u64| {
            self.nodes.iter().enumerate().all(|(node, memory)| {
                let room = if memory.divides { memory.resident_bytes } else { 0 };
                self.staging_bytes(window, node) <= memory.staging_bytes.saturating_add(room)
            })
        };
        let (mut low, mut high) = (0, self.holders.len() as u64);
        while low < high {
            let middle = low + (high - low).div_ceil(2);
            if fits(middle) { low = middle } else { high = middle - 1 }
        }
        low
    }
}

#[cfg(test)]
mod tests {
    use forebay_types::{Rank, SampleId};
    use proptest::prelude::*;

    use super::*;
    use crate::nodes::shares::ShareUnit;

    /// Units of these bytes on nodes with one rank each.
    fn shares(unit_bytes: &[u64], nodes: usize) -> NodeShares {
        let unit = |(first, bytes): (u64, &u64)| ShareUnit { first_sample: SampleId(first), bytes: *bytes };
        let units: Vec<ShareUnit> = (0..).zip(unit_bytes).map(unit).collect();
        let ranks: Vec<Vec<Rank>> = (0..nodes as u32).map(|rank| vec![Rank(rank)]).collect();
        NodeShares::new(unit_bytes.len() as u64, &units, &ranks, 7)
    }

    /// Units that take as much while they are resident as in staging memory.
    fn plain(unit_bytes: &[u64]) -> Vec<UnitBytes> {
        unit_bytes.iter().map(|bytes| UnitBytes { resident: *bytes, staged: *bytes }).collect()
    }

    proptest! {
        #[test]
        fn nodes_keep_what_fits_and_longer_windows_keep_less(
            unit_bytes in prop::collection::vec(1_u64..1000, 1..80),
            memory in prop::collection::vec((0_u64..20_000, 0_u64..20_000, any::<bool>()), 1..4),
            key: u64,
        ) {
            let shares = shares(&unit_bytes, memory.len());
            let nodes: Vec<NodeMemory> = memory
                .iter()
                .map(|(resident_bytes, staging_bytes, divides)| NodeMemory {
                    resident_bytes: *resident_bytes, staging_bytes: *staging_bytes, divides: *divides,
                })
                .collect();
            let streams = StreamMemory::new(&shares, 1, &plain(&unit_bytes), nodes.clone(), key);
            let longest = streams.longest_window();
            let units = unit_bytes.len() as u64;
            let mut before: Option<Vec<bool>> = None;
            for window in 0..=units {
                let kept: Vec<bool> = (0..unit_bytes.len()).map(|unit| streams.keeps(window, unit)).collect();
                for (node, memory) in nodes.iter().enumerate() {
                    let of_node = |unit: &usize| shares.holder(*unit) == node && kept[*unit];
                    let resident: u64 = (0..unit_bytes.len()).filter(of_node).map(|unit| unit_bytes[unit]).sum();
                    prop_assert!(resident <= streams.resident_bytes(window, node));
                    // The next unit has no room.
                    let next = (0..unit_bytes.len())
                        .filter(|unit| shares.holder(*unit) == node && !kept[*unit])
                        .map(|unit| streams.kept_bytes[unit])
                        .min();
                    prop_assert!(next.is_none_or(|next| next > streams.resident_bytes(window, node)));
                    let staging = streams.staging_bytes(window, node);
                    if window <= longest && window > 0 && memory.divides {
                        let room = memory.resident_bytes + memory.staging_bytes;
                        prop_assert!(resident + staging <= room.max(memory.staging_bytes + resident));
                    } else if window <= longest && window > 0 {
                        prop_assert!(staging <= memory.staging_bytes);
                    }
                }
                if let Some(before) = before {
                    prop_assert!(kept.iter().zip(&before).all(|(now, before)| *before || !now));
                }
                before = Some(kept);
            }
            let fits = |window: u64| nodes.iter().enumerate().all(|(node, memory)| {
                let room = memory.staging_bytes + if memory.divides { memory.resident_bytes } else { 0 };
                streams.staging_bytes(window, node) <= room
            });
            prop_assert!(longest == 0 || fits(longest));
            prop_assert!(longest == units || !fits(longest + 1));
        }

        #[test]
        fn any_units_of_a_window_have_room(
            unit_bytes in prop::collection::vec(1_u64..1000, 1..40), picks in prop::collection::vec(any::<prop::sample::Index>(), 1..8),
        ) {
            let shares = shares(&unit_bytes, 1);
            let memory = NodeMemory { resident_bytes: 0, staging_bytes: 0, divides: false };
            let streams = StreamMemory::new(&shares, 1, &plain(&unit_bytes), vec![memory], 1);
            let mut units: Vec<usize> = picks.iter().map(|pick| pick.index(unit_bytes.len())).collect();
            units.sort_unstable();
            units.dedup();
            let bytes: u64 = units.iter().map(|unit| unit_bytes[*unit]).sum();
            prop_assert!(bytes <= streams.window_bytes(units.len() as u64, 0));
        }
    }
}
