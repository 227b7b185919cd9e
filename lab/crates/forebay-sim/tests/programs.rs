//! Programs that read for themselves, in small jobs.

use forebay_sim::{RunResult, Simulated};
use serde_json::{Value, json};

use crate::jobs::simulate;

#[test]
fn a_program_reads_when_it_is_asked_and_passes_the_records_of_all_ranks() {
    let program = |order: &str, read_ahead: bool| {
        simulate(&[0], |job| {
            job["dataset"] = json!({"lmdb": {"samples": 1000, "sample_bytes": 3000}});
            job["strategy"] = json!({"locate": "cursor", "access": "mmap"});
            job["program"] = json!({"cursor": {"read_ahead": read_ahead}});
            job["rules"] = json!({"linux": {"read_ahead_bytes": 1 << 20}});
            job["order"] = json!({"kind": order});
            (job["nodes"], job["ranks"], job["batch_size"]) = (2.into(), 2.into(), 100.into());
            job["compute_us"] = 1000.into();
        })
        .unwrap()
    };
    let found = program("sequential", false);
    for node in &found.runs[0].nodes {
        // Without read-ahead: all leaves, and all records, each a fault.
        assert_eq!(node.traffic.reads, 7 + 1000);
        // Nothing is read while the script computes: all reads but those of the first step show.
        assert!(node.startup_ns > 200 * 104_096);
        assert!(node.wait_ns + node.skew_ns >= 4 * 200 * 104_096, "{node:?}");
    }
    // A region for each rank, and all that is before it.
    let regions = program("contiguous", false);
    let reads: Vec<u64> = regions.runs[0].nodes.iter().map(|node| node.traffic.reads).collect();
    assert_eq!(reads, [4 + 500, 7 + 1000]);
    // With read-ahead there are fewer faults, and more bytes.
    let ahead = program("sequential", true);
    for (with, without) in ahead.runs[0].nodes.iter().zip(&found.runs[0].nodes) {
        assert!(with.traffic.reads < without.traffic.reads);
        assert!(with.traffic.read_bytes >= without.traffic.read_bytes);
    }
}

#[test]
fn cursors_of_a_node_that_pass_the_same_records_read_as_one_does() {
    let traffic = |ranks: u64| {
        let found = simulate(&[0], |job| {
            job["dataset"] = json!({"lmdb": {"samples": 1000, "sample_bytes": 3000}});
            job["program"] = json!({"cursor": {"read_ahead": true}});
            job["rules"] = json!({"linux": {"read_ahead_bytes": 1 << 17}});
            (job["ranks"], job["batch_size"]) = (ranks.into(), (200 / ranks).into());
        });
        let run = &found.unwrap().runs[0];
        (run.nodes[0].traffic, run.startup_ns + run.wall_ns, run.servers[0].pieces)
    };
    assert_eq!(traffic(4), traffic(1));
}

/// Time of a read of a sample: its bytes at 1 ns each, and the latency \[ns\].
const READ_NS: u64 = 4096 + 100_000;

/// 64 samples in steps of 8, read one by one.
fn samples(program: &Value, change: impl FnOnce(&mut Value)) -> Simulated {
    simulate(&[0], |job| {
        job["program"] = json!({"samples": program});
        change(job);
    })
    .unwrap()
}

fn one(found: &Simulated) -> &RunResult {
    &found.runs[0]
}

#[test]
fn a_script_that_reads_its_samples_waits_for_each_of_them() {
    let found = samples(&json!({"access": "read"}), |job| job["compute_us"] = 300.into());
    let run = one(&found);
    assert_eq!((run.startup_ns, run.wall_ns), (8 * READ_NS, 7 * 8 * READ_NS + 8 * 300_000));
    assert_eq!((run.nodes[0].reads, run.nodes[0].read_bytes), (64, 64 * 4096));
    // Its own time is work of a processor.
    let slow = samples(&json!({"access": "read", "sample_ns": 1e6}), |_| ());
    assert_eq!(one(&slow).startup_ns, 8 * (READ_NS + 1_000_000));
    // A shuffled order reads each sample once, too.
    let shuffled = samples(&json!({"access": "read"}), |job| job["order"] = json!({"kind": "shuffle"}));
    assert_eq!(one(&shuffled).nodes[0].traffic.read_bytes, 64 * 4096);
    assert_eq!(one(&shuffled).servers[0].pieces, 64);
}

#[test]
fn a_page_cache_is_memory_of_the_node() {
    let read = |memory_mib: u64| {
        let found = samples(&json!({"access": "read"}), |job| {
            job["dataset"]["uniform"] =
                json!({"samples": 1024, "stride_bytes": 65536, "sample_bytes": 65536});
            job["machine"]["memory_bytes"] = (memory_mib << 20).into();
            job["epochs"] = 2.into();
        });
        one(&found).nodes[0].traffic.read_bytes >> 20
    };
    // The least recently used half is evicted before its turn comes again.
    assert_eq!((read(128), read(32)), (64, 128));
}

#[test]
fn workers_read_ahead_of_the_script() {
    for (workers, ahead) in [(1, 1), (2, 1), (1, 2), (2, 3)] {
        let program = json!({"access": "read", "workers": workers, "ahead": ahead});
        let found = samples(&program, |job| job["compute_us"] = 2000.into());
        // A step takes longer to compute than to read.
        assert_eq!(one(&found).nodes[0].wait_ns, 0, "{program}");
        assert_eq!(one(&found).nodes[0].traffic.read_bytes, 64 * 4096);
        // Without computing it takes as long as the workers need, who share the server.
        let busy = samples(&program, |_| ());
        let end = one(&busy).startup_ns + one(&busy).wall_ns;
        assert!(end >= 64 * READ_NS / workers && end <= 64 * READ_NS / workers + 64 * 4096, "{program}");
    }
}

#[test]
fn a_program_opens_a_file_for_each_sample_where_it_says_so() {
    let reads = |opens: bool| {
        let program = json!({"access": "read", "opens": opens});
        let found = samples(&program, |job| {
            job["storage"]["metadata_us"] = 50.into();
            job["dataset"]["uniform"]["files"] = 64.into();
        });
        one(&found).startup_ns
    };
    assert_eq!(reads(false), 8 * READ_NS);
    assert_eq!(reads(true), 8 * (READ_NS + 50_000));
}

#[test]
fn ranks_that_read_all_records_each_read_the_files_whole() {
    let found = samples(&json!({"access": "read", "reads_all": true}), |job| {
        (job["nodes"], job["ranks"], job["batch_size"]) = (2.into(), 2.into(), 4.into());
        job["costs"]["pass_ns"] = 10.0.into();
    });
    for node in &one(&found).nodes {
        // A step of 8 records is one read, since it is shorter than the buffer.
        assert_eq!((node.reads, node.read_bytes, node.traffic.read_bytes), (8, 64 * 4096, 64 * 4096));
        // Two nodes share the server.
        let least = 8 * 4096 + 100_000 + 8 * 10;
        assert!((least..=least + 8 * 4096).contains(&node.startup_ns), "{node:?}");
    }
}

#[test]
fn keys_lead_to_a_leaf_and_to_a_record_and_are_listed_before() {
    let job = |lists_keys: bool| {
        samples(&json!({"access": "mmap_random", "lists_keys": lists_keys}), |job| {
            job["dataset"] = json!({"lmdb": {"samples": 1000, "sample_bytes": 3000}});
            (job["order"], job["batch_size"]) = (json!({"kind": "shuffle"}), 100.into());
        })
    };
    let (plain, listed) = (job(false), job(true));
    // Seven leaves and each record, each once.
    for found in [&plain, &listed] {
        assert_eq!(one(found).nodes[0].traffic.reads, 7 + 1000);
        let end = *one(found).step_ends.last().unwrap();
        assert_eq!(end, 1007 * READ_NS);
    }
    // All leaves come before the first batch.
    assert_eq!(one(&listed).startup_ns, 107 * READ_NS);
}

#[test]
fn a_program_that_is_not_possible_is_refused() {
    for (program, message) in [
        (json!({"access": "read", "workers": 2000}), "program.workers: expected at most 1024, found 2000"),
        (json!({"access": "read", "ahead": 0}), "program.ahead: expected 1 to 1024, found 0"),
        (json!({"access": "read", "sample_ns": -1.0}), "program.sample_ns: expected 0 to 1e12, found -1"),
        (json!({"access": "mmap", "lists_keys": true}), "a cursor through a file whose tree is not computed"),
    ] {
        let error = simulate(&[0], |job| job["program"] = json!({"samples": program})).unwrap_err();
        assert!(error.to_string().contains(message), "{error}");
    }
}
