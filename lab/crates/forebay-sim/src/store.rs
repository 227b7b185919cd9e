//! The in-memory store of a job: which node holds which chunks, and what a request to it takes.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::convert::Infallible;

use forebay_model::{Kernel, ModelTime, Processors};
use forebay_plan::config::server_threads;
use forebay_plan::options::{LoaderOptions, NoShareRoom, store_slots};
use forebay_plan::{ChunkMap, RequestLimits, StoreLayout, chunk_owners, dataset_key};

use crate::error::Error;
use crate::job::Job;
use crate::places::Places;
use crate::shares::{DATASET, JobShares};

/// What was decided about a store.
#[derive(Clone, Debug)]
pub(crate) struct StorePlan {
    /// Where each chunk is.
    pub(crate) layout: StoreLayout,
    /// How a rank asks other nodes.
    pub(crate) limits: RequestLimits,
}

impl StorePlan {
    /// Decides for all nodes.
    ///
    /// # Errors
    ///
    /// Less memory than a node is to give.
    pub(crate) fn of(
        job: &Job,
        options: &LoaderOptions,
        places: &Places,
        chunks: &ChunkMap,
        shares: Option<&JobShares>,
    ) -> Result<StorePlan, Error> {
        let choice = options.store.unwrap_or_default();
        let owners = match shares {
            Some(job_shares) => {
                let shares = &job_shares.shares;
                let Ok(owners) = chunk_owners::<_, Infallible>(places, chunks, shares, &mut |_, _| Ok(()));
                owners
            }
            None => vec![0; chunks.chunks() as usize],
        };
        let mut owned = vec![0_u64; job.nodes as usize];
        for owner in &owners {
            if let Some(count) = owned.get_mut(usize::from(*owner)) {
                *count += 1;
            }
        }
        let free = job.machine.memory_bytes;
        let slots = |owned: &u64| {
            store_slots(choice.size, *owned, free, None, None).map_err(|none| {
                let (NoShareRoom::Memory { bytes } | NoShareRoom::AddressSpace { bytes, .. }) = none;
                Error::job("store.size", format!("at most {free} bytes, the memory of a node"), &bytes)
            })
        };
        let slots = owned.iter().map(slots).collect::<Result<Vec<u64>, Error>>()?;
        Ok(StorePlan {
            layout: StoreLayout::new(&owners, &slots, dataset_key(DATASET)),
            limits: RequestLimits::new(choice.requests_per_node.given(), choice.request_bytes.given()),
        })
    }
}

/// A store in a run.
#[derive(Debug)]
pub(crate) struct Store<'a> {
    pub(crate) plan: &'a StorePlan,
    /// The server threads of each node.
    servers: Vec<Processors>,
    /// When the requests of a rank to a node are answered, of those in flight.
    in_flight: BTreeMap<(u32, usize), BinaryHeap<Reverse<ModelTime>>>,
}

/// A request of a rank to another node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ShareRequest {
    /// The node that is asked.
    pub(crate) node: usize,
    /// Parts of its share.
    pub(crate) parts: u64,
    /// Bytes of them \[B\].
    pub(crate) bytes: u64,
}

impl<'a> Store<'a> {
    pub(crate) fn new(job: &Job, plan: &'a StorePlan, kernel: &mut Kernel) -> Store<'a> {
        let servers = (0..job.nodes).map(|node| {
            let others = job.ranks as usize - job.ranks_of(node).len();
            kernel.processors(server_threads(job.machine.cores as usize, others))
        });
        Store { plan, servers: servers.collect(), in_flight: BTreeMap::new() }
    }

    /// The server threads of a node.
    pub(crate) fn servers(&self, node: usize) -> Processors {
        self.servers[node]
    }

    /// The answers that a rank waits for of a node, the first one on top.
    pub(crate) fn in_flight(
        &mut self,
        rank: u32,
        node: usize,
        now: ModelTime,
    ) -> &mut BinaryHeap<Reverse<ModelTime>> {
        let in_flight = self.in_flight.entry((rank, node)).or_default();
        while in_flight.peek().is_some_and(|Reverse(due)| *due <= now) {
            in_flight.pop();
        }
        in_flight
    }
}
