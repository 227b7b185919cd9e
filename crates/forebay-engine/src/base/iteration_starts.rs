//! Checks that the n-th iteration of each node of a job starts at the same step.
//!
//! Nodes never wait for each other at a start. Each leader reports the number and step of each
//! start to the others, and compares as soon as both sides of a pair are known. A node may be many
//! starts ahead; at most [`MAX_STARTS`] are stored for it.

use std::collections::VecDeque;

/// Maximum number of stored starts per node: epochs by which one node is ahead of another.
const MAX_STARTS: usize = 1024;

/// Two nodes that began an iteration of the same number at different steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// Start of this node (absolute step).
    pub own: u64,
    /// The other node.
    pub node: usize,
    /// Start of the other node (absolute step).
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

    /// Records a start of this node; returns its number, and a node that started at a different
    /// step.
    pub(crate) fn begin(&mut self, step: u64) -> (u64, Option<Conflict>) {
        let number = self.next;
        self.next += 1;
        self.own.push_back(step);
        if self.own.len() > MAX_STARTS {
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

    /// Records a start of another node; returns a conflict if this node's start of that number was
    /// at a different step.
    pub(crate) fn compare(&mut self, node: usize, number: u64, step: u64) -> Option<Conflict> {
        if number >= self.next {
            let ahead = self.ahead.get_mut(node)?;
            if ahead.len() < MAX_STARTS {
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
    fn both_sides_of_a_pair_find_the_conflict_in_any_order() {
        let conflict = Some(Conflict { own: 30, node: 1, theirs: 50 });
        let mut first = Starts::new(2);
        assert_eq!(first.begin(0), (0, None));
        assert_eq!(first.compare(1, 0, 0), None);
        assert_eq!(first.begin(30), (1, None));
        assert_eq!(first.compare(1, 1, 50), conflict);
        let mut second = Starts::new(2);
        assert_eq!(second.compare(1, 0, 0), None);
        assert_eq!(second.compare(1, 1, 50), None);
        assert_eq!(second.begin(0), (0, None));
        assert_eq!(second.begin(30), (1, conflict));
        assert_eq!(second.begin(60), (2, None));
    }

    #[test]
    fn a_node_that_is_far_ahead_or_behind_needs_bounded_memory() {
        let mut starts = Starts::new(2);
        for number in 0..3 * MAX_STARTS as u64 {
            starts.compare(1, number, number);
        }
        assert_eq!(starts.ahead[1].len(), MAX_STARTS);
        for number in 0..3 * MAX_STARTS as u64 {
            assert_eq!(starts.begin(number).1, None);
        }
        assert_eq!(starts.own.len(), MAX_STARTS);
        assert_eq!(starts.compare(1, 0, 7), None, "too old to compare");
        assert_eq!(starts.compare(1, 3 * MAX_STARTS as u64 - 1, 7).map(|conflict| conflict.theirs), Some(7));
    }
}
