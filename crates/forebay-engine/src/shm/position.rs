//! Positions of a loader: (session, step) in one word.
//!
//! A *session* is a run of steps that all ranks of a node take together without a jump; it spans
//! epochs. A jump (to another epoch than the next one, or to a restored state) begins a new
//! session. Steps are absolute: epoch · steps per epoch + step. One 64-bit word holds both, so a
//! position in shared memory only grows and is read atomically.

/// Bits of the step; the session has the rest (2^20 jumps of 2^44 steps).
const STEP_BITS: u32 = 44;

/// The largest step, which means "detached: needs nothing more of this session".
pub(crate) const AWAY: u64 = (1 << STEP_BITS) - 1;

/// Number of a session, counted from 1 since the loader was created. Comparisons of words in shared
/// memory begin with it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(pub u64);

impl SessionId {
    /// The session that begins after this one.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

/// Number of a block, counted from 0 in its session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockSeq(pub u64);

/// A session and a step in it, in the order of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Position(u64);

impl Position {
    pub(crate) fn new(session: SessionId, step: u64) -> Self {
        let SessionId(session) = session;
        debug_assert!(session < 1 << (64 - STEP_BITS) && step <= AWAY, "session {session}, step {step}");
        Self(session << STEP_BITS | step)
    }

    pub(crate) fn session(self) -> SessionId {
        SessionId(self.0 >> STEP_BITS)
    }

    pub(crate) fn step(self) -> u64 {
        self.0 & AWAY
    }

    /// The step, or 0 if the position belongs to another session.
    pub(crate) fn step_in(self, session: SessionId) -> u64 {
        if self.session() == session { self.step() } else { 0 }
    }

    pub(crate) fn word(self) -> u64 {
        self.0
    }

    pub(crate) fn from_word(word: u64) -> Self {
        Self(word)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_later_session_is_after_all_steps_of_an_earlier_one() {
        assert!(Position::new(SessionId(2), 0) > Position::new(SessionId(1), AWAY));
        assert!(Position::new(SessionId(1), 8) > Position::new(SessionId(1), 7));
        let position = Position::from_word(Position::new(SessionId(3), 99).word());
        assert_eq!((position.session(), position.step()), (SessionId(3), 99));
        assert_eq!((position.step_in(SessionId(3)), position.step_in(SessionId(2))), (99, 0));
    }
}
