//! When somebody who does one thing at a time is busy.
//!
//! Work is placed at the first moment from which on there is room for all of it. Who always comes at the present time is served in
//! the order of coming. Work that may only begin later (its sender has too many requests in flight) leaves a gap, and others may use it.
use std::collections::VecDeque;

use crate::model::ModelTime;

/// What lies ahead of one server, one link, one metadata server.
#[derive(Clone, Debug, Default)]
pub(crate) struct Timeline {
    /// Stretches of work `[begin, end)`, ascending, neither touching nor empty.
    busy: VecDeque<(ModelTime, ModelTime)>,
}

impl Timeline {
    /// Forgets what is over: nobody will ask for anything before `now` again.
    pub(crate) fn forget(&mut self, now: ModelTime) {
        while self.busy.front().is_some_and(|&(_, end)| end <= now) {
            self.busy.pop_front();
        }
    }

    /// Forgets everything.
    pub(crate) fn clear(&mut self) {
        self.busy.clear();
    }

    /// Books `duration` at or after `earliest`; answers when it begins.
    pub(crate) fn book(&mut self, earliest: ModelTime, duration: ModelTime) -> ModelTime {
        let mut begin = earliest;
        let mut place = self.busy.partition_point(|&(_, end)| end <= begin);
        while let Some(&(next, end)) = self.busy.get(place) {
            // What takes no time waits, too, for what came before it and begins at the same moment.
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

    /// Inserts before `place`, growing together with neighbours that it touches.
    fn insert(&mut self, place: usize, begin: ModelTime, end: ModelTime) {
        let joins_last = place > 0 && self.busy[place - 1].1 == begin;
        let joins_next = self.busy.get(place).is_some_and(|&(next, _)| next == end);
        match (joins_last, joins_next) {
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
    fn what_takes_no_time_waits_for_what_came_before_it() {
        let mut timeline = Timeline::default();
        assert_eq!(timeline.book(0, 10), 0);
        assert_eq!((timeline.book(0, 0), timeline.book(5, 0)), (10, 10));
        assert_eq!(timeline.book(20, 5), 20);
        assert_eq!((timeline.book(12, 0), timeline.book(20, 0)), (12, 25));
    }
}
