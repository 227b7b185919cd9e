//! A log whose process is killed while it appends.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Command, Stdio};

use forebay_tier::{CopyRecord, Log, PieceSum, Record, Replayed};

/// Where the child has its log.
const DIRECTORY: &str = "FOREBAY_TEST_LOG";

/// Lengths differ, so that records cross pages at all places.
fn record(number: u64) -> Record {
    let sum = |piece| PieceSum { piece, start: u32::from(piece) << 16, bytes: 1 << 16, crc: number as u32 };
    let sums = (0..=(number % 16) as u8).map(sum).collect();
    Record::Copy(CopyRecord { slab: 0, slot: 0, source: 0, chunk: number, sums })
}

fn open(directory: &Path) -> (Log, Vec<Record>, Replayed) {
    let mut found = Vec::new();
    let opened = File::open(directory).unwrap();
    let (log, replayed) = Log::open(opened.as_fd(), directory, &mut |record| found.push(record)).unwrap();
    (log, found, replayed)
}

/// The child of the test below; by itself it does nothing.
#[test]
fn child() {
    let Some(directory) = std::env::var_os(DIRECTORY) else { return };
    let (mut log, found, _) = open(directory.as_ref());
    for number in found.len() as u64.. {
        log.append(&[record(number)]).unwrap();
        println!("{number}");
    }
}

#[test]
fn what_was_appended_before_a_kill_is_replayed() {
    let directory = tempfile::tempdir().unwrap();
    let mut before = 0;
    for appends in [1, 40, 700] {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child", "--nocapture"])
            .env(DIRECTORY, directory.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let said = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut numbers = said.map_while(Result::ok).filter_map(|line| line.parse::<u64>().ok());
        assert!(numbers.by_ref().nth(appends - 1).is_some());
        child.kill().unwrap();
        let last = numbers.last();
        child.wait().unwrap();
        let (log, found, replayed) = open(directory.path());
        assert!(found.iter().eq((0..found.len() as u64).map(record).collect::<Vec<_>>().iter()));
        assert!(found.len() as u64 > last.unwrap_or(0) && found.len() >= before + appends);
        assert_eq!(replayed.records, found.len() as u64);
        let file = std::fs::metadata(directory.path().join("log")).unwrap();
        assert_eq!(file.len(), log.bytes());
        before = found.len();
    }
}
