//! `local-shuffle`: the samples of `shuffle`, on nodes that hold them; and what nodes hold.

use std::sync::Arc;

use crate::order_common::{batch, cases, global_batch, pool, shares};
use forebay_plan::{LastBatch, NodeShares, Order, OrderKind, OrderSpec, ShareUnit};
use forebay_types::{Rank, SampleId};
use proptest::prelude::*;

fn order(kind: OrderKind, last: LastBatch, samples: u64, batch: u64, ranks: u64) -> Order {
    Order::new(OrderSpec { kind, last_batch: last, seed: 3, samples, batch, ranks, lanes: None }).unwrap()
}

/// Units of 4 samples and 400 bytes.
fn units(samples: u64) -> Vec<ShareUnit> {
    (0..samples)
        .step_by(4)
        .map(|first| ShareUnit { first_sample: SampleId(first), bytes: 100 * (samples - first).min(4) })
        .collect()
}

/// Nodes with these numbers of ranks, in blocks.
fn nodes(ranks: &[u32]) -> Vec<Vec<Rank>> {
    let mut next = 0;
    let mut take = |count: &u32| {
        next += count;
        (next - count..next).map(Rank).collect()
    };
    ranks.iter().map(&mut take).collect()
}

proptest! {
    #![proptest_config(cases(1))]

    #[test]
    fn each_step_has_the_samples_of_shuffle(
        seed: u64, more in 0_u64..200, size in 1_u64..9, ranks in 1_u64..7, number in 0_u64..4,
        last in prop_oneof![Just(LastBatch::Fill), Just(LastBatch::Drop), Just(LastBatch::Partial)],
    ) {
        let samples = more + size * ranks;
        let plain = order(OrderKind::Shuffle, last, samples, size, ranks);
        let local = order(OrderKind::LocalShuffle { steps: 1 }, last, samples, size, ranks)
            .on_nodes(shares(seed, samples, ranks));
        for step in 0..plain.steps_per_epoch() {
            prop_assert_eq!(pool(&plain, number, step), pool(&local, number, step));
            for rank in 0..ranks {
                let counts = (batch(&plain, number, step, rank).len(), batch(&local, number, step, rank).len());
                prop_assert_eq!(counts.0, counts.1, "step {}, rank {}", step, rank);
            }
        }
    }

    #[test]
    fn pools_have_the_samples_of_shuffle(
        seed: u64, samples in 100_u64..300, size in 1_u64..5, ranks in 1_u64..5, steps in 2_u64..5, number in 0_u64..3,
    ) {
        let plain = order(OrderKind::Shuffle, LastBatch::Fill, samples, size, ranks);
        let local = order(OrderKind::LocalShuffle { steps }, LastBatch::Fill, samples, size, ranks)
            .on_nodes(shares(seed, samples, ranks));
        for step in 0..plain.steps_per_epoch() {
            let mut expected: Vec<u64> =
                local.pool(step).flat_map(|step| global_batch(&plain, number, step)).collect();
            expected.sort_unstable();
            prop_assert_eq!(pool(&local, number, step), expected);
        }
    }

    #[test]
    fn a_node_takes_what_it_holds_before_anything_else(
        seed: u64, samples in 60_u64..300, size in 1_u64..9, ranks in 1_u64..7, number in 0_u64..3,
    ) {
        let order = order(OrderKind::LocalShuffle { steps: 1 }, LastBatch::Fill, samples, size, ranks)
            .on_nodes(shares(seed, samples, ranks));
        let shares = order.shares().unwrap();
        for step in 0..order.steps_per_epoch() {
            let held = |node| global_batch(&order, number, step).iter().filter(|id| shares.node_of(SampleId(**id)) == node).count();
            for (node, of_node) in shares.nodes().enumerate() {
                let taken: Vec<u64> =
                    of_node.iter().flat_map(|rank| batch(&order, number, step, u64::from(rank.0))).collect();
                let own = taken.iter().filter(|id| shares.node_of(SampleId(**id)) == node).count();
                prop_assert_eq!(own, held(node).min(taken.len()), "step {}, node {}", step, node);
            }
        }
    }

    #[test]
    fn on_one_node_it_is_shuffle(samples in 40_u64..200, steps in 1_u64..5, number in 0_u64..3) {
        let plain = order(OrderKind::Shuffle, LastBatch::Fill, samples, 3, 2);
        let one = Arc::new(NodeShares::new(samples, &units(samples), &nodes(&[2]), 7));
        let local = order(OrderKind::LocalShuffle { steps }, LastBatch::Fill, samples, 3, 2);
        for local in [local.clone(), local.on_nodes(one)] {
            for step in 0..plain.steps_per_epoch() {
                prop_assert_eq!(global_batch(&plain, number, step), global_batch(&local, number, step));
            }
        }
    }

    #[test]
    fn parts_are_filled_to_the_unit(
        key: u64, bytes in prop::collection::vec(0_u64..5000, 1..400),
        ranks in prop::collection::vec(0_u32..5, 1..6).prop_filter("ranks", |ranks| ranks.iter().any(|ranks| *ranks > 0)),
    ) {
        let units: Vec<ShareUnit> =
            (0..).zip(&bytes).map(|(first, bytes)| ShareUnit { first_sample: SampleId(first), bytes: *bytes }).collect();
        let shares = NodeShares::new(bytes.len() as u64, &units, &nodes(&ranks), key);
        let all = shares.ranks();
        let total: u64 = bytes.iter().sum();
        for (node, ranks) in ranks.iter().enumerate() {
            let held: u64 = (0..).zip(&bytes).filter(|(unit, _)| shares.holder(*unit) == node).map(|(_, bytes)| bytes).sum();
            let part = (total * u64::from(*ranks)).div_ceil(all);
            let largest = bytes.iter().max().unwrap();
            prop_assert!(held < part + largest.max(&1), "node {} holds {} of {}, its part is {}", node, held, total, part);
            prop_assert!(*ranks > 0 || shares.held_samples(node) == 0);
        }
    }
}

#[test]
fn shares_travel_as_their_numbers() {
    let shares = NodeShares::new(1003, &units(1003), &nodes(&[2, 0, 1]), 3);
    let text = serde_json::to_string(&shares).unwrap();
    assert_eq!(serde_json::from_str::<NodeShares>(&text).unwrap(), shares);
    let numbers = |units: &str, of: &str, nodes: &str| {
        format!(r#"{{"samples":10,"unit_samples":{units},"unit_nodes":{of},"nodes":{nodes}}}"#)
    };
    assert!(serde_json::from_str::<NodeShares>(&numbers("[5]", "[0,1]", "[[0],[1]]")).is_ok());
    for (units, of, nodes) in [
        ("[10]", "[0,1]", "[[0],[1]]"),
        ("[0]", "[0,1]", "[[0],[1]]"),
        ("[18446744073709551615,1]", "[0,1,0]", "[[0],[1]]"),
        ("[5]", "[0]", "[[0],[1]]"),
        ("[5]", "[0,2]", "[[0],[1]]"),
        ("[5]", "[0,1]", "[[0],[0]]"),
        ("[5]", "[0,1]", "[[0],[2]]"),
    ] {
        assert!(
            serde_json::from_str::<NodeShares>(&numbers(units, of, nodes)).is_err(),
            "{units} {of} {nodes}"
        );
    }
}

#[test]
fn few_units_move_when_a_node_is_added() {
    let samples = 40_000;
    for (before, after) in [(4, 5), (5, 4), (8, 16), (3, 4)] {
        let share = |count| NodeShares::new(samples, &units(samples), &nodes(&vec![2; count]), 5);
        let (before_shares, after_shares) = (share(before), share(after));
        let moved = (0..before_shares.units())
            .filter(|unit| before_shares.holder(*unit) != after_shares.holder(*unit))
            .count();
        let least = 1.0 - before.min(after) as f64 / before.max(after) as f64;
        let found = moved as f64 / before_shares.units() as f64;
        assert!(
            (least - 0.02..least + 0.03).contains(&found),
            "{before} to {after} nodes: {found}, least {least}"
        );
    }
}

#[test]
fn what_moves_is_what_was_expected() {
    for (ranks, size, steps, samples) in [
        (&[1, 1, 1, 1][..], 64, 1, 100_000),
        (&[2, 2], 8, 1, 5_000),
        (&[3, 1, 2], 16, 1, 20_000),
        (&[1, 1, 1, 1], 4, 8, 20_000),
    ] {
        let shares = Arc::new(NodeShares::new(samples, &units(samples), &nodes(ranks), 9));
        let order = order(OrderKind::LocalShuffle { steps }, LastBatch::Drop, samples, size, shares.ranks())
            .on_nodes(Arc::clone(&shares));
        let (mut moved, mut all) = (0, 0);
        for step in 0..order.steps_per_epoch().min(400) {
            for rank in 0..shares.ranks() {
                let node = shares.node_of_rank(Rank(rank as u32));
                let found = batch(&order, 0, step, rank);
                all += found.len();
                moved += found.iter().filter(|id| shares.node_of(SampleId(**id)) != node).count();
            }
        }
        let (found, expected) = (moved as f64 / all as f64, shares.moved(steps * size));
        assert!((found / expected - 1.0).abs() < 0.08, "{ranks:?}: {found}, expected {expected}");
    }
    // The figure of the documentation.
    assert!((NodeShares::moved_of_equal(1_281_167, 4, 256) - 0.0431).abs() < 0.0005);
}

#[test]
fn pools_of_an_epoch_or_more_are_refused() {
    let spec = |steps| OrderSpec {
        kind: OrderKind::LocalShuffle { steps },
        last_batch: LastBatch::Fill,
        seed: 0,
        samples: 100,
        batch: 5,
        ranks: 2,
        lanes: None,
    };
    for steps in [0, 10, 11] {
        let error = Order::new(spec(steps)).unwrap_err().to_string();
        assert!(error.contains("1, or fewer than the steps of an epoch"), "{error}");
    }
    assert!(Order::new(spec(9)).is_ok());
}

#[test]
fn pools_shuffle_less_the_longer_they_are() {
    let samples = 1_281_167;
    let shares = Arc::new(NodeShares::new(samples, &units(samples), &nodes(&[1; 4]), 9));
    let quality = |steps| {
        let order = order(OrderKind::LocalShuffle { steps }, LastBatch::Fill, samples, 8, 4);
        order.on_nodes(Arc::clone(&shares)).quality()
    };
    let entropy: Vec<f64> = [1, 2, 4, 64, 40_000].map(|steps| quality(steps).order_entropy.unwrap()).to_vec();
    assert!((entropy[0] - 1.0).abs() < f64::EPSILON);
    assert!(entropy.is_sorted_by(|one, next| one > next), "{entropy:?}");
    // In the longest pools each step has 8 samples of each node, which of 32 random ones have with
    // probability 32! / 8!^4 / 4^32.
    let chance = 81.558 - 4.0 * 10.605 - 32.0 * 4_f64.ln();
    let lost = -chance / (32.0 * ((samples as f64).ln() - 1.0));
    assert!((1.0 - entropy[4] - lost).abs() < 0.001, "{entropy:?}, {lost}");
    assert_eq!(quality(1).same_group_pairs, None);
    let pairs = quality(8);
    assert!(pairs.same_group_pairs < pairs.full_shuffle_same_group_pairs);
}
