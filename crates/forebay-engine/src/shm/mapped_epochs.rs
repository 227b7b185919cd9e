//! From which epoch on the ranks of a node copy from the page cache, without plans and readers.
//!
//! All planners of a node must agree, as they compute the same blocks. The first planner that comes
//! to an epoch decides for all; the others follow, however late they come. Once an epoch is copied
//! from the page cache, so are all later ones of the session.

use forebay_host::sync::atomic::{AtomicU64, Ordering};

use crate::shm::position::{AWAY, Position, SessionId};

/// A position word of the session and of (epoch, whether it is mapped): epochs before it are
/// planned, it and all later ones are mapped, or are not decided yet. Zeros: nothing is decided.
#[repr(transparent)]
pub struct MappedEpochs(AtomicU64);

impl MappedEpochs {
    /// Nothing is decided.
    #[must_use]
    pub fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Whether an epoch is mapped; `is_resident` is asked where no planner has decided. A planner
    /// asks for its epochs in order.
    pub fn decide(&self, session: SessionId, epoch: u64, is_resident: impl FnOnce() -> bool) -> bool {
        let mut word = Position::from_word(self.0.load(Ordering::Acquire));
        let mut answer = None;
        let mut ask = Some(is_resident);
        loop {
            if word.session() > session {
                return false; // the planner is of a session that has ended
            }
            let (first, mapped) = split(word.step_in(session));
            if mapped || epoch < first {
                return mapped && epoch >= first;
            }
            let resident = *answer.get_or_insert_with(|| ask.take().is_some_and(|ask| ask()));
            let value = if resident { epoch << 1 | 1 } else { (epoch + 1) << 1 };
            if value > AWAY {
                return false; // the word has no room: no planner decides, so all of them plan
            }
            let decided = Position::new(session, value);
            // SYNC: one planner decides; the word alone carries the decision.
            match self.0.compare_exchange(word.word(), decided.word(), Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return resident,
                Err(found) => word = Position::from_word(found),
            }
        }
    }

    /// The first epoch that is mapped, in the session that decided last.
    pub fn first(&self) -> Option<u64> {
        let (first, mapped) = split(Position::from_word(self.0.load(Ordering::Acquire)).step());
        mapped.then_some(first)
    }
}

impl Default for MappedEpochs {
    fn default() -> Self {
        Self::new()
    }
}

fn split(value: u64) -> (u64, bool) {
    (value >> 1, value & 1 == 1)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const SESSION: SessionId = SessionId(3);

    #[test]
    fn the_first_planner_that_comes_to_an_epoch_decides_for_all() {
        let word = MappedEpochs::new();
        let not_asked = || panic!("it is decided");
        assert!(!word.decide(SESSION, 5, || false));
        assert!(!word.decide(SESSION, 5, not_asked));
        assert!(!word.decide(SESSION, 6, || false));
        assert_eq!(word.first(), None);
        assert!(word.decide(SESSION, 7, || true));
        assert_eq!(word.first(), Some(7));
        for (epoch, mapped) in [(5, false), (6, false), (7, true), (8, true), (100, true)] {
            assert_eq!(word.decide(SESSION, epoch, not_asked), mapped, "epoch {epoch}");
        }
    }

    #[test]
    fn a_session_decides_anew_and_an_ended_one_not_at_all() {
        let word = MappedEpochs::new();
        assert!(word.decide(SESSION, 0, || true));
        assert!(!word.decide(SESSION.next(), 0, || false));
        assert!(!word.decide(SESSION, 1, || panic!("the session has ended")));
        assert_eq!(word.first(), None);
        assert!(word.decide(SESSION.next(), 1, || true));
        assert_eq!(word.first(), Some(1));
    }

    #[test]
    fn an_epoch_for_which_the_word_has_no_room_is_planned() {
        let word = MappedEpochs::new();
        assert!(!word.decide(SESSION, AWAY, || true));
        assert!(!word.decide(SESSION, AWAY / 2, || false));
        assert_eq!(word.first(), None);
    }

    #[test]
    fn planners_that_come_at_once_agree() {
        for round in 0..200 {
            let word = MappedEpochs::new();
            let answers: Vec<Vec<bool>> = std::thread::scope(|scope| {
                let planner = |number: u64| {
                    let word = &word;
                    move || (0..8).map(|epoch| word.decide(SESSION, epoch, || epoch + number > 6)).collect()
                };
                let running: Vec<_> = (0..3).map(|number| scope.spawn(planner(number + round % 3))).collect();
                running.into_iter().map(|thread| thread.join().unwrap()).collect()
            });
            assert!(answers.iter().all(|one| *one == answers[0]), "{answers:?}");
            assert!(answers[0].is_sorted(), "mapped from one epoch on: {answers:?}");
        }
    }
}
