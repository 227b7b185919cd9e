//! The wish ring: files that programs opened and that have no copy.
//!
//! Any number of programs write, the daemon alone reads. A writer takes a ticket. It writes into
//! the entry `ticket % entries`, overwriting what stood there. The first word of an entry is its
//! sequence: `2 * ticket + 1` while it is being written, `2 * ticket + 2` when it is whole. A
//! writer that finds its entry being written drops its wish: it never waits, and no entry has two
//! writers. The reader takes an entry only if the sequence is whole before and after.
//!
//! A writer that dies within an entry blocks that entry for good; the others go on.

use crate::bytes;
use crate::sync::atomic::{AtomicU64, Ordering, fence};

/// Words before the first entry; the first one is the next ticket.
const HEAD_WORDS: usize = 8;
const ENTRY_WORDS: usize = 64;
const DEVICE: usize = 1;
const INODE: usize = 2;
const BYTES: usize = 3;
const PATH_BYTES: usize = 4;
const PATH: usize = 5;
/// Longest path of a wish.
pub const MAX_WISH_PATH_BYTES: usize = (ENTRY_WORDS - PATH) * 8;

/// Words of a ring with so many entries.
#[must_use]
pub const fn ring_words(entries: u32) -> usize {
    HEAD_WORDS + entries as usize * ENTRY_WORDS
}

/// A file that a program opened. Anybody may have written it: the daemon checks all of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wish {
    /// `st_dev`.
    pub device: u64,
    /// `st_ino`.
    pub inode: u64,
    /// `st_size`.
    pub bytes: u64,
    path: [u8; MAX_WISH_PATH_BYTES],
    path_bytes: usize,
}

impl Wish {
    /// A wish with an absolute path, if it is short enough.
    #[must_use]
    pub fn new(device: u64, inode: u64, bytes: u64, path: &[u8]) -> Option<Self> {
        let mut wish = Self { device, inode, bytes, path: [0; MAX_WISH_PATH_BYTES], path_bytes: path.len() };
        wish.path.get_mut(..path.len())?.copy_from_slice(path);
        Some(wish)
    }

    /// The path.
    #[must_use]
    pub fn path(&self) -> &[u8] {
        &self.path[..self.path_bytes]
    }
}

/// What the reader finds at its ticket.
#[allow(clippy::large_enum_variant, reason = "without allocation there is no box")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// A whole wish; go on with the next ticket.
    Wish(Wish),
    /// No wish yet.
    Empty,
    /// A writer has the ticket and is writing, dropped its wish, or died. Look again, then skip it.
    Unfinished,
    /// Writers were faster; go on with this ticket.
    Lost(u64),
}

/// The wish ring.
#[derive(Clone, Copy)]
pub struct WishRing<'a> {
    words: &'a [AtomicU64],
    entries: u64,
}

impl<'a> WishRing<'a> {
    /// A ring in `ring_words` words, which hold nothing but zeros or what rings have written there.
    #[must_use]
    pub fn new(words: &'a [AtomicU64]) -> Self {
        Self { words, entries: (words.len().saturating_sub(HEAD_WORDS) / ENTRY_WORDS) as u64 }
    }

    fn entry(&self, ticket: u64) -> Option<&'a [AtomicU64; ENTRY_WORDS]> {
        let entry = ticket.checked_rem(self.entries)? as usize;
        self.words.get(HEAD_WORDS + entry * ENTRY_WORDS..)?.first_chunk()
    }

    /// Writes a wish; `false` if its entry is being written by somebody else.
    pub fn push(&self, device: u64, inode: u64, bytes: u64, path: &[u8]) -> bool {
        if path.len() > MAX_WISH_PATH_BYTES || self.entries == 0 {
            return false;
        }
        let ticket = self.words[0].fetch_add(1, Ordering::Relaxed);
        let Some(entry) = self.entry(ticket) else { return false };
        let (writing, whole) = sequences(ticket);
        let found = entry[0].load(Ordering::Relaxed);
        if found % 2 != 0 || found >= writing {
            return false;
        }
        if entry[0].compare_exchange(found, writing, Ordering::Acquire, Ordering::Relaxed).is_err() {
            return false;
        }
        // SYNC wish: whoever sees a word of this wish sees `writing` afterwards.
        fence(Ordering::Release);
        entry[DEVICE].store(device, Ordering::Relaxed);
        entry[INODE].store(inode, Ordering::Relaxed);
        entry[BYTES].store(bytes, Ordering::Relaxed);
        entry[PATH_BYTES].store(path.len() as u64, Ordering::Relaxed);
        bytes::store(&entry[PATH..], path);
        entry[0].store(whole, Ordering::Release);
        true
    }

    /// What stands at a ticket. The daemon begins with 0.
    #[must_use]
    pub fn read(&self, ticket: u64) -> Next {
        let Some(entry) = self.entry(ticket) else { return Next::Empty };
        let (_, whole) = sequences(ticket);
        let head = self.words[0].load(Ordering::Relaxed);
        let found = entry[0].load(Ordering::Acquire);
        if found < whole {
            return if ticket < head { Next::Unfinished } else { Next::Empty };
        }
        let oldest = head.saturating_sub(self.entries).max(ticket.wrapping_add(1));
        if found > whole {
            return Next::Lost(oldest);
        }
        let mut wish = Wish {
            device: entry[DEVICE].load(Ordering::Relaxed),
            inode: entry[INODE].load(Ordering::Relaxed),
            bytes: entry[BYTES].load(Ordering::Relaxed),
            path: [0; MAX_WISH_PATH_BYTES],
            path_bytes: entry[PATH_BYTES].load(Ordering::Relaxed) as usize,
        };
        let length = wish.path_bytes.min(MAX_WISH_PATH_BYTES);
        bytes::load(&entry[PATH..], &mut wish.path[..length]);
        // SYNC wish: pairs with the fence of the writer.
        fence(Ordering::Acquire);
        if entry[0].load(Ordering::Relaxed) != whole || wish.path_bytes != length {
            return Next::Lost(oldest);
        }
        Next::Wish(wish)
    }
}

/// The sequence of an entry while it is being written, and when it is whole.
fn sequences(ticket: u64) -> (u64, u64) {
    let writing = ticket.wrapping_mul(2).wrapping_add(1);
    (writing, writing.wrapping_add(1))
}
