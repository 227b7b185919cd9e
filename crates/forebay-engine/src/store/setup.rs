//! Makes a store (collective over the leaders of the nodes).
//!
//! 1. The leaders say how many chunks each node has room for.
//! 2. All compute the same layout, and each loads its share.
//! 3. Each exports its share and says at which port.
//!
//! The other ranks of a node get the plan and the memory of the share with the leader's reply.

use std::net::SocketAddr;
use std::num::NonZero;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_format::Index;
use forebay_host::{self as host, Map};
use forebay_io::ShardFiles;
use forebay_plan::{NO_OWNER, NodeShares, StoreLayout};
use forebay_tier::CHUNK_BYTES;
use forebay_transport::{
    DataSetDigest, Exporter, ExporterOptions, PeerAddress, Secret, StoreId, UcxExporter, UcxPeer,
    server_threads,
};
use forebay_types::Rank;
use serde::{Deserialize, Serialize};

use crate::config::options::{Options, StoreSize};
use crate::dataset::share_units::{chunk_owners, key_of};
use crate::dataset::tier_sources::chunk_map;
use crate::error::Error;
use crate::host::Host;
use crate::mesh::{Channel, Links};
use crate::store::load::load;
use crate::store::probe::{self, Probe};
use crate::store::ucx;

/// Each loader has servers of its own, with one store.
pub(super) const STORE: StoreId = StoreId(0);

/// What secrets of stores are derived for.
const PURPOSE: &str = "forebay 2026 shares of in-memory stores";

/// Divisor of the free memory that a share may take if the user does not say.
const MEMORY_SHARE: u64 = 2;

/// How long the end of a loader waits for other nodes that still fetch.
const LINGER: Duration = Duration::from_secs(10);

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
    /// Why this node cannot use UCX.
    pub(super) no_ucx: Option<String>,
    /// What the network between the nodes carries; `None` on one node, or if it was not measured.
    pub(crate) probe: Option<Probe>,
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
    pub(crate) index: &'a Arc<Index>,
    pub(crate) files: &'a ShardFiles,
    /// Which samples each node holds; `None` on a single node.
    pub(crate) shares: Option<&'a NodeShares>,
    pub(crate) fingerprint: u128,
    pub(crate) links: Option<&'a Links>,
}

/// Serves the share of this node until it is dropped.
pub(crate) struct Server {
    exporter: Exporter,
    /// Lets others read the share, too.
    _ucx: Option<UcxExporter>,
    /// Ranks of other nodes.
    clients: usize,
}

impl Server {
    /// Ends the service.
    pub(crate) fn withdraw(&self) {
        self.exporter.withdraw(STORE);
    }

    /// Waits until the ranks of all other nodes are connected: one that came later might find that
    /// this node has finished.
    pub(crate) fn wait_for_clients(
        &self,
        links: Option<&Links>,
        within: Duration,
        caller: &dyn Host,
    ) -> Result<(), Error> {
        let begun = Instant::now();
        while self.exporter.clients(STORE) < self.clients {
            if let Some(failure) = links.and_then(Links::failure) {
                return Err(failure.into());
            }
            if caller.interrupted() {
                return Err(Error::Interrupted);
            }
            if begun.elapsed() > within {
                return Err(Error::Timeout {
                    seconds: within.as_secs(),
                    what: format!(
                        "waiting for ranks of other nodes to connect to the share of this one (expected {}, found {})",
                        self.clients,
                        self.exporter.clients(STORE)
                    ),
                });
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// Waits a moment for other nodes that still fetch.
    pub(crate) fn linger(&self) {
        let begun = Instant::now();
        while self.exporter.connections() > 0 && begun.elapsed() < LINGER {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl StorePlan {
    pub(super) fn layout(&self) -> StoreLayout {
        StoreLayout::new(&self.owners, &self.slots, self.key)
    }

    /// Identifies data set and layout.
    pub(super) fn data_set(&self) -> DataSetDigest {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&self.key.to_le_bytes());
        for owner in &self.owners {
            hasher.update(&owner.to_le_bytes());
        }
        for slots in &self.slots {
            hasher.update(&slots.to_le_bytes());
        }
        DataSetDigest(hasher.finalize().into())
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

    /// Chunks of the data set, those that nodes hold, and those of this node.
    pub(crate) fn chunks(&self) -> (u64, u64, u64) {
        let layout = self.layout();
        let held = (0..self.nodes()).map(|node| layout.held(node)).sum();
        (layout.chunks(), held, layout.held(self.own_node))
    }
}

/// Makes the store on this node; returns its plan, the memory of its share, and its server.
pub(crate) fn set_up(
    question: &StoreQuestion<'_>,
    size: StoreSize,
    caller: &dyn Host,
) -> Result<(StorePlan, OwnedFd, Option<Server>), Error> {
    let &StoreQuestion { options, index, files, shares, fingerprint, links } = question;
    let map = chunk_map(files, index)
        .map_err(|error| Error::local(format!("cannot cut the data set into chunks: {error}")))?;
    let owners = match shares {
        Some(shares) => chunk_owners(index, &map, shares, caller)?,
        None => vec![0; map.chunks() as usize],
    };
    let own_node = links.map_or(0, Links::own_node);
    let owned = owners.iter().filter(|owner| usize::from(**owner) == own_node).count() as u64;
    let own_slots = slots(size, owned, host::available_bytes())?;
    let all_slots = exchange(links, &own_slots, caller)?;
    let mut plan = StorePlan {
        owners,
        slots: all_slots,
        key: key_of(fingerprint),
        own_node,
        peers: Vec::new(),
        secret: [0; 32],
        loaded_bytes: 0,
        no_ucx: None,
        probe: None,
    };
    let layout = plan.layout();
    let chunks: Vec<u64> = layout.chunks_of(own_node).collect();
    let (share, loaded_bytes) = load(files, &map, &chunks, caller)?;
    plan.loaded_bytes = loaded_bytes;
    let (Some(links), Some(spec)) = (links, &options.links) else { return Ok((plan, share, None)) };
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
    exporter.export(STORE, Arc::new(Map::read_only(&share)?), plan.data_set())?;
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
    plan.probe = Probe::of(&exchange(Some(links), &measured, caller)?, own_node);
    probe::close(&exporter);
    Ok((plan, share, Some(Server { exporter, _ucx: by_ucx.ok(), clients })))
}

/// Cores that this process may use.
fn available_cores() -> usize {
    std::thread::available_parallelism().map_or(1, NonZero::get)
}

/// Chunks of a share of `owned` chunks that this node with `free` bytes has room for.
fn slots(size: StoreSize, owned: u64, free: u64) -> Result<u64, Error> {
    match size {
        StoreSize::Bytes(bytes) if bytes.min(owned * CHUNK_BYTES) > free => Err(Error::Memory {
            message: format!(
                "Strategy(store=): {bytes} bytes, but {free} bytes of memory are free on this node"
            ),
            hint: "give store= less; what does not fit is read from the source".into(),
        }),
        StoreSize::Bytes(bytes) => Ok(owned.min(bytes / CHUNK_BYTES)),
        StoreSize::Measured(_) => Ok(owned.min(free / MEMORY_SHARE / CHUNK_BYTES)),
    }
}

/// Sends a value to the other leaders, and returns those of all nodes.
fn exchange<T: Serialize + for<'t> Deserialize<'t> + Clone>(
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::options::Auto;

    #[test]
    fn a_share_that_the_user_gave_and_that_exceeds_the_free_memory_is_refused() {
        const FREE: u64 = 100 * CHUNK_BYTES;
        let given = |chunks: u64, owned| slots(StoreSize::Bytes(chunks * CHUNK_BYTES), owned, FREE);
        for (chunks, owned) in [(101, 101), (101, 1000), (1 << 40, 200)] {
            assert!(matches!(given(chunks, owned), Err(Error::Memory { .. })), "{chunks} chunks of {owned}");
        }
        // What the node needs counts, not the limit.
        assert_eq!(given(1 << 40, 30).ok(), Some(30));
        assert_eq!(given(40, 1000).ok(), Some(40));
        let measured = |owned| slots(StoreSize::Measured(Auto::Auto), owned, FREE).ok();
        assert_eq!((measured(1000), measured(7)), (Some(50), Some(7)));
    }
}
