//! What holds for every job.

use forebay_model::Spec;
use proptest::prelude::*;

use crate::jobs::simulate;

fn orders() -> impl Strategy<Value = serde_json::Value> {
    prop_oneof![
        Just(serde_json::json!({"kind": "sequential"})),
        Just(serde_json::json!({"kind": "contiguous"})),
        Just(serde_json::json!({"kind": "shuffle"})),
        Just(serde_json::json!({"kind": "group"})),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn a_job_ends_after_its_steps_and_reads_at_least_what_it_delivers(
        order in orders(),
        nodes in 1..5u32,
        ranks in 1..4u32,
        batch in 1..9u64,
        samples in 96..2000u64,
        sample_bytes in 1..9000u64,
        epochs in 1..3u64,
        seed in 0..4u64,
        compute_us in prop_oneof![Just(0), Just(50), Just(5000)],
        targets in prop_oneof![Just(1), Just(4)],
    ) {
        let spec = Spec {
            target_bytes_per_second: 1e9,
            latency_us: 100.0,
            seek_us: 1000.0,
            stripe_bytes: 1 << 16,
            stripe_count: targets,
            jitter: 0.1,
            ..Spec::free().with_targets(targets)
        };
        let found = simulate(&[seed, seed], |job| {
            job["storage"] = serde_json::to_value(&spec).unwrap();
            job["dataset"]["uniform"]["samples"] = samples.into();
            job["dataset"]["uniform"]["sample_bytes"] = sample_bytes.into();
            job["dataset"]["uniform"]["stride_bytes"] = (sample_bytes + 100).into();
            job["order"] = order;
            job["nodes"] = nodes.into();
            job["ranks"] = (nodes * ranks - u32::from(nodes > 1 && ranks > 1)).into();
            job["batch_size"] = batch.into();
            job["epochs"] = epochs.into();
            job["compute_us"] = compute_us.into();
            job["start_skew_us"] = 300.into();
        })
        .unwrap();
        prop_assert_eq!(&found.runs[0], &found.runs[1]);
        let run = &found.runs[0];
        prop_assert_eq!(run.step_ends.len() as u64, found.steps);
        prop_assert!(run.step_ends.is_sorted());
        prop_assert_eq!(found.steps, found.steps_per_epoch * epochs);
        for node in &run.nodes {
            // Everything that a node does adds up, from the meeting after the first batch on.
            prop_assert_eq!(node.compute_ns + node.wait_ns + node.skew_ns, run.wall_ns);
        }
        let read: u64 = run.nodes.iter().map(|node| node.read_bytes).sum();
        prop_assert!(read >= sample_bytes * samples.min(found.samples));
    }
}
