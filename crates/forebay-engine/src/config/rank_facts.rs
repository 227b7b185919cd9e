//! What each rank tells the leader of its node about its process; it may differ between ranks.

use std::collections::BTreeMap;
use std::thread::available_parallelism;

use forebay_host::address_left_bytes;
use rustix::thread::{CpuSet, sched_getaffinity};
use serde::{Deserialize, Serialize};

/// Facts of the process of a rank.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankFacts {
    /// Address space that it has left \[bytes\]; `None` without a limit.
    pub address_left_bytes: Option<u64>,
    /// Numbers of the cores that it may run on.
    pub cores: Vec<u32>,
    /// How many of them the CPU quotas of its control groups pay for.
    pub paid_cores: usize,
}

impl RankFacts {
    /// Those of this process.
    pub fn of_this_process() -> Self {
        let allowed = sched_getaffinity(None).unwrap_or_default();
        let cores = (0..CpuSet::MAX_CPU).filter(|core| allowed.is_set(*core));
        Self {
            address_left_bytes: address_left_bytes(),
            cores: cores.map(|core| core as u32).collect(),
            paid_cores: available_parallelism().map_or(1, std::num::NonZero::get),
        }
    }
}

/// Address space of the rank that has the least of it left \[bytes\]; `None` where none has a
/// limit.
pub fn min_address_left(ranks: &[RankFacts]) -> Option<u64> {
    ranks.iter().filter_map(|rank| rank.address_left_bytes).min()
}

/// How many cores each rank of a node may use, at least 1.
///
/// A core belongs in equal parts to the ranks that may run on it: a launcher gives all ranks the
/// same cores, or binds each to its own. A quota is that of a job, so all its ranks share it.
pub fn cores_of_ranks(ranks: &[RankFacts]) -> Vec<usize> {
    let mut users: BTreeMap<u32, u32> = BTreeMap::new();
    for core in ranks.iter().flat_map(|rank| &rank.cores) {
        *users.entry(*core).or_default() += 1;
    }
    let own = |rank: &RankFacts| {
        let part_of_paid = rank.paid_cores / ranks.len();
        if rank.cores.is_empty() {
            // A machine with more cores than fit into a mask has none in it.
            return part_of_paid.max(1);
        }
        let parts: f64 = rank.cores.iter().map(|core| 1.0 / f64::from(users[core])).sum();
        let has_quota = rank.paid_cores < rank.cores.len();
        let paid = if has_quota { part_of_paid } else { rank.paid_cores };
        // Three thirds of a core are one core.
        ((parts + 1e-6) as usize).min(paid).max(1)
    };
    ranks.iter().map(own).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ops::Range;

    fn shares(masks: &[Range<u32>], quota: Option<usize>) -> Vec<usize> {
        let rank = |mask: &Range<u32>| RankFacts {
            cores: mask.clone().collect(),
            paid_cores: mask.len().min(quota.unwrap_or(usize::MAX)),
            ..RankFacts::default()
        };
        cores_of_ranks(&masks.iter().map(rank).collect::<Vec<_>>())
    }

    #[test]
    fn ranks_share_the_cores_that_they_may_all_use() {
        assert_eq!(shares(&[0..16, 0..16, 0..16, 0..16], None), [4; 4]);
        assert_eq!(shares(&[0..3, 0..3, 0..3], None), [1; 3]);
        assert_eq!(shares(&[0..2, 0..2, 0..2, 0..2], None), [1; 4]);
    }

    #[test]
    fn a_rank_has_the_cores_that_it_alone_is_bound_to() {
        assert_eq!(shares(&[0..8, 8..16, 16..24, 24..32], None), [8; 4]);
        assert_eq!(shares(&[0..1, 1..2], None), [1; 2]);
        // Two ranks for each socket.
        assert_eq!(shares(&[0..32, 0..32, 32..64, 32..64], None), [16; 4]);
        assert_eq!(shares(&[0..8, 4..12], None), [6; 2]);
    }

    #[test]
    fn a_quota_bounds_the_ranks_together() {
        assert_eq!(shares(&[0..64, 0..64, 0..64, 0..64], Some(8)), [2; 4]);
        assert_eq!(shares(&[0..64, 64..128], Some(32)), [16; 2]);
        assert_eq!(shares(&[0..8, 8..16], Some(1)), [1; 2]);
    }

    #[test]
    fn ranks_share_what_no_mask_tells() {
        let rank = RankFacts { paid_cores: 2048, ..RankFacts::default() };
        assert_eq!(cores_of_ranks(&vec![rank; 4]), [512; 4]);
        assert_eq!(cores_of_ranks(&[RankFacts::default()]), [1]);
    }

    #[test]
    fn this_process_may_run_somewhere() {
        let facts = RankFacts::of_this_process();
        assert!(!facts.cores.is_empty());
        assert!((1..=facts.cores.len()).contains(&facts.paid_cores));
    }
}
