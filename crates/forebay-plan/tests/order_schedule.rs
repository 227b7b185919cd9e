//! A schedule delivers what the definition says, from any start, in any cut, to any node.

use std::sync::Arc;

use crate::order_common::{batch, cases, deliveries, given, orders, segments};
use forebay_plan::{LastBatch, Next, Order, OrderKind, OrderSpec, Schedule, Segment};
use forebay_types::Rank;
use proptest::prelude::*;

/// What the definition delivers to `ranks` in the absolute steps `start..=end`, in the form of
/// [`deliveries`].
fn expected(order: &Order, ranks: &[Rank], start: u64, end: u64) -> Vec<(u64, u32, u32, u64)> {
    let steps = order.steps_per_epoch();
    let mut found = Vec::new();
    for absolute in start..=end {
        for (local_rank, rank) in (0..).zip(ranks) {
            let samples = batch(order, absolute / steps, absolute % steps, u64::from(rank.0));
            found.extend((0..).zip(samples).map(|(slot, sample)| (absolute, local_rank, slot, sample)));
        }
    }
    found
}

fn check_promises(order: &Order, segments: &[Segment], start: u64) {
    let steps = order.steps_per_epoch();
    for segment in segments {
        assert!(segment.first_step >= start && segment.first_step <= segment.last_step);
        assert_eq!(segment.first_step / steps, segment.last_step / steps, "a segment spans two epochs");
        assert!(segment.demands.is_sorted_by_key(|demand| demand.step));
        assert!(
            segment
                .demands
                .iter()
                .all(|demand| segment.first_step + u64::from(demand.step) <= segment.last_step)
        );
        if let (Some(first), Some(last), OrderKind::Group { .. }) =
            (segment.demands.first(), segment.demands.last(), order.kind())
        {
            assert_eq!(first.step, 0);
            let kept = segment.last_step - (segment.first_step + u64::from(last.step));
            assert!(kept == 0 || kept == 1 && (segment.last_step + 1) % steps == 0, "kept for {kept} steps");
        }
    }
    assert!(segments.is_sorted_by_key(|segment| segment.first_step));
    assert!(segments.is_sorted_by_key(|segment| segment.last_step), "staging memory would be held up");
}

prop_compose! {
    /// An order, some of its ranks in any sequence, a start, an end and a cut.
    fn nodes()(order in orders())(
        ranks in Just((0..order.spec().ranks as u32).map(Rank).collect::<Vec<_>>()).prop_shuffle(),
        taken in 1..=order.spec().ranks as usize,
        start in 0..3 * order.steps_per_epoch(),
        more in 0..2 * order.steps_per_epoch() + 3,
        cut in 1_u64..7,
        order in Just(order),
    ) -> (Order, Vec<Rank>, u64, u64, u64) {
        (order, ranks[..taken].to_vec(), start, start + more, cut)
    }
}

proptest! {
    #![proptest_config(cases(4))]

    #[test]
    fn a_schedule_delivers_what_the_definition_says((order, ranks, start, end, cut) in nodes()) {
        let segments = segments(&order, &ranks, start, end, cut);
        prop_assert_eq!(deliveries(&order, &ranks, &segments, start, end), expected(&order, &ranks, start, end));
        check_promises(&order, &segments, start);
    }

    #[test]
    fn the_least_staging_memory_holds_every_step((order, ranks, start, end, _) in nodes()) {
        let least = order.min_staging_bytes(1.0, ranks.len());
        let segments = segments(&order, &ranks, start, end, 1);
        for step in start..=end {
            let alive = segments.iter().filter(|segment| segment.first_step <= step && step <= segment.last_step);
            let bytes: usize = alive.map(|segment| segment.demands.len()).sum();
            prop_assert!(bytes as u64 <= least, "step {}: {} alive, least {}", step, bytes, least);
        }
    }
}

#[test]
fn a_schedule_beyond_the_table_delivers_what_the_definition_says() {
    for kind in [
        OrderKind::Shuffle,
        OrderKind::Group { samples: 3, window: 2000 },
        OrderKind::Group { samples: 7, window: 5 },
    ] {
        for last in [LastBatch::Fill, LastBatch::Drop, LastBatch::Partial] {
            let spec = OrderSpec {
                kind,
                last_batch: last,
                seed: 11,
                samples: 40_001,
                batch: 96,
                ranks: 2,
                lanes: None,
            };
            let order = Order::new(spec).unwrap();
            let (ranks, end) = ([Rank(1), Rank(0)], order.steps_per_epoch() + 2);
            let found = segments(&order, &ranks, 190, end, 4);
            assert_eq!(
                deliveries(&order, &ranks, &found, 190, end),
                expected(&order, &ranks, 190, end),
                "{kind} {}",
                last.name()
            );
            check_promises(&order, &found, 190);
        }
    }
}

#[test]
fn a_group_order_is_read_a_window_at_a_time() {
    let kind = OrderKind::Group { samples: 10, window: 4 };
    let spec = OrderSpec {
        kind,
        last_batch: LastBatch::Drop,
        seed: 1,
        samples: 4000,
        batch: 16,
        ranks: 2,
        lanes: Some(8),
    };
    let order = Order::new(spec).unwrap();
    let found = segments(&order, &[Rank(0), Rank(1)], 0, order.steps_per_epoch() - 1, 3);
    // Every lane owns 500 positions: a first window of 40 - 5·lane positions, then windows of 40.
    assert_eq!(found.len(), (0..8_usize).map(|lane| 1 + (500 - (40 - 5 * lane)).div_ceil(40)).sum::<usize>());
    let firsts: Vec<usize> = found[..8].iter().map(|segment| segment.demands.len()).collect();
    assert_eq!(firsts, [5, 10, 15, 20, 25, 30, 35, 40], "what is given back first stands first");
    let begun = |step| found.iter().filter(|segment| segment.first_step == step).count();
    assert!(
        (1..order.steps_per_epoch()).all(|step| begun(step) <= 2),
        "window edges are spread over the steps"
    );
}

#[test]
fn order_given_waits_for_its_ids_without_losing_a_step() {
    let spec = OrderSpec {
        kind: OrderKind::ALL_GIVEN,
        last_batch: LastBatch::Fill,
        seed: 0,
        samples: 10,
        batch: 5,
        ranks: 1,
        lanes: None,
    };
    let order = Order::new(spec).unwrap();
    let mut schedule = Schedule::new(&order, &[Rank(0)], 1, 9..=9);
    let only_first = |epoch: u64| -> Option<Arc<[u64]>> { (epoch == 0).then(|| given(&order, 0)) };
    let Next::Segment(segment) = schedule.next(only_first) else { panic!("the ids of epoch 0 are there") };
    assert_eq!((segment.first_step, segment.last_step, segment.demands.len()), (1, 1, 5));
    assert_eq!(schedule.next(only_first), Next::AwaitingOrder(1));
    assert_eq!(schedule.next(only_first), Next::AwaitingOrder(1));
    let Next::Segment(segment) = schedule.next(|epoch| Some(given(&order, epoch))) else {
        panic!("all ids are there")
    };
    assert_eq!((segment.first_step, segment.last_step, segment.demands.len()), (2, 3, 10));
}

#[test]
fn a_node_or_a_lane_without_samples_still_passes_every_epoch() {
    let kind = OrderKind::Group { samples: 4, window: 2 };
    for kind in [kind, OrderKind::Sequential, OrderKind::Contiguous, OrderKind::Shuffle] {
        let spec = OrderSpec {
            kind,
            last_batch: LastBatch::Partial,
            seed: 0,
            samples: 4,
            batch: 2,
            ranks: 4,
            lanes: None,
        };
        let order = Order::new(spec).unwrap();
        for ranks in [vec![], vec![Rank(0)], vec![Rank(3)], vec![Rank(1), Rank(2)]] {
            let found = segments(&order, &ranks, 2, 7, 1);
            assert_eq!(
                deliveries(&order, &ranks, &found, 2, 7),
                expected(&order, &ranks, 2, 7),
                "{kind} {ranks:?}"
            );
            assert_eq!(found.last().map(|segment| segment.last_step), Some(7), "{kind} {ranks:?}");
        }
    }
}
