//! A walk that passes from root to root (LMDBIO-LMM-DM): a root waits for the cursor, walks over
//! the leaves of its own records, sends the cursor to the next root, and only then touches the
//! records. While it waits, it asks for the pages that it expects. `forebay-lmdbio` decides when
//! and what.

use forebay_lmdbio::{Handoff, Inbox, PageGuess, Wait, WaitFacts};
use forebay_model::spec::PAGE_BYTES;
use forebay_model::{ByteRange, Kernel, ModelTime};
use forebay_types::{Located, Piece, SampleId, SamplePlaces};

use std::time::Duration;

use crate::actors::walk::Walk;
use crate::costs::nanoseconds;
use crate::mailbox::Channel;
use crate::world::World;

/// The walk of the root of a node.
pub(crate) struct HandoffWalk {
    node: usize,
    /// Number of the node's range of ranks.
    range: u32,
    handoff: Handoff,
    guess: PageGuess,
    walk: Walk,
    step: u64,
    state: State,
    located: Located,
}

enum State {
    /// It asks for the pages that it expects.
    Guessing,
    /// It waits for the cursor since then; `None`: it has not looked for it yet.
    Receiving(Option<ModelTime>),
    /// It walks.
    Walking,
    /// It has walked, and sends the cursor on.
    PassingOn,
    /// It touches its records.
    Touching,
    /// It has touched them.
    Done,
}

impl HandoffWalk {
    pub(crate) fn new(world: &World<'_>, node: usize) -> HandoffWalk {
        let job = world.job;
        let nodes = (0..job.nodes).flat_map(|node| job.ranks_of(node).map(move |_| Some(node as usize)));
        let handoff = Handoff::new(node, 0, nodes);
        let walk = Walk::of_engine(node, job.ranks_of(node as u32));
        HandoffWalk {
            node,
            // Nodes have consecutive ranks: each has one range, in their order.
            range: node as u32,
            handoff,
            guess: PageGuess::default(),
            // A root that no other one waits for touches records as it reaches them.
            walk: if job.nodes > 1 { walk.deferring() } else { walk },
            step: 0,
            state: State::Done,
            located: Located::default(),
        }
    }

    /// Sets out for the samples of a step.
    pub(crate) fn begin(&mut self, world: &World<'_>, step: u64) {
        self.walk.begin(world, step);
        (self.step, self.state) = (step, State::Guessing);
    }

    /// Goes on; false: it has asked the kernel to be resumed.
    pub(crate) fn advance(&mut self, kernel: &mut Kernel, world: &mut World<'_>) -> bool {
        let processors = world.nodes[self.node].processors;
        loop {
            match self.state {
                State::Guessing => {
                    let sent = self.prefetch(kernel.now(), world);
                    let duration = nanoseconds(world.job.costs.request_ns) * sent;
                    self.state = State::Receiving(None);
                    let end = kernel.work(processors, duration);
                    kernel.resume_at(end);
                    return false;
                }
                State::Receiving(since) => {
                    if !self.receive(since, kernel, world) {
                        return false;
                    }
                    self.state = State::Walking;
                }
                State::Walking => {
                    if let Some(due) = self.walk.advance(kernel, world) {
                        kernel.resume_at(due);
                        return false;
                    }
                    let duration = self.walk.take_touched_ns(world);
                    self.state = State::PassingOn;
                    let end = kernel.work(processors, duration);
                    kernel.resume_at(end);
                    return false;
                }
                State::PassingOn => {
                    self.pass_on(kernel, world);
                    self.state = State::Touching;
                }
                State::Touching => {
                    if let Some(due) = self.walk.touch_deferred(kernel, world) {
                        kernel.resume_at(due);
                        return false;
                    }
                    let duration = self.walk.take_touched_ns(world);
                    self.learn(world);
                    self.state = State::Done;
                    let end = kernel.work(processors, duration);
                    kernel.resume_at(end);
                    return false;
                }
                State::Done => return true,
            }
        }
    }

    /// Asks for the pages that the samples of the step probably lie in; returns the number of
    /// requests that were sent.
    fn prefetch(&mut self, now: ModelTime, world: &mut World<'_>) -> u64 {
        let Some(first) = self.walk.samples().first() else { return 0 };
        let pages = self.guess.pages(first.0, self.walk.samples().len() as u64);
        let (offset, end) = (pages.start * PAGE_BYTES, pages.end * PAGE_BYTES);
        let (open, id) = (world.open(self.node, 0), world.nodes[self.node].id);
        let range = ByteRange { offset, length: end.saturating_sub(offset) };
        world.storage.will_need(now, id, open, range)
    }

    /// Waits for the cursor; true once the walk begins, from there or from where it stands.
    fn receive(&mut self, since: Option<ModelTime>, kernel: &mut Kernel, world: &mut World<'_>) -> bool {
        let (now, range, step) = (kernel.now(), self.range, self.step);
        let begun = since.unwrap_or(now);
        let node = &mut world.nodes[self.node];
        // Ranks starve once the planner has taken what was located before.
        let is_starving = node.planned >= step;
        let waited = Duration::from_nanos(now - begun);
        let facts = WaitFacts { waited, is_stopped: false, is_starving };
        let mut wait = match since {
            None => self.handoff.begin(step, range),
            Some(_) => Wait::Pending,
        };
        while wait == Wait::Pending {
            let inbox = match node.cursors.take(now) {
                Some((_, message)) => Inbox::Message(message),
                None => Inbox::Empty,
            };
            wait = self.handoff.poll(step, range, facts, &inbox);
            if inbox == Inbox::Empty && wait == Wait::Pending {
                self.state = State::Receiving(Some(begun));
                node.cursors.wait(kernel);
                let patience = Handoff::GRACE + Duration::from_nanos(1);
                if waited < patience {
                    kernel.resume_at(begun + patience.as_nanos() as u64);
                } else {
                    kernel.wait(node.planning);
                }
                return false;
            }
        }
        if let Wait::Cursor(cursor) = wait
            && let Some(next) = cursor.first_chunk().map(|bytes| u64::from_le_bytes(*bytes))
            // Past the first sample, the order starts over there.
            && self.walk.samples().first().is_some_and(|first| next <= first.0)
        {
            self.walk.go_on_from(world, next);
        }
        true
    }

    /// Sends the cursor to the root that comes next. Its bytes are the record that it comes to, and
    /// as many more as a cursor of the engine has.
    fn pass_on(&self, kernel: &mut Kernel, world: &mut World<'_>) {
        let Some(root) = self.handoff.next_roots(self.step, self.range).next() else { return };
        let mut cursor = self.walk.next_record().to_le_bytes().to_vec();
        cursor.resize(world.places.cursor_bytes(), 0);
        world.send(kernel, Channel::Cursor, (self.node, root.node), root.message(&cursor));
    }

    /// Compares what it expected with where the samples lie.
    fn learn(&mut self, world: &World<'_>) {
        let ids: &[SampleId] = self.walk.samples();
        let Some(first) = ids.first() else { return };
        let Ok(()) = world.places.locate(ids, &mut self.located);
        let extents: Vec<(u64, u64)> = self
            .located
            .pieces()
            .iter()
            .filter_map(|piece| match piece {
                Piece::Extent(extent) => Some((extent.offset, extent.length)),
                Piece::Literal { .. } => None,
            })
            .collect();
        self.guess.learn(first.0, &extents);
    }
}
