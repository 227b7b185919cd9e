//! What was read when, request by request: the last ones in memory, all of them in a file if wanted.
//!
//! An event is written down when its request comes, with the latency that the model gave it. The file is JSON lines: a header, then one
//! array `[time_s, node, file, offset, length, latency_s]` for each read, times in model seconds.
use std::collections::VecDeque;
use std::io::{self, Write};

use serde_json::{Value, json};

use crate::model::{FileId, ModelTime, NodeId};
use crate::spec::Spec;

/// Events that are kept in memory: 10 MB, and minutes of a busy run.
pub const KEPT_EVENTS: usize = 200_000;

/// One read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// When it came.
    pub time: ModelTime,
    /// Who asked.
    pub node: NodeId,
    /// Of which file.
    pub file: FileId,
    /// Where it began \[B\].
    pub offset: u64,
    /// How long it was \[B\].
    pub length: u64,
    /// How long the model let it take \[ns\].
    pub latency_ns: u64,
}

impl Event {
    /// The event as it stands in files and answers; `name` is the file's path below the root.
    pub fn row(&self, name: &str) -> Value {
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

/// The last events, numbered from 0 since the start.
#[derive(Clone, Debug)]
pub struct Ring {
    kept: VecDeque<Event>,
    capacity: usize,
    first: u64,
}

impl Ring {
    /// An empty one that keeps so many.
    pub fn new(capacity: usize) -> Ring {
        Ring { kept: VecDeque::new(), capacity, first: 0 }
    }

    /// Adds an event; the oldest one goes when there is no room.
    pub fn push(&mut self, event: Event) {
        if self.kept.len() == self.capacity {
            self.kept.pop_front();
            self.first += 1;
        }
        self.kept.push_back(event);
    }

    /// The number that the next event will get.
    pub fn next(&self) -> u64 {
        self.first + self.kept.len() as u64
    }

    /// All events that are still kept, from number `since` on.
    pub fn since(&self, since: u64) -> Vec<Event> {
        let skipped = since.saturating_sub(self.first).min(self.kept.len() as u64);
        self.kept.range(skipped as usize..).copied().collect()
    }
}

/// Writes the header of an event file.
pub fn write_header(out: &mut impl Write, spec: &Spec, time_scale: f64) -> io::Result<()> {
    writeln!(out, "{}", json!({"forebay_events": 2, "spec": spec, "time_scale": time_scale}))
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
        let mut out = Vec::new();
        write_header(&mut out, &Spec::free(), 2.0).unwrap();
        let header: Value = serde_json::from_slice(&out).unwrap();
        assert_eq!((&header["forebay_events"], &header["time_scale"]), (&json!(2), &json!(2.0)));
        assert_eq!(header["spec"]["name"], "none");
    }
}
