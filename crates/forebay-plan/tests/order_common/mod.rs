//! What the tests of orders share: random orders, and plain ways to walk them.

use std::sync::Arc;

use forebay_plan::{
    Demand, LastBatch, Next, NodeShares, Order, OrderKind, OrderSpec, PermutationCache, Schedule, Segment,
    ShareUnit,
};
use forebay_types::{Rank, SampleId};
use proptest::prelude::*;

/// All kinds, with random groups.
pub fn kinds() -> impl Strategy<Value = OrderKind> {
    prop_oneof![
        Just(OrderKind::Sequential),
        Just(OrderKind::Contiguous),
        Just(OrderKind::Shuffle),
        Just(OrderKind::ALL_GIVEN),
        (1_u64..5).prop_map(|steps| OrderKind::LocalShuffle { steps }),
        (1_u64..9).prop_map(|window| OrderKind::Opportunistic { window }),
        (1_u64..9).prop_map(|window| OrderKind::Opportunistic { window }),
        (1_u64..60, 1_u64..6).prop_map(|(samples, window)| OrderKind::Group { samples, window }),
        // Groups matter most, so they come twice.
        (1_u64..60, 1_u64..6).prop_map(|(samples, window)| OrderKind::Group { samples, window }),
    ]
}

/// All ways to end an epoch.
pub fn lasts() -> impl Strategy<Value = LastBatch> {
    prop_oneof![
        Just(LastBatch::Fill),
        Just(LastBatch::Drop),
        Just(LastBatch::Partial),
        Just(LastBatch::Carry)
    ]
}

/// Shares of nodes: units of up to 9, 40 or 120 samples, and ranks on up to 4 nodes, not in blocks,
/// some nodes without any.
pub fn shares(seed: u64, samples: u64, ranks: u64) -> Arc<NodeShares> {
    let mut state = seed;
    let mut below = |bound: u64| {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (state >> 33) % bound
    };
    let mut nodes = vec![Vec::new(); 1 + below(4) as usize];
    for rank in 0..ranks {
        let node = below(nodes.len() as u64) as usize;
        nodes[node].push(Rank(rank as u32));
    }
    let longest = [9, 40, 120][below(3) as usize];
    let mut units = Vec::new();
    let mut first = 0;
    while first < samples {
        units.push(ShareUnit { first_sample: SampleId(first), bytes: below(1000) });
        first += 1 + below(longest);
    }
    Arc::new(NodeShares::new(samples, &units, &nodes, seed))
}

/// Numbers of samples, up to 400 and at least 5: many leave less than one sample per rank for the
/// last step.
fn samples() -> impl Strategy<Value = (u64, bool)> {
    (5_u64..400, any::<bool>())
}

/// Valid orders of up to 400 samples, 5 ranks and batches of 12.
pub fn orders() -> impl Strategy<Value = Order> {
    let numbers = (any::<u64>(), samples(), 1_u64..13, 1_u64..6, any::<prop::sample::Index>(), 0_u64..=10);
    (kinds(), lasts(), numbers).prop_map(
        |(kind, last, (seed, (samples, fills), batch, ranks, pick, kept))| {
            let global_batch = batch * ranks;
            let samples = if fills && samples >= global_batch {
                samples / global_batch * global_batch + samples % ranks
            } else {
                samples
            };
            let lanes = matches!(kind, OrderKind::Group { .. }).then(|| {
                let works: Vec<u64> =
                    (1..=batch).filter(|each| batch % each == 0).map(|each| each * ranks).collect();
                works[pick.index(works.len())]
            });
            let last = match last {
                _ if batch * ranks > samples => LastBatch::Partial,
                LastBatch::Carry if kind != OrderKind::Sequential => LastBatch::Fill,
                last => last,
            };
            let make =
                |kind| Order::new(OrderSpec { kind, last_batch: last, seed, samples, batch, ranks, lanes });
            // Pools may be too large for the epoch.
            let order = make(kind).or_else(|_| make(OrderKind::LocalShuffle { steps: 1 })).unwrap();
            order.with_residents(shares(seed, samples, ranks), |unit| is_resident(seed, unit, kept))
        },
    )
}

/// About `kept` tenths of the units, by chance.
pub fn is_resident(seed: u64, unit: usize, kept: u64) -> bool {
    let word = (seed ^ unit as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (word ^ (word >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 32 < (kept << 32) / 10
}

/// The samples of the steps that are dealt together, sorted: in most orders those of one step.
pub fn pool(order: &Order, number: u64, step: u64) -> Vec<u64> {
    let mut found: Vec<u64> = order.pool(step).flat_map(|step| global_batch(order, number, step)).collect();
    found.sort_unstable();
    found
}

/// `times` as many cases as proptest runs by default, or as `PROPTEST_CASES` says.
pub fn cases(times: u32) -> ProptestConfig {
    let default = ProptestConfig::default();
    ProptestConfig { cases: default.cases.saturating_mul(times), ..default }
}

/// The ids "given" for an epoch: the samples, rotated by an amount that depends on the epoch.
pub fn given(order: &Order, epoch: u64) -> Arc<[u64]> {
    let samples = order.spec().samples;
    (0..samples).map(|position| (position + 7 * epoch + 1) % samples).collect()
}

/// One batch by the definition.
pub fn batch(order: &Order, epoch: u64, step: u64, rank: u64) -> Vec<u64> {
    batch_keeping(order, (epoch, step, rank), &mut PermutationCache::default())
}

fn batch_keeping(
    order: &Order,
    (epoch, step, rank): (u64, u64, u64),
    kept: &mut PermutationCache,
) -> Vec<u64> {
    let ids = matches!(order.kind(), OrderKind::Given { .. }).then(|| given(order, epoch));
    let mut out = vec![SampleId(u64::MAX)];
    order.batch_keeping(epoch, step, Rank(rank as u32), ids.as_deref(), kept, &mut out);
    out.into_iter().map(|sample| sample.0).collect()
}

/// Epochs, steps and ranks of some batches, in no order.
pub fn places() -> impl Strategy<Value = Vec<(u64, prop::sample::Index, u64)>> {
    prop::collection::vec((0_u64..3, any::<prop::sample::Index>(), 0_u64..6), 1..30)
}

/// The batches at some places, each by itself.
pub fn batches(order: &Order, places: &[(u64, prop::sample::Index, u64)]) -> Vec<Vec<u64>> {
    places
        .iter()
        .map(|place| {
            let (epoch, step, rank) = existing(order, place);
            batch(order, epoch, step, rank)
        })
        .collect()
}

/// The same, where each keeps its permutations for the next.
pub fn batches_keeping(order: &Order, places: &[(u64, prop::sample::Index, u64)]) -> Vec<Vec<u64>> {
    let mut kept = PermutationCache::default();
    places.iter().map(|place| batch_keeping(order, existing(order, place), &mut kept)).collect()
}

fn existing(order: &Order, (epoch, step, rank): &(u64, prop::sample::Index, u64)) -> (u64, u64, u64) {
    (*epoch, step.index(order.steps_per_epoch() as usize) as u64, rank % order.spec().ranks)
}

/// One global batch by the definition, rank after rank.
pub fn global_batch(order: &Order, epoch: u64, step: u64) -> Vec<u64> {
    (0..order.spec().ranks).flat_map(|rank| batch(order, epoch, step, rank)).collect()
}

/// All samples of an epoch, step after step.
pub fn epoch(order: &Order, epoch: u64) -> Vec<u64> {
    (0..order.steps_per_epoch()).flat_map(|step| global_batch(order, epoch, step)).collect()
}

/// The segments from `start` up to the first that begins behind `end`, which is left out.
pub fn segments(order: &Order, ranks: &[Rank], start: u64, end: u64, steps_per_segment: u64) -> Vec<Segment> {
    let mut schedule = Schedule::new(order, ranks, start, steps_per_segment.div_ceil(4)..=steps_per_segment);
    let mut found = Vec::new();
    loop {
        match schedule.next(|epoch| Some(given(order, epoch))) {
            Next::Segment(segment) if segment.first_step > end => return found,
            Next::Segment(segment) => found.push(segment),
            Next::AwaitingOrder(epoch) => panic!("ids of epoch {epoch} were given"),
        }
    }
}

/// (absolute step, local rank, slot, sample) of every demand of `ranks` from step `start` to `end`,
/// and of every resident sample, which no segment has; sorted.
pub fn deliveries(
    order: &Order,
    ranks: &[Rank],
    segments: &[Segment],
    start: u64,
    end: u64,
) -> Vec<(u64, u32, u32, u64)> {
    let mut found = demanded(segments, end);
    let (steps, mut resident) = (order.steps_per_epoch(), Vec::new());
    for absolute in start..=end {
        for (local_rank, rank) in (0..).zip(ranks) {
            order.resident_batch(absolute / steps, absolute % steps, *rank, &mut resident);
            found.extend(resident.iter().map(|(slot, sample)| (absolute, local_rank, *slot, sample.0)));
        }
    }
    found.sort_unstable();
    found
}

/// (absolute step, local rank, slot, sample) of every demand up to and with step `end`, sorted.
pub fn demanded(segments: &[Segment], end: u64) -> Vec<(u64, u32, u32, u64)> {
    let mut found: Vec<_> = segments
        .iter()
        .flat_map(|segment| {
            let place = |demand: &Demand| {
                (segment.first_step + u64::from(demand.step), demand.local_rank, demand.slot, demand.sample.0)
            };
            segment.demands.iter().map(place)
        })
        .filter(|(step, ..)| *step <= end)
        .collect();
    found.sort_unstable();
    found
}
