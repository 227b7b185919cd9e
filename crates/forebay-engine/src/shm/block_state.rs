//! The protocol for the staging ring: which thread may read or write which bytes, and when.
//!
//! A *block* is a part of the staging ring that one reader fills. All processes of a node compute
//! the same plan: where each block lies, which reader fills it, and after which step its memory may
//! be reused. They publish only a few words:
//!
//! 1. Each rank publishes a *position*: it has gathered all steps before it, and no longer needs
//!    their staging bytes.
//! 2. Before a reader fills a block, it publishes the last step that needed the overwritten data
//!    ([`publish_overwritten`]). Then it waits until each rank's position is past that step, and
//!    until the earlier blocks in the same memory are filled: if all ranks that needed such a block
//!    detached, its reader may still write there.
//! 3. When the bytes are complete, the reader publishes the block's word. Gather threads read the
//!    bytes only after they saw the word.
//!
//! A rank that detaches (`break`, `close`) publishes a position after all steps, so no reader waits
//! for it. When it reattaches it first publishes its position, then reads [`first_safe_step`]:
//! steps before that may have lost their staging bytes, and are read from the files instead. Both
//! sides store, pass a sequentially consistent fence, and load, so at least one of them sees the
//! other.
//!
//! A reader cannot cancel a read that storage does not answer: its thread stays in the system call,
//! and the kernel writes into its block at any later time. Therefore:
//!
//! 4. A rank that closes is *leaving* ([`Presence`]) while one of its threads may touch shared
//!    memory. It is *gone* when its last thread has returned (that thread publishes this), or when
//!    its process has ended. Only readers of a rank that is gone move to the next rank, so a block
//!    never has two writers.
//! 5. Under the same condition a rank publishes that it is at rest, after which staging memory is
//!    reused from its start. A rank publishes that it is detached only when no gather thread can
//!    still copy staging bytes (`buffer_pool.rs`).
//!
//! The loom tests (`tests/loom_protocol.rs`, `tests/loom_ring.rs`) check these rules.

use forebay_host::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use crate::shm::position::{AWAY, Position};
pub use crate::shm::position::{BlockSeq, SessionId};

/// Whether a rank takes part in a loader; it only ever advances.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Presence {
    /// It takes part.
    Here,
    /// It has shut down and waits for nothing, but a thread inside a read may still touch shared
    /// memory.
    Leaving,
    /// None of its threads touches shared memory.
    Gone,
}

/// Rule 4: publishes how far a rank has shut down.
pub fn publish_presence(word: &AtomicU32, presence: Presence) {
    // SYNC: presence (release) pairs with the acquire in `presence`: a thread that sees that a rank
    // is gone also sees all that its threads wrote.
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

/// Result of reading a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filled {
    /// Its bytes are in the staging ring.
    Staged,
    /// Its bytes are resident in the page cache: copy them from a mapping of the file.
    Mapped,
    /// Reading failed after all attempts: a rank that needs a sample of the block reads that sample
    /// once, and raises the error itself.
    Failed,
    /// The ranks read it themselves, although no read failed: it has a unit that cannot be decoded,
    /// or its mapped file has shrunk.
    Left,
}

const SEQUENCE_BITS: u32 = 40;

fn tag(SessionId(session): SessionId, BlockSeq(sequence): BlockSeq) -> u64 {
    debug_assert!(sequence < 1 << SEQUENCE_BITS, "block sequence {sequence}");
    ((session & 0x000f_ffff) << SEQUENCE_BITS | sequence) << 4
}

/// Publishes that a block of a session is complete.
pub fn publish_block(word: &AtomicU64, session: SessionId, sequence: BlockSeq, filled: Filled) {
    let status = match filled {
        Filled::Staged => 1,
        Filled::Mapped => 2,
        Filled::Failed => 3,
        Filled::Left => 4,
    };
    // SYNC: block-filled (release) pairs with the acquire in `block_state`.
    word.store(tag(session, sequence) | status, Ordering::Release);
}

/// The state of a block of a session; `None`: not complete yet.
///
/// Also `None` if the word belongs to a later block. By rule 2 a rank that published its position
/// never asks for a block whose memory was reused.
pub fn block_state(word: &AtomicU64, session: SessionId, sequence: BlockSeq) -> Option<Filled> {
    // SYNC: block-filled (acquire) pairs with the release in `publish_block`.
    let value = word.load(Ordering::Acquire);
    if value & !15 != tag(session, sequence) {
        return None;
    }
    match value & 15 {
        1 => Some(Filled::Staged),
        2 => Some(Filled::Mapped),
        3 => Some(Filled::Failed),
        4 => Some(Filled::Left),
        _ => None,
    }
}

/// Whether the word holds this block or a later one of the same session, or any of a later session.
pub fn block_passed(word: &AtomicU64, session: SessionId, sequence: BlockSeq) -> bool {
    word.load(Ordering::Acquire) >= tag(session, sequence)
}

/// Publishes that all steps before `step` are gathered.
pub fn publish_position(word: &AtomicU64, session: SessionId, step: u64) {
    // SYNC: position (release) pairs with the acquire in `is_behind`.
    word.store(Position::new(session, step.min(AWAY)).word(), Ordering::Release);
    // SYNC: reattach: before this fence the position, after it `first_safe_step`.
    fence(Ordering::SeqCst);
}

/// Whether a rank's position is past `step` of a session, so that it no longer needs the bytes of
/// that step.
pub fn is_behind(word: &AtomicU64, session: SessionId, step: u64) -> bool {
    // SYNC: position (acquire) pairs with the release in `publish_position`.
    Position::from_word(word.load(Ordering::Acquire)) > Position::new(session, step)
}

/// Rule 2: publishes that bytes needed up to `step` are about to be overwritten. The value only
/// grows within a session.
pub fn publish_overwritten(word: &AtomicU64, session: SessionId, step: u64) {
    word.fetch_max(Position::new(session, step + 1).word(), Ordering::AcqRel);
    // SYNC: reattach: before this fence what is overwritten, after it the positions (`is_behind`).
    fence(Ordering::SeqCst);
}

/// First step of a session whose staging bytes no reader has begun to overwrite; read after
/// publishing a position.
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
    fn a_block_word_is_valid_for_its_own_block_only() {
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
    fn a_detached_rank_is_past_every_step() {
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
