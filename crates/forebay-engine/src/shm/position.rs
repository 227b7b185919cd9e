//! Positions in a run: (pass, step) in one word.
//!
//! A *pass* is a stretch of steps that all ranks of a node walk together without a jump; it flows
//! from one epoch into the next. A jump (another epoch than the next one, a restored state) begins
//! a new session. Steps are absolute: epoch · steps per epoch + step. One 64-bit word holds both,
//! so that a position in shared memory only ever grows and is read whole.

/// Bits of the step; the session has the rest (2^20 jumps of 2^44 steps).
const STEP_BITS: u32 = 44;

/// The largest step, which stands for "needs nothing more of this session".
pub(crate) const AWAY: u64 = (1 << STEP_BITS) - 1;

/// Number of a session, counted from 1 since the loader was made; the words of shared memory
/// compare it first.
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

/// A place in a run, ordered as the run goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Position(u64);

impl Position {
    pub(crate) fn new(session: SessionId, step: u64) -> Self {
        let SessionId(session) = session;
        debug_assert!(session < 1 << (64 - STEP_BITS) && step <= AWAY, "pass {session}, step {step}");
        Self(session << STEP_BITS | step)
    }

    pub(crate) fn session(self) -> SessionId {
        SessionId(self.0 >> STEP_BITS)
    }

    pub(crate) fn step(self) -> u64 {
        self.0 & AWAY
    }

    /// The step in a session, 0 where the position is of another one.
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
    fn a_later_pass_is_later_than_any_step_of_an_earlier_one() {
        assert!(Position::new(SessionId(2), 0) > Position::new(SessionId(1), AWAY));
        assert!(Position::new(SessionId(1), 8) > Position::new(SessionId(1), 7));
        let position = Position::from_word(Position::new(SessionId(3), 99).word());
        assert_eq!((position.session(), position.step()), (SessionId(3), 99));
        assert_eq!((position.step_in(SessionId(3)), position.step_in(SessionId(2))), (99, 0));
    }
}
