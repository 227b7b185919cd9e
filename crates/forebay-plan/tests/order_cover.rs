//! Every sample exactly once per epoch, the same number of steps everywhere, and the same stream
//! whatever the ranks.

use std::collections::HashMap;

use crate::order_common::{
    batch, batches, batches_keeping, cases, epoch, global_batch, orders, places, pool, shares,
};
use forebay_plan::{LastBatch, Order, OrderKind, OrderSpec, PermutationCache};
use forebay_types::{Rank, SampleId};
use proptest::prelude::*;

fn counts(samples: &[u64]) -> HashMap<u64, u64> {
    let mut counts = HashMap::new();
    for sample in samples {
        *counts.entry(*sample).or_default() += 1;
    }
    counts
}

proptest! {
    #![proptest_config(cases(2))]

    #[test]
    fn an_epoch_covers_the_dataset_as_its_end_promises(order in orders(), number in 0_u64..5) {
        let (samples, all) = (order.spec().samples, epoch(&order, number));
        let (steps, global) = (order.steps_per_epoch(), order.global_batch());
        let counts = counts(&all);
        prop_assert!(all.iter().all(|sample| *sample < samples));
        match order.spec().last_batch {
            LastBatch::Partial => {
                prop_assert_eq!(all.len() as u64, samples);
                prop_assert_eq!(counts.len() as u64, samples);
            }
            LastBatch::Drop => {
                prop_assert_eq!(all.len() as u64, steps * global);
                prop_assert_eq!(counts.len(), all.len());
                prop_assert!(samples - steps * global < global);
            }
            LastBatch::Fill | LastBatch::Carry => {
                prop_assert_eq!(all.len() as u64, steps * global);
                prop_assert_eq!(counts.len() as u64, samples);
                prop_assert!(steps * global - samples < global);
                prop_assert!(counts.values().all(|count| *count <= 2));
            }
        }
    }

    #[test]
    fn what_batches_keep_for_each_other_changes_none(order in orders(), places in places()) {
        prop_assert_eq!(batches_keeping(&order, &places), batches(&order, &places));
    }

    #[test]
    fn batches_of_ranks_are_those_of_each_rank_in_turn(
        order in orders(),
        from in 0..3_u64,
        step in any::<prop::sample::Index>(),
    ) {
        let step = from * order.steps_per_epoch() + step.index(order.steps_per_epoch() as usize) as u64;
        if matches!(order.kind(), OrderKind::Given { .. }) {
            return Ok(());
        }
        let (mut kept, mut found) = (PermutationCache::default(), vec![SampleId(0)]);
        let ranks = (0..order.spec().ranks as u32).map(Rank);
        order.batches_of_ranks(step, ranks, &mut kept, &mut found);
        let found: Vec<u64> = found.iter().map(|id| id.0).collect();
        let steps = order.steps_per_epoch();
        prop_assert_eq!(found, global_batch(&order, step / steps, step % steps));
    }

    #[test]
    fn only_the_last_two_steps_of_partial_are_not_full(order in orders(), number in 0_u64..3) {
        let (steps, ranks) = (order.steps_per_epoch(), order.spec().ranks);
        for step in 0..steps {
            for rank in 0..ranks {
                let found = batch(&order, number, step, rank).len() as u64;
                prop_assert!(found <= order.largest_batch());
                if order.spec().last_batch != LastBatch::Partial || step + 2 < steps {
                    prop_assert_eq!(found, order.spec().batch, "step {} of {}, rank {}", step, steps, rank);
                }
            }
        }
    }

    #[test]
    fn no_sample_is_twice_in_a_global_batch(order in orders(), number in 0_u64..3) {
        for step in 0..order.steps_per_epoch() {
            let found = global_batch(&order, number, step);
            prop_assert_eq!(counts(&found).len(), found.len(), "step {}", step);
        }
    }

    #[test]
    fn the_global_batches_are_the_same_on_every_allowed_number_of_ranks(order in orders(), number in 0_u64..3) {
        // There the steps depend on what each node holds.
        if matches!(order.kind(), OrderKind::Opportunistic { .. }) {
            return Ok(());
        }
        for ranks in order.allowed_ranks() {
            let batch = order.global_batch() / ranks;
            let spec = OrderSpec { batch, ranks, lanes: Some(order.lanes()), ..*order.spec() };
            let rest = spec.samples % order.global_batch();
            if spec.last_batch == LastBatch::Partial && (1..ranks.max(order.spec().ranks)).contains(&rest) {
                // See order_last_steps.rs.
                continue;
            }
            let other = Order::new(spec).unwrap().on_nodes(shares(number, spec.samples, ranks));
            prop_assert_eq!((other.global_batch(), other.lanes()), (order.global_batch(), order.lanes()));
            prop_assert_eq!(order.steps_per_epoch(), other.steps_per_epoch());
            for step in 0..order.steps_per_epoch() {
                let is_sorted = matches!(order.kind(), OrderKind::Contiguous | OrderKind::LocalShuffle { .. });
                let samples = |order| if is_sorted { pool(order, number, step) } else { global_batch(order, number, step) };
                prop_assert_eq!(samples(&order), samples(&other), "step {} on {} ranks", step, ranks);
            }
        }
    }

    #[test]
    fn carry_is_the_dataset_round_and_round(more in 0_u64..200, size in 1_u64..9, ranks in 1_u64..5) {
        let samples = size * ranks + more;
        let spec = OrderSpec {
            kind: OrderKind::Sequential, last_batch: LastBatch::Carry, seed: 0, samples, batch: size, ranks, lanes: None,
        };
        let order = Order::new(spec).unwrap();
        let all: Vec<u64> = (0..4).flat_map(|number| epoch(&order, number)).collect();
        prop_assert!(all.iter().zip(0..).all(|(sample, position)| *sample == position % samples));
    }

    #[test]
    fn shuffled_orders_differ_between_epochs_and_between_seeds(
        seed: u64, more in 0_u64..100, group in prop_oneof![Just(None), (1_u64..20, 1_u64..6).prop_map(Some)],
    ) {
        // Of 16 or more groups, or as many samples, two shuffles agree by chance less than once in
        // 10^13.
        let kind = group.map_or(OrderKind::Shuffle, |(samples, window)| OrderKind::Group { samples, window });
        let samples = more + 16 * group.map_or(1, |(samples, _)| samples);
        let spec = OrderSpec { kind, last_batch: LastBatch::Fill, seed, samples, batch: 4, ranks: 2, lanes: None };
        let order = Order::new(spec).unwrap();
        let other = Order::new(OrderSpec { seed: order.spec().seed ^ 1, ..*order.spec() }).unwrap();
        prop_assert_ne!(epoch(&order, 0), epoch(&order, 1));
        prop_assert_ne!(epoch(&order, 0), epoch(&other, 0));
        prop_assert_eq!(epoch(&order, 2), epoch(&order, 2));
    }
}

#[test]
fn contiguous_ranks_walk_their_own_regions() {
    let spec = |last| OrderSpec {
        kind: OrderKind::Contiguous,
        last_batch: last,
        seed: 0,
        samples: 11,
        batch: 2,
        ranks: 2,
        lanes: None,
    };
    let walk = |last, rank| {
        let order = Order::new(spec(last)).unwrap();
        (0..order.steps_per_epoch()).map(|step| batch(&order, 0, step, rank)).collect::<Vec<_>>()
    };
    assert_eq!(walk(LastBatch::Fill, 0), [[0, 1], [2, 3], [4, 0]]);
    assert_eq!(walk(LastBatch::Fill, 1), [[5, 6], [7, 8], [9, 10]]);
    assert_eq!(walk(LastBatch::Drop, 0), [[0, 1], [2, 3]]);
    assert_eq!(walk(LastBatch::Partial, 0), [vec![0, 1], vec![2, 3], vec![4]]);
    assert_eq!(walk(LastBatch::Partial, 1), [[5, 6], [7, 8], [9, 10]]);
}

#[test]
fn datasets_beyond_the_table_are_covered_too() {
    for kind in [
        OrderKind::Shuffle,
        OrderKind::Group { samples: 3, window: 2000 },
        OrderKind::Group { samples: 7, window: 5 },
    ] {
        let spec = OrderSpec {
            kind,
            last_batch: LastBatch::Partial,
            seed: 5,
            samples: 40_001,
            batch: 24,
            ranks: 2,
            lanes: None,
        };
        let order = Order::new(spec).unwrap();
        let mut all = epoch(&order, 3);
        all.sort_unstable();
        assert!(all.iter().copied().eq(0..40_001), "{kind}");
    }
}
