//! The leader's side of staggering: asks the keeper for a token when a reader of its node asks, opens the gate when it comes,
//! and gives it back when the gate is left.
//!
//! ```text
//! kind (1 byte): 1 ask | 2 grant | 3 give back | 4 set | a number (8): groups, or bytes read
//! ```
//!
//! Two threads, because one cannot wait for an event count in the shared memory and for a message at once. They live as long as the loader,
//! for a node that rests may be the keeper of those that read. When the links end (this leader or the keeper says
//! goodbye) the gate is free from then on. A node that says goodbye gives its token up; one that dies ends the job.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use forebay_plan::TokenServer;

use crate::base::failpoint;
use crate::mesh::{Channel, Links};
use crate::shm::counters::monotonic_ns;
use crate::shm::region::Region;

/// The node whose leader keeps the tokens.
const KEEPER: usize = 0;
/// How long the threads sleep at most before they look around.
const WAKEUP_INTERVAL: Duration = Duration::from_millis(250);

const ASK: u8 = 1;
const GRANT: u8 = 2;
const GIVE_BACK: u8 = 3;
const SET: u8 = 4;

/// Whether this node has a token.
const NONE: u8 = 0;
const ASKED: u8 = 1;
const HELD: u8 = 2;

/// The threads of a leader; ended by [`TokenClient::end`].
pub(crate) struct TokenClient {
    node: Arc<Node>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

struct Node {
    region: Arc<Region>,
    links: Arc<Links>,
    token: AtomicU8,
    keeper: Option<Mutex<TokenServer>>,
    ending: AtomicBool,
}

impl TokenClient {
    /// Begins to take turns; `groups` is their number, `None` to find it out.
    pub(crate) fn begin(
        region: &Arc<Region>,
        links: &Arc<Links>,
        groups: Option<usize>,
    ) -> std::io::Result<Self> {
        let keeps = links.me() == KEEPER;
        let node = Arc::new(Node {
            region: Arc::clone(region),
            links: Arc::clone(links),
            token: AtomicU8::new(NONE),
            keeper: keeps.then(|| Mutex::new(TokenServer::new(links.nodes(), groups))),
            ending: AtomicBool::new(false),
        });
        let turns = Self { node, threads: Mutex::default() };
        for (name, run) in [("forebay-turns", Node::listen as fn(&Node)), ("forebay-gate", Node::attend)] {
            let node = Arc::clone(&turns.node);
            let thread = std::thread::Builder::new().name(name.into()).spawn(move || {
                run(&node);
                node.region.gate().set_free();
            });
            match thread {
                Ok(thread) => {
                    turns.threads.lock().unwrap_or_else(PoisonError::into_inner).push(thread);
                }
                Err(error) => {
                    turns.end();
                    return Err(error);
                }
            }
        }
        Ok(turns)
    }

    /// Ends the threads; readers that are left on this node read whenever they like.
    pub(crate) fn end(&self) {
        self.node.ending.store(true, Ordering::Release);
        self.node.region.gate().changes.notify();
        let threads = std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner));
        for thread in threads {
            // A thread that panicked has printed why.
            let _ = thread.join();
        }
    }
}

impl Node {
    fn is_ending(&self) -> bool {
        self.ending.load(Ordering::Acquire) || self.region.gate().is_free()
    }

    /// Takes messages until the links end.
    fn listen(&self) {
        while !self.is_ending() {
            if self.keeper.is_none() && self.links.is_gone(KEEPER) {
                return;
            }
            let since = Instant::now();
            let stop = || since.elapsed() > WAKEUP_INTERVAL || self.is_ending();
            match self.links.receive(Channel::Turn, None, &stop) {
                Ok(Some((from, told))) => self.hear(from, &told),
                Ok(None) => self.forget_gone(),
                // All others have said goodbye, or a loss ends the job.
                Err(_) => return,
            }
        }
    }

    fn hear(&self, from: usize, told: &[u8]) {
        let Some((kind, number)) = told.split_first() else { return };
        let Ok(number) = number.try_into().map(u64::from_le_bytes) else { return };
        match *kind {
            ASK => self.keep(|keeper| keeper.ask(from)),
            GIVE_BACK => self.keep(|keeper| keeper.give_back(from, number, monotonic_ns())),
            SET => self.keep(|keeper| keeper.set((number > 0).then_some(number as usize))),
            GRANT if from == KEEPER => self.take_token(number),
            _ => {}
        }
    }

    /// Lets the keeper do something, and hands out the tokens that are free then.
    fn keep(&self, act: impl FnOnce(&mut TokenServer)) {
        let Some(keeper) = &self.keeper else { return };
        let mut keeper = keeper.lock().unwrap_or_else(PoisonError::into_inner);
        act(&mut keeper);
        loop {
            let grants = keeper.grants();
            if grants.is_empty() {
                return;
            }
            let groups = keeper.groups().0 as u64;
            for node in grants {
                if node == self.links.me() {
                    self.take_token(groups);
                } else if !self.tell(node, GRANT, groups) {
                    keeper.forget(node);
                }
            }
        }
    }

    /// Takes back the tokens of nodes that said goodbye.
    fn forget_gone(&self) {
        self.keep(|keeper| {
            let gone = |node: &usize| *node != self.links.me() && self.links.is_gone(*node);
            for node in keeper.holding().iter().copied().filter(gone).collect::<Vec<_>>() {
                keeper.forget(node);
            }
        });
    }

    fn take_token(&self, groups: u64) {
        let gate = self.region.gate();
        gate.groups.store(groups, Ordering::Release);
        // Open first: a token that is held while the gate is closed is given back.
        gate.open();
        self.token.store(HELD, Ordering::Release);
        failpoint::at(failpoint::Place::Token);
        gate.changes.notify();
    }

    /// Attends to the gate until the links end.
    fn attend(&self) {
        let gate = self.region.gate();
        while !self.is_ending() {
            let has_work = || match self.token.load(Ordering::Acquire) {
                NONE => gate.is_asked(),
                HELD => gate.is_left(),
                _ => false,
            };
            let is_wanted = || gate.wanted_groups.load(Ordering::Acquire) > 0;
            gate.changes.wait(|| self.is_ending() || has_work() || is_wanted(), WAKEUP_INTERVAL);
            if is_wanted() {
                let wanted = gate.wanted_groups.swap(0, Ordering::AcqRel) - 1;
                self.to_keeper(SET, wanted, |keeper| keeper.set((wanted > 0).then_some(wanted as usize)));
            }
            match self.token.load(Ordering::Acquire) {
                NONE if gate.is_asked() => {
                    self.token.store(ASKED, Ordering::Release);
                    self.to_keeper(ASK, 0, |keeper| keeper.ask(self.links.me()));
                }
                HELD if gate.is_left() => {
                    self.token.store(NONE, Ordering::Release);
                    let bytes = gate.take_bytes();
                    let me = self.links.me();
                    self.to_keeper(GIVE_BACK, bytes, |keeper| keeper.give_back(me, bytes, monotonic_ns()));
                }
                _ => {}
            }
        }
    }

    /// Tells the keeper, be it here or on another node.
    fn to_keeper(&self, kind: u8, number: u64, act: impl FnOnce(&mut TokenServer)) {
        if self.keeper.is_some() {
            self.keep(act);
        } else if !self.tell(KEEPER, kind, number) {
            self.region.gate().set_free();
        }
    }

    fn tell(&self, node: usize, kind: u8, number: u64) -> bool {
        let mut message = vec![kind];
        message.extend(number.to_le_bytes());
        self.links.send(node, Channel::Turn, message).is_ok()
    }
}
