//! A store as a rank uses it: which bytes are in its own node's share, and requests for those of
//! others.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use forebay_format::Index;
use forebay_host::Map;
use forebay_io::ShardFiles;
use forebay_plan::options::OnLost;
use forebay_plan::{
    ChunkMap, PeerPiece, PeerRequest, RequestLimits, SharePart, StoreLayout, peer_requests, share_parts,
};
use forebay_transport::{
    Destination, FetcherOptions, MAX_COUNT, Peer, Piece, Secret, TcpFetcher, TransportError,
};
use forebay_types::{Extent, Rank};

use crate::config::options::Options;
use crate::dataset::tier_sources::chunk_map;
use crate::error::Error;
use crate::host::Host;
use crate::store::requests::{Failed, QueuedRequest, Requests};
use crate::store::server::STORE;
use crate::store::setup::StorePlan;
use crate::store::ucx::Fetchers;

/// How often a wait checks whether to go on.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// Bytes of another node's share, and where they go.
pub(crate) struct Want {
    pub(crate) part: SharePart,
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
        let limits = request_limits(options);
        let requests = Requests::new(addresses.len(), limits);
        let mut ucx = None;
        let fetcher = if addresses.is_empty() {
            None
        } else {
            let identity = (STORE, plan.dataset());
            let rank = Rank(options.rank);
            let fetching = FetcherOptions::new(rank, Secret::new(plan.secret), identity, addresses);
            let tcp = TcpFetcher::new(FetcherOptions { max_in_flight: limits.requests, ..fetching })?;
            let (fetchers, no_ucx) = Fetchers::new(tcp, plan.ucx_peers(), limits.requests);
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
            on_lost: options.store.unwrap_or_default().on_lost,
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
        self.own_part(SharePart { length, ..first })
    }

    /// Bytes of this node's share.
    pub(crate) fn own_part(&self, part: SharePart) -> Option<&[u8]> {
        let start = usize::try_from(part.offset).ok()?;
        self.share.bytes().get(start..start + part.length as usize)
    }

    /// The other node that an extent, or the first part of it, is fetched from.
    pub(crate) fn holder(&self, extent: Extent) -> Option<&str> {
        self.names[self.part_at(extent, 0)?.node].as_deref()
    }

    /// Whether a part is in this node's share.
    pub(crate) fn is_own(&self, part: SharePart) -> bool {
        part.node == self.own_node
    }

    /// Where the bytes of an extent are; `None` if a part of it is in no share that can be used.
    pub(crate) fn parts(&self, extent: Extent) -> Option<Vec<SharePart>> {
        share_parts(&self.layout, &self.map, extent, |node| self.is_usable(node))
    }

    /// The bytes of an extent from `done` on that are in one chunk.
    fn part_at(&self, extent: Extent, done: u64) -> Option<SharePart> {
        SharePart::at(&self.layout, &self.map, extent, done).filter(|part| self.is_usable(part.node))
    }

    fn is_usable(&self, node: usize) -> bool {
        !self.lost[node].load(Ordering::Relaxed)
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
            let parts: Vec<SharePart> = wants.iter().map(|want| want.part).collect();
            let (now, later) = peer_requests(&parts, self.limits.bytes, MAX_COUNT);
            requests += now.len() as u64;
            let request = |PeerRequest { node, pieces }| {
                let peer = self.peers[node].unwrap_or(Peer(usize::MAX));
                let pieces = pieces.iter().map(|piece| piece_of(&wants[piece.part], piece)).collect();
                QueuedRequest { node, peer, pieces }
            };
            self.requests.run(fetcher.active(), step, now.into_iter().map(request).collect(), stop)?;
            let is_later = |number: usize| later.binary_search(&number).is_ok();
            wants =
                wants.into_iter().enumerate().filter(|(n, _)| is_later(*n)).map(|(_, want)| want).collect();
        }
        Ok(requests)
    }

    /// UCX's transports, if it is used; else why not. `None` on a single node.
    pub(crate) fn ucx(&self) -> Option<&Result<Vec<String>, String>> {
        self.ucx.as_ref()
    }

    /// Most requests of this rank in flight per node.
    pub(crate) fn requests_per_node(&self) -> usize {
        self.limits.requests
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

/// A piece of a request, with its memory.
fn piece_of(want: &Want, piece: &PeerPiece) -> Piece {
    // SAFETY: who made the want claimed the memory of its whole part until `Store::fetch` returns,
    // which waits for each request or takes the memory back. The piece is inside of the part.
    let into = unsafe { Destination::new(want.into.add(piece.start as usize), piece.length as usize) };
    Piece { offset: want.part.offset + piece.start, into }
}

/// How a rank asks other nodes.
pub(crate) fn request_limits(options: &Options) -> RequestLimits {
    let store = options.store.unwrap_or_default();
    RequestLimits::new(store.requests_per_node.given(), store.request_bytes.given())
}
