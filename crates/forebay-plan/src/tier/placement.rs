//! Placement: which chunks of a dataset the storage tiers keep, and in which level.
//!
//! How it works, in order:
//! 1. A permutation π of the chunks, keyed by the dataset, gives each chunk a position.
//! 2. Level 0 keeps the chunks whose position is below its slots, level 1 those whose position is
//!    below the slots of both, and so on. The chunks beyond all slots stay at the source.
//! 3. Several nodes that share a dataset would all keep the same chunks. There each node applies
//!    its placement only to chunks that it reads. A node that reads a share t of the chunks per
//!    epoch divides the edges of its levels by t ([`Placement::for_reads`]). It then fills its
//!    slots, but for chance, within its first epoch, evenly spread over the steps. The quota caps
//!    what it keeps.
//!
//! Promises:
//! - The same numbers give the same placement for ever, on every machine: caches outlive jobs.
//! - On one node the counts are exact.
//! - Larger quotas keep all chunks that smaller ones kept, so a changed quota wastes no copy.
//! - Chunks at the source are evenly spread over every order, `sequential` included, so that each
//!   step reads about the same share of its bytes from the source.
//!
//! A placement says where a chunk belongs. The table of the tier daemon says what is there.

use serde::{Deserialize, Serialize};

use crate::permutation::{Key, Permutation, Purpose};

/// Most levels: their numbers are bytes.
const MAX_LEVELS: usize = 256;

/// Most chunks that a permutation takes.
const MAX_CHUNKS: u64 = 1 << 62;

/// Numbers that define no placement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlacementError {
    /// More chunks than a permutation takes.
    #[error("placement: too many chunks (expected at most 2^62, found {found})")]
    Chunks {
        /// Their number.
        found: u64,
    },
    /// More levels than a byte numbers.
    #[error("placement: too many levels (expected at most {MAX_LEVELS}, found {found})")]
    Levels {
        /// Their number.
        found: usize,
    },
    /// Edges that descend, or exceed the number of chunks.
    #[error("placement: invalid edge of level {level} (expected {least} to {chunks}, found {found})")]
    Edge {
        /// The level.
        level: usize,
        /// The edge of the level before.
        least: u64,
        /// Chunks of the dataset.
        chunks: u64,
        /// The edge.
        found: u64,
    },
}

/// Number of slots of each level for a dataset of `chunks` chunks. `rooms` are the free slots of
/// the levels; earlier levels are filled first.
pub fn slots_of_levels(chunks: u64, rooms: impl IntoIterator<Item = u64>) -> impl Iterator<Item = u64> {
    let mut left = chunks;
    rooms.into_iter().map(move |room| {
        let slots = room.min(left);
        left -= slots;
        slots
    })
}

/// Which level keeps each chunk of a dataset.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(try_from = "Numbers", into = "Numbers")]
pub struct Placement {
    numbers: Numbers,
    positions: Permutation,
}

/// What defines a placement, and all that travels between processes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Numbers {
    /// Chunks of the dataset.
    chunks: u64,
    /// Key of the permutation.
    key: u64,
    /// For each level the position before which its chunks end; ascending, at most `chunks`.
    edges: Vec<u64>,
}

impl Placement {
    /// The placement of one node that reads all `chunks` in each epoch, into levels of `slots`
    /// chunks. `key` identifies the dataset.
    ///
    /// # Errors
    /// More chunks or levels than a placement can number.
    pub fn new(chunks: u64, key: u64, slots: &[u64]) -> Result<Self, PlacementError> {
        Self::for_reads(chunks, key, slots, 1.0)
    }

    /// The placement of a node that reads only `read_share` (0 to 1) of the chunks in its first
    /// epoch, and applies the placement to those only.
    ///
    /// # Errors
    /// More chunks or levels than a placement can number.
    pub fn for_reads(chunks: u64, key: u64, slots: &[u64], read_share: f64) -> Result<Self, PlacementError> {
        let mut total = 0_u64;
        let edges = slots.iter().map(|slots| {
            total = total.saturating_add(*slots).min(chunks);
            // A division by 1 would round where f64 has no room for the number.
            if read_share >= 1.0 { total } else { ((total as f64 / read_share.max(0.0)) as u64).min(chunks) }
        });
        Self::try_from(Numbers { chunks, key, edges: edges.collect() })
    }

    /// The level that keeps `chunk`; `None` for a chunk that stays at the source.
    #[must_use]
    pub fn level(&self, chunk: u64) -> Option<u8> {
        let Numbers { chunks, edges, .. } = &self.numbers;
        if chunk >= *chunks || self.placed() == 0 {
            return None;
        }
        // Where level 0 keeps all chunks, the position does not matter.
        let position = if edges[0] == *chunks { 0 } else { self.positions.at(chunk) };
        let level = edges.partition_point(|edge| *edge <= position);
        (level < edges.len()).then_some(level as u8)
    }

    /// Chunks that the placement keeps in some level, where the node reads all of them.
    #[must_use]
    pub fn placed(&self) -> u64 {
        self.numbers.edges.last().copied().unwrap_or(0)
    }

    /// Chunks that the placement keeps in `level`, where the node reads all of them.
    #[must_use]
    pub fn placed_in(&self, level: u8) -> u64 {
        let edges = &self.numbers.edges;
        let end = edges.get(usize::from(level)).copied().unwrap_or(0);
        let start =
            usize::from(level).checked_sub(1).map_or(0, |before| edges.get(before).copied().unwrap_or(0));
        end.saturating_sub(start)
    }

    /// Chunks of the dataset.
    #[must_use]
    pub fn chunks(&self) -> u64 {
        self.numbers.chunks
    }
}

impl PartialEq for Placement {
    fn eq(&self, other: &Self) -> bool {
        self.numbers == other.numbers
    }
}

impl Eq for Placement {}

impl From<Placement> for Numbers {
    fn from(placement: Placement) -> Self {
        placement.numbers
    }
}

impl TryFrom<Numbers> for Placement {
    type Error = PlacementError;

    fn try_from(numbers: Numbers) -> Result<Self, PlacementError> {
        let Numbers { chunks, key, ref edges } = numbers;
        if chunks > MAX_CHUNKS {
            return Err(PlacementError::Chunks { found: chunks });
        }
        if edges.len() > MAX_LEVELS {
            return Err(PlacementError::Levels { found: edges.len() });
        }
        let mut least = 0;
        for (level, edge) in edges.iter().enumerate() {
            if !(least..=chunks).contains(edge) {
                return Err(PlacementError::Edge { level, least, chunks, found: *edge });
            }
            least = *edge;
        }
        let positions = Permutation::new(Key::new(key, Purpose::Placement), chunks);
        Ok(Self { numbers, positions })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn levels(placement: &Placement) -> Vec<Option<u8>> {
        (0..placement.chunks()).map(|chunk| placement.level(chunk)).collect()
    }

    proptest! {
        #[test]
        fn each_level_keeps_exactly_its_slots(
            chunks in 0_u64..6000, key: u64, slots in prop::collection::vec(0_u64..3000, 0..5),
        ) {
            let placement = Placement::new(chunks, key, &slots).unwrap();
            let found = levels(&placement);
            let mut left = chunks;
            for (level, slots) in (0_u8..).zip(&slots) {
                let kept = found.iter().filter(|found| **found == Some(level)).count() as u64;
                prop_assert_eq!(kept, left.min(*slots));
                prop_assert_eq!(kept, placement.placed_in(level));
                left -= kept;
            }
            prop_assert_eq!(placement.placed(), chunks - left);
            prop_assert_eq!(placement.level(chunks), None);
        }

        #[test]
        fn larger_quotas_keep_what_smaller_ones_kept(
            chunks in 1_u64..6000, key: u64, slots in prop::collection::vec(0_u64..3000, 1..4),
            more in 0_u64..1000,
        ) {
            let smaller = levels(&Placement::new(chunks, key, &slots).unwrap());
            let mut slots = slots;
            slots[0] += more;
            let larger = levels(&Placement::new(chunks, key, &slots).unwrap());
            for (smaller, larger) in smaller.iter().zip(&larger) {
                prop_assert!(smaller.is_none() || larger.is_some_and(|larger| Some(larger) <= *smaller));
            }
        }

        #[test]
        fn a_placement_travels_as_its_numbers(
            chunks in 0_u64..1 << 50, key: u64, slots in prop::collection::vec(0_u64..1 << 50, 0..5),
            share in 0.0_f64..1.5,
        ) {
            let placement = Placement::for_reads(chunks, key, &slots, share).unwrap();
            let text = serde_json::to_string(&placement).unwrap();
            prop_assert!(text.len() < 200, "{}", text);
            let back: Placement = serde_json::from_str(&text).unwrap();
            prop_assert_eq!(&back, &placement);
            for chunk in [0, chunks / 3, chunks.saturating_sub(1)] {
                prop_assert_eq!(back.level(chunk), placement.level(chunk));
            }
        }
    }

    #[test]
    fn numbers_that_define_no_placement_are_refused() {
        assert_eq!(
            Placement::new(u64::MAX, 0, &[1]).unwrap_err(),
            PlacementError::Chunks { found: u64::MAX }
        );
        assert_eq!(Placement::new(9, 0, &[1; 257]).unwrap_err(), PlacementError::Levels { found: 257 });
        for edges in ["[5,4]", "[11]", "[0,11]"] {
            let text = format!(r#"{{"chunks":10,"key":1,"edges":{edges}}}"#);
            assert!(serde_json::from_str::<Placement>(&text).is_err(), "{edges}");
        }
    }

    #[test]
    fn a_node_that_reads_a_share_of_the_chunks_fills_its_slots_from_that_share() {
        // Node 2 of 4 reads every chunk with number 2 modulo 4.
        for (slots, expected) in [([500_u64, 1500], [500.0, 1500.0]), ([2000, 9000], [2000.0, 3000.0])] {
            let placement = Placement::for_reads(20_000, 7, &slots, 0.25).unwrap();
            for (level, expected) in (0_u8..).zip(expected) {
                let kept =
                    (2..20_000).step_by(4).filter(|chunk| placement.level(*chunk) == Some(level)).count()
                        as f64;
                // Five standard deviations of a binomial.
                let tolerance = 5.0 * f64::sqrt(expected * (1.0 - expected / 5000.0));
                assert!((kept - expected).abs() <= tolerance, "level {level}: {kept}");
            }
        }
    }

    #[test]
    fn chunks_at_the_source_are_evenly_spread() {
        // χ² per degree of freedom over 64 ranges of neighbouring chunks, mean of 50 keys: 1 within
        // 5·√(2/(63·50)).
        for chunks in [3200_u64, 64_000] {
            let range = (chunks / 64) as f64;
            let mut sum = 0.0;
            for key in 0..50 {
                let placement = Placement::new(chunks, key, &[chunks * 56 / 100]).unwrap();
                let mut at_source = [0_u64; 64];
                for chunk in 0..chunks {
                    at_source[(chunk * 64 / chunks) as usize] += u64::from(placement.level(chunk).is_none());
                }
                sum += at_source
                    .iter()
                    .map(|found| (*found as f64 - range * 0.44).powi(2) / (range * 0.44 * 0.56))
                    .sum::<f64>();
            }
            let found = sum / (63.0 * 50.0);
            assert!((found - 1.0).abs() < 0.126, "{chunks} chunks: {found:.3}");
        }
    }

    /// A placement decides what caches hold across jobs. If one of these values changes, caches
    /// written by earlier versions hold other chunks than later versions look for: restore the
    /// definition instead of changing the values.
    #[test]
    fn placements_do_not_change_between_versions() {
        for (chunks, key, slots, expected) in [
            (20_u64, 0_u64, &[5_u64, 5][..], "0---1-000111-0-1----0---1-000111-0-1----"),
            (4095, 1, &[100, 3000], "-1111111111111-10111--111111----1111-11-"),
            (4096, 1, &[100, 3000], "--1111111111--111-11-11-111--1111111--11"),
            (
                1_000_000,
                0x0123_4567_89ab_cdef,
                &[100_000, 50_000, 700_000],
                "2222122-20222212222-2-2222222-0222222222",
            ),
        ] {
            let placement = Placement::new(chunks, key, slots).unwrap();
            // The first 20 chunks, and 20 spread over all.
            let found: String = (0..20)
                .chain((0..20).map(|part| part * chunks / 20))
                .map(|chunk| placement.level(chunk).map_or('-', |level| char::from(b'0' + level)))
                .collect();
            assert_eq!(found, expected, "{chunks} chunks, key {key}");
        }
    }

    #[test]
    fn levels_give_slots_until_all_chunks_have_one() {
        for (chunks, rooms, expected) in [
            (100, [30, 200], [30, 70]),
            (100, [100, 7], [100, 0]),
            (100, [10, 20], [10, 20]),
            (0, [1, 1], [0, 0]),
        ] {
            assert_eq!(slots_of_levels(chunks, rooms).collect::<Vec<_>>(), expected);
        }
    }
}
