//! The forecast of the storage tiers against a simulation that copies piece by piece, over the
//! orders themselves. Seeds are fixed, so the outcomes are.

use std::ops::Range;

use forebay_plan::{
    EpochBytes, LastBatch, MeasuredEpoch, NodeReads, Order, OrderKind, OrderSpec, Placement, ReadRates,
    TierForecast, TierLevel,
};
use forebay_types::Rank;

const CHUNK: u64 = 1024;
const PIECE: u64 = 64;
const RANKS: u64 = 4;

/// A dataset of samples of one size, read by some nodes.
#[derive(Clone, Copy)]
struct Case {
    kind: OrderKind,
    nodes: u64,
    samples: u64,
    sample_bytes: u64,
    batch: u64,
    /// Steps that are read together in `shuffle`.
    segment_steps: u64,
    /// Samples between two of a segment that are read with them.
    gap_samples: u64,
}

impl Case {
    fn order(&self) -> Order {
        let Self { kind, samples, batch, .. } = *self;
        let spec = OrderSpec {
            kind,
            last_batch: LastBatch::Partial,
            seed: 5,
            samples,
            batch,
            ranks: RANKS,
            lanes: None,
        };
        Order::new(spec).unwrap()
    }

    fn reads(&self) -> NodeReads {
        let reads = NodeReads::of(&self.order(), self.nodes, self.sample_bytes as f64);
        let segment = self.segment_steps * self.batch * RANKS / self.nodes;
        // Samples of one size without gaps: runs start at multiples of their own length.
        reads.aligned(1 << (reads.run_bytes as u64).trailing_zeros()).fetching(
            &self.order(),
            segment,
            self.gap_samples * self.sample_bytes,
            1,
        )
    }

    fn data_bytes(&self) -> u64 {
        self.samples * self.sample_bytes
    }

    fn chunks(&self) -> u64 {
        self.data_bytes().div_ceil(CHUNK)
    }

    fn forecast<'a>(&self, levels: &'a [TierLevel]) -> TierForecast<'a> {
        TierForecast {
            reads: self.reads(),
            data_bytes: self.data_bytes(),
            chunks: self.chunks(),
            chunk_bytes: CHUNK,
            piece_bytes: PIECE,
            levels,
            copies: true,
        }
    }

    /// Empty levels with room for these shares of the chunks.
    fn levels(&self, shares: &[f64]) -> Vec<TierLevel> {
        let level =
            |share| TierLevel { slots: (self.chunks() as f64 * share) as u64, held_chunks: 0, held_bytes: 0 };
        shares.iter().copied().map(level).collect()
    }

    /// The samples of one node in one step.
    fn step(&self, order: &Order, epoch: u64, node: u64, step: u64) -> Vec<u64> {
        let each = RANKS / self.nodes;
        let (mut found, mut batch) = (Vec::new(), Vec::new());
        for rank in node * each..(node + 1) * each {
            order.batch(epoch, step, Rank(u32::try_from(rank).unwrap()), None, &mut batch);
            found.extend(batch.iter().map(|sample| sample.0));
        }
        found
    }

    /// The byte ranges that a node reads in an epoch: in `shuffle` by segments, else as runs.
    fn ranges(&self, order: &Order, epoch: u64, node: u64) -> Vec<Range<u64>> {
        let steps = 0..order.steps_per_epoch();
        let batches = steps.map(|step| self.step(order, epoch, node, step));
        let (mut sets, group): (Vec<Vec<u64>>, u64) = match self.kind {
            OrderKind::Shuffle => {
                let batches: Vec<_> = batches.collect();
                let segments = batches.chunks(self.segment_steps as usize);
                (segments.map(<[_]>::concat).collect(), self.samples)
            }
            OrderKind::Group { samples, .. } => (vec![batches.flatten().collect()], samples),
            _ => (vec![batches.flatten().collect()], self.samples),
        };
        let mut ranges: Vec<Range<u64>> = Vec::new();
        for set in &mut sets {
            set.sort_unstable();
            let first = ranges.len();
            for sample in set {
                let (start, end) = (*sample * self.sample_bytes, (*sample + 1) * self.sample_bytes);
                match ranges[first..].last_mut() {
                    Some(last)
                        if start <= last.end + self.gap_samples * self.sample_bytes
                            && !sample.is_multiple_of(group) =>
                    {
                        last.end = end;
                    }
                    _ => ranges.push(start..end),
                }
            }
        }
        ranges
    }
}

/// Each step is read alone, without gaps.
const ONE_BY_ONE: Case = Case {
    kind: OrderKind::Shuffle,
    nodes: 1,
    samples: 1,
    sample_bytes: 1,
    batch: 1,
    segment_steps: 1,
    gap_samples: 0,
};

/// The levels of one node, simulated.
struct Node {
    placement: Placement,
    levels: Vec<TierLevel>,
    /// Level and present pieces by chunk.
    held: Vec<Option<(u8, u16)>>,
}

impl Node {
    /// Reads `range`, piece by piece, and counts the bytes.
    fn read(&mut self, range: Range<u64>, data_bytes: u64, bytes: &mut EpochBytes) {
        let mut at = range.start;
        while at < range.end {
            let start = at - at % PIECE;
            let end = (start + PIECE).min(data_bytes);
            let part = (end.min(range.end) - at) as f64;
            let (chunk, bit) = (start / CHUNK, 1 << (start % CHUNK / PIECE));
            at = end.min(range.end);
            let held = &mut self.held[chunk as usize];
            if held.is_none()
                && let Some(level) = self.placement.level(chunk)
                && self.levels[usize::from(level)].held_chunks < self.levels[usize::from(level)].slots
            {
                self.levels[usize::from(level)].held_chunks += 1;
                *held = Some((level, 0));
            }
            match held {
                Some((level, present)) if *present & bit != 0 => bytes.levels[usize::from(*level)] += part,
                Some((level, present)) => {
                    *present |= bit;
                    bytes.source += (end - start) as f64;
                    self.levels[usize::from(*level)].held_bytes += end - start;
                }
                None => bytes.source += part,
            }
        }
    }
}

/// What `epochs` epochs read, and the mean content of the levels after them.
fn simulate(case: &Case, levels: &[TierLevel], epochs: Range<u64>) -> (Vec<EpochBytes>, Vec<TierLevel>) {
    let slots: Vec<u64> = levels.iter().map(|level| level.slots).collect();
    let share = case.forecast(levels).read_share();
    let placement = Placement::for_reads(case.chunks(), 99, &slots, share).unwrap();
    let node = || Node {
        placement: placement.clone(),
        levels: levels.to_vec(),
        held: vec![None; case.chunks() as usize],
    };
    let mut nodes: Vec<Node> = (0..case.nodes).map(|_| node()).collect();
    let order = case.order();
    let found = epochs
        .map(|epoch| {
            let mut bytes = EpochBytes { source: 0.0, levels: vec![0.0; levels.len()] };
            for (number, node) in (0..).zip(&mut nodes) {
                for range in case.ranges(&order, epoch, number) {
                    node.read(range, case.data_bytes(), &mut bytes);
                }
            }
            bytes
        })
        .collect();
    let mean = |level: usize, value: fn(&TierLevel) -> u64| {
        nodes.iter().map(|node| value(&node.levels[level])).sum::<u64>() / case.nodes
    };
    let content = (0..levels.len()).map(|level| TierLevel {
        slots: slots[level],
        held_chunks: mean(level, |level| level.held_chunks),
        held_bytes: mean(level, |level| level.held_bytes),
    });
    (found, content.collect())
}

/// Asserts that forecast and simulation differ by at most `tolerance` datasets.
fn assert_close(
    case: &Case,
    found: &[EpochBytes],
    expected: impl Iterator<Item = EpochBytes>,
    tolerance: f64,
) {
    let what = format!("{} of {} bytes on {} nodes", case.kind, case.sample_bytes, case.nodes);
    let data = case.data_bytes() as f64;
    for (epoch, (found, expected)) in (1..).zip(found.iter().zip(expected)) {
        let figures = std::iter::once((found.source, expected.source))
            .chain(found.levels.iter().copied().zip(expected.levels));
        for (figure, (found, expected)) in figures.enumerate() {
            let (found, expected) = (found / data, expected / data);
            assert!(
                (found - expected).abs() <= tolerance,
                "{what}, epoch {epoch}, figure {figure}: {found:.4}, forecast {expected:.4}"
            );
        }
    }
}

/// Samples far below a piece, of two pieces, and of most of a chunk; about 2,000 chunks.
const SIZES: [(u64, u64, u64); 3] = [(300_000, 7, 250), (20_000, 110, 32), (3000, 700, 16)];

fn cases(kinds: &[fn(u64) -> OrderKind]) -> Vec<Case> {
    let mut cases = Vec::new();
    for kind in kinds {
        for nodes in [1, 2, 4] {
            for (samples, sample_bytes, batch) in SIZES {
                cases.push(Case {
                    kind: kind(sample_bytes),
                    nodes,
                    samples,
                    sample_bytes,
                    batch,
                    ..ONE_BY_ONE
                });
            }
        }
    }
    cases
}

/// Groups of about one and a half chunks.
fn group(sample_bytes: u64) -> OrderKind {
    OrderKind::Group { samples: 3 * CHUNK / 2 / sample_bytes, window: 4 }
}

#[test]
fn each_epoch_reads_what_is_forecast() {
    let kinds: [fn(u64) -> OrderKind; 4] =
        [|_| OrderKind::Shuffle, group, |_| OrderKind::Sequential, |_| OrderKind::Contiguous];
    for case in cases(&kinds) {
        for shares in [&[0.25][..], &[0.1, 0.15], &[0.56], &[1.0]] {
            let levels = case.levels(shares);
            let (found, _) = simulate(&case, &levels, 0..5);
            // On several nodes chance decides which runs a node gets: there are 1,400 groups, and
            // √(0.25/1400) = 0.013.
            let tolerance = if case.nodes == 1 { 0.004 } else { 0.03 };
            assert_close(&case, &found, case.forecast(&levels).epochs(), tolerance);
        }
    }
}

#[test]
fn what_lies_between_samples_that_are_read_together_is_forecast() {
    for nodes in [1, 4] {
        for (segment_steps, gap_samples) in [(1, 8), (4, 8), (16, 8), (64, 3)] {
            let (kind, batch) = (OrderKind::Shuffle, 8);
            let sizes = Case { samples: 20_000, sample_bytes: 110, segment_steps, gap_samples, ..ONE_BY_ONE };
            let case = Case { kind, nodes, batch, ..sizes };
            let levels = case.levels(&[0.4]);
            let fetched = case.reads().fetched;
            assert!(fetched > 1.01 && fetched < 3.0, "{fetched}");
            let (found, _) = simulate(&case, &levels, 0..5);
            assert_close(&case, &found, case.forecast(&levels).epochs(), 0.03 * fetched);
        }
    }
}

#[test]
fn a_job_that_starts_with_copies_goes_on_where_the_last_one_ended() {
    for kind in [OrderKind::Shuffle, group(110)] {
        for nodes in [1, 4] {
            let case = Case { kind, nodes, samples: 20_000, sample_bytes: 110, batch: 32, ..ONE_BY_ONE };
            let levels = case.levels(&[0.1, 0.3]);
            let (all, _) = simulate(&case, &levels, 0..5);
            let (_, content) = simulate(&case, &levels, 0..2);
            assert!(content.iter().all(|level| level.held_bytes > 0 && level.held_chunks <= level.slots));
            assert_close(&case, &all[2..], case.forecast(&content).epochs(), 0.03);
        }
    }
}

#[test]
fn without_copies_only_what_is_held_is_not_read_from_the_source() {
    let case = Case {
        kind: OrderKind::Shuffle,
        nodes: 4,
        samples: 20_000,
        sample_bytes: 110,
        batch: 32,
        ..ONE_BY_ONE
    };
    let mut levels = case.levels(&[0.5]);
    levels[0].held_chunks = levels[0].slots / 2;
    levels[0].held_bytes = case.data_bytes() / 4;
    let forecast = TierForecast { copies: false, ..case.forecast(&levels) };
    for epoch in forecast.epochs().take(3) {
        assert!((epoch.source / case.data_bytes() as f64 - 0.75).abs() < 0.001);
        assert!((epoch.levels[0] / case.data_bytes() as f64 - 0.25).abs() < 0.001);
    }
}

#[test]
fn copies_pay_from_where_the_simulation_has_read_less() {
    for kind in [OrderKind::Shuffle, group(7), OrderKind::Sequential, OrderKind::Contiguous] {
        for nodes in [1, 2, 4] {
            let case = Case { kind, nodes, samples: 300_000, sample_bytes: 7, batch: 250, ..ONE_BY_ONE };
            let levels = case.levels(&[0.2]);
            let (found, _) = simulate(&case, &levels, 0..6);
            let data = case.data_bytes() as f64;
            let pays = (1..).zip(&found).scan(0.0, |balance, (epochs, bytes)| {
                *balance += data - bytes.source;
                Some((epochs, *balance > 0.01 * 0.2 * data))
            });
            let found = pays.clone().find_map(|(epochs, pays)| pays.then_some(epochs));
            assert_eq!(case.forecast(&levels).pays_from(6), found, "{kind} on {nodes} nodes");
        }
    }
}

#[test]
fn small_samples_in_shuffle_pay_after_as_many_epochs_as_nodes() {
    for nodes in [2, 4, 16] {
        let reads = NodeReads {
            nodes,
            run_bytes: 3000.0,
            aligned_bytes: 1,
            fetched: 1.0,
            repeats: false,
            moved: 0.0,
            sample_bytes: 3000.0,
        };
        let levels = [TierLevel { slots: 250, held_chunks: 0, held_bytes: 0 }];
        let forecast = TierForecast {
            reads,
            data_bytes: 1000 << 20,
            chunks: 1000,
            chunk_bytes: 1 << 20,
            piece_bytes: 64 << 10,
            levels: &levels,
            copies: true,
        };
        assert_eq!(forecast.pays_from(1000), Some(nodes + 1));
        assert_eq!(forecast.pays_from(nodes), None);
    }
}

/// Standard deviation over the steps of one node of the bytes whose chunk is not placed, mean over
/// many placements.
fn measured_deviation(case: &Case, share: f64) -> (f64, f64) {
    let order = case.order();
    let (mut variance, mut bytes, mut count) = (0.0, 0.0, 0.0);
    for key in 0..40 {
        let slots = (case.chunks() as f64 * share) as u64;
        let placement = Placement::new(case.chunks(), key, &[slots]).unwrap();
        // The last step may be short.
        let steps: Vec<f64> = (0..order.steps_per_epoch() - 1)
            .map(|step| {
                let mut source = 0;
                for sample in case.step(&order, key, 0, step) {
                    let mut at = sample * case.sample_bytes;
                    let end = at + case.sample_bytes;
                    bytes += case.sample_bytes as f64;
                    while at < end {
                        let next = (at - at % CHUNK + CHUNK).min(end);
                        source += if placement.level(at / CHUNK).is_none() { next - at } else { 0 };
                        at = next;
                    }
                }
                source as f64
            })
            .collect();
        let mean = (1.0 - share) * bytes / (count + steps.len() as f64);
        variance += steps.iter().map(|source| (source - mean).powi(2)).sum::<f64>();
        count += steps.len() as f64;
    }
    ((variance / count).sqrt(), bytes / count)
}

#[test]
fn steps_differ_as_a_binomial_over_the_chunks_they_touch() {
    for kind in [OrderKind::Shuffle, OrderKind::Sequential] {
        for (samples, sample_bytes, batch) in
            [(50_000, 30, 16), (20_000, 110, 32), (3000, 700, 16), (1000, 5000, 4)]
        {
            for share in [0.25, 0.56] {
                let case = Case { kind, nodes: 1, samples, sample_bytes, batch, ..ONE_BY_ONE };
                let levels = case.levels(&[share]);
                let (found, step_bytes) = measured_deviation(&case, share);
                let expected = case.forecast(&levels).source_step_deviation(step_bytes, share);
                assert!(
                    (found / expected - 1.0).abs() < 0.05,
                    "{kind} of {sample_bytes} bytes, {share}: {found:.1}, forecast {expected:.1}"
                );
            }
        }
    }
}

#[test]
fn the_bound_of_saved_time_is_the_slowest_of_source_levels_and_computing() {
    let case = Case {
        kind: OrderKind::Shuffle,
        nodes: 1,
        samples: 20_000,
        sample_bytes: 110,
        batch: 32,
        ..ONE_BY_ONE
    };
    let levels = case.levels(&[0.56]);
    let forecast = case.forecast(&levels);
    let data = case.data_bytes() as f64;
    let placed = levels[0].slots as f64 / (data / CHUNK as f64);
    let source = data / 100.0;
    for (epochs, level_rate, compute_s, expected) in [
        // Reading is all, and the tier is fast: 1 − (1 + (E − 1)·(1 − q))/E.
        (3, f64::INFINITY, 0.0, 1.0 - (1.0 + 2.0 * (1.0 - placed)) / 3.0),
        (1, f64::INFINITY, 0.0, 0.0),
        // The tier is half as fast as the source: an epoch takes 2·q of the time from then on.
        (3, source / 2.0, 0.0, 1.0 - (1.0 + 2.0 * 2.0 * placed) / 3.0),
        // Computing takes 0.8 of the time, or more than reading.
        (3, f64::INFINITY, 80.0, 1.0 - (1.0 + 2.0 * 0.8) / 3.0),
        (3, f64::INFINITY, 120.0, 0.0),
    ] {
        let rates = ReadRates { source, levels: vec![level_rate], compute_s };
        let found = forecast.saved_share(epochs, &rates);
        assert!(
            (found - expected).abs() < 0.002,
            "{epochs} epochs, {rates:?}: {found:.4}, not {expected:.4}"
        );
    }
}

#[test]
fn a_tier_saves_no_more_time_than_a_run_has_waited() {
    let case = Case {
        kind: OrderKind::Shuffle,
        nodes: 1,
        samples: 20_000,
        sample_bytes: 110,
        batch: 32,
        ..ONE_BY_ONE
    };
    let levels = case.levels(&[0.5]);
    let forecast = case.forecast(&levels);
    let measured = |exposed_s| MeasuredEpoch { source_bytes: 2e9, seconds: 100.0, exposed_s };
    for (exposed_s, level_rate, expected) in [
        (80.0, f64::INFINITY, 50.0),
        (30.0, f64::INFINITY, 30.0),
        (0.0, f64::INFINITY, 0.0),
        // A level that takes 90 s for its half of the bytes, or longer than the source does.
        (80.0, 1e9 / 90.0, 10.0),
        (80.0, 1e6, 0.0),
    ] {
        let found = forecast.saved_in_epoch(1, &measured(exposed_s), &[level_rate]);
        assert!((found.seconds - expected).abs() < 0.2, "exposed {exposed_s} s: {found:?}");
        assert!((found.source_bytes / 1e9 - 1.0).abs() < 0.002, "{found:?}");
        let first = forecast.saved_in_epoch(0, &measured(exposed_s), &[level_rate]);
        assert!(first.source_bytes.abs() < 1e-3 && first.seconds < 1e-6, "{first:?}");
    }
}

#[test]
fn groups_of_whole_chunks_are_read_once_in_the_first_epoch() {
    let kind = OrderKind::Group { samples: 8, window: 4 };
    let case = Case { kind, nodes: 4, samples: 16_000, sample_bytes: 128, batch: 32, ..ONE_BY_ONE };
    let levels = case.levels(&[0.25]);
    let data = case.data_bytes() as f64;
    let first = case.forecast(&levels).epochs().next().unwrap();
    assert!((first.source / data - 1.0).abs() < 1e-9, "{first:?}");
    let (found, content) = simulate(&case, &levels, 0..4);
    // Two lanes share a group at each of their borders.
    assert!(found[0].source / data < 1.01, "{found:?}");
    assert!(content[0].held_chunks as f64 > 0.97 * levels[0].slots as f64, "{content:?}");
    assert_close(&case, &found, case.forecast(&levels).epochs(), 0.03);
}

#[test]
fn what_is_cached_already_does_not_pay_for_further_copies() {
    let case = Case {
        kind: OrderKind::Shuffle,
        nodes: 4,
        samples: 300_000,
        sample_bytes: 7,
        batch: 250,
        ..ONE_BY_ONE
    };
    let mut levels = case.levels(&[0.5]);
    let empty = case.forecast(&levels).pays_from(100);
    levels[0].held_chunks = levels[0].slots / 2;
    levels[0].held_bytes = levels[0].held_chunks * CHUNK;
    assert_eq!(case.forecast(&levels).pays_from(100), empty);
    levels[0].held_chunks = levels[0].slots;
    levels[0].held_bytes = levels[0].held_chunks * CHUNK;
    assert_eq!(case.forecast(&levels).pays_from(100), Some(1), "a full level");
}
