//! A file system and the nodes that use it: the model, a client per node, and what is in flight.
use std::collections::BTreeMap;
use std::ops::Sub;

use serde::{Deserialize, Serialize};

use crate::client::{Access, ByteRange, Client, OpenFile, ReadAheadRules};
use crate::error::Error;
use crate::ids::{FileId, ModelTime, NodeId};
use crate::model::{Direction, Model, Piece};
use crate::spec::Spec;

/// The work of one server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerResult {
    /// Number of pieces that it served.
    pub pieces: u64,
    /// Bytes read and written \[B\].
    pub bytes: u64,
    /// Number of pieces that began with a seek.
    pub seeks: u64,
    /// Time spent working \[ns\].
    pub busy_ns: u64,
    /// Time that pieces waited for it, summed \[ns\].
    pub queue_ns: u64,
}

impl Sub for ServerResult {
    type Output = ServerResult;

    /// What it did since `before`.
    fn sub(self, before: ServerResult) -> ServerResult {
        ServerResult {
            pieces: self.pieces - before.pieces,
            bytes: self.bytes - before.bytes,
            seeks: self.seeks - before.seeks,
            busy_ns: self.busy_ns - before.busy_ns,
            queue_ns: self.queue_ns - before.queue_ns,
        }
    }
}

/// What one step of an access did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AccessStep {
    /// When its bytes are there; `None`: the access was done before.
    pub due: Option<ModelTime>,
    /// Number of requests that were sent.
    pub reads: u64,
    /// Bytes of them, read-ahead included \[B\].
    pub read_bytes: u64,
}

/// A file system with its nodes.
#[derive(Debug)]
pub struct FileSystem {
    model: Model,
    rules: ReadAheadRules,
    nodes: Vec<Node>,
    servers: Vec<ServerResult>,
    pieces: Vec<Piece>,
    fetches: Vec<ByteRange>,
}

#[derive(Debug)]
struct Node {
    client: Client,
    in_flight: InFlight,
    traffic: NodeTraffic,
}

/// What a node has asked the file system for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeTraffic {
    /// Number of read requests.
    pub reads: u64,
    /// Bytes of them \[B\].
    pub read_bytes: u64,
}

impl Sub for NodeTraffic {
    type Output = NodeTraffic;

    /// What it asked for since `before`.
    fn sub(self, before: NodeTraffic) -> NodeTraffic {
        NodeTraffic { reads: self.reads - before.reads, read_bytes: self.read_bytes - before.read_bytes }
    }
}

impl FileSystem {
    /// An idle file system without nodes. `seed` is that of the jitter.
    pub fn new(spec: &Spec, rules: ReadAheadRules, seed: u64) -> Result<FileSystem, Error> {
        Ok(FileSystem {
            model: Model::new(spec.clone(), seed)?,
            rules,
            nodes: Vec::new(),
            servers: vec![ServerResult::default(); spec.targets as usize],
            pieces: Vec::new(),
            fetches: Vec::new(),
        })
    }

    /// Adds a node with an empty page cache.
    pub fn add_node(&mut self) -> NodeId {
        let client = Client::new(self.model.spec(), self.rules);
        let (in_flight, traffic) = Default::default();
        self.nodes.push(Node { client, in_flight, traffic });
        self.model.add_node()
    }

    /// The model.
    pub fn model(&mut self) -> &mut Model {
        &mut self.model
    }

    /// The client of a node.
    ///
    /// # Panics
    ///
    /// If [`FileSystem::add_node`] did not return the node.
    pub fn client(&mut self, node: NodeId) -> &mut Client {
        &mut self.nodes[node.0 as usize].client
    }

    /// What a node has asked for so far.
    pub fn traffic(&self, node: NodeId) -> NodeTraffic {
        self.nodes[node.0 as usize].traffic
    }

    /// The work of each server so far.
    pub fn servers(&self) -> &[ServerResult] {
        &self.servers
    }

    /// Sends a request that bypasses the page cache, and returns its pieces and when the last one
    /// arrives.
    pub fn transfer(
        &mut self,
        now: ModelTime,
        node: NodeId,
        file: FileId,
        range: ByteRange,
        direction: Direction,
    ) -> (&[Piece], ModelTime) {
        let due =
            self.model.transfer(now, node, file, range.offset, range.length, direction, &mut self.pieces);
        for piece in &self.pieces {
            let server = &mut self.servers[piece.server.0 as usize];
            server.pieces += 1;
            server.bytes += piece.bytes;
            server.seeks += u64::from(piece.seek);
            server.busy_ns += piece.end - piece.start;
            server.queue_ns += piece.queue_ns;
        }
        (&self.pieces, due)
    }

    /// Advances an access of a node by one step, and sends its requests.
    pub fn step(&mut self, now: ModelTime, node: NodeId, access: &mut Access) -> AccessStep {
        let mut fetches = std::mem::take(&mut self.fetches);
        let place = node.0 as usize;
        let needed = self.nodes[place].client.step(access, &mut fetches);
        let file = self.nodes[place].client.file(access.open);
        self.fetch(now, node, file, &fetches);
        let reads = fetches.len() as u64;
        let read_bytes = fetches.iter().map(|range| range.length).sum();
        self.fetches = fetches;
        let due = needed.map(|range| self.nodes[place].in_flight.due(now, file, range));
        AccessStep { due, reads, read_bytes }
    }

    /// Goes on with an access until it has to wait; returns until when, or `None` once it is done.
    pub fn advance(&mut self, now: ModelTime, node: NodeId, access: &mut Access) -> Option<ModelTime> {
        while !access.is_done() {
            if let Some(due) = self.step(now, node, access).due.filter(|due| *due > now) {
                return Some(due);
            }
        }
        None
    }

    /// Whether bytes are in the page cache of a node and have arrived, as mincore(2) tells.
    pub fn is_resident(&self, now: ModelTime, node: NodeId, open: OpenFile, range: ByteRange) -> bool {
        let node = &self.nodes[node.0 as usize];
        let file = node.client.file(open);
        node.client.is_cached(open, range) && node.in_flight.due(now, file, range) <= now
    }

    /// Asks for bytes that a node will need, and returns how many requests that took.
    pub fn will_need(&mut self, now: ModelTime, node: NodeId, open: OpenFile, range: ByteRange) -> u64 {
        let mut fetches = std::mem::take(&mut self.fetches);
        let client = &mut self.nodes[node.0 as usize].client;
        client.will_need(open, range, &mut fetches);
        let file = client.file(open);
        self.fetch(now, node, file, &fetches);
        let requests = fetches.len() as u64;
        self.fetches = fetches;
        requests
    }

    fn fetch(&mut self, now: ModelTime, node: NodeId, file: FileId, fetches: &[ByteRange]) {
        for &range in fetches {
            self.transfer(now, node, file, range, Direction::Read);
            let node = &mut self.nodes[node.0 as usize];
            node.in_flight.add(now, file, &self.pieces);
            node.traffic.reads += 1;
            node.traffic.read_bytes += range.length;
        }
    }
}

/// Bytes in flight to the page cache of a node.
#[derive(Debug, Default)]
struct InFlight {
    /// By length, in powers of two: few of each are near any place. Bytes may be in flight twice,
    /// if they were evicted before they arrived.
    by_length: Vec<Arrivals>,
    /// Powers for which there are arrivals.
    lengths: u64,
}

/// Bytes in flight of at most some length.
#[derive(Debug, Default)]
struct Arrivals {
    /// (file, end of the bytes) → (their begin, arrival).
    entries: BTreeMap<(FileId, u64), (u64, ModelTime)>,
    /// The last arrival.
    latest: ModelTime,
    /// Entries that the last purge left.
    kept: usize,
}

impl InFlight {
    fn add(&mut self, now: ModelTime, file: FileId, pieces: &[Piece]) {
        for piece in pieces {
            let power = piece.bytes.max(1).next_power_of_two().ilog2();
            self.lengths |= 1 << power;
            self.by_length.resize_with(self.by_length.len().max(power as usize + 1), Arrivals::default);
            let arrivals = &mut self.by_length[power as usize];
            // What has arrived is dropped now and then, at a cost that is constant per entry.
            if arrivals.entries.len() > 2 * arrivals.kept + 64 {
                arrivals.entries.retain(|_, (_, due)| *due > now);
                arrivals.kept = arrivals.entries.len();
            }
            let end = piece.offset + piece.bytes;
            let (begin, due) = arrivals.entries.entry((file, end)).or_insert((piece.offset, piece.due));
            *begin = (*begin).min(piece.offset);
            *due = (*due).max(piece.due);
            arrivals.latest = arrivals.latest.max(piece.due);
        }
    }

    /// When the last bytes of a range arrive; now if they are there.
    fn due(&self, now: ModelTime, file: FileId, range: ByteRange) -> ModelTime {
        let end = range.offset + range.length;
        let (mut lengths, mut last) = (self.lengths, now);
        while lengths != 0 {
            let power = lengths.trailing_zeros();
            lengths &= lengths - 1;
            let arrivals = &self.by_length[power as usize];
            if arrivals.latest <= last {
                continue;
            }
            let near = (file, range.offset + 1)..(file, end.saturating_add(1 << power));
            let overlaps = arrivals.entries.range(near).filter(|(_, (begin, _))| *begin < end);
            last = overlaps.map(|(_, &(_, due))| due).fold(last, ModelTime::max);
        }
        last
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::AccessMethod;

    #[test]
    fn bytes_are_resident_once_they_have_arrived() {
        let spec = Spec { target_bytes_per_second: 1e9, latency_us: 100.0, ..Spec::free() };
        let rules = ReadAheadRules::Linux { read_ahead_bytes: 0 };
        let mut files = FileSystem::new(&spec, rules, 0).unwrap();
        let node = files.add_node();
        let open = files.client(node).open(FileId(0), 10_000);
        let is_resident = |files: &FileSystem, now, offset, length| {
            files.is_resident(now, node, open, ByteRange { offset, length })
        };
        assert!(!is_resident(&files, 0, 0, 8192));
        let mut access = files.client(node).access(open, 0, 8192, AccessMethod::Read);
        let due = files.advance(0, node, &mut access).unwrap();
        assert_eq!(due, 8192 + 100_000);
        for (now, offset, length, expected) in [
            (due - 1, 0, 8192, false),
            (due, 0, 8192, true),
            (due, 5000, 100, true),
            (due, 0, 8193, false),
            (due, 8192, 1 << 20, false),
            (due, 12_288, 1 << 20, true),
        ] {
            assert_eq!(is_resident(&files, now, offset, length), expected, "{now}, {offset}, {length}");
        }
    }
}
