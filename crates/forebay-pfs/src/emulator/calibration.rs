//! How long the way between a program and the emulator takes, beyond the emulator's own work.
//!
//! A request waits until the kernel has woken a loop thread, a reply until it has woken the program: 30 to 60 µs together on a virtual
//! machine, and a modelled latency of half a millisecond would come out 6 to 12 % too long. So it is measured once, at the first mount, with
//! reads of a file that only the emulator sees and whose replies wait in the timers like all others, as processors that fall asleep meanwhile
//! take longer to wake; replies are then due that much earlier. The measurement is a lower quartile, so that a machine that is busy at that
//! moment does not make replies come too early, and never more than [`LONGEST`].
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use fuser::{FileAttr, FileType, INodeNo, ReplyData};

use crate::emulator::clock::RealTime;
use crate::emulator::timers::{Task, Timers};
use crate::model::NodeId;

/// Name of the file, in the root, while the measurement runs.
const NAME: &str = ".forebay-pfs-way";

/// The kernel's number of it: beyond all others.
pub(crate) const INODE: u64 = u64::MAX - 1;

/// Size of a read.
const READ_BYTES: usize = 4096;

/// How long a reply waits: the latency of a fast disk.
const WAIT: RealTime = 500_000;

/// How many reads: 60 ms on an idle machine.
const READS: usize = 100;

/// How long at most.
const PATIENCE: Duration = Duration::from_millis(300);

/// The longest way that is taken off.
const LONGEST: RealTime = 100_000;

/// The result, and the state of the measurement.
#[derive(Debug, Default)]
pub(crate) struct Calibration {
    running: AtomicBool,
    way_ns: AtomicU64,
}

impl Calibration {
    /// By how much replies are due earlier.
    pub(crate) fn way(&self) -> RealTime {
        self.way_ns.load(Ordering::Relaxed)
    }

    /// Whether a name is that of the file, which is there only now.
    pub(crate) fn has(&self, name: &std::ffi::OsStr) -> bool {
        self.running.load(Ordering::Relaxed) && name == NAME
    }

    /// The file.
    pub(crate) fn attributes() -> FileAttr {
        FileAttr {
            ino: INodeNo(INODE),
            size: READ_BYTES as u64,
            blocks: 0,
            atime: SystemTime::UNIX_EPOCH,
            mtime: SystemTime::UNIX_EPOCH,
            ctime: SystemTime::UNIX_EPOCH,
            crtime: SystemTime::UNIX_EPOCH,
            kind: FileType::RegularFile,
            perm: 0o400,
            nlink: 1,
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            rdev: 0,
            blksize: READ_BYTES as u32,
            flags: 0,
        }
    }

    /// Answers a read of it.
    pub(crate) fn answer(timers: &Timers, now: RealTime, node: NodeId, length: usize, reply: ReplyData) {
        let answer = move || reply.data(&[0; READ_BYTES][..length.min(READ_BYTES)]);
        timers.push(now + WAIT, node, Task::Answer(Box::new(answer)));
    }

    /// Measures, through a mount that has just been made. Where that fails, nothing is taken off.
    pub(crate) fn measure(&self, mount: &Path) {
        self.running.store(true, Ordering::Relaxed);
        let mut ways = Vec::with_capacity(READS);
        let begun = Instant::now();
        if let Ok(file) = File::open(mount.join(NAME)) {
            let mut buffer = [0; READ_BYTES];
            while ways.len() < READS && begun.elapsed() < PATIENCE {
                let sent = Instant::now();
                if file.read_at(&mut buffer, 0).is_err() {
                    break;
                }
                let took = sent.elapsed().as_nanos() as u64;
                ways.push(took.saturating_sub(WAIT));
            }
        }
        self.running.store(false, Ordering::Relaxed);
        ways.sort_unstable();
        let way = ways.get(ways.len() / 4).copied().unwrap_or(0).min(LONGEST);
        self.way_ns.store(way, Ordering::Relaxed);
    }
}
