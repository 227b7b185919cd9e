//! Messages to a node that are on their way, and those that have arrived.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use forebay_model::{Condition, Kernel, ModelTime};

/// What a message is about; each has a mailbox on each node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Channel {
    /// The cursor of a walk.
    Cursor,
    /// Read tokens.
    Token,
}

/// A message on its way, ordered by arrival.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Message {
    arrival: ModelTime,
    number: u64,
    from: usize,
    bytes: Vec<u8>,
}

/// The messages of one channel to a node.
#[derive(Debug)]
pub(crate) struct Mailbox {
    messages: BinaryHeap<Reverse<Message>>,
    sent: u64,
    /// A message has arrived.
    arrived: Condition,
}

impl Mailbox {
    pub(crate) fn new(kernel: &mut Kernel) -> Mailbox {
        Mailbox { messages: BinaryHeap::new(), sent: 0, arrived: kernel.condition() }
    }

    /// Adds a message that arrives after `duration`.
    pub(crate) fn push(&mut self, kernel: &mut Kernel, duration: u64, from: usize, bytes: Vec<u8>) {
        let (arrival, number) = (kernel.now() + duration, self.sent);
        self.sent += 1;
        self.messages.push(Reverse(Message { arrival, number, from, bytes }));
        kernel.notify_after(self.arrived, duration);
    }

    /// Takes the first message that has arrived: from which node, and its bytes.
    pub(crate) fn take(&mut self, now: ModelTime) -> Option<(usize, Vec<u8>)> {
        let is_there = self.messages.peek().is_some_and(|Reverse(first)| first.arrival <= now);
        let Reverse(first) = is_there.then(|| self.messages.pop()).flatten()?;
        Some((first.from, first.bytes))
    }

    /// Resumes the running actor when the next message arrives.
    pub(crate) fn wait(&self, kernel: &mut Kernel) {
        match self.messages.peek() {
            Some(Reverse(first)) => kernel.resume_at(first.arrival),
            None => kernel.wait(self.arrived),
        }
    }
}
