//! A connection to the tier daemon: requests and answers, and how a daemon is started.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use forebay_host::{Packet, PacketSocket, Received, Sent};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::daemon::protocol::{LevelUsage, TierReply, TierRequest, from_memory};
use crate::daemon::socket_path;
use crate::error::{ENDED, TierError};
use crate::source::identity::SourceKey;

/// Longest wait for an answer: the daemon may delete many slabs first.
pub(super) const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// Interval between two looks whether the client is closed.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Longest wait for a daemon that was started: Python on a busy machine.
const START_WITHIN: Duration = Duration::from_secs(30);

/// Interval between attempts to reach a daemon that is starting.
pub(super) const TRY_EVERY: Duration = Duration::from_millis(5);

/// The client no longer waits for the daemon.
pub(super) const CLOSED: &str = "the client is closed";

/// Most chunks of a request, so that it fits into a packet.
pub(crate) const CHUNKS_AT_ONCE: usize = 16;

/// How the daemon is reached, and started where there is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DaemonAddress {
    /// Its socket.
    pub socket: PathBuf,
    /// The command that starts it; it ends when the daemon listens.
    pub command: Vec<String>,
}

impl DaemonAddress {
    /// This user's daemon on this node.
    ///
    /// # Errors
    /// The runtime directory cannot be used.
    pub fn of_this_node(command: Vec<String>) -> Result<Self, TierError> {
        Ok(Self { socket: socket_path()?.socket().to_owned(), command })
    }
}

/// A connection without a dataset.
pub struct TierConnection {
    socket: PacketSocket,
    /// Requests whose answers have not come.
    unanswered: AtomicU32,
}

/// How long an answer is waited for.
#[derive(Clone, Copy)]
pub(super) struct Wait<'a> {
    pub(super) within: Duration,
    /// The client needs none any more.
    pub(super) is_closed: &'a AtomicBool,
}

/// The client of a connection without a dataset is never closed.
pub(super) static NEVER: AtomicBool = AtomicBool::new(false);

impl TierConnection {
    /// Connects to a daemon; `None` if there is none.
    ///
    /// # Errors
    /// The system refuses a socket.
    pub fn existing(socket: &Path) -> Result<Option<Self>, TierError> {
        let connected = PacketSocket::connect(socket)?;
        Ok(connected.map(|socket| Self { socket, unanswered: AtomicU32::new(0) }))
    }

    /// The same; starts a daemon where there is none.
    ///
    /// # Errors
    /// The daemon does not start.
    pub fn start(daemon: &DaemonAddress) -> Result<Self, TierError> {
        Self::start_unless(&NEVER, daemon)
    }

    pub(super) fn start_unless(is_closed: &AtomicBool, daemon: &DaemonAddress) -> Result<Self, TierError> {
        let failed = |problem: String| TierError::Daemon { attempt: "start", problem };
        let begun = Instant::now();
        let mut is_started = false;
        loop {
            if let Some(found) = Self::existing(&daemon.socket)? {
                return Ok(found);
            }
            if !is_started {
                is_started = true;
                run_until(&daemon.command, begun + START_WITHIN, is_closed).map_err(failed)?;
            }
            if is_closed.load(Ordering::Relaxed) {
                return Err(failed(CLOSED.into()));
            }
            if begun.elapsed() > START_WITHIN {
                return Err(failed(format!("it does not listen after {} s", START_WITHIN.as_secs())));
            }
            std::thread::sleep(TRY_EVERY);
        }
    }

    /// Sends a request. Its answer is passed over unless [`TierConnection::receive`] is called
    /// next.
    pub(super) fn send(
        &self,
        attempt: &'static str,
        request: &TierRequest,
        fds: &[BorrowedFd<'_>],
    ) -> Result<(), TierError> {
        let failed = |problem: &str| Err(TierError::Daemon { attempt, problem: problem.into() });
        let bytes = serde_json::to_vec(request).expect("requests can be written as JSON");
        if bytes.len() > self.socket.max_packet_bytes() {
            return failed("the request is too long for a packet");
        }
        match self.socket.try_send(&bytes, b"", fds)? {
            Sent::Yes => {}
            Sent::Full => return failed("it does not take requests"),
            Sent::Closed => return failed(ENDED),
        }
        self.unanswered.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Waits for the answer to the last request; `None` if it does not come in time.
    pub(super) fn receive(&self, attempt: &'static str, wait: Wait<'_>) -> Result<Option<Packet>, TierError> {
        let failed = |problem: String| TierError::Daemon { attempt, problem };
        let begun = Instant::now();
        loop {
            match self.socket.try_receive()? {
                // Answers come in the order of the requests.
                Received::Packet(packet) if self.unanswered.fetch_sub(1, Ordering::Relaxed) == 1 => {
                    return Ok(Some(packet));
                }
                Received::Packet(_) => continue,
                Received::Closed => return Err(failed(ENDED.into())),
                Received::Nothing => {}
            }
            let left = wait.within.saturating_sub(begun.elapsed()).min(LOOK_EVERY);
            if left.is_zero() || wait.is_closed.load(Ordering::Relaxed) {
                return Ok(None);
            }
            let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
            match poll(&mut [PollFd::new(&self.socket, PollFlags::IN)], Some(&left)) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(failed(std::io::Error::from(error).to_string())),
            }
        }
    }

    /// Whether answers to earlier requests have not come yet.
    pub(super) fn is_late(&self) -> Result<bool, TierError> {
        let now = Wait { within: Duration::ZERO, is_closed: &NEVER };
        Ok(self.unanswered.load(Ordering::Relaxed) > 0 && self.receive("wait", now)?.is_none())
    }

    /// Sends a request and waits for its answer.
    pub(crate) fn ask(
        &self,
        attempt: &'static str,
        request: &TierRequest,
        fds: &[BorrowedFd<'_>],
    ) -> Result<(TierReply, Vec<OwnedFd>), TierError> {
        self.ask_within(Wait { within: ANSWER_WITHIN, is_closed: &NEVER }, attempt, request, fds)
    }

    pub(super) fn ask_within(
        &self,
        wait: Wait<'_>,
        attempt: &'static str,
        request: &TierRequest,
        fds: &[BorrowedFd<'_>],
    ) -> Result<(TierReply, Vec<OwnedFd>), TierError> {
        self.send(attempt, request, fds)?;
        let Some(packet) = self.receive(attempt, wait)? else {
            let problem = if wait.is_closed.load(Ordering::Relaxed) {
                CLOSED.into()
            } else {
                format!("no answer within {} s", wait.within.as_secs())
            };
            return Err(TierError::Daemon { attempt, problem });
        };
        opened(attempt, packet)
    }

    /// What the levels hold, how many clients use a dataset, and the daemon's process id.
    ///
    /// # Errors
    /// The daemon is gone.
    pub fn usage(&self) -> Result<(Vec<LevelUsage>, u32, u32), TierError> {
        match self.ask("usage", &TierRequest::Usage, &[])? {
            (TierReply::Usage { clients, pid }, fds) if fds.len() == 1 => {
                Ok((from_memory("usage", &fds[0])?, clients, pid))
            }
            (other, _) => Err(unexpected("usage", &other)),
        }
    }

    /// Deletes unused copies of what is at or below a path; as [`TierConnection::clear`].
    ///
    /// # Errors
    /// The daemon is gone.
    pub fn clear_source(&self, directory: (u64, u64), path: &Path) -> Result<Option<u64>, TierError> {
        let below = Some(path.to_owned());
        cleared(self.ask("clear", &TierRequest::Clear { directory, below }, &[])?.0)
    }

    /// Forgets copies that are wrong, on the level with this directory; `None` if it is no level of
    /// this daemon.
    ///
    /// # Errors
    /// The daemon is gone.
    pub fn drop_copies(
        &self,
        directory: (u64, u64),
        sources: &[SourceKey],
        files: &[u64],
    ) -> Result<Option<u64>, TierError> {
        let mut freed = Some(0);
        let sources = sources.chunks(CHUNKS_AT_ONCE).map(|sources| (sources.to_vec(), Vec::new()));
        let files = files.chunks(CHUNKS_AT_ONCE).map(|files| (Vec::new(), files.to_vec()));
        for (sources, files) in sources.chain(files) {
            let request = TierRequest::Drop { directory, sources, files };
            let bytes = cleared(self.ask("drop copies", &request, &[])?.0)?;
            freed = freed.zip(bytes).map(|(one, other)| one + other);
        }
        Ok(freed)
    }

    /// Deletes unused copies from the level whose directory has this device and inode, and returns
    /// the space that was given back, `None` if it is no level of this daemon \[bytes\].
    ///
    /// The daemon deletes a slab at a time, and answers others between them. `go_on` gets the space
    /// given back until then.
    ///
    /// # Errors
    /// The daemon is gone.
    pub fn clear(
        &self,
        directory: (u64, u64),
        go_on: &mut dyn FnMut(u64) -> bool,
    ) -> Result<Option<u64>, TierError> {
        let mut freed = 0;
        while go_on(freed) {
            match self.ask("clear", &TierRequest::Clear { directory, below: None }, &[])?.0 {
                TierReply::Cleared { is_level: false, .. } => return Ok(None),
                TierReply::Cleared { bytes: None, .. } => break,
                TierReply::Cleared { bytes: Some(bytes), .. } => freed += bytes,
                other => return Err(unexpected("clear", &other)),
            }
        }
        Ok(Some(freed))
    }

    /// Ends the daemon, unless clients use a dataset; returns how many do.
    ///
    /// # Errors
    /// The daemon is gone.
    pub fn stop(&self) -> Result<u32, TierError> {
        match self.ask("stop", &TierRequest::Stop, &[])?.0 {
            TierReply::Stopping { clients } => Ok(clients),
            other => Err(unexpected("stop", &other)),
        }
    }
}

fn cleared(answer: TierReply) -> Result<Option<u64>, TierError> {
    match answer {
        TierReply::Cleared { is_level, bytes } => Ok(bytes.filter(|_| is_level)),
        other => Err(unexpected("clear", &other)),
    }
}

/// Runs a command, which is killed at the deadline or when the client is closed; returns what went
/// wrong.
fn run_until(command: &[String], deadline: Instant, is_closed: &AtomicBool) -> Result<(), String> {
    let [program, arguments @ ..] = command else {
        return Err("expected a command, found none".into());
    };
    let failed = |error: std::io::Error| format!("{program}: {error}");
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    while child.try_wait().map_err(failed)?.is_none() {
        let is_closed = is_closed.load(Ordering::Relaxed);
        if is_closed || Instant::now() > deadline {
            let _ = child.kill();
            let _ = child.wait();
            if is_closed {
                return Err(CLOSED.into());
            }
            return Err(format!("{program} does not end within {} s", START_WITHIN.as_secs()));
        }
        std::thread::sleep(TRY_EVERY);
    }
    let ended = child.wait_with_output().map_err(failed)?;
    if ended.status.success() {
        return Ok(());
    }
    Err(format!("{}: {}", ended.status, String::from_utf8_lossy(&ended.stderr).trim()))
}

/// What an answer says, and the descriptors beside it.
pub(super) fn opened(attempt: &'static str, packet: Packet) -> Result<(TierReply, Vec<OwnedFd>), TierError> {
    match serde_json::from_slice(&packet.bytes) {
        Ok(TierReply::Refused { tier, problem, .. }) if tier.is_empty() => {
            Err(TierError::Daemon { attempt, problem })
        }
        Ok(TierReply::Refused { tier, problem, hint }) => Err(TierError::Tier { tier, problem, hint }),
        Ok(answer) => Ok((answer, packet.fds)),
        Err(error) => {
            Err(TierError::Protocol { attempt, expected: "an answer".into(), found: error.to_string() })
        }
    }
}

pub(super) fn unexpected(attempt: &'static str, answer: &TierReply) -> TierError {
    TierError::Protocol { attempt, expected: "its answer".into(), found: format!("{answer:?}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_that_does_not_end_is_killed() {
        let run = |command: &[&str]| {
            let command: Vec<String> = command.iter().map(|word| (*word).to_owned()).collect();
            run_until(&command, Instant::now() + Duration::from_millis(20), &NEVER)
        };
        assert!(run(&["sleep", "1000"]).is_err());
        assert!(run(&["/no/such/program"]).is_err() && run(&[]).is_err());
        let deadline = Instant::now() + START_WITHIN;
        assert_eq!(run_until(&["true".into()], deadline, &NEVER), Ok(()));
        let said = run_until(&["sh".into(), "-c".into(), "echo why >&2; exit 3".into()], deadline, &NEVER);
        assert!(said.unwrap_err().contains("why"));
    }
}
