//! The queue of a resource that does one thing at a time: a server, a link, the metadata server.
//!
//! Work is booked into the first gap that is long enough. Work that may begin at once is served in
//! order of arrival. Work that may only begin later (its sender has too many requests in flight)
//! leaves a gap, which later work may use.
use std::collections::VecDeque;

use crate::ids::ModelTime;

/// The booked work of one resource.
#[derive(Clone, Debug, Default)]
pub(crate) struct Timeline {
    /// Busy intervals `[begin, end)`, ascending, neither adjacent nor empty.
    busy: VecDeque<(ModelTime, ModelTime)>,
}

impl Timeline {
    /// Forgets what ended by `now`; no later booking begins before `now`. Returns whether nothing
    /// is left.
    pub(crate) fn forget(&mut self, now: ModelTime) -> bool {
        while self.busy.front().is_some_and(|&(_, end)| end <= now) {
            self.busy.pop_front();
        }
        self.busy.is_empty()
    }

    /// Forgets everything.
    pub(crate) fn clear(&mut self) {
        self.busy.clear();
    }

    /// Books `duration` at or after `earliest` and returns when it begins.
    pub(crate) fn book(&mut self, earliest: ModelTime, duration: ModelTime) -> ModelTime {
        let mut begin = earliest;
        let mut place = self.busy.partition_point(|&(_, end)| end <= begin);
        while let Some(&(next, end)) = self.busy.get(place) {
            // Work that takes no time also waits for earlier work that begins at the same moment.
            if begin.saturating_add(duration.max(1)) <= next {
                break;
            }
            begin = begin.max(end);
            place += 1;
        }
        if duration > 0 {
            self.insert(place, begin, begin.saturating_add(duration));
        }
        begin
    }

    /// Inserts an interval before `place` and merges it with adjacent ones.
    fn insert(&mut self, place: usize, begin: ModelTime, end: ModelTime) {
        let joins_previous = place > 0 && self.busy[place - 1].1 == begin;
        let joins_next = self.busy.get(place).is_some_and(|&(next, _)| next == end);
        match (joins_previous, joins_next) {
            (true, true) => {
                self.busy[place - 1].1 = self.busy[place].1;
                self.busy.remove(place);
            }
            (true, false) => self.busy[place - 1].1 = end,
            (false, true) => self.busy[place].0 = begin,
            (false, false) => self.busy.insert(place, (begin, end)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_that_takes_no_time_waits_for_earlier_work() {
        let mut timeline = Timeline::default();
        assert_eq!(timeline.book(0, 10), 0);
        assert_eq!((timeline.book(0, 0), timeline.book(5, 0)), (10, 10));
        assert_eq!(timeline.book(20, 5), 20);
        assert_eq!((timeline.book(12, 0), timeline.book(20, 0)), (12, 25));
    }
}
