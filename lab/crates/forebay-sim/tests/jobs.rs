//! Jobs that are small enough to be computed by hand, and jobs that are refused.

use forebay_model::Spec;
use forebay_sim::{Costs, Dataset, Job, Machine, Uniform, simulate};
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
        wake_ns: 0.0,
        message_ns: 0.0,
    }
}

/// A job of one node, one rank: 64 samples of 4096 bytes in one file, 1 ns per byte.
pub fn job(change: impl FnOnce(&mut Value)) -> Job {
    let spec = Spec { target_bytes_per_second: 1e9, latency_us: 100.0, ..Spec::free() };
    let dataset = Uniform {
        samples: 64,
        files: 1,
        header_bytes: 0,
        stride_bytes: 4096,
        head_bytes: 0,
        sample_bytes: 4096,
    };
    let mut value = json!({
        "storage": spec,
        "rules": {"linux": {"read_ahead_bytes": 0}},
        "dataset": Dataset::Uniform(dataset),
        "nodes": 1,
        "ranks": 1,
        "machine": Machine { cores: 4, memory_bytes: 1 << 30, is_shared: false },
        "batch_size": 8,
        "order": {"kind": "sequential"},
        "costs": free_costs(),
    });
    change(&mut value);
    serde_json::from_value(value).expect("a job")
}

#[test]
fn one_node_reads_its_file_ahead_of_a_script_that_computes() {
    let compute_us = 500.0;
    let found = simulate(&job(|job| job["compute_us"] = compute_us.into()), &[0]).unwrap();
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
    let found = simulate(
        &job(|job| {
            job["dataset"]["uniform"] =
                json!({"samples": 16, "stride_bytes": 1 << 20, "sample_bytes": 1 << 20});
            job["order"] = json!({"kind": "shuffle"});
            job["batch_size"] = 4.into();
        }),
        &[0],
    )
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

#[test]
fn nodes_wait_for_the_slowest_one() {
    let found = simulate(
        &job(|job| {
            job["nodes"] = 2.into();
            job["ranks"] = 2.into();
            job["batch_size"] = 4.into();
            job["compute_us"] = 500.into();
            job["compute_jitter"] = 1.0.into();
        }),
        &[3],
    )
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
        ("strategy", json!({"locate": "cursor", "access": "mmap"}), "not modelled: a cursor"),
        ("strategy", json!({"access": "mmap"}), "not modelled: readers that copy from mappings"),
        ("strategy", json!({"locate": "scan"}), "not modelled: an index that is built by a walk"),
        ("strategy", json!({"stagger": 2}), "not modelled: nodes that read in turns"),
        ("order", json!({"kind": "local-shuffle"}), "not modelled: the order local-shuffle"),
    ] {
        let error = simulate(&job(|job| job[key] = value.clone()), &[0]).unwrap_err().to_string();
        assert!(error.contains(message), "{key}: {error}");
    }
}
