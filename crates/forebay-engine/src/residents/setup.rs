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
use forebay_plan::{
    Kind, NodeMemory, Order, OrderError, StreamMemory, UnitBytes, UnitCost, data_set_key, unit_costs,
};
use serde::{Deserialize, Serialize};

use crate::config::options::{Options, StoreSize};
use crate::config::shares::{JobShares, sharing};
use crate::error::Error;
use crate::host::Host;
use crate::mesh::Links;
use crate::residents::memory::ENTRY_BYTES;
use crate::store::{exceeds_memory, exchange};

/// Order entropy that the window reaches where the user gives no bound, if memory allows it: the
/// least with which a training on a file sorted by class learns as with a full shuffle
/// (docs/results/store.md, Training).
pub(crate) const DEFAULT_ENTROPY: f64 = 0.85;

/// Divisor of the free memory that residents and windows may take where the user does not say.
const MEMORY_SHARE: u64 = 2;

/// Batch buffers per rank, at least.
const MIN_BUFFERS: u64 = 2;

/// Memory of a loader beside staging memory and batch buffers, at most \[bytes\].
const CONTROL_BYTES: u64 = 2 << 20;

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
    let costs = unit_costs(index, shares, ENTRY_BYTES, &mut sharing(caller))?;
    let bytes: Vec<UnitBytes> = costs.iter().map(|cost| cost.memory).collect();
    let own_units = (0..shares.units()).filter(|unit| shares.holder(*unit) == *own_node);
    let owned_bytes = own_units.map(|unit| bytes[unit].resident).sum();
    let memory = exchange(links, &node_memory(question, owned_bytes)?, caller)?;
    let streams = StreamMemory::new(shares, options.batch_size, &bytes, memory, data_set_key(fingerprint));
    let choosing = Choosing { question, order, streams: &streams };
    let (order, window) = choosing.choose()?;
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
        unwindowed_bytes: read_bytes(&is_streamed(&choosing.with(0))),
    };
    let memory_bytes = budget.held_bytes + question.other_bytes() + plan.staging_bytes;
    Ok(Choice { plan, order, memory_bytes })
}

/// Memory of this node; its share of the data set takes `owned_bytes`.
fn node_memory(question: &ResidentQuestion<'_>, owned_bytes: u64) -> Result<NodeMemory, Error> {
    let ResidentQuestion { options, budget, .. } = question;
    let free = host::available_bytes();
    let left = budget.left_bytes().saturating_sub(question.buffer_bytes());
    match options.strategy.store {
        Some(StoreSize::Bytes(bytes)) if bytes.min(owned_bytes) > free => {
            Err(exceeds_memory(bytes, free, "streamed"))
        }
        Some(StoreSize::Bytes(bytes)) => {
            let rest = if budget.is_default { (free - bytes.min(owned_bytes)) / MEMORY_SHARE } else { 0 };
            Ok(NodeMemory { resident_bytes: bytes, staging_bytes: left.max(rest), divides: false })
        }
        _ => Ok(NodeMemory {
            resident_bytes: free / MEMORY_SHARE,
            staging_bytes: left,
            divides: budget.is_default,
        }),
    }
}

impl ResidentQuestion<'_> {
    /// Batch buffers, at least \[bytes\].
    fn buffer_bytes(&self) -> u64 {
        let buffers = self.options.strategy.batch_buffers.map_or(MIN_BUFFERS, u64::from);
        buffers * self.options.local_ranks.len() as u64 * self.batch_bytes
    }

    /// What the loader needs beside resident units and windows, at most \[bytes\].
    fn other_bytes(&self) -> u64 {
        self.buffer_bytes() + CONTROL_BYTES
    }
}

struct Choosing<'a> {
    question: &'a ResidentQuestion<'a>,
    order: &'a Order,
    streams: &'a StreamMemory,
}

impl Choosing<'_> {
    /// The order with windows of `window` units, and the units that nodes keep beside them.
    fn with(&self, window: u64) -> Order {
        let shares = &self.question.job_shares.shares;
        let order = self.order.clone().with_window(window.max(1));
        order.with_residents(shares.clone().into(), |unit| self.streams.keeps(window, unit))
    }

    fn choose(&self) -> Result<(Order, u64), Error> {
        let choice = &self.question.options.order;
        let least = choice.entropy.unwrap_or(DEFAULT_ENTROPY);
        let without_windows = self.with(0);
        if without_windows.streamed_units().is_empty() {
            without_windows.smallest_window(choice.entropy.unwrap_or(0.0), 1)?;
            return Ok((without_windows, 1));
        }
        let longest = self.streams.longest_window();
        if longest < choice.window.unwrap_or(1) {
            return Err(self.no_room(choice.window.unwrap_or(1), longest));
        }
        let order = match choice.window {
            Some(window) => {
                let order = self.with(window);
                if let Some(least) = choice.entropy {
                    order
                        .smallest_window(least, window)
                        .map_err(|error| self.out_of_reach(error, least, window))?;
                }
                order
            }
            None if self.streams.divides() => {
                let shares = self.question.job_shares.shares.clone().into();
                let keeps = |window: u64, unit: usize| self.streams.keeps(window, unit);
                match self.order.clone().with_smallest_window(&shares, least, longest, keeps) {
                    Err(OrderError::Entropy { .. }) if choice.entropy.is_none() => {
                        self.order.clone().with_most_random_window(&shares, longest, keeps)
                    }
                    found => found.map_err(|error| self.out_of_reach(error, least, longest))?,
                }
            }
            None => match self.with(1).smallest_window(least, longest) {
                Err(OrderError::Entropy { .. }) if choice.entropy.is_none() => {
                    let units = without_windows.streamed_units().len() as u64;
                    self.with(longest.clamp(1, units))
                }
                found => self.with(found.map_err(|error| self.out_of_reach(error, least, longest))?),
            },
        };
        let Kind::Opportunistic { window } = order.kind() else {
            return Err(Error::local("the order has no windows"));
        };
        Ok((order, window))
    }

    /// The memory of this node with which it has room for windows of `window` units \[bytes\].
    fn memory_for(&self, window: u64) -> u64 {
        let bytes = self.streams.staging_bytes(window, self.question.job_shares.own_node);
        self.question.budget.held_bytes + self.question.other_bytes() + bytes
    }

    /// No room for windows of `window` units.
    fn no_room(&self, window: u64, longest: u64) -> Error {
        let works = match longest {
            0 => "not even for a window of 1 unit".to_owned(),
            longest => format!("for at most {longest} units"),
        };
        Error::Options {
            message: format!(
                "order {KIND}: a window of {window} units needs memory={} bytes on this node; the memory of the job's \
                 nodes has room {works}",
                self.memory_for(window)
            ),
            hint: format!(
                "give memory=\"{}MiB\", or a smaller window",
                self.memory_for(window).div_ceil(MIB)
            ),
        }
    }

    /// The bound of the entropy is out of reach with windows of up to `longest` units.
    fn out_of_reach(&self, error: OrderError, least: f64, longest: u64) -> Error {
        if !matches!(error, OrderError::Entropy { .. }) {
            return error.into();
        }
        let budget = self.question.budget;
        let memory = if self.streams.divides() {
            "; longer windows leave less memory to resident units, or find none".to_owned()
        } else {
            format!(
                "; memory= has room for a window of {longest} units, up to {} MiB on this node",
                self.streams.window_bytes(longest, self.question.job_shares.own_node).div_ceil(MIB)
            )
        };
        let asked = self.question.options.order.window.is_some();
        let needed = self.with(1).smallest_window(least, u64::MAX).ok();
        let hint = match needed {
            Some(window) if asked => format!("leave window= out, or give window={window}"),
            Some(window) if !budget.is_default => {
                let needed = self.memory_for(window).div_ceil(MIB);
                format!("give memory=\"{needed}MiB\" on each node, or one of these; order=\"shuffle\" has an entropy of 1")
            }
            _ => "give one of these, nodes with more memory, or more of it by store=; order=\"shuffle\" has an entropy of 1"
                .to_owned(),
        };
        Error::Options { message: format!("{error}{memory}"), hint }
    }
}
