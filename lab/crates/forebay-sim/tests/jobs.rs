//! Jobs that are small enough to be computed by hand, and jobs that are refused.

use forebay_model::Spec;
use forebay_sim::{Costs, Dataset, Error, Job, Machine, Places, Simulated};
use serde_json::{Value, json};

/// Processors that take no time.
pub fn free_costs() -> Costs {
    Costs {
        machine: "none".to_owned(),
        locate_ns: 0.0,
        plan_ns: 0.0,
        gather_ns: 0.0,
        copy_bytes_per_second: 1e18,
        read_ns: 0.0,
        request_ns: 0.0,
        fault_ns: 0.0,
        pass_ns: 0.0,
        wake_ns: 0.0,
        message_ns: 0.0,
        serve_ns: 0.0,
        serve_bytes_per_second: 1e18,
        start_up_ns: 0.0,
    }
}

/// Simulates a job of one node, one rank: 64 samples of 4096 bytes in one file, 1 ns per byte.
pub fn simulate(seeds: &[u64], change: impl FnOnce(&mut Value)) -> Result<Simulated, Error> {
    let spec = Spec { target_bytes_per_second: 1e9, latency_us: 100.0, ..Spec::free() };
    let mut value = json!({
        "storage": spec,
        "rules": {"linux": {"read_ahead_bytes": 0}},
        "dataset": {"uniform": {"samples": 64, "stride_bytes": 4096, "sample_bytes": 4096}},
        "nodes": 1,
        "ranks": 1,
        "machine": Machine { cores: 4, memory_bytes: 1 << 30, is_shared: false },
        "batch_size": 8,
        "order": {"kind": "sequential"},
        "costs": free_costs(),
    });
    change(&mut value);
    let dataset = value.as_object_mut().and_then(|value| value.remove("dataset")).expect("a dataset");
    let dataset: Dataset = serde_json::from_value(dataset).expect("a dataset");
    let job: Job = serde_json::from_value(value).expect("a job");
    forebay_sim::simulate(&job, &Places::of(&dataset)?, seeds)
}

#[test]
fn one_node_reads_its_file_ahead_of_a_script_that_computes() {
    let compute_us = 500.0;
    let found = simulate(&[0], |job| job["compute_us"] = compute_us.into()).unwrap();
    assert_eq!((found.steps, found.steps_per_epoch, found.samples), (8, 8, 64));
    let run = &found.runs[0];
    // One request has all the data: 256 KiB at 1 ns per byte, and the latency.
    let arrival = 64 * 4096 + 100_000;
    assert_eq!((run.startup_ns, run.wall_ns), (arrival, 8 * 500_000));
    let node = &run.nodes[0];
    assert_eq!((node.startup_ns, node.wait_ns, node.compute_ns, node.skew_ns), (arrival, 0, 4_000_000, 0));
    assert_eq!((node.reads, node.read_bytes), (1, 64 * 4096));
    let server = &run.servers[0];
    assert_eq!((server.pieces, server.bytes, server.busy_ns), (1, 64 * 4096, 64 * 4096));
    let ends: Vec<u64> = (1..=8).map(|step| arrival + step * 500_000).collect();
    assert_eq!(run.step_ends, ends);
}

#[test]
fn ranks_read_large_samples_themselves_and_are_read_ahead_for() {
    let found = simulate(&[0], |job| {
        job["dataset"]["uniform"] = json!({"samples": 16, "stride_bytes": 1 << 20, "sample_bytes": 1 << 20});
        job["order"] = json!({"kind": "shuffle"});
        job["batch_size"] = 4.into();
    })
    .unwrap();
    let run = &found.runs[0];
    let node = &run.nodes[0];
    // Each sample is one request, straight to its batch; nothing is read twice.
    assert_eq!((node.reads, node.read_bytes), (16, 16 << 20));
    assert_eq!((node.traffic.reads, node.traffic.read_bytes), (16, 16 << 20));
    assert_eq!(run.servers[0].busy_ns, 16 << 20);
    // The requests of a step are sent together, and other steps follow: the server never waits.
    assert_eq!(run.step_ends.last(), Some(&((16 << 20) + 100_000)));
}

/// A job on an LMDB file of 1000 records, a page each, whose ranks walk to their samples: one on
/// each node.
fn walk(nodes: u32, strategy: Value) -> Simulated {
    crate::walks::walk(nodes, 1, strategy, |_| ())
}

#[test]
fn a_cursor_touches_each_leaf_that_it_passes_and_the_records_of_its_ranks() {
    for (strategy, has_readers) in [
        (json!({"locate": "cursor", "access": "mmap"}), false),
        (json!({"locate": "cursor", "access": "mmap", "readers": "per_node"}), true),
    ] {
        // Without read-ahead each page is one fault.
        let alone = walk(1, strategy.clone());
        let pages = alone.runs[0].nodes[0].traffic.reads;
        let leaves = pages - 1000;
        // A node of 26 bytes for each record, in what a page has besides its header.
        assert_eq!(leaves, 1000_u64.div_ceil((4096 - 16) / 26));
        assert_eq!(alone.runs[0].nodes[0].traffic.read_bytes, pages * 4096);
        assert_eq!(alone.runs[0].nodes[0].reads > 0, has_readers);
        // Each fault waits for the one before: 4096 ns and the latency.
        let end = *alone.runs[0].step_ends.last().unwrap();
        assert_eq!(end, pages * (4096 + 100_000), "{strategy}");
        // On several nodes each passes all leaves, but for the last ones.
        for node in &walk(4, strategy).runs[0].nodes {
            assert!((250 + leaves - 2..=250 + leaves).contains(&node.traffic.reads), "{node:?}");
        }
    }
}

#[test]
fn a_scan_touches_each_leaf_once_before_anything_else() {
    let pread = walk(2, json!({"access": "pread"}));
    let found = walk(2, json!({"locate": "scan", "access": "pread"}));
    let [first, second] = &found.runs[0].nodes[..] else { unreachable!("two nodes") };
    // The leaves of one branch are asked for together: 7 pages, 4096 ns each, and the latency.
    let (scan_ns, before) = (7 * 4096 + 100_000, &pread.runs[0]);
    // Leaves between records are read with these: what the scan has read is not read again.
    let least = before.startup_ns + scan_ns - 7 * 4096;
    assert!((least..=least + 7 * 4096).contains(&found.runs[0].startup_ns));
    assert!(first.startup_ns > scan_ns && second.startup_ns > scan_ns);
    let more = first.traffic.read_bytes - before.nodes[0].traffic.read_bytes;
    assert!((4096..=7 * 4096).contains(&more), "{more} bytes");
    assert_eq!(second.traffic, before.nodes[1].traffic);
    // Readers count their own requests only.
    assert_eq!(first.reads, before.nodes[0].reads);
}

#[test]
fn nodes_wait_for_the_slowest_one() {
    let found = simulate(&[3], |job| {
        job["nodes"] = 2.into();
        job["ranks"] = 2.into();
        job["batch_size"] = 4.into();
        job["compute_us"] = 500.into();
        job["compute_jitter"] = 1.0.into();
    })
    .unwrap();
    let run = &found.runs[0];
    let computed: Vec<u64> = run.nodes.iter().map(|node| node.compute_ns).collect();
    let slowest = *computed.iter().max().unwrap();
    assert!(computed[0] != computed[1] && slowest > 8 * 500_000);
    assert_eq!(run.wall_ns, slowest);
    for node in &run.nodes {
        assert_eq!(node.compute_ns + node.skew_ns + node.wait_ns, slowest);
    }
}

#[test]
fn a_job_that_is_not_possible_is_refused_with_what_is() {
    for (key, value, message) in [
        ("ranks", json!(0), "ranks: expected 1 to 16777216, found 0"),
        ("nodes", json!(2), "nodes: expected 1 to 1, found 2"),
        ("batch_size", json!(0), "batch_size: expected 1 to 4294967296, found 0"),
        ("steps", json!(9), "steps: expected at most 8, as an epoch has, found 9"),
        ("compute_us", json!(-1.0), "compute_us: expected 0 to 3.6e9, found -1"),
        ("node_memory_bytes", json!(4096), "node_memory: expected at least"),
        ("node_memory_bytes", json!(1u64 << 40), "node_memory_bytes: expected at most 1073741824"),
        ("order", json!({"kind": "group", "lanes": 3, "samples": 0}), "order"),
        (
            "strategy",
            json!({"locate": "cursor", "access": "mmap"}),
            "a cursor through a file whose tree is not computed",
        ),
        (
            "strategy",
            json!({"locate": "handoff", "access": "mmap"}),
            "a cursor through a file whose tree is not computed",
        ),
        ("fault_window", json!({"after": 0, "steps": 0}), "fault_window.steps: expected 1 to"),
        (
            "strategy",
            json!({"locate": "scan"}),
            "not modelled: a walk through a file whose tree is not computed",
        ),
        ("tiers", json!([{"bytes": 4096}]), "tiers.bytes: expected 1048576 to 2^60, found 4096"),
        ("tiers", json!(vec![json!({"bytes": 1 << 20}); 8]), "tiers: expected at most 7, found 8"),
    ] {
        let error = simulate(&[0], |job| job[key] = value.clone()).unwrap_err().to_string();
        assert!(error.contains(message), "{key}: {error}");
    }
}

#[test]
fn ranks_of_a_shared_machine_make_their_loaders_by_turns() {
    let start = |is_shared: bool, cores: u32| {
        simulate(&[0], |job| {
            (job["nodes"], job["ranks"], job["batch_size"]) = (4.into(), 4.into(), 2.into());
            job["machine"] =
                serde_json::to_value(Machine { cores, memory_bytes: 1 << 30, is_shared }).unwrap();
            job["costs"]["start_up_ns"] = 1_000_000.into();
        })
        .unwrap()
        .runs[0]
            .startup_ns
    };
    let alone = start(false, 2);
    assert!(alone > 1_000_000);
    // Four loaders on two cores take two turns, of which the first overlaps with nothing.
    assert!(start(true, 2) > alone);
    assert_eq!(start(true, 4), alone);
}
