//! The quality that an order states is the quality that it has.

use crate::order_common::global_batch;
use forebay_plan::{Convergence, LastBatch, Order, OrderKind, OrderSpec};
use proptest::prelude::*;

fn order(kind: OrderKind, lanes: Option<u64>) -> Order {
    let spec = OrderSpec {
        kind,
        last_batch: LastBatch::Drop,
        seed: 17,
        samples: 20_000,
        batch: 64,
        ranks: 1,
        lanes,
    };
    Order::new(spec).unwrap()
}

/// Share of the pairs of a global batch that come from the same group of `group`, over `epochs`
/// epochs.
fn measured_pairs(order: &Order, group: u64, epochs: u64) -> f64 {
    let (mut same, mut pairs) = (0_u64, 0_u64);
    for epoch in 0..epochs {
        for step in 0..order.steps_per_epoch() {
            let groups: Vec<u64> =
                global_batch(order, epoch, step).iter().map(|sample| sample / group).collect();
            for (place, one) in groups.iter().enumerate() {
                same += groups[place + 1..].iter().filter(|other| *other == one).count() as u64;
                pairs += (groups.len() - place - 1) as u64;
            }
        }
    }
    same as f64 / pairs as f64
}

#[test]
fn same_group_pairs_are_as_stated() {
    // Not in the formula: window edges fall inside groups and inside batches, which separates pairs
    // (many with w = 1, where a window mixes parts of two groups), and windows are cut at a lane's
    // ends, which joins some: the fewer windows a lane has, the more.
    for (window, lanes, least) in [(4, 4, 0.8), (1, 4, 0.6), (4, 1, 0.8), (8, 2, 0.8)] {
        let order = order(OrderKind::Group { samples: 100, window }, Some(lanes));
        let stated = order.quality().same_group_pairs.unwrap();
        let ratio = measured_pairs(&order, 100, 3) / stated;
        assert!(
            (least..1.15).contains(&ratio),
            "w {window}, L {lanes}: {ratio:.3} of the stated {stated:.4}"
        );
    }
    let order = order(OrderKind::Shuffle, None);
    let found = measured_pairs(&order, 100, 3);
    assert!((found - 0.005).abs() < 0.0005, "full shuffle: {found:.5}");
}

#[test]
fn every_kind_states_its_quality() {
    assert_eq!(order(OrderKind::Shuffle, None).quality().order_entropy, Some(1.0));
    assert_eq!(order(OrderKind::Sequential, None).quality().order_entropy, Some(0.0));
    assert_eq!(order(OrderKind::Contiguous, None).quality().order_entropy, Some(0.0));
    assert_eq!(order(OrderKind::ALL_GIVEN, None).quality().order_entropy, None);
    let quality = order(OrderKind::Group { samples: 100, window: 4 }, None).quality();
    assert!((0.5..0.7).contains(&quality.order_entropy.unwrap()), "{quality:?}");
}

#[test]
fn the_place_of_a_sample_is_uniform_over_epochs() {
    // χ² of the tenth of the epoch in which every 500th sample is delivered, 200 epochs, groups and
    // windows together.
    let order = order(OrderKind::Group { samples: 20, window: 4 }, Some(8));
    let (epochs, steps) = (200, order.steps_per_epoch());
    let mut counts = vec![[0_u64; 10]; 40];
    for epoch in 0..epochs {
        for step in 0..steps {
            for sample in global_batch(&order, epoch, step).into_iter().filter(|sample| sample % 500 == 0) {
                counts[(sample / 500) as usize][(step * 10 / steps) as usize] += 1;
            }
        }
    }
    let expected = epochs as f64 / 10.0;
    let sum: f64 = counts.iter().flatten().map(|count| (*count as f64 - expected).powi(2) / expected).sum();
    let found = sum / (40.0 * 9.0);
    assert!((found - 1.0).abs() < 0.3, "{found:.3}");
}

/// A group order of one lane, so that every batch size is valid.
fn groups(samples: u64, group: u64, window: u64) -> Order {
    let kind = OrderKind::Group { samples: group, window };
    let spec =
        OrderSpec { kind, last_batch: LastBatch::Drop, seed: 1, samples, batch: 1, ranks: 1, lanes: Some(1) };
    Order::new(spec).unwrap()
}

#[test]
fn the_condition_has_the_published_numbers() {
    // Lee et al., section IV-E: 8192 samples of CosmoFlow in 64 groups are good for fewer than 128
    // epochs.
    let order = groups(8192, 128, 4);
    let holds = |epochs| Convergence::of(&order, epochs, 1).unwrap().holds();
    assert_eq!(Convergence::of(&order, 100, 1).unwrap().groups, 64);
    assert_eq!(Convergence::of(&order, 100, 1).unwrap().proven_epochs(), 128);
    assert!(holds(0) && holds(100) && holds(127) && !holds(128));
}

#[test]
fn groups_that_would_do_are_named_with_a_window() {
    // 90 epochs of 1,281,167 samples: fewer than 14,235 groups, so 91 samples or more; a window
    // stays as large, or has 4 groups.
    let named = |window, unit| Convergence::of(&groups(1_281_167, 32, window), 90, unit).unwrap().sufficient;
    assert_eq!(named(4, 1), Some((91, 4)));
    assert_eq!(named(21, 1), Some((91, 7)));
    assert_eq!(named(2, 1), Some((91, 2)));
    assert_eq!(named(4, 50), Some((100, 4)), "whole chunks");
    assert_eq!(named(4, 10_000), None, "chunks that leave too few groups");
}

#[test]
fn no_bound_applies_to_a_full_shuffle_and_to_orders_that_shuffle_nothing() {
    for kind in [OrderKind::Shuffle, OrderKind::Sequential, OrderKind::Contiguous, OrderKind::ALL_GIVEN] {
        assert_eq!(Convergence::of(&order(kind, None), 1000, 1), None, "{kind}");
    }
    assert_eq!(Convergence::of(&groups(1000, 1, 3), 1000, 1), None, "groups of one sample");
    assert_eq!(Convergence::of(&groups(1000, 100, 10), 1000, 1), None, "one window over everything");
    assert!(Convergence::of(&groups(1000, 100, 9), 1000, 1).is_some());
}

proptest! {
    #[test]
    fn what_would_do_does_and_nothing_smaller(
        samples in 1_u64..1_000_000, group in 2_u64..5000, window in 1_u64..40, epochs in 1_u64..3000, unit in 1_u64..300,
    ) {
        prop_assume!(window * group < samples);
        let found = Convergence::of(&groups(samples, group, window), epochs, unit).unwrap();
        let plain = |group: u64| (epochs * samples.div_ceil(group)) < samples;
        prop_assert_eq!(found.holds(), plain(group));
        prop_assert_eq!(found.holds(), epochs < found.proven_epochs());
        if let Some((least, window)) = found.sufficient {
            prop_assert!(!found.holds());
            prop_assert!(least.is_multiple_of(unit) && least > group);
            prop_assert!(plain(least), "groups of {} do not do", least);
            prop_assert!(least == unit || !plain(least - unit), "groups of {} do", least - unit);
            prop_assert!(samples.div_ceil(least) >= 256);
            let order = groups(samples, least, window);
            prop_assert!(Convergence::of(&order, epochs, unit).is_none_or(|found| found.holds()));
        } else if !found.holds() {
            // No group of whole units that leaves 256 does.
            let most = samples.div_ceil(255);
            for least in (1..=most / unit).map(|times| times * unit) {
                prop_assert!(samples.div_ceil(least) < 256 || !plain(least), "groups of {} do", least);
            }
        }
    }
}
