//! Measures the kernel's round trip between a program and the emulator; replies leave earlier by
//! it.
//!
//! A request waits until the kernel wakes a thread of the emulator, a reply until it wakes the
//! program: 30 to 60 µs on a virtual machine, 6 to 12 % of a modelled latency of 0.5 ms. The first
//! mount measures it with reads of a file that exists only meanwhile. Their replies pass through
//! the scheduler, because processors that go idle in between take longer to wake.
//!
//! The result is the lower quartile, at most [`MAX_OVERHEAD`]: a busy machine must not make replies
//! leave too early.
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use forebay_model::NodeId;
use fuser::{FileAttr, FileType, INodeNo, ReplyData};

use crate::timing::clock::RealTime;
use crate::timing::reply_scheduler::{Reply, ReplyScheduler};

/// Name of the file in the root.
const NAME: &str = ".forebay-pfs-round-trip";

/// Inode number of the file, beyond all others.
pub(crate) const INODE: u64 = u64::MAX - 1;

/// Size of a read \[B\].
const READ_BYTES: usize = 4096;

/// Delay of a reply, the latency of a fast disk \[ns\].
const DELAY: RealTime = 500_000;

/// Number of reads: 60 ms on an idle machine.
const READS: usize = 100;

/// Maximum duration.
const MAX_DURATION: Duration = Duration::from_millis(300);

/// Maximum result \[ns\].
const MAX_OVERHEAD: RealTime = 100_000;

/// The state of the measurement, and its result.
#[derive(Debug, Default)]
pub(crate) struct RoundTrip {
    running: AtomicBool,
    overhead_ns: AtomicU64,
}

impl RoundTrip {
    /// How much earlier replies are due.
    pub(crate) fn overhead(&self) -> RealTime {
        self.overhead_ns.load(Ordering::Relaxed)
    }

    /// Whether a name in the root is that of the file.
    pub(crate) fn is_probe(&self, name: &std::ffi::OsStr) -> bool {
        self.running.load(Ordering::Relaxed) && name == NAME
    }

    /// Attributes of the file.
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

    /// Answers a read of the file.
    pub(crate) fn answer(
        scheduler: &ReplyScheduler,
        now: RealTime,
        node: NodeId,
        length: usize,
        reply: ReplyData,
    ) {
        let answer = move || reply.data(&[0; READ_BYTES][..length.min(READ_BYTES)]);
        scheduler.schedule(now + DELAY, node, Reply::Plain(Box::new(answer)));
    }

    /// Measures through a new mount. On failure the result is 0.
    pub(crate) fn measure(&self, mount: &Path) {
        self.running.store(true, Ordering::Relaxed);
        let mut overheads = Vec::with_capacity(READS);
        let begun = Instant::now();
        if let Ok(file) = File::open(mount.join(NAME)) {
            let mut buffer = [0; READ_BYTES];
            while overheads.len() < READS && begun.elapsed() < MAX_DURATION {
                let sent = Instant::now();
                if file.read_at(&mut buffer, 0).is_err() {
                    break;
                }
                let took = sent.elapsed().as_nanos() as u64;
                overheads.push(took.saturating_sub(DELAY));
            }
        }
        self.running.store(false, Ordering::Relaxed);
        overheads.sort_unstable();
        let overhead = overheads.get(overheads.len() / 4).copied().unwrap_or(0).min(MAX_OVERHEAD);
        self.overhead_ns.store(overhead, Ordering::Relaxed);
    }
}
