//! When a request is answered, given all that came before it.
//!
//! In order, for one transfer of a node:
//!
//! 1. It is cut into pieces at stripe edges and at the request size; each piece goes to the server that holds it.
//! 2. A piece may start once the node has fewer than `request_depth` pieces in flight to that server.
//! 3. It books the server: a seek, unless it begins where the last piece of that object ended, and its bytes at the target's bandwidth.
//!    Servers serve in the order of coming; a gap that rule 2 left is used by whoever fits into it.
//! 4. It books the node's link, from its start on, for its bytes at the link's bandwidth; both go on side by side.
//! 5. It has arrived once both are done and the latency has passed. The transfer is due when its last piece has arrived.
//!
//! Bookings are final: a stall or a slow server changes what comes after it. Given the specification, the seed and the sequence of calls,
//! all answers are the same, on every machine. There is no clock in here; time only goes forward, a call that comes from the past is
//! taken as coming now.
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::layout::Layout;
use crate::spec::{FREE_BYTES_PER_SECOND, Spec};
use crate::timeline::Timeline;

/// Nanoseconds since the model's start, in the time of the modelled file system.
pub type ModelTime = u64;

/// A client of the file system: has its own link and its own requests in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct NodeId(pub u32);

/// A file; files numbered one after the other begin on servers one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct FileId(pub u64);

/// A target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ServerId(pub u32);

/// Direction of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// From the servers to the node.
    Read,
    /// From the node to the servers.
    Write,
}

/// What one server does for one transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Who does it.
    pub server: ServerId,
    /// Where it begins in the file \[B\].
    pub offset: u64,
    /// How long it is \[B\].
    pub bytes: u64,
    /// When the server begins, the seek included.
    pub start: ModelTime,
    /// When the server is done.
    pub end: ModelTime,
    /// When its bytes have arrived (and may be used before those of later pieces).
    pub due: ModelTime,
    /// How long it waited for its turn \[ns\]: `start` less the time of the call.
    pub queue_ns: u64,
    /// Whether the server had to seek.
    pub seek: bool,
}

/// All queues of one file system.
#[derive(Clone, Debug)]
pub struct Model {
    spec: Spec,
    noise: Noise,
    latest: ModelTime,
    servers: Vec<Server>,
    nodes: Vec<Node>,
    metadata: Timeline,
    /// Where the last piece of each object ended.
    positions: HashMap<(FileId, ServerId), u64>,
    /// When answers arrive that are still under way, for each node and server; the earliest on top.
    in_flight: HashMap<(NodeId, ServerId), BinaryHeap<Reverse<ModelTime>>>,
}

#[derive(Clone, Debug)]
struct Server {
    timeline: Timeline,
    stalled_until: ModelTime,
    factor: f64,
}

/// The link of a node; directions do not disturb each other.
#[derive(Clone, Debug, Default)]
struct Node {
    reads: Timeline,
    writes: Timeline,
}

impl Model {
    /// An idle file system without nodes.
    pub fn new(spec: Spec, seed: u64) -> Result<Self, Error> {
        spec.check()?;
        let server = Server { timeline: Timeline::default(), stalled_until: 0, factor: 1.0 };
        Ok(Model {
            servers: vec![server; spec.targets as usize],
            noise: Noise(seed),
            latest: 0,
            nodes: Vec::new(),
            metadata: Timeline::default(),
            positions: HashMap::new(),
            in_flight: HashMap::new(),
            spec,
        })
    }

    /// What is modelled.
    pub fn spec(&self) -> &Spec {
        &self.spec
    }

    /// One more client.
    pub fn add_node(&mut self) -> NodeId {
        self.nodes.push(Node::default());
        NodeId(self.nodes.len() as u32 - 1)
    }

    /// Books a transfer that is asked for at `now`; answers when all of it has arrived, and fills `pieces` with what was done for it.
    ///
    /// # Panics
    ///
    /// When the node is none of this model's.
    #[expect(clippy::too_many_arguments, reason = "one request is exactly these")]
    pub fn transfer(
        &mut self,
        now: ModelTime,
        node: NodeId,
        file: FileId,
        offset: u64,
        length: u64,
        kind: Kind,
        pieces: &mut Vec<Piece>,
    ) -> ModelTime {
        pieces.clear();
        let now = self.advance(now);
        let cuts = Layout::of(&self.spec, file).cut(offset, length, self.spec.request_bytes);
        // A transfer of nothing still asks somebody.
        let mut due = if length == 0 { now + self.latency_ns() } else { now };
        for stretch in cuts {
            // Where nothing seeks nobody needs to know where the disks stand.
            let end = stretch.object_offset + stretch.bytes;
            let seek = self.spec.seek_us > 0.0
                && self.positions.insert((file, stretch.server), end) != Some(stretch.object_offset);
            let seek_ns = if seek { self.seek_ns(stretch.bytes) } else { 0 };
            let latency_ns = self.latency_ns();

            let depth = self.spec.request_depth as usize;
            let in_flight = self.in_flight.entry((node, stretch.server)).or_default();
            while in_flight.peek().is_some_and(|&Reverse(arrival)| arrival <= now) {
                in_flight.pop();
            }
            let mut earliest = now;
            if in_flight.len() >= depth {
                // The heap never holds more than `depth`: whoever is let in takes the slot of the one that arrives first.
                earliest = in_flight.pop().map_or(now, |Reverse(arrival)| arrival);
            }

            let server = &mut self.servers[stretch.server.0 as usize];
            server.timeline.forget(now);
            let transfer_ns = transmission_ns(stretch.bytes, self.spec.target_bytes_per_second);
            let service_ns = scaled(seek_ns + transfer_ns, server.factor).max(transfer_ns.min(1));
            let start = server.timeline.book(earliest.max(server.stalled_until), service_ns);
            let end = start.saturating_add(service_ns);
            let mut arrival = end;
            if let Some(rate) = self.spec.link_bytes_per_second {
                let node = &mut self.nodes[node.0 as usize];
                let link = match kind {
                    Kind::Read => &mut node.reads,
                    Kind::Write => &mut node.writes,
                };
                link.forget(now);
                let link_ns = transmission_ns(stretch.bytes, rate);
                arrival = arrival.max(link.book(start, link_ns).saturating_add(link_ns));
            }
            arrival = arrival.saturating_add(latency_ns);
            in_flight.push(Reverse(arrival));
            due = due.max(arrival);
            pieces.push(Piece {
                server: stretch.server,
                offset: stretch.offset,
                bytes: stretch.bytes,
                start,
                end,
                due: arrival,
                queue_ns: start - now,
                seek,
            });
        }
        due
    }

    /// Books one operation of the metadata server that is asked for at `now`; answers when it is done.
    ///
    /// An operation alone takes `metadata_us`; the server begins no more than `metadata_operations_per_second`.
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
        start + scaled(alone_ns, self.noise.factor(self.spec.jitter))
    }

    /// Lets a server begin nothing new before `until`.
    pub fn stall(&mut self, server: ServerId, until: ModelTime) -> Result<(), Error> {
        let server = self.server(server)?;
        server.stalled_until = until;
        Ok(())
    }

    /// Lets everything on a server take `factor` times as long from now on; 1 is normal.
    pub fn slow(&mut self, server: ServerId, factor: f64) -> Result<(), Error> {
        let name = self.spec.name.clone();
        let found = self.server(server)?;
        if !(factor > 0.0 && factor.is_finite()) {
            return Err(Error::SlowFactor { name, server: server.0, factor });
        }
        found.factor = factor;
        Ok(())
    }

    /// The most that large sequential reads of one file can reach from so many nodes \[B/s\]; see [`Spec::limit_bytes_per_second`].
    pub fn limit_bytes_per_second(&self, nodes: u32) -> f64 {
        self.spec.limit_bytes_per_second(nodes)
    }

    /// Empties all queues and forgets where the disks stand; nodes, stalls, slow servers and the sequence of the jitter stay.
    pub fn reset(&mut self) {
        self.forget_transfers();
        self.metadata.clear();
        self.positions.clear();
    }

    /// Empties the queues of servers and links: what is booked there has been answered.
    pub fn forget_transfers(&mut self) {
        for server in &mut self.servers {
            server.timeline.clear();
        }
        self.nodes.fill(Node::default());
        self.in_flight.clear();
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
        scaled(nanoseconds(self.spec.latency_us / 1e6), self.noise.factor(self.spec.jitter))
    }

    fn seek_ns(&mut self, bytes: u64) -> u64 {
        let disks = if bytes < self.spec.small_request_bytes { f64::from(self.spec.data_disks) } else { 1.0 };
        scaled(nanoseconds(self.spec.seek_us / disks / 1e6), self.noise.factor(self.spec.jitter))
    }
}

/// Seconds as whole nanoseconds, the nearest; what lasts longer than the clock lasts as long as the clock.
fn nanoseconds(seconds: f64) -> u64 {
    (seconds * 1e9).round() as u64
}

/// How long bytes take at a rate, one nanosecond at least: what takes no time leaves no trace in a timeline, so that later work could
/// be placed across it. What is free takes none.
fn transmission_ns(bytes: u64, bytes_per_second: f64) -> u64 {
    nanoseconds(bytes as f64 / bytes_per_second).max((bytes_per_second < FREE_BYTES_PER_SECOND).into())
}

/// A span times a factor; exact for factor 1 and spans below 104 days, which is 2^53 ns.
fn scaled(ns: u64, factor: f64) -> u64 {
    (ns as f64 * factor).round() as u64
}

/// A fixed sequence of numbers for each seed.
///
/// `SplitMix64` (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", OOPSLA 2014).
#[derive(Clone, Debug)]
struct Noise(u64);

impl Noise {
    /// 1 to 1 + `jitter`; draws nothing where there is none.
    fn factor(&mut self, jitter: f64) -> f64 {
        if jitter == 0.0 {
            return 1.0;
        }
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^= word >> 31;
        // 53 bits are what a double holds: [0, 1).
        1.0 + jitter * ((word >> 11) as f64 / (1u64 << 53) as f64)
    }
}
