//! Chooses the windows of the order `opportunistic`, and with them what nodes keep: the smallest
//! window with which the order is random enough, within the memory of all nodes.

use crate::nodes::shares::NodeShares;
use crate::order::{Order, OrderError, OrderKind};
use crate::stream::memory::{NodeMemory, StreamMemory};

/// Order entropy that the window reaches where the user gives no bound, if memory allows it: the
/// least with which a training on a file sorted by class learns as with a full shuffle
/// (docs/results/store.md, Training).
pub const DEFAULT_ENTROPY: f64 = 0.85;

/// Divisor of the free memory that residents and windows may take where the user does not say.
const MEMORY_SHARE: u64 = 2;

/// Batch buffers per rank, at least.
const MIN_BUFFERS: u64 = 2;

/// Memory of a loader beside staging memory and batch buffers, at most \[bytes\].
pub const STREAM_CONTROL_BYTES: u64 = 2 << 20;

/// Batch buffers that the ranks of a node need, at least \[bytes\]; `buffers` per rank are those
/// that the user gave.
#[must_use]
pub fn stream_buffer_bytes(buffers: Option<u32>, node_ranks: usize, batch_bytes: u64) -> u64 {
    buffers.map_or(MIN_BUFFERS, u64::from) * node_ranks as u64 * batch_bytes
}

/// What the user wants of the windows.
#[derive(Clone, Copy, Debug, Default)]
pub struct WindowWish {
    /// Units of a window.
    pub window: Option<u64>,
    /// The least order entropy.
    pub entropy: Option<f64>,
}

/// Why there is no such window.
#[derive(Clone, Debug)]
pub enum NoWindow {
    /// The memory has no room for windows of `window` units.
    NoRoom {
        /// What was wanted.
        window: u64,
        /// The longest window that there is room for; 0: none.
        longest: u64,
    },
    /// The entropy is out of reach with the windows that there is room for.
    OutOfReach {
        /// What the order says.
        error: OrderError,
        /// The least entropy.
        least: f64,
        /// The longest window.
        longest: u64,
    },
    /// The order itself refuses.
    Order(OrderError),
}

/// Facts that the windows follow from.
#[derive(Clone, Copy, Debug)]
pub struct WindowFacts<'a> {
    /// The order, which knows neither windows nor what nodes keep.
    pub order: &'a Order,
    /// What each node holds.
    pub shares: &'a NodeShares,
    /// The memory of the nodes.
    pub streams: &'a StreamMemory,
}

impl WindowFacts<'_> {
    /// The order with windows of `window` units, and the units that nodes keep beside them.
    #[must_use]
    pub fn with(&self, window: u64) -> Order {
        let order = self.order.clone().with_window(window.max(1));
        order.with_residents(self.shares.clone().into(), |unit| self.streams.keeps(window, unit))
    }

    /// The order with the windows that suit, and the units of a window.
    ///
    /// # Errors
    /// A wish that the memory of the nodes does not allow.
    ///
    /// # Panics
    /// Where the order is not `opportunistic`.
    pub fn choose(&self, wish: WindowWish) -> Result<(Order, u64), NoWindow> {
        let least = wish.entropy.unwrap_or(DEFAULT_ENTROPY);
        let without_windows = self.with(0);
        if without_windows.streamed_units().is_empty() {
            without_windows.smallest_window(wish.entropy.unwrap_or(0.0), 1).map_err(NoWindow::Order)?;
            return Ok((without_windows, 1));
        }
        let longest = self.streams.longest_window();
        let wanted = wish.window.unwrap_or(1);
        if longest < wanted {
            return Err(NoWindow::NoRoom { window: wanted, longest });
        }
        let out_of_reach = |longest: u64| {
            move |error: OrderError| match error {
                OrderError::Entropy { .. } => NoWindow::OutOfReach { error, least, longest },
                error => NoWindow::Order(error),
            }
        };
        let order = match wish.window {
            Some(window) => {
                let order = self.with(window);
                if let Some(least) = wish.entropy {
                    order.smallest_window(least, window).map_err(out_of_reach(window))?;
                }
                order
            }
            None if self.streams.divides() => {
                let shares = self.shares.clone().into();
                let keeps = |window: u64, unit: usize| self.streams.keeps(window, unit);
                match self.order.clone().with_smallest_window(&shares, least, longest, keeps) {
                    Err(OrderError::Entropy { .. }) if wish.entropy.is_none() => {
                        self.order.clone().with_most_random_window(&shares, longest, keeps)
                    }
                    found => found.map_err(out_of_reach(longest))?,
                }
            }
            None => match self.with(1).smallest_window(least, longest) {
                Err(OrderError::Entropy { .. }) if wish.entropy.is_none() => {
                    let units = without_windows.streamed_units().len() as u64;
                    self.with(longest.clamp(1, units))
                }
                found => self.with(found.map_err(out_of_reach(longest))?),
            },
        };
        let OrderKind::Opportunistic { window } = order.kind() else {
            unreachable!("the order {} has no windows", order.kind())
        };
        Ok((order, window))
    }
}

/// Memory of a node: `requested_bytes` that the user gave for resident units, or a part of the
/// `free_bytes`; `left_bytes` of the loader's budget for windows. The node's share takes
/// `owned_bytes`. `None` where the user gave more than is free.
#[must_use]
pub fn stream_node_memory(
    requested_bytes: Option<u64>,
    owned_bytes: u64,
    free_bytes: u64,
    left_bytes: u64,
    is_default_budget: bool,
) -> Option<NodeMemory> {
    let Some(asked) = requested_bytes else {
        let resident_bytes = free_bytes / MEMORY_SHARE;
        return Some(NodeMemory { resident_bytes, staging_bytes: left_bytes, divides: is_default_budget });
    };
    let rest = free_bytes.checked_sub(asked.min(owned_bytes))?;
    let rest = if is_default_budget { rest / MEMORY_SHARE } else { 0 };
    Some(NodeMemory { resident_bytes: asked, staging_bytes: left_bytes.max(rest), divides: false })
}

#[cfg(test)]
mod tests {
    use forebay_types::{Rank, SampleId};

    use super::*;
    use crate::nodes::shares::ShareUnit;
    use crate::order::{LastBatch, OrderSpec};
    use crate::stream::memory::UnitBytes;

    const MIB: u64 = 1 << 20;
    const UNITS: u64 = 64;
    const UNIT_SAMPLES: u64 = 64;

    /// Two nodes of one rank; each keeps `resident` units and has staging memory of
    /// `staging_bytes`.
    fn choose(resident: u64, staging_bytes: u64, divides: bool, wish: WindowWish) -> Result<u64, NoWindow> {
        let order = Order::new(OrderSpec {
            kind: OrderKind::Opportunistic { window: 1 },
            last_batch: LastBatch::Fill,
            seed: 0,
            samples: UNITS * UNIT_SAMPLES,
            batch: 16,
            ranks: 2,
            lanes: None,
        })
        .unwrap();
        let unit = |unit| ShareUnit { first_sample: SampleId(unit * UNIT_SAMPLES), bytes: MIB };
        let units: Vec<ShareUnit> = (0..UNITS).map(unit).collect();
        let nodes = [vec![Rank(0)], vec![Rank(1)]];
        let shares = NodeShares::new(UNITS * UNIT_SAMPLES, &units, &nodes, 7);
        let bytes = vec![UnitBytes { resident: MIB, staged: MIB }; UNITS as usize];
        let memory = NodeMemory { resident_bytes: resident * MIB, staging_bytes, divides };
        let streams = StreamMemory::new(&shares, 16, &bytes, vec![memory; 2], 7);
        let facts = WindowFacts { order: &order, shares: &shares, streams: &streams };
        facts.choose(wish).map(|(order, window)| {
            assert!(matches!(order.kind(), OrderKind::Opportunistic { window: found } if found == window));
            window
        })
    }

    #[test]
    fn each_rank_needs_two_buffers_or_those_that_were_given() {
        for (buffers, ranks, expected) in [(None, 1, 200), (None, 4, 800), (Some(5), 2, 1000)] {
            assert_eq!(stream_buffer_bytes(buffers, ranks, 100), expected);
        }
    }

    #[test]
    fn windows_are_the_smallest_that_are_random_enough() {
        let (free, room) = (WindowWish::default(), 4096 * MIB);
        let entropy = |least| WindowWish { entropy: Some(least), ..free };
        // All units are resident.
        assert_eq!(choose(UNITS, 0, false, free).unwrap(), 1);
        let [low, default, high] =
            [entropy(0.5), free, entropy(0.9)].map(|wish| choose(8, room, false, wish).unwrap());
        assert!(low <= default && default < high, "{low}, {default}, {high}");
        assert_eq!(choose(8, room, false, entropy(DEFAULT_ENTROPY)).unwrap(), default);
        let window = |window| WindowWish { window: Some(window), ..free };
        assert_eq!(choose(8, room, false, window(5)).unwrap(), 5);
        // Memory that is divided has room for the default, too.
        assert!(choose(16, 0, true, free).is_ok());
    }

    #[test]
    fn a_wish_that_the_memory_does_not_allow_is_refused_with_what_it_allows() {
        let wish = WindowWish { window: Some(32), entropy: None };
        let refused = choose(8, 16 * MIB, false, wish).unwrap_err();
        assert!(matches!(refused, NoWindow::NoRoom { window: 32, longest: 1..32 }), "{refused:?}");
        let wish = WindowWish { window: None, entropy: Some(0.99) };
        let refused = choose(8, 16 * MIB, false, wish).unwrap_err();
        assert!(matches!(refused, NoWindow::OutOfReach { longest: 1..32, .. }), "{refused:?}");
        // The default is no promise.
        assert!(choose(8, 16 * MIB, false, WindowWish::default()).is_ok());
    }

    #[test]
    fn residents_take_what_the_user_gives_or_half_of_what_is_free() {
        let memory = |resident_bytes, staging_bytes, divides| {
            Some(NodeMemory { resident_bytes, staging_bytes, divides })
        };
        for (asked, owned, free, left, is_default, expected) in [
            (None, 900, 600, 100, true, memory(300, 100, true)),
            (None, 900, 600, 100, false, memory(300, 100, false)),
            (Some(400), 900, 600, 50, false, memory(400, 50, false)),
            (Some(400), 900, 600, 50, true, memory(400, 100, false)),
            (Some(400), 900, 600, 150, true, memory(400, 150, false)),
            (Some(700), 900, 600, 50, true, None),
            // What the share takes counts.
            (Some(700), 500, 600, 0, true, memory(700, 50, false)),
        ] {
            let found = stream_node_memory(asked, owned, free, left, is_default);
            assert_eq!(found, expected, "{asked:?}, {owned}, {free}, {left}, {is_default}");
        }
    }
}
