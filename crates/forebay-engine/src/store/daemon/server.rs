//! The loop of the store daemon: clients that come, ask and go.
//!
//! One thread; each request is answered before the next. It never waits for a client: a packet that
//! does not fit into a client's socket ends the connection.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use forebay_host::{
    HostError, Packet, PacketListener, PacketSocket, Received, Sent, SocketLock, available_bytes,
    limit_bytes, sealed_copy,
};
use forebay_types::CHUNK_BYTES;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use serde_json::{Value, json};

use crate::store::daemon::error::StoreDaemonError;
use crate::store::daemon::kept_shares::{ClientId, KeptShares};
use crate::store::daemon::messages::{Action, Answer, DataSet, RequestHead, STOP, VERSION, check_share};
use crate::store::daemon::socket_path;

/// Pending connections.
const BACKLOG: i32 = 64;

/// Most clients: one for each loader of the node.
const MAX_CLIENTS: usize = 1024;

/// Longest wait between two looks at `stop` and the idle time.
const INTERVAL: Duration = Duration::from_millis(500);

/// Interval between two looks at the free memory, which take less than a millisecond.
const MEMORY_INTERVAL: Duration = Duration::from_secs(1);

/// Unused shares are dropped if less than this part of the memory is free: the programs of the node
/// need it.
const LEAST_FREE_PART: u64 = 16;

/// Descriptors of a share, and what the status says of it.
struct Memory {
    share: OwnedFd,
    chunk_list: OwnedFd,
    chunks: u64,
    node: u32,
    nodes: u32,
    loaded: SystemTime,
    used: SystemTime,
}

struct Client {
    socket: PacketSocket,
    pid: i32,
    /// It becomes readable when the process has ended, also if a child holds the socket open.
    pidfd: Option<OwnedFd>,
}

/// A running daemon.
pub struct StoreDaemon {
    listener: PacketListener,
    _lock: SocketLock,
    shares: KeptShares<Memory>,
    clients: BTreeMap<ClientId, Client>,
    next_client: ClientId,
    memory_bytes: u64,
    idle: Duration,
    used: Instant,
    is_stopped: bool,
}

impl StoreDaemon {
    /// Memory that a daemon takes if the user does not say: half of that of the node \[bytes\].
    #[must_use]
    pub fn default_memory_bytes() -> u64 {
        limit_bytes() / 2
    }

    /// Listens; `None` if this user has a daemon on this node.
    ///
    /// # Errors
    /// The runtime directory cannot be used.
    pub fn start(memory_bytes: u64, idle: Duration) -> Result<Option<Self>, StoreDaemonError> {
        let failed = StoreDaemonError::host("start");
        let path = socket_path().map_err(&failed)?;
        let Some(lock) = path.try_lock().map_err(&failed)? else { return Ok(None) };
        let listener = lock.listen(BACKLOG).map_err(&failed)?;
        Ok(Some(Self {
            listener,
            _lock: lock,
            shares: KeptShares::new(memory_bytes),
            clients: BTreeMap::new(),
            next_client: 0,
            memory_bytes,
            idle,
            used: Instant::now(),
            is_stopped: false,
        }))
    }

    /// Serves until nothing was used for the idle time, a client asks for the end, or `stop` is
    /// set.
    pub fn run(mut self, stop: &AtomicBool) {
        let mut looked_at_memory = Instant::now();
        while !stop.load(Ordering::Relaxed) && !self.is_stopped {
            if self.shares.is_used() {
                self.used = Instant::now();
            }
            let idle_left = self.idle.saturating_sub(self.used.elapsed());
            if idle_left.is_zero() {
                break;
            }
            if looked_at_memory.elapsed() > MEMORY_INTERVAL {
                looked_at_memory = Instant::now();
                self.give_way();
            }
            if let Err(error) = self.wait_and_serve(idle_left.min(INTERVAL)) {
                tracing::error!(%error, "the store daemon cannot wait for clients");
                break;
            }
        }
    }

    /// Drops unused shares if little memory is free.
    fn give_way(&mut self) {
        if self.shares.unused_bytes() == 0 {
            return;
        }
        let least = limit_bytes() / LEAST_FREE_PART;
        self.shares.make_room(least.saturating_sub(available_bytes()));
    }

    fn wait_and_serve(&mut self, within: Duration) -> Result<(), std::io::Error> {
        let mut polled = vec![PollFd::new(&self.listener, PollFlags::IN)];
        let mut owners = Vec::new();
        for (id, client) in &self.clients {
            polled.push(PollFd::new(&client.socket, PollFlags::IN));
            owners.push((*id, false));
            if let Some(pidfd) = &client.pidfd {
                polled.push(PollFd::new(pidfd, PollFlags::IN));
                owners.push((*id, true));
            }
        }
        let within = Timespec { tv_sec: within.as_secs() as i64, tv_nsec: i64::from(within.subsec_nanos()) };
        match poll(&mut polled, Some(&within)) {
            Ok(_) => {}
            Err(Errno::INTR) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
        let is_ready: Vec<bool> = polled.iter().map(|one| !one.revents().is_empty()).collect();
        drop(polled);
        // Requests come before the end of a process that sent them.
        for wants_pidfd in [false, true] {
            let ready = owners.iter().zip(&is_ready[1..]).filter(|(_, is_ready)| **is_ready);
            for ((id, is_pidfd), _) in ready.filter(|((_, is_pidfd), _)| *is_pidfd == wants_pidfd) {
                if *is_pidfd {
                    self.leave(*id);
                } else if self.clients.contains_key(id) {
                    self.serve(*id);
                }
            }
        }
        if is_ready[0] {
            while let Ok(Some(socket)) = self.listener.accept() {
                self.admit(socket);
            }
        }
        Ok(())
    }

    /// Admits a process of this user.
    fn admit(&mut self, socket: PacketSocket) {
        match socket.peer_credentials() {
            Ok((uid, pid)) if uid == rustix::process::geteuid().as_raw() => {
                if self.clients.len() < MAX_CLIENTS {
                    self.clients.insert(self.next_client, Client { socket, pid, pidfd: None });
                    self.next_client += 1;
                }
            }
            Ok((uid, pid)) => tracing::warn!(uid, pid, "a process of another user is refused"),
            Err(error) => tracing::warn!(%error, "a process is refused"),
        }
    }

    fn leave(&mut self, id: ClientId) {
        self.release(id, false);
        self.clients.remove(&id);
    }

    fn release(&mut self, id: ClientId, drops: bool) -> u64 {
        if self.shares.iter().any(|share| share.users.contains(&id)) {
            self.used = Instant::now();
        }
        self.shares.update(id, |memory| memory.used = SystemTime::now());
        self.shares.release(id, drops)
    }

    /// Answers what a client has sent.
    fn serve(&mut self, id: ClientId) {
        while let Some(client) = self.clients.get(&id) {
            let packet = match client.socket.try_receive() {
                Ok(Received::Packet(packet)) => packet,
                Ok(Received::Nothing) => return,
                Ok(Received::Closed) => return self.leave(id),
                Err(error) => {
                    tracing::info!(%error, "a client of the store daemon is cut off");
                    return self.leave(id);
                }
            };
            let mut fds = Vec::new();
            let answer = self
                .answer(id, packet, &mut fds)
                .unwrap_or_else(|error| Answer::Refused { problem: error.to_string() });
            let bytes = serde_json::to_vec(&answer).expect("answers can be written as JSON");
            let borrowed: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
            let sent = self.clients[&id].socket.try_send(&bytes, b"", &borrowed);
            // A client has one request under way: it cannot have left so many answers unread.
            if !matches!(sent, Ok(Sent::Yes)) {
                return self.leave(id);
            }
        }
    }

    fn answer(
        &mut self,
        id: ClientId,
        packet: Packet,
        fds: &mut Vec<OwnedFd>,
    ) -> Result<Answer, StoreDaemonError> {
        let attempt = "read a request";
        let wrong = |expected: String, found: String| StoreDaemonError::Invalid { attempt, expected, found };
        let invalid =
            |error: serde_json::Error| wrong(format!("a request of version {VERSION}"), error.to_string());
        let head: RequestHead = serde_json::from_slice(&packet.bytes).map_err(invalid)?;
        if head.version != VERSION && head.ask != STOP {
            return Err(wrong(format!("version {VERSION}"), format!("version {}", head.version)));
        }
        let action = serde_json::from_slice(&packet.bytes).map_err(invalid)?;
        let count = packet.fds.len();
        let descriptors = |expected: &str| wrong(expected.into(), format!("{count} descriptors"));
        Ok(match action {
            Action::Find { data_set } => {
                let [pidfd]: [OwnedFd; 1] = packet.fds.try_into().map_err(|_| descriptors("a pidfd"))?;
                if let Some(client) = self.clients.get_mut(&id) {
                    client.pidfd = Some(pidfd);
                }
                self.find(id, &data_set, fds)?
            }
            Action::Keep { data_set, node, nodes } => {
                let [share, chunk_list]: [OwnedFd; 2] =
                    packet.fds.try_into().map_err(|_| descriptors("memory and chunks"))?;
                let chunks = check_share(&share, &chunk_list)
                    .map_err(|(expected, found)| wrong(expected, found))?
                    .len() as u64;
                let now = SystemTime::now();
                let memory = Memory { share, chunk_list, chunks, node, nodes, loaded: now, used: now };
                self.keep(id, data_set, memory)
            }
            Action::MakeRoom { bytes } => Answer::Freed { bytes: self.shares.make_room(bytes) },
            Action::Release { drops } => Answer::Freed { bytes: self.release(id, drops) },
            Action::Status => {
                let text = self.status().to_string();
                fds.push(
                    sealed_copy("forebay-store-status", text.as_bytes())
                        .map_err(StoreDaemonError::host(attempt))?,
                );
                Answer::Status
            }
            Action::Stop => {
                self.is_stopped = true;
                Answer::Stopping { users: self.users().len() as u32 }
            }
        })
    }

    fn find(
        &mut self,
        id: ClientId,
        data_set: &DataSet,
        fds: &mut Vec<OwnedFd>,
    ) -> Result<Answer, StoreDaemonError> {
        self.used = Instant::now();
        let duplicate = |fd: &OwnedFd| {
            fd.try_clone()
                .map_err(|error| HostError::system("duplicate a descriptor")(error))
                .map_err(StoreDaemonError::host("find a share"))
        };
        let (mut is_kept, mut is_shared) = (false, false);
        if let Some(share) = self.shares.find(data_set, id) {
            fds.push(duplicate(&share.memory.share)?);
            fds.push(duplicate(&share.memory.chunk_list)?);
            (is_kept, is_shared) = (true, share.users.len() > 1);
        }
        self.shares.update(id, |memory| memory.used = SystemTime::now());
        Ok(Answer::Found { is_kept, is_shared, unused_bytes: self.shares.unused_bytes() })
    }

    fn keep(&mut self, id: ClientId, data_set: DataSet, memory: Memory) -> Answer {
        self.used = Instant::now();
        let bytes = memory.chunks * CHUNK_BYTES;
        match self.shares.keep(data_set, bytes, memory, id) {
            Ok(()) => Answer::Kept { is_kept: true, room_bytes: 0 },
            Err(room_bytes) => Answer::Kept { is_kept: false, room_bytes },
        }
    }

    /// Processes that use shares.
    fn users(&self) -> Vec<i32> {
        let mut pids: Vec<i32> = self.shares.iter().flat_map(|share| self.pids(&share.users)).collect();
        pids.sort_unstable();
        pids.dedup();
        pids
    }

    fn pids<'a>(
        &'a self,
        users: impl IntoIterator<Item = &'a ClientId> + 'a,
    ) -> impl Iterator<Item = i32> + 'a {
        users.into_iter().filter_map(|id| self.clients.get(id)).map(|client| client.pid)
    }

    fn status(&self) -> Value {
        let unix_s = |time: SystemTime| time.duration_since(UNIX_EPOCH).map_or(0, |passed| passed.as_secs());
        let shares: Vec<Value> = self
            .shares
            .iter()
            .map(|share| {
                json!({
                    "path": share.data_set.path,
                    "data_set": share.data_set.version,
                    "node": share.memory.node,
                    "nodes": share.memory.nodes,
                    "chunks": share.memory.chunks,
                    "bytes": share.bytes,
                    "loaded_unix_s": unix_s(share.memory.loaded),
                    "used_unix_s": unix_s(share.memory.used),
                    "pids": self.pids(&share.users).collect::<Vec<_>>(),
                })
            })
            .collect();
        let idle_left = self.idle.saturating_sub(self.used.elapsed()).as_secs_f64();
        json!({
            "pid": std::process::id(),
            "memory_bytes": self.memory_bytes,
            "held_bytes": self.shares.held_bytes(),
            "idle_s": self.idle.as_secs_f64(),
            "idle_left_s": (!self.shares.is_used()).then_some(idle_left),
            "shares": shares,
        })
    }
}
