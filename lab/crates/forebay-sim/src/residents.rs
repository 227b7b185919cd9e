//! What nodes keep and what they stream in the order `opportunistic`: chosen by the functions that
//! the engine calls.

use std::convert::Infallible;

use forebay_plan::config::{Budget, DataFacts};
use forebay_plan::options::{LoaderOptions, StoreSize};
use forebay_plan::{
    NoWindow, NodeMemory, Order, RANGE_ENTRY_BYTES, StreamMemory, UnitBytes, WindowFacts, WindowWish,
    dataset_key, stream_buffer_bytes, stream_node_memory, unit_costs,
};

use crate::decided::Streamed;
use crate::error::Error;
use crate::facts::data_facts;
use crate::job::Job;
use crate::places::Places;
use crate::shares::{DATASET, JobShares};

/// See the module header.
pub(crate) struct Residents {
    /// With windows, and the units that nodes keep.
    pub(crate) order: Order,
    /// Staging memory of each node for what it streams \[B\].
    staging_bytes: Vec<u64>,
    unit_bytes: u64,
}

impl Residents {
    /// Chooses units and windows.
    ///
    /// # Errors
    ///
    /// Windows for which the nodes have no memory.
    pub(crate) fn choose(
        job: &Job,
        options: &LoaderOptions,
        places: &Places,
        job_shares: &JobShares,
    ) -> Result<Residents, Error> {
        let shares = &*job_shares.shares;
        let Ok(costs) = unit_costs::<_, Infallible>(places, shares, RANGE_ENTRY_BYTES, &mut |_, _| Ok(()));
        let bytes: Vec<UnitBytes> = costs.iter().map(|cost| cost.memory).collect();
        let order = options.order(places.samples(), 1, 1, None)?;
        let (data, budget) = (data_facts(places, order.largest_batch()), job.budget()?);
        let mut owned = vec![0; job.nodes as usize];
        (0..shares.units()).for_each(|unit| owned[shares.holder(unit)] += bytes[unit].resident);
        let memory = (0..job.nodes)
            .map(|node| node_memory(job, options, node, (&data, &budget), owned[node as usize]))
            .collect::<Result<Vec<NodeMemory>, Error>>()?;
        let streams = StreamMemory::new(shares, options.batch_size, &bytes, memory, dataset_key(DATASET));
        let facts = WindowFacts { order: &order, shares, streams: &streams };
        let wish = WindowWish { window: options.order.window, entropy: options.order.entropy };
        let (order, window) = facts.choose(wish).map_err(refused)?;
        let of_node = |node| {
            if order.streamed_units().is_empty() { 0 } else { streams.staging_bytes(window, node) }
        };
        let staging_bytes = (0..job.nodes as usize).map(of_node).collect();
        Ok(Residents { order, staging_bytes, unit_bytes: job_shares.unit_bytes })
    }

    /// What a node streams.
    pub(crate) fn of_node(&self, node: usize) -> Streamed<'_> {
        Streamed { order: &self.order, staging_bytes: self.staging_bytes[node], unit_bytes: self.unit_bytes }
    }
}

fn node_memory(
    job: &Job,
    options: &LoaderOptions,
    node: u32,
    (data, budget): (&DataFacts, &Budget),
    owned_bytes: u64,
) -> Result<NodeMemory, Error> {
    let ranks = job.ranks_of(node).len();
    let buffers = stream_buffer_bytes(options.strategy.batch_buffers, ranks, data.batch_bytes);
    let left = budget.left_bytes().saturating_sub(buffers);
    let asked = match options.store.map(|store| store.size) {
        Some(StoreSize::Bytes(bytes)) => Some(bytes),
        _ => None,
    };
    let free = job.machine.memory_bytes;
    stream_node_memory(asked, owned_bytes, free, left, budget.is_default)
        .ok_or_else(|| Error::job("store", format!("at most {free} bytes of a node"), &asked.unwrap_or(0)))
}

/// Why there is no window as it is wanted.
fn refused(refused: NoWindow) -> Error {
    match refused {
        NoWindow::Order(error) => Error::Options(error.into()),
        NoWindow::NoRoom { window, longest } => {
            let expected = format!("at most {longest} units, as the memory of the nodes has room for");
            Error::job("order.window", expected, &window)
        }
        NoWindow::OutOfReach { error, longest, .. } => {
            Error::job("order", format!("windows of at most {longest} units"), &error)
        }
    }
}
