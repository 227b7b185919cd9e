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
use forebay_tier::ChunkMap;
use forebay_transport::{
    Destination, FetcherOptions, MAX_COUNT, Peer, Piece, Secret, TcpFetcher, TransportError,
};
use forebay_types::{CHUNK_BYTES, Extent, Rank};

use crate::config::options::{OnLost, Options};
use crate::dataset::tier_sources::chunk_map;
use crate::error::Error;
use crate::host::Host;
use crate::store::requests::{Failed, Request, RequestLimits, Requests};
use crate::store::server::STORE;
use crate::store::setup::StorePlan;
use crate::store::ucx::Fetchers;

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

/// See the module header.
pub(crate) struct Store {
    layout: StoreLayout,
    map: ChunkMap,
    share: Map,
    own_node: usize,
    /// `None` on a single node, and once the store is closed.
    fetcher: RwLock<Option<Fetchers>>,
    /// UCX's transports, if it is used; else why not. `None` on a single node.
    ucx: Option<Result<Vec<String>, String>>,
    /// Number of each node among the peers.
    peers: Vec<Option<Peer>>,
    /// Name of each node among the peers.
    names: Vec<Option<String>>,
    limits: RequestLimits,
    requests: Requests,
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
        let map = chunk_map(files, index)?;
        let mut peers = vec![None; plan.slots.len()];
        let (mut names, mut addresses) = (vec![None; plan.slots.len()], Vec::new());
        for peer in &plan.peers {
            names[peer.node] = Some(peer.name.clone());
            peers[peer.node] = Some(Peer(addresses.len()));
            addresses.push(peer.address());
        }
        let limits = RequestLimits::new(options.strategy.fetch_buffers, options.strategy.fetch_bytes);
        let requests = Requests::new(addresses.len(), limits);
        let mut ucx = None;
        let fetcher = if addresses.is_empty() {
            None
        } else {
            let identity = (STORE, plan.data_set());
            let rank = Rank(options.rank);
            let fetching = FetcherOptions::new(rank, Secret::new(plan.secret), identity, addresses);
            let tcp = TcpFetcher::new(FetcherOptions { max_in_flight: limits.buffers, ..fetching })?;
            let (fetchers, no_ucx) = Fetchers::new(tcp, plan.ucx_peers(), limits.buffers);
            ucx = Some(fetchers.transports().ok_or(no_ucx.unwrap_or_default()));
            Some(fetchers)
        };
        Ok(Self {
            layout: plan.layout(),
            map,
            share,
            own_node: plan.own_node,
            names,
            limits,
            requests,
            fetcher: RwLock::new(fetcher),
            ucx,
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
            match fetcher.tcp.ready(Instant::now() + CHECK_INTERVAL) {
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
            let (mut later, mut now) = (Vec::new(), Vec::new());
            for wants in wants.chunk_by(|one, other| one.part.node == other.part.node) {
                let node = wants[0].part.node;
                let peer = self.peers[node].unwrap_or(Peer(usize::MAX));
                let pieces = requests_of(wants, self.limits.bytes, &mut later);
                now.extend(pieces.into_iter().map(|pieces| Request { node, peer, pieces }));
            }
            requests += now.len() as u64;
            self.requests.run(fetcher.active(), step, now, stop)?;
            wants = later;
        }
        Ok(requests)
    }

    /// UCX's transports, if it is used; else why not. `None` on a single node.
    pub(crate) fn ucx(&self) -> Option<&Result<Vec<String>, String>> {
        self.ucx.as_ref()
    }

    /// Most requests of this rank in flight per node.
    pub(crate) fn fetch_buffers(&self) -> usize {
        self.limits.buffers
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

/// The pieces of each request to a node, of up to `request_bytes`; larger wants are cut. What
/// overlaps an earlier want goes into `later`.
fn requests_of(wants: &[Want], request_bytes: u64, later: &mut Vec<Want>) -> Vec<Vec<Piece>> {
    let mut requests: Vec<Vec<Piece>> = Vec::new();
    let (mut end, mut bytes) = (0, u64::MAX);
    for Want { part, into } in wants {
        if part.offset < end {
            later.push(Want { part: *part, into: *into });
            continue;
        }
        end = part.offset + part.length;
        let mut done = 0;
        while done < part.length {
            let length = (part.length - done).min(request_bytes);
            let is_full = requests.last().is_none_or(|pieces| pieces.len() >= MAX_COUNT);
            if is_full || bytes.saturating_add(length) > request_bytes {
                requests.push(Vec::new());
                bytes = 0;
            }
            bytes += length;
            // SAFETY: who made the want claimed the memory of its whole part until `Store::fetch`
            // returns, which waits for each request or takes the memory back.
            let into = unsafe { Destination::new(into.add(done as usize), length as usize) };
            if let Some(pieces) = requests.last_mut() {
                pieces.push(Piece { offset: part.offset + done, into });
            }
            done += length;
        }
    }
    requests
}
