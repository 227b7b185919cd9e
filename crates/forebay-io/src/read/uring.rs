//! Reading through an `io_uring`.
//!
//! Up to `depth` requests are under way; an answer is handed to the policy (`retry.rs`), which asks
//! for the next request or ends the transfer. [`Ring::fill`] returns only when the kernel has let
//! go of every buffer, whatever happens: the buffers are the caller's.
//!
//! Source: `io_uring_setup(2)`, `io_uring_enter(2)`.

use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd};
use std::time::{Duration, Instant};

use io_uring::{IoUring, Probe, opcode, types};

use crate::error::ReadError;
use crate::file::span::{LevelId, Span};
use crate::read::retry::{Completion, Job, Next, ReadCounters};
use crate::read::syscalls::{Fault, FileIo, Transfer};

/// An `io_uring` that one thread uses.
pub(crate) struct Ring {
    ring: IoUring,
    depth: usize,
}

/// How [`Ring::fill`] ended short of success.
pub(crate) enum RingError {
    /// A transfer failed.
    Read(ReadError),
    /// The kernel refuses to be asked; nothing is under way, and the jobs say how far they came.
    Refused(io::Error),
}

/// What a request really was.
enum Asked<'a> {
    /// A read from this span, whose descriptor stays open until the answer comes; and its begin.
    Read(Span<'a>, Instant),
    /// Nothing, and this is to be taken for the answer: the file could not be opened, or a test
    /// says so.
    Nothing(io::Error),
    /// Nothing, and the end of the file is the answer (tests).
    End,
}

impl Ring {
    /// Makes a ring for `depth` requests at once.
    pub(crate) fn new(depth: usize) -> io::Result<Self> {
        let depth = depth.clamp(1, 1024);
        let ring = build(depth as u32)?;
        let mut probe = Probe::new();
        ring.submitter().register_probe(&mut probe)?;
        if !probe.is_supported(opcode::Read::CODE) {
            return Err(io::Error::from_raw_os_error(libc::ENOSYS));
        }
        Ok(Self { ring, depth })
    }

    /// Completes the transfers, each described by the job of the same place.
    pub(crate) fn fill(
        &mut self,
        io: &dyn FileIo,
        transfers: &mut [Transfer<'_>],
        jobs: &mut [Job],
        counters: &mut ReadCounters,
    ) -> Result<(), RingError> {
        let places: Vec<*mut u8> = transfers.iter_mut().map(|transfer| transfer.into.as_mut_ptr()).collect();
        let mut asked: Vec<Asked<'_>> = jobs.iter().map(|_| Asked::End).collect();
        let mut waiting: Vec<usize> = (0..jobs.len()).rev().filter(|place| !jobs[*place].is_done()).collect();
        let mut answers: Vec<(usize, i32)> = Vec::with_capacity(self.depth);
        let mut under_way = 0;
        let mut failed = None;
        loop {
            while under_way < self.depth && failed.is_none() {
                let Some(place) = waiting.pop() else { break };
                asked[place] = self.push(io, &jobs[place], place, places[place]);
                under_way += 1;
            }
            if under_way == 0 {
                return failed.map_or(Ok(()), |error| Err(RingError::Read(error)));
            }
            if let Err(error) = self.ring.submit_and_wait(1) {
                let unsubmitted = self.ring.submission().len();
                match error.raw_os_error() {
                    Some(libc::EINTR) => {}
                    // Nothing reached the kernel: the caller may do without this ring.
                    _ if unsubmitted == under_way && self.ring.completion().is_empty() => {
                        return Err(failed.map_or(RingError::Refused(error), RingError::Read));
                    }
                    // The kernel still owns buffers: there is no way but to wait for them.
                    _ => io.pause(Duration::from_millis(1)),
                }
            }
            answers.extend(self.ring.completion().map(|entry| (entry.user_data() as usize, entry.result())));
            let together = under_way.max(1) as u32;
            // One for all requests that failed together.
            let mut pause: Option<Duration> = None;
            for (place, result) in answers.drain(..) {
                under_way -= 1;
                let nothing = |result| Completion { level: LevelId::SOURCE, asked: 0, result };
                let completion = match mem::replace(&mut asked[place], Asked::End) {
                    Asked::Read(span, begun) => {
                        let result =
                            usize::try_from(result).map_err(|_| io::Error::from_raw_os_error(-result));
                        let bytes = result.as_ref().map_or(0, |bytes| *bytes);
                        io.answered(span.level, bytes, begun.elapsed() / together);
                        Completion { level: span.level, asked: span.length, result }
                    }
                    Asked::Nothing(error) => nothing(Err(error)),
                    Asked::End => nothing(Ok(0)),
                };
                match jobs[place].settle(io, completion, counters) {
                    Next::Done => {}
                    Next::Again => waiting.push(place),
                    Next::After(time) => {
                        pause = pause.max(Some(time));
                        waiting.push(place);
                    }
                    Next::Ended => failed = failed.or_else(|| Some(jobs[place].truncated(io))),
                    Next::Failed(error) => failed = failed.or(Some(error)),
                }
            }
            if let Some(time) = pause.filter(|_| failed.is_none()) {
                io.pause(time);
            }
        }
    }

    fn push<'a>(&mut self, io: &'a dyn FileIo, job: &Job, place: usize, memory: *mut u8) -> Asked<'a> {
        let (from, end) = job.range();
        let at = job.at();
        let whole = end - from;
        let mut length = whole;
        let open = || match io.span(at, whole, job.left_out()) {
            Ok(span) => Asked::Read(span, Instant::now()),
            Err(error) => Asked::Nothing(error),
        };
        let asked = match io.pretend(at, length) {
            None => open(),
            Some(Fault::Short(most)) => {
                length = length.min(most);
                open()
            }
            Some(Fault::Errno(number)) => Asked::Nothing(io::Error::from_raw_os_error(number)),
            Some(Fault::End) => Asked::End,
            Some(Fault::Stall(time)) => {
                io.pause(time);
                open()
            }
        };
        let entry = match &asked {
            Asked::Read(span, _) => {
                let descriptor = types::Fd(span.descriptor.as_fd().as_raw_fd());
                let memory = memory.wrapping_add(from);
                let length = length.min(span.length);
                opcode::Read::new(descriptor, memory, length as u32).offset(span.offset).build()
            }
            Asked::Nothing(_) | Asked::End => opcode::Nop::new().build(),
        };
        // SAFETY: `from .. from + length` lies in the memory of the transfer (`Job::range` stays
        // within its room), which `fill` borrows mutably and does not leave before the request has
        // completed; the descriptor is kept in what is returned until then, and the number of a
        // shard's stays valid when a stale file is opened again.
        let pushed = unsafe { self.ring.submission().push(&entry.user_data(place as u64)) };
        assert!(pushed.is_ok(), "at most as many requests are under way as the ring has entries");
        asked
    }
}

/// The kinds of ring from the best to the oldest: completions are worked off by the one thread that
/// waits for them (Linux 6.1), without interrupting it (5.19), or as ever.
fn build(entries: u32) -> io::Result<IoUring> {
    let attempt = |flavour: u32| {
        let mut builder = IoUring::builder();
        // A child of fork() must not share the queues.
        builder.dontfork();
        match flavour {
            0 => builder.setup_single_issuer().setup_defer_taskrun(),
            1 => builder.setup_coop_taskrun(),
            _ => &mut builder,
        };
        builder.build(entries)
    };
    let unknown = |error: &io::Error| error.raw_os_error() == Some(libc::EINVAL);
    attempt(0)
        .or_else(|error| if unknown(&error) { attempt(1) } else { Err(error) })
        .or_else(|error| if unknown(&error) { attempt(2) } else { Err(error) })
}

/// Why there is no `io_uring`, in words.
pub(crate) fn ring_refused(error: &io::Error) -> String {
    let reason = match error.raw_os_error() {
        Some(libc::ENOSYS) => "this kernel has none".to_owned(),
        Some(libc::EPERM | libc::EACCES) => {
            match std::fs::read_to_string("/proc/sys/kernel/io_uring_disabled").as_deref().map(str::trim) {
                Ok(setting @ ("1" | "2")) => {
                    format!("forbidden by sysctl kernel.io_uring_disabled = {setting}")
                }
                _ => "forbidden, presumably by the container's system call filter".to_owned(),
            }
        }
        Some(libc::ENOMEM) => "its queues do not fit the limit of locked memory (`ulimit -l`)".to_owned(),
        _ => error.to_string(),
    };
    format!("io_uring is not available: {reason}")
}
