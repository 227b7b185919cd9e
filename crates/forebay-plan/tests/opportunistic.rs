//! `opportunistic`: what nodes keep and what they stream, in each step.

use std::collections::HashSet;
use std::sync::Arc;

use crate::order_common::{batch, cases, epoch, is_resident, segments, shares};
use forebay_plan::{
    EpochBytes, LastBatch, NodeMemory, NodeReads, NodeShares, Order, OrderKind, OrderSpec, ShareUnit,
    StagingRing, StreamMemory, TierForecast, TierLevel, UnitBytes,
};
use forebay_types::{Rank, SampleId};
use proptest::prelude::*;

fn order(window: u64, last: LastBatch, samples: u64, batch: u64, ranks: u64) -> Order {
    let kind = OrderKind::Opportunistic { window };
    Order::new(OrderSpec { kind, last_batch: last, seed: 3, samples, batch, ranks, lanes: None }).unwrap()
}

/// Nodes with one rank each, and units of this many samples.
fn even_shares(samples: u64, unit: u64, nodes: u32) -> Arc<NodeShares> {
    let units: Vec<ShareUnit> = (0..samples)
        .step_by(unit as usize)
        .map(|first| ShareUnit { first_sample: SampleId(first), bytes: 9 })
        .collect();
    let ranks: Vec<Vec<Rank>> = (0..nodes).map(|rank| vec![Rank(rank)]).collect();
    Arc::new(NodeShares::new(samples, &units, &ranks, 5))
}

/// All ways to end an epoch of this order.
fn lasts() -> impl Strategy<Value = LastBatch> {
    prop_oneof![Just(LastBatch::Fill), Just(LastBatch::Drop), Just(LastBatch::Partial)]
}

prop_compose! {
    /// An order that fits its dataset, and what its nodes hold.
    fn placed()(
        seed: u64, samples in 60_u64..400, size in 1_u64..9, ranks in 1_u64..7, window in 1_u64..9,
        kept in 0_u64..=10, last in lasts(),
    ) -> Order {
        let held = shares(seed, samples, ranks);
        order(window, last, samples, size, ranks).with_residents(held, |unit| is_resident(seed, unit, kept))
    }
}

/// The node of each sample that is resident.
fn resident_nodes(order: &Order) -> Vec<Option<usize>> {
    let shares = order.shares().unwrap();
    let streamed: HashSet<usize> = order.streamed_units().iter().copied().collect();
    let node = |sample| {
        let unit = shares.unit_of(SampleId(sample));
        (!streamed.contains(&unit)).then(|| shares.holder(unit))
    };
    (0..order.spec().samples).map(node).collect()
}

proptest! {
    #![proptest_config(cases(2))]

    #[test]
    fn resident_samples_never_leave_their_node(order in placed(), number in 0_u64..4) {
        let (shares, nodes) = (order.shares().unwrap(), resident_nodes(&order));
        for step in 0..order.steps_per_epoch() {
            for rank in 0..order.spec().ranks {
                let own = shares.node_of_rank(Rank(rank as u32));
                for sample in batch(&order, number, step, rank) {
                    prop_assert!(nodes[sample as usize].is_none_or(|node| node == own), "{} on node {}", sample, own);
                }
            }
        }
    }

    #[test]
    fn each_step_of_a_node_has_the_same_share_of_both(order in placed(), number in 0_u64..4) {
        let (shares, nodes) = (order.shares().unwrap(), resident_nodes(&order));
        for ranks in shares.nodes().filter(|ranks| !ranks.is_empty()) {
            let streamed = |step: u64| {
                let samples = ranks.iter().flat_map(|rank| batch(&order, number, step, u64::from(rank.0)));
                samples.filter(|sample| nodes[*sample as usize].is_none()).count()
            };
            // `partial` may make two steps of the last one.
            let full = order.steps_per_epoch().saturating_sub(2);
            let counts: Vec<usize> = (0..full).map(streamed).collect();
            let spread = counts.iter().max().unwrap_or(&0) - counts.iter().min().unwrap_or(&0);
            prop_assert!(spread <= 1, "{:?}", counts);
        }
    }

    #[test]
    fn what_is_not_resident_is_read_once_and_whole(order in placed(), number in 0_u64..4) {
        let (shares, nodes) = (order.shares().unwrap(), resident_nodes(&order));
        let steps = order.steps_per_epoch();
        let (start, end) = (number * steps, number * steps + steps - 1);
        let mut readers = vec![HashSet::new(); shares.units()];
        let mut read = vec![0; order.spec().samples as usize];
        let mut cut = 0;
        for (node, ranks) in shares.nodes().enumerate() {
            for segment in segments(&order, ranks, start, end, 3) {
                let mut streamed: Vec<u64> = segment.demands.iter().map(|demand| demand.sample.0).collect();
                streamed.retain(|sample| nodes[*sample as usize].is_none());
                prop_assert_eq!(streamed.len(), segment.demands.len(), "a resident sample is in no segment");
                // What `fill` repeats is a segment of its own.
                let is_repeated = !streamed.is_empty() && streamed.iter().all(|id| read[*id as usize] == 1);
                let is_window = !(is_repeated && order.spec().last_batch == LastBatch::Fill);
                streamed.sort_unstable();
                for sample in &streamed {
                    readers[shares.unit_of(SampleId(*sample))].insert(node);
                }
                if is_window {
                    for sample in &streamed {
                        read[*sample as usize] += 1;
                    }
                    // Each unit of a window is one run.
                    let runs = streamed.chunk_by(|one, next| {
                        one + 1 == *next && shares.unit_of(SampleId(*one)) == shares.unit_of(SampleId(*next))
                    });
                    for run in runs {
                        let unit = shares.unit_samples(shares.unit_of(SampleId(run[0])));
                        cut += usize::from(run.len() as u64 != unit.end - unit.start);
                    }
                }
            }
        }
        prop_assert!(read.iter().all(|count| *count <= 1));
        let delivered = if order.spec().last_batch == LastBatch::Drop { steps * order.global_batch() } else { order.spec().samples };
        let resident = nodes.iter().flatten().count() as u64;
        prop_assert_eq!(read.iter().sum::<u64>() , delivered - resident);
        prop_assert!(cut <= 2 * shares.nodes().len(), "{} cut units", cut);
    }

    #[test]
    fn nodes_keep_what_was_said_but_no_more_than_they_take(seed: u64, kept in 0_u64..=10, ranks in 1_u64..7, last in lasts()) {
        let samples = 301;
        let held = shares(seed, samples, ranks);
        let order = order(2, last, samples, 5, ranks);
        let said = |unit| is_resident(seed, unit, kept);
        let order = order.with_residents(Arc::clone(&held), said);
        let streamed: HashSet<usize> = order.streamed_units().iter().copied().collect();
        for (node, ranks) in held.nodes().enumerate() {
            let of_node = |unit: &usize| held.holder(*unit) == node;
            let length = |unit: usize| held.unit_samples(unit).end - held.unit_samples(unit).start;
let taken = |rank: &Rank| -> usize {
                (0..order.steps_per_epoch()).map(|step| batch(&order, 0, step, u64::from(rank.0)).len()).sum()
            };
            let takes = ranks.iter().map(taken).sum::<usize>() as u64;
            let kept: u64 = (0..held.units()).filter(of_node).filter(|unit| !streamed.contains(unit)).map(length).sum();
            prop_assert!(kept <= takes, "node {} keeps {}, takes {}", node, kept, takes);
            for unit in (0..held.units()).filter(of_node) {
                prop_assert!(said(unit) || streamed.contains(&unit));
                let could_stay = kept + length(unit) + order.global_batch() <= takes;
                prop_assert!(!(said(unit) && streamed.contains(&unit) && could_stay), "unit {}", unit);
            }
        }
    }
}

#[test]
fn an_order_that_knows_no_nodes_is_shuffle() {
    let unknown = order(3, LastBatch::Fill, 101, 4, 3);
    let shuffle = Order::new(OrderSpec { kind: OrderKind::Shuffle, ..*unknown.spec() }).unwrap();
    assert_eq!(epoch(&unknown, 2), epoch(&shuffle, 2));
    assert_eq!(unknown.quality(), shuffle.quality());
    assert_eq!((unknown.draw_entropy(), unknown.streamed_units().len()), (None, 0));
    assert_eq!(unknown.smallest_window(0.99, 1).unwrap(), 1);
}

#[test]
fn epochs_and_seeds_differ_in_both_classes() {
    let order =
        order(3, LastBatch::Partial, 400, 4, 2).with_residents(even_shares(400, 5, 2), |unit| unit % 2 == 0);
    let nodes = resident_nodes(&order);
    let classes =
        |epoch: Vec<u64>| epoch.into_iter().partition::<Vec<u64>, _>(|id| nodes[*id as usize].is_some());
    let (one, other) = (classes(epoch(&order, 0)), classes(epoch(&order, 1)));
    assert_ne!(one.0, other.0);
    assert_ne!(one.1, other.1);
    assert_eq!(one, classes(epoch(&order, 0)));
}

#[test]
fn pairs_of_a_unit_are_as_frequent_as_expected() {
    for (nodes, window, kept) in [(1, 4, 5), (2, 8, 5), (4, 2, 8), (2, 6, 0), (1, 1, 10)] {
        let (samples, unit, batch) = (20_000, 50, 32);
        let order = order(window, LastBatch::Drop, samples, batch, u64::from(nodes))
            .with_residents(even_shares(samples, unit, nodes), |unit| is_resident(1, unit, kept));
        let (mut same, mut pairs) = (0_u64, 0_u64);
        for number in 0..4 {
            for step in epoch(&order, number).chunks(order.global_batch() as usize) {
                let mut counts = vec![0_u64; (samples / unit) as usize];
                for sample in step {
                    counts[(sample / unit) as usize] += 1;
                }
                same += counts.iter().map(|count| count * count.saturating_sub(1)).sum::<u64>();
                pairs += step.len() as u64 * (step.len() as u64 - 1);
            }
        }
        let (found, expected) = (same as f64 / pairs as f64, order.quality().same_group_pairs.unwrap());
        assert!(
            (found / expected - 1.0).abs() < 0.15,
            "{nodes} {window} {kept}: {found}, expected {expected}"
        );
    }
}

#[test]
fn the_smallest_window_follows_from_the_entropy() {
    // 100,000 samples in units of 100, half of them kept.
    for (nodes, batch) in [(1, 256), (2, 128), (4, 64)] {
        let make = |window| {
            order(window, LastBatch::Fill, 100_000, batch, nodes)
                .with_residents(even_shares(100_000, 100, nodes as u32), |unit| unit % 2 == 0)
        };
        let any = make(1);
        let window = any.smallest_window(0.85, u64::MAX).unwrap();
        assert!(make(window).draw_entropy().unwrap().order_entropy >= 0.85);
        assert!(make(window - 1).draw_entropy().unwrap().order_entropy < 0.85);
        assert_eq!(any.quality().order_entropy, any.draw_entropy().map(|entropy| entropy.order_entropy));

        // The numbers of a refusal work.
        let message = any.smallest_window(0.85, 3).unwrap_err().to_string();
        assert!(
            message.contains("entropy=0.85 is out of reach with windows of at most 3 units"),
            "{message}"
        );
        assert!(message.contains(&format!("a window of {window} units would work")), "{message}");
        let (_, works) = message.split_once("; entropy=").unwrap();
        let works: f64 = works.split(' ').next().unwrap().parse().unwrap();
        assert!(any.smallest_window(works, 3).unwrap() <= 3);
        let message = any.smallest_window(0.98, 3).unwrap_err().to_string();
        let (_, works) = message.split_once(" or entropy=").unwrap();
        let (works, units) = works.split_once(" with a window of ").unwrap();
        let units: u64 = units.split(' ').next().unwrap().parse().unwrap();
        assert!(any.smallest_window(works.parse().unwrap(), units).is_ok(), "{message}");
    }
    for bound in [-0.1, 1.1, f64::NAN] {
        let error = order(1, LastBatch::Fill, 100, 5, 2).smallest_window(bound, 9).unwrap_err().to_string();
        assert_eq!(error, format!("order opportunistic: entropy is {bound}, expected 0 to 1"));
    }
    let spec = OrderSpec {
        kind: OrderKind::Opportunistic { window: 0 },
        ..*order(1, LastBatch::Fill, 100, 5, 2).spec()
    };
    let error = Order::new(spec).unwrap_err().to_string();
    assert_eq!(error, "order opportunistic: window, the units of a window, is 0, expected at least 1");
}

#[test]
fn windows_take_the_memory_of_resident_units() {
    // Nodes have memory for half of their 500 units. Two windows of a node are in it.
    let shares = even_shares(100_000, 100, 2);
    let place: Vec<u64> = (0..shares.units())
        .map(|unit| (0..unit).filter(|other| shares.holder(*other) == shares.holder(unit)).count() as u64)
        .collect();
    let resident = |window: u64, unit: usize| place[unit] + 2 * window < 250;
    let entropy = |order: &Order| order.draw_entropy().unwrap().order_entropy;
    let make = |window| {
        order(window, LastBatch::Fill, 100_000, 64, 2)
            .with_residents(Arc::clone(&shares), |unit| resident(window, unit))
    };
    let any = || order(1, LastBatch::Fill, 100_000, 64, 2);
    for least in [0.0, 0.7, 0.8, 0.85] {
        let found = any().with_smallest_window(&shares, least, 125, resident).unwrap();
        let OrderKind::Opportunistic { window } = found.kind() else { panic!("{}", found.kind()) };
        assert!(entropy(&found) >= least);
        assert!(window == 1 || entropy(&make(window - 1)) < least, "{least}: {window}");
        assert_eq!(
            (epoch(&found, 1), found.streamed_units()),
            (epoch(&make(window), 1), make(window).streamed_units())
        );
    }
    let message = any().with_smallest_window(&shares, 0.99, 125, resident).unwrap_err().to_string();
    let (_, works) = message.split_once("units; entropy=").unwrap();
    let (works, rest) = works.split_once(" with a window of ").unwrap();
    let window: u64 = rest.split(' ').next().unwrap().parse().unwrap();
    assert!(entropy(&make(window)) >= works.parse().unwrap(), "{message}");
    assert!(any().with_smallest_window(&shares, works.parse().unwrap(), 125, resident).is_ok(), "{message}");
    assert!(any().with_smallest_window(&shares, f64::NAN, 125, resident).is_err());
}

#[test]
fn nodes_divide_their_memory_between_windows_and_resident_units() {
    const UNIT_BYTES: u64 = 1 << 20;
    let shares = even_shares(100_000, 100, 2);
    let unit = UnitBytes { resident: UNIT_BYTES, staged: UNIT_BYTES };
    let units = vec![unit; shares.units()];
    // Node 1 has less memory, and some of its own for windows.
    let nodes = vec![
        NodeMemory { resident_bytes: 250 << 20, staging_bytes: 0, divides: true },
        NodeMemory { resident_bytes: 200 << 20, staging_bytes: 20 << 20, divides: true },
    ];
    let streams = StreamMemory::new(&shares, 64, &units, nodes.clone(), 3);
    let any = || order(1, LastBatch::Fill, 100_000, 64, 2);
    let keeps = |window: u64, unit: usize| streams.keeps(window, unit);
    let longest = streams.longest_window();
    for least in [0.5, 0.75, 0.8] {
        let found = any().with_smallest_window(&shares, least, longest, keeps).unwrap();
        let OrderKind::Opportunistic { window } = found.kind() else { panic!("{}", found.kind()) };
        assert!(found.draw_entropy().unwrap().order_entropy >= least);
        for (node, memory) in nodes.iter().enumerate() {
            let kept = found.resident_units(node).len() as u64 * UNIT_BYTES;
            let staging = streams.staging_bytes(window, node);
            assert!(kept + staging <= memory.resident_bytes + memory.staging_bytes, "{least} on node {node}");
            assert!(
                kept + staging + 2 * UNIT_BYTES > memory.resident_bytes,
                "{least} on node {node}: too few"
            );
        }
    }
    assert!(any().with_smallest_window(&shares, 0.99, longest, keeps).is_err());
}

#[test]
fn windows_have_the_published_sizes() {
    // The table of docs/orders.md: every second unit is kept.
    for (samples, unit, nodes, batch, expected) in [
        (100_000, 340, 2, 64, [5, 16, 49]),
        (1_281_167, 64, 4, 64, [63, 232, 926]),
        (50_000_000, 340, 4, 64, [105, 553, 3054]),
    ] {
        let order = order(1, LastBatch::Fill, samples, batch, nodes)
            .with_residents(even_shares(samples, unit, nodes as u32), |unit| unit % 2 == 0);
        let found = [0.8, 0.85, 0.9].map(|least| order.smallest_window(least, u64::MAX).unwrap());
        assert_eq!(found, expected, "{samples} samples");
    }
}

#[test]
fn the_published_bounds_cost_what_is_published() {
    // docs/orders.md: memory for half of the data, the window and a section included.
    let shares = even_shares(100_000, 340, 2);
    let place: Vec<usize> = (0..shares.units())
        .map(|unit| (0..unit).filter(|other| shares.holder(*other) == shares.holder(unit)).count())
        .collect();
    let room = shares.units() / 4;
    let found = |least| {
        order(1, LastBatch::Fill, 100_000, 64, 2).with_smallest_window(
            &shares,
            least,
            room as u64,
            |window, unit| room > place[unit] + (window + window.div_ceil(16)) as usize,
        )
    };
    for (least, window, streamed) in [(0.8, 8, 0.57), (0.85, 36, 0.77), (0.9, 66, 0.986)] {
        let order = found(least).unwrap();
        assert_eq!(order.kind(), OrderKind::Opportunistic { window }, "{least}");
        let share = order.streamed_units().len() as f64 / shares.units() as f64;
        assert!((share - streamed).abs() < 0.005, "{least}: {share}");
    }
    assert!(found(0.93).is_err());
}

#[test]
fn the_forecast_reads_what_is_not_resident_from_the_source() {
    const UNIT_BYTES: u64 = 1 << 20;
    for (nodes, kept) in [(1_u32, 5), (2, 5), (4, 8), (3, 0)] {
        let samples = 40_000;
        let held = even_shares(samples, 100, nodes);
        let order = order(4, LastBatch::Partial, samples, 32, u64::from(nodes))
            .with_residents(Arc::clone(&held), |unit| is_resident(2, unit, kept));
        let streamed: HashSet<usize> = order.streamed_units().iter().copied().collect();
        let level = |node| {
            let kept = |unit: &usize| held.holder(*unit) == node && !streamed.contains(unit);
            let slots = (0..held.units()).filter(kept).count() as u64;
            TierLevel { slots, held_chunks: slots, held_bytes: slots * UNIT_BYTES }
        };
        // The forecast takes nodes as alike.
        let (slots, data_bytes) = (held.units() - streamed.len(), held.units() as u64 * UNIT_BYTES);
        let mean = slots as u64 / u64::from(nodes);
        assert!((0..nodes as usize).all(|node| level(node).slots.abs_diff(mean) <= mean / 5 + 2));
        let levels = [TierLevel { slots: mean, held_chunks: mean, held_bytes: mean * UNIT_BYTES }];
        let forecast = TierForecast {
            reads: NodeReads::of(&order, u64::from(nodes), UNIT_BYTES as f64 / 100.0).aligned(UNIT_BYTES),
            data_bytes,
            chunks: held.units() as u64,
            chunk_bytes: UNIT_BYTES,
            piece_bytes: UNIT_BYTES / 16,
            levels: &levels,
            copies: true,
        };
        let expected = streamed.len() as f64 / held.units() as f64 * data_bytes as f64;
        for EpochBytes { source, levels } in forecast.epochs().take(3) {
            let off = (source - expected).abs() / data_bytes as f64;
            assert!(off < 0.01, "{nodes} nodes: {source} from the source, expected {expected}");
            let all = source + levels.iter().sum::<f64>();
            assert!((all / data_bytes as f64 - 1.0).abs() < 1e-9, "{nodes} nodes: {all} in all");
        }
    }
}

proptest! {
    #![proptest_config(cases(1))]

    #[test]
    fn staging_memory_for_a_window_holds_each_section_in_time(
        seed: u64, unit in 8_u64..100, units in 20_u64..120, size in 1_u64..20, nodes in 1_u64..3, window in 1_u64..40,
        kept in 0_u64..=9, last in lasts(),
    ) {
        const SAMPLE_BYTES: u64 = 8192;
        let (samples, nodes) = (unit * units, nodes as u32);
        let shares = even_shares(samples, unit, nodes);
        let order = order(window, last, samples, size, u64::from(nodes))
            .with_residents(Arc::clone(&shares), |unit| is_resident(seed, unit, kept));
        let bytes = vec![UnitBytes { resident: 0, staged: unit * SAMPLE_BYTES }; shares.units()];
        let memory = NodeMemory { resident_bytes: 0, staging_bytes: 0, divides: false };
        let streams = StreamMemory::new(&shares, size, &bytes, vec![memory; nodes as usize], 1);
        for (node, ranks) in shares.nodes().enumerate() {
            let mut ring = StagingRing::new(streams.staging_bytes(window, node), 1 << 20);
            for segment in segments(&order, ranks, 0, 3 * order.steps_per_epoch(), 1) {
                // The units of a section, as they are read.
                let mut needed: Vec<u64> = segment.demands.iter().map(|demand| demand.sample.0 / unit).collect();
                needed.sort_unstable();
                for read in needed.chunk_by(PartialEq::eq) {
                    let placed = ring.place(read.len() as u64 * SAMPLE_BYTES, segment.first_step, segment.last_step);
                    // Units shorter than a step may leave in the step in which others come.
                    prop_assert!(placed.is_some() || unit < size, "steps {}..{}", segment.first_step, segment.last_step);
                }
            }
        }
    }
}

#[test]
fn a_window_slides_over_the_stream() {
    // 80 units of 64 samples in windows of 16: sections of 2 units, each in 8 turns of 128 samples.
    let shares = even_shares(80 * 64, 64, 1);
    let order = order(16, LastBatch::Partial, 80 * 64, 32, 1).with_residents(shares, |_| false);
    let sequence = epoch(&order, 1);
    let mut seen: Vec<(usize, usize)> = vec![(usize::MAX, 0); 80];
    for (place, sample) in sequence.iter().enumerate() {
        let span = &mut seen[*sample as usize / 64];
        *span = (span.0.min(place), span.1.max(place));
    }
    let spans: Vec<usize> = seen.iter().map(|(first, last)| last + 1 - first).collect();
    // Units are drawn from as long as a window lasts, less where the epoch begins and ends.
    assert!(spans.iter().all(|span| *span <= 16 * 64 + 2 * 128), "{spans:?}");
    assert!(spans.iter().filter(|span| **span > 12 * 64).count() > 60, "{spans:?}");
    // Each 4 steps draw from 16 units or more.
    for steps in sequence.chunks(128) {
        let units: HashSet<u64> = steps.iter().map(|sample| sample / 64).collect();
        assert!(units.len() >= 8, "{units:?}");
    }
}
