//! The pool of batch buffers of one rank.
//!
//! A gather thread *claims* the next step together with a free buffer, fills it, and *finishes* the
//! claim. The consumer *takes* the finished steps in order. A buffer is *given back* when the last
//! view of it dies. Finished and claimed steps together never exceed the number of buffers: this is
//! the backpressure.
//!
//! The consumer may fill the next step itself ([`BufferPool::claim_own`]). While it does, no other
//! thread is woken for later steps.
//!
//! A user that keeps all batches would block its own loader. So when the consumer waits and the
//! user holds all buffers, the next claim gets none: the batch lies in private memory, and from
//! then on so does each batch for which no buffer is free.
//!
//! `pause` detaches the rank (`break`): earlier claims become void. `resume` continues at any step.
//! Only this process uses the pool; the bytes lie in the region, so that one budget covers all
//! memory.
//!
//! Around a read a thread *steps out* of its claim and *steps in* again; the latter fails if the
//! claim is void. So after `pause` no thread waits for storage: the pool is *settled* when no
//! thread with a void claim is inside. A thread that is outside then touches no shared memory but
//! its own buffer, which it gives back after its read.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use forebay_host::sync::{Condvar, Mutex};
use forebay_plan::BufferUse;

use crate::shm::position::SessionId;

/// A step that a gather thread is filling.
#[derive(Debug, PartialEq, Eq)]
pub struct Claim {
    ticket: u64,
    /// The absolute step.
    pub step: u64,
    /// The buffer to fill; `None`: memory of the process's own.
    pub buffer: Option<usize>,
    /// The thread has stepped out, or was outside when the claim became void.
    outside: Cell<bool>,
}

impl Claim {
    /// Grows each time that all claims become void.
    #[must_use]
    pub fn ticket(&self) -> u64 {
        self.ticket
    }
}

/// Result of [`BufferPool::take`].
#[derive(Debug, PartialEq, Eq)]
pub enum Taken<T, E> {
    /// The batch of the step.
    Item(T),
    /// The batch was not ready within the timeout.
    NotYet,
    /// Filling it failed.
    Failed(E),
}

#[allow(clippy::struct_excessive_bools)] // independent facts, not a state in disguise
struct State<T, E> {
    free: Vec<usize>,
    ticket: u64,
    paused: bool,
    stopped: bool,
    /// Number of the session whose threads may claim.
    session: SessionId,
    next: u64,
    /// First step that is not claimed.
    end: u64,
    /// Claims that are not void.
    filling: usize,
    /// Those of them whose threads have stepped out.
    outside: usize,
    /// Void claims whose threads are still inside.
    unsettled: usize,
    gathered: u64,
    done: BTreeSet<u64>,
    ready: BTreeMap<u64, Result<T, E>>,
    /// The consumer found no batch and waits, or retries soon.
    starving: bool,
    /// The consumer fills what it needs itself: waking another thread would only slow it down.
    fills_in_caller: bool,
    keeps_all: bool,
    /// Threads asleep in `claim`, to avoid needless wake-ups.
    claimers: usize,
    /// Threads asleep in `take` or `settle`.
    takers: usize,
}

impl<T, E> State<T, E> {
    fn buffer_use(&self, buffers: usize) -> BufferUse {
        BufferUse {
            buffers,
            free: self.free.len(),
            in_work: self.filling + self.ready.len(),
            keeps_all: self.keeps_all,
            starving: self.starving,
            fills_in_caller: self.fills_in_caller,
        }
    }

    /// Whether a claim would succeed now.
    fn is_claimable(&self, buffers: usize) -> bool {
        !self.paused && self.next < self.end && self.buffer_use(buffers).may_fill()
    }

    /// Claims the next step; only where one is claimable.
    fn claim(&mut self) -> Claim {
        // The buffer that was returned last: its pages are still in the cache.
        let buffer = self.free.pop();
        let claim = Claim { ticket: self.ticket, step: self.next, buffer, outside: Cell::new(false) };
        self.next += 1;
        self.filling += 1;
        claim
    }

    /// Whether the consumer may claim a step: the next one, where a buffer is free.
    fn is_claimable_by_consumer(&self, step: u64, buffers: usize) -> bool {
        self.next == step && !self.free.is_empty() && self.is_claimable(buffers)
    }
}

/// See the module header. `T` is a filled batch, `E` an error of filling it.
pub struct BufferPool<T, E> {
    state: Mutex<State<T, E>>,
    /// Something may be claimable.
    room: Condvar,
    /// A claim was finished or abandoned.
    filled: Condvar,
    buffers: usize,
}

impl<T, E> BufferPool<T, E> {
    /// A paused pool of `buffers` buffers, all free.
    pub fn new(buffers: usize) -> Self {
        Self {
            state: Mutex::new(State {
                free: (0..buffers).rev().collect(),
                ticket: 0,
                paused: true,
                stopped: false,
                session: SessionId::default(),
                next: 0,
                end: u64::MAX,
                filling: 0,
                outside: 0,
                unsettled: 0,
                gathered: 0,
                done: BTreeSet::new(),
                ready: BTreeMap::new(),
                starving: false,
                fills_in_caller: false,
                keeps_all: false,
                claimers: 0,
                takers: 0,
            }),
            room: Condvar::new(),
            filled: Condvar::new(),
            buffers,
        }
    }

    fn lock(&self) -> forebay_host::sync::MutexGuard<'_, State<T, E>> {
        self.state.lock().expect("no thread panics while it holds the pool")
    }

    /// Wakes one thread in `claim`, if that is worth it.
    fn offer(&self, state: &State<T, E>) {
        let is_worthwhile = state.buffer_use(self.buffers).is_worth_a_wake_up();
        if state.claimers > 0 && is_worthwhile && state.is_claimable(self.buffers) {
            self.room.notify_one();
        }
    }

    /// Wakes the threads that wait for claims to end.
    fn announce(&self, state: &State<T, E>) {
        if state.takers > 0 {
            self.filled.notify_all();
        }
    }

    /// Claims the next step for a thread of a session, once a buffer is available. Returns `None`
    /// after `timeout`, or if the pool is stopped or was restarted for another session.
    pub fn claim(&self, session: SessionId, timeout: Duration) -> Option<Claim> {
        let mut state = self.lock();
        loop {
            if state.stopped || state.session != session {
                return None;
            }
            if state.is_claimable(self.buffers) {
                let claim = state.claim();
                state.keeps_all |= claim.buffer.is_none();
                self.offer(&state);
                return Some(claim);
            }
            state.claimers += 1;
            let (guard, late) = forebay_host::sync::wait_timeout(&self.room, state, timeout);
            state = guard;
            state.claimers -= 1;
            if late {
                return None;
            }
        }
    }

    /// Claims `step` for the consumer's own thread, if it is the next one and a buffer is free.
    pub fn claim_own(&self, session: SessionId, step: u64) -> Option<Claim> {
        let mut state = self.lock();
        let runs = !state.stopped && state.session == session;
        (runs && state.is_claimable_by_consumer(step, self.buffers)).then(|| state.claim())
    }

    /// Sets whether other threads are left asleep until the consumer waits, as it fills what it
    /// needs itself. Returns whether it may claim `step` now.
    pub fn may_claim_own(&self, step: u64, alone: bool) -> bool {
        let mut state = self.lock();
        state.fills_in_caller = alone;
        state.is_claimable_by_consumer(step, self.buffers)
    }

    /// Allows claims of steps before `end` only.
    pub fn claim_up_to(&self, end: u64) {
        let mut state = self.lock();
        state.end = end;
        self.offer(&state);
    }

    /// Whether a claim has been made void by `pause` or `stop`.
    pub fn is_void(&self, claim: &Claim) -> bool {
        let state = self.lock();
        state.stopped || state.ticket != claim.ticket
    }

    /// The next step that will be claimed, or `None` while paused.
    pub fn next_claim(&self) -> Option<u64> {
        let state = self.lock();
        (!state.paused).then_some(state.next)
    }

    /// Steps out before a call that storage may block; false if the claim is void: the call is then
    /// unnecessary.
    pub fn step_out(&self, claim: &Claim) -> bool {
        let mut state = self.lock();
        if state.ticket != claim.ticket {
            return false;
        }
        state.outside += 1;
        claim.outside.set(true);
        true
    }

    /// Steps in again; false if the claim is void: the thread must then touch no shared memory.
    pub fn step_in(&self, claim: &Claim) -> bool {
        let mut state = self.lock();
        if state.ticket != claim.ticket {
            return false;
        }
        state.outside -= 1;
        claim.outside.set(false);
        true
    }

    /// Removes a claim; returns whether it was valid.
    fn end(&self, state: &mut State<T, E>, claim: &Claim) -> bool {
        let valid = state.ticket == claim.ticket;
        if valid {
            state.filling -= 1;
            state.outside -= usize::from(claim.outside.get());
        } else if !claim.outside.get() {
            state.unsettled -= 1;
        }
        self.announce(state);
        valid
    }

    /// Ends a claim. Unless it is void, calls `publish` with the step before which all steps are
    /// gathered now, before another thread can void claims.
    ///
    /// # Errors
    /// The item of a void claim, which the caller drops without the pool's lock.
    pub fn finish(
        &self,
        claim: &Claim,
        item: Result<T, E>,
        publish: impl FnOnce(u64),
    ) -> Result<(), Result<T, E>> {
        let mut state = self.lock();
        if !self.end(&mut state, claim) {
            return Err(item);
        }
        state.ready.insert(claim.step, item);
        state.done.insert(claim.step);
        loop {
            let gathered = state.gathered;
            if !state.done.remove(&gathered) {
                publish(gathered);
                return Ok(());
            }
            state.gathered += 1;
        }
    }

    /// Ends a void claim without a batch; the caller gives its buffer back separately.
    pub fn abandon(&self, claim: &Claim) {
        let mut state = self.lock();
        self.end(&mut state, claim);
        self.offer(&state);
    }

    /// Takes the batch of `step`, waiting up to `timeout` for it.
    pub fn take(&self, step: u64, timeout: Duration) -> Taken<T, E> {
        let mut state = self.lock();
        let mut late = false;
        loop {
            if let Some(item) = state.ready.remove(&step) {
                state.starving = false;
                self.offer(&state);
                return match item {
                    Ok(item) => Taken::Item(item),
                    Err(error) => Taken::Failed(error),
                };
            }
            if late {
                return Taken::NotYet;
            }
            state.starving = true;
            // It did not fill the step, so another thread must.
            state.fills_in_caller &= state.next > step;
            self.offer(&state);
            state.takers += 1;
            (state, late) = forebay_host::sync::wait_timeout(&self.filled, state, timeout);
            state.takers -= 1;
        }
    }

    /// Whether [`BufferPool::take`] would return at once. If not, wakes a thread that can fill the
    /// step now, as the consumer has use for it.
    pub fn is_ready(&self, step: u64) -> bool {
        let state = self.lock();
        if state.ready.contains_key(&step) {
            return true;
        }
        if state.claimers > 0 && state.next <= step && state.is_claimable(self.buffers) {
            self.room.notify_one();
        }
        false
    }

    /// Whether the user has held all buffers at once.
    pub fn keeps_all(&self) -> bool {
        self.lock().keeps_all
    }

    /// The free buffers.
    pub fn free_buffers(&self) -> Vec<usize> {
        self.lock().free.clone()
    }

    /// Gives a buffer back.
    pub fn give_back(&self, buffer: usize) {
        let mut state = self.lock();
        debug_assert!(!state.free.contains(&buffer), "buffer {buffer} is given back once");
        state.free.push(buffer);
        self.offer(&state);
    }

    /// Voids all claims and returns the batches that were not taken. Threads may still be inside:
    /// [`BufferPool::settle`].
    pub fn pause(&self) -> Vec<Result<T, E>> {
        let mut state = self.lock();
        state.paused = true;
        state.fills_in_caller = false;
        state.ticket += 1;
        state.unsettled += state.filling - state.outside;
        (state.filling, state.outside) = (0, 0);
        state.done.clear();
        let ready = std::mem::take(&mut state.ready);
        self.announce(&state);
        drop(state);
        ready.into_values().collect()
    }

    /// Waits up to `timeout` until no thread with a void claim is inside; returns whether the pool
    /// is settled.
    pub fn settle(&self, timeout: Duration) -> bool {
        let mut state = self.lock();
        let mut late = timeout.is_zero();
        while state.unsettled > 0 && !late {
            state.takers += 1;
            (state, late) = forebay_host::sync::wait_timeout(&self.filled, state, timeout);
            state.takers -= 1;
        }
        state.unsettled == 0
    }

    /// Allows claims from `step` on; only after `pause` (a new pool is paused).
    pub fn resume(&self, step: u64) {
        let mut state = self.lock();
        debug_assert!(state.paused && state.filling == 0 && state.ready.is_empty());
        state.paused = false;
        state.next = step;
        state.gathered = step;
        self.offer(&state);
    }

    /// Ends `claim` for all threads; `restart` allows it again.
    pub fn stop(&self) {
        self.lock().stopped = true;
        self.room.notify_all();
    }

    /// Undoes `stop`, for the threads of another session: late threads of an earlier session claim
    /// nothing.
    pub fn restart(&self, session: SessionId) {
        let mut state = self.lock();
        state.stopped = false;
        state.session = session;
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const FIRST: SessionId = SessionId(0);

    const NOW: Duration = Duration::from_millis(1);

    fn ring(buffers: usize) -> BufferPool<u64, String> {
        let ring = BufferPool::new(buffers);
        ring.resume(5);
        ring
    }

    #[test]
    fn steps_are_claimed_in_order_and_no_more_than_there_are_buffers() {
        let ring = ring(2);
        let (a, b) = (ring.claim(FIRST, NOW).unwrap(), ring.claim(FIRST, NOW).unwrap());
        assert_eq!((a.step, b.step), (5, 6));
        assert_ne!(a.buffer, b.buffer);
        assert!(ring.claim(FIRST, NOW).is_none());
        let gathered = Cell::new(0);
        ring.finish(&b, Ok(60), |step| gathered.set(step)).unwrap();
        assert_eq!(gathered.get(), 5, "step 5 is still missing");
        ring.finish(&a, Ok(50), |step| gathered.set(step)).unwrap();
        assert_eq!(gathered.get(), 7);
        assert_eq!(ring.take(5, NOW), Taken::Item(50));
        assert_eq!(ring.take(6, NOW), Taken::Item(60));
        assert_eq!(ring.take(7, NOW), Taken::NotYet);
    }

    #[test]
    fn the_consumer_claims_the_next_step_only_and_takes_it_itself() {
        let ring = ring(2);
        assert!(ring.may_claim_own(5, true));
        assert!(!ring.may_claim_own(6, true), "step 5 comes first");
        assert!(ring.claim_own(SessionId(1), 5).is_none(), "of another session");
        assert!(ring.claim_own(FIRST, 6).is_none());
        let own = ring.claim_own(FIRST, 5).unwrap();
        assert!(ring.claim_own(FIRST, 5).is_none(), "it is claimed");
        let other = ring.claim(FIRST, NOW).unwrap();
        assert_eq!((own.step, other.step), (5, 6));
        assert!(!ring.may_claim_own(7, true), "no buffer is free");
        ring.finish(&own, Ok(50), |_| ()).unwrap();
        assert_eq!(ring.take(5, NOW), Taken::Item(50));
        ring.finish(&other, Ok(60), |_| ()).unwrap();
        assert_eq!(ring.take(6, NOW), Taken::Item(60));
        // The user holds both buffers: the consumer must wait for a batch in private memory.
        assert!(!ring.may_claim_own(7, true));
        assert!(ring.claim_own(FIRST, 7).is_none());
        ring.give_back(0);
        assert!(ring.claim_own(FIRST, 7).is_some());
        assert!(ring.pause().is_empty());
        assert!(!ring.may_claim_own(8, true) && ring.claim_own(FIRST, 8).is_none(), "the pool is paused");
    }

    #[test]
    fn a_consumer_that_stops_filling_gets_its_batch_from_another_thread() {
        let ring = std::sync::Arc::new(ring(2));
        let filler = std::sync::Arc::clone(&ring);
        ring.claim_up_to(5);
        let (asleep, is_asleep) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            asleep.send(()).unwrap();
            let claim = filler.claim(FIRST, Duration::from_secs(60)).unwrap();
            filler.finish(&claim, Ok(claim.step), |_| ()).unwrap();
        });
        is_asleep.recv().unwrap();
        // Long enough that the thread sleeps; it passes at once where it does not yet.
        std::thread::sleep(Duration::from_millis(50));
        assert!(!ring.may_claim_own(5, true), "step 5 may not be claimed yet");
        ring.claim_up_to(6);
        assert_eq!(ring.take(5, Duration::from_secs(30)), Taken::Item(5));
        thread.join().unwrap();
    }

    #[test]
    fn a_user_that_keeps_all_buffers_gets_private_ones() {
        let ring = ring(2);
        for step in 5..7 {
            let claim = ring.claim(FIRST, NOW).unwrap();
            assert!(claim.buffer.is_some());
            ring.finish(&claim, Ok(step), |_| ()).unwrap();
            assert_eq!(ring.take(step, NOW), Taken::Item(step));
        }
        assert!(ring.claim(FIRST, NOW).is_none(), "the consumer does not wait, so nothing is copied");
        assert_eq!(ring.take(7, NOW), Taken::NotYet);
        let claim = ring.claim(FIRST, NOW).unwrap();
        assert_eq!(claim.buffer, None);
        assert!(ring.keeps_all());
        ring.give_back(0);
        assert_eq!(ring.claim(FIRST, NOW).unwrap().buffer, Some(0), "a buffer that comes back is used again");
    }

    #[test]
    fn pause_voids_claims_and_resume_continues_at_any_step() {
        let ring = ring(3);
        let (a, b) = (ring.claim(FIRST, NOW).unwrap(), ring.claim(FIRST, NOW).unwrap());
        ring.finish(&a, Ok(1), |_| ()).unwrap();
        assert_eq!(ring.pause(), [Ok(1)]);
        assert!(!ring.settle(NOW) && ring.is_void(&b), "its thread may still copy");
        assert_eq!(ring.finish(&b, Ok(2), |_| unreachable!("it is void")), Err(Ok(2)));
        assert!(ring.settle(NOW));
        assert!(ring.claim(FIRST, NOW).is_none());
        ring.resume(40);
        assert_eq!(ring.claim(FIRST, NOW).unwrap().step, 40);
    }

    #[test]
    fn settle_does_not_wait_for_a_thread_inside_a_read_whose_claim_is_then_void() {
        let ring = ring(2);
        let (out, within) = (ring.claim(FIRST, NOW).unwrap(), ring.claim(FIRST, NOW).unwrap());
        assert!(ring.step_out(&out));
        assert!(ring.step_out(&within) && ring.step_in(&within));
        drop(ring.pause());
        assert!(!ring.settle(NOW), "one is inside");
        assert!(!ring.step_out(&within), "its claim is void");
        ring.abandon(&within);
        assert!(ring.settle(NOW), "the other one is outside");
        ring.give_back(within.buffer.unwrap());
        // The kernel may still write to its buffer: it is not claimed.
        ring.resume(20);
        let next = ring.claim(FIRST, NOW).unwrap();
        assert_eq!((next.step, next.buffer), (20, within.buffer));
        assert!(ring.claim(FIRST, NOW).is_none());
        assert!(!ring.step_in(&out));
        ring.abandon(&out);
        ring.give_back(out.buffer.unwrap());
        assert_eq!(ring.claim(FIRST, NOW).unwrap().buffer, out.buffer);
        drop(ring.pause());
        ring.finish(&next, Ok(1), |_| ()).unwrap_err().unwrap();
        assert!(!ring.settle(NOW), "the last claim");
    }

    #[test]
    fn a_thread_of_an_earlier_session_claims_nothing_of_a_later_one() {
        let ring = ring(2);
        ring.stop();
        drop(ring.pause());
        ring.restart(SessionId(7));
        ring.resume(0);
        assert!(ring.claim(FIRST, NOW).is_none());
        assert_eq!(ring.claim(SessionId(7), NOW).unwrap().step, 0);
    }

    #[test]
    fn nothing_is_claimed_after_the_end_until_it_is_moved() {
        let ring = ring(3);
        ring.claim_up_to(6);
        assert_eq!(ring.claim(FIRST, NOW).unwrap().step, 5);
        assert!(ring.claim(FIRST, NOW).is_none());
        ring.claim_up_to(7);
        assert_eq!(ring.claim(FIRST, NOW).unwrap().step, 6);
        assert!(ring.claim(FIRST, NOW).is_none());
    }

    #[test]
    fn a_question_whether_a_step_is_ready_never_makes_it_a_private_one() {
        let ring = ring(1);
        assert!(!ring.is_ready(5));
        let claim = ring.claim(FIRST, NOW).unwrap();
        assert!(!ring.is_ready(5));
        ring.finish(&claim, Ok(50), |_| ()).unwrap();
        assert!(ring.is_ready(5));
        assert_eq!(ring.take(5, NOW), Taken::Item(50));
        // The consumer holds the only buffer.
        assert!(!ring.is_ready(6));
        assert!(ring.claim(FIRST, NOW).is_none());
        ring.give_back(0);
        assert_eq!(ring.claim(FIRST, NOW).unwrap().buffer, Some(0));
    }

    #[test]
    fn a_failed_step_is_ready() {
        let ring = ring(1);
        let claim = ring.claim(FIRST, NOW).unwrap();
        ring.finish(&claim, Err("no such page".into()), |_| ()).unwrap();
        assert!(ring.is_ready(5));
    }

    #[test]
    fn a_failure_reaches_the_consumer_of_the_step() {
        let ring = ring(1);
        let claim = ring.claim(FIRST, NOW).unwrap();
        ring.finish(&claim, Err("no such page".into()), |_| ()).unwrap();
        assert_eq!(ring.take(5, NOW), Taken::Failed("no such page".into()));
    }
}
