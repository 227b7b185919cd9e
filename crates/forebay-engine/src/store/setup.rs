//! Makes a store (collective over the leaders of the nodes).
//!
//! 1. The leaders say how many chunks each node has room for.
//! 2. All compute the same layout, and each loads its share, or gets it from the store daemon of
//!    its node (`keeping`).
//! 3. Each exports its share and says at which port.
//!
//! The other ranks of a node get the plan and the memory of the share with the leader's reply.

use std::net::SocketAddr;
use std::num::NonZero;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};

use forebay_format::{Dataset, Index};
use forebay_host::{self as host, Map};
use forebay_io::ShardFiles;
use forebay_plan::config::server_threads;
use forebay_plan::options::{NoShareRoom, StoreSize, store_slots};
use forebay_plan::{NO_OWNER, NodeShares, StoreLayout, chunk_owners, dataset_key};
use forebay_transport::{DatasetDigest, Exporter, ExporterOptions, PeerAddress, Secret, UcxPeer};
use forebay_types::Rank;
use serde::{Deserialize, Serialize};

use crate::base::fallback::Fallback;
use crate::config::options::Options;
use crate::config::shares::sharing;
use crate::dataset::tier_sources::chunk_map;
use crate::error::Error;
use crate::host::Host;
use crate::mesh::{Channel, Links};
use crate::store::keeping::{Keeping, KeptRoom, OwnShare, ShareSource};
use crate::store::probe::{self, NetworkProbe};
use crate::store::server::{STORE, Server};
use crate::store::ucx;

/// What secrets of stores are derived for.
const PURPOSE: &str = "forebay 2026 shares of in-memory stores";

/// Divisor of the address space that a share may take, where there is a limit, and how often a
/// leader maps the share that others fetch from.
const ADDRESS_SHARE: u64 = 4;
const SHARED_MAPS: u64 = 3;

/// What each process needs to use the store.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct StorePlan {
    owners: Vec<u16>,
    /// Room of each node \[chunks\].
    pub(super) slots: Vec<u64>,
    key: u64,
    pub(crate) own_node: usize,
    pub(super) peers: Vec<PeerPlan>,
    pub(super) secret: [u8; 32],
    /// What this node has read from the source for its share \[bytes\].
    pub(crate) loaded_bytes: u64,
    /// What it has from the store daemon \[bytes\].
    pub(crate) kept_bytes: u64,
    /// Whether the store daemon keeps its share.
    pub(crate) is_kept: bool,
    /// Why this node cannot use UCX.
    pub(super) no_ucx: Option<String>,
    /// What the network between the nodes carries; `None` on one node, or if it was not measured.
    pub(crate) probe: Option<NetworkProbe>,
}

/// Another node.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct PeerPlan {
    pub(super) node: usize,
    pub(super) name: String,
    pub(super) addresses: Vec<SocketAddr>,
    /// How UCX reads its share, or why it cannot.
    pub(super) ucx: Result<Vec<u8>, String>,
}

impl PeerPlan {
    pub(super) fn address(&self) -> PeerAddress {
        let addresses = self.addresses.clone();
        PeerAddress { name: self.name.clone(), node: self.node as u32, addresses }
    }
}

/// What a store is made from.
pub(crate) struct StoreQuestion<'a> {
    pub(crate) options: &'a Options,
    pub(crate) dataset: &'a Dataset,
    pub(crate) index: &'a Arc<Index>,
    pub(crate) files: &'a ShardFiles,
    /// Which samples each node holds; `None` on a single node.
    pub(crate) shares: Option<&'a NodeShares>,
    pub(crate) fingerprint: u128,
    pub(crate) links: Option<&'a Links>,
    /// Address space that the rank with the least has left, where there is a limit \[bytes\].
    pub(crate) address_left: Option<u64>,
}

/// What a leader has made.
pub(crate) struct MadeStore {
    pub(crate) plan: StorePlan,
    /// The memory of its share.
    pub(crate) share: OwnedFd,
    pub(crate) server: Server,
    pub(crate) fallback: Option<Fallback>,
}

impl StorePlan {
    pub(super) fn layout(&self) -> StoreLayout {
        StoreLayout::new(&self.owners, &self.slots, self.key)
    }

    /// Identifies dataset and layout.
    pub(super) fn dataset(&self) -> DatasetDigest {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&self.key.to_le_bytes());
        for owner in &self.owners {
            hasher.update(&owner.to_le_bytes());
        }
        for slots in &self.slots {
            hasher.update(&slots.to_le_bytes());
        }
        DatasetDigest(hasher.finalize().into())
    }

    /// How UCX reads the shares of all other nodes; else why this node, or one of them, cannot.
    pub(super) fn ucx_peers(&self) -> Result<Vec<UcxPeer>, String> {
        self.no_ucx.clone().map_or(Ok(()), Err)?;
        let of = |peer: &PeerPlan| match &peer.ucx {
            Ok(card) => Ok(UcxPeer { name: peer.name.clone(), card: card.clone() }),
            Err(reason) => Err(format!("node {}: {reason}", peer.name)),
        };
        self.peers.iter().map(of).collect()
    }

    /// Nodes of the store.
    pub(crate) fn nodes(&self) -> usize {
        self.slots.len()
    }

    /// Chunks of the dataset, those that nodes hold, and those of this node.
    pub(crate) fn chunks(&self) -> (u64, u64, u64) {
        let layout = self.layout();
        let held = (0..self.nodes()).map(|node| layout.held(node)).sum();
        (layout.chunks(), held, layout.held(self.own_node))
    }
}

/// Makes the store on this node.
pub(crate) fn set_up(
    question: &StoreQuestion<'_>,
    size: StoreSize,
    caller: &dyn Host,
) -> Result<MadeStore, Error> {
    let &StoreQuestion { options, dataset, index, files, shares, fingerprint, links, address_left } =
        question;
    let map = chunk_map(files, index)?;
    let owners = match shares {
        Some(shares) => chunk_owners(&**index, &map, shares, &mut sharing(caller))?,
        None => vec![0; map.chunks() as usize],
    };
    let (own_node, nodes) = links.map_or((0, 1), |links| (links.own_node(), links.nodes()));
    let owned = owners.iter().filter(|owner| usize::from(**owner) == own_node).count() as u64;
    let keeping = Keeping::look(ShareSource { dataset, files, index, map: &map }, caller)?;
    // A leader maps its share for itself, for other nodes, and for UCX.
    let maps = if nodes > 1 { SHARED_MAPS } else { 1 };
    let mappable = address_left.map(|left| left / ADDRESS_SHARE / maps);
    let mut own_slots = slots(size, owned, keeping.room(), mappable)?;
    let own_chunks = |layout: &StoreLayout| layout.chunks_of(own_node).collect::<Vec<u64>>();
    let alone = || {
        let all: Vec<u64> = (0..nodes).map(|node| if node == own_node { own_slots } else { 0 }).collect();
        own_chunks(&StoreLayout::new(&owners, &all, dataset_key(fingerprint)))
    };
    if let Some(room) = keeping.room_beside_others(alone) {
        own_slots = slots(size, owned, room, mappable)?;
    }
    let all_slots = exchange(links, &own_slots, caller)?;
    let mut plan = StorePlan {
        owners,
        slots: all_slots,
        key: dataset_key(fingerprint),
        own_node,
        peers: Vec::new(),
        secret: [0; 32],
        loaded_bytes: 0,
        kept_bytes: 0,
        is_kept: false,
        no_ucx: None,
        probe: None,
    };
    let chunks = own_chunks(&plan.layout());
    let OwnShare { memory: share, loaded, connection, fallback } =
        keeping.share(&chunks, (own_node, nodes))?;
    (plan.loaded_bytes, plan.kept_bytes) = (loaded.source, loaded.kept);
    plan.is_kept = connection.is_some();
    let daemon = Mutex::new(connection);
    let (Some(links), Some(spec)) = (links, &options.links) else {
        let server = Server { exporter: None, _ucx: None, clients: 0, daemon };
        return Ok(MadeStore { plan, share, server, fallback });
    };
    plan.secret = spec.secret.derive(PURPOSE);
    let own_endpoint = &spec.endpoints[own_node];
    let clients = (options.size as usize).saturating_sub(options.local_ranks.len());
    let exporter = Exporter::start(&ExporterOptions {
        node: own_node as u32,
        secret: Secret::new(plan.secret),
        address: SocketAddr::new(own_endpoint.bind_address(), 0),
        threads: server_threads(available_cores(), clients),
        // And the leader that probes.
        max_connections: options.size as usize + 1,
    })?;
    exporter.export(STORE, Arc::new(Map::read_only(&share)?), plan.dataset())?;
    probe::open(&exporter)?;
    let by_ucx = ucx::export(Map::read_only(&share)?);
    let card = by_ucx.as_ref().map(|exported| exported.card().to_vec()).map_err(Clone::clone);
    plan.no_ucx = card.clone().err();
    let served: Vec<(u16, Result<Vec<u8>, String>)> =
        exchange(Some(links), &(exporter.address().port(), card), caller)?;
    plan.peers = (0..links.nodes())
        .filter(|node| *node != own_node)
        .map(|node| PeerPlan {
            node,
            name: links.facts().0[node].name.clone(),
            addresses: spec.endpoints[node].at_port(served[node].0).reached_from(own_endpoint),
            ucx: served[node].1.clone(),
        })
        .collect();
    let next = plan.peers.iter().find(|peer| peer.node == (own_node + 1) % links.nodes());
    let measured = next.and_then(|peer| probe::measure(peer.address(), Rank(options.rank), plan.secret));
    plan.probe = NetworkProbe::of(&exchange(Some(links), &measured, caller)?, own_node);
    probe::close(&exporter);
    let server = Server { exporter: Some(exporter), _ucx: by_ucx.ok(), clients, daemon };
    Ok(MadeStore { plan, share, server, fallback })
}

/// Cores that this process may use.
fn available_cores() -> usize {
    std::thread::available_parallelism().map_or(1, NonZero::get)
}

/// Chunks of a share of `owned` chunks that this node has room for.
fn slots(size: StoreSize, owned: u64, kept: KeptRoom, mappable: Option<u64>) -> Result<u64, Error> {
    let free = host::available_bytes().saturating_add(kept.bytes);
    store_slots(size, owned, free, kept.chunks, mappable).map_err(|none| match none {
        NoShareRoom::Memory { bytes } => exceeds_memory(bytes, free, "read"),
        NoShareRoom::AddressSpace { bytes, left } => Error::Memory {
            message: format!(
                "store=: {bytes} bytes, but RLIMIT_AS (ulimit -v) leaves address space for {left} bytes"
            ),
            hint: "raise the limit with `ulimit -v`, or give store= less; what does not fit is read from the source"
                .into(),
        },
    })
}

/// The user gave a share more memory than is free; what does not fit is `taken` from the source.
pub(crate) fn exceeds_memory(bytes: u64, free: u64, taken: &str) -> Error {
    Error::Memory {
        message: format!("store=: {bytes} bytes, but {free} bytes of memory are free on this node"),
        hint: format!("give store= less; what does not fit is {taken} from the source"),
    }
}

/// Sends a value to the other leaders, and returns those of all nodes.
pub(crate) fn exchange<T: Serialize + for<'t> Deserialize<'t> + Clone>(
    links: Option<&Links>,
    own: &T,
    caller: &dyn Host,
) -> Result<Vec<T>, Error> {
    let Some(links) = links else { return Ok(vec![own.clone()]) };
    let text = serde_json::to_vec(own).map_err(|error| Error::local(error.to_string()))?;
    links.send_all(Channel::Store, text)?;
    let stop = || {
        caller.waits_for_others();
        caller.interrupted()
    };
    let of = |node| {
        if node == links.own_node() {
            return Ok(own.clone());
        }
        let (_, bytes) = links.receive(Channel::Store, Some(node), &stop)?.ok_or(Error::Interrupted)?;
        serde_json::from_slice(&bytes).map_err(|error| {
            Error::local(format!("cannot parse what node {node} says of its share: {error}"))
        })
    };
    (0..links.nodes()).map(of).collect()
}

/// No owner of a chunk is a node.
const _: () = assert!(NO_OWNER as usize >= crate::mesh::MAX_NODES);
