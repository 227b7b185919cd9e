//! Chooses which units the nodes keep, and the windows of what they stream (collective over the
//! leaders of the nodes).
//!
//! 1. The leaders say how much memory each node has for both.
//! 2. All compute the same units and the smallest window with which the order is random enough.
//!
//! The other ranks of a node get the plan with the leader's reply.

use forebay_format::Index;
use forebay_host as host;
use forebay_plan::config::Budget;
use forebay_plan::options::StoreSize;
use forebay_plan::{
    DEFAULT_ENTROPY, NoWindow, NodeMemory, Order, RANGE_ENTRY_BYTES, STREAM_CONTROL_BYTES, StreamMemory,
    UnitBytes, UnitCost, WindowFacts, WindowWish, dataset_key, stream_buffer_bytes, stream_node_memory,
    unit_costs,
};
use serde::{Deserialize, Serialize};

use crate::config::options::Options;
use crate::config::shares::{JobShares, sharing};
use crate::error::Error;
use crate::host::Host;
use crate::mesh::Links;
use crate::store::{exceeds_memory, exchange};

const MIB: u64 = 1 << 20;

const KIND: &str = "opportunistic";

/// What each process needs to make the order, and what was decided.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ResidentPlan {
    /// w, units of a window.
    pub(crate) window: u64,
    /// Bit u of the words: a node keeps unit u.
    kept: Vec<u64>,
    /// The least order entropy, where the window follows from it.
    pub(crate) entropy: Option<f64>,
    /// Memory of the units that this node keeps \[bytes\].
    pub(crate) resident_bytes: u64,
    /// What this node has read from the source for them \[bytes\].
    pub(crate) loaded_bytes: u64,
    /// Most bytes of a window of this node, decoded \[bytes\].
    pub(crate) window_bytes: u64,
    /// Staging memory that this node needs for its window, and what is read meanwhile \[bytes\].
    pub(crate) staging_bytes: u64,
    /// What all nodes stream in an epoch \[bytes\].
    pub(crate) streamed_bytes: u64,
    /// The same if the windows took no memory from resident units \[bytes\].
    pub(crate) unwindowed_bytes: u64,
}

impl ResidentPlan {
    /// Whether a node keeps a unit.
    pub(crate) fn keeps(&self, unit: usize) -> bool {
        self.kept.get(unit / 64).is_some_and(|word| word >> (unit % 64) & 1 == 1)
    }
}

/// What the choice rests on.
pub(crate) struct ResidentQuestion<'a> {
    pub(crate) options: &'a Options,
    pub(crate) index: &'a Index,
    pub(crate) job_shares: &'a JobShares,
    pub(crate) fingerprint: u128,
    pub(crate) links: Option<&'a Links>,
    pub(crate) budget: &'a Budget,
    /// Size of a batch buffer \[bytes\].
    pub(crate) batch_bytes: u64,
}

/// What was chosen.
pub(crate) struct Choice {
    pub(crate) plan: ResidentPlan,
    pub(crate) order: Order,
    /// What the loader needs beside resident units \[bytes\].
    pub(crate) memory_bytes: u64,
}

/// Chooses resident units and window; `order` knows neither. All nodes compute the same.
///
/// # Errors
/// A bound of the entropy or a window that the memory of the nodes does not allow, with the numbers
/// that would work.
pub(crate) fn choose(
    question: &ResidentQuestion<'_>,
    order: &Order,
    caller: &dyn Host,
) -> Result<Choice, Error> {
    let &ResidentQuestion { options, index, job_shares, fingerprint, links, budget, .. } = question;
    let JobShares { shares, own_node, .. } = job_shares;
    let costs = unit_costs(index, shares, RANGE_ENTRY_BYTES, &mut sharing(caller))?;
    let bytes: Vec<UnitBytes> = costs.iter().map(|cost| cost.memory).collect();
    let own_units = (0..shares.units()).filter(|unit| shares.holder(*unit) == *own_node);
    let owned_bytes = own_units.map(|unit| bytes[unit].resident).sum();
    let memory = exchange(links, &node_memory(question, owned_bytes)?, caller)?;
    let streams = StreamMemory::new(shares, options.batch_size, &bytes, memory, dataset_key(fingerprint));
    let facts = WindowFacts { order, shares, streams: &streams };
    let wish = WindowWish { window: options.order.window, entropy: options.order.entropy };
    let (order, window) = facts.choose(wish).map_err(|refused| no_window(question, &facts, refused))?;
    let is_streamed = |order: &Order| {
        let mut streamed = vec![false; shares.units()];
        order.streamed_units().iter().for_each(|unit| streamed[*unit] = true);
        streamed
    };
    let read_bytes = |streamed: &[bool]| -> u64 {
        costs
            .iter()
            .zip(streamed)
            .map(|(UnitCost { read_bytes, .. }, streamed)| u64::from(*streamed) * read_bytes)
            .sum()
    };
    let streamed = is_streamed(&order);
    let mut kept = vec![0; shares.units().div_ceil(64)];
    for (unit, _) in streamed.iter().enumerate().filter(|(_, streamed)| !**streamed) {
        kept[unit / 64] |= 1 << (unit % 64);
    }
    let is_reached = order.draw_entropy().is_none_or(|entropy| entropy.order_entropy >= DEFAULT_ENTROPY);
    let follows = options.order.window.is_none() && !order.streamed_units().is_empty() && is_reached;
    let of_node = order.resident_units(*own_node).iter();
    let of_window = |bytes: u64| if order.streamed_units().is_empty() { 0 } else { bytes };
    let plan = ResidentPlan {
        window,
        kept,
        entropy: options.order.entropy.or(follows.then_some(DEFAULT_ENTROPY)),
        resident_bytes: of_node.map(|unit| bytes[*unit].resident).sum(),
        loaded_bytes: 0,
        window_bytes: of_window(streams.window_bytes(window, *own_node)),
        staging_bytes: of_window(streams.staging_bytes(window, *own_node)),
        streamed_bytes: read_bytes(&streamed),
        unwindowed_bytes: read_bytes(&is_streamed(&facts.with(0))),
    };
    let memory_bytes = budget.held_bytes + question.other_bytes() + plan.staging_bytes;
    Ok(Choice { plan, order, memory_bytes })
}

/// Memory of this node; its share of the dataset takes `owned_bytes`.
fn node_memory(question: &ResidentQuestion<'_>, owned_bytes: u64) -> Result<NodeMemory, Error> {
    let ResidentQuestion { options, budget, .. } = question;
    let free = host::available_bytes();
    let left = budget.left_bytes().saturating_sub(question.buffer_bytes());
    let asked = match options.store.map(|store| store.size) {
        Some(StoreSize::Bytes(bytes)) => Some(bytes),
        _ => None,
    };
    stream_node_memory(asked, owned_bytes, free, left, budget.is_default)
        .ok_or_else(|| exceeds_memory(asked.unwrap_or(0), free, "streamed"))
}

impl ResidentQuestion<'_> {
    /// Batch buffers, at least \[bytes\].
    fn buffer_bytes(&self) -> u64 {
        let options = self.options;
        stream_buffer_bytes(options.strategy.batch_buffers, options.local_ranks.len(), self.batch_bytes)
    }

    /// What the loader needs beside resident units and windows, at most \[bytes\].
    fn other_bytes(&self) -> u64 {
        self.buffer_bytes() + STREAM_CONTROL_BYTES
    }
}

/// Why there is no window as the user wants it, with what would work.
fn no_window(question: &ResidentQuestion<'_>, facts: &WindowFacts<'_>, refused: NoWindow) -> Error {
    let (streams, budget, own_node) = (facts.streams, question.budget, question.job_shares.own_node);
    // The memory of this node with which it has room for windows of `window` units [bytes].
    let memory_for =
        |window| budget.held_bytes + question.other_bytes() + streams.staging_bytes(window, own_node);
    match refused {
        NoWindow::Order(error) => error.into(),
        NoWindow::NoRoom { window, longest } => {
            let works = match longest {
                0 => "not even for a window of 1 unit".to_owned(),
                longest => format!("for at most {longest} units"),
            };
            let needed = memory_for(window);
            Error::Options {
                message: format!(
                    "order {KIND}: a window of {window} units needs node_memory={needed} bytes on this node; the memory of \
                     the job's nodes has room {works}"
                ),
                hint: format!("give node_memory=\"{}MiB\", or a smaller window", needed.div_ceil(MIB)),
            }
        }
        NoWindow::OutOfReach { error, least, longest } => {
            let memory = if streams.divides() {
                "; longer windows leave less memory to resident units, or find none".to_owned()
            } else {
                format!(
                    "; node_memory= has room for a window of {longest} units, up to {} MiB on this node",
                    streams.window_bytes(longest, own_node).div_ceil(MIB)
                )
            };
            let asked = question.options.order.window.is_some();
            let needed = facts.with(1).smallest_window(least, u64::MAX).ok();
            let hint = match needed {
                Some(window) if asked => format!("leave window= out, or give window={window}"),
                Some(window) if !budget.is_default => {
                    let needed = memory_for(window).div_ceil(MIB);
                    format!(
                        "give node_memory=\"{needed}MiB\" on each node, or one of these; order=\"shuffle\" has an entropy of 1"
                    )
                }
                _ => "give one of these, nodes with more memory, or more of it by store=; order=\"shuffle\" has an \
                      entropy of 1"
                    .to_owned(),
            };
            Error::Options { message: format!("{error}{memory}"), hint }
        }
    }
}
