//! Injected faults affect programs as on a real file system, and end when they are cleared.

#![allow(clippy::disallowed_methods, reason = "a test may panic where there are no threads")]

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use crate::emulator_support::{Aligned, MIB, direct, errno, latency, number, room};
use forebay_model::Spec;
use forebay_pfs::Fault;

fn eio(from: usize, to: usize) -> Fault {
    Fault::Eio { file: "file".to_owned(), from: from as u64, to: to as u64 }
}

#[test]
fn a_read_into_a_bad_range_ends_before_it_and_one_that_starts_in_it_fails() {
    let Some(room) = room() else { return };
    let data = room.write("file", 4 * MIB);
    let emulator = room.start(1, latency(100.0));
    emulator.fault(&eio(MIB, MIB + 8192)).unwrap();
    let path = room.on(0, "file");
    let mut buffer = Aligned::new(4 * MIB);
    // The bad range begins in the middle of a request of O_DIRECT, which carries at most a MiB.
    for (file, from) in [(File::open(&path).unwrap(), 0), (direct(&path), MIB / 2)] {
        let count = file.read_at(buffer.bytes(MIB + MIB / 4), from as u64).unwrap();
        assert_eq!(from + count, MIB);
        assert!(*buffer.bytes(count) == data[from..MIB]);
        assert_eq!(errno(file.read_at(buffer.bytes(4096), MIB as u64 + 4096)), Some(libc::EIO));
        // Bytes right after the range are readable.
        file.read_exact_at(buffer.bytes(4096), MIB as u64 + 8192).unwrap();
        assert!(*buffer.bytes(4096) == data[MIB + 8192..MIB + 12288]);
    }
    // A read of several asynchronous requests fails if one of them fails.
    assert_eq!(errno(direct(&path).read_at(buffer.bytes(4 * MIB), 0)), Some(libc::EIO));
    assert_eq!(number(&emulator.stats()["faults"]["eio"][0]["from"]), MIB as u64);
    emulator.fault(&Fault::Clear).unwrap();
    assert!(fs::read(&path).unwrap() == data, "something sticks after the fault is cleared");
}

#[test]
fn a_stalled_server_answers_when_the_stall_is_over() {
    let Some(room) = room() else { return };
    let data = room.write("file", MIB);
    let emulator = room.start(1, latency(100.0));
    let file = direct(&room.on(0, "file"));
    let begun = Instant::now();
    emulator.fault(&Fault::Stall { server: 0, for_seconds: 0.3 }).unwrap();
    let mut buffer = Aligned::new(4096);
    file.read_exact_at(buffer.bytes(4096), 0).unwrap();
    assert!(begun.elapsed() >= Duration::from_millis(250), "{:?}", begun.elapsed());
    assert!(*buffer.bytes(4096) == data[..4096]);
}

#[test]
fn a_stall_that_is_cleared_lets_go_what_waits_and_delays_nothing_that_comes() {
    let Some(room) = room() else { return };
    let data = room.write("file", MIB);
    // A second request in flight would wait for the first one.
    let spec = Spec { request_depth: 1, link_bytes_per_second: Some(1e9), ..latency(100.0) };
    let emulator = room.start(1, spec);
    let file = direct(&room.on(0, "file"));
    // Longer than the test may take: only the end of the fault ends the wait.
    emulator.fault(&Fault::Stall { server: 0, for_seconds: 3600.0 }).unwrap();
    let waiting = std::thread::spawn(move || {
        let mut buffer = Aligned::new(4096);
        file.read_exact_at(buffer.bytes(4096), 0).unwrap();
        (file, buffer.bytes(4096).to_vec())
    });
    while emulator.stats()["max_in_flight"] == 0 {
        std::thread::yield_now();
    }
    emulator.fault(&Fault::Clear).unwrap();
    let (file, found) = waiting.join().unwrap();
    assert!(found == data[..4096]);
    let mut buffer = Aligned::new(4096);
    file.read_exact_at(buffer.bytes(4096), 4096).unwrap();
    assert!(*buffer.bytes(4096) == data[4096..8192]);
    assert_eq!(emulator.stats()["faults"]["stalled"], serde_json::json!([]));
}

#[test]
fn a_slow_server_is_reported_and_takes_longer_in_the_model() {
    let Some(room) = room() else { return };
    room.write("file", MIB);
    let emulator = room.start(1, Spec { target_bytes_per_second: 1e9, ..latency(0.0) });
    let file = direct(&room.on(0, "file"));
    let latency_of_a_read = || {
        let (_, next) = emulator.events(u64::MAX);
        file.read_exact_at(Aligned::new(MIB).bytes(MIB), 0).unwrap();
        emulator.events(next).0[0][5].as_f64().unwrap()
    };
    assert!((latency_of_a_read() - 1.048_576e-3).abs() < 1e-8);
    emulator.fault(&Fault::Slow { server: 0, factor: 8.0 }).unwrap();
    assert!((latency_of_a_read() - 8.0 * 1.048_576e-3).abs() < 1e-8);
    assert_eq!(emulator.stats()["faults"]["slow"][0]["factor"], 8.0);
    emulator.fault(&Fault::Clear).unwrap();
    assert!((latency_of_a_read() - 1.048_576e-3).abs() < 1e-8);
    for wrong in [
        Fault::Slow { server: 1, factor: 2.0 },
        Fault::Slow { server: 0, factor: 0.0 },
        Fault::Stall { server: 0, for_seconds: f64::NAN },
        Fault::Stall { server: 7, for_seconds: 1.0 },
        eio(5, 5),
        Fault::Eio { file: "missing".to_owned(), from: 0, to: 1 },
        Fault::Eio { file: "../0".to_owned(), from: 0, to: 1 },
        Fault::Partition { mount: "/nowhere".to_owned() },
    ] {
        assert!(emulator.fault(&wrong).is_err(), "{wrong:?} was taken");
    }
}

#[test]
fn a_partitioned_mount_fails_at_once_also_for_waiting_reads_and_leaves_the_others_alone() {
    let Some(room) = room() else { return };
    let data = room.write("file", MIB);
    let emulator = room.start(2, latency(100.0));
    let (partitioned, serving) = (direct(&room.on(0, "file")), direct(&room.on(1, "file")));
    // Longer than the test may take: only the partition ends the wait.
    emulator.fault(&Fault::Stall { server: 0, for_seconds: 3600.0 }).unwrap();
    let waiting = std::thread::spawn(move || {
        let result = errno(partitioned.read_at(Aligned::new(4096).bytes(4096), 0));
        (partitioned, result)
    });
    while emulator.stats()["max_in_flight"] == 0 {
        std::thread::yield_now();
    }
    emulator.fault(&Fault::Partition { mount: room.at("0").to_string_lossy().into_owned() }).unwrap();
    let (partitioned, result) = waiting.join().unwrap();
    assert!(matches!(result, Some(libc::ENOTCONN | libc::ECONNABORTED)), "{result:?}");
    let again = errno(partitioned.read_at(Aligned::new(4096).bytes(4096), 4096));
    assert!(matches!(again, Some(libc::ENOTCONN | libc::ECONNABORTED)), "{again:?}");
    drop(partitioned);
    // No program uses it, and still it is mounted and partitioned until it is unmounted.
    let refused = errno(fs::read(room.on(0, "other")));
    assert!(matches!(refused, Some(libc::ENOTCONN | libc::ECONNABORTED)), "{refused:?}");
    emulator.fault(&Fault::Clear).unwrap();
    let mut buffer = Aligned::new(4096);
    serving.read_exact_at(buffer.bytes(4096), 8192).unwrap();
    assert!(*buffer.bytes(4096) == data[8192..12288]);
    assert!(!emulator.unmount(&room.at("0")).unwrap());
    assert!(emulator.unmount(&room.at("1")).unwrap());
}
