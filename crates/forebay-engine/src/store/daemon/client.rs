//! A process's connection to the store daemon of its user on its node.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use forebay_host::{HostError, Map, PacketSocket, Received, Sent, fork, own_pidfd, runtime_directory_path};
use forebay_types::CHUNK_BYTES;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::store::daemon::error::StoreDaemonError;
use crate::store::daemon::messages::{
    SharedDataset, StoreAction, StoreReply, StoreRequest, VERSION, check_share, chunks_to_memory,
};
use crate::store::daemon::{ANSWER_WITHIN, FREE_WITHIN, socket_path};

/// Interval between two looks whether to go on.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// How long the end of a daemon is waited for: it frees all its memory.
const END_WITHIN: Duration = Duration::from_secs(60);

/// A share that the daemon keeps.
pub(crate) struct FoundShare {
    /// Sealed memory with a chunk after the other.
    pub(crate) memory: OwnedFd,
    /// The same.
    pub(crate) map: Map,
    /// Its chunks, in ascending order.
    pub(crate) chunks: Vec<u64>,
    /// Other loaders use it too.
    pub(crate) is_shared: bool,
}

impl FoundShare {
    /// The first bytes of a chunk, if it is in the share.
    pub(crate) fn chunk(&self, chunk: u64, bytes: u64) -> Option<&[u8]> {
        let slot = self.chunks.binary_search(&chunk).ok()?;
        let start = slot * CHUNK_BYTES as usize;
        self.map.bytes().get(start..start + bytes.min(CHUNK_BYTES) as usize)
    }
}

/// A connection; while it is open, the daemon holds the share that was found or handed over.
pub(crate) struct StoreConnection {
    socket: PacketSocket,
    generation: u64,
}

/// Whether a wait should end.
type Stop<'a> = &'a dyn Fn() -> bool;

impl StoreConnection {
    /// Connects to the daemon of this user on this node; `None` if there is none.
    pub(crate) fn existing() -> Result<Option<Self>, StoreDaemonError> {
        let failed = StoreDaemonError::host("connect");
        // Who only looks for a daemon makes no directory.
        if !runtime_directory_path().map_err(&failed)?.exists() {
            return Ok(None);
        }
        let path = socket_path().map_err(&failed)?;
        let socket = PacketSocket::connect(path.socket()).map_err(&failed)?;
        Ok(socket.map(|socket| Self { socket, generation: fork::generation() }))
    }

    /// The kept share of a dataset, and the memory of unused shares of others \[bytes\].
    pub(crate) fn find(
        &self,
        dataset: &SharedDataset,
        stop: Stop<'_>,
    ) -> Result<(Option<FoundShare>, u64), StoreDaemonError> {
        let attempt = "find a share";
        let pidfd = own_pidfd().map_err(StoreDaemonError::host(attempt))?;
        let action = StoreAction::Find { dataset: dataset.clone() };
        let (answer, fds) = self.ask(attempt, &action, &[pidfd.as_fd()], ANSWER_WITHIN, stop)?;
        let StoreReply::Found { is_kept, is_shared, unused_bytes } = answer else {
            return Err(unexpected(attempt, &answer));
        };
        if !is_kept {
            return Ok((None, unused_bytes));
        }
        let count = fds.len();
        let invalid = |(expected, found)| StoreDaemonError::Invalid { attempt, expected, found };
        let [memory, chunk_list]: [OwnedFd; 2] = fds
            .try_into()
            .map_err(|_| invalid(("memory and chunks".into(), format!("{count} descriptors"))))?;
        let chunks = check_share(&memory, &chunk_list).map_err(invalid)?;
        let map = Map::read_only(&memory).map_err(StoreDaemonError::host(attempt))?;
        Ok((Some(FoundShare { memory, map, chunks, is_shared }), unused_bytes))
    }

    /// Hands over a share; in case of `Some`, it is not kept, and the daemon has room for this much
    /// \[bytes\].
    pub(crate) fn keep(
        &self,
        dataset: &SharedDataset,
        (node, nodes): (u32, u32),
        memory: BorrowedFd<'_>,
        chunks: &[u64],
        frees_bytes: u64,
        stop: Stop<'_>,
    ) -> Result<Option<u64>, StoreDaemonError> {
        let attempt = "keep a share";
        let list = chunks_to_memory(chunks).map_err(StoreDaemonError::host(attempt))?;
        let action = StoreAction::Keep { dataset: dataset.clone(), node, nodes };
        match self.ask(attempt, &action, &[memory, list.as_fd()], freeing(frees_bytes), stop)?.0 {
            StoreReply::Kept { is_kept: true, .. } => Ok(None),
            StoreReply::Kept { room_bytes, .. } => Ok(Some(room_bytes)),
            other => Err(unexpected(attempt, &other)),
        }
    }

    /// Frees unused shares; returns their memory \[bytes\].
    pub(crate) fn make_room(
        &self,
        bytes: u64,
        unused_bytes: u64,
        stop: Stop<'_>,
    ) -> Result<u64, StoreDaemonError> {
        self.freed("make room", &StoreAction::MakeRoom { bytes }, unused_bytes, stop)
    }

    /// Drops the share that was found, unless others use it; returns what is freed \[bytes\].
    pub(crate) fn drop_share(&self, bytes: u64, stop: Stop<'_>) -> Result<u64, StoreDaemonError> {
        self.freed("drop a share", &StoreAction::Release { drops: true }, bytes, stop)
    }

    fn freed(
        &self,
        attempt: &'static str,
        action: &StoreAction,
        bytes: u64,
        stop: Stop<'_>,
    ) -> Result<u64, StoreDaemonError> {
        match self.ask(attempt, action, &[], freeing(bytes), stop)?.0 {
            StoreReply::Freed { bytes } => Ok(bytes),
            other => Err(unexpected(attempt, &other)),
        }
    }

    /// Sends a request and waits for its answer. After an error, the connection is of no use.
    fn ask(
        &self,
        attempt: &'static str,
        action: &StoreAction,
        fds: &[BorrowedFd<'_>],
        within: Duration,
        stop: Stop<'_>,
    ) -> Result<(StoreReply, Vec<OwnedFd>), StoreDaemonError> {
        let failed = StoreDaemonError::host(attempt);
        let begun = Instant::now();
        let late = StoreDaemonError::Late { attempt, pid: self.socket.peer_pid(), seconds: within.as_secs() };
        match self.socket.try_send(&request(action), b"", fds).map_err(&failed)? {
            Sent::Yes => {}
            Sent::Full => return Err(late),
            Sent::Closed => return Err(StoreDaemonError::Ended { attempt }),
        }
        loop {
            match self.socket.try_receive().map_err(&failed)? {
                Received::Packet(packet) => {
                    let answer =
                        serde_json::from_slice(&packet.bytes).map_err(|error| StoreDaemonError::Invalid {
                            attempt,
                            expected: "an answer".into(),
                            found: format!("{error} in {:?}", beginning(&packet.bytes)),
                        })?;
                    return match answer {
                        StoreReply::Refused { problem } => {
                            Err(StoreDaemonError::Refused { attempt, problem })
                        }
                        answer => Ok((answer, packet.fds)),
                    };
                }
                Received::Closed => return Err(StoreDaemonError::Ended { attempt }),
                Received::Nothing => {}
            }
            if stop() {
                return Err(StoreDaemonError::Interrupted { attempt });
            }
            let left = within.saturating_sub(begun.elapsed());
            if left.is_zero() {
                return Err(late);
            }
            wait_for(&self.socket, left.min(CHECK_INTERVAL)).map_err(&failed)?;
        }
    }
}

impl Drop for StoreConnection {
    fn drop(&mut self) {
        // A forked child may hold the socket open.
        if !fork::in_forked_child(self.generation) {
            let _ = self.socket.try_send(&request(&StoreAction::Release { drops: false }), b"", &[]);
        }
    }
}

/// What the daemon of this user on this node holds, as JSON; `None` if there is none.
///
/// # Errors
/// It does not answer.
pub fn store_status() -> Result<Option<String>, StoreDaemonError> {
    let attempt = "get the status";
    let Some(connection) = StoreConnection::existing()? else { return Ok(None) };
    let (answer, fds) = connection.ask(attempt, &StoreAction::Status, &[], ANSWER_WITHIN, &|| false)?;
    let (StoreReply::Status, [status]) = (&answer, &fds[..]) else {
        return Err(unexpected(attempt, &answer));
    };
    let map = Map::read_only(status).map_err(StoreDaemonError::host(attempt))?;
    let text = String::from_utf8_lossy(map.bytes()).into_owned();
    match serde_json::from_str::<serde_json::Value>(&text) {
        Ok(status) if status.is_object() => Ok(Some(text)),
        _ => Err(StoreDaemonError::Invalid {
            attempt,
            expected: "an object".into(),
            found: format!("{:?}", beginning(text.as_bytes())),
        }),
    }
}

/// Ends the daemon of this user on this node, and waits until its memory is free; returns its
/// process id and how many processes use its shares, `None` if there is none.
///
/// # Errors
/// It does not answer, or does not end.
pub fn stop_store() -> Result<Option<(i32, u32)>, StoreDaemonError> {
    let attempt = "stop";
    let Some(connection) = StoreConnection::existing()? else { return Ok(None) };
    let (answer, _) = connection.ask(attempt, &StoreAction::Stop, &[], ANSWER_WITHIN, &|| false)?;
    let StoreReply::Stopping { users } = answer else { return Err(unexpected(attempt, &answer)) };
    let (begun, pid) = (Instant::now(), connection.socket.peer_pid());
    while !matches!(connection.socket.try_receive(), Ok(Received::Closed) | Err(_)) {
        if begun.elapsed() > END_WITHIN {
            let seconds = END_WITHIN.as_secs();
            return Err(StoreDaemonError::Late { attempt, pid, seconds });
        }
        wait_for(&connection.socket, CHECK_INTERVAL).map_err(StoreDaemonError::host(attempt))?;
    }
    Ok(Some((pid, users)))
}

fn request(action: &StoreAction) -> Vec<u8> {
    serde_json::to_vec(&StoreRequest { version: VERSION, action }).expect("requests can be written as JSON")
}

/// Timeout of an answer before which so much memory may be freed.
fn freeing(bytes: u64) -> Duration {
    ANSWER_WITHIN + FREE_WITHIN * u32::try_from(bytes >> 30).unwrap_or(u32::MAX / 2)
}

fn wait_for(socket: &PacketSocket, within: Duration) -> Result<(), HostError> {
    let within = Timespec { tv_sec: within.as_secs() as i64, tv_nsec: i64::from(within.subsec_nanos()) };
    match poll(&mut [PollFd::new(socket, PollFlags::IN)], Some(&within)) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(HostError::system("wait for a process of this node")(error)),
    }
}

fn unexpected(attempt: &'static str, answer: &StoreReply) -> StoreDaemonError {
    StoreDaemonError::Invalid { attempt, expected: "its answer".into(), found: format!("{answer:?}") }
}

/// The beginning of bytes that may be anything.
fn beginning(bytes: &[u8]) -> String {
    String::from_utf8_lossy(&bytes[..bytes.len().min(40)]).into_owned()
}
