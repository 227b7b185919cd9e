//! The written bytes that the page cache of a node has not yet sent to the servers.
use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::ids::ModelTime;

/// The writes of one node that programs do not wait for.
#[derive(Clone, Debug, Default)]
pub(crate) struct WriteBack {
    /// When each write arrives and its bytes; the earliest on top.
    pending: BinaryHeap<Reverse<(ModelTime, u64)>>,
    bytes: u64,
    last: ModelTime,
}

impl WriteBack {
    /// Adds a write and returns when no more than `limit` bytes are left.
    pub(crate) fn add(&mut self, now: ModelTime, bytes: u64, arrival: ModelTime, limit: u64) -> ModelTime {
        self.pending.push(Reverse((arrival, bytes)));
        self.bytes += bytes;
        self.last = self.last.max(arrival);
        let mut goes_on = now;
        while let Some(&Reverse((arrival, bytes))) = self.pending.peek()
            && (arrival <= now || self.bytes > limit)
        {
            self.pending.pop();
            self.bytes -= bytes;
            goes_on = goes_on.max(arrival);
        }
        goes_on
    }

    /// When the last write arrives.
    pub(crate) fn last_arrival(&self) -> ModelTime {
        self.last
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_waits_while_too_much_is_left() {
        let mut cache = WriteBack::default();
        assert_eq!(cache.add(0, 40, 100, 100), 0);
        assert_eq!(cache.add(0, 60, 250, 100), 0);
        assert_eq!(cache.add(10, 10, 260, 100), 100);
        assert_eq!(cache.add(255, 90, 400, 100), 255, "two writes have arrived by then");
        assert_eq!(cache.add(255, 101, 500, 100), 500, "more than the limit at once");
        assert_eq!(cache.last_arrival(), 500);
    }
}
