//! What the store daemon does for its clients; `forebay_host::Daemon` is its loop.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use forebay_host::{
    Caller, ClientId, Daemon, HostError, Packet, Reply, Service, available_bytes, limit_bytes, sealed_copy,
};
use forebay_types::CHUNK_BYTES;
use serde_json::{Value, json};

use crate::store::daemon::error::StoreDaemonError;
use crate::store::daemon::kept_shares::KeptShares;
use crate::store::daemon::messages::{
    STOP, SharedDataset, StoreAction, StoreReply, StoreRequestHead, VERSION, check_share,
};
use crate::store::daemon::socket_path;

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

/// A running daemon.
pub struct StoreDaemon {
    // Memory is freed before connections are closed: `stop_store` waits for that.
    store: Store,
    daemon: Daemon,
}

struct Store {
    shares: KeptShares<Memory>,
    /// Processes of the clients that asked for a share.
    pids: BTreeMap<ClientId, i32>,
    memory_bytes: u64,
    idle: Duration,
    used: Instant,
    looked_at_memory: Instant,
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
        let started = socket_path().and_then(|path| Daemon::start(&path));
        let Some(daemon) = started.map_err(StoreDaemonError::host("start"))? else { return Ok(None) };
        let store = Store {
            shares: KeptShares::new(memory_bytes),
            pids: BTreeMap::new(),
            memory_bytes,
            idle,
            used: Instant::now(),
            looked_at_memory: Instant::now(),
            is_stopped: false,
        };
        Ok(Some(Self { store, daemon }))
    }

    /// Serves until nothing was used for the idle time, a client asks for the end, or `stop` is
    /// set.
    pub fn run(mut self, stop: &AtomicBool) {
        if let Err(error) = self.daemon.run(&mut self.store, stop) {
            tracing::error!(%error, "the store daemon ends");
        }
    }
}

impl Service for Store {
    fn answer(&mut self, caller: Caller, packet: Packet) -> Reply {
        let mut reply = Reply::default();
        let answer = self
            .answered(caller, packet, &mut reply)
            .unwrap_or_else(|error| StoreReply::Refused { problem: error.to_string() });
        reply.bytes = serde_json::to_vec(&answer).expect("answers can be written as JSON");
        reply
    }

    fn left(&mut self, client: ClientId) {
        self.release(client, false);
        self.pids.remove(&client);
    }

    fn idle_left(&mut self, _: usize) -> Duration {
        if self.is_stopped {
            return Duration::ZERO;
        }
        if self.looked_at_memory.elapsed() > MEMORY_INTERVAL {
            self.looked_at_memory = Instant::now();
            self.give_way();
        }
        if self.shares.is_used() {
            self.used = Instant::now();
        }
        self.idle.saturating_sub(self.used.elapsed())
    }
}

impl Store {
    /// Drops unused shares if little memory is free.
    fn give_way(&mut self) {
        if self.shares.unused_bytes() == 0 {
            return;
        }
        let least = limit_bytes() / LEAST_FREE_PART;
        self.shares.make_room(least.saturating_sub(available_bytes()));
    }

    fn release(&mut self, id: ClientId, drops: bool) -> u64 {
        if self.shares.iter().any(|share| share.users.contains(&id)) {
            self.used = Instant::now();
        }
        self.shares.update(id, |memory| memory.used = SystemTime::now());
        self.shares.release(id, drops)
    }

    fn answered(
        &mut self,
        caller: Caller,
        packet: Packet,
        reply: &mut Reply,
    ) -> Result<StoreReply, StoreDaemonError> {
        let id = caller.client;
        let attempt = "read a request";
        let wrong = |expected: String, found: String| StoreDaemonError::Invalid { attempt, expected, found };
        let invalid =
            |error: serde_json::Error| wrong(format!("a request of version {VERSION}"), error.to_string());
        let head: StoreRequestHead = serde_json::from_slice(&packet.bytes).map_err(invalid)?;
        if head.version != VERSION && head.ask != STOP {
            return Err(wrong(format!("version {VERSION}"), format!("version {}", head.version)));
        }
        let action = serde_json::from_slice(&packet.bytes).map_err(invalid)?;
        let count = packet.fds.len();
        let descriptors = |expected: &str| wrong(expected.into(), format!("{count} descriptors"));
        Ok(match action {
            StoreAction::Find { dataset } => {
                let [pidfd]: [OwnedFd; 1] = packet.fds.try_into().map_err(|_| descriptors("a pidfd"))?;
                reply.pidfd = Some(pidfd);
                self.pids.insert(id, caller.pid);
                self.find(id, &dataset, &mut reply.fds)?
            }
            StoreAction::Keep { dataset, node, nodes } => {
                let [share, chunk_list]: [OwnedFd; 2] =
                    packet.fds.try_into().map_err(|_| descriptors("memory and chunks"))?;
                let chunks = check_share(&share, &chunk_list)
                    .map_err(|(expected, found)| wrong(expected, found))?
                    .len() as u64;
                let now = SystemTime::now();
                let memory = Memory { share, chunk_list, chunks, node, nodes, loaded: now, used: now };
                self.pids.insert(id, caller.pid);
                self.keep(id, dataset, memory)
            }
            StoreAction::MakeRoom { bytes } => StoreReply::Freed { bytes: self.shares.make_room(bytes) },
            StoreAction::Release { drops } => StoreReply::Freed { bytes: self.release(id, drops) },
            StoreAction::Status => {
                let text = self.status().to_string();
                reply.fds.push(
                    sealed_copy("forebay-store-status", text.as_bytes())
                        .map_err(StoreDaemonError::host(attempt))?,
                );
                StoreReply::Status
            }
            StoreAction::Stop => {
                self.is_stopped = true;
                StoreReply::Stopping { users: self.users().len() as u32 }
            }
        })
    }

    fn find(
        &mut self,
        id: ClientId,
        dataset: &SharedDataset,
        fds: &mut Vec<OwnedFd>,
    ) -> Result<StoreReply, StoreDaemonError> {
        self.used = Instant::now();
        let duplicate = |fd: &OwnedFd| {
            fd.try_clone()
                .map_err(|error| HostError::system("duplicate a descriptor")(error))
                .map_err(StoreDaemonError::host("find a share"))
        };
        let (mut is_kept, mut is_shared) = (false, false);
        if let Some(share) = self.shares.find(dataset, id) {
            fds.push(duplicate(&share.memory.share)?);
            fds.push(duplicate(&share.memory.chunk_list)?);
            (is_kept, is_shared) = (true, share.users.len() > 1);
        }
        self.shares.update(id, |memory| memory.used = SystemTime::now());
        Ok(StoreReply::Found { is_kept, is_shared, unused_bytes: self.shares.unused_bytes() })
    }

    fn keep(&mut self, id: ClientId, dataset: SharedDataset, memory: Memory) -> StoreReply {
        self.used = Instant::now();
        let bytes = memory.chunks * CHUNK_BYTES;
        match self.shares.keep(dataset, bytes, memory, id) {
            Ok(()) => StoreReply::Kept { is_kept: true, room_bytes: 0 },
            Err(room_bytes) => StoreReply::Kept { is_kept: false, room_bytes },
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
        users.into_iter().filter_map(|id| self.pids.get(id)).copied()
    }

    fn status(&self) -> Value {
        let unix_s = |time: SystemTime| time.duration_since(UNIX_EPOCH).map_or(0, |passed| passed.as_secs());
        let shares: Vec<Value> = self
            .shares
            .iter()
            .map(|share| {
                json!({
                    "path": share.dataset.path,
                    "dataset": share.dataset.version,
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
