//! The model reproduces published results.
//!
//! The reader of "Performance analysis of a deep learning framework on a high-performance
//! distributed file system" (F): a mapped LMDB of images of 49 pages; 16 ranks, one per node. In
//! each step a rank reads 128 records (2 x 64), *skipping* (records r, r + 16, r + 32 …) or
//! *contiguous* (its own region), computes, and waits at a barrier. docs/cost-model.md tabulates
//! the results; `cargo test -p forebay-model --test shapes -- --nocapture` prints them.
use forebay_model::virtual_time::{Action, Scenario, SimulationResult, Stream, StreamResult, run};
use forebay_model::{AccessMethod, ReadAheadRules, Spec};

const PAGE: u64 = 4096;
const RECORD_PAGES: u64 = 49;
const RECORDS_PER_STEP: u64 = 128;
const RANKS: u64 = 16;
/// Number of steps: enough that the simultaneous start is a small part.
const STEPS: u64 = 8;
/// A step of `AlexNet` on one P100 of the time, 64 images (TensorFlow "Benchmarks", 2017).
const ALEXNET_NS: u64 = 21_400_000;
/// A step of ResNet-50 there.
const RESNET50_NS: u64 = 290_000_000;

#[derive(Clone, Copy, PartialEq)]
enum Pattern {
    Skipping,
    Contiguous,
}

use Pattern::{Contiguous, Skipping};

/// The paper's ranks, of which `nodes` nodes with `ranks_per_node` each run.
#[derive(Clone, Copy)]
struct Readers {
    nodes: u64,
    ranks_per_node: u64,
    steps: u64,
    think_ns: u64,
}

const PAPER: Readers = Readers { nodes: 16, ranks_per_node: 1, steps: STEPS, think_ns: ALEXNET_NS };

impl Readers {
    fn scenario(self, pattern: Pattern) -> Scenario {
        let stream = |rank: u64| {
            let mut actions = Vec::new();
            for step in 0..self.steps {
                for record in step * RECORDS_PER_STEP..(step + 1) * RECORDS_PER_STEP {
                    let record = match pattern {
                        Skipping => record * RANKS + rank,
                        // 1,281,167 images over 16 ranks.
                        Contiguous => rank * (1_281_167 / RANKS) + record,
                    };
                    actions.push(Action::Touch {
                        file: 0,
                        offset: record * RECORD_PAGES * PAGE,
                        length: RECORD_PAGES * PAGE,
                        how: AccessMethod::Mmap,
                    });
                }
                actions.extend([Action::ThinkNs(self.think_ns), Action::Barrier]);
            }
            Stream { node: (rank / self.ranks_per_node) as u32, actions }
        };
        let streams = (0..self.nodes * self.ranks_per_node).map(stream).collect();
        Scenario { rules: ReadAheadRules::Lustre, streams, ..Scenario::default() }
    }

    fn run(self, spec: &Spec, pattern: Pattern) -> SimulationResult {
        run(spec, &self.scenario(pattern)).unwrap()
    }

    fn ms_per_step(self, spec: &Spec, pattern: Pattern) -> f64 {
        self.run(spec, pattern).end_ns as f64 / 1e6 / self.steps as f64
    }

    fn skipping_to_contiguous(self, spec: &Spec) -> f64 {
        self.ms_per_step(spec, Skipping) / self.ms_per_step(spec, Contiguous)
    }
}

fn fefs() -> Spec {
    Spec::preset("fefs").unwrap()
}

fn with(spec: &Spec, fields: &str) -> Spec {
    spec.overridden(fields).unwrap()
}

/// Bytes that all ranks fetched over those they accessed, and requests per record.
fn fetched(result: &SimulationResult) -> (f64, f64) {
    let sum = |of: fn(&StreamResult) -> u64| result.streams.iter().map(of).sum::<u64>() as f64;
    let requested_bytes = sum(|stream| stream.requested_bytes);
    let records = requested_bytes / (RECORD_PAGES * PAGE) as f64;
    (sum(|stream| stream.read_bytes) / requested_bytes, sum(|stream| stream.reads) / records)
}

/// Prints a result beside the published one, and fails outside the range.
fn expect(what: &str, published: &str, found: f64, least: f64, most: f64) {
    println!("{what}: {found:.2} (published: {published})");
    assert!(
        (least..=most).contains(&found),
        "{what}: {found} is not {least} to {most} (published: {published})"
    );
}

#[test]
fn skipping_is_five_to_six_times_slower_than_contiguous_on_ssd() {
    for (latency_us, least, most) in [(200, 5.0, 6.5), (300, 5.5, 7.0), (500, 7.0, 8.5)] {
        let spec = with(&fefs(), &format!(r#"{{"latency_us": {latency_us}}}"#));
        let what = format!("fefs, 16 nodes, AlexNet, {latency_us} us: skipping / contiguous");
        expect(&what, "5 to 6", PAPER.skipping_to_contiguous(&spec), least, most);
    }
    let none = Readers { think_ns: 0, ..PAPER }.skipping_to_contiguous(&fefs());
    expect("fefs, 16 nodes, no compute: skipping / contiguous", "-", none, 9.0, 14.0);
    let long = Readers { think_ns: RESNET50_NS, ..PAPER }.skipping_to_contiguous(&fefs());
    expect("fefs, 16 nodes, ResNet-50: skipping / contiguous", "-", long, 1.3, 2.2);
}

#[test]
fn the_narrowed_file_system_keeps_the_ratio() {
    let narrow = Readers { nodes: 4, ..PAPER };
    let ratio = narrow.skipping_to_contiguous(&fefs().with_targets(3));
    expect("fefs, 3 targets, 4 nodes, AlexNet: skipping / contiguous", "5 to 6", ratio, 5.0, 7.0);
}

#[test]
fn the_window_of_page_faults_is_why() {
    let (bytes, requests) = fetched(&PAPER.run(&fefs(), Skipping));
    expect("skipping: bytes fetched / asked", "-", bytes, 3.4, 3.8);
    // Three pages, then the fourth with the rest of its MiB; one record in five crosses into the
    // next.
    expect("skipping: requests per record", "-", requests, 4.0, 4.4);
    let (bytes, requests) = fetched(&PAPER.run(&fefs(), Contiguous));
    expect("contiguous: bytes fetched / asked", "-", bytes, 1.0, 1.05);
    expect("contiguous: requests per record", "-", requests, 49.0 / 256.0, 0.22);
    // Without the window both patterns pay one latency per page.
    let without = with(&fefs(), r#"{"read_ahead_mmap_bytes": 0}"#);
    expect("no window: skipping / contiguous", "-", PAPER.skipping_to_contiguous(&without), 0.9, 1.1);
}

#[test]
fn ranks_that_share_a_page_cache_use_what_the_others_fetched() {
    let shared = Readers { nodes: 4, ranks_per_node: 4, ..PAPER };
    let spec = fefs().with_targets(3);
    let (bytes, _) = fetched(&shared.run(&spec, Skipping));
    expect("4 ranks share a page cache: bytes fetched / asked", "-", bytes, 1.4, 1.9);
    let alone = Readers { nodes: 4, ..PAPER }.skipping_to_contiguous(&spec);
    let together = shared.skipping_to_contiguous(&spec);
    expect("4 ranks share a page cache: skipping / contiguous", "-", together, 1.5, 0.7 * alone);
}

#[test]
fn skipping_on_disks_is_ten_times_slower_than_on_ssd() {
    let hdd = Spec::preset("fefs-hdd").unwrap();
    let ssd = PAPER.ms_per_step(&fefs(), Skipping);
    let ratio = PAPER.ms_per_step(&hdd, Skipping) / ssd;
    expect("skipping: fefs-hdd / fefs", "more than 10", ratio, 9.0, 13.0);
    let serial = with(&hdd, r#"{"small_request_bytes": 0}"#);
    let ratio = PAPER.ms_per_step(&serial, Skipping) / ssd;
    expect(
        "skipping, small requests one after the other: fefs-hdd / fefs",
        "more than 10",
        ratio,
        20.0,
        40.0,
    );
    let narrow = Readers { nodes: 4, ..PAPER };
    let ratio = narrow.ms_per_step(&hdd.with_targets(3), Skipping)
        / narrow.ms_per_step(&fefs().with_targets(3), Skipping);
    expect("skipping, 3 targets, 4 nodes: fefs-hdd / fefs", "more than 10", ratio, 9.0, 13.0);
}

/// Milliseconds per step by stripe size.
fn by_stripe<const N: usize>(spec: &Spec, pattern: Pattern, stripes_kib: [u64; N]) -> [f64; N] {
    let ms = stripes_kib.map(|kib| {
        PAPER.ms_per_step(&with(spec, &format!(r#"{{"stripe_bytes": {}}}"#, kib * 1024)), pattern)
    });
    println!("ms per step with stripes of {stripes_kib:?} KiB: {ms:.1?}");
    ms
}

#[test]
fn a_stripe_of_one_mebibyte_beats_sixty_four_for_skipping() {
    let [one, sixty_four] = by_stripe(&fefs(), Skipping, [1024, 65_536]);
    // With 64 MiB all ranks, at most 49 MiB apart, use one or two targets.
    expect("skipping: stripes of 64 MiB / 1 MiB", "1 MiB best", sixty_four / one, 1.5, 3.5);
}

#[test]
fn stripes_below_one_mebibyte_lose_only_where_a_request_keeps_its_server_busy() {
    // Pieces of one request travel in parallel, so small stripes fetch a window faster.
    let [small, one] = by_stripe(&fefs(), Skipping, [64, 1024]);
    expect("skipping: stripes of 64 KiB / 1 MiB", "1 MiB best", small / one, 0.6, 1.0);
    // A cost per piece that keeps the server busy (0.1 ms) reverses that.
    let [small, one] = by_stripe(&with(&fefs(), r#"{"request_us": 100.0}"#), Skipping, [64, 1024]);
    expect("skipping, 0.1 ms per piece: stripes of 64 KiB / 1 MiB", "1 MiB best", small / one, 1.0, 2.0);
}

#[test]
fn contiguous_hardly_feels_the_stripe() {
    // Published: 64 MiB is best. Here sixteen streams collide on twelve targets at any stripe.
    let ms = by_stripe(&fefs(), Contiguous, [64, 1024, 65_536]);
    let (least, most) = (ms.iter().copied().fold(f64::MAX, f64::min), ms.iter().copied().fold(0.0, f64::max));
    expect("contiguous: worst / best stripe", "64 MiB best", most / least, 1.0, 1.5);
}

/// Runs two epochs of a small dataset with 15 records more than a multiple of the ranks, as F's.
///
/// Returns the bytes fetched per epoch in shares of a rank, for a cache of `shares` shares.
fn two_epochs(pattern: Pattern, shares: f64) -> [f64; 2] {
    let per_rank = 96;
    let records = RANKS * per_rank + 15;
    let share_bytes = per_rank * RECORD_PAGES * PAGE;
    let cache_bytes = (share_bytes as f64 * shares) as u64;
    let spec = with(&fefs(), &format!(r#"{{"cache_bytes": {cache_bytes}}}"#));
    let bytes_after = |epochs: u64| {
        let streams = (0..RANKS).map(|rank| {
            let touch = |k: u64| {
                let record = match pattern {
                    Skipping => (rank + k * RANKS) % records,
                    Contiguous => rank * per_rank + k % per_rank,
                };
                let (offset, length) = (record * RECORD_PAGES * PAGE, RECORD_PAGES * PAGE);
                Action::Touch { file: 0, offset, length, how: AccessMethod::Mmap }
            };
            // A rank reads on until the end of the dataset; the next epoch continues from there.
            let steps = if pattern == Skipping { records.div_ceil(RANKS) } else { per_rank };
            Stream { node: rank as u32, actions: (0..steps * epochs).map(touch).collect() }
        });
        let files = vec![records * RECORD_PAGES * PAGE];
        let scenario = Scenario { files, streams: streams.collect(), ..Scenario::default() };
        let result = run(&spec, &scenario).unwrap();
        let read_bytes = result.streams.iter().map(|stream| stream.read_bytes).sum::<u64>();
        read_bytes as f64 / (RANKS * share_bytes) as f64
    };
    let first = bytes_after(1);
    [first, bytes_after(2) - first]
}

#[test]
fn the_second_epoch_comes_from_the_cache_only_if_contiguous() {
    let [first, second] = two_epochs(Contiguous, 1.5);
    expect("contiguous, cache of 1.5 shares: first epoch fetches shares", "-", first, 1.0, 1.1);
    expect("contiguous, cache of 1.5 shares: second epoch fetches shares", "0", second, 0.0, 0.01);
    let [first, second] = two_epochs(Skipping, 1.5);
    expect("skipping, cache of 1.5 shares: first epoch fetches shares", "-", first, 3.3, 3.9);
    expect("skipping, cache of 1.5 shares: second epoch fetches shares", "more than 0", second, 3.0, 3.9);
    // F's nodes cache 6.4 shares, so the 3.6 fit; the neighbour's records are still missing.
    let [_, second] = two_epochs(Skipping, 6.4);
    expect("skipping, cache of 6.4 shares: second epoch fetches shares", "more than 0", second, 0.1, 1.5);
}
