//! Why a rank gets no batch: found out from what ranks, readers and roots of the node publish, and
//! worded for the user.
//!
//! Each of them says in a word of shared memory what it does ([`Doing`]); planners also say that
//! their process runs (`RankSlot::alive`), at least every second and whenever somebody rings for
//! it. A rank that waits follows those words from its own wait on: the block that it lacks has a
//! reader; that reader is inside a read, or waits for room that a rank holds; that rank computes,
//! or waits for a block of its own, and so on ([`Node::fault_of`]). The answer is one of:
//!
//! - storage: a read is under way, in a process that runs. Only this time counts towards `timeout=`
//!   (`wait_clock.rs`), and that in which nothing explains the wait;
//! - a rank: it takes no further batch, or its process does not run. It is named in a warning,
//!   never in an error;
//! - other nodes: their readers may read now, or the cursor is theirs.
//!
//! Words are read one by one while all goes on, so an answer may be wrong for a moment. It is asked
//! again all the time.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use forebay_types::Extent;

use crate::shm::block_state::Presence;
use crate::shm::position::{Position, SessionId};

/// A process that has not said for so long that it runs does not run: three times what a sleeping
/// planner takes.
const SILENT: Duration = Duration::from_secs(3);
/// What a rank, a reader or a root does that others may wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Doing {
    /// Nothing, or something of its own that ends without anybody else.
    Nothing,
    /// Is inside a read since then [ns of the monotonic clock].
    Reading(u64),
    /// A reader or root waits until the ranks are behind this step.
    Room(u64),
    /// A reader waits for blocks of other readers.
    Blocks,
    /// A reader or root waits for other nodes.
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

    /// Tells the others.
    pub(crate) fn publish(self, word: &AtomicU64) {
        word.store(self.word(), Ordering::Release);
    }

    pub(crate) fn load(word: &AtomicU64) -> Self {
        Self::from_word(word.load(Ordering::Acquire))
    }
}

/// Who is inside a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Who {
    /// A reader, by number.
    Reader(usize),
    /// A root, by number.
    Root(usize),
    /// A gather thread of a rank, by local rank.
    Rank(usize),
}

/// What holds a batch up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// A read that began then is under way, and was known to be until then [ns of the monotonic
    /// clock].
    Storage { who: Who, since_ns: u64, until_ns: u64 },
    /// A rank, by local rank: its process runs and takes no further batch, or it does not run.
    Rank { local: usize, runs: bool },
    /// Other nodes read now.
    OtherNodes,
    /// Nothing that is published explains it; the process that it is up to was last known to run
    /// then [ns].
    Unknown { until_ns: u64 },
}

impl Fault {
    /// Of several faults that hold something up together the first is told: one that must not
    /// become an error goes before storage.
    fn urgency(self) -> u8 {
        match self {
            Self::Rank { runs: false, .. } => 4,
            Self::Rank { runs: true, .. } => 3,
            Self::Storage { .. } => 2,
            Self::OtherNodes => 1,
            Self::Unknown { .. } => 0,
        }
    }
}

/// What is known of a rank.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RankFacts {
    pub(crate) presence: Presence,
    /// When its process was last known to run [ns of the monotonic clock].
    pub(crate) alive_ns: u64,
    pub(crate) doing: Doing,
    /// Position: what it has gathered.
    pub(crate) gathered: Position,
    /// Position: what its planner has taken from the roots.
    pub(crate) taken: Position,
}

/// What is known of a reader, and of the root of the same number.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReaderFacts {
    /// Local rank of the process in which it runs.
    pub(crate) host: usize,
    pub(crate) doing: Doing,
    /// What the root does.
    pub(crate) seeking: Doing,
    /// Position: what the root has found.
    pub(crate) found: Position,
}

/// What is known of a node.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) now_ns: u64,
    pub(crate) session: SessionId,
    /// The local rank that asks; it runs.
    pub(crate) me: usize,
    pub(crate) ranks: Vec<RankFacts>,
    pub(crate) readers: Vec<ReaderFacts>,
    /// Roots that locate samples; 0 where none do.
    pub(crate) roots: usize,
}

impl Node {
    /// What holds up the rank that asks.
    pub(crate) fn fault(&self) -> Fault {
        self.fault_of(self.me, &mut vec![false; self.ranks.len()])
    }

    /// What keeps a rank from coming to rest, which it says once storage has answered its reads.
    pub(crate) fn fault_of_rest(&self, local: usize) -> Fault {
        let fault = self.fault_of_process(local, Who::Rank(local), Doing::Nothing);
        fault.unwrap_or_else(|| self.storage(Who::Rank(local), 0, local))
    }

    /// What holds up a rank; `seen` are those that were asked about already.
    fn fault_of(&self, local: usize, seen: &mut [bool]) -> Fault {
        let rank = &self.ranks[local];
        if std::mem::replace(&mut seen[local], true) || rank.presence == Presence::Gone {
            return self.unknown(self.me);
        }
        if let Some(fault) = self.fault_of_process(local, Who::Rank(local), rank.doing) {
            return fault;
        }
        match rank.doing {
            Doing::Reading(since_ns) => self.storage(Who::Rank(local), since_ns, local),
            Doing::Block(sequence) => {
                self.fault_of_reader(sequence as usize % self.readers.len().max(1), seen)
            }
            Doing::Plan(step) => self.fault_of_plan(step, seen),
            _ if local != self.me => Fault::Rank { local, runs: true },
            _ => self.unknown(local),
        }
    }

    fn storage(&self, who: Who, since_ns: u64, host: usize) -> Fault {
        Fault::Storage { who, since_ns, until_ns: self.ran_until(host) }
    }

    fn unknown(&self, host: usize) -> Fault {
        Fault::Unknown { until_ns: self.ran_until(host) }
    }

    /// Up to when a process was known to run [ns of the monotonic clock].
    fn ran_until(&self, local: usize) -> u64 {
        if local == self.me { self.now_ns } else { self.ranks[local].alive_ns }
    }

    /// What holds up everything in a process: it does not run, or storage keeps its last threads.
    fn fault_of_process(&self, local: usize, who: Who, doing: Doing) -> Option<Fault> {
        let rank = &self.ranks[local];
        if rank.presence == Presence::Leaving {
            let since_ns = if let Doing::Reading(since) = doing { since } else { 0 };
            return Some(Fault::Storage { who, since_ns, until_ns: self.now_ns });
        }
        let silent_ns = self.now_ns.saturating_sub(rank.alive_ns);
        let is_silent = local != self.me && silent_ns > SILENT.as_nanos() as u64;
        is_silent.then_some(Fault::Rank { local, runs: false })
    }

    fn fault_of_reader(&self, number: usize, seen: &mut [bool]) -> Fault {
        let Some(reader) = self.readers.get(number) else { return self.unknown(self.me) };
        if reader.doing == Doing::Blocks && self.is_well(reader.host) {
            // Which blocks come first is not known here: those that are under way, or are to be.
            let others = (0..self.readers.len()).filter(|other| self.readers[*other].doing != Doing::Blocks);
            return self.first(reader.host, others.map(|other| self.fault_of_reader(other, seen)).collect());
        }
        let who = Who::Reader(number);
        if let Some(fault) = self.fault_of_process(reader.host, who, reader.doing) {
            return fault;
        }
        match reader.doing {
            Doing::Reading(since_ns) => self.storage(who, since_ns, reader.host),
            Doing::Room(step) => self.fault_of_room(step, |rank| rank.gathered, seen),
            Doing::OtherNodes => Fault::OtherNodes,
            // It has nothing to read: its planner lacks what roots find, or plans no further than
            // two epochs ahead of the last rank.
            _ => {
                let of_plan = self.fault_of_plan(0, seen);
                let own = self.ranks[self.me].gathered;
                let behind =
                    (0..self.ranks.len()).filter(|local| self.ranks[*local].gathered < own).collect();
                let of_ranks = self.fault_of_late(behind, |rank| rank.gathered, seen);
                self.first(reader.host, vec![of_plan, of_ranks])
            }
        }
    }

    fn is_well(&self, local: usize) -> bool {
        self.fault_of_process(local, Who::Rank(local), Doing::Nothing).is_none()
    }

    /// What keeps the ranks from a step that must be behind them.
    fn fault_of_room(
        &self,
        step: u64,
        position: impl Fn(&RankFacts) -> Position,
        seen: &mut [bool],
    ) -> Fault {
        let late = (0..self.ranks.len())
            .filter(|local| position(&self.ranks[*local]) <= Position::new(self.session, step))
            .collect();
        self.fault_of_late(late, position, seen)
    }

    /// What holds up the first of several ranks.
    fn fault_of_late(
        &self,
        mut late: Vec<usize>,
        position: impl Fn(&RankFacts) -> Position,
        seen: &mut [bool],
    ) -> Fault {
        late.sort_by_key(|local| position(&self.ranks[*local]));
        self.first(self.me, late.into_iter().map(|local| self.fault_of(local, seen)).collect())
    }

    /// What keeps a step from being planned: the roots that have not found it, or any of them for
    /// step 0.
    fn fault_of_plan(&self, step: u64, seen: &mut [bool]) -> Fault {
        let late: Vec<usize> = (0..self.roots.min(self.readers.len()))
            .filter(|root| step == 0 || self.readers[*root].found <= Position::new(self.session, step))
            .collect();
        let of_root = |root: usize| {
            let facts = &self.readers[root];
            let who = Who::Root(root);
            if let Some(fault) = self.fault_of_process(facts.host, who, facts.seeking) {
                return fault;
            }
            match facts.seeking {
                Doing::Reading(since_ns) => self.storage(who, since_ns, facts.host),
                Doing::Room(step) => self.fault_of_room(step, |rank| rank.taken, seen),
                Doing::OtherNodes => Fault::OtherNodes,
                _ => self.unknown(facts.host),
            }
        };
        let faults = late.into_iter().map(of_root).collect();
        self.first(self.me, faults)
    }

    /// The most urgent of several faults; where none explains anything, it is up to the process
    /// `host`.
    fn first(&self, host: usize, faults: Vec<Fault>) -> Fault {
        let mut first = self.unknown(host);
        for fault in faults {
            if fault.urgency() > first.urgency() {
                first = fault;
            }
        }
        first
    }
}

/// What a gather thread is waiting for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waiting {
    /// The plan of its step.
    Plan,
    /// A block, for these bytes.
    Block { sequence: u64, extent: Extent },
    /// Storage, for these bytes, since then [ns of the monotonic clock].
    Reading { extent: Extent, since_ns: u64 },
    /// Pages of a mapping, which may be missing, since then [ns of the monotonic clock].
    Pages { since_ns: u64 },
}

impl Waiting {
    fn doing(self, step: u64) -> Doing {
        match self {
            Self::Plan => Doing::Plan(step),
            Self::Block { sequence, .. } => Doing::Block(sequence),
            Self::Reading { since_ns, .. } | Self::Pages { since_ns } => Doing::Reading(since_ns),
        }
    }
}

/// What the gather threads of a rank are waiting for, by step.
#[derive(Debug, Default)]
pub(crate) struct Waits {
    /// Of the claims; what threads with older ones say does not matter.
    ticket: u64,
    steps: BTreeMap<u64, Waiting>,
}

impl Waits {
    /// Notes what the thread that fills a step waits for; returns what the rank waits for first.
    pub(crate) fn set(&mut self, ticket: u64, step: u64, waiting: Option<Waiting>) -> Doing {
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

    /// The same, as what the rank does.
    pub(crate) fn doing_of(&self, step: u64) -> Doing {
        self.of(step).map_or(Doing::Nothing, |waiting| waiting.doing(step))
    }

    /// What the thread that fills a step waits for.
    pub(crate) fn of(&self, step: u64) -> Option<Waiting> {
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
    fn node() -> Node {
        let rank = RankFacts {
            presence: Presence::Here,
            alive_ns: NOW - SECOND,
            doing: Doing::Nothing,
            gathered: Position::new(SessionId(1), 10),
            taken: Position::new(SessionId(1), 20),
        };
        let reader = |host| ReaderFacts {
            host,
            doing: Doing::Nothing,
            seeking: Doing::Nothing,
            found: Position::new(SessionId(1), 20),
        };
        let (ranks, readers) = (vec![rank; 4], vec![reader(0), reader(2)]);
        Node { now_ns: NOW, session: SessionId(1), me: 0, ranks, readers, roots: 0 }
    }

    fn storage(who: Who, since: u64, until: u64) -> Fault {
        Fault::Storage { who, since_ns: since, until_ns: until }
    }

    #[test]
    fn the_chain_of_waits_leads_to_whoever_holds_everything_up() {
        type Case = (&'static str, fn(&mut Node), Fault);
        let since = NOW - 7 * SECOND;
        let slow = |local| Fault::Rank { local, runs: true };
        let stopped = |local| Fault::Rank { local, runs: false };
        let unknown = |until_ns| Fault::Unknown { until_ns };
        let cases: [Case; 21] = [
            ("nothing is known", |_| {}, unknown(NOW)),
            (
                "the reader of another rank has nothing to read",
                |node| node.ranks[0].doing = Doing::Block(5),
                unknown(NOW - SECOND),
            ),
            (
                "nobody plans for a rank that is epochs ahead of one that computes",
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
                storage(Who::Rank(0), since, NOW),
            ),
            (
                "the own reader is inside a read",
                |node| {
                    node.ranks[0].doing = Doing::Block(4);
                    node.readers[0].doing = Doing::Reading(NOW - 7 * SECOND);
                },
                storage(Who::Reader(0), since, NOW),
            ),
            (
                "the reader of another rank is inside a read",
                |node| {
                    node.ranks[0].doing = Doing::Block(5);
                    node.readers[1].doing = Doing::Reading(NOW - 7 * SECOND);
                },
                storage(Who::Reader(1), since, NOW - SECOND),
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
                storage(Who::Reader(1), since, NOW - SECOND),
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
                storage(Who::Reader(1), since, NOW - SECOND),
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
                storage(Who::Reader(1), since, NOW),
            ),
            (
                "other nodes read now",
                |node| {
                    node.ranks[0].doing = Doing::Block(4);
                    node.readers[0].doing = Doing::OtherNodes;
                },
                Fault::OtherNodes,
            ),
            (
                "a root is inside a page fault",
                |node| {
                    node.ranks[0].doing = Doing::Plan(21);
                    node.roots = 2;
                    node.readers[0].found = Position::new(SessionId(1), 30);
                    node.readers[1].seeking = Doing::Reading(NOW - 7 * SECOND);
                },
                storage(Who::Root(1), since, NOW - SECOND),
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
            assert_eq!(node.fault(), expected, "{name}");
        }
    }

    #[test]
    fn the_first_step_is_what_a_rank_waits_for_and_old_claims_are_ignored() {
        let mut waits = Waits::default();
        let extent = Extent { shard: forebay_types::ShardId(0), offset: 7, length: 9 };
        let block = Waiting::Block { sequence: 3, extent };
        assert_eq!(waits.set(1, 6, Some(block)), Doing::Block(3));
        assert_eq!(waits.set(1, 5, Some(Waiting::Plan)), Doing::Plan(5));
        assert_eq!(waits.set(1, 5, None), Doing::Block(3));
        assert_eq!(waits.set(2, 9, None), Doing::Nothing);
        assert_eq!(waits.set(1, 6, Some(block)), Doing::Nothing, "its claim is void");
        assert_eq!(waits.set(2, 9, Some(Waiting::Pages { since_ns: 4 })), Doing::Reading(4));
        assert_eq!((waits.of(9), waits.of(6)), (Some(Waiting::Pages { since_ns: 4 }), None));
    }

    #[test]
    fn what_somebody_does_survives_as_a_word() {
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
