//! Finds why a rank gets no batch, from what ranks, readers and roots of the node publish.
//!
//! Each of them publishes its activity in a word of shared memory ([`Doing`]). Planners also
//! publish that their process runs (`RankSlot::alive`), at least every second and on each
//! notification. A waiting rank follows those words from its own wait: the block that it lacks has
//! a reader; that reader is inside a read, or waits for room that a rank holds; that rank computes,
//! or waits for another block, and so on ([`Node::rank_cause`]). The result is one of:
//!
//! - storage: a read is in flight, in a process that runs. Only this time counts towards `timeout=`
//!   (`wait_clock.rs`), and time that nothing explains;
//! - a rank: it takes no further batch, or its process does not run. A warning names it, never an
//!   error;
//! - other nodes: their readers may read now, or hold the cursor, or a process that serves a share
//!   does not answer.
//!
//! The words are read one by one while all threads run, so a result may be wrong for a moment.
//! Waiting ranks repeat the analysis.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use forebay_plan::reader_of_block;
use forebay_types::Extent;

use crate::shm::block_state::Presence;
use crate::shm::position::{Position, SessionId};

/// A process that has not published for this long that it runs is stopped: three times the interval
/// of an idle planner.
const SILENT_AFTER: Duration = Duration::from_secs(3);

/// Activity of a rank, a reader or a root that others may wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Doing {
    /// Nothing, or work that ends without other threads.
    Nothing,
    /// Inside a read since this time [ns of the monotonic clock].
    Reading(u64),
    /// A reader or root waits until the ranks are past this step.
    Room(u64),
    /// A reader waits for blocks of other readers.
    Blocks,
    /// A reader, root or rank waits for other nodes.
    OtherNodes,
    /// A rank waits for the block of this sequence.
    Block(u64),
    /// A rank waits until this step is planned.
    Plan(u64),
}

impl Doing {
    const KIND_BITS: u32 = 3;

    fn word(self) -> u64 {
        let (kind, value) = match self {
            Self::Nothing => (0, 0),
            Self::Reading(since) => (1, since),
            Self::Room(step) => (2, step),
            Self::Blocks => (3, 0),
            Self::OtherNodes => (4, 0),
            Self::Block(sequence) => (5, sequence),
            Self::Plan(step) => (6, step),
        };
        value << Self::KIND_BITS | kind
    }

    fn from_word(word: u64) -> Self {
        let value = word >> Self::KIND_BITS;
        match word & ((1 << Self::KIND_BITS) - 1) {
            1 => Self::Reading(value),
            2 => Self::Room(value),
            3 => Self::Blocks,
            4 => Self::OtherNodes,
            5 => Self::Block(value),
            6 => Self::Plan(value),
            _ => Self::Nothing,
        }
    }

    /// Publishes the activity.
    pub(crate) fn publish(self, word: &AtomicU64) {
        word.store(self.word(), Ordering::Release);
    }

    pub(crate) fn load(word: &AtomicU64) -> Self {
        Self::from_word(word.load(Ordering::Acquire))
    }
}

/// A thread that is inside a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Actor {
    /// A reader, by number.
    Reader(usize),
    /// A root, by number.
    Root(usize),
    /// A gather thread of a rank, by local rank.
    Rank(usize),
}

/// Cause of a wait for a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StallCause {
    /// A read is in flight since `since_ns`, and was known to be until `until_ns` [ns of the
    /// monotonic clock].
    Storage { actor: Actor, since_ns: u64, until_ns: u64 },
    /// A rank, by local rank: its process runs and takes no further batch, or it does not run.
    Rank { local: usize, runs: bool },
    /// Other nodes read now, or one of them does not answer.
    OtherNodes,
    /// No published word explains it; the process in question was last known to run at `until_ns`
    /// [ns of the monotonic clock].
    Unknown { until_ns: u64 },
}

impl StallCause {
    /// Of several simultaneous causes the one of highest priority is reported: one that must not
    /// become an error goes before storage.
    fn priority(self) -> u8 {
        match self {
            Self::Rank { runs: false, .. } => 4,
            Self::Rank { runs: true, .. } => 3,
            Self::Storage { .. } => 2,
            Self::OtherNodes => 1,
            Self::Unknown { .. } => 0,
        }
    }
}

/// Published state of a rank.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RankState {
    pub(crate) presence: Presence,
    /// When its process was last known to run [ns of the monotonic clock].
    pub(crate) alive_ns: u64,
    pub(crate) doing: Doing,
    /// The steps before it are gathered.
    pub(crate) gathered: Position,
    /// Its planner has taken the steps before it from the roots.
    pub(crate) taken: Position,
}

/// Published state of a reader, and of the root of the same number.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReaderState {
    /// Local rank of the process in which it runs.
    pub(crate) host: usize,
    pub(crate) doing: Doing,
    /// Activity of the root.
    pub(crate) seeking: Doing,
    /// The root has located the samples of the steps before it.
    pub(crate) found: Position,
}

/// Published state of a node.
#[derive(Clone, Debug)]
pub(crate) struct NodeSnapshot {
    pub(crate) now_ns: u64,
    pub(crate) session: SessionId,
    /// The local rank that runs the analysis.
    pub(crate) own: usize,
    pub(crate) ranks: Vec<RankState>,
    pub(crate) readers: Vec<ReaderState>,
    /// Roots that locate samples; 0 where none do.
    pub(crate) roots: usize,
}

impl NodeSnapshot {
    /// Why this rank waits.
    pub(crate) fn cause(&self) -> StallCause {
        self.rank_cause(self.own, &mut vec![false; self.ranks.len()])
    }

    /// Why a rank is not at rest: it publishes that after storage has answered its reads.
    pub(crate) fn cause_of_unrest(&self, local: usize) -> StallCause {
        let cause = self.process_cause(local, Actor::Rank(local), Doing::Nothing);
        cause.unwrap_or_else(|| self.storage(Actor::Rank(local), 0, local))
    }

    /// Why a rank waits; `seen` marks the ranks that were visited already.
    fn rank_cause(&self, local: usize, seen: &mut [bool]) -> StallCause {
        let rank = &self.ranks[local];
        if std::mem::replace(&mut seen[local], true) || rank.presence == Presence::Gone {
            return self.unknown(self.own);
        }
        if let Some(cause) = self.process_cause(local, Actor::Rank(local), rank.doing) {
            return cause;
        }
        match rank.doing {
            Doing::Reading(since_ns) => self.storage(Actor::Rank(local), since_ns, local),
            Doing::Block(sequence) => self.reader_cause(reader_of_block(sequence, self.readers.len()), seen),
            Doing::Plan(step) => self.plan_cause(step, seen),
            Doing::OtherNodes => StallCause::OtherNodes,
            _ if local != self.own => StallCause::Rank { local, runs: true },
            _ => self.unknown(local),
        }
    }

    fn storage(&self, actor: Actor, since_ns: u64, host: usize) -> StallCause {
        StallCause::Storage { actor, since_ns, until_ns: self.ran_until(host) }
    }

    fn unknown(&self, host: usize) -> StallCause {
        StallCause::Unknown { until_ns: self.ran_until(host) }
    }

    /// When a process was last known to run [ns of the monotonic clock].
    fn ran_until(&self, local: usize) -> u64 {
        if local == self.own { self.now_ns } else { self.ranks[local].alive_ns }
    }

    /// Why all threads of a process wait: it does not run, or storage blocks its last threads.
    fn process_cause(&self, local: usize, actor: Actor, doing: Doing) -> Option<StallCause> {
        let rank = &self.ranks[local];
        if rank.presence == Presence::Leaving {
            let since_ns = if let Doing::Reading(since) = doing { since } else { 0 };
            return Some(StallCause::Storage { actor, since_ns, until_ns: self.now_ns });
        }
        let silent_ns = self.now_ns.saturating_sub(rank.alive_ns);
        let is_silent = local != self.own && silent_ns > SILENT_AFTER.as_nanos() as u64;
        is_silent.then_some(StallCause::Rank { local, runs: false })
    }

    fn reader_cause(&self, number: usize, seen: &mut [bool]) -> StallCause {
        let Some(reader) = self.readers.get(number) else { return self.unknown(self.own) };
        if reader.doing == Doing::Blocks && self.is_running(reader.host) {
            // The earlier blocks are not known here: consider all readers that do not wait alike.
            let others = (0..self.readers.len()).filter(|other| self.readers[*other].doing != Doing::Blocks);
            return self.first(reader.host, others.map(|other| self.reader_cause(other, seen)).collect());
        }
        let actor = Actor::Reader(number);
        if let Some(cause) = self.process_cause(reader.host, actor, reader.doing) {
            return cause;
        }
        match reader.doing {
            Doing::Reading(since_ns) => self.storage(actor, since_ns, reader.host),
            Doing::Room(step) => self.room_cause(step, |rank| rank.gathered, seen),
            Doing::OtherNodes => StallCause::OtherNodes,
            // It has nothing to read: its planner lacks locations of roots, or is two epochs ahead
            // of the last rank.
            _ => {
                let of_plan = self.plan_cause(0, seen);
                let own = self.ranks[self.own].gathered;
                let behind =
                    (0..self.ranks.len()).filter(|local| self.ranks[*local].gathered < own).collect();
                let of_ranks = self.late_ranks_cause(behind, |rank| rank.gathered, seen);
                self.first(reader.host, vec![of_plan, of_ranks])
            }
        }
    }

    fn is_running(&self, local: usize) -> bool {
        self.process_cause(local, Actor::Rank(local), Doing::Nothing).is_none()
    }

    /// Why some ranks are not past a step.
    fn room_cause(
        &self,
        step: u64,
        position: impl Fn(&RankState) -> Position,
        seen: &mut [bool],
    ) -> StallCause {
        let late = (0..self.ranks.len())
            .filter(|local| position(&self.ranks[*local]) <= Position::new(self.session, step))
            .collect();
        self.late_ranks_cause(late, position, seen)
    }

    /// Why the slowest of several ranks waits.
    fn late_ranks_cause(
        &self,
        mut late: Vec<usize>,
        position: impl Fn(&RankState) -> Position,
        seen: &mut [bool],
    ) -> StallCause {
        late.sort_by_key(|local| position(&self.ranks[*local]));
        self.first(self.own, late.into_iter().map(|local| self.rank_cause(local, seen)).collect())
    }

    /// Why a step is not planned: roots that have not located it, or any root for step 0.
    fn plan_cause(&self, step: u64, seen: &mut [bool]) -> StallCause {
        let late: Vec<usize> = (0..self.roots.min(self.readers.len()))
            .filter(|root| step == 0 || self.readers[*root].found <= Position::new(self.session, step))
            .collect();
        let of_root = |root: usize| {
            let facts = &self.readers[root];
            let actor = Actor::Root(root);
            if let Some(cause) = self.process_cause(facts.host, actor, facts.seeking) {
                return cause;
            }
            match facts.seeking {
                Doing::Reading(since_ns) => self.storage(actor, since_ns, facts.host),
                Doing::Room(step) => self.room_cause(step, |rank| rank.taken, seen),
                Doing::OtherNodes => StallCause::OtherNodes,
                _ => self.unknown(facts.host),
            }
        };
        let causes = late.into_iter().map(of_root).collect();
        self.first(self.own, causes)
    }

    /// The cause of highest priority; unknown, in the process `host`, if there is none.
    fn first(&self, host: usize, causes: Vec<StallCause>) -> StallCause {
        let mut first = self.unknown(host);
        for cause in causes {
            if cause.priority() > first.priority() {
                first = cause;
            }
        }
        first
    }
}

/// What a gather thread waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GatherWait {
    /// The plan of its step.
    Plan,
    /// A block, for these bytes.
    Block { sequence: u64, extent: Extent },
    /// Storage, for these bytes [ns of the monotonic clock].
    Reading { extent: Extent, since_ns: u64 },
    /// The share of another node, for these bytes.
    Share { extent: Extent },
    /// Pages of a mapping, which may be missing [ns of the monotonic clock].
    Pages { since_ns: u64 },
}

impl GatherWait {
    fn doing(self, step: u64) -> Doing {
        match self {
            Self::Plan => Doing::Plan(step),
            Self::Block { sequence, .. } => Doing::Block(sequence),
            Self::Share { .. } => Doing::OtherNodes,
            Self::Reading { since_ns, .. } | Self::Pages { since_ns } => Doing::Reading(since_ns),
        }
    }
}

/// Waits of the gather threads of a rank, by step.
#[derive(Debug, Default)]
pub(crate) struct Waits {
    /// Ticket of the newest claims; waits of older ones are ignored.
    ticket: u64,
    steps: BTreeMap<u64, GatherWait>,
}

impl Waits {
    /// Records what the thread that fills a step waits for; returns the first wait of the rank.
    pub(crate) fn set(&mut self, ticket: u64, step: u64, waiting: Option<GatherWait>) -> Doing {
        if ticket > self.ticket {
            self.ticket = ticket;
            self.steps.clear();
        }
        if ticket == self.ticket {
            match waiting {
                Some(waiting) => drop(self.steps.insert(step, waiting)),
                None => drop(self.steps.remove(&step)),
            }
        }
        self.steps.first_key_value().map_or(Doing::Nothing, |(step, waiting)| waiting.doing(*step))
    }

    /// The same, as the activity of the rank.
    pub(crate) fn doing_of(&self, step: u64) -> Doing {
        self.of(step).map_or(Doing::Nothing, |waiting| waiting.doing(step))
    }

    /// What the thread that fills a step waits for.
    pub(crate) fn of(&self, step: u64) -> Option<GatherWait> {
        self.steps.get(&step).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;
    const NOW: u64 = 1000 * SECOND;

    /// Four ranks that all have gathered up to step 10 of session 1, and two readers, in ranks 0
    /// and 2.
    fn node() -> NodeSnapshot {
        let rank = RankState {
            presence: Presence::Here,
            alive_ns: NOW - SECOND,
            doing: Doing::Nothing,
            gathered: Position::new(SessionId(1), 10),
            taken: Position::new(SessionId(1), 20),
        };
        let reader = |host| ReaderState {
            host,
            doing: Doing::Nothing,
            seeking: Doing::Nothing,
            found: Position::new(SessionId(1), 20),
        };
        let (ranks, readers) = (vec![rank; 4], vec![reader(0), reader(2)]);
        NodeSnapshot { now_ns: NOW, session: SessionId(1), own: 0, ranks, readers, roots: 0 }
    }

    fn storage(actor: Actor, since: u64, until: u64) -> StallCause {
        StallCause::Storage { actor, since_ns: since, until_ns: until }
    }

    #[test]
    fn the_chain_of_waits_leads_to_its_cause() {
        type Case = (&'static str, fn(&mut NodeSnapshot), StallCause);
        let since = NOW - 7 * SECOND;
        let slow = |local| StallCause::Rank { local, runs: true };
        let stopped = |local| StallCause::Rank { local, runs: false };
        let unknown = |until_ns| StallCause::Unknown { until_ns };
        let cases: [Case; 23] = [
            ("nothing is known", |_| {}, unknown(NOW)),
            (
                "the reader of another rank has nothing to read",
                |node| node.ranks[0].doing = Doing::Block(5),
                unknown(NOW - SECOND),
            ),
            (
                "no planner plans for a rank that is epochs ahead of one that computes",
                |node| {
                    node.ranks[0].doing = Doing::Block(5);
                    for local in [0, 1, 3] {
                        node.ranks[local].gathered = Position::new(SessionId(1), 50);
                    }
                },
                slow(2),
            ),
            (
                "the own thread reads in place",
                |node| node.ranks[0].doing = Doing::Reading(NOW - 7 * SECOND),
                storage(Actor::Rank(0), since, NOW),
            ),
            (
                "the own reader is inside a read",
                |node| {
                    node.ranks[0].doing = Doing::Block(4);
                    node.readers[0].doing = Doing::Reading(NOW - 7 * SECOND);
                },
                storage(Actor::Reader(0), since, NOW),
            ),
            (
                "the reader of another rank is inside a read",
                |node| {
                    node.ranks[0].doing = Doing::Block(5);
                    node.readers[1].doing = Doing::Reading(NOW - 7 * SECOND);
                },
                storage(Actor::Reader(1), since, NOW - SECOND),
            ),
            (
                "the process whose reader is inside a read does not run",
                |node| {
                    node.ranks[0].doing = Doing::Block(5);
                    node.readers[1].doing = Doing::Reading(NOW - 7 * SECOND);
                    node.ranks[2].alive_ns = NOW - 5 * SECOND;
                },
                stopped(2),
            ),
            (
                "the process whose reader waits for others does not run",
                |node| {
                    node.ranks[0].doing = Doing::Block(5);
                    node.readers[1].doing = Doing::Blocks;
                    node.ranks[2].alive_ns = NOW - 5 * SECOND;
                },
                stopped(2),
            ),
            (
                "a rank computes, and so holds the room that a reader needs",
                |node| {
                    node.ranks[0].doing = Doing::Block(4);
                    node.readers[0].doing = Doing::Room(12);
                    for local in [0, 1, 2] {
                        node.ranks[local].gathered = Position::new(SessionId(1), 13);
                    }
                },
                slow(3),
            ),
            (
                "a stopped rank holds the room",
                |node| {
                    node.ranks[0].doing = Doing::Block(4);
                    node.readers[0].doing = Doing::Room(12);
                    node.ranks[3].alive_ns = NOW - 9 * SECOND;
                },
                stopped(3),
            ),
            (
                "the rank that holds the room waits for a read itself",
                |node| {
                    node.ranks[0].doing = Doing::Block(4);
                    node.readers[0].doing = Doing::Room(12);
                    for local in [0, 1, 2] {
                        node.ranks[local].gathered = Position::new(SessionId(1), 13);
                    }
                    node.ranks[3].doing = Doing::Block(5);
                    node.readers[1].doing = Doing::Reading(NOW - 7 * SECOND);
                },
                storage(Actor::Reader(1), since, NOW - SECOND),
            ),
            (
                "a rank that computes goes before storage that is slow for another one",
                |node| {
                    node.ranks[0].doing = Doing::Block(4);
                    node.readers[0].doing = Doing::Room(12);
                    node.ranks[0].gathered = Position::new(SessionId(1), 13);
                    node.ranks[1].doing = Doing::Reading(NOW - 7 * SECOND);
                    node.ranks[2].doing = Doing::Reading(NOW - 7 * SECOND);
                },
                slow(3),
            ),
            (
                "a rank that is away or gone holds no room",
                |node| {
                    node.ranks[0].doing = Doing::Block(4);
                    node.readers[0].doing = Doing::Room(12);
                    node.ranks[1].presence = Presence::Gone;
                    node.ranks[2].gathered = Position::new(SessionId(1), crate::shm::position::AWAY);
                    node.ranks[3].gathered = Position::new(SessionId(1), crate::shm::position::AWAY);
                },
                unknown(NOW),
            ),
            (
                "two ranks wait for each other, which cannot be",
                |node| {
                    for rank in &mut node.ranks {
                        rank.doing = Doing::Block(4);
                    }
                    node.readers[0].doing = Doing::Room(12);
                },
                unknown(NOW),
            ),
            (
                "a reader waits for the blocks of one that is inside a read",
                |node| {
                    node.ranks[0].doing = Doing::Block(4);
                    node.readers[0].doing = Doing::Blocks;
                    node.readers[1].doing = Doing::Reading(NOW - 7 * SECOND);
                },
                storage(Actor::Reader(1), since, NOW - SECOND),
            ),
            (
                "a reader waits for the blocks of one that waits for a rank",
                |node| {
                    node.ranks[0].doing = Doing::Block(4);
                    node.readers[0].doing = Doing::Blocks;
                    node.readers[1].doing = Doing::Room(10);
                    for local in [0, 2, 3] {
                        node.ranks[local].gathered = Position::new(SessionId(1), 13);
                    }
                },
                slow(1),
            ),
            (
                "a rank closed, and the read of its reader has not returned",
                |node| {
                    node.ranks[0].doing = Doing::Block(5);
                    node.ranks[2].presence = Presence::Leaving;
                    node.ranks[2].alive_ns = 0;
                    node.readers[1].doing = Doing::Reading(NOW - 7 * SECOND);
                },
                storage(Actor::Reader(1), since, NOW),
            ),
            (
                "other nodes read now",
                |node| {
                    node.ranks[0].doing = Doing::Block(4);
                    node.readers[0].doing = Doing::OtherNodes;
                },
                StallCause::OtherNodes,
            ),
            (
                "a share of another node does not answer",
                |node| node.ranks[0].doing = Doing::OtherNodes,
                StallCause::OtherNodes,
            ),
            (
                "a rank of this node waits for a share of another node",
                |node| {
                    node.ranks[0].doing = Doing::Block(4);
                    node.readers[0].doing = Doing::Room(10);
                    for local in [0, 2, 3] {
                        node.ranks[local].gathered = Position::new(SessionId(1), 13);
                    }
                    node.ranks[1].doing = Doing::OtherNodes;
                },
                StallCause::OtherNodes,
            ),
            (
                "a root is inside a page cause",
                |node| {
                    node.ranks[0].doing = Doing::Plan(21);
                    node.roots = 2;
                    node.readers[0].found = Position::new(SessionId(1), 30);
                    node.readers[1].seeking = Doing::Reading(NOW - 7 * SECOND);
                },
                storage(Actor::Root(1), since, NOW - SECOND),
            ),
            (
                "a root waits for a planner that does not run",
                |node| {
                    node.ranks[0].doing = Doing::Plan(21);
                    node.roots = 1;
                    node.readers[0].seeking = Doing::Room(20);
                    node.ranks[0].taken = Position::new(SessionId(1), 22);
                    node.ranks[1].taken = Position::new(SessionId(1), 22);
                    node.ranks[2].taken = Position::new(SessionId(1), 22);
                    node.ranks[3].alive_ns = 0;
                },
                stopped(3),
            ),
            ("a plan takes long", |node| node.ranks[0].doing = Doing::Plan(21), unknown(NOW)),
        ];
        for (name, change, expected) in cases {
            let mut node = node();
            change(&mut node);
            assert_eq!(node.cause(), expected, "{name}");
        }
    }

    #[test]
    fn the_first_step_is_what_a_rank_waits_for_and_old_claims_are_ignored() {
        let mut waits = Waits::default();
        let extent = Extent { shard: forebay_types::ShardId(0), offset: 7, length: 9 };
        let block = GatherWait::Block { sequence: 3, extent };
        assert_eq!(waits.set(1, 6, Some(block)), Doing::Block(3));
        assert_eq!(waits.set(1, 5, Some(GatherWait::Plan)), Doing::Plan(5));
        assert_eq!(waits.set(1, 5, None), Doing::Block(3));
        assert_eq!(waits.set(2, 9, None), Doing::Nothing);
        assert_eq!(waits.set(1, 6, Some(block)), Doing::Nothing, "its claim is void");
        assert_eq!(waits.set(2, 9, Some(GatherWait::Pages { since_ns: 4 })), Doing::Reading(4));
        assert_eq!((waits.of(9), waits.of(6)), (Some(GatherWait::Pages { since_ns: 4 }), None));
    }

    #[test]
    fn an_activity_survives_its_encoding() {
        let word = AtomicU64::new(0);
        for doing in [
            Doing::Nothing,
            Doing::Reading(NOW),
            Doing::Room(7),
            Doing::Blocks,
            Doing::OtherNodes,
            Doing::Block(1 << 39),
            Doing::Plan(1 << 43),
        ] {
            doing.publish(&word);
            assert_eq!(Doing::load(&word), doing);
        }
    }
}
