//! The handoff of LMDBIO-LMM-DM: one root of the job walks at a time, and its cursor goes from root
//! to root.
//!
//! A step is split into *rank ranges*: consecutive ranks of the job that share a node. The root of
//! the node walks from the cursor over the samples of its range, and sends the cursor to the root
//! of the next range. So the job passes over each record once.
//!
//! ```text
//! step (8 bytes) | range (4) | cursor (forebay_format::Dataset::export_cursor)
//! ```
//!
//! The position of a cursor follows from step and range alone, so a cursor of another session is
//! also valid; a cursor for a finished range is dropped. No node depends on the speed of another
//! one: a root whose ranks have waited for long proceeds alone, from its last position over the
//! records in between. So does a root whose process is no leader. A range whose node has left is
//! skipped. This is slow but correct.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::{Duration, Instant};

use forebay_plan::{LocatorHost, LocatorTask, SendError};

/// How long a root waits for the cursor while its ranks wait for samples: many times what a range
/// takes.
const GRACE: Duration = Duration::from_secs(2);
/// Cursors that are stored for later ranges; a few are in flight when nodes proceed alone.
const MAX_KEPT: usize = 64;
/// Bytes before the cursor.
const HEAD_BYTES: usize = 12;

/// Consecutive ranks of the job that share a node.
#[derive(Clone, Debug, PartialEq, Eq)]
struct RankRange {
    /// Index of the node; `None` for one without a link.
    node: Option<usize>,
    ranks: Range<u32>,
}

/// A root's side of the handoff.
pub(crate) struct Handoff {
    node: Option<usize>,
    /// First step of the session.
    start: u64,
    ranges: Vec<RankRange>,
    kept: BTreeMap<(u64, u32), Vec<u8>>,
    /// Cursors arrive in time: wait for them.
    expects: bool,
    /// No message can be sent or received any more.
    closed: bool,
}

impl Handoff {
    pub(crate) fn new(task: &LocatorTask) -> Self {
        let node_of = |rank: u32| task.nodes.iter().position(|ranks| ranks.contains(&rank));
        let ranges = rank_ranges((0..task.order.spec().ranks as u32).map(node_of));
        let (node, start) = (Some(task.node), task.start);
        Self { node, start, ranges, kept: BTreeMap::new(), expects: true, closed: false }
    }

    /// The ranges of this node in a step: number and ranks.
    pub(crate) fn own_ranges(&self) -> Vec<(u32, Range<u32>)> {
        let own = (0..).zip(&self.ranges).filter(|(_, range)| range.node == self.node);
        own.map(|(number, range)| (number, range.ranks.clone())).collect()
    }

    /// Waits for the cursor of a range; `None`: the root proceeds from its last position.
    pub(crate) fn wait(&mut self, step: u64, range: u32, host: &dyn LocatorHost) -> Option<Vec<u8>> {
        if self.closed || !host.is_linked() {
            return None;
        }
        let before = (range as usize + self.ranges.len() - 1) % self.ranges.len();
        if self.ranges[before].node == self.node || (step, range) == (self.start, 0) {
            return None;
        }
        let begun = Instant::now();
        self.kept = self.kept.split_off(&(step, range));
        loop {
            if let Some(cursor) = self.kept.remove(&(step, range)) {
                self.expects = true;
                return Some(cursor);
            }
            let starves = || begun.elapsed() > GRACE && host.is_starving(step);
            let stop = || !self.expects || host.is_stopped() || starves();
            match host.receive(&stop) {
                Ok(Some(message)) => self.keep(&message, (step, range)),
                Ok(None) => {
                    self.expects = false;
                    return None;
                }
                // No node is left that could send one; ranks detect a lost node elsewhere.
                Err(_) => {
                    self.closed = true;
                    return None;
                }
            }
        }
    }

    fn keep(&mut self, message: &[u8], now: (u64, u32)) {
        let Some((head, cursor)) = message.split_first_chunk::<HEAD_BYTES>() else { return };
        let (step, range) = head.split_at(8);
        let key =
            (step.try_into().map_or(0, u64::from_le_bytes), range.try_into().map_or(0, u32::from_le_bytes));
        if key >= now && self.kept.len() < MAX_KEPT {
            self.kept.insert(key, cursor.to_vec());
        }
    }

    /// Sends the cursor after a range to the root of the next one; returns the bytes that were
    /// sent.
    pub(crate) fn pass_on(
        &mut self,
        step: u64,
        range: u32,
        export: impl FnOnce() -> Vec<u8>,
        host: &dyn LocatorHost,
    ) -> u64 {
        if self.closed || !host.is_linked() {
            return 0;
        }
        let mut export = Some(export);
        let mut cursor = Vec::new();
        for ahead in 1..=self.ranges.len() {
            let next = range as usize + ahead;
            let (step, range) = (step + (next / self.ranges.len()) as u64, next % self.ranges.len());
            let node = self.ranges[range].node;
            if node == self.node {
                return 0;
            }
            let Some(node) = node else { continue };
            if let Some(export) = export.take() {
                cursor = export();
            }
            let message = [&step.to_le_bytes()[..], &(range as u32).to_le_bytes(), &cursor].concat();
            match host.send(node, message) {
                Ok(()) => return cursor.len() as u64,
                Err(SendError::Gone) => {}
                Err(SendError::Closed) => {
                    self.closed = true;
                    return 0;
                }
            }
        }
        0
    }
}

/// The ranges of a step, from the node of each rank of the job.
fn rank_ranges(nodes: impl Iterator<Item = Option<usize>>) -> Vec<RankRange> {
    let mut ranges: Vec<RankRange> = Vec::new();
    for (rank, node) in (0..).zip(nodes) {
        match ranges.last_mut().filter(|range| range.node == node) {
            Some(range) => range.ranks.end = rank + 1,
            None => ranges.push(RankRange { node, ranks: rank..rank + 1 }),
        }
    }
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_plan::{Kind, LastBatch, LocatorCounter, MappedShards, Order, OrderSpec};
    use forebay_types::{Extent, Rank, SampleLocation, ShardId};
    use std::cell::RefCell;
    use std::collections::VecDeque;

    /// A node whose messages are collected; it stops after it has received all of them.
    #[derive(Default)]
    struct Node {
        gone: Vec<usize>,
        incoming: RefCell<VecDeque<Vec<u8>>>,
        sent: RefCell<Vec<(usize, Vec<u8>)>>,
    }

    impl MappedShards for Node {
        fn bytes(&self, _: ShardId, _: u64, _: u64) -> Option<&[u8]> {
            None
        }

        fn prefetch(&self, _: Extent) -> u64 {
            0
        }
    }

    impl LocatorHost for Node {
        fn publish(&self, _: usize, _: usize, _: SampleLocation) {}

        fn touch(&self, _: Extent) {}

        fn count(&self, _: LocatorCounter, _: u64) {}

        fn report_refused_cursor(&self, _: String) {}

        fn is_stopped(&self) -> bool {
            true
        }

        fn is_starving(&self, _: u64) -> bool {
            false
        }

        fn is_linked(&self) -> bool {
            true
        }

        fn send(&self, node: usize, message: Vec<u8>) -> Result<(), SendError> {
            if self.gone.contains(&node) {
                return Err(SendError::Gone);
            }
            self.sent.borrow_mut().push((node, message));
            Ok(())
        }

        fn receive(&self, stop: &dyn Fn() -> bool) -> Result<Option<Vec<u8>>, SendError> {
            let message = self.incoming.borrow_mut().pop_front();
            assert!(message.is_some() || stop());
            Ok(message)
        }
    }

    /// The handoff of one of three nodes of a rank each.
    fn handoff(node: usize) -> Handoff {
        let order = Order::new(OrderSpec {
            kind: Kind::Sequential,
            last_batch: LastBatch::Fill,
            seed: 0,
            samples: 90,
            batch: 2,
            ranks: 3,
            lanes: None,
        });
        let nodes = vec![vec![0], vec![1], vec![2]];
        let ranks = vec![Rank(node as u32)];
        Handoff::new(&LocatorTask { order: order.unwrap(), ranks, start: 5, node, nodes })
    }

    #[test]
    fn a_cursor_goes_to_the_next_node_that_is_there() {
        let host = Node::default();
        assert_eq!(handoff(2).pass_on(5, 2, || b"here".to_vec(), &host), 4);
        let (node, message) = host.sent.take().pop().unwrap();
        assert_eq!(node, 0, "the first range of the next step");
        let (mut next, there) = (handoff(0), Node::default());
        there.incoming.borrow_mut().push_back(message);
        assert_eq!(next.wait(6, 0, &there).unwrap(), b"here");
        let host = Node { gone: vec![0], ..Node::default() };
        assert_eq!(handoff(2).pass_on(5, 2, || b"here".to_vec(), &host), 4);
        assert_eq!(host.sent.take()[0].0, 1);
        let host = Node { gone: vec![0, 1], ..Node::default() };
        assert_eq!(handoff(2).pass_on(5, 2, || b"here".to_vec(), &host), 0);
    }

    #[test]
    fn cursors_for_later_ranges_are_kept_and_those_for_earlier_ones_dropped() {
        let message = |step: u64, cursor: &[u8]| [&step.to_le_bytes()[..], &[1, 0, 0, 0], cursor].concat();
        let (mut handoff, host) = (handoff(1), Node::default());
        host.incoming.borrow_mut().extend([message(4, b"old"), message(6, b"later"), message(5, b"now")]);
        assert_eq!(handoff.wait(5, 1, &host).unwrap(), b"now");
        assert_eq!(handoff.wait(6, 1, &host).unwrap(), b"later");
        // None arrives: the root proceeds alone.
        assert_eq!(handoff.wait(7, 1, &host), None);
    }

    #[test]
    fn the_first_range_of_a_session_and_a_node_without_others_wait_for_none() {
        let host = Node::default();
        host.incoming.borrow_mut().push_back(Vec::new());
        assert_eq!(handoff(0).wait(5, 0, &host), None);
        let mut alone = handoff(0);
        alone.ranges = rank_ranges([Some(0); 3].into_iter());
        assert_eq!(alone.wait(6, 0, &host), None);
        assert_eq!(alone.pass_on(6, 0, Vec::new, &host), 0);
        assert_eq!(host.incoming.borrow().len(), 1, "nothing was received");
    }

    #[test]
    fn ranges_are_the_runs_of_ranks_that_share_a_node() {
        let cut = |nodes: &[usize]| -> Vec<(usize, Range<u32>)> {
            let ranges = rank_ranges(nodes.iter().copied().map(Some));
            ranges.into_iter().map(|range| (range.node.unwrap(), range.ranks)).collect()
        };
        assert_eq!(cut(&[0, 0, 1, 1, 1, 2]), [(0, 0..2), (1, 2..5), (2, 5..6)]);
        assert_eq!(cut(&[0, 1, 0, 1]), [(0, 0..1), (1, 1..2), (0, 2..3), (1, 3..4)]);
        assert_eq!(cut(&[0]), [(0, 0..1)]);
    }
}
