//! Who may touch which staging bytes when: the words in shared memory and the rules around them.
//!
//! A *block* is a stretch of the staging ring that one reader fills. All processes of a node
//! compute the same plan, so all know which block lies where, who fills it, and after which step
//! its memory may be filled again. What they tell each other is little:
//!
//! 1. every rank publishes a *position*: all steps before it are gathered, their staging bytes are
//!    no longer needed;
//! 2. a reader that is about to fill a block first publishes up to which step the data it
//!    overwrites was needed ([`Overwritten`]), then waits until every rank's position is behind
//!    that step and until the blocks that had the memory before are filled: one that nobody needs
//!    any more may still have its reader before it;
//! 3. when the bytes are there it publishes the block's word; gatherers read the bytes only after
//!    they saw the word.
//!
//! A rank that went away (`break`, `close`) publishes a position behind everything, so nobody waits
//! for it. When it comes back it publishes its position first and reads [`Overwritten`] afterwards:
//! steps up to that value may have lost their staging bytes and are read from the files instead.
//! Both sides store, pass a sequentially consistent fence, and load; so at least one of them sees
//! the other.
//!
//! A reader cannot leave a read that storage does not answer: its thread stays in the system call,
//! and the kernel writes into its block whenever the answer comes. Hence:
//!
//! 4. a rank that closes is *leaving* ([`Presence`]) as long as one of its threads may touch shared
//!    memory, and *gone* when the last of them has returned, which that thread publishes itself, or
//!    when the process has ended. Only the readers of a rank that is gone move to the next rank, so
//!    a block never has two writers;
//! 5. a rank publishes that it is at rest, after which staging memory is used anew from its start,
//!    under the same condition; and that it is away only when no gather thread can still copy
//!    staging bytes (`buffer_pool.rs`).
//!
//! The loom tests (`tests/loom_protocol.rs`, `tests/loom_ring.rs`) check these rules.

use forebay_host::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use crate::shm::position::{AWAY, Position};
pub use crate::shm::position::{BlockSeq, SessionId};

/// Whether a rank takes part in a loader; it never goes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Presence {
    /// It takes part.
    Here,
    /// It said goodbye, and waits for nothing any more; but a thread that storage keeps may still
    /// touch shared memory.
    Leaving,
    /// None of its threads touches shared memory.
    Gone,
}

/// Rule 4: publishes where a rank is on its way out.
pub fn publish_presence(word: &AtomicU32, presence: Presence) {
    // SYNC: presence (release) pairs with the acquire in `presence`: who sees that a rank is gone
    // sees all that its threads wrote.
    word.fetch_max(presence as u32, Ordering::Release);
}

/// Whether a rank takes part.
pub fn presence(word: &AtomicU32) -> Presence {
    // SYNC: presence (acquire) pairs with the release in `publish_presence`.
    match word.load(Ordering::Acquire) {
        0 => Presence::Here,
        1 => Presence::Leaving,
        _ => Presence::Gone,
    }
}

/// What became of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filled {
    /// Its bytes are in the staging ring.
    Landed,
    /// Its bytes are resident in the page cache: copy them from a mapping of the file.
    Mapped,
    /// Reading failed after all attempts: a rank that needs a sample of it tries to read the sample
    /// once, and meets the error itself.
    Failed,
    /// It is left to the ranks that need it, though no read was tried in vain: a unit that cannot
    /// be decoded, or a mapping whose file has shrunk.
    Left,
}

const SEQUENCE_BITS: u32 = 40;

fn tag(SessionId(session): SessionId, BlockSeq(sequence): BlockSeq) -> u64 {
    debug_assert!(sequence < 1 << SEQUENCE_BITS, "block sequence {sequence}");
    ((session & 0x000f_ffff) << SEQUENCE_BITS | sequence) << 4
}

/// Publishes that block `sequence` of `pass` is there.
pub fn publish_block(word: &AtomicU64, session: SessionId, sequence: BlockSeq, filled: Filled) {
    let status = match filled {
        Filled::Landed => 1,
        Filled::Mapped => 2,
        Filled::Failed => 3,
        Filled::Left => 4,
    };
    // SYNC: block-filled (release) pairs with the acquire in `block_state`.
    word.store(tag(session, sequence) | status, Ordering::Release);
}

/// Whether block `sequence` of `pass` is there, and how. `None`: not yet.
///
/// A word of a later block in the same place also answers `None`; by rule 2 a rank that published
/// its position never asks for a block that was given up.
pub fn block_state(word: &AtomicU64, session: SessionId, sequence: BlockSeq) -> Option<Filled> {
    // SYNC: block-filled (acquire) pairs with the release in `publish_block`.
    let value = word.load(Ordering::Acquire);
    if value & !15 != tag(session, sequence) {
        return None;
    }
    match value & 15 {
        1 => Some(Filled::Landed),
        2 => Some(Filled::Mapped),
        3 => Some(Filled::Failed),
        4 => Some(Filled::Left),
        _ => None,
    }
}

/// Whether the word holds this block or a later one of the same pass, or any of a later session.
pub fn block_passed(word: &AtomicU64, session: SessionId, sequence: BlockSeq) -> bool {
    word.load(Ordering::Acquire) >= tag(session, sequence)
}

/// Publishes that all steps before `step` are gathered.
pub fn publish_position(word: &AtomicU64, session: SessionId, step: u64) {
    // SYNC: position (release) pairs with the acquire in `is_behind`.
    word.store(Position::new(session, step.min(AWAY)).word(), Ordering::Release);
    // SYNC: coming back: before this fence the position, after it `first_safe_step`.
    fence(Ordering::SeqCst);
}

/// Whether a rank's position is behind `step` of `pass`, so that it needs none of the bytes of that
/// step any more.
pub fn is_behind(word: &AtomicU64, session: SessionId, step: u64) -> bool {
    // SYNC: position (acquire) pairs with the release in `publish_position`.
    Position::from_word(word.load(Ordering::Acquire)) > Position::new(session, step)
}

/// Rule 2: tells that bytes needed up to `step` are about to be overwritten. Only grows within a
/// session.
pub fn publish_overwritten(word: &AtomicU64, session: SessionId, step: u64) {
    word.fetch_max(Position::new(session, step + 1).word(), Ordering::AcqRel);
    // SYNC: coming back: before this fence what is overwritten, after it the positions
    // (`is_behind`).
    fence(Ordering::SeqCst);
}

/// First step of `pass` whose staging bytes no reader has begun to overwrite; read after publishing
/// a position.
pub fn first_safe_step(word: &AtomicU64, session: SessionId) -> u64 {
    let overwritten = Position::from_word(word.load(Ordering::Acquire));
    match overwritten.session().cmp(&session) {
        std::cmp::Ordering::Less => 0,
        std::cmp::Ordering::Equal => overwritten.step(),
        std::cmp::Ordering::Greater => AWAY,
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_block_word_answers_for_its_own_block_only() {
        let word = AtomicU64::new(0);
        assert_eq!(block_state(&word, SessionId(1), BlockSeq(0)), None);
        publish_block(&word, SessionId(1), BlockSeq(7), Filled::Mapped);
        assert_eq!(block_state(&word, SessionId(1), BlockSeq(7)), Some(Filled::Mapped));
        assert_eq!(block_state(&word, SessionId(1), BlockSeq(8)), None);
        assert_eq!(block_state(&word, SessionId(2), BlockSeq(7)), None);
        assert!(
            block_passed(&word, SessionId(1), BlockSeq(7))
                && block_passed(&word, SessionId(1), BlockSeq(3))
                && !block_passed(&word, SessionId(2), BlockSeq(0))
        );
    }

    #[test]
    fn a_rank_that_is_away_is_behind_every_step() {
        let word = AtomicU64::new(0);
        publish_position(&word, SessionId(1), 10);
        assert!(is_behind(&word, SessionId(1), 9) && !is_behind(&word, SessionId(1), 10));
        publish_position(&word, SessionId(1), AWAY);
        assert!(is_behind(&word, SessionId(1), 1 << 40));
        assert!(!is_behind(&word, SessionId(2), 0));
    }

    #[test]
    fn a_rank_that_left_does_not_come_back() {
        let word = AtomicU32::new(0);
        assert_eq!(presence(&word), Presence::Here);
        for now in [Presence::Leaving, Presence::Gone, Presence::Leaving] {
            publish_presence(&word, now);
            assert!(presence(&word) >= now);
        }
        assert_eq!(presence(&word), Presence::Gone);
    }

    #[test]
    fn overwritten_steps_are_not_safe() {
        let word = AtomicU64::new(0);
        assert_eq!(first_safe_step(&word, SessionId(1)), 0);
        publish_overwritten(&word, SessionId(1), 4);
        publish_overwritten(&word, SessionId(1), 2);
        assert_eq!(first_safe_step(&word, SessionId(1)), 5);
        assert_eq!(first_safe_step(&word, SessionId(2)), 0);
    }
}
