//! Storage tiers: what each epoch reads from where.

use forebay_model::Spec;
use forebay_sim::{LevelBytes, Simulated};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::jobs::simulate;

const MIB: u64 = 1 << 20;

/// Chunks of the dataset.
const CHUNKS: u64 = 200;

/// A job of three epochs over 200 MiB in samples of 16 KiB, on a file system of 200 MB/s, with a
/// tier of so many chunks. That is several times what is read ahead.
fn tiered(chunks: u64, change: impl FnOnce(&mut Value)) -> Simulated {
    let spec = Spec { target_bytes_per_second: 2e8, latency_us: 200.0, ..Spec::free() };
    simulate(&[0], |job| {
        job["storage"] = serde_json::to_value(spec).unwrap();
        job["storage"]["cache_bytes"] = json!(128 * MIB);
        let sample_bytes = 16 << 10;
        job["dataset"]["uniform"] =
            json!({"samples": CHUNKS * 64, "stride_bytes": sample_bytes, "sample_bytes": sample_bytes});
        job["batch_size"] = json!(64);
        job["epochs"] = json!(3);
        if chunks > 0 {
            job["tiers"] = json!([{"storage": Spec::preset("local-nvme").unwrap(), "bytes": chunks * MIB}]);
        }
        change(job);
    })
    .unwrap()
}

fn levels(found: &Simulated) -> Vec<LevelBytes> {
    found.runs[0].epochs.iter().map(|epoch| epoch.levels.clone()).collect()
}

#[test]
fn a_tier_that_holds_all_is_all_that_is_read_from_the_second_epoch_on() {
    for order in [
        json!({"kind": "sequential"}),
        json!({"kind": "contiguous"}),
        json!({"kind": "shuffle"}),
        json!({"kind": "group", "samples": 64, "window": 2}),
    ] {
        let found = tiered(CHUNKS + 3, |job| job["order"] = order.clone());
        let [first, second, third] = &levels(&found)[..] else { panic!("three epochs") };
        assert!(first.source >= CHUNKS * MIB, "{order}: {first:?}");
        assert_eq!((second.source, third.source), (0, 0), "{order}");
        assert!(second.tiers[0] >= CHUNKS * MIB, "{order}: {second:?}");
        let node = &found.runs[0].nodes[0];
        assert_eq!((node.copied_bytes, node.skipped_bytes), (CHUNKS * MIB, 0), "{order}");
        let epochs = &found.runs[0].epochs;
        assert_eq!(epochs[2].traffic.read_bytes, 0, "{order}: {epochs:?}");
        // The tier is twelve times as fast.
        assert!(4 * (epochs[2].end - epochs[1].end) < epochs[0].end, "{order}: {epochs:?}");
    }
}

#[test]
fn without_eviction_a_tier_serves_what_it_holds_of_each_epoch() {
    // As in figure 16 of the paper on Monarch: 115 GiB of 200 GiB. Least recently used chunks would
    // all be evicted before an epoch in the order of the files comes to them.
    let held = 115;
    for nodes in [1, 2] {
        let found = tiered(held, |job| {
            (job["nodes"], job["ranks"], job["batch_size"]) =
                (nodes.into(), nodes.into(), (64 / nodes).into());
            job["order"] = json!({"kind": "contiguous"});
            job["node_memory_bytes"] = json!(64 * MIB);
        });
        for later in &levels(&found)[1..] {
            let expected = CHUNKS.saturating_sub(held * nodes) * MIB;
            assert_eq!((later.source, later.tiers[0]), (expected, CHUNKS * MIB - expected), "{nodes}");
        }
    }
}

#[test]
fn one_epoch_is_not_copied() {
    let found = tiered(CHUNKS, |job| job["epochs"] = json!(1));
    assert_eq!(found.runs[0].nodes[0].copied_bytes, 0);
    assert_eq!(levels(&found)[0].tiers, [0; 0]);
}

#[test]
fn a_larger_tier_never_slows_a_job() {
    let walls: Vec<u64> =
        [0, 25, 50, 100, 190, 200].map(|chunks| tiered(chunks, |_| ()).runs[0].wall_ns).into();
    for (less, more) in walls.iter().zip(&walls[1..]) {
        assert!(*more as f64 <= *less as f64 * 1.01, "{walls:?}");
    }
    assert!(2 * walls[5] < walls[0], "{walls:?}");
}

#[test]
fn copies_that_a_slow_tier_has_no_time_for_are_left_out() {
    let slow = || {
        tiered(CHUNKS, |job| {
            job["tiers"][0]["storage"]["target_bytes_per_second"] = json!(1e7);
            job["tiers"][0]["storage"]["write_back_bytes"] = json!(0);
            job["node_memory_bytes"] = json!(48 * MIB);
            job["order"] = json!({"kind": "group", "samples": 64, "window": 2});
        })
    };
    let node = slow().runs[0].nodes[0].clone();
    assert!(node.skipped_bytes > 0 && node.copied_bytes < CHUNKS * MIB, "{node:?}");
    assert_eq!(slow(), slow());
}

#[test]
fn memory_is_a_tier_that_takes_no_requests() {
    let of = |storage: Value| tiered(CHUNKS, |job| job["tiers"][0]["storage"] = storage);
    let (drive, memory) = (of(json!(Spec::preset("local-nvme").unwrap())), of(Value::Null));
    assert_eq!(levels(&memory)[2], levels(&drive)[2]);
    assert!(memory.runs[0].wall_ns <= drive.runs[0].wall_ns);
}

#[test]
fn chunks_go_to_the_nearest_tier_that_keeps_them() {
    let found = tiered(50, |job| {
        let second = json!({"storage": Spec::preset("local-nvme").unwrap(), "bytes": 100 * MIB});
        job["tiers"].as_array_mut().unwrap().push(second);
    });
    let last = &levels(&found)[2];
    assert_eq!((last.source, &last.tiers[..]), (50 * MIB, &[50 * MIB, 100 * MIB][..]));
}

#[test]
fn a_strategy_that_reads_past_tiers_has_none() {
    let of = |chunks| {
        tiered(chunks, |job| {
            job["dataset"] = json!({"lmdb": {"samples": 1000, "sample_bytes": 3000}});
            job["strategy"] = json!({"locate": "cursor", "access": "mmap"});
        })
    };
    assert_eq!(of(0), of(CHUNKS));
}

#[test]
fn each_node_copies_its_own_share_in_local_shuffle() {
    let of = |order: &str| {
        tiered(CHUNKS, |job| {
            (job["nodes"], job["ranks"], job["batch_size"]) = (4.into(), 4.into(), 16.into());
            job["order"] = json!({"kind": order, "steps": if order == "shuffle" { None } else { Some(8) }});
        })
    };
    let (local, shuffled) = (of("local-shuffle"), of("shuffle"));
    let of_epoch = |found: &Simulated, epoch: usize| levels(found)[epoch].clone();
    // Most samples of later epochs come from the tiers of the nodes that get them.
    let later = of_epoch(&local, 2);
    assert!(later.source < later.tiers[0] / 2, "{later:?}");
    // A shuffle gives nodes samples that others hold: epoch 1 reads pieces on each of them.
    assert!(of_epoch(&shuffled, 0).source > of_epoch(&local, 0).source, "{:?}", of_epoch(&local, 0));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn what_nodes_read_of_tiers_and_source_is_at_least_what_they_deliver(
        chunks in 1..50_u64,
        nodes in 1..4_u32,
        batch in 1..40_u64,
        sample_bytes in prop_oneof![1000..6000_u64, 60_000..200_000_u64],
        kind in prop::sample::select(vec!["sequential", "contiguous", "shuffle", "group", "local-shuffle"]),
        files in prop_oneof![Just(1_u64), Just(3)],
    ) {
        let samples = 600_u64;
        let found = tiered(chunks, |job| {
            job["dataset"]["uniform"] = json!({
                "samples": samples, "files": files, "sample_bytes": sample_bytes,
                "stride_bytes": sample_bytes + 40, "header_bytes": 100,
            });
            (job["nodes"], job["ranks"], job["batch_size"]) = (nodes.into(), nodes.into(), batch.into());
            job["order"] = json!({"kind": kind});
        });
        let run = &found.runs[0];
        prop_assert_eq!(run.step_ends.len() as u64, found.steps);
        prop_assert_eq!(run.epochs.len(), 3);
        for levels in levels(&found) {
            let read = levels.source + levels.tiers.iter().sum::<u64>();
            prop_assert!(read >= samples * sample_bytes, "{levels:?}");
        }
        let dataset = samples * (sample_bytes + 40) + files * 100;
        for node in &run.nodes {
            prop_assert!(node.copied_bytes <= dataset.min(chunks * MIB));
        }
    }
}
