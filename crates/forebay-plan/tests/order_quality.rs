//! The quality that an order states is the quality that it has.

mod order_common;

use forebay_plan::{Kind, Last, Order, OrderSpec};
use order_common::global_batch;

fn order(kind: Kind, lanes: Option<u64>) -> Order {
    let spec = OrderSpec { kind, last: Last::Drop, seed: 17, samples: 20_000, batch: 64, ranks: 1, lanes };
    Order::new(spec).unwrap()
}

/// Share of the pairs of a global batch that come from the same group of `group`, over `epochs` epochs.
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
    // Not in the formula: window edges fall inside groups and inside batches, which separates pairs (many with w = 1, where
    // a window mixes parts of two groups), and windows are cut at a lane's ends, which joins some: the fewer
    // windows a lane has, the more.
    for (window, lanes, least) in [(4, 4, 0.8), (1, 4, 0.6), (4, 1, 0.8), (8, 2, 0.8)] {
        let order = order(Kind::Group { samples: 100, window }, Some(lanes));
        let stated = order.quality().same_group_pairs.unwrap();
        let ratio = measured_pairs(&order, 100, 3) / stated;
        assert!(
            (least..1.15).contains(&ratio),
            "w {window}, L {lanes}: {ratio:.3} of the stated {stated:.4}"
        );
    }
    let order = order(Kind::Shuffle, None);
    let found = measured_pairs(&order, 100, 3);
    assert!((found - 0.005).abs() < 0.0005, "full shuffle: {found:.5}");
}

#[test]
fn every_kind_states_its_quality() {
    assert_eq!(order(Kind::Shuffle, None).quality().order_entropy, Some(1.0));
    assert_eq!(order(Kind::Sequential, None).quality().order_entropy, Some(0.0));
    assert_eq!(order(Kind::Contiguous, None).quality().order_entropy, Some(0.0));
    assert_eq!(order(Kind::Given, None).quality().order_entropy, None);
    let quality = order(Kind::Group { samples: 100, window: 4 }, None).quality();
    assert!((0.5..0.7).contains(&quality.order_entropy.unwrap()), "{quality:?}");
    assert_eq!(quality.proven_epochs, Some(100));
}

#[test]
fn the_place_of_a_sample_is_uniform_over_epochs() {
    // χ² of the tenth of the epoch in which every 500th sample is delivered, 200 epochs, groups and windows together.
    let order = order(Kind::Group { samples: 20, window: 4 }, Some(8));
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
