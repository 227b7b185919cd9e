//! Grants read tokens to nodes (LMDBIO, staggering). Time and bytes are arguments.
//!
//! With N nodes in G groups there are ⌈N / G⌉ tokens. Nodes get one in the order of their requests,
//! hold it for a segment at most, and request again. So nodes read one after another if there are
//! fewer tokens than nodes that want to read.
//!
//! The best number of groups is measured at the start: 1, 2, 4, … up to one node each. Each number
//! is used for a few grants to each node, the first of which do not count; the measure is the total
//! read rate. A larger number must be better by more than the noise, because grants cost messages.

use std::collections::VecDeque;

/// Grants to each node that are measured for one number of groups, after one that is not.
const MEASURED_GRANTS: usize = 3;
/// A larger number of groups must be better by this factor.
const BETTER: f64 = 1.05;

/// See the module header.
#[derive(Debug)]
pub(crate) struct TokenServer {
    nodes: usize,
    groups: usize,
    asking: VecDeque<usize>,
    holding: Vec<usize>,
    trial: Option<Trial>,
}

/// The current measurement.
#[derive(Debug)]
struct Trial {
    /// (groups, bytes per second) so far.
    found: Vec<(usize, f64)>,
    grants: usize,
    bytes: u64,
    since_ns: u64,
}

impl Trial {
    fn new() -> Self {
        Self { found: Vec::new(), grants: 0, bytes: 0, since_ns: 0 }
    }
}

impl TokenServer {
    /// Tokens for `nodes` nodes in `groups` groups; `None`: to be measured.
    pub(crate) fn new(nodes: usize, groups: Option<usize>) -> Self {
        let mut server = Self { nodes, groups: 1, asking: VecDeque::new(), holding: Vec::new(), trial: None };
        server.set(groups);
        server
    }

    /// The current number of groups, and whether it is still being measured.
    pub(crate) fn groups(&self) -> (usize, bool) {
        (self.groups, self.trial.is_some())
    }

    /// Sets the number of groups, or begins to measure.
    pub(crate) fn set(&mut self, groups: Option<usize>) {
        self.groups = groups.map_or(1, |groups| groups.clamp(1, self.nodes));
        self.trial = (groups.is_none() && self.nodes > 1).then(Trial::new);
    }

    /// A node requests a token.
    pub(crate) fn ask(&mut self, node: usize) {
        if !self.asking.contains(&node) && !self.holding.contains(&node) {
            self.asking.push_back(node);
        }
    }

    /// A node returns its token, after reading some bytes.
    pub(crate) fn give_back(&mut self, node: usize, bytes: u64, now_ns: u64) {
        self.forget(node);
        self.measure(bytes, now_ns);
    }

    /// A node has shut down.
    pub(crate) fn forget(&mut self, node: usize) {
        self.asking.retain(|asking| *asking != node);
        self.holding.retain(|holding| *holding != node);
    }

    /// Nodes that hold a token.
    pub(crate) fn holding(&self) -> &[usize] {
        &self.holding
    }

    /// The nodes that are granted a token now.
    pub(crate) fn grants(&mut self) -> Vec<usize> {
        let free = self.nodes.div_ceil(self.groups).saturating_sub(self.holding.len());
        let granted: Vec<usize> = self.asking.drain(..free.min(self.asking.len())).collect();
        self.holding.extend(&granted);
        granted
    }

    fn measure(&mut self, bytes: u64, now_ns: u64) {
        let Some(trial) = &mut self.trial else { return };
        trial.grants += 1;
        trial.bytes += bytes;
        if trial.grants == self.nodes {
            (trial.bytes, trial.since_ns) = (0, now_ns);
        }
        if trial.grants < self.nodes * (1 + MEASURED_GRANTS) {
            return;
        }
        let seconds = now_ns.saturating_sub(trial.since_ns).max(1) as f64 / 1e9;
        trial.found.push((self.groups, trial.bytes as f64 / seconds));
        trial.grants = 0;
        if self.groups < self.nodes {
            self.groups = (self.groups * 2).min(self.nodes);
            return;
        }
        let mut best = trial.found[0];
        for tried in &trial.found[1..] {
            if tried.1 > best.1 * BETTER {
                best = *tried;
            }
        }
        self.groups = best.0;
        self.trial = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_go_round_in_the_order_of_asking() {
        let mut server = TokenServer::new(4, Some(2));
        for node in [3, 1, 0, 2, 1] {
            server.ask(node);
        }
        assert_eq!(server.grants(), [3, 1]);
        assert!(server.grants().is_empty());
        server.give_back(1, 10, 0);
        server.ask(1);
        assert_eq!(server.grants(), [0]);
        server.give_back(3, 10, 0);
        assert_eq!(server.grants(), [2]);
        assert_eq!(server.holding(), [0, 2]);
    }

    #[test]
    fn the_token_of_a_node_that_goes_is_given_to_the_next() {
        let mut server = TokenServer::new(3, Some(3));
        server.ask(0);
        server.ask(1);
        assert_eq!(server.grants(), [0]);
        server.forget(0);
        assert_eq!(server.grants(), [1]);
    }

    #[test]
    fn more_groups_than_nodes_are_one_node_each() {
        let mut server = TokenServer::new(2, Some(9));
        assert_eq!(server.groups(), (2, false));
        server.set(Some(1));
        assert_eq!(server.groups(), (1, false));
        assert_eq!(TokenServer::new(1, None).groups(), (1, false));
    }

    /// Grants tokens at a rate that depends on the number of groups until a number of groups is
    /// decided on.
    fn decide(rate: impl Fn(usize) -> u64) -> usize {
        let mut server = TokenServer::new(4, None);
        let mut now_ns = 0;
        for round in 0..10_000 {
            server.ask(round % 4);
            for node in server.grants() {
                now_ns += 1_000_000_000_000 / rate(server.groups().0);
                server.give_back(node, 1000, now_ns);
            }
            if !server.groups().1 {
                return server.groups().0;
            }
        }
        panic!("no number of groups is ever decided on");
    }

    #[test]
    fn the_number_of_groups_with_the_highest_rate_is_kept() {
        assert_eq!(decide(|groups| if groups == 2 { 2000 } else { 1000 }), 2);
        assert_eq!(decide(|groups| 1000 * groups as u64), 4);
        assert_eq!(decide(|groups| 4000 / groups as u64), 1);
        // Noise decides nothing.
        assert_eq!(decide(|groups| 1000 + groups as u64), 1);
    }
}
