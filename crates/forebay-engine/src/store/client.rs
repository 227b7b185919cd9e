//! A store as a rank uses it: which bytes are in its own node's share, and requests for those of
//! others.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use forebay_format::Index;
use forebay_host::Map;
use forebay_io::{At, ShardFiles};
use forebay_plan::StoreLayout;
use forebay_tier::{CHUNK_BYTES, ChunkMap};
use forebay_transport::{
    Destination, Fetcher, FetcherOptions, MAX_COUNT, Peer, PeerAddress, Piece, Secret, TcpFetcher,
    TransportError,
};
use forebay_types::{Extent, Rank};

use crate::config::options::{OnLost, Options};
use crate::dataset::tier_sources::chunk_map;
use crate::error::Error;
use crate::host::Host;
use crate::store::setup::{STORE, StorePlan};

/// Most bytes of one request \[bytes\]: what is larger becomes several.
const REQUEST_BYTES: u64 = 64 << 20;

/// Most requests in flight per peer, of all threads of the rank.
const MAX_IN_FLIGHT: usize = 64;

/// How often a wait checks whether to go on.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// Bytes in the share of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) node: usize,
    /// First byte \[bytes from the start of the share\].
    pub(crate) offset: u64,
    pub(crate) length: u64,
}

/// Bytes of another node's share, and where they go.
pub(crate) struct Want {
    pub(crate) part: Part,
    pub(crate) into: NonNull<u8>,
}

/// Why bytes did not come.
pub(crate) enum Failed {
    /// The caller wants them no more.
    Stopped,
    /// This node does not answer.
    Node(usize, TransportError),
}

/// See the module header.
pub(crate) struct Store {
    layout: StoreLayout,
    map: ChunkMap,
    share: Map,
    own_node: usize,
    /// `None` on a single node, and once the store is closed.
    fetcher: RwLock<Option<TcpFetcher>>,
    /// Number of each node among the peers.
    peers: Vec<Option<Peer>>,
    /// Name of each node among the peers.
    names: Vec<Option<String>>,
    /// Nodes whose shares are not used any more.
    lost: Vec<AtomicBool>,
    on_lost: OnLost,
}

impl Store {
    /// Uses the store of a plan; `share` is the memory of this node's share.
    pub(crate) fn new(
        plan: &StorePlan,
        share: Map,
        options: &Options,
        files: &ShardFiles,
        index: &Arc<Index>,
    ) -> Result<Self, Error> {
        let map = chunk_map(files, index)
            .map_err(|error| Error::local(format!("cannot cut the data set into chunks: {error}")))?;
        let mut peers = vec![None; plan.slots.len()];
        let (mut names, mut addresses) = (vec![None; plan.slots.len()], Vec::new());
        for peer in &plan.peers {
            names[peer.node] = Some(peer.name.clone());
            peers[peer.node] = Some(Peer(addresses.len()));
            addresses.push(PeerAddress {
                name: peer.name.clone(),
                node: peer.node as u32,
                addresses: peer.addresses.clone(),
            });
        }
        let fetcher = if addresses.is_empty() {
            None
        } else {
            let identity = (STORE, plan.data_set());
            let rank = Rank(options.rank);
            let fetching = FetcherOptions::new(rank, Secret::new(plan.secret), identity, addresses);
            Some(TcpFetcher::new(FetcherOptions { max_in_flight: MAX_IN_FLIGHT, ..fetching })?)
        };
        Ok(Self {
            layout: plan.layout(),
            map,
            share,
            own_node: plan.own_node,
            names,
            fetcher: RwLock::new(fetcher),
            lost: plan.slots.iter().map(|_| AtomicBool::new(false)).collect(),
            peers,
            on_lost: options.strategy.on_lost,
        })
    }

    /// Waits until all other nodes have accepted this rank.
    pub(crate) fn connect(&self, within: Duration, caller: &dyn Host) -> Result<(), Error> {
        let fetcher = self.fetcher.read().unwrap_or_else(PoisonError::into_inner);
        let Some(fetcher) = &*fetcher else { return Ok(()) };
        let end = Instant::now() + within;
        loop {
            match fetcher.ready(Instant::now() + CHECK_INTERVAL) {
                Err(TransportError::NotConnected { .. }) if caller.interrupted() => {
                    return Err(Error::Interrupted);
                }
                Err(TransportError::NotConnected { .. }) if Instant::now() < end => {}
                connected => return Ok(connected?),
            }
        }
    }

    /// The bytes of an extent, if they are in this node's share.
    pub(crate) fn own(&self, extent: Extent) -> Option<&[u8]> {
        let first = self.part_at(extent, 0).filter(|part| part.node == self.own_node)?;
        let mut length = first.length;
        while length < extent.length {
            let next = self.part_at(extent, length)?;
            if (next.node, next.offset) != (self.own_node, first.offset + length) {
                return None;
            }
            length += next.length;
        }
        self.own_part(Part { length, ..first })
    }

    /// Bytes of this node's share.
    pub(crate) fn own_part(&self, part: Part) -> Option<&[u8]> {
        let start = usize::try_from(part.offset).ok()?;
        self.share.bytes().get(start..start + part.length as usize)
    }

    /// The other node that an extent, or the first part of it, is fetched from.
    pub(crate) fn holder(&self, extent: Extent) -> Option<&str> {
        self.names[self.part_at(extent, 0)?.node].as_deref()
    }

    /// Whether a part is in this node's share.
    pub(crate) fn is_own(&self, part: Part) -> bool {
        part.node == self.own_node
    }

    /// Where the bytes of an extent are; `None` if a part of it is in no share that can be used.
    pub(crate) fn parts(&self, extent: Extent) -> Option<Vec<Part>> {
        let mut parts: Vec<Part> = Vec::new();
        let mut done = 0;
        while done < extent.length {
            let part = self.part_at(extent, done)?;
            done += part.length;
            match parts.last_mut() {
                Some(last) if last.node == part.node && last.offset + last.length == part.offset => {
                    last.length += part.length;
                }
                _ => parts.push(part),
            }
        }
        Some(parts)
    }

    /// The bytes of an extent from `done` on that are in one chunk.
    fn part_at(&self, extent: Extent, done: u64) -> Option<Part> {
        let at = At { shard: extent.shard, offset: extent.offset + done, direct: false };
        let (geometry, start) = self.map.locate(at)?;
        let (node, slot) = self.layout.locate(geometry.chunk.0)?;
        if self.lost[node].load(Ordering::Relaxed) {
            return None;
        }
        let length = (geometry.bytes - start).min(extent.length - done);
        Some(Part { node, offset: slot * CHUNK_BYTES + start, length })
    }

    /// Fetches bytes of other nodes, with one request to each, or more where it would be too large.
    /// Waits until all are there, or `stop` returns true; the memory is free then.
    ///
    /// Returns how many requests were made.
    pub(crate) fn fetch(
        &self,
        step: u64,
        mut wants: Vec<Want>,
        stop: &dyn Fn() -> bool,
    ) -> Result<u64, Failed> {
        let fetcher = self.fetcher.read().unwrap_or_else(PoisonError::into_inner);
        let Some(fetcher) = &*fetcher else {
            return if wants.is_empty() { Ok(0) } else { Err(Failed::Stopped) };
        };
        wants.sort_unstable_by_key(|want| (want.part.node, want.part.offset));
        let mut requests = 0;
        while !wants.is_empty() {
            // Two places for the same bytes are two requests.
            let mut later = Vec::new();
            let mut tickets = Vec::new();
            let mut failed = None;
            for wants in wants.chunk_by(|one, other| one.part.node == other.part.node) {
                let node = wants[0].part.node;
                for pieces in requests_of(wants, &mut later) {
                    let peer = self.peers[node].unwrap_or(Peer(usize::MAX));
                    match fetcher.fetch(peer, step, &pieces) {
                        Ok(ticket) => tickets.push((node, ticket)),
                        Err(error) => {
                            failed.get_or_insert(Failed::Node(node, error));
                        }
                    }
                    requests += 1;
                }
            }
            for (node, ticket) in tickets {
                loop {
                    match fetcher.wait(ticket, Instant::now() + CHECK_INTERVAL) {
                        Ok(()) => break,
                        Err(TransportError::Deadline { .. } | TransportError::NotConnected { .. })
                            if !stop() => {}
                        Err(
                            error @ (TransportError::Deadline { .. } | TransportError::NotConnected { .. }),
                        ) => {
                            // Takes back the memory.
                            let _ = fetcher.reconnect(ticket.peer());
                            drop(error);
                            failed.get_or_insert(Failed::Stopped);
                            break;
                        }
                        Err(error) => {
                            failed.get_or_insert(Failed::Node(node, error));
                            break;
                        }
                    }
                }
            }
            if let Some(failed) = failed {
                return Err(failed);
            }
            wants = later;
        }
        Ok(requests)
    }

    /// Closes the connections to other nodes.
    pub(crate) fn close(&self) {
        self.fetcher.write().unwrap_or_else(PoisonError::into_inner).take();
    }

    /// Whether the loss of a node is to be made up for by the source; from now on its share is not
    /// used.
    pub(crate) fn may_lose(&self, node: usize, error: &TransportError) -> bool {
        if self.on_lost == OnLost::Raise {
            return false;
        }
        if !self.lost[node].swap(true, Ordering::Relaxed) {
            tracing::warn!(%error, node, "the share of a node is lost; its samples are read from the source");
        }
        true
    }
}

/// The pieces of each request to a node; what overlaps an earlier piece goes into `later`.
fn requests_of(wants: &[Want], later: &mut Vec<Want>) -> Vec<Vec<Piece>> {
    let mut requests: Vec<Vec<Piece>> = Vec::new();
    let (mut end, mut bytes) = (0, u64::MAX);
    for Want { part, into } in wants {
        if part.offset < end {
            later.push(Want { part: *part, into: *into });
            continue;
        }
        end = part.offset + part.length;
        let is_full = requests.last().is_none_or(|pieces| pieces.len() >= MAX_COUNT);
        if is_full || bytes.saturating_add(part.length) > REQUEST_BYTES {
            requests.push(Vec::new());
            bytes = 0;
        }
        bytes += part.length;
        // SAFETY: who made the want claimed the memory until `Store::fetch` returns, which waits
        // for each ticket or takes the memory back.
        let into = unsafe { Destination::new(*into, part.length as usize) };
        if let Some(pieces) = requests.last_mut() {
            pieces.push(Piece { offset: part.offset, into });
        }
    }
    requests
}
