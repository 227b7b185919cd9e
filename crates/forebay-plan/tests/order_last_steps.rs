//! `partial`: what fills no step is shared out evenly over the ranks, and none gets an empty batch.

use std::collections::BTreeSet;

use crate::order_common::{batch, deliveries, epoch, segments, shares};
use forebay_plan::{LastBatch, Order, OrderKind, OrderSpec, OrderState, Resumption, StateError, StateValue};
use forebay_types::Rank;

const KINDS: [OrderKind; 8] = [
    OrderKind::Sequential,
    OrderKind::Contiguous,
    OrderKind::Shuffle,
    OrderKind::ALL_GIVEN,
    OrderKind::LocalShuffle { steps: 1 },
    OrderKind::LocalShuffle { steps: 2 },
    OrderKind::Opportunistic { window: 2 },
    OrderKind::Group { samples: 3, window: 2 },
];

/// Orders of all kinds and numbers of lanes of these numbers; none where there is no such order.
fn orders(samples: u64, batch: u64, ranks: u64) -> Vec<Order> {
    let mut found = Vec::new();
    for kind in KINDS {
        let is_group = matches!(kind, OrderKind::Group { .. });
        for each in (1..=batch).filter(|each| batch.is_multiple_of(*each) && (is_group || *each == 1)) {
            let lanes = is_group.then_some(each * ranks);
            let spec =
                OrderSpec { kind, last_batch: LastBatch::Partial, seed: 3, samples, batch, ranks, lanes };
            found.extend(Order::new(spec).ok().map(|order| {
                order.with_residents(shares(samples + batch, samples, ranks), |unit| unit % 3 == 0)
            }));
        }
    }
    found
}

/// Sizes of the batches of an epoch, by step and rank.
fn sizes(order: &Order) -> Vec<Vec<u64>> {
    let of_step =
        |step| (0..order.spec().ranks).map(|rank| batch(order, 1, step, rank).len() as u64).collect();
    (0..order.steps_per_epoch()).map(of_step).collect()
}

fn differ_by_one_at_most(numbers: impl Iterator<Item = u64> + Clone) -> bool {
    numbers.clone().max() <= numbers.min().map(|least| least + 1)
}

/// Samples, batches and ranks: every rest, and those around it.
fn numbers() -> impl Iterator<Item = (u64, u64, u64)> {
    let small = (1..=6).flat_map(|ranks| (1..=4).map(move |batch| (batch, ranks)));
    small.flat_map(|(batch, ranks)| (1..=3 * batch * ranks + 1).map(move |samples| (samples, batch, ranks)))
}

#[test]
fn all_samples_come_once_in_even_parts_and_no_batch_is_empty() {
    for (samples, batch, ranks) in numbers() {
        let orders = orders(samples, batch, ranks);
        assert_eq!(orders.is_empty(), samples < ranks, "N={samples} B={batch} W={ranks}");
        for order in orders {
            let name = format!("{} N={samples} B={batch} W={ranks} L={}", order.kind(), order.lanes());
            let mut all = epoch(&order, 1);
            all.sort_unstable();
            assert!(all.into_iter().eq(0..samples), "{name}");
            assert_eq!((order.delivered(), order.repeats()), (samples, 0), "{name}");
            let sizes = sizes(&order);
            let rest = samples % (batch * ranks);
            let is_longer = batch == 1 && rest > 0;
            assert_eq!(sizes.len() as u64, samples.div_ceil(batch * ranks) - u64::from(is_longer), "{name}");
            let least = sizes.iter().flatten().min().copied();
            let largest = sizes.iter().flatten().max().copied();
            assert!(least >= Some(1) && largest <= Some(order.largest_batch()), "{name} {sizes:?}");
            assert_eq!(order.largest_batch(), batch + u64::from(is_longer), "{name}");
            assert!(sizes.iter().all(|step| differ_by_one_at_most(step.iter().copied())), "{name} {sizes:?}");
            let total = |rank: usize| sizes.iter().map(|step| step[rank]).sum::<u64>();
            assert!(differ_by_one_at_most((0..ranks as usize).map(total)), "{name} {sizes:?}");
            let is_split = |step: &Vec<u64>| step.iter().any(|size| *size != batch);
            let split = sizes.iter().filter(|step| is_split(step)).count();
            assert!(split <= if rest >= ranks || batch == 1 { 1 } else { 2 }, "{name} {sizes:?}");
        }
    }
}

#[test]
fn a_schedule_delivers_the_same_from_every_step_of_an_end() {
    for (samples, batch_size, ranks) in numbers().filter(|(_, batch, ranks)| batch * ranks <= 12) {
        for order in orders(samples, batch_size, ranks) {
            let steps = order.steps_per_epoch();
            let node: Vec<Rank> = (0..ranks as u32).map(Rank).filter(|rank| rank.0 % 2 == 0).collect();
            for start in steps.saturating_sub(2)..=steps {
                let end = 2 * steps;
                let mut expected = Vec::new();
                for absolute in start..=end {
                    for (local_rank, rank) in (0..).zip(&node) {
                        let samples = batch(&order, absolute / steps, absolute % steps, u64::from(rank.0));
                        expected
                            .extend((0..).zip(samples).map(|(slot, id)| (absolute, local_rank, slot, id)));
                    }
                }
                let found = segments(&order, &node, start, end, 2);
                assert!(found.is_sorted_by_key(|segment| segment.last_step), "staging would be held up");
                let found = deliveries(&order, &node, &found, start, end);
                assert_eq!(found, expected, "{} N={samples} B={batch_size} W={ranks}", order.kind());
            }
        }
    }
}

fn state_of(order: &Order) -> OrderState {
    OrderState::new(order.clone(), "f".into())
}

/// Where `other` goes on after the first `step` steps of `order`.
fn resume(order: &Order, step: u64, other: &Order) -> Result<Resumption, StateError> {
    let state = state_of(order).at(1, step);
    let value = |key: &str| state.iter().find(|(one, _)| *one == key).map(|(_, value)| value.clone());
    state_of(other).resume(value)
}

#[test]
fn another_number_of_ranks_goes_on_exactly_or_not_at_all() {
    let (mut exact, mut refused) = (0, BTreeSet::new());
    for global_batch in [4_u64, 6, 8, 12] {
        let divisors: Vec<u64> =
            (1..=global_batch).filter(|ranks| global_batch.is_multiple_of(*ranks)).collect();
        for samples in global_batch..=3 * global_batch {
            for kind in [
                OrderKind::Sequential,
                OrderKind::Shuffle,
                OrderKind::ALL_GIVEN,
                OrderKind::Group { samples: 3, window: 2 },
            ] {
                let lanes = matches!(kind, OrderKind::Group { .. }).then_some(global_batch);
                let order = |ranks: u64| {
                    let batch = global_batch / ranks;
                    Order::new(OrderSpec {
                        kind,
                        last_batch: LastBatch::Partial,
                        seed: 3,
                        samples,
                        batch,
                        ranks,
                        lanes,
                    })
                    .unwrap()
                };
                for (from, to) in divisors.iter().flat_map(|from| divisors.iter().map(move |to| (*from, *to)))
                {
                    let (from, to) = (order(from), order(to));
                    for step in 0..=from.steps_per_epoch() {
                        let name = format!("{kind} N={samples} G={global_batch} step {step}");
                        let ranks = (from.spec().ranks, to.spec().ranks);
                        match resume(&from, step, &to) {
                            Ok(found) => {
                                let of = |order: &Order, steps: std::ops::Range<u64>| -> Vec<u64> {
                                    let ranks = order.spec().ranks;
                                    let places =
                                        steps.flat_map(|step| (0..ranks).map(move |rank| (step, rank)));
                                    places.flat_map(|(step, rank)| batch(order, 1, step, rank)).collect()
                                };
                                let mut all = of(&from, 0..step);
                                all.extend(of(&to, found.step..to.steps_per_epoch()));
                                all.sort_unstable();
                                assert!(all.into_iter().eq(0..samples), "{name} {ranks:?}");
                                exact += 1;
                            }
                            Err(StateError::LastSteps { step: found, steps, hint, .. }) => {
                                assert_eq!((found, steps), (step, from.steps_per_epoch()));
                                let rest = samples % global_batch;
                                assert!(rest > 0 && rest < ranks.0.max(ranks.1), "{name} {ranks:?}");
                                assert!(
                                    step < steps && step + 2 > steps,
                                    "{name}: only between the last two"
                                );
                                assert!(hint.contains(&format!("on {} ranks", ranks.0)), "{hint}");
                                for way in [steps, hint_step(&hint)] {
                                    assert!(resume(&from, way, &to).is_ok(), "{name} {ranks:?}: {hint}");
                                }
                                refused.insert((step, steps));
                            }
                            Err(other) => panic!("{name}: {other}"),
                        }
                    }
                }
            }
        }
    }
    assert!(exact > 1000 && !refused.is_empty());
}

/// The first step that a hint names.
fn hint_step(hint: &str) -> u64 {
    hint.split("step ").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap()
}

#[test]
fn a_state_whose_ranks_are_damaged_is_refused() {
    let spec = OrderSpec {
        kind: OrderKind::Shuffle,
        last_batch: LastBatch::Partial,
        seed: 0,
        samples: 9,
        batch: 2,
        ranks: 2,
        lanes: None,
    };
    let state = state_of(&Order::new(spec).unwrap());
    for ranks in [StateValue::from(0), 3.into(), 5.into(), StateValue::None] {
        let value = |key: &str| match key {
            "ranks" => Some(ranks.clone()),
            key => state.at(0, 1).into_iter().find(|(one, _)| *one == key).map(|(_, value)| value),
        };
        assert!(matches!(state.resume(value), Err(StateError::Damaged { key: "ranks", .. })), "{ranks}");
    }
}
