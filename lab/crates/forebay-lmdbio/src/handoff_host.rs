//! Runs the handoff of a cursor ([`Handoff`]) in a loader: reads the clock, and waits for and sends
//! messages through the process that hosts the locator.

use std::cell::Cell;
use std::time::Instant;

use forebay_plan::{LocatorHost, LocatorTask, SendError};

use crate::handoff::{Handoff, Inbox, Wait, WaitFacts};

/// The handoff of a root that locates samples for a task.
pub(crate) fn of_task(task: &LocatorTask) -> Handoff {
    let mut nodes = vec![None; task.order.spec().ranks as usize];
    for (node, ranks) in task.nodes.iter().enumerate() {
        for rank in ranks {
            if let Some(found) = nodes.get_mut(*rank as usize) {
                *found = Some(node);
            }
        }
    }
    Handoff::new(task.node, task.start, nodes.into_iter())
}

/// Waits for the cursor of a range; `None`: the root proceeds from its last position.
pub(crate) fn receive(
    handoff: &mut Handoff,
    step: u64,
    range: u32,
    host: &dyn LocatorHost,
) -> Option<Vec<u8>> {
    let begun = Instant::now();
    let mut state = if host.is_linked() { handoff.begin(step, range) } else { Wait::Alone };
    loop {
        match state {
            Wait::Cursor(cursor) => return Some(cursor),
            Wait::Alone => return None,
            Wait::Pending => {}
        }
        let facts = Cell::new(WaitFacts::default());
        let stop = || {
            let waited = begun.elapsed();
            facts.set(WaitFacts {
                waited,
                is_stopped: host.is_stopped(),
                is_starving: host.is_starving(step),
            });
            handoff.gives_up(facts.get())
        };
        let inbox = match host.receive(&stop) {
            Ok(Some(message)) => Inbox::Message(message),
            Ok(None) => Inbox::Empty,
            Err(_) => Inbox::Closed,
        };
        state = handoff.poll(step, range, facts.get(), &inbox);
    }
}

/// Sends the cursor after a range to the root of the next one; returns the bytes that were sent.
pub(crate) fn pass_on(
    handoff: &mut Handoff,
    step: u64,
    range: u32,
    export: impl FnOnce() -> Vec<u8>,
    host: &dyn LocatorHost,
) -> u64 {
    let sent = {
        let mut roots = handoff.next_roots(step, range).peekable();
        if !host.is_linked() || roots.peek().is_none() {
            return 0;
        }
        let cursor = export();
        roots.find_map(|root| match host.send(root.node, root.message(&cursor)) {
            Ok(()) => Some(Ok(cursor.len() as u64)),
            Err(SendError::Gone) => None,
            Err(SendError::Closed) => Some(Err(())),
        })
    };
    match sent {
        Some(Ok(bytes)) => bytes,
        Some(Err(())) => {
            handoff.close();
            0
        }
        None => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_plan::{LastBatch, LocatorCounter, MappedShards, Order, OrderKind, OrderSpec};
    use forebay_types::{Extent, Rank, SampleLocation, ShardId};
    use std::cell::RefCell;
    use std::collections::VecDeque;

    /// A node whose messages are collected; it stops after it has received all of them.
    #[derive(Default)]
    struct Node {
        gone: Vec<usize>,
        incoming: RefCell<VecDeque<Vec<u8>>>,
        sent: RefCell<Vec<(usize, Vec<u8>)>>,
    }

    impl MappedShards for Node {
        fn bytes(&self, _: ShardId, _: u64, _: u64) -> Option<&[u8]> {
            None
        }

        fn prefetch(&self, _: Extent) -> u64 {
            0
        }
    }

    impl LocatorHost for Node {
        fn publish(&self, _: usize, _: usize, _: SampleLocation) {}

        fn touch(&self, _: Extent) {}

        fn count(&self, _: LocatorCounter, _: u64) {}

        fn report_refused_cursor(&self, _: String) {}

        fn is_stopped(&self) -> bool {
            true
        }

        fn is_starving(&self, _: u64) -> bool {
            false
        }

        fn is_linked(&self) -> bool {
            true
        }

        fn send(&self, node: usize, message: Vec<u8>) -> Result<(), SendError> {
            if self.gone.contains(&node) {
                return Err(SendError::Gone);
            }
            self.sent.borrow_mut().push((node, message));
            Ok(())
        }

        fn receive(&self, stop: &dyn Fn() -> bool) -> Result<Option<Vec<u8>>, SendError> {
            let message = self.incoming.borrow_mut().pop_front();
            assert!(message.is_some() || stop());
            Ok(message)
        }
    }

    /// The handoff of one of three nodes of a rank each.
    fn handoff(node: usize) -> Handoff {
        let order = Order::new(OrderSpec {
            kind: OrderKind::Sequential,
            last_batch: LastBatch::Fill,
            seed: 0,
            samples: 90,
            batch: 2,
            ranks: 3,
            lanes: None,
        });
        let nodes = vec![vec![0], vec![1], vec![2]];
        let ranks = vec![Rank(node as u32)];
        of_task(&LocatorTask { order: order.unwrap(), ranks, start: 5, node, nodes })
    }

    #[test]
    fn a_cursor_goes_to_the_next_node_that_is_there() {
        let host = Node::default();
        assert_eq!(pass_on(&mut handoff(2), 5, 2, || b"here".to_vec(), &host), 4);
        let (node, message) = host.sent.take().pop().unwrap();
        assert_eq!(node, 0, "the first range of the next step");
        let (mut next, there) = (handoff(0), Node::default());
        there.incoming.borrow_mut().push_back(message);
        assert_eq!(receive(&mut next, 6, 0, &there).unwrap(), b"here");
        let host = Node { gone: vec![0], ..Node::default() };
        assert_eq!(pass_on(&mut handoff(2), 5, 2, || b"here".to_vec(), &host), 4);
        assert_eq!(host.sent.take()[0].0, 1);
        let host = Node { gone: vec![0, 1], ..Node::default() };
        assert_eq!(pass_on(&mut handoff(2), 5, 2, || b"here".to_vec(), &host), 0);
    }

    #[test]
    fn cursors_for_later_ranges_are_kept_and_those_for_earlier_ones_dropped() {
        let message = |step: u64, cursor: &[u8]| [&step.to_le_bytes()[..], &[1, 0, 0, 0], cursor].concat();
        let (mut handoff, host) = (handoff(1), Node::default());
        host.incoming.borrow_mut().extend([message(4, b"old"), message(6, b"later"), message(5, b"now")]);
        assert_eq!(receive(&mut handoff, 5, 1, &host).unwrap(), b"now");
        assert_eq!(receive(&mut handoff, 6, 1, &host).unwrap(), b"later");
        // None arrives: the root proceeds alone.
        assert_eq!(receive(&mut handoff, 7, 1, &host), None);
    }

    #[test]
    fn a_root_that_waits_for_none_receives_nothing() {
        let host = Node::default();
        host.incoming.borrow_mut().push_back(Vec::new());
        assert_eq!(receive(&mut handoff(0), 5, 0, &host), None);
        let mut alone = Handoff::new(0, 5, [Some(0); 3].into_iter());
        assert_eq!(receive(&mut alone, 6, 0, &host), None);
        assert_eq!(pass_on(&mut alone, 6, 0, || unreachable!("it goes nowhere"), &host), 0);
        assert_eq!(host.incoming.borrow().len(), 1);
    }
}
