//! The last reads, request by request.
//!
//! An event is recorded when its request arrives, with the latency that the model gave it. Its form
//! in files and answers is the array `[time_s, node, file, offset, length, latency_s]`, in model
//! seconds.
use std::collections::VecDeque;

use forebay_model::{FileId, ModelTime, NodeId};
use serde_json::{Value, json};

/// Events that are kept in memory: 10 MB, minutes of a busy run.
const CAPACITY: usize = 200_000;

/// One read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Event {
    /// When the request arrived.
    pub(crate) time: ModelTime,
    /// The node that sent it.
    pub(crate) node: NodeId,
    /// The file.
    pub(crate) file: FileId,
    /// Offset \[B\].
    pub(crate) offset: u64,
    /// Length \[B\].
    pub(crate) length: u64,
    /// The latency that the model gave it \[ns\].
    pub(crate) latency_ns: u64,
}

impl Event {
    /// The event as JSON; `name` is the file's path below the root.
    pub(crate) fn row(&self, name: &str) -> Value {
        json!([
            self.time as f64 / 1e9,
            self.node.0,
            name,
            self.offset,
            self.length,
            self.latency_ns as f64 / 1e9
        ])
    }
}

/// A ring of the last events, numbered from 0.
#[derive(Clone, Debug)]
pub(crate) struct Ring {
    kept: VecDeque<Event>,
    capacity: usize,
    first: u64,
}

impl Default for Ring {
    fn default() -> Ring {
        Ring::new(CAPACITY)
    }
}

impl Ring {
    fn new(capacity: usize) -> Ring {
        Ring { kept: VecDeque::new(), capacity, first: 0 }
    }

    /// Adds an event; drops the oldest one if the ring is full.
    pub(crate) fn push(&mut self, event: Event) {
        if self.kept.len() == self.capacity {
            self.kept.pop_front();
            self.first += 1;
        }
        self.kept.push_back(event);
    }

    /// Number of the next event.
    pub(crate) fn next(&self) -> u64 {
        self.first + self.kept.len() as u64
    }

    /// All kept events from number `since` on.
    pub(crate) fn since(&self, since: u64) -> Vec<Event> {
        let skipped = since.saturating_sub(self.first).min(self.kept.len() as u64);
        self.kept.range(skipped as usize..).copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(time: ModelTime) -> Event {
        Event { time, node: NodeId(1), file: FileId(0), offset: 4096, length: 10, latency_ns: 2_000_000 }
    }

    #[test]
    fn the_last_events_are_kept_and_numbered_from_the_start() {
        let mut ring = Ring::new(3);
        (0..5).for_each(|time| ring.push(event(time)));
        let times = |since| ring.since(since).iter().map(|event| event.time).collect::<Vec<_>>();
        assert_eq!(ring.next(), 5);
        assert_eq!(times(0), [2, 3, 4]);
        assert_eq!(times(4), [4]);
        assert_eq!(times(5), [] as [u64; 0]);
        assert_eq!(times(99), [] as [u64; 0]);
    }

    #[test]
    fn an_event_is_an_array_of_model_seconds_and_bytes() {
        let row = event(1_500_000_000).row("a/b");
        assert_eq!(row.to_string(), r#"[1.5,1,"a/b",4096,10,0.002]"#);
    }
}
