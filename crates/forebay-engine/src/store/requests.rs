//! Requests of a rank to other nodes: at most so many in flight per node, of all threads together.
//!
//! A thread sends what the limit allows, then waits for its oldest request, and so on. It waits for
//! another thread only when it has no request in flight itself, so threads cannot wait for each
//! other in a circle.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use forebay_plan::RequestLimits;
use forebay_transport::{Fetcher, Peer, Piece, Ticket, TransportError};

/// How often a wait checks whether to go on.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// Why bytes did not come.
#[derive(Debug)]
pub(crate) enum Failed {
    /// The caller wants them no more.
    Stopped,
    /// This node does not answer.
    Node(usize, TransportError),
}

/// A request that is to be made.
#[derive(Debug)]
pub(super) struct QueuedRequest {
    pub(super) node: usize,
    pub(super) peer: Peer,
    pub(super) pieces: Vec<Piece>,
}

/// See the module header.
#[derive(Debug)]
pub(super) struct Requests {
    /// How many more requests each peer may get.
    free: Mutex<Vec<usize>>,
    changed: Condvar,
}

impl Requests {
    pub(super) fn new(peers: usize, limits: RequestLimits) -> Self {
        Self { free: Mutex::new(vec![limits.requests; peers]), changed: Condvar::new() }
    }

    /// Makes all requests and waits for their answers, or until `stop` returns true. Whatever
    /// happened, their memory is free then.
    pub(super) fn run(
        &self,
        fetcher: &dyn Fetcher,
        step: u64,
        requests: Vec<QueuedRequest>,
        stop: &dyn Fn() -> bool,
    ) -> Result<(), Failed> {
        let mut queues: Vec<VecDeque<QueuedRequest>> = Vec::new();
        for request in requests {
            match queues.last_mut() {
                Some(queue) if queue.back().is_some_and(|last| last.peer == request.peer) => {
                    queue.push_back(request);
                }
                _ => queues.push([request].into()),
            }
        }
        let mut failed = None;
        let mut in_flight: VecDeque<(usize, Ticket)> = VecDeque::new();
        loop {
            for queue in &mut queues {
                while failed.is_none() && queue.front().is_some_and(|request| self.take(request.peer)) {
                    let Some(QueuedRequest { node, peer, pieces }) = queue.pop_front() else { break };
                    match fetcher.fetch(peer, step, &pieces) {
                        Ok(ticket) => in_flight.push_back((node, ticket)),
                        Err(error) => {
                            self.give(peer);
                            failed = Some(Failed::Node(node, error));
                        }
                    }
                }
            }
            if let Some((node, ticket)) = in_flight.pop_front() {
                let answer = wait(fetcher, node, ticket, stop);
                self.give(ticket.peer());
                if let Err(error) = answer {
                    failed.get_or_insert(error);
                }
            } else if let Some(failed) = failed {
                return Err(failed);
            } else if queues.iter().all(VecDeque::is_empty) {
                return Ok(());
            } else if stop() {
                return Err(Failed::Stopped);
            } else {
                self.wait_for_change(queues.iter().filter_map(|queue| queue.front()));
            }
        }
    }

    fn take(&self, peer: Peer) -> bool {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        match free.get_mut(peer.0) {
            Some(0) => false,
            Some(left) => {
                *left -= 1;
                true
            }
            // `fetch` refuses the peer.
            None => true,
        }
    }

    fn give(&self, peer: Peer) {
        if let Some(left) = self.free.lock().unwrap_or_else(PoisonError::into_inner).get_mut(peer.0) {
            *left += 1;
        }
        self.changed.notify_all();
    }

    /// Waits a moment until one of the requests may be made.
    fn wait_for_change<'r>(&self, mut requests: impl Iterator<Item = &'r QueuedRequest>) {
        let free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        if !requests.any(|request| free.get(request.peer.0) != Some(&0)) {
            drop(self.changed.wait_timeout(free, CHECK_INTERVAL));
        }
    }
}

/// Waits for the answer to a request; takes its memory back if `stop` returns true.
fn wait(fetcher: &dyn Fetcher, node: usize, ticket: Ticket, stop: &dyn Fn() -> bool) -> Result<(), Failed> {
    use TransportError::{Deadline, NotConnected};
    loop {
        match fetcher.wait(ticket, Instant::now() + CHECK_INTERVAL) {
            Err(Deadline { .. } | NotConnected { .. }) if !stop() => {}
            Err(Deadline { .. } | NotConnected { .. }) => {
                let _ = fetcher.reconnect(ticket.peer());
                return Err(Failed::Stopped);
            }
            answer => return answer.map_err(|error| Failed::Node(node, error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::ptr::NonNull;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

    use forebay_transport::Destination;
    use proptest::prelude::*;

    use super::*;

    /// Answers each request when it is waited for; counts those in flight.
    #[derive(Default)]
    struct Answers {
        issued: AtomicU64,
        state: Mutex<State>,
        /// The peer that never answers.
        silent: Option<Peer>,
        /// The peer whose connection has failed.
        failed: Option<Peer>,
    }

    #[derive(Default)]
    struct State {
        in_flight: HashMap<usize, usize>,
        most: usize,
        requests: usize,
        reconnected: usize,
    }

    impl Answers {
        fn state(&self) -> std::sync::MutexGuard<'_, State> {
            self.state.lock().unwrap()
        }
    }

    impl Fetcher for Answers {
        fn fetch(&self, peer: Peer, step: u64, _pieces: &[Piece]) -> Result<Ticket, TransportError> {
            if self.failed == Some(peer) {
                return Err(TransportError::Stale { node: "failed".into(), step });
            }
            let mut state = self.state();
            let count = state.in_flight.entry(peer.0).or_default();
            *count += 1;
            state.most = state.most.max(state.in_flight[&peer.0]);
            state.requests += 1;
            Ok(Ticket::numbered(peer, step, 0, self.issued.fetch_add(1, Ordering::Relaxed)))
        }

        fn wait(&self, ticket: Ticket, _deadline: Instant) -> Result<(), TransportError> {
            std::thread::yield_now();
            if self.silent == Some(ticket.peer()) {
                return Err(TransportError::Deadline { node: "silent".into(), step: ticket.step() });
            }
            *self.state().in_flight.get_mut(&ticket.peer().0).unwrap() -= 1;
            Ok(())
        }

        fn reconnect(&self, peer: Peer) -> Result<(), TransportError> {
            let mut state = self.state();
            *state.in_flight.get_mut(&peer.0).unwrap() -= 1;
            state.reconnected += 1;
            Ok(())
        }
    }

    fn limits(buffers: usize) -> RequestLimits {
        RequestLimits { requests: buffers, bytes: 1 }
    }

    /// As many requests to each peer.
    fn requests(counts: &[usize]) -> Vec<QueuedRequest> {
        // SAFETY: the destination is empty.
        let into = unsafe { Destination::new(NonNull::dangling(), 0) };
        let pieces = || vec![Piece { offset: 0, into }];
        let of = |(at, count): (usize, &usize)| {
            (0..*count).map(move |_| QueuedRequest { node: at, peer: Peer(at), pieces: pieces() })
        };
        counts.iter().enumerate().flat_map(of).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        #[test]
        fn threads_never_have_more_in_flight_than_the_limit_and_all_end(
            buffers in 1_usize..4,
            counts in prop::collection::vec(prop::collection::vec(0_usize..6, 3), 1..6),
        ) {
            let (all, answers) = (Requests::new(3, limits(buffers)), Answers::default());
            std::thread::scope(|scope| {
                for (step, counts) in counts.iter().enumerate() {
                    let (all, answers) = (&all, &answers);
                    scope.spawn(move || {
                        // Each thread has its peers in another order.
                        let mut wanted = requests(counts);
                        wanted.sort_by_key(|request| (request.peer.0 + step) % 3);
                        all.run(answers, step as u64, wanted, &|| false).unwrap();
                    });
                }
            });
            let state = answers.state();
            prop_assert!(state.most <= buffers, "{} in flight", state.most);
            prop_assert_eq!(state.requests, counts.iter().flatten().sum::<usize>());
            prop_assert_eq!(&*all.free.lock().unwrap(), &vec![buffers; 3]);
        }
    }

    #[test]
    fn a_thread_that_is_alone_uses_the_whole_limit() {
        for buffers in [1, 3, 8] {
            let (all, answers) = (Requests::new(2, limits(buffers)), Answers::default());
            all.run(&answers, 0, requests(&[8, 8]), &|| false).unwrap();
            assert_eq!(answers.state().most, buffers);
        }
    }

    #[test]
    fn after_a_failure_or_a_stop_no_request_is_in_flight_and_the_limit_is_whole() {
        let stopped = AtomicBool::new(false);
        let stop = || stopped.swap(true, Ordering::Relaxed);
        for (silent, failed) in [(Some(Peer(1)), None), (None, Some(Peer(1)))] {
            let (all, answers) =
                (Requests::new(2, limits(2)), Answers { silent, failed, ..Answers::default() });
            let error = all.run(&answers, 7, requests(&[3, 3]), &stop).unwrap_err();
            match silent {
                Some(_) => assert!(matches!(error, Failed::Stopped)),
                None => assert!(matches!(error, Failed::Node(1, _)), "{error:?}"),
            }
            assert!(answers.state().in_flight.values().all(|count| *count == 0));
            assert_eq!(answers.state().reconnected > 0, silent.is_some());
            assert_eq!(*all.free.lock().unwrap(), [2, 2]);
        }
    }

    #[test]
    fn a_thread_that_waits_for_another_one_stops_when_it_is_told_to() {
        let (all, answers) = (Requests::new(1, limits(1)), Answers::default());
        assert!(all.take(Peer(0)));
        let error = all.run(&answers, 0, requests(&[1]), &|| true).unwrap_err();
        assert!(matches!(error, Failed::Stopped));
    }
}
