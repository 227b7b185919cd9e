//! Actors in virtual time: a discrete-event kernel that never waits.
//!
//! An actor runs until it has to wait. It then asks the kernel to resume it, at a time
//! ([`Kernel::resume_at`]) or once a condition is notified ([`Kernel::wait`]), and returns. If it
//! asks for several of these, the first one resumes it, and the others are void. An actor that asks
//! for none has ended. Simultaneous events run in the order in which they were asked for, so that
//! equal runs are equal on every machine.
use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::ids::ModelTime;

/// What is resumed; `World` is what all actors share.
pub trait Actor<World> {
    /// Continues, until it has to wait or has ended.
    fn resume(&mut self, kernel: &mut Kernel, world: &mut World);
}

/// Number of an actor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ActorId(u32);

/// What actors wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Condition(u32);

/// Processors that serve one thing each at a time, in order of arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Processors(u32);

/// An actor, and how often it had been resumed when it asked to be resumed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Turn {
    actor: u32,
    number: u32,
}

/// Clock, events and conditions.
#[derive(Debug, Default)]
pub struct Kernel {
    now: ModelTime,
    current: u32,
    /// How often each actor was resumed: what it asked for before is void.
    turns: Vec<u32>,
    /// (time, number of the event, what is resumed).
    events: BinaryHeap<Reverse<(ModelTime, u64, Turn)>>,
    scheduled: u64,
    /// Waiting actors, by condition.
    waiting: Vec<Vec<Turn>>,
    /// When each processor is free, by group.
    processors: Vec<BinaryHeap<Reverse<ModelTime>>>,
    is_stopped: bool,
}

impl Kernel {
    /// The time.
    pub fn now(&self) -> ModelTime {
        self.now
    }

    /// The actor that runs.
    pub fn current(&self) -> ActorId {
        ActorId(self.current)
    }

    /// Number of events so far.
    pub fn events(&self) -> u64 {
        self.scheduled
    }

    /// Resumes the running actor at `time`, or now if that is past.
    pub fn resume_at(&mut self, time: ModelTime) {
        self.schedule(time, self.turn_of(self.current));
    }

    /// Resumes the running actor after `duration` \[ns\].
    pub fn resume_after(&mut self, duration: u64) {
        self.resume_at(self.now.saturating_add(duration));
    }

    /// A condition that no actor waits for.
    pub fn condition(&mut self) -> Condition {
        self.waiting.push(Vec::new());
        Condition(self.waiting.len() as u32 - 1)
    }

    /// Resumes the running actor when the condition is notified.
    pub fn wait(&mut self, condition: Condition) {
        let turn = self.turn_of(self.current);
        let waiting = &mut self.waiting[condition.0 as usize];
        // It may be on the list from a turn that something else ended.
        match waiting.last_mut().filter(|last| last.actor == turn.actor) {
            Some(last) => *last = turn,
            None => waiting.push(turn),
        }
    }

    /// Resumes all actors that wait for the condition, now, in the order in which they began to.
    pub fn notify(&mut self, condition: Condition) {
        self.notify_after(condition, 0);
    }

    /// The same after `delay`: as long as it takes to wake a thread \[ns\].
    pub fn notify_after(&mut self, condition: Condition, delay: u64) {
        let mut waiting = std::mem::take(&mut self.waiting[condition.0 as usize]);
        let time = self.now.saturating_add(delay);
        for turn in waiting.drain(..) {
            if turn == self.turn_of(turn.actor) {
                self.schedule(time, turn);
            }
        }
        // None has begun to wait meanwhile: the list keeps its memory.
        self.waiting[condition.0 as usize] = waiting;
    }

    /// Idle processors.
    ///
    /// # Panics
    ///
    /// If there are none.
    pub fn processors(&mut self, count: usize) -> Processors {
        assert!(count > 0, "a group of processors has at least one");
        self.processors.push((0..count).map(|_| Reverse(0)).collect());
        Processors(self.processors.len() as u32 - 1)
    }

    /// Books `duration` of work of one processor, and returns when it is done.
    pub fn work(&mut self, processors: Processors, duration: u64) -> ModelTime {
        let free = &mut self.processors[processors.0 as usize];
        let Some(mut earliest) = free.peek_mut() else { return self.now };
        let end = earliest.0.max(self.now).saturating_add(duration);
        earliest.0 = end;
        end
    }

    /// Begins all actors at time 0, in their order, and runs until none can be resumed.
    pub fn run<W, A: Actor<W>>(&mut self, actors: &mut [A], world: &mut W) {
        self.turns.resize(self.turns.len().max(actors.len()), 0);
        for actor in 0..actors.len() as u32 {
            self.schedule(0, self.turn_of(actor));
        }
        while !self.is_stopped
            && let Some(Reverse((time, _, turn))) = self.events.pop()
        {
            if turn != self.turn_of(turn.actor) {
                continue;
            }
            self.now = time;
            self.current = turn.actor;
            self.turns[turn.actor as usize] = turn.number.wrapping_add(1);
            actors[turn.actor as usize].resume(self, world);
        }
    }

    /// Ends the run: no actor is resumed any more.
    pub fn stop(&mut self) {
        self.is_stopped = true;
    }

    fn turn_of(&self, actor: u32) -> Turn {
        Turn { actor, number: self.turns[actor as usize] }
    }

    fn schedule(&mut self, time: ModelTime, turn: Turn) {
        self.events.push(Reverse((time.max(self.now), self.scheduled, turn)));
        self.scheduled += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Does its actions in turn, and notes when.
    struct Doer<'a> {
        name: char,
        actions: std::iter::Copied<std::slice::Iter<'a, Action>>,
    }

    #[derive(Clone, Copy)]
    enum Action {
        Sleep(u64),
        Wait(Condition),
        Notify(Condition),
        Work(Processors, u64),
        WaitUntil(Condition, u64),
    }

    impl Actor<Vec<(ModelTime, char)>> for Doer<'_> {
        fn resume(&mut self, kernel: &mut Kernel, seen: &mut Vec<(ModelTime, char)>) {
            seen.push((kernel.now(), self.name));
            for action in self.actions.by_ref() {
                match action {
                    Action::Sleep(ns) => return kernel.resume_after(ns),
                    Action::Wait(condition) => return kernel.wait(condition),
                    Action::Notify(condition) => kernel.notify(condition),
                    Action::WaitUntil(condition, ns) => {
                        kernel.wait(condition);
                        return kernel.resume_after(ns);
                    }
                    Action::Work(processors, ns) => {
                        let end = kernel.work(processors, ns);
                        return kernel.resume_at(end);
                    }
                }
            }
        }
    }

    fn run(kernel: &mut Kernel, actions: &[&[Action]]) -> Vec<(ModelTime, char)> {
        let mut seen = Vec::new();
        let mut actors: Vec<Doer<'_>> = actions
            .iter()
            .zip('a'..)
            .map(|(actions, name)| Doer { name, actions: actions.iter().copied() })
            .collect();
        kernel.run(&mut actors, &mut seen);
        seen
    }

    #[test]
    fn simultaneous_events_run_in_the_order_in_which_they_were_asked_for() {
        use Action::Sleep;
        let seen = run(&mut Kernel::default(), &[&[Sleep(5)], &[Sleep(3), Sleep(2)], &[Sleep(5)]]);
        assert_eq!(seen, [(0, 'a'), (0, 'b'), (0, 'c'), (3, 'b'), (5, 'a'), (5, 'c'), (5, 'b')]);
    }

    #[test]
    fn a_condition_resumes_all_that_wait_and_none_that_come_later() {
        use Action::{Notify, Sleep, Wait};
        let mut kernel = Kernel::default();
        let there = kernel.condition();
        let seen = run(&mut kernel, &[&[Sleep(1), Wait(there)], &[Wait(there)], &[Sleep(4), Notify(there)]]);
        assert_eq!(seen[3..], [(1, 'a'), (4, 'c'), (4, 'b'), (4, 'a')]);
        assert_eq!(run(&mut kernel, &[&[Notify(there)], &[Wait(there)]]), [(4, 'a'), (4, 'b')]);
    }

    #[test]
    fn the_first_of_several_resumes_an_actor_and_the_others_are_void() {
        use Action::{Notify, Sleep, Wait, WaitUntil};
        let mut kernel = Kernel::default();
        let (there, later) = (kernel.condition(), kernel.condition());
        let waits = [WaitUntil(there, 5), WaitUntil(there, 3), Sleep(10), WaitUntil(later, 100)];
        let seen = run(
            &mut kernel,
            &[&waits, &[Sleep(2), Notify(there), Sleep(14), Notify(there), Notify(later)], &[Wait(there)]],
        );
        let of = |name| seen.iter().filter(|one| one.1 == name).map(|one| one.0).collect::<Vec<_>>();
        // Notified at 2; not at 5; timed out at 5, then asleep although it is on the list.
        assert_eq!(of('a'), [0, 2, 5, 15, 16]);
        assert_eq!(of('c'), [0, 2]);
    }

    #[test]
    fn processors_work_in_order_of_arrival() {
        use Action::{Sleep, Work};
        let mut kernel = Kernel::default();
        let two = kernel.processors(2);
        let work = |begin, ns| vec![Sleep(begin), Work(two, ns)];
        let actions = [work(0, 10), work(0, 4), work(1, 5), work(2, 5), work(30, 1)];
        let seen = run(&mut kernel, &actions.each_ref().map(Vec::as_slice));
        let end = |name| seen.iter().rfind(|one| one.1 == name).unwrap().0;
        assert_eq!(('a'..='e').map(end).collect::<Vec<_>>(), [10, 4, 9, 14, 31]);
    }
}
