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
//!
//! Waiting is a state machine: [`Handoff::begin`] says whether there is a cursor to wait for,
//! [`Handoff::poll`] what the time and the inbox make of the wait. Neither reads a clock or blocks;
//! [`Handoff::wait`] does both for them.

use std::cell::Cell;
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

/// What a root knows while it waits for a cursor.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct WaitFacts {
    /// How long it has waited.
    waited: Duration,
    /// The session has ended.
    is_stopped: bool,
    /// A rank of the node has all samples before the step, and lacks those of the step.
    is_starving: bool,
}

/// What a root finds in its inbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Inbox {
    Message(Vec<u8>),
    Empty,
    /// No message can be sent or received any more.
    Closed,
}

/// The state of a wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// The cursor is there.
    Cursor(Vec<u8>),
    /// The root proceeds from its last position.
    Alone,
    /// The root waits on.
    Pending,
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
        let begun = Instant::now();
        let mut state = if host.is_linked() { self.begin(step, range) } else { Wait::Alone };
        loop {
            match state {
                Wait::Cursor(cursor) => return Some(cursor),
                Wait::Alone => return None,
                Wait::Pending => {}
            }
            let facts = Cell::new(WaitFacts::default());
            let stop = || {
                let waited = begun.elapsed();
                facts.set(WaitFacts {
                    waited,
                    is_stopped: host.is_stopped(),
                    is_starving: host.is_starving(step),
                });
                self.gives_up(facts.get())
            };
            let inbox = match host.receive(&stop) {
                Ok(Some(message)) => Inbox::Message(message),
                Ok(None) => Inbox::Empty,
                Err(_) => Inbox::Closed,
            };
            state = self.poll(step, range, facts.get(), &inbox);
        }
    }

    /// Begins to wait for the cursor of a range.
    pub(crate) fn begin(&mut self, step: u64, range: u32) -> Wait {
        let before = (range as usize + self.ranges.len() - 1) % self.ranges.len();
        if self.closed || self.ranges[before].node == self.node || (step, range) == (self.start, 0) {
            return Wait::Alone;
        }
        self.kept = self.kept.split_off(&(step, range));
        self.look(step, range)
    }

    /// Goes on with a wait: takes a message, and decides whether to wait on.
    pub(crate) fn poll(&mut self, step: u64, range: u32, facts: WaitFacts, inbox: &Inbox) -> Wait {
        match inbox {
            Inbox::Message(message) => {
                self.keep(message, (step, range));
                self.look(step, range)
            }
            Inbox::Empty if self.gives_up(facts) => {
                self.expects = false;
                Wait::Alone
            }
            Inbox::Empty => Wait::Pending,
            // No node is left that could send one; ranks detect a lost node elsewhere.
            Inbox::Closed => {
                self.closed = true;
                Wait::Alone
            }
        }
    }

    /// Whether a root with an empty inbox proceeds alone.
    fn gives_up(&self, WaitFacts { waited, is_stopped, is_starving }: WaitFacts) -> bool {
        !self.expects || is_stopped || (waited > GRACE && is_starving)
    }

    /// Takes the cursor of a range, if it has arrived.
    fn look(&mut self, step: u64, range: u32) -> Wait {
        let Some(cursor) = self.kept.remove(&(step, range)) else { return Wait::Pending };
        self.expects = true;
        Wait::Cursor(cursor)
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
    use forebay_plan::{LastBatch, LocatorCounter, MappedShards, Order, OrderKind, OrderSpec};
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
            kind: OrderKind::Sequential,
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
    fn a_root_waits_for_the_grace_and_longer_while_no_rank_starves() {
        let empty = WaitFacts::default();
        let late = WaitFacts { waited: GRACE + Duration::from_millis(1), ..empty };
        for (facts, expected) in [
            (empty, Wait::Pending),
            (WaitFacts { is_starving: true, ..empty }, Wait::Pending),
            (WaitFacts { waited: GRACE, is_starving: true, ..empty }, Wait::Pending),
            (late, Wait::Pending),
            (WaitFacts { is_starving: true, ..late }, Wait::Alone),
            (WaitFacts { is_stopped: true, ..empty }, Wait::Alone),
        ] {
            let mut handoff = handoff(1);
            assert_eq!(handoff.begin(5, 1), Wait::Pending);
            assert_eq!(handoff.poll(5, 1, facts, &Inbox::Empty), expected, "{facts:?}");
            // A root that went on alone once expects no cursor in time.
            let next = if expected == Wait::Alone { Wait::Alone } else { Wait::Pending };
            assert_eq!(handoff.begin(6, 1), Wait::Pending);
            assert_eq!(handoff.poll(6, 1, empty, &Inbox::Empty), next, "{facts:?}");
        }
    }

    #[test]
    fn a_cursor_that_comes_late_makes_the_root_expect_the_next_ones_again() {
        let message = |step: u64| Inbox::Message([&step.to_le_bytes()[..], &[1, 0, 0, 0], b"here"].concat());
        let stopped = WaitFacts { is_stopped: true, ..WaitFacts::default() };
        let mut handoff = handoff(1);
        assert_eq!(handoff.begin(5, 1), Wait::Pending);
        assert_eq!(handoff.poll(5, 1, stopped, &Inbox::Empty), Wait::Alone);
        assert_eq!(handoff.begin(6, 1), Wait::Pending);
        assert_eq!(handoff.poll(6, 1, stopped, &message(7)), Wait::Pending, "it is of a later step");
        assert_eq!(handoff.poll(6, 1, stopped, &message(6)), Wait::Cursor(b"here".to_vec()));
        assert_eq!(handoff.begin(7, 1), Wait::Cursor(b"here".to_vec()), "it was kept");
        assert_eq!(handoff.begin(8, 1), Wait::Pending);
        assert_eq!(handoff.poll(8, 1, WaitFacts::default(), &Inbox::Empty), Wait::Pending);
        assert_eq!(handoff.poll(8, 1, WaitFacts::default(), &Inbox::Closed), Wait::Alone);
        assert_eq!(handoff.begin(9, 1), Wait::Alone, "no cursor can come any more");
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
