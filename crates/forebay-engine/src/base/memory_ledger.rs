//! The loaders of this process that lead a node: what of the job's memory they hold.
//!
//! `memory=` is per job and node and shared by its loaders. The leader of a node is the same
//! process for all loaders of a job, so a table in that process is enough, and what it decides goes
//! to all ranks with the other settings. A loader of one rank alone is a job by itself (two of them
//! must never meet); those of one process share all the same, under one owner.
//!
//! A loader *reserves* its region when it is made: memory that nobody else gets while it lives, so
//! that all loaders which reserved can be iterated at once. Memory that was not touched costs
//! nothing, so a process that is alone may make any number of further loaders with the default
//! memory, which reserve nothing: they are made *on loan*. Then what is *held* counts, which is the
//! region of each loader that was iterated:
//!
//! 1. a loader holds its region from the beginning of its first iteration on ([`Share::hold`]);
//! 2. one for which too little is left makes others give theirs up, the one first that has been
//!    idle for longest. A loader is idle between its epochs and where an iteration was broken off;
//!    it loses what it has read ahead, and holds nothing until it is iterated again
//!    (`idle_memory.rs`);
//! 3. where all others are in the middle of an epoch, it is an error that names them.
//!
//! So shared memory stays within the budget, and a process whose loaders all reserved, as all did
//! that fit, never notices. Ranks that share a loader do not lend: who is idle would have to be
//! agreed on by all of them. Their loaders keep what they reserved until they are closed.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

static BOOKS: Mutex<BTreeMap<String, Book>> = Mutex::new(BTreeMap::new());

/// The loaders and kept data of an owner, by number.
#[derive(Default)]
struct Book {
    entries: BTreeMap<u64, Entry>,
    /// Counts entries and holds.
    counted: u64,
}

struct Entry {
    name: String,
    /// The whole region \[bytes\].
    bytes: u64,
    reserved: bool,
    /// What counts as held now \[bytes\].
    held_bytes: u64,
    /// When it was last made to hold, in order.
    used: u64,
    /// The budget that it was made with \[bytes\].
    budget_bytes: u64,
    idler: Option<Arc<dyn Idle>>,
}

/// A loader that can be asked to give its memory up.
pub trait Idle: Send + Sync {
    /// Gives up all memory that nobody uses, unless the loader is in the middle of an epoch;
    /// returns what is still in use \[bytes\].
    fn give_up(&self) -> Option<u64>;
}

/// Memory of a budget, until this is dropped.
#[derive(Debug)]
pub struct Share {
    owner: String,
    number: u64,
}

/// Why a loader gets no memory now.
#[derive(Debug, PartialEq, Eq)]
pub struct Busy {
    /// Loaders that hold memory and are not idle.
    pub names: Vec<String>,
    /// What they hold \[bytes\].
    pub held_bytes: u64,
    /// The budget \[bytes\].
    pub budget_bytes: u64,
}

impl Book {
    fn add(&mut self, entry: Entry) -> u64 {
        self.counted += 1;
        self.entries.insert(self.counted, entry);
        self.counted
    }

    /// The largest of the budgets: a loader that was made with less could not have that from the
    /// others.
    fn budget_bytes(&self) -> u64 {
        self.entries.values().map(|entry| entry.budget_bytes).max().unwrap_or(0)
    }

    /// What all but one hold \[bytes\].
    fn held_beside(&self, number: u64) -> u64 {
        self.entries.iter().filter(|(other, _)| **other != number).map(|(_, entry)| entry.held_bytes).sum()
    }

    /// Makes an entry hold its region if that fits.
    fn hold(&mut self, number: u64) -> bool {
        let fits = |book: &Self, bytes| book.held_beside(number).saturating_add(bytes) <= book.budget_bytes();
        let Some(bytes) = self.entries.get(&number).map(|entry| entry.bytes) else { return true };
        let holds = self.entries[&number].held_bytes == bytes;
        if !holds && !fits(self, bytes) {
            return false;
        }
        self.counted += 1;
        let used = self.counted;
        if let Some(entry) = self.entries.get_mut(&number) {
            (entry.held_bytes, entry.used) = (bytes, used);
        }
        true
    }

    /// Others that could give memory up, the one first that was used first.
    fn idlers(&self, number: u64) -> Vec<(u64, Arc<dyn Idle>)> {
        let mut found: Vec<_> = self
            .entries
            .iter()
            .filter(|(other, entry)| **other != number && entry.held_bytes > 0)
            .filter_map(|(other, entry)| Some((entry.used, *other, Arc::clone(entry.idler.as_ref()?))))
            .collect();
        found.sort_by_key(|(used, _, _)| *used);
        found.into_iter().map(|(_, other, idler)| (other, idler)).collect()
    }

    fn busy(&self, number: u64) -> Busy {
        let others =
            || self.entries.iter().filter(|(other, entry)| **other != number && entry.held_bytes > 0);
        Busy {
            names: others().map(|(_, entry)| entry.name.clone()).collect(),
            held_bytes: others().map(|(_, entry)| entry.held_bytes).sum(),
            budget_bytes: self.budget_bytes(),
        }
    }
}

impl Share {
    /// Whose budget it is a share of ([`crate::Options::budget_owner`]).
    pub fn owner(&self) -> &str {
        &self.owner
    }

    /// From now on the loader holds nothing until [`Share::hold`], and can be asked to give that up
    /// again.
    pub fn is_idle_at_first(&self, idler: Arc<dyn Idle>) {
        self.with(|book| {
            if let Some(entry) = book.entries.get_mut(&self.number) {
                (entry.held_bytes, entry.idler) = (0, Some(idler));
            }
        });
    }

    /// Holds all of the loader's memory, for which others that are idle give theirs up where it has
    /// to be.
    ///
    /// # Errors
    /// The others are in use.
    pub fn hold(&self) -> Result<(), Busy> {
        if self.with(|book| book.hold(self.number)) {
            return Ok(());
        }
        for (other, idler) in self.with(|book| book.idlers(self.number)) {
            // Without the lock, as it ends threads.
            let Some(left) = idler.give_up() else { continue };
            let fits = self.with(|book| {
                if let Some(entry) = book.entries.get_mut(&other) {
                    entry.held_bytes = left;
                }
                book.hold(self.number)
            });
            if fits {
                return Ok(());
            }
        }
        self.with(|book| if book.hold(self.number) { Ok(()) } else { Err(book.busy(self.number)) })
    }

    fn with<T>(&self, act: impl FnOnce(&mut Book) -> T) -> T {
        act(books().entry(self.owner.clone()).or_default())
    }
}

/// Bytes that loaders and kept data of this owner reserved, or hold without, as far as this process
/// leads them.
pub fn taken_bytes(owner: &str) -> u64 {
    sum(owner, |entry| if entry.reserved { entry.bytes } else { 0 })
}

/// Bytes of this owner that no loader gives up.
pub fn fixed_bytes(owner: &str) -> u64 {
    sum(owner, |entry| if entry.idler.is_none() { entry.held_bytes } else { 0 })
}

fn sum(owner: &str, of: impl Fn(&Entry) -> u64) -> u64 {
    books().get(owner).map_or(0, |book| book.entries.values().map(of).sum())
}

/// Takes a share of a budget: reserves it, or takes it on loan. Until [`Share::is_idle_at_first`]
/// all of it counts as held.
pub fn take(owner: &str, name: &str, bytes: u64, budget_bytes: u64, reserved: bool) -> Share {
    let entry = Entry {
        name: name.to_owned(),
        bytes,
        reserved,
        held_bytes: bytes,
        used: 0,
        budget_bytes,
        idler: None,
    };
    let number = books().entry(owner.to_owned()).or_default().add(entry);
    Share { owner: owner.to_owned(), number }
}

fn books() -> std::sync::MutexGuard<'static, BTreeMap<String, Book>> {
    BOOKS.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut books = books();
        let Some(book) = books.get_mut(&self.owner) else { return };
        let entry = book.entries.remove(&self.number);
        if book.entries.is_empty() {
            books.remove(&self.owner);
        }
        drop(books);
        // Without the lock: it may be the last to know a loader.
        drop(entry);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    /// A loader that gives all but so many bytes up, or nothing (`u64::MAX`), and counts how often
    /// it was asked.
    struct Loader {
        left: AtomicU64,
        asked: AtomicU64,
    }

    impl Loader {
        fn new(left: u64) -> Arc<Self> {
            Arc::new(Self { left: left.into(), asked: 0.into() })
        }

        fn asked(&self) -> u64 {
            self.asked.swap(0, Ordering::Relaxed)
        }
    }

    impl Idle for Loader {
        fn give_up(&self) -> Option<u64> {
            self.asked.fetch_add(1, Ordering::Relaxed);
            Some(self.left.load(Ordering::Relaxed)).filter(|left| *left < u64::MAX)
        }
    }

    const BUSY: u64 = u64::MAX;

    fn share(owner: &str, name: &str, bytes: u64, reserved: bool, left: u64) -> (Share, Arc<Loader>) {
        let (share, loader) = (take(owner, name, bytes, 100, reserved), Loader::new(left));
        share.is_idle_at_first(Arc::clone(&loader) as Arc<dyn Idle>);
        (share, loader)
    }

    #[test]
    fn shares_of_a_job_add_up_and_come_back() {
        let owner = "registry-test";
        let (a, b) = (take(owner, "a", 5, 100, true), take(owner, "b", 7, 100, true));
        let lent = take(owner, "c", 9, 100, false);
        assert_eq!((taken_bytes(owner), fixed_bytes(owner)), (12, 21));
        drop((a, lent));
        assert_eq!(taken_bytes(owner), 7);
        drop(b);
        assert_eq!((taken_bytes(owner), fixed_bytes(owner)), (0, 0));
        assert!(!books().contains_key(owner));
    }

    #[test]
    fn loaders_that_reserved_are_asked_for_nothing() {
        let (a, one) = share("registry-reserved", "a", 60, true, 0);
        let (b, other) = share("registry-reserved", "b", 40, true, 0);
        for share in [&a, &b, &a, &b] {
            share.hold().unwrap();
        }
        assert_eq!((one.asked(), other.asked()), (0, 0));
    }

    #[test]
    fn the_loader_that_was_used_first_gives_its_memory_up_first() {
        let owner = "registry-lent";
        let (a, one) = share(owner, "a", 60, true, 0);
        let (b, other) = share(owner, "b", 40, true, 0);
        let (c, lent) = share(owner, "c", 30, false, 0);
        // Nobody else was iterated, so there is room.
        c.hold().unwrap();
        b.hold().unwrap();
        // 60 beside 30 and 40.
        a.hold().unwrap();
        assert_eq!((one.asked(), other.asked(), lent.asked()), (0, 0, 1));
        c.hold().unwrap();
        assert_eq!((one.asked(), other.asked(), lent.asked()), (0, 1, 0));
        assert_eq!(a.with(|book| book.held_beside(0)), 90);
    }

    #[test]
    fn a_loader_gets_nothing_from_loaders_that_are_iterated_and_is_told_which() {
        let owner = "registry-busy";
        let (a, one) = share(owner, "a", 60, true, BUSY);
        let (b, other) = share(owner, "b", 40, true, 20);
        let (c, _) = share(owner, "c", 50, false, 0);
        a.hold().unwrap();
        b.hold().unwrap();
        // The user still has 20 of b's bytes in his hands.
        let busy = c.hold().unwrap_err();
        assert_eq!((busy.names.join(" "), busy.held_bytes, busy.budget_bytes), ("a b".into(), 80, 100));
        assert_eq!((one.asked(), other.asked()), (1, 1));
        one.left.store(0, Ordering::Relaxed);
        c.hold().unwrap();
        drop(c);
        a.hold().unwrap();
    }

    #[test]
    fn kept_data_and_loaders_of_several_ranks_give_nothing_up() {
        let owner = "registry-fixed";
        let kept = take(owner, "kept data", 70, 100, true);
        let (lent, _) = share(owner, "a", 50, false, 0);
        assert_eq!(fixed_bytes(owner), 70);
        assert_eq!(lent.hold().unwrap_err().held_bytes, 70);
        drop(kept);
        lent.hold().unwrap();
    }
}
