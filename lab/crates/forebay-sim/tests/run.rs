//! Programs under `forebay run`.

use forebay_model::Spec;
use forebay_sim::{Costs, LevelBytes, RunResult};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::jobs::simulate;

const MIB: u64 = 1 << 20;

/// Files, and the length of each.
const FILES: u64 = 4;
const FILE_BYTES: u64 = 8 * MIB;

/// Three epochs of a program that reads files of 8 MiB in their order, and opens them anew in each,
/// with a tier that holds all. A page cache of 12 MiB keeps nothing of an epoch for the next.
fn served(change: impl FnOnce(&mut Value)) -> RunResult {
    let spec = Spec { target_bytes_per_second: 2e8, latency_us: 200.0, metadata_us: 100.0, ..Spec::free() };
    let found = simulate(&[0], |job| {
        job["storage"] = serde_json::to_value(spec).unwrap();
        job["storage"]["cache_bytes"] = json!(12 * MIB);
        let (samples, sample_bytes) = (FILES * FILE_BYTES / 65536, 65536);
        job["dataset"]["uniform"] = json!({
            "samples": samples, "files": FILES, "stride_bytes": sample_bytes, "sample_bytes": sample_bytes,
        });
        job["batch_size"] = json!(16);
        job["epochs"] = json!(3);
        job["program"] = json!({"samples": {"access": "read", "reopens": true}});
        job["tiers"] = json!([{"storage": Spec::preset("local-nvme").unwrap(), "bytes": 64 * MIB}]);
        change(job);
    });
    found.unwrap().runs.remove(0)
}

fn levels(run: &RunResult) -> Vec<LevelBytes> {
    run.epochs.iter().map(|epoch| epoch.levels.clone()).collect()
}

/// Bytes that the source and the tier delivered in each epoch.
fn bytes(run: &RunResult) -> Vec<(u64, u64)> {
    levels(run).iter().map(|levels| (levels.source, levels.tiers.iter().sum())).collect()
}

const ALL: u64 = FILES * FILE_BYTES;

#[test]
fn the_second_epoch_reads_the_tier_alone_and_the_source_is_read_once() {
    // A program that computes gives the last copy the time to get to its device.
    let run = served(|job| job["compute_us"] = json!(5000));
    assert_eq!(bytes(&run), [(ALL, 0), (0, ALL), (0, ALL)]);
    let node = &run.nodes[0];
    assert_eq!((node.traffic.read_bytes, node.copied_bytes, node.skipped_bytes), (ALL, ALL, 0));
    assert_eq!(run.epochs[1].traffic.read_bytes + run.epochs[2].traffic.read_bytes, 0);
}

#[test]
fn what_is_opened_before_its_copy_is_whole_reads_the_source() {
    // Without computing, the last files are opened again while they are copied, or before the copy
    // has reached a slow device.
    for write_mb_s in [2000, 50, 1] {
        let run = served(|job| {
            job["tiers"][0]["storage"]["target_bytes_per_second"] = json!(write_mb_s * 1_000_000_u64);
            job["tiers"][0]["storage"]["write_back_bytes"] = json!(0);
        });
        let found = bytes(&run);
        for (number, (source, tier)) in found.iter().enumerate() {
            // A file is of the source, or of the tier, for as long as it is open.
            assert_eq!((source % FILE_BYTES, tier % FILE_BYTES, source + tier), (0, 0, ALL), "{number}");
        }
        assert_eq!(found[0], (ALL, 0));
        if write_mb_s == 1 {
            // Nothing gets to the device in the time of the job: no byte is served.
            assert_eq!((found[2], run.nodes[0].copied_bytes), ((ALL, 0), 0));
        }
    }
}

#[test]
fn a_file_that_stays_open_is_never_switched() {
    let opened_once = |run: Value| {
        served(|job| {
            job["program"] = json!({"samples": {"access": "read"}});
            job["run"] = run;
            job["compute_us"] = json!(5000);
        })
    };
    let found = opened_once(json!({}));
    assert_eq!(bytes(&found), [(ALL, 0); 3]);
    assert_eq!(found.nodes[0].copied_bytes, ALL);
    // Staged files are copies from the first open on.
    let staged = opened_once(json!({"stage": true}));
    assert_eq!(bytes(&staged), [(0, ALL); 3]);
    assert_eq!(staged.nodes[0].traffic.read_bytes, ALL);
    assert!(staged.startup_ns > 5 * (ALL as f64) as u64, "the source takes 5 ns per byte");
}

#[test]
fn a_tier_serves_the_files_that_it_has_room_for() {
    let run = served(|job| {
        job["tiers"][0]["bytes"] = json!(2 * FILE_BYTES + MIB);
        job["compute_us"] = json!(5000);
    });
    let half = ALL / 2;
    assert_eq!(bytes(&run), [(ALL, 0), (half, half), (half, half)]);
    // Nearer tiers are filled first.
    let run = served(|job| {
        job["tiers"] = json!([{"storage": null, "bytes": FILE_BYTES}, job["tiers"][0]]);
        job["compute_us"] = json!(5000);
    });
    assert_eq!(levels(&run)[2].tiers, [FILE_BYTES, 3 * FILE_BYTES]);
}

#[test]
fn what_leaves_the_page_cache_is_read_again_where_that_is_little() {
    // A file of 64 MiB that a rank reads in a random order, and a page cache that holds a quarter.
    let of = |fetch: &str| {
        served(|job| {
            job["dataset"]["uniform"] =
                json!({"samples": 1024, "stride_bytes": 65536, "sample_bytes": 65536});
            job["storage"]["cache_bytes"] = json!(16 * MIB);
            job["order"] = json!({"kind": "shuffle"});
            job["tiers"][0]["bytes"] = json!(128 * MIB);
            job["run"] = json!({"fetch": fetch});
        })
    };
    // The daemon may read 5 % of a file, and more than that is missing.
    for fetch in ["follow", "none"] {
        let found = of(fetch);
        assert_eq!((found.nodes[0].copied_bytes, levels(&found)[2].source), (0, 64 * MIB), "{fetch}");
    }
    let whole = of("whole");
    assert_eq!((whole.nodes[0].copied_bytes, levels(&whole)[2].source), (64 * MIB, 0));
    // Nearly all is read twice: by the program, and for the copy.
    assert!(whole.nodes[0].traffic.read_bytes > 100 * MIB, "{:?}", whole.nodes[0].traffic);
}

#[test]
fn opens_reach_the_source_unless_it_is_frozen() {
    let third = |run: Value| {
        let run = served(|job| {
            job["run"] = run;
            job["storage"]["metadata_us"] = json!(20_000);
            job["tiers"][0]["storage"] = Value::Null;
            job["compute_us"] = json!(5000);
        });
        assert_eq!(bytes(&run)[2], (0, ALL));
        run.epochs[2].end - run.epochs[1].end
    };
    let (opens, frozen) = (third(json!({})), third(json!({"frozen": true})));
    assert_eq!(opens - frozen, FILES * 20_000_000);
}

#[test]
fn cursors_read_the_copies_of_staged_files() {
    let of = |stage: bool| {
        served(|job| {
            job["dataset"] = json!({"lmdb": {"samples": 1000, "sample_bytes": 3000}});
            job["program"] = json!({"cursor": {"read_ahead": false}});
            (job["batch_size"], job["epochs"]) = (100.into(), 1.into());
            job["run"] = json!({"stage": stage});
        })
    };
    let (staged, plain) = (of(true), of(false));
    // Leaves, and the pages of all records up to the end of the last in each leaf.
    let [(0, all)] = bytes(&staged)[..] else { panic!("{:?}", bytes(&staged)) };
    assert!((1000 * 4096..=1007 * 4096).contains(&all), "{all}");
    assert_eq!(bytes(&plain), [(all, 0)]);
    assert!(staged.wall_ns < plain.wall_ns);
}

#[test]
fn each_node_has_its_own_copies() {
    let run = served(|job| {
        (job["nodes"], job["ranks"], job["batch_size"]) = (2.into(), 2.into(), 8.into());
        job["program"]["samples"]["reads_all"] = json!(true);
        job["compute_us"] = json!(5000);
    });
    assert_eq!(bytes(&run), [(2 * ALL, 0), (0, 2 * ALL), (0, 2 * ALL)]);
    for node in &run.nodes {
        assert_eq!((node.traffic.read_bytes, node.copied_bytes), (ALL, ALL));
    }
}

/// Time scale of the study that docs/results/run.md shows.
const SCALE: f64 = 40.0;

/// Bytes of its data.
const READ: u64 = 192 * MIB;

/// A measured job: a plain reader of four files, on an emulated `lustre-ssd`, with a drive as tier.
/// Reads go through a buffer of 8 KiB, as Python's do, and the caches hold nothing of an epoch for
/// the next.
fn reader(run: &Value, has_tier: bool) -> RunResult {
    let measured = Costs::default();
    // Processors do not become slower with the time scale.
    let costs = Costs {
        copy_bytes_per_second: measured.copy_bytes_per_second * SCALE,
        read_ns: measured.read_ns / SCALE,
        wake_ns: measured.wake_ns / SCALE,
        ..measured
    };
    served(|job| {
        job["storage"] = serde_json::to_value(Spec::preset("lustre-ssd").unwrap()).unwrap();
        job["storage"]["cache_bytes"] = json!(64 * MIB);
        // Of the emulator's mount: `read_ahead_mmap_bytes`.
        job["rules"] = json!({"linux": {"read_ahead_bytes": MIB}});
        job["costs"] = serde_json::to_value(&costs).unwrap();
        let samples = READ / 8192;
        job["dataset"]["uniform"] =
            json!({"samples": samples, "files": 4, "stride_bytes": 8192, "sample_bytes": 8192});
        job["batch_size"] = json!(samples / 4);
        job["tiers"][0]["bytes"] = json!(256 * MIB);
        job["tiers"][0]["storage"]["cache_bytes"] = json!(64 * MIB);
        if !has_tier {
            job["tiers"] = json!([]);
        }
        job["run"] = run.clone();
    })
}

/// Wall time of an epoch in the study \[s\].
fn seconds(run: &RunResult, epoch: usize) -> f64 {
    let begin = if epoch == 0 { 0 } else { run.epochs[epoch - 1].end };
    (run.epochs[epoch].end - begin) as f64 * 1e-9 * SCALE
}

#[test]
fn one_reader_reaches_two_fifths_of_lustre_ssd_and_reading_whole_files_does_not_help() {
    let alone = reader(&json!({}), false);
    // Two windows of 1 MiB are in flight, each for the latency and a transfer; requests of the
    // study: 52 of each file.
    assert_eq!(alone.epochs[0].traffic.reads, 4 * 52);
    // Measured in a trial: 118 to 126 MiB/s, of 291 that four threads with `O_DIRECT` reach and 298
    // that the link allows: 0.396 to 0.433.
    let link = Spec::preset("lustre-ssd").unwrap().link_bytes_per_second.unwrap() / SCALE;
    let share = READ as f64 / seconds(&alone, 0) / link;
    assert!((0.396..=0.433).contains(&share), "{share}");
    // The study measured 1.69 to 1.72 s, with what Python and the emulator take besides: within the
    // bar for validation, a tenth.
    assert!((seconds(&alone, 0) / 1.69 - 1.0).abs() < 0.1, "{}", seconds(&alone, 0));
    // One thread reads a file for its copy, as one reader does: measured 0.99 to 1.01 of the time.
    for run in [json!({}), json!({"fetch": "whole"})] {
        let ratio = seconds(&reader(&run, true), 0) / seconds(&alone, 0);
        assert!((0.96..=1.02).contains(&ratio), "{run}: {ratio}");
    }
}

#[test]
fn copies_are_read_as_fast_as_they_were_measured() {
    // The drive is slower than this source, so copies are whole after epoch 2 only; the study waits
    // for them after epoch 1. It measured 5.22 to 5.26 s when copies are read first.
    let run = reader(&json!({}), true);
    assert_eq!(bytes(&run), [(READ, 0), (READ, 0), (0, READ)]);
    assert!((seconds(&run, 2) / 5.22 - 1.0).abs() < 0.1, "{}", seconds(&run, 2));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn each_file_of_an_epoch_is_read_in_one_place_and_a_tier_takes_no_more_than_its_size(
        tier_mib in 1..48_u64,
        cache_mib in 2..64_u64,
        compute_us in prop_oneof![Just(0_u64), 0..5000_u64],
        fetch in prop::sample::select(vec!["follow", "whole", "none"]),
        frozen: bool,
        stage: bool,
        nodes in 1..3_u64,
    ) {
        let run = served(|job| {
            job["storage"]["cache_bytes"] = json!(cache_mib * MIB);
            job["tiers"][0]["bytes"] = json!(tier_mib * MIB);
            job["compute_us"] = json!(compute_us);
            job["run"] = json!({"fetch": fetch, "frozen": frozen, "stage": stage});
            (job["nodes"], job["ranks"], job["batch_size"]) = (nodes.into(), nodes.into(), (16 / nodes).into());
            job["program"]["samples"]["reads_all"] = json!(true);
        });
        for (source, tier) in bytes(&run) {
            prop_assert_eq!((source % FILE_BYTES, source + tier), (0, nodes * ALL));
        }
        for node in &run.nodes {
            prop_assert!(node.copied_bytes <= (tier_mib * MIB).min(ALL));
        }
        // What is served once is served from then on.
        let tiers: Vec<u64> = bytes(&run).iter().map(|(_, tier)| *tier).collect();
        prop_assert!(tiers.windows(2).all(|pair| pair[0] <= pair[1]), "{:?}", tiers);
    }
}
