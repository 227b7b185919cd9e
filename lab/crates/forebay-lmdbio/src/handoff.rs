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
//! This is a state machine: [`Handoff::begin`] says whether there is a cursor to wait for,
//! [`Handoff::poll`] what the time and the inbox make of the wait, [`Handoff::next_roots`] where a
//! cursor goes. None of them reads a clock, sends or blocks: `handoff_host.rs` does that in a
//! loader, a simulator in virtual time.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

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
pub struct WaitFacts {
    /// How long it has waited.
    pub waited: Duration,
    /// The session has ended.
    pub is_stopped: bool,
    /// A rank of the node has all samples before the step, and lacks those of the step.
    pub is_starving: bool,
}

/// What a root finds in its inbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Inbox {
    /// A message of another root.
    Message(Vec<u8>),
    /// No message.
    Empty,
    /// No message can be sent or received any more.
    Closed,
}

/// The state of a wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wait {
    /// The cursor is there.
    Cursor(Vec<u8>),
    /// The root proceeds from its last position.
    Alone,
    /// The root waits on.
    Pending,
}

/// A root that a cursor goes to: that of a node, which walks over a range of ranks at a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NextRoot {
    /// Index of the node.
    pub node: usize,
    /// Step.
    pub step: u64,
    /// Number of the range.
    pub range: u32,
}

impl NextRoot {
    /// The message that brings it the cursor.
    #[must_use]
    pub fn message(&self, cursor: &[u8]) -> Vec<u8> {
        [&self.step.to_le_bytes()[..], &self.range.to_le_bytes(), cursor].concat()
    }
}

/// A root's side of the handoff.
pub struct Handoff {
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
    /// How long a root waits for the cursor while its ranks wait for samples: many times what a
    /// range takes.
    pub const GRACE: Duration = Duration::from_secs(2);

    /// The side of the root of a node, in a session that begins at step `start`. `nodes` are those
    /// of the ranks of the job, in their order; `None`: a node without a link.
    #[must_use]
    pub fn new(node: usize, start: u64, nodes: impl Iterator<Item = Option<usize>>) -> Self {
        let (node, ranges) = (Some(node), rank_ranges(nodes));
        Self { node, start, ranges, kept: BTreeMap::new(), expects: true, closed: false }
    }

    /// The ranges of this node in a step: number and ranks.
    #[must_use]
    pub fn own_ranges(&self) -> Vec<(u32, Range<u32>)> {
        let own = (0..).zip(&self.ranges).filter(|(_, range)| range.node == self.node);
        own.map(|(number, range)| (number, range.ranks.clone())).collect()
    }

    /// Begins to wait for the cursor of a range.
    pub fn begin(&mut self, step: u64, range: u32) -> Wait {
        let before = (range as usize + self.ranges.len() - 1) % self.ranges.len();
        if self.closed || self.ranges[before].node == self.node || (step, range) == (self.start, 0) {
            return Wait::Alone;
        }
        self.kept = self.kept.split_off(&(step, range));
        self.look(step, range)
    }

    /// Goes on with a wait: takes a message, and decides whether to wait on.
    pub fn poll(&mut self, step: u64, range: u32, facts: WaitFacts, inbox: &Inbox) -> Wait {
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
    #[must_use]
    pub fn gives_up(&self, WaitFacts { waited, is_stopped, is_starving }: WaitFacts) -> bool {
        !self.expects || is_stopped || (waited > Self::GRACE && is_starving)
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

    /// The roots that the cursor after a range goes to: the first one that is not gone. None where
    /// this root walks on itself, or no message can be sent.
    pub fn next_roots(&self, step: u64, range: u32) -> impl Iterator<Item = NextRoot> {
        let ranges = if self.closed { 0 } else { self.ranges.len() };
        let ahead = (1..=ranges).map(move |ahead| {
            let next = range as usize + ahead;
            (step + (next / ranges) as u64, next % ranges)
        });
        let others = ahead.take_while(|(_, range)| self.ranges[*range].node != self.node);
        others.filter_map(|(step, range)| {
            let node = self.ranges[range].node?;
            Some(NextRoot { node, step, range: range as u32 })
        })
    }

    /// Records that no message can be sent or received any more.
    pub fn close(&mut self) {
        self.closed = true;
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

    /// The handoff of one of three nodes of a rank each.
    fn handoff(node: usize) -> Handoff {
        Handoff::new(node, 5, (0..3).map(Some))
    }

    #[test]
    fn a_cursor_goes_to_the_next_root_and_to_those_after_it_where_that_is_gone() {
        let next = |handoff: &Handoff, step, range| -> Vec<(usize, u64, u32)> {
            handoff.next_roots(step, range).map(|root| (root.node, root.step, root.range)).collect()
        };
        assert_eq!(next(&handoff(0), 5, 0), [(1, 5, 1), (2, 5, 2)]);
        assert_eq!(next(&handoff(2), 5, 2), [(0, 6, 0), (1, 6, 1)], "the first ranges of the next step");
        // Ranks of a node without a link are skipped; a root that comes next sends nothing.
        let linked = |nodes: [Option<usize>; 4]| Handoff::new(0, 5, nodes.into_iter());
        assert_eq!(next(&linked([Some(0), None, Some(1), Some(2)]), 5, 0), [(1, 5, 2), (2, 5, 3)]);
        assert_eq!(next(&linked([Some(0), None, Some(0), Some(1)]), 5, 0), []);
        assert_eq!(next(&linked([Some(0); 4]), 5, 0), []);
        let mut closed = handoff(0);
        closed.close();
        assert_eq!(next(&closed, 5, 0), []);
    }

    #[test]
    fn a_message_is_one_for_the_root_that_it_is_sent_to() {
        let root = handoff(2).next_roots(5, 2).next().unwrap();
        let (mut next, facts) = (handoff(root.node), WaitFacts::default());
        assert_eq!(next.begin(6, 0), Wait::Pending);
        let message = Inbox::Message(root.message(b"here"));
        assert_eq!(next.poll(6, 0, facts, &message), Wait::Cursor(b"here".to_vec()));
    }

    #[test]
    fn the_first_range_of_a_session_and_a_node_without_others_wait_for_none() {
        assert_eq!(handoff(0).begin(5, 0), Wait::Alone);
        assert_eq!(handoff(0).begin(6, 0), Wait::Pending);
        assert_eq!(Handoff::new(0, 5, [Some(0); 3].into_iter()).begin(6, 0), Wait::Alone);
    }

    #[test]
    fn a_root_waits_for_the_grace_and_longer_while_no_rank_starves() {
        let empty = WaitFacts::default();
        let late = WaitFacts { waited: Handoff::GRACE + Duration::from_millis(1), ..empty };
        for (facts, expected) in [
            (empty, Wait::Pending),
            (WaitFacts { is_starving: true, ..empty }, Wait::Pending),
            (WaitFacts { waited: Handoff::GRACE, is_starving: true, ..empty }, Wait::Pending),
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
