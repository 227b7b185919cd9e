//! The blocks of a node that the kernel was asked to prefetch: one after another, each by one
//! reader (`readahead.rs`).

use std::sync::atomic::{AtomicU64, Ordering};

use crate::shm::position::{BlockSeq, Position, SessionId};

/// Words in shared memory; all begin as zeros.
#[repr(C)]
pub(crate) struct ReadaheadCursor {
    /// Position word of (session, sequence of the last block that a reader took + 1).
    taken: AtomicU64,
    /// The same of the last block that was announced.
    finished: AtomicU64,
}

impl ReadaheadCursor {
    /// The first block after all that are taken; [`ReadaheadCursor::take`] compares with it.
    pub(crate) fn taken(&self) -> Position {
        Position::from_word(self.taken.load(Ordering::Acquire))
    }

    fn finished(&self) -> Position {
        Position::from_word(self.finished.load(Ordering::Acquire))
    }

    /// Whether a reader is announcing: a block of the session is taken and not announced yet.
    pub(crate) fn is_busy(&self, session: SessionId) -> bool {
        let taken = self.taken();
        taken.step_in(session) > self.finished().step_in(session)
    }

    /// Whether a block was announced.
    pub(crate) fn is_announced(&self, session: SessionId, BlockSeq(sequence): BlockSeq) -> bool {
        self.finished().step_in(session) > sequence
    }

    /// Takes a block; false if another reader was faster.
    pub(crate) fn take(&self, taken: Position, session: SessionId, BlockSeq(sequence): BlockSeq) -> bool {
        let word = Position::new(session, sequence + 1).word();
        self.taken.compare_exchange(taken.word(), word, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Records that a taken block is announced.
    pub(crate) fn finish(&self, session: SessionId, BlockSeq(sequence): BlockSeq) {
        self.finished.fetch_max(Position::new(session, sequence + 1).word(), Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nothing() -> ReadaheadCursor {
        ReadaheadCursor { taken: AtomicU64::new(0), finished: AtomicU64::new(0) }
    }

    #[test]
    fn a_block_is_announced_by_one_reader_and_a_new_session_starts_over() {
        let cursor = nothing();
        assert!(!cursor.is_busy(SessionId(1)) && !cursor.is_announced(SessionId(1), BlockSeq(0)));
        let before = cursor.taken();
        assert!(
            cursor.take(before, SessionId(1), BlockSeq(0)) && !cursor.take(before, SessionId(1), BlockSeq(0))
        );
        assert!(
            cursor.is_busy(SessionId(1))
                && !cursor.is_announced(SessionId(1), BlockSeq(0))
                && !cursor.is_busy(SessionId(2))
        );
        cursor.finish(SessionId(1), BlockSeq(0));
        assert!(
            cursor.is_announced(SessionId(1), BlockSeq(0))
                && !cursor.is_announced(SessionId(1), BlockSeq(1))
                && !cursor.is_busy(SessionId(1))
        );
        assert!(
            !cursor.is_announced(SessionId(2), BlockSeq(0))
                && cursor.take(cursor.taken(), SessionId(2), BlockSeq(0))
        );
    }

    #[test]
    fn concurrent_readers_announce_one_after_another() {
        let cursor = nothing();
        let order = std::sync::Mutex::new(Vec::new());
        let announce = || {
            loop {
                let taken = cursor.taken();
                if cursor.is_busy(SessionId(1)) {
                    std::thread::yield_now();
                    continue;
                }
                let sequence = taken.step_in(SessionId(1));
                if sequence == 1000 {
                    return;
                }
                if cursor.take(taken, SessionId(1), BlockSeq(sequence)) {
                    // No other reader is here.
                    order.try_lock().unwrap().push(sequence);
                    cursor.finish(SessionId(1), BlockSeq(sequence));
                }
            }
        };
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(announce);
            }
        });
        assert_eq!(order.into_inner().unwrap(), (0..1000).collect::<Vec<_>>());
    }
}
