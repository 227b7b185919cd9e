//! No piece is copied twice, and no copy is read before its bytes are there, in every interleaving.
//!
//!     RUSTFLAGS="--cfg loom" cargo test -p forebay-tier --test loom_words --release
#![cfg(loom)]

use forebay_tier::words::{ClaimWord, EntryWord};
use forebay_tier::{ChunkEntry, SlotId};
use forebay_types::Pieces;
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, Ordering};
use loom::thread;

const AT: SlotId = SlotId { level: 1, slab: 2, slot: 3 };
const PRESENT: ChunkEntry = ChunkEntry::Present { at: AT, pieces: Pieces(0b11) };

#[derive(Default)]
struct Shared {
    claims: ClaimWord,
    entry: EntryWord,
    /// The bytes of the slot: loom fails the model when two threads touch them at once and one of
    /// them writes.
    slot: UnsafeCell<u64>,
    copies: AtomicU32,
}

impl Shared {
    fn is_present(&self) -> bool {
        self.entry.get() == PRESENT
    }

    /// Writes the bytes, then publishes them.
    fn copy(&self) {
        self.slot.with_mut(|slot| unsafe { *slot += 7 });
        self.entry.set(PRESENT);
        self.copies.fetch_add(1, Ordering::Relaxed);
    }

    /// What a process does for a chunk; `looks_again`: after the claim.
    fn fill(&self, looks_again: bool) {
        if self.is_present() {
            return;
        }
        let granted = self.claims.claim(Pieces(0b11));
        if granted == Pieces(0b11) && !(looks_again && self.is_present()) {
            self.copy();
        }
        self.claims.release(granted);
    }

    fn check(&self) {
        if self.is_present() {
            assert_eq!(self.slot.with(|slot| unsafe { *slot }), 7, "copied twice");
        }
    }
}

fn two_processes(looks_again: bool) {
    loom::model(move || {
        let shared = Arc::new(Shared::default());
        let other = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                shared.fill(looks_again);
                shared.check();
            })
        };
        shared.fill(looks_again);
        shared.check();
        other.join().unwrap();
        shared.check();
        assert_eq!(shared.copies.load(Ordering::Relaxed), 1);
        assert_eq!(shared.claims.claimed(), Pieces::NONE);
    });
}

#[test]
fn a_chunk_that_two_processes_want_is_copied_once() {
    two_processes(true);
}

/// The model finds what it is there to find.
#[test]
#[should_panic(expected = "Causality violation")]
fn a_claim_without_a_second_look_is_caught() {
    two_processes(false);
}

#[test]
fn pieces_that_overlap_are_granted_once() {
    loom::model(|| {
        let claims = Arc::new(ClaimWord::default());
        let other = {
            let claims = Arc::clone(&claims);
            thread::spawn(move || claims.claim(Pieces(0b0110)))
        };
        let own = claims.claim(Pieces(0b1100));
        let others = other.join().unwrap();
        assert_eq!((own.intersection(others), own.union(others)), (Pieces::NONE, Pieces(0b1110)));
        claims.release(own);
        assert_eq!(claims.claimed(), others);
    });
}

#[test]
fn who_sees_the_entry_finds_the_bytes() {
    loom::model(|| {
        let shared = Arc::new(Shared::default());
        let writer = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || shared.copy())
        };
        shared.check();
        writer.join().unwrap();
        assert!(shared.is_present());
    });
}

/// The model finds what it is there to find.
#[test]
#[should_panic(expected = "Causality violation")]
fn an_entry_before_the_bytes_is_caught() {
    loom::model(|| {
        let shared = Arc::new(Shared::default());
        let writer = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                shared.entry.set(PRESENT);
                shared.slot.with_mut(|slot| unsafe { *slot += 7 });
            })
        };
        shared.check();
        writer.join().unwrap();
    });
}
