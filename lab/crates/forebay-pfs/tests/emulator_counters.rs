//! Counters equal the reads, mounts have their own caches, and queues are as deep as programs make
//! them.

#![allow(clippy::disallowed_methods, reason = "a test may panic where there are no threads")]

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;

use crate::emulator_support::{Aligned, Dice, KIB, MIB, Room, direct, latency, node, number, room};
use forebay_model::Spec;
use forebay_pfs::Emulator;
use memmap2::Mmap;
use serde_json::Value;

#[test]
fn direct_reads_are_counted_exactly() {
    let Some(room) = room() else { return };
    room.write("file", 8 * MIB);
    let spec =
        Spec { stripe_bytes: 65536, stripe_count: 3, latency_us: 50.0, ..Spec::free().with_targets(3) };
    let mut configuration = room.configuration(1, spec);
    configuration.events = Some(room.at("events"));
    let emulator = forebay_pfs::Emulator::start(&configuration).unwrap();
    let file = direct(&room.on(0, "file"));
    emulator.reset();
    let mut dice = Dice::new(3);
    let mut buffer = Aligned::new(MIB);
    let (mut bytes, mut end, mut sequential) = (0, 0, 0);
    let mut sizes = BTreeMap::new();
    let mut expected = Vec::new();
    for turn in 0..200 {
        let wanted = (dice.below(64) + 1) * 4096;
        let offset = if turn % 4 == 0 { end } else { dice.below(1700) * 4096 };
        let offset = if offset + wanted > 8 * MIB as u64 { 0 } else { offset };
        file.read_exact_at(buffer.bytes(wanted as usize), offset).unwrap();
        bytes += wanted;
        sequential += u64::from(offset == end);
        end = offset + wanted;
        *sizes.entry(wanted.to_string()).or_insert(0) += 1;
        expected.push((offset, wanted));
    }
    let stats = emulator.stats();
    let found = node(&stats, 0);
    assert_eq!(number(&found["reads"]), 200);
    assert_eq!(number(&found["read_bytes"]), bytes);
    assert_eq!(number(&found["sequential_reads"]), sequential);
    assert_eq!(found["sizes"], serde_json::to_value(&sizes).unwrap());
    let over_servers = |key: &str| -> u64 {
        stats["servers"].as_array().unwrap().iter().map(|server| number(&server[key])).sum()
    };
    assert_eq!(over_servers("read_bytes"), bytes);
    assert!(over_servers("reads") >= 200);
    let files = stats["files"].as_array().unwrap();
    assert_eq!(
        (files.len(), &files[0]["file"], number(&files[0]["read_bytes"])),
        (1, &Value::from("file"), bytes)
    );
    assert!(stats["lateness_us"]["max"].is_number());
    let share = stats["lateness_share"].as_f64().expect("a number");
    assert!((0.0..1.0).contains(&share));
    assert_eq!(stats["missed_deadlines"], share > 0.05);

    // The same, read by read.
    let (events, next) = emulator.events(0);
    assert_eq!((events.len(), next), (200, 200));
    for (event, (offset, wanted)) in events.iter().zip(&expected) {
        assert_eq!(
            (&event[2], number(&event[3]), number(&event[4])),
            (&Value::from("file"), *offset, *wanted)
        );
        assert_eq!(event[5], 50e-6);
    }
    assert!(events.is_sorted_by(|one, other| one[0].as_f64() <= other[0].as_f64()));
    assert_eq!(emulator.events(150).0.len(), 50);
    emulator.end().unwrap();
    let text = fs::read_to_string(room.at("events")).unwrap();
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines[0]["forebay_events"], 2);
    assert_eq!(lines[1..], events);

    let text = emulator.prometheus();
    assert!(text.contains("# TYPE forebay_pfs_server_read_bytes_total counter"));
    assert!(text.contains("forebay_pfs_server_reads_total{server=\"2\"} "));
}

#[test]
fn two_mounts_have_caches_of_their_own_and_servers_in_common() {
    let Some(room) = room() else { return };
    room.write("file", 4 * MIB);
    let emulator = room.start(2, latency(50.0));
    let bytes = |mount: usize| number(&node(&emulator.stats(), mount)["read_bytes"]);
    for (first, second) in [(4 * MIB as u64, 0), (4 * MIB as u64, 0)] {
        fs::read(room.on(0, "file")).unwrap();
        assert_eq!((bytes(0), bytes(1)), (first, second));
    }
    fs::read(room.on(1, "file")).unwrap();
    assert_eq!((bytes(0), bytes(1)), (4 * MIB as u64, 4 * MIB as u64));
    assert_eq!(number(&emulator.stats()["servers"][0]["read_bytes"]), 8 * MIB as u64);
}

#[test]
fn one_node_becomes_cold_while_a_program_has_the_file_mapped() {
    let Some(room) = room() else { return };
    room.write("file", 2 * MIB);
    let emulator = room.start(2, latency(50.0));
    let file = File::open(room.on(0, "file")).unwrap();
    // SAFETY: the file does not change while it is mapped.
    let mapped = unsafe { Mmap::map(&file).unwrap() };
    let touch = || mapped.iter().step_by(4096).map(|&byte| u64::from(byte)).sum::<u64>();
    let sum = touch();
    fs::read(room.on(1, "file")).unwrap();
    emulator.reset();
    assert_eq!(touch(), sum);
    assert_eq!(number(&node(&emulator.stats(), 0)["read_bytes"]), 0);
    assert_eq!(emulator.drop_caches(&room.at("0")).unwrap(), 1);
    assert_eq!(touch(), sum);
    fs::read(room.on(1, "file")).unwrap();
    let stats = emulator.stats();
    assert_eq!(number(&node(&stats, 0)["read_bytes"]), 2 * MIB as u64);
    assert_eq!(number(&node(&stats, 1)["read_bytes"]), 0);
}

/// The maximum of requests in flight that `read` causes on a new file system; `wanted` are
/// expected.
///
/// On a busy machine replies may leave before the last request arrives: the next attempt has a
/// higher latency.
fn deepest(room: &Room, wanted: u64, read: impl Fn(&Emulator)) -> u64 {
    let mut found = 0;
    for latency_us in [20e3, 200e3, 2e6, 20e6] {
        let emulator = room.start(1, latency(latency_us));
        read(&emulator);
        found = number(&emulator.stats()["max_in_flight"]);
        emulator.end().unwrap();
        if found >= wanted {
            break;
        }
    }
    found
}

#[test]
fn sixteen_threads_are_sixteen_requests_in_flight() {
    let Some(room) = room() else { return };
    room.write("file", 4 * MIB);
    let path = room.on(0, "file");
    let read = |emulator: &Emulator| {
        std::thread::scope(|scope| {
            for thread in 0..16u64 {
                let file = direct(&path);
                scope.spawn(move || {
                    let mut buffer = Aligned::new(4096);
                    for turn in 0..2 {
                        file.read_exact_at(buffer.bytes(4096), (thread * 2 + turn) * 4096).unwrap();
                    }
                });
            }
        });
        assert_eq!(number(&node(&emulator.stats(), 0)["reads"]), 32);
    };
    assert_eq!(deepest(&room, 16, read), 16);
}

#[test]
fn one_direct_read_of_eight_mebibytes_is_eight_requests_in_flight() {
    let Some(room) = room() else { return };
    room.write("file", 8 * MIB);
    let read = |_: &Emulator| {
        let mut buffer = Aligned::new(8 * MIB);
        direct(&room.on(0, "file")).read_exact_at(buffer.bytes(8 * MIB), 0).unwrap();
    };
    assert_eq!(deepest(&room, 8, read), 8);
}

#[test]
fn a_deep_asynchronous_reader_is_as_deep_on_the_mount() {
    let Some(room) = room() else { return };
    let data = room.write("file", 4 * MIB);
    if let Err(error) = io_uring::IoUring::new(64) {
        return eprintln!("skipped: this kernel gives no io_uring: {error}");
    }
    let read = |_: &Emulator| {
        let file = direct(&room.on(0, "file"));
        let mut ring = io_uring::IoUring::new(64).unwrap();
        let mut buffers: Vec<Aligned> = (0..32).map(|_| Aligned::new(4 * KIB)).collect();
        let descriptor = io_uring::types::Fd(std::os::fd::AsRawFd::as_raw_fd(&file));
        for (number, buffer) in buffers.iter_mut().enumerate() {
            let place = buffer.bytes(4 * KIB).as_mut_ptr();
            let entry = io_uring::opcode::Read::new(descriptor, place, 4 * KIB as u32)
                .offset((number * 128 * KIB) as u64)
                .build()
                .user_data(number as u64);
            // SAFETY: buffers and file live until all completions have been taken.
            unsafe { ring.submission().push(&entry).unwrap() };
        }
        ring.submit_and_wait(32).unwrap();
        let mut seen = 0;
        for completion in ring.completion() {
            assert_eq!(completion.result(), 4 * KIB as i32);
            seen += 1;
        }
        assert_eq!(seen, 32);
        for (number, buffer) in buffers.iter_mut().enumerate() {
            assert!(*buffer.bytes(4 * KIB) == data[number * 128 * KIB..number * 128 * KIB + 4 * KIB]);
        }
    };
    assert_eq!(deepest(&room, 32, read), 32);
}

#[test]
fn writes_and_metadata_are_counted_too() {
    let Some(room) = room() else { return };
    let emulator = room.start(1, Spec { metadata_us: 100.0, ..latency(100.0) });
    let before = number(&node(&emulator.stats(), 0)["metadata"]);
    fs::write(room.on(0, "new"), vec![1; 3 * MIB]).unwrap();
    let stats = emulator.stats();
    let found = node(&stats, 0);
    assert_eq!(number(&found["written_bytes"]), 3 * MIB as u64);
    assert_eq!(number(&stats["servers"][0]["written_bytes"]), 3 * MIB as u64);
    assert!(number(&found["writes"]) >= 3);
    assert!(number(&found["metadata"]) > before);
    emulator.reset();
    let stats = emulator.stats();
    assert_eq!((number(&node(&stats, 0)["writes"]), number(&node(&stats, 0)["metadata"])), (0, 0));
}

#[test]
fn a_reply_is_never_early_by_more_than_the_round_trip_and_times_are_scaled() {
    let Some(room) = room() else { return };
    room.write("file", MIB);
    let mut configuration = room.configuration(1, latency(2000.0));
    configuration.time_scale = 5.0;
    let emulator = forebay_pfs::Emulator::start(&configuration).unwrap();
    let file = direct(&room.on(0, "file"));
    let mut buffer = Aligned::new(4096);
    for turn in 0..10 {
        let begun = std::time::Instant::now();
        file.read_exact_at(buffer.bytes(4096), turn * 4096).unwrap();
        // 10 ms less at most 2 ms for sending and 0.1 ms for the round trip.
        assert!(begun.elapsed().as_micros() >= 7_900, "{:?}", begun.elapsed());
    }
    let (events, _) = emulator.events(0);
    assert!(events.iter().all(|event| event[5] == 2e-3), "latencies are in model seconds");
    let span = events[9][0].as_f64().unwrap() - events[0][0].as_f64().unwrap();
    assert!(span >= 9.0 * 1.5e-3, "{span} s for nine reads");
}
