//! Orders that depend on what nodes hold, and orders of the user.

use forebay_sim::Simulated;
use serde_json::{Value, json};

use crate::jobs::simulate;

const MIB: u64 = 1 << 20;

/// Two epochs over 64 MiB in samples of 4 KiB, on four nodes with a rank each.
fn on_four_nodes(change: impl FnOnce(&mut Value)) -> Simulated {
    simulate(&[0], |job| {
        job["dataset"]["uniform"]["samples"] = json!(64 * 256);
        (job["nodes"], job["ranks"], job["batch_size"]) = (4.into(), 4.into(), 32.into());
        job["epochs"] = json!(2);
        change(job);
    })
    .unwrap()
}

#[test]
fn local_shuffle_reads_nearly_what_each_node_holds() {
    let found = on_four_nodes(|job| job["order"] = json!({"kind": "local-shuffle", "steps": 16}));
    let read = |found: &Simulated| found.runs[0].epochs[0].levels.source;
    assert!(read(&found) >= 64 * MIB);
    // A segment of a shuffle is spread over the file, one of a node's share over a quarter of it.
    let shuffled = on_four_nodes(|job| job["order"] = json!({"kind": "shuffle"}));
    assert!(read(&found) < read(&shuffled), "{} of {}", read(&found), read(&shuffled));
}

#[test]
fn opportunistic_loads_what_fits_and_streams_the_rest() {
    let of = |size: Value| {
        on_four_nodes(|job| {
            job["order"] = json!({"kind": "opportunistic", "unit": 64 << 10});
            job["store"] = json!({"size": size});
        })
    };
    let loaded = |found: &Simulated| found.runs[0].nodes.iter().map(|node| node.loaded_bytes).sum::<u64>();
    let all = of(json!("auto"));
    assert_eq!(loaded(&all), 64 * MIB);
    assert_eq!(all.runs[0].nodes.iter().map(|node| node.reads).sum::<u64>(), 0);
    assert_eq!(all.runs[0].epochs[1].traffic.read_bytes, 0);
    let half = of(json!(8 * MIB));
    assert!((24 * MIB..=32 * MIB).contains(&loaded(&half)), "{}", loaded(&half));
    for epoch in &half.runs[0].epochs {
        let streamed = 64 * MIB - loaded(&half);
        assert!(epoch.levels.source >= streamed * 9 / 10, "{:?}", epoch.levels);
        assert!(epoch.levels.source <= streamed * 13 / 10, "{:?}", epoch.levels);
    }
    assert!(of(json!(8 * MIB)) == half);
}

#[test]
fn opportunistic_without_a_store_is_refused() {
    let error = simulate(&[0], |job| job["order"] = json!({"kind": "opportunistic"})).unwrap_err();
    assert!(error.to_string().contains("it needs a store"), "{error}");
}

#[test]
fn given_ids_are_read_in_their_order() {
    let of = |ids: Vec<Vec<u64>>| {
        simulate(&[0], |job| {
            job["order"] = json!({"kind": "given"});
            job["given"] = json!(ids);
        })
    };
    let forward: Vec<u64> = (0..64).collect();
    let found = of(vec![forward.clone()]).unwrap();
    assert_eq!((found.steps, found.runs[0].nodes[0].read_bytes), (8, 64 * 4096));
    for (ids, message) in [
        (vec![], "not modelled: the order given, without ids"),
        (vec![vec![0; 63]], "given: expected 64 ids, found 63"),
        (vec![(1..65).collect()], "given: expected ids below 64, found 64"),
    ] {
        assert_eq!(of(ids).unwrap_err().to_string(), message);
    }
}
