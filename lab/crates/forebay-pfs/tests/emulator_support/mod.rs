//! Helpers for tests of the emulator: directories, mounts, and the reason to skip.
use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use forebay_model::Spec;
use forebay_pfs::{Configuration, Emulator};
use serde_json::Value;

pub const KIB: usize = 1 << 10;
pub const MIB: usize = 1 << 20;

/// A directory for one test.
pub struct Room {
    directory: tempfile::TempDir,
}

/// Creates the directories, or prints why this machine cannot mount.
pub fn room() -> Option<Room> {
    if let Err(error) = OpenOptions::new().read(true).write(true).open("/dev/fuse") {
        eprintln!("skipped: /dev/fuse cannot be opened: {error}");
        return None;
    }
    let room = Room { directory: tempfile::tempdir().expect("a temporary directory") };
    for name in ["backing", "0", "1", "2"] {
        std::fs::create_dir(room.at(name)).expect("an empty directory");
    }
    Some(room)
}

impl Room {
    pub fn at(&self, name: &str) -> PathBuf {
        self.directory.path().canonicalize().expect("the room is there").join(name)
    }

    pub fn backing(&self, name: &str) -> PathBuf {
        self.at("backing").join(name)
    }

    /// A file on one of the mounts.
    pub fn on(&self, mount: u32, name: &str) -> PathBuf {
        self.at(&mount.to_string()).join(name)
    }

    /// Writes a file into the backing directory; returns its bytes.
    pub fn write(&self, name: &str, bytes: usize) -> Vec<u8> {
        let data = pattern(bytes);
        std::fs::write(self.backing(name), &data).expect("the backing directory takes files");
        data
    }

    pub fn configuration(&self, mounts: u32, spec: Spec) -> Configuration {
        let points = (0..mounts).map(|mount| self.at(&mount.to_string())).collect();
        Configuration::new(self.at("backing"), points, spec)
    }

    pub fn start(&self, mounts: u32, spec: Spec) -> Emulator {
        Emulator::start(&self.configuration(mounts, spec)).unwrap_or_else(|error| panic!("{}", error.text()))
    }
}

/// Bytes that depend on their offset.
pub fn pattern(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|place| (place ^ (place >> 8) ^ (place >> 16)) as u8).collect()
}

/// A fixed pseudorandom sequence.
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Dice {
        Dice(seed.wrapping_mul(2) + 1)
    }

    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit.max(1)
    }
}

pub fn direct(path: &Path) -> File {
    OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_DIRECT)
        .open(path)
        .expect("the file opens with O_DIRECT")
}

/// A page-aligned buffer, for `O_DIRECT`.
pub struct Aligned {
    room: Vec<u8>,
    skipped: usize,
}

impl Aligned {
    pub fn new(bytes: usize) -> Aligned {
        let room = vec![0; bytes + 4096];
        let skipped = room.as_ptr().align_offset(4096);
        Aligned { room, skipped }
    }

    pub fn bytes(&mut self, count: usize) -> &mut [u8] {
        &mut self.room[self.skipped..self.skipped + count]
    }
}

/// A file system whose only cost is latency.
pub fn latency(us: f64) -> Spec {
    Spec { name: "latency".to_owned(), latency_us: us, ..Spec::free() }
}

pub fn node(stats: &Value, node: usize) -> &Value {
    &stats["nodes"][node]
}

pub fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is no count"))
}

/// The number of an error.
pub fn errno<T>(result: std::io::Result<T>) -> Option<i32> {
    result.err().and_then(|error| error.raw_os_error())
}
