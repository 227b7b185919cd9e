//! Walks from record to record, and samples that are copied from mappings.

use forebay_sim::{RunResult, Simulated, Window};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::jobs::simulate;

/// Leaves of an LMDB file of 1000 records that have pages of their own: a node of 26 bytes for
/// each, in what a page has besides its header.
const LEAVES: u64 = 1000_u64.div_ceil((4096 - 16) / 26);

/// A job on such a file, of 5 steps. Without read-ahead each page is one fault.
pub fn walk(nodes: u32, node_ranks: u32, strategy: Value, change: impl FnOnce(&mut Value)) -> Simulated {
    simulate(&[0], |job| {
        job["dataset"] = json!({"lmdb": {"samples": 1000, "sample_bytes": 3000}});
        job["strategy"] = strategy;
        (job["nodes"], job["ranks"]) = (nodes.into(), (nodes * node_ranks).into());
        job["batch_size"] = (200 / (nodes * node_ranks)).into();
        change(job);
    })
    .unwrap()
}

fn reads(run: &RunResult) -> Vec<u64> {
    run.nodes.iter().map(|node| node.traffic.reads).collect()
}

/// Pages that each node has asked for.
fn pages(run: &RunResult) -> Vec<u64> {
    run.nodes.iter().map(|node| node.traffic.read_bytes / 4096).collect()
}

fn cursor() -> Value {
    json!({"locate": "cursor", "access": "mmap"})
}

fn roots() -> Value {
    json!({"locate": "cursor", "access": "mmap", "readers": "per_node", "coalesce": 1})
}

fn handoff() -> Value {
    json!({"locate": "handoff", "access": "mmap", "readers": "per_node", "coalesce": 1})
}

#[test]
fn roots_touch_the_records_of_all_ranks_of_their_node() {
    for strategy in [roots(), handoff()] {
        // Pages that are asked for on a guess may be branches.
        let found = pages(&walk(1, 4, strategy.clone(), |_| ()).runs[0])[0];
        assert!((LEAVES + 1000..LEAVES + 1005).contains(&found), "{strategy}: {found} pages");
        let on_two = walk(2, 4, strategy, |_| ());
        assert!(pages(&on_two.runs[0]).iter().all(|pages| *pages >= 500));
    }
}

#[test]
fn ranks_of_a_node_find_in_its_page_cache_what_others_have_touched() {
    // Each rank passes all leaves on the way to its own records.
    let found = walk(2, 4, cursor(), |_| ());
    for reads in reads(&found.runs[0]) {
        assert!((500 + LEAVES - 1..=500 + LEAVES).contains(&reads));
    }
}

#[test]
fn in_contiguous_each_rank_has_a_cursor_of_its_own_in_its_region() {
    for strategy in [cursor(), roots()] {
        let order = |job: &mut Value| job["order"] = json!({"kind": "contiguous"});
        let run = &walk(2, 4, strategy.clone(), order).runs[0];
        let [first, second] = reads(run)[..] else { unreachable!("two nodes") };
        // The ranks of the second node pass the leaves before their regions.
        assert!((500 + LEAVES / 2..=500 + LEAVES / 2 + 1).contains(&first), "{strategy}: {first}");
        assert_eq!(second, 500 + LEAVES, "{strategy}");
    }
}

#[test]
fn a_cursor_that_is_handed_on_passes_each_record_once() {
    let run = &walk(4, 2, handoff(), |_| ()).runs[0];
    let handed: u64 = pages(run).iter().sum();
    // Pages are asked for before the cursor comes: many in one request, and few in vain.
    assert!((1000 + LEAVES..1200).contains(&handed), "{handed} pages");
    assert!(reads(run).iter().sum::<u64>() < 500);
}

#[test]
fn one_root_walks_at_a_time_and_a_message_brings_the_cursor_to_the_next() {
    let with = |message_ns: f64| {
        let found = walk(4, 1, handoff(), |job| job["costs"]["message_ns"] = message_ns.into());
        found.runs[0].nodes.iter().map(|node| node.startup_ns).collect::<Vec<_>>()
    };
    let (free, late) = (with(0.0), with(1e6));
    assert!(free.is_sorted());
    for (place, (free, late)) in free.iter().zip(&late).enumerate() {
        let more = late - free;
        assert!(more >= place as u64 * 1_000_000, "node {place}: {more} ns more");
    }
    // A slow link delays it by the bytes of the message.
    let slow = walk(4, 1, handoff(), |job| job["storage"]["link_bytes_per_second"] = 1e6.into());
    assert!(slow.runs[0].nodes[1].startup_ns > free[1]);
}

#[test]
fn a_root_that_waits_too_long_goes_on_alone() {
    let found = walk(4, 1, handoff(), |job| job["costs"]["message_ns"] = 1e10.into());
    let run = &found.runs[0];
    // Two seconds of patience at the first step, and none later: each walks over all records.
    let (first, later) = (run.startup_ns - found.meeting_ns, run.wall_ns - 5 * found.meeting_ns);
    assert!((2_000_000_000..3_000_000_000).contains(&first), "{first} ns");
    assert!(later < 1_000_000_000, "{later} ns");
    for pages in &pages(run)[1..] {
        assert!((250 + LEAVES - 2..300).contains(pages), "{pages} pages");
    }
}

#[test]
fn ranks_that_copy_from_a_mapping_fault_each_page_of_their_samples() {
    for order in ["sequential", "shuffle", "group", "contiguous"] {
        let found = walk(2, 2, json!({"access": "mmap"}), |job| job["order"] = json!({"kind": order}));
        for node in &found.runs[0].nodes {
            // A page for each record: nothing is announced, and readers read nothing.
            assert_eq!((node.reads, node.traffic.reads), (0, 500), "{order}");
            assert_eq!(node.traffic.read_bytes, 500 * 4096, "{order}");
        }
    }
    // The kernel reads ahead of each rank.
    let ahead = walk(2, 2, json!({"access": "mmap"}), |job| {
        job["rules"] = json!({"linux": {"read_ahead_bytes": 1 << 16}});
    });
    assert!(reads(&ahead.runs[0]).iter().all(|reads| *reads < 250));
}

#[test]
fn rows_that_take_faults_have_a_window_and_others_whole_epochs() {
    let of = |strategy: Value, after: u64, steps: u64| {
        let found = walk(1, 1, strategy, |job| {
            job["fault_window"] = json!({"after": after, "steps": steps});
        });
        (found.window, found.steps, found.samples)
    };
    let window = |after, steps| Some(Window { after, steps });
    for (strategy, after, steps, expected) in [
        (cursor(), 1, 2, (window(1, 2), 2, 400)),
        (cursor(), 0, 4, (window(0, 4), 4, 800)),
        (json!({"access": "mmap"}), 1, 2, (window(1, 2), 2, 400)),
        // It is no less than the epoch.
        (cursor(), 1, 4, (None, 5, 1000)),
        (cursor(), u64::MAX >> 25, 4, (None, 5, 1000)),
        (json!({"access": "pread"}), 1, 2, (None, 5, 1000)),
    ] {
        assert_eq!(of(strategy.clone(), after, steps), expected, "{strategy}");
    }
    let given = walk(1, 1, cursor(), |job| {
        job["fault_window"] = json!({"after": 1, "steps": 2});
        job["steps"] = 3.into();
    });
    assert_eq!((given.window, given.steps), (window(0, 3), 3));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn a_window_is_a_part_of_the_run_and_each_walk_reads_what_it_delivers(
        strategy in prop_oneof![Just(cursor()), Just(roots()), Just(handoff()), Just(json!({"access": "mmap"}))],
        (nodes, node_ranks) in prop_oneof![Just((1, 1)), Just((1, 4)), Just((2, 2)), Just((4, 1)), Just((5, 4))],
        after in 0..3_u64,
        steps in 1..3_u64,
        compute_us in prop_oneof![Just(0), Just(50), Just(50_000)],
        read_ahead in prop_oneof![Just(0), Just(1 << 16)],
    ) {
        let run = |window: bool| walk(nodes, node_ranks, strategy.clone(), |job| {
            if window {
                job["fault_window"] = json!({"after": after, "steps": steps});
            }
            job["rules"] = json!({"linux": {"read_ahead_bytes": read_ahead}});
            job["compute_us"] = compute_us.into();
            job["start_skew_us"] = 300.into();
            job["costs"]["message_ns"] = 20_000.into();
            job["costs"]["fault_ns"] = 700.into();
        });
        let (whole, part) = (&run(false).runs[0], &run(true).runs[0]);
        let ends = &whole.step_ends;
        let end = |steps: u64| steps.checked_sub(1).map_or(whole.startup_ns, |last| ends[last as usize]);
        prop_assert_eq!(part.wall_ns, end(after + steps) - end(after));
        prop_assert_eq!(part.step_ends.len() as u64, steps);
        prop_assert_eq!(part.step_ends.last(), Some(&(part.startup_ns + part.wall_ns)));
        for run in [whole, part] {
            for node in &run.nodes {
                prop_assert_eq!(node.compute_ns + node.wait_ns + node.skew_ns, run.wall_ns);
            }
        }
        for node in &whole.nodes {
            prop_assert!(node.traffic.read_bytes >= 4096 * 1000 / u64::from(nodes));
        }
        for (part, whole) in part.nodes.iter().zip(&whole.nodes) {
            prop_assert!(part.traffic.read_bytes <= whole.traffic.read_bytes);
        }
    }
}
