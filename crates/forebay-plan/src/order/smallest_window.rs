//! The smallest window of the order `opportunistic` that is random enough.

use std::sync::Arc;

use super::{Order, OrderError, OrderKind, OrderSpec};
use crate::nodes::shares::NodeShares;
use crate::order::draw_entropy::DrawEntropy;

impl Order {
    /// The smallest window of `opportunistic`, of at most `most` units, with which the order
    /// entropy is `least`, whatever its window is now. A window of 1 where the order knows no
    /// nodes: then it is a full shuffle.
    ///
    /// # Errors
    /// If no such window is large enough, with the numbers that would work.
    pub fn smallest_window(&self, least: f64, most: u64) -> Result<u64, OrderError> {
        let kind = self.spec.kind.name();
        if !(0.0..=1.0).contains(&least) {
            return Err(OrderError::EntropyRange { kind, found: least.to_string() });
        }
        let Some(parts) = self.opportunistic() else { return Ok(1) };
        let smallest = |most| DrawEntropy::smallest_window(parts, self.global_batch, least, most);
        smallest(most).map_err(|refused| {
            let units = parts.streamed_units().len() as u64;
            let longer = match smallest(units) {
                Ok(window) => format!("a window of {window} units"),
                Err(_) => format!("{} with a window of {units} units", rounded_down(refused.highest)),
            };
            OrderError::Entropy {
                kind,
                asked: least.to_string(),
                most: most.clamp(1, units.max(1)),
                works: if refused.reached < refused.highest {
                    format!("{} or {longer}", rounded_down(refused.reached))
                } else {
                    rounded_down(refused.reached)
                },
            }
        })
    }

    /// `opportunistic` with the smallest window, of at most `most` units, with which the order
    /// entropy is `least`, where windows take memory from resident units: `resident` says for a
    /// window and a unit whether the unit is kept beside such windows. Longer windows keep fewer.
    ///
    /// Tries windows of 1, 2, 4, ... units, then between the first that does and the one before.
    ///
    /// # Errors
    /// If no such window does, with the entropy of the best one.
    ///
    /// # Panics
    /// Where the shares are of another dataset or other ranks.
    pub fn with_smallest_window(
        self,
        shares: &Arc<NodeShares>,
        least: f64,
        most: u64,
        resident: impl Fn(u64, usize) -> bool,
    ) -> Result<Self, OrderError> {
        let kind = self.spec.kind.name();
        if !(0.0..=1.0).contains(&least) {
            return Err(OrderError::EntropyRange { kind, found: least.to_string() });
        }
        let most = most.clamp(1, shares.units().max(1) as u64);
        let with = |window| self.with_window_and_residents(window, shares, &resident);
        let (mut low, mut best) = (1, (0.0, 1));
        let mut high = 1;
        let mut found = loop {
            let order = with(high);
            let reached = entropy(&order);
            if reached >= least {
                break order;
            }
            if reached > best.0 {
                best = (reached, high);
            }
            if high == most {
                let works = format!("{} with a window of {} units", rounded_down(best.0), best.1);
                return Err(OrderError::Entropy { kind, asked: least.to_string(), most, works });
            }
            (low, high) = (high + 1, (high * 2).min(most));
        };
        while low < high {
            let middle = low + (high - low) / 2;
            let order = with(middle);
            if entropy(&order) >= least {
                (found, high) = (order, middle);
            } else {
                low = middle + 1;
            }
        }
        Ok(found)
    }

    /// The same with the window of the highest order entropy, of 1, 2, 4, ..., `most` units.
    ///
    /// # Panics
    /// Where the shares are of another dataset or other ranks.
    #[must_use]
    pub fn with_most_random_window(
        self,
        shares: &Arc<NodeShares>,
        most: u64,
        resident: impl Fn(u64, usize) -> bool,
    ) -> Self {
        let most = most.clamp(1, shares.units().max(1) as u64);
        let mut best = self.with_window_and_residents(1, shares, &resident);
        let mut window = 1;
        while window < most {
            window = (window * 2).min(most);
            let order = self.with_window_and_residents(window, shares, &resident);
            if entropy(&order) > entropy(&best) {
                best = order;
            }
        }
        best
    }

    fn with_window_and_residents(
        &self,
        window: u64,
        shares: &Arc<NodeShares>,
        resident: impl Fn(u64, usize) -> bool,
    ) -> Self {
        let spec = OrderSpec { kind: OrderKind::Opportunistic { window }, ..self.spec };
        let order = Self { spec, ..self.clone() };
        order.with_residents(Arc::clone(shares), |unit| resident(window, unit))
    }
}

/// H of an order.
fn entropy(order: &Order) -> f64 {
    order.draw_entropy().map_or(1.0, |entropy| entropy.order_entropy)
}

/// An entropy that works, for a message.
fn rounded_down(entropy: f64) -> String {
    format!("entropy={}", (entropy * 1e4).floor() / 1e4)
}
