//! Where the nodes of a job begin their iterations: the n-th start of every node is at the same
//! step, or ranks disagree.
//!
//! Nodes never wait for each other at a start. Each leader tells the others where its node began,
//! with the number of the start, and compares as soon as both sides of a pair are known. A node may
//! be many starts ahead; at most [`KEPT`] are remembered for it.

use std::collections::VecDeque;

/// Starts that are remembered per node: of epochs that one node is ahead of another.
const KEPT: usize = 1024;

/// Two nodes that began an iteration of the same number at different steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// Where this node began (absolute step).
    pub own: u64,
    /// The other node.
    pub node: usize,
    /// Where it began (absolute step).
    pub theirs: u64,
}

/// See the module header.
#[derive(Debug, Default)]
pub(crate) struct Starts {
    /// Number of the next start of this node.
    next: u64,
    /// The last of its starts, oldest first.
    own: VecDeque<u64>,
    /// Starts of other nodes that this one has not come to: node, number, step.
    ahead: Vec<VecDeque<(u64, u64)>>,
}

impl Starts {
    pub(crate) fn new(nodes: usize) -> Self {
        Self { next: 0, own: VecDeque::new(), ahead: vec![VecDeque::new(); nodes] }
    }

    /// This node begins at a step; returns the number of this start, and a node that began
    /// elsewhere.
    pub(crate) fn begin(&mut self, step: u64) -> (u64, Option<Conflict>) {
        let number = self.next;
        self.next += 1;
        self.own.push_back(step);
        if self.own.len() > KEPT {
            self.own.pop_front();
        }
        let mut conflict = None;
        for (node, ahead) in self.ahead.iter_mut().enumerate() {
            while let Some((_, theirs)) = ahead.front().copied().filter(|(other, _)| *other <= number) {
                ahead.pop_front();
                if theirs != step {
                    conflict = Some(Conflict { own: step, node, theirs });
                }
            }
        }
        (number, conflict)
    }

    /// Another node began; returns whether this one had begun elsewhere at the start of that
    /// number.
    pub(crate) fn hear(&mut self, node: usize, number: u64, step: u64) -> Option<Conflict> {
        if number >= self.next {
            let ahead = self.ahead.get_mut(node)?;
            if ahead.len() < KEPT {
                ahead.push_back((number, step));
            }
            return None;
        }
        let age = usize::try_from(self.next - number).ok()?;
        let own = *self.own.get(self.own.len().checked_sub(age)?)?;
        (own != step).then_some(Conflict { own, node, theirs: step })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_sides_of_a_pair_find_the_conflict_whoever_is_first() {
        let conflict = Some(Conflict { own: 30, node: 1, theirs: 50 });
        let mut first = Starts::new(2);
        assert_eq!(first.begin(0), (0, None));
        assert_eq!(first.hear(1, 0, 0), None);
        assert_eq!(first.begin(30), (1, None));
        assert_eq!(first.hear(1, 1, 50), conflict);
        let mut second = Starts::new(2);
        assert_eq!(second.hear(1, 0, 0), None);
        assert_eq!(second.hear(1, 1, 50), None);
        assert_eq!(second.begin(0), (0, None));
        assert_eq!(second.begin(30), (1, conflict));
        assert_eq!(second.begin(60), (2, None));
    }

    #[test]
    fn a_node_that_is_far_ahead_or_behind_costs_a_bounded_memory() {
        let mut starts = Starts::new(2);
        for number in 0..3 * KEPT as u64 {
            starts.hear(1, number, number);
        }
        assert_eq!(starts.ahead[1].len(), KEPT);
        for number in 0..3 * KEPT as u64 {
            assert_eq!(starts.begin(number).1, None);
        }
        assert_eq!(starts.own.len(), KEPT);
        assert_eq!(starts.hear(1, 0, 7), None, "too old to compare");
        assert_eq!(starts.hear(1, 3 * KEPT as u64 - 1, 7).map(|conflict| conflict.theirs), Some(7));
    }
}
