//! The threads of a leader that run the client for read tokens: one receives messages, the other
//! serves the gate of the node.
//!
//! There are two, because one thread cannot wait for an event count in shared memory and for a
//! message at once. They live as long as the loader: a node that does not iterate may still serve
//! tokens to others. When the links end, or the client gives up, the gate becomes free.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use forebay_host::failpoint;
use forebay_plan::{TokenClient, TokenHost};

use crate::mesh::{Channel, Links};
use crate::shm::counters::monotonic_ns;
use crate::shm::read_gate::ReadGate;
use crate::shm::region::Region;

/// Longest sleep of the threads between two checks.
const WAKEUP_INTERVAL: Duration = Duration::from_millis(250);

/// See the module header; ended by [`TokenThreads::end`].
pub(crate) struct TokenThreads {
    node: Arc<TokenContext>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

struct TokenContext {
    region: Arc<Region>,
    links: Arc<Links>,
    client: TokenClient,
    ending: AtomicBool,
}

impl TokenThreads {
    /// Starts both threads.
    pub(crate) fn start(
        client: TokenClient,
        region: &Arc<Region>,
        links: &Arc<Links>,
    ) -> std::io::Result<Self> {
        let node = Arc::new(TokenContext {
            region: Arc::clone(region),
            links: Arc::clone(links),
            client,
            ending: AtomicBool::new(false),
        });
        let started = Self { node, threads: Mutex::default() };
        for (name, run) in [
            ("forebay-tokens", TokenContext::receive_messages as fn(&TokenContext)),
            ("forebay-gate", TokenContext::serve_gate),
        ] {
            let node = Arc::clone(&started.node);
            let thread = std::thread::Builder::new().name(name.into()).spawn(move || {
                run(&node);
                node.gate().set_free();
            });
            match thread {
                Ok(thread) => {
                    started.threads.lock().unwrap_or_else(PoisonError::into_inner).push(thread);
                }
                Err(error) => {
                    started.end();
                    return Err(error);
                }
            }
        }
        Ok(started)
    }

    /// Ends the threads; the remaining readers of this node read at any time.
    pub(crate) fn end(&self) {
        self.node.ending.store(true, Ordering::Release);
        self.node.gate().changes.notify();
        let threads = std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner));
        for thread in threads {
            // A thread that panicked has printed its message.
            let _ = thread.join();
        }
    }
}

impl TokenContext {
    fn gate(&self) -> &ReadGate {
        self.region.gate()
    }

    fn is_ending(&self) -> bool {
        self.ending.load(Ordering::Acquire) || self.gate().is_free()
    }

    /// Receives messages until the links end.
    fn receive_messages(&self) {
        while !self.is_ending() {
            let since = Instant::now();
            let stop = || since.elapsed() > WAKEUP_INTERVAL || self.is_ending();
            match self.links.receive(Channel::Token, None, &stop) {
                Ok(Some((from, message))) => self.client.receive(from, &message, self),
                Ok(None) => self.client.check_nodes(self),
                // All others have left, or a loss ends the job.
                Err(_) => return,
            }
        }
    }

    /// Serves the gate until the links end.
    fn serve_gate(&self) {
        while !self.is_ending() {
            let has_work = || self.is_ending() || self.client.has_work(self);
            self.gate().changes.wait(has_work, WAKEUP_INTERVAL);
            self.client.attend(self);
        }
    }
}

impl TokenHost for TokenContext {
    fn is_asked(&self) -> bool {
        self.gate().is_asked()
    }

    fn is_left(&self) -> bool {
        self.gate().is_left()
    }

    fn open(&self, groups: u64) {
        self.gate().groups.store(groups, Ordering::Release);
        self.gate().open();
    }

    fn free(&self) {
        self.gate().set_free();
    }

    fn wake(&self) {
        failpoint::at(failpoint::StopPoint::Token);
        self.gate().changes.notify();
    }

    fn take_read_bytes(&self) -> u64 {
        self.gate().take_bytes()
    }

    fn is_regrouped(&self) -> bool {
        self.gate().wanted_groups.load(Ordering::Acquire) > 0
    }

    fn take_groups(&self) -> Option<u64> {
        self.gate().wanted_groups.swap(0, Ordering::AcqRel).checked_sub(1)
    }

    fn send(&self, node: usize, message: Vec<u8>) -> bool {
        self.links.send(node, Channel::Token, message).is_ok()
    }

    fn is_gone(&self, node: usize) -> bool {
        self.links.is_gone(node)
    }

    fn now_ns(&self) -> u64 {
        monotonic_ns()
    }
}
