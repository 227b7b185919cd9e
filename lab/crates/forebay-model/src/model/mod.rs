//! When a request completes, given all earlier requests.
//!
//! For one transfer of a node, in order:
//!
//! 1. Split it at stripe edges and at the request size into pieces, each for one server.
//! 2. A piece may start once the node has fewer than `request_depth` pieces in flight to its
//!    server, and has the lock of the object, if that is its first piece of it.
//! 3. Book the server: a seek, unless the piece begins where the last piece of that object ended,
//!    the work of a request, and the bytes at the target's bandwidth. Servers serve in order of
//!    arrival; later pieces may use a gap that rule 2 left.
//! 4. Book the node's link and its stream of the file from the piece's start, each for the bytes at
//!    its bandwidth. Server, link and stream work in parallel.
//! 5. The piece arrives once all are done and the latency has passed. The transfer completes with
//!    its last piece.
//!
//! Bookings are final: a stall or a slow server affects later pieces only. The specification, the
//! seed and the sequence of calls determine all results, on every machine. Time never goes back: a
//! call with an earlier time counts as made now.
mod between_nodes;
mod layout;
mod timeline;
mod write_back;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, HashSet};

use serde::{Deserialize, Serialize};

pub use self::layout::{Layout, StripeExtent};
use self::timeline::Timeline;
use self::write_back::WriteBack;
use crate::error::Error;
use crate::ids::{FileId, ModelTime, NodeId, ServerId};
use crate::spec::{FREE_BYTES_PER_SECOND, Spec};

/// Direction of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    /// From the servers to the node.
    Read,
    /// From the node to the servers.
    Write,
}

/// The part of a transfer that one server performs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The server.
    pub server: ServerId,
    /// Offset in the file \[B\].
    pub offset: u64,
    /// Length \[B\].
    pub bytes: u64,
    /// When the server begins, seek included.
    pub start: ModelTime,
    /// When the server has finished.
    pub end: ModelTime,
    /// When its bytes have arrived; they may be used before those of later pieces.
    pub due: ModelTime,
    /// How long it waited for the server \[ns\]: `start` less the time of the call.
    pub queue_ns: u64,
    /// Whether the server had to seek.
    pub seek: bool,
}

/// The queues of one file system.
#[derive(Clone, Debug)]
pub struct Model {
    spec: Spec,
    jitter: Noise,
    latest: ModelTime,
    servers: Vec<Server>,
    nodes: Vec<NodeLink>,
    metadata: Timeline,
    /// Where the last piece of each object ended \[B\].
    positions: HashMap<(FileId, ServerId), u64>,
    /// Arrival times of the pieces in flight, per node and server; the earliest on top.
    in_flight: HashMap<(NodeId, ServerId), BinaryHeap<Reverse<ModelTime>>>,
    /// What each node reads of each file, where that is limited.
    streams: Streams,
    /// Objects whose lock a node has, where a lock costs time.
    locked: HashSet<(NodeId, FileId, ServerId)>,
}

#[derive(Clone, Debug)]
struct Server {
    timeline: Timeline,
    stalled_until: ModelTime,
    factor: f64,
}

/// The link of a node, which is full duplex, and what its page cache has to write.
#[derive(Clone, Debug, Default)]
struct NodeLink {
    reads: Timeline,
    writes: Timeline,
    write_back: WriteBack,
}

/// Streams with work, by node and file.
#[derive(Clone, Debug, Default)]
struct Streams {
    busy: HashMap<(NodeId, FileId), Timeline>,
    /// Entries that the last purge left.
    kept: usize,
}

impl Streams {
    /// The stream of a file to a node, without what ended by `now`.
    fn of(&mut self, now: ModelTime, node: NodeId, file: FileId) -> &mut Timeline {
        // Idle ones are dropped now and then, at a cost that is constant per entry.
        if self.busy.len() > 2 * self.kept + 64 {
            self.busy.retain(|_, stream| !stream.forget(now));
            self.kept = self.busy.len();
        }
        let stream = self.busy.entry((node, file)).or_default();
        stream.forget(now);
        stream
    }
}

impl Model {
    /// Creates an idle file system without nodes.
    pub fn new(spec: Spec, seed: u64) -> Result<Self, Error> {
        spec.check()?;
        let server = Server { timeline: Timeline::default(), stalled_until: 0, factor: 1.0 };
        Ok(Model {
            servers: vec![server; spec.targets as usize],
            jitter: Noise::new(seed),
            latest: 0,
            nodes: Vec::new(),
            metadata: Timeline::default(),
            positions: HashMap::new(),
            in_flight: HashMap::new(),
            streams: Streams::default(),
            locked: HashSet::new(),
            spec,
        })
    }

    /// The specification.
    pub fn spec(&self) -> &Spec {
        &self.spec
    }

    /// Adds a node.
    pub fn add_node(&mut self) -> NodeId {
        self.nodes.push(NodeLink::default());
        NodeId(self.nodes.len() as u32 - 1)
    }

    /// Books a transfer at `now`, fills `pieces`, and returns when the last piece arrives.
    ///
    /// # Panics
    ///
    /// If [`Model::add_node`] did not return the node.
    #[expect(clippy::too_many_arguments, reason = "these are the parts of one request")]
    pub fn transfer(
        &mut self,
        now: ModelTime,
        node: NodeId,
        file: FileId,
        offset: u64,
        length: u64,
        direction: Direction,
        pieces: &mut Vec<Piece>,
    ) -> ModelTime {
        pieces.clear();
        let now = self.advance(now);
        let extents = Layout::of(&self.spec, file).split(offset, length, self.spec.request_bytes);
        // An empty transfer is still one request.
        let mut due = if length == 0 { now + self.latency_ns() } else { now };
        for extent in extents {
            // Positions matter only where a seek costs time.
            let end = extent.object_offset + extent.bytes;
            let seek = self.spec.seek_us > 0.0
                && self.positions.insert((file, extent.server), end) != Some(extent.object_offset);
            let seek_ns = if seek { self.seek_ns(extent.bytes) } else { 0 };
            let latency_ns = self.latency_ns();

            let depth = self.spec.request_depth as usize;
            let in_flight = self.in_flight.entry((node, extent.server)).or_default();
            while in_flight.peek().is_some_and(|&Reverse(arrival)| arrival <= now) {
                in_flight.pop();
            }
            let mut earliest = now;
            if in_flight.len() >= depth {
                // The heap never exceeds `depth`: this piece takes the slot of the first to arrive.
                earliest = in_flight.pop().map_or(now, |Reverse(arrival)| arrival);
            }
            if self.spec.lock_us > 0.0 && self.locked.insert((node, file, extent.server)) {
                earliest += nanoseconds(self.spec.lock_us / 1e6);
            }

            let server = &mut self.servers[extent.server.0 as usize];
            server.timeline.forget(now);
            let transfer_ns = transmission_ns(extent.bytes, self.spec.target_bytes_per_second);
            let work_ns = seek_ns + nanoseconds(self.spec.request_us / 1e6) + transfer_ns;
            let service_ns = scaled(work_ns, server.factor).max(work_ns.min(1));
            let start = server.timeline.book(earliest.max(server.stalled_until), service_ns);
            let end = start.saturating_add(service_ns);
            let mut arrival = end;
            if let Some(rate) = self.spec.link_bytes_per_second {
                let node = &mut self.nodes[node.0 as usize];
                let link = match direction {
                    Direction::Read => &mut node.reads,
                    Direction::Write => &mut node.writes,
                };
                link.forget(now);
                let link_ns = transmission_ns(extent.bytes, rate);
                arrival = arrival.max(link.book(start, link_ns).saturating_add(link_ns));
            }
            if let Some(rate) = self.spec.stream_bytes_per_second
                && direction == Direction::Read
            {
                let stream_ns = transmission_ns(extent.bytes, rate);
                let stream = self.streams.of(now, node, file);
                arrival = arrival.max(stream.book(start, stream_ns).saturating_add(stream_ns));
            }
            arrival = arrival.saturating_add(latency_ns);
            in_flight.push(Reverse(arrival));
            due = due.max(arrival);
            pieces.push(Piece {
                server: extent.server,
                offset: extent.offset,
                bytes: extent.bytes,
                start,
                end,
                due: arrival,
                queue_ns: start - now,
                seek,
            });
        }
        due
    }

    /// When a program goes on after a write of `bytes` at `now` whose last piece arrives at
    /// `arrival`: at once, while the node's page cache holds no more than `write_back_bytes`.
    pub fn written(&mut self, now: ModelTime, node: NodeId, bytes: u64, arrival: ModelTime) -> ModelTime {
        match self.spec.write_back_bytes {
            0 => arrival,
            limit => self.nodes[node.0 as usize].write_back.add(now, bytes, arrival, limit),
        }
    }

    /// When all bytes that a node has written have reached the servers.
    pub fn synchronized(&self, node: NodeId) -> ModelTime {
        self.nodes[node.0 as usize].write_back.last_arrival()
    }

    /// Books a metadata operation at `now` and returns when it completes.
    ///
    /// An idle server takes `metadata_us`; it begins at most `metadata_operations_per_second`.
    pub fn metadata(&mut self, now: ModelTime, node: NodeId) -> ModelTime {
        debug_assert!((node.0 as usize) < self.nodes.len());
        let now = self.advance(now);
        let mut alone_ns = nanoseconds(self.spec.metadata_us / 1e6);
        let mut start = now;
        if let Some(rate) = self.spec.metadata_operations_per_second {
            let service_ns = nanoseconds(1.0 / rate);
            self.metadata.forget(now);
            start = self.metadata.book(now, service_ns);
            alone_ns = alone_ns.max(service_ns);
        }
        start + scaled(alone_ns, self.jitter.factor(self.spec.jitter))
    }

    /// Stalls a server: it begins nothing new before `until`.
    pub fn stall(&mut self, server: ServerId, until: ModelTime) -> Result<(), Error> {
        let server = self.server(server)?;
        server.stalled_until = until;
        Ok(())
    }

    /// Slows a server down: new work takes `factor` times as long; 1 is normal.
    pub fn slow(&mut self, server: ServerId, factor: f64) -> Result<(), Error> {
        let name = self.spec.name.clone();
        let found = self.server(server)?;
        if !(factor > 0.0 && factor.is_finite()) {
            return Err(Error::SlowFactor { name, server: server.0, factor });
        }
        found.factor = factor;
        Ok(())
    }

    /// Empties all queues, forgets the disks' positions, and takes the nodes' locks back.
    ///
    /// Nodes, stalls, slow servers and the state of the jitter stay.
    pub fn reset(&mut self) {
        self.clear_transfers();
        self.metadata.clear();
        self.positions.clear();
        self.locked.clear();
    }

    /// Empties the queues of servers, links and streams: all booked transfers have been answered.
    pub fn clear_transfers(&mut self) {
        for server in &mut self.servers {
            server.timeline.clear();
        }
        self.nodes.fill(NodeLink::default());
        self.in_flight.clear();
        self.streams = Streams::default();
    }

    fn advance(&mut self, now: ModelTime) -> ModelTime {
        self.latest = self.latest.max(now);
        self.latest
    }

    fn server(&mut self, server: ServerId) -> Result<&mut Server, Error> {
        let last = self.spec.targets - 1;
        self.servers.get_mut(server.0 as usize).ok_or_else(|| Error::NoServer {
            name: self.spec.name.clone(),
            server: server.0,
            last,
        })
    }

    fn latency_ns(&mut self) -> u64 {
        scaled(nanoseconds(self.spec.latency_us / 1e6), self.jitter.factor(self.spec.jitter))
    }

    fn seek_ns(&mut self, bytes: u64) -> u64 {
        let disks = if bytes < self.spec.small_request_bytes { f64::from(self.spec.data_disks) } else { 1.0 };
        scaled(nanoseconds(self.spec.seek_us / disks / 1e6), self.jitter.factor(self.spec.jitter))
    }
}

/// Seconds as nanoseconds, rounded; saturates at the end of the clock.
fn nanoseconds(seconds: f64) -> u64 {
    (seconds * 1e9).round() as u64
}

/// How long bytes take at a rate: at least 1 ns, or 0 if the rate is free.
///
/// Work of 0 ns leaves no trace in a timeline, so later work could be booked across it.
fn transmission_ns(bytes: u64, bytes_per_second: f64) -> u64 {
    nanoseconds(bytes as f64 / bytes_per_second).max((bytes_per_second < FREE_BYTES_PER_SECOND).into())
}

/// A duration times a factor; exact for factor 1 and durations below 104 days (2^53 ns).
fn scaled(ns: u64, factor: f64) -> u64 {
    (ns as f64 * factor).round() as u64
}

/// A pseudorandom sequence that the seed determines.
///
/// `SplitMix64` (Steele, Lea, Flood: "Fast splittable pseudorandom number generators",
/// OOPSLA 2014).
#[derive(Clone, Debug)]
pub struct Noise(u64);

impl Noise {
    /// The sequence of a seed.
    pub fn new(seed: u64) -> Noise {
        Noise(seed)
    }

    /// The next number, from 0 to 1 (exclusive).
    pub fn fraction(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^= word >> 31;
        // A double holds 53 bits: the quotient is below 1.
        (word >> 11) as f64 / (1u64 << 53) as f64
    }

    /// A factor from 1 to 1 + `jitter`. Draws no number if `jitter` is 0.
    fn factor(&mut self, jitter: f64) -> f64 {
        if jitter == 0.0 { 1.0 } else { 1.0 + jitter * self.fraction() }
    }
}
