//! Mixtures: exact proportions in each window, each pass over a source once, and the same stream
//! from any start and on any number of ranks.

use std::collections::HashMap;

use crate::order_common::{
    batch, batches, batches_keeping, cases, deliveries, epoch, global_batch, places, segments,
};
use forebay_plan::{
    LastBatch, Mixture, MixtureSource, MixtureSpec, Order, OrderError, OrderKind, OrderSpec, OrderState,
    StateValue, Stop,
};
use forebay_types::Rank;
use proptest::prelude::*;

/// Bound of the deviation in a window: 1 + Σ 1/F over the Fibonacci numbers from the second on.
const MOST_OFF: f64 = 3.36;

fn mixture(sources: &[(u64, u64)], stop: Stop) -> Mixture {
    let sources = sources.iter().enumerate().map(|(place, (samples, weight))| MixtureSource {
        name: format!("s{place}"),
        samples: *samples,
        weight: *weight,
    });
    Mixture::new(MixtureSpec { sources: sources.collect(), stop }).unwrap()
}

fn spec(kind: OrderKind, seed: u64, batch: u64, ranks: u64, lanes: Option<u64>) -> OrderSpec {
    OrderSpec { kind, last_batch: LastBatch::Drop, seed, samples: 0, batch, ranks, lanes }
}

fn kinds() -> impl Strategy<Value = OrderKind> {
    prop_oneof![
        Just(OrderKind::Sequential),
        Just(OrderKind::Shuffle),
        (1_u64..20, 1_u64..4).prop_map(|(samples, window)| OrderKind::Group { samples, window }),
        (1_u64..20, 1_u64..4).prop_map(|(samples, window)| OrderKind::Group { samples, window }),
    ]
}

fn sources() -> impl Strategy<Value = Vec<(u64, u64)>> {
    let weight = prop_oneof![1_u64..10, 1_u64..1000, Just(1 << 53)];
    prop::collection::vec((1_u64..150, weight), 1..6)
}

prop_compose! {
    /// An order of a mixture that ends; its sources stand for themselves.
    fn orders()(
        kind in kinds(), sources in sources(), seed: u64, batch in 1_u64..13, ranks in 1_u64..5,
        pick in any::<prop::sample::Index>(), is_all: bool,
    ) -> Order {
        let works: Vec<u64> = (1..=batch).filter(|each| batch % each == 0).map(|each| each * ranks).collect();
        let lanes = matches!(kind, OrderKind::Group { .. }).then(|| works[pick.index(works.len())]);
        // Weights of which one is far too small would make epochs too long to walk.
        let lightest = sources.iter().map(|(_, weight)| *weight).min().unwrap();
        let sources: Vec<_> =
            sources.iter().map(|(samples, weight)| (*samples, (*weight).min(lightest * 40))).collect();
        let stop = if is_all { Stop::All } else { Stop::First };
        let spec = spec(kind, seed, batch, ranks, lanes);
        Order::mixed(spec, mixture(&sources, stop))
            .unwrap_or_else(|_| Order::mixed(spec, mixture(&sources, Stop::All)).unwrap())
    }
}

fn mixed(order: &Order) -> &Mixture {
    order.mixture().unwrap()
}

/// The source of each sample, and its id within it.
fn origins(order: &Order, samples: &[u64]) -> Vec<(usize, u64)> {
    let mut firsts = vec![0];
    for source in mixed(order).sources() {
        firsts.push(firsts.last().unwrap() + source.samples);
    }
    let of = |sample: &u64| {
        let source = firsts.partition_point(|first| first <= sample) - 1;
        (source, sample - firsts[source])
    };
    samples.iter().map(of).collect()
}

fn counts(order: &Order, samples: &[u64]) -> Vec<u64> {
    let mut counts = vec![0; mixed(order).sources().len()];
    for (source, _) in origins(order, samples) {
        counts[source] += 1;
    }
    counts
}

/// How far counts are from the shares.
fn off(order: &Order, counts: &[u64]) -> f64 {
    let all: u64 = counts.iter().sum();
    let of = |(source, count): (usize, &u64)| (*count as f64 - mixed(order).share(source) * all as f64).abs();
    counts.iter().enumerate().map(of).fold(0.0, f64::max)
}

/// The same of some samples.
fn off_in(order: &Order, samples: &[u64]) -> f64 {
    off(order, &counts(order, samples))
}

proptest! {
    #![proptest_config(cases(2))]

    #[test]
    fn what_batches_keep_for_each_other_changes_none(order in orders(), places in places()) {
        prop_assert_eq!(batches_keeping(&order, &places), batches(&order, &places));
    }

    #[test]
    fn a_schedule_delivers_what_the_definition_says(
        order in orders(), from in 0_u64..1000, more in 0_u64..9, cut in 1_u64..7, of_some: bool,
    ) {
        let steps = order.steps_per_epoch();
        let ranks: Vec<Rank> = (u32::from(of_some)..order.spec().ranks as u32).map(Rank).rev().collect();
        prop_assume!(!ranks.is_empty());
        let (start, end) = (from % (2 * steps), from % (2 * steps) + more);
        let segments = segments(&order, &ranks, start, end, cut);
        let mut expected = Vec::new();
        for absolute in start..=end {
            for (local, rank) in (0..).zip(&ranks) {
                let samples = batch(&order, absolute / steps, absolute % steps, u64::from(rank.0));
                expected.extend((0..).zip(samples).map(|(slot, sample)| (absolute, local, slot, sample)));
            }
        }
        prop_assert_eq!(deliveries(&order, &ranks, &segments, start, end), expected);
        prop_assert!(segments.is_sorted_by_key(|segment| segment.first_step));
        prop_assert!(segments.is_sorted_by_key(|segment| segment.last_step));
        let least = order.min_staging_bytes(1.0, ranks.len());
        for step in start..=end {
            let alive = segments.iter().filter(|segment| segment.first_step <= step && step <= segment.last_step);
            let held: usize = alive.map(|segment| segment.demands.len()).sum();
            let cut = if matches!(order.kind(), OrderKind::Group { .. }) { 1 } else { cut };
            prop_assert!(held as u64 <= least * cut, "{} of {}", held, least);
        }
    }

    #[test]
    fn each_pass_has_every_sample_once(order in orders(), number in 0_u64..3) {
        let all = epoch(&order, number);
        let mut passes: HashMap<(usize, u64), u64> = HashMap::new();
        for origin in origins(&order, &all) {
            *passes.entry(origin).or_default() += 1;
        }
        for (place, source) in mixed(&order).sources().iter().enumerate() {
            let times: Vec<u64> = (0..source.samples)
                .map(|sample| passes.get(&(place, sample)).copied().unwrap_or(0))
                .collect();
            let (least, most) = (*times.iter().min().unwrap(), *times.iter().max().unwrap());
            match mixed(&order).stop() {
                Stop::First => prop_assert!(most <= 1),
                _ => prop_assert!(least >= 1, "{:?}", times),
            }
            // Two lanes are less than the bound and 12 draws apart (`draws`), each of n/L per pass.
            let apart = if matches!(order.kind(), OrderKind::Group { .. }) {
                1 + 16 * order.lanes() / source.samples
            } else {
                0
            };
            prop_assert!(most - least <= 1 + apart, "{:?} in {} lanes", times, order.lanes());
        }
    }

    #[test]
    fn windows_without_lanes_are_off_by_less_than_the_bound(order in orders(), a in 0_usize..2000, b in 0_usize..2000) {
        prop_assume!(!matches!(order.kind(), OrderKind::Group { .. }));
        let all = epoch(&order, 0);
        let (a, b) = (a % (all.len() + 1), b % (all.len() + 1));
        let bound = if mixed(&order).sources().len() == 2 { 1.0 } else { MOST_OFF };
        prop_assert!(off_in(&order, &all[a.min(b)..a.max(b)]) < bound + 1e-6);
        prop_assert!(off_in(&order, &all[..a]) <= bound / 2.0 + 1e-6);
    }

    #[test]
    fn whole_steps_keep_the_proportions_also_in_lanes(order in orders()) {
        let sources = mixed(&order).sources().len();
        let bound = if sources == 2 { 0.5 } else { MOST_OFF / 2.0 };
        // Beyond two sources, lanes are apart by up to log L at each node of the tree.
        let is_apart = sources > 2 && matches!(order.kind(), OrderKind::Group { .. });
        let bound = bound + if is_apart { (order.lanes() as f64).log2() } else { 0.0 };
        let mut sums = vec![0; sources];
        for step in 0..order.steps_per_epoch() {
            for (sum, count) in sums.iter_mut().zip(counts(&order, &global_batch(&order, 0, step))) {
                *sum += count;
            }
            let found = off(&order, &sums);
            prop_assert!(found <= bound + 1e-6, "{} after {} steps, bound {}", found, step + 1, bound);
        }
    }

    #[test]
    fn a_lane_is_off_by_less_than_the_bound(order in orders(), a in 0_usize..2000, b in 0_usize..2000) {
        prop_assume!(matches!(order.kind(), OrderKind::Group { .. }));
        let each = (order.global_batch() / order.lanes()) as usize;
        let of_lane: Vec<u64> =
            (0..order.steps_per_epoch()).flat_map(|step| global_batch(&order, 0, step)[..each].to_vec()).collect();
        let (a, b) = (a % (of_lane.len() + 1), b % (of_lane.len() + 1));
        let bound = if mixed(&order).sources().len() == 2 { 1.0 } else { MOST_OFF };
        prop_assert!(off_in(&order, &of_lane[a.min(b)..a.max(b)]) < bound + 1e-6);
    }

    #[test]
    fn global_batches_do_not_depend_on_the_ranks(order in orders(), step in 0_u64..1000) {
        let step = step % order.steps_per_epoch();
        let lanes = matches!(order.kind(), OrderKind::Group { .. }).then(|| order.lanes());
        for ranks in order.allowed_ranks() {
            let other = OrderSpec { ranks, batch: order.global_batch() / ranks, lanes, ..*order.spec() };
            let other = Order::mixed(other, mixed(&order).clone()).unwrap();
            prop_assert_eq!(other.steps_per_epoch(), order.steps_per_epoch());
            prop_assert_eq!(global_batch(&other, 1, step), global_batch(&order, 1, step));
        }
    }

    #[test]
    fn groups_of_a_window_are_contiguous(seed: u64, weight in 1_u64..9) {
        let kind = OrderKind::Group { samples: 8, window: 4 };
        let order = Order::mixed(spec(kind, seed, 4, 1, Some(2)), mixture(&[(640, weight), (320, 3)], Stop::First));
        let order = order.unwrap();
        for segment in segments(&order, &[Rank(0)], 0, order.steps_per_epoch() - 1, 1) {
            let mut samples: Vec<u64> = segment.demands.iter().map(|demand| demand.sample.0).collect();
            samples.sort_unstable();
            let groups: std::collections::BTreeSet<u64> = samples.iter().map(|sample| sample / 8).collect();
            // Each source's part of a window touches its whole groups and two more.
            prop_assert!(groups.len() <= samples.len() / 8 + 4, "{:?}", samples);
        }
    }
}

#[test]
fn an_epoch_that_never_ends_has_two_to_the_34_steps_and_starts_anywhere() {
    let kind = OrderKind::Group { samples: 4, window: 2 };
    let order =
        Order::mixed(spec(kind, 3, 6, 2, Some(4)), mixture(&[(1000, 7), (5, 3)], Stop::Never)).unwrap();
    assert_eq!(order.steps_per_epoch(), 1 << 34);
    let start = (1 << 34) - 3;
    let ranks = [Rank(0), Rank(1)];
    let found = deliveries(&order, &ranks, &segments(&order, &ranks, start, start + 2, 2), start, start + 2);
    let expected: Vec<u64> = (start..start + 3).flat_map(|step| global_batch(&order, 0, step)).collect();
    assert_eq!(found.iter().map(|demand| demand.3).collect::<Vec<_>>(), expected);
}

#[test]
fn what_no_mixture_can_be_is_refused_by_name() {
    let says = |found: Result<Order, OrderError>| found.unwrap_err().to_string();
    let two = || mixture(&[(100, 1), (3, 1)], Stop::First);
    assert_eq!(
        says(Order::mixed(spec(OrderKind::Contiguous, 0, 2, 1, None), two())),
        "order contiguous: the dataset is a mixture, whose sources are sequential, shuffle or group"
    );
    let carry = OrderSpec { last_batch: LastBatch::Carry, ..spec(OrderKind::Sequential, 0, 2, 1, None) };
    assert_eq!(
        says(Order::mixed(carry, two())),
        "last_batch=\"carry\" with a mixture, whose epochs have whole global batches only"
    );
    for last_batch in [LastBatch::Partial, LastBatch::Fill] {
        let order =
            Order::mixed(OrderSpec { last_batch, ..spec(OrderKind::Shuffle, 0, 1, 1, None) }, two()).unwrap();
        assert_eq!(order.delivered(), order.steps_per_epoch() * order.global_batch());
    }
    assert_eq!(
        says(Order::mixed(spec(OrderKind::Shuffle, 0, 8, 2, None), two())),
        "mixture with stop=\"first\": source \"s1\" has 3 samples, too few for one step of 16 samples without a sample that \
         comes twice"
    );
    let rare = mixture(&[(1 << 40, 1), (1, 1 << 62)], Stop::All);
    assert!(
        says(Order::mixed(spec(OrderKind::Shuffle, 0, 8, 2, None), rare)).contains("more than 2^62 samples")
    );
    let no_weight = MixtureSource { name: "web".into(), samples: 5, weight: 0 };
    let refused = Mixture::new(MixtureSpec { sources: vec![no_weight], stop: Stop::All });
    assert_eq!(
        refused.unwrap_err().to_string(),
        "mixture: the weight of source \"web\" is 0, expected at least 1"
    );
}

#[test]
fn a_state_of_other_sources_is_refused_with_both() {
    let state_of = |weights: [u64; 2]| {
        let mixture = mixture(&[(100, weights[0]), (50, weights[1])], Stop::All);
        let order = Order::mixed(spec(OrderKind::Shuffle, 1, 4, 2, None), mixture).unwrap();
        OrderState::new(order, "f".into())
    };
    let state: HashMap<_, _> = state_of([3, 1]).at(1, 2).into_iter().collect();
    let resumed = |by: &OrderState| by.resume(|key| state.get(key).cloned());
    assert_eq!(resumed(&state_of([3, 1])).map(|at| (at.epoch, at.step)), Ok((1, 2)));
    assert_eq!(state["mixture"], StateValue::from("s0 0.75 of 100, s1 0.25 of 50; stop=all"));
    assert_eq!(
        resumed(&state_of([1, 1])).unwrap_err().to_string(),
        "mixture is 's0 0.75 of 100, s1 0.25 of 50; stop=all' in the state and 's0 0.5 of 100, s1 0.5 of 50; stop=all' in this \
         loader"
    );
}
