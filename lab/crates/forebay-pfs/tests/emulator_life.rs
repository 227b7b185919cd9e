//! Mounting and unmounting: invalid mount points are refused, and the end unmounts everything, also
//! while programs use it.

#![allow(clippy::disallowed_methods, reason = "a test may panic where there are no threads")]

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::Path;

use crate::emulator_support::{Room, errno, latency, room};
use forebay_model::Spec;
use forebay_pfs::{Emulator, serve};
use serde_json::{Value, json};

fn is_mounted(path: &Path) -> bool {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    mounts.lines().any(|line| line.split(' ').nth(4) == path.to_str())
}

fn refusal(room: &Room, mounts: &[&str]) -> String {
    let mut configuration = room.configuration(0, Spec::free());
    configuration.mounts = mounts.iter().map(|name| room.at(name)).collect();
    let Err(error) = Emulator::start(&configuration) else { panic!("{mounts:?} was mounted") };
    error.text()
}

#[test]
fn mount_points_that_cannot_be_are_refused_and_those_before_them_are_gone_again() {
    let Some(room) = room() else { return };
    fs::create_dir(room.backing("inside")).unwrap();
    fs::write(room.at("file"), "").unwrap();
    fs::create_dir(room.at("full")).unwrap();
    fs::write(room.at("full/file"), "").unwrap();
    assert!(refusal(&room, &["0", "missing"]).contains("does not exist"));
    assert!(!is_mounted(&room.at("0")), "the first mount is still there");
    assert!(refusal(&room, &["full"]).contains("not empty"));
    assert!(refusal(&room, &["file"]).contains("no directory"));
    assert!(refusal(&room, &["backing"]).contains("backing directory"));
    assert!(refusal(&room, &["backing/inside"]).contains("backing directory"));
    assert!(refusal(&room, &["0", "0"]).contains("mounted there already"));
    assert!(refusal(&room, &[]).contains("at least one mount point"));

    fs::create_dir(room.backing("empty")).unwrap();
    let emulator = room.start(1, Spec::free());
    assert!(refusal(&room, &["0"]).contains("mounted there already"));
    assert!(refusal(&room, &["0/empty"]).contains("inside the emulator mount"));
    let mut nested = room.configuration(0, Spec::free());
    (nested.backing, nested.mounts) = (room.on(0, "empty"), vec![room.at("1")]);
    let Err(error) = Emulator::start(&nested) else { panic!("an emulator of an emulator was mounted") };
    assert!(error.text().contains("nested"), "{}", error.text());
    drop(emulator);
    assert!(!is_mounted(&room.at("0")));
}

#[test]
fn the_end_unmounts_also_what_programs_hold_and_they_get_errors() {
    let Some(room) = room() else { return };
    room.write("file", 100_000);
    let emulator = room.start(2, latency(100.0));
    let held = File::open(room.on(0, "file")).unwrap();
    emulator.end().unwrap();
    assert!(!is_mounted(&room.at("0")) && !is_mounted(&room.at("1")));
    let refused = errno(held.read_at(&mut [0; 10], 50_000));
    assert_eq!(refused, Some(libc::ENOTCONN));
    assert!(emulator.mount(&room.at("2")).is_err(), "an emulator that has ended mounts again");
    drop(emulator);
    // The mount points can be used again.
    let again = room.start(2, Spec::free());
    assert_eq!(fs::read(room.on(1, "file")).unwrap().len(), 100_000);
    again.end().unwrap();
}

#[test]
fn mounts_can_be_added_and_taken_away_one_by_one() {
    let Some(room) = room() else { return };
    room.write("file", 10);
    let emulator = room.start(1, Spec::free());
    emulator.mount(&room.at("1")).unwrap();
    assert_eq!(emulator.mounts(), [room.at("0"), room.at("1")]);
    assert!(!emulator.unmount(&room.at("0")).unwrap());
    assert!(!is_mounted(&room.at("0")) && is_mounted(&room.at("1")));
    assert!(emulator.unmount(&room.at("0")).is_err());
    assert_eq!(fs::read(room.on(1, "file")).unwrap().len(), 10);
    assert!(emulator.unmount(&room.at("1")).unwrap());
}

fn connect(socket: &Path) -> UnixStream {
    // The socket listens once everything is mounted; a watchdog, not a measurement.
    for _ in 0..24_000 {
        if let Ok(stream) = UnixStream::connect(socket) {
            return stream;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    panic!("no server at {}", socket.display());
}

fn ask(stream: &mut UnixStream, request: &Value) -> Value {
    writeln!(stream, "{request}").unwrap();
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).unwrap();
    serde_json::from_str(&line).unwrap()
}

#[test]
fn a_server_is_told_what_to_do_over_its_socket_and_leaves_nothing_behind() {
    let Some(room) = room() else { return };
    room.write("file", 100_000);
    let mut configuration = room.configuration(1, latency(100.0));
    configuration.socket = room.at("socket");
    let socket = configuration.socket.clone();
    let server = std::thread::spawn(move || serve(&configuration).map_err(|error| error.text()));
    let mut stream = connect(&socket);
    assert_eq!(fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o600);
    let facts = ask(&mut stream, &json!({"command": "ping"}));
    assert_eq!((&facts["ok"], &facts["mounts"]), (&json!(true), &json!([room.at("0")])));
    assert_eq!(facts["spec"]["latency_us"], 100.0);
    assert_eq!(ask(&mut stream, &json!({"command": "mount", "mount": room.at("1")}))["ok"], true);
    fs::read(room.on(1, "file")).unwrap();
    let stats = ask(&mut stream, &json!({"command": "stats"}));
    assert_eq!(stats["nodes"][1]["read_bytes"], 100_000);
    assert_eq!(
        ask(&mut stream, &json!({"command": "drop_caches", "mount": room.at("1")}))["pages_dropped_files"],
        1
    );
    let events = ask(&mut stream, &json!({"command": "events", "since": 0}));
    assert_eq!(events["next"], events["events"].as_array().unwrap().len());
    let bad = ask(&mut stream, &json!({"command": "unmount", "mount": "/nowhere"}));
    assert!(bad["ok"] == false && bad["error"].as_str().unwrap().contains("/nowhere"), "{bad}");
    let fault = json!({"command": "fault", "kind": "eio", "file": "file", "from": 0, "to": 10});
    assert_eq!(ask(&mut stream, &fault)["ok"], true);
    assert_eq!(errno(fs::read(room.on(0, "file"))), Some(libc::EIO));
    assert_eq!(ask(&mut stream, &json!({"command": "unmount", "mount": room.at("0")}))["last"], false);
    // A client that sends nothing does not delay the end.
    let _silent = connect(&socket);
    assert_eq!(ask(&mut stream, &json!({"command": "end"}))["ok"], true);
    server.join().unwrap().unwrap();
    assert!(!socket.exists() && !is_mounted(&room.at("0")) && !is_mounted(&room.at("1")));
}

#[test]
fn a_server_ends_when_its_last_mount_is_gone_whoever_took_it() {
    let Some(room) = room() else { return };
    let mut configuration = room.configuration(1, Spec::free());
    configuration.socket = room.at("socket");
    let socket = configuration.socket.clone();
    let server = std::thread::spawn(move || serve(&configuration).map_err(|error| error.text()));
    let mut stream = connect(&socket);
    assert_eq!(ask(&mut stream, &json!({"command": "ping"}))["ok"], true);
    let point = room.at("0");
    match rustix::mount::unmount(&point, rustix::mount::UnmountFlags::empty()) {
        Err(rustix::io::Errno::PERM) => {
            let status = std::process::Command::new("fusermount3").arg("-u").arg(&point).status().unwrap();
            assert!(status.success());
        }
        result => result.unwrap(),
    }
    server.join().unwrap().unwrap();
    assert!(!socket.exists());
}
