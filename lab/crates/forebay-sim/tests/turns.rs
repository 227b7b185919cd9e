//! Nodes that read in turns.

use forebay_model::Spec;
use forebay_sim::Simulated;
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::jobs::simulate;

/// Four nodes whose roots read a file in the order of its records, on one disk that seeks; each has
/// several segments.
fn turns(stagger: &Value, change: impl FnOnce(&mut Value)) -> Simulated {
    let spec = Spec {
        target_bytes_per_second: 1e9,
        latency_us: 100.0,
        seek_us: 4000.0,
        stripe_bytes: 1 << 20,
        ..Spec::free()
    };
    simulate(&[0], |job| {
        job["storage"] = serde_json::to_value(&spec).unwrap();
        let samples = 64_000;
        job["dataset"]["uniform"] = json!({"samples": samples, "stride_bytes": 4096, "sample_bytes": 4096});
        job["machine"] = json!({"cores": 4, "memory_bytes": 1_u64 << 34});
        job["strategy"] = json!({"access": "pread", "readers": "per_node", "stagger": stagger});
        (job["nodes"], job["ranks"], job["batch_size"]) = (4.into(), 8.into(), 100.into());
        job["costs"]["message_ns"] = 20_000.into();
        job["rules"] = json!({"linux": {"read_ahead_bytes": 1 << 20}});
        change(job);
    })
    .unwrap()
}

fn bytes(found: &Simulated) -> Vec<u64> {
    found.runs[0].nodes.iter().map(|node| node.read_bytes).collect()
}

fn seeks(found: &Simulated) -> u64 {
    found.runs[0].servers.iter().map(|server| server.seeks).sum()
}

#[test]
fn nodes_that_read_in_turns_read_the_same_with_fewer_seeks() {
    // What a node reads of a step is several requests.
    let several = |stagger: &Value| turns(stagger, |job| job["batch_size"] = 400.into());
    let (free, together, alone) = (several(&Value::Null), several(&json!(1)), several(&json!(4)));
    for found in [&together, &alone, &several(&json!("auto"))] {
        assert_eq!(bytes(found), bytes(&free));
    }
    // A single one reads at a time: the disk seeks once for each turn, not between requests.
    assert!(seeks(&alone) < seeks(&free), "{} and {} seeks", seeks(&alone), seeks(&free));
}

#[test]
fn a_token_takes_two_messages_but_none_on_the_node_that_grants_it_or_on_a_single_one() {
    let startup_ns = |nodes: u32| -> Vec<u64> {
        let found = turns(&json!(1), |job| {
            job["costs"]["message_ns"] = 1e9.into();
            (job["nodes"], job["ranks"]) = (nodes.into(), nodes.into());
        });
        found.runs[0].nodes.iter().map(|node| node.startup_ns).collect()
    };
    let second = 1_000_000_000;
    let found = startup_ns(4);
    assert!(found[0] < second);
    assert!(found[1..].iter().all(|startup| (2 * second..3 * second).contains(startup)), "{found:?}");
    assert!(startup_ns(1)[0] < second);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    #[test]
    fn each_node_gets_its_turn_whatever_the_groups(
        groups in prop_oneof![Just(json!("auto")), (1..6_u32).prop_map(|groups| json!(groups))],
        order in prop_oneof![Just("sequential"), Just("group"), Just("shuffle"), Just("contiguous")],
        readers in prop_oneof![Just(Value::Null), Just(json!("per_node")), Just(json!(3))],
        nodes in 2..5_u32,
        compute_us in prop_oneof![Just(0), Just(5000)],
        epochs in 1..3_u64,
    ) {
        let of = |stagger: &Value| turns(stagger, |job| {
            job["dataset"]["uniform"]["samples"] = 8000.into();
            job["strategy"]["readers"] = readers.clone();
            job["order"] = json!({"kind": order});
            (job["nodes"], job["ranks"]) = (nodes.into(), (2 * nodes).into());
            job["batch_size"] = 20.into();
            job["compute_us"] = compute_us.into();
            job["epochs"] = epochs.into();
        });
        let (free, found) = (of(&Value::Null), of(&groups));
        prop_assert_eq!(bytes(&found), bytes(&free));
        prop_assert_eq!(found.runs[0].step_ends.len() as u64, found.steps);
    }
}
