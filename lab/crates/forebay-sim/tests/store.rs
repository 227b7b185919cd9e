//! The in-memory store: loading shares, and requests between nodes.

use forebay_sim::Simulated;
use serde_json::{Value, json};

use crate::jobs::simulate;

const MIB: u64 = 1 << 20;

/// Two epochs over 64 MiB in samples of 4 KiB, on nodes with a rank each.
fn stored(nodes: u64, change: impl FnOnce(&mut Value)) -> Simulated {
    simulate(&[0], |job| {
        job["storage"]["link_bytes_per_second"] = json!(1e9);
        job["dataset"]["uniform"]["samples"] = json!(64 * 256);
        (job["nodes"], job["ranks"], job["batch_size"]) = (nodes.into(), nodes.into(), (1024 / nodes).into());
        job["order"] = json!({"kind": "shuffle"});
        job["epochs"] = json!(2);
        job["store"] = json!({});
        change(job);
    })
    .unwrap()
}

#[test]
fn each_node_reads_its_share_once_and_no_epoch_reads_the_file_system() {
    for nodes in [1, 2, 4] {
        let found = stored(nodes, |_| ());
        let run = &found.runs[0];
        let loaded: u64 = run.nodes.iter().map(|node| node.loaded_bytes).sum();
        assert_eq!(loaded, 64 * MIB);
        let read: u64 = run.nodes.iter().map(|node| node.traffic.read_bytes).sum();
        assert_eq!(read, 64 * MIB, "{nodes} nodes");
        assert_eq!(run.epochs[1].traffic.read_bytes, 0);
        for epoch in &run.epochs {
            let levels = &epoch.levels;
            assert_eq!((levels.source, levels.share + levels.peers), (0, 64 * MIB), "{levels:?}");
            // A shuffle gives a node the samples of all nodes alike.
            let expected = 64 * MIB * (nodes - 1) / nodes;
            assert!(levels.peers.abs_diff(expected) <= 4 * MIB, "{nodes} nodes: {levels:?}");
        }
    }
}

#[test]
fn disks_seek_once_for_chunks_that_follow_each_other_in_a_share() {
    let seeks = |order: &str| {
        let found = stored(4, |job| {
            job["dataset"]["uniform"]["samples"] = json!(1024 * 256);
            (job["storage"]["targets"], job["storage"]["stripe_count"]) = (json!(1), json!(1));
            job["storage"]["seek_us"] = json!(8000);
            job["rules"] = json!("lustre");
            (job["order"], job["epochs"]) = (json!({"kind": order}), json!(1));
        });
        let run = &found.runs[0];
        assert_eq!(run.nodes.iter().map(|node| node.loaded_bytes).sum::<u64>(), 1024 * MIB);
        run.servers.iter().map(|server| server.seeks).sum::<u64>()
    };
    // Units are of 16 MiB; in `local-shuffle`, which depends on them, of 1 MiB.
    let (long, short) = (seeks("shuffle"), seeks("local-shuffle"));
    assert!(long <= 1024 / 8 && short > 4 * long, "{long} and {short} seeks");
}

#[test]
fn what_fits_into_no_share_is_read_from_the_files() {
    let found = stored(2, |job| {
        job["store"] = json!({"size": 16 * MIB});
        job["storage"]["cache_bytes"] = json!(MIB);
    });
    let run = &found.runs[0];
    assert_eq!(run.nodes.iter().map(|node| node.loaded_bytes).sum::<u64>(), 32 * MIB);
    for epoch in &run.epochs {
        assert!(epoch.levels.source >= 32 * MIB, "{:?}", epoch.levels);
        assert_eq!(epoch.levels.share + epoch.levels.peers, 32 * MIB);
    }
}

#[test]
fn links_and_server_threads_bound_what_nodes_fetch() {
    let last_ns = |found: &Simulated| {
        let epochs = &found.runs[0].epochs;
        epochs[1].end - epochs[0].end
    };
    // Each of two nodes gets half of its 32 MiB from the other, at 1 ns per byte.
    let by_links = last_ns(&stored(2, |_| ()));
    let expected = 16 * MIB;
    assert!((expected * 9 / 10..expected * 13 / 10).contains(&by_links), "{by_links} ns");
    let by_threads = last_ns(&stored(2, |job| {
        job["storage"]["link_bytes_per_second"] = Value::Null;
        job["costs"]["serve_bytes_per_second"] = json!(1e8);
    }));
    // Serving and receiving take 10 ns per byte each, and overlap.
    assert!(by_threads > 9 * expected, "{by_threads} ns");
    let faster = last_ns(&stored(2, |job| job["storage"]["link_bytes_per_second"] = json!(4e9)));
    assert!(2 * faster < by_links, "{faster} ns");
}

#[test]
fn a_store_runs_in_each_order() {
    for order in ["sequential", "contiguous", "shuffle", "group", "local-shuffle"] {
        let found = stored(2, |job| job["order"] = json!({"kind": order}));
        let levels = &found.runs[0].epochs[1].levels;
        assert_eq!((levels.source, levels.share + levels.peers), (0, 64 * MIB), "{order}");
        if order == "local-shuffle" {
            assert!(levels.peers < levels.share / 4, "{levels:?}");
        }
    }
}

#[test]
fn a_share_that_is_larger_than_memory_is_refused() {
    let error = simulate(&[0], |job| {
        job["dataset"]["uniform"]["samples"] = json!(2 << 20);
        job["store"] = json!({"size": 4_u64 << 30});
    })
    .unwrap_err()
    .to_string();
    assert!(error.starts_with("store.size: expected at most 1073741824 bytes"), "{error}");
}
