//! The memory ledger: how much of the job's memory each loader holds that this process leads.
//!
//! The loaders of a job share `node_memory=` per node. The leader of a node is the same process
//! for all loaders of a job, so a table in that process is sufficient; its decisions reach all
//! ranks with the other settings. A loader of a single rank is a job by itself, but all such
//! loaders of a process share one budget, under one owner.
//!
//! A loader *reserves* its region when it is created: no other loader gets this memory, so all
//! loaders with a reservation can be iterated at the same time. Untouched memory costs nothing. So
//! a single process may create any number of further loaders with the default memory, which
//! reserve nothing: they are *on loan*. Then the memory that is *held* counts, the region of each
//! loader that was iterated:
//!
//! 1. A loader holds its region from its first iteration on ([`Loan::hold`]).
//! 2. If too little is left, idle loaders release theirs, the one idle for longest first. A loader
//!    is idle between its epochs, and after an iteration that was left. It loses the data that it
//!    has read ahead, and holds nothing until its next iteration (`idle_memory.rs`).
//! 3. If all others are in the middle of an epoch, `hold` fails with an error that names them.
//!
//! So shared memory stays within the budget, and loaders with a reservation never release any.
//! Loaders of several ranks do not lend, because all ranks would have to agree on which is idle;
//! they keep their reservation until they are closed.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

static BOOKS: Mutex<BTreeMap<String, Book>> = Mutex::new(BTreeMap::new());

/// The loaders and retained values of an owner, by number.
#[derive(Default)]
struct Book {
    entries: BTreeMap<u64, LedgerEntry>,
    /// Counts entries and holds.
    counted: u64,
}

struct LedgerEntry {
    name: String,
    /// The whole region \[bytes\].
    bytes: u64,
    reserved: bool,
    /// Memory that counts as held \[bytes\].
    held_bytes: u64,
    /// Order of the last [`Loan::hold`].
    used: u64,
    /// The budget that it was created with \[bytes\].
    budget_bytes: u64,
    idler: Option<Arc<dyn Idle>>,
}

/// A loader that can release its memory.
pub trait Idle: Send + Sync {
    /// Releases all memory that is not in use, unless the loader is in the middle of an epoch;
    /// returns how much is still in use \[bytes\].
    fn give_up(&self) -> Option<u64>;
}

/// Memory of a budget, until this is dropped.
#[derive(Debug)]
pub struct Loan {
    owner: String,
    number: u64,
}

/// Why a loader gets no memory now.
#[derive(Debug, PartialEq, Eq)]
pub struct Busy {
    /// Loaders that hold memory and are not idle.
    pub names: Vec<String>,
    /// The memory that they hold \[bytes\].
    pub held_bytes: u64,
    /// The budget \[bytes\].
    pub budget_bytes: u64,
}

impl Book {
    fn add(&mut self, entry: LedgerEntry) -> u64 {
        self.counted += 1;
        self.entries.insert(self.counted, entry);
        self.counted
    }

    /// The largest of the budgets: otherwise a loader that was created with a smaller one could not
    /// get its memory from the others.
    fn budget_bytes(&self) -> u64 {
        self.entries.values().map(|entry| entry.budget_bytes).max().unwrap_or(0)
    }

    /// Memory that all but one entry hold \[bytes\].
    fn held_by_others(&self, number: u64) -> u64 {
        self.entries.iter().filter(|(other, _)| **other != number).map(|(_, entry)| entry.held_bytes).sum()
    }

    /// Makes an entry hold its region if that fits.
    fn hold(&mut self, number: u64) -> bool {
        let fits =
            |book: &Self, bytes| book.held_by_others(number).saturating_add(bytes) <= book.budget_bytes();
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

    /// Other loaders that could release memory, the least recently used first.
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

impl Loan {
    /// Owner of the budget ([`crate::Options::budget_owner`]).
    pub fn owner(&self) -> &str {
        &self.owner
    }

    /// From now on the loader holds nothing until [`Loan::hold`], and `idler` can release that
    /// again.
    pub fn is_idle_at_first(&self, idler: Arc<dyn Idle>) {
        self.with(|book| {
            if let Some(entry) = book.entries.get_mut(&self.number) {
                (entry.held_bytes, entry.idler) = (0, Some(idler));
            }
        });
    }

    /// Holds all of the loader's memory; if necessary, idle loaders release theirs.
    ///
    /// # Errors
    /// The other loaders are in use.
    pub fn hold(&self) -> Result<(), Busy> {
        if self.with(|book| book.hold(self.number)) {
            return Ok(());
        }
        for (other, idler) in self.with(|book| book.idlers(self.number)) {
            // Without the lock, because it ends threads.
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

/// Bytes that loaders and retained values of this owner reserved, as far as this process leads
/// them.
pub fn taken_bytes(owner: &str) -> u64 {
    sum(owner, |entry| if entry.reserved { entry.bytes } else { 0 })
}

/// Bytes of this owner that no loader releases.
pub fn fixed_bytes(owner: &str) -> u64 {
    sum(owner, |entry| if entry.idler.is_none() { entry.held_bytes } else { 0 })
}

fn sum(owner: &str, of: impl Fn(&LedgerEntry) -> u64) -> u64 {
    books().get(owner).map_or(0, |book| book.entries.values().map(of).sum())
}

/// Takes memory of a budget; other loaders do not get what is reserved. Until
/// [`Loan::is_idle_at_first`] all of it counts as held.
pub fn take(owner: &str, name: &str, bytes: u64, budget_bytes: u64, reserved: bool) -> Loan {
    let entry = LedgerEntry {
        name: name.to_owned(),
        bytes,
        reserved,
        held_bytes: bytes,
        used: 0,
        budget_bytes,
        idler: None,
    };
    let number = books().entry(owner.to_owned()).or_default().add(entry);
    Loan { owner: owner.to_owned(), number }
}

fn books() -> std::sync::MutexGuard<'static, BTreeMap<String, Book>> {
    BOOKS.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

impl Drop for Loan {
    fn drop(&mut self) {
        let mut books = books();
        let Some(book) = books.get_mut(&self.owner) else { return };
        let entry = book.entries.remove(&self.number);
        if book.entries.is_empty() {
            books.remove(&self.owner);
        }
        drop(books);
        // Without the lock: this may drop the last reference to a loader.
        drop(entry);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    /// A loader that releases all but `left` bytes, or nothing (`u64::MAX`), and counts the
    /// requests.
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

    fn loan(owner: &str, name: &str, bytes: u64, reserved: bool, left: u64) -> (Loan, Arc<Loader>) {
        let (loan, loader) = (take(owner, name, bytes, 100, reserved), Loader::new(left));
        loan.is_idle_at_first(Arc::clone(&loader) as Arc<dyn Idle>);
        (loan, loader)
    }

    #[test]
    fn loans_of_a_job_add_up_and_are_returned() {
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
    fn loaders_with_a_reservation_release_nothing() {
        let (a, one) = loan("registry-reserved", "a", 60, true, 0);
        let (b, other) = loan("registry-reserved", "b", 40, true, 0);
        for share in [&a, &b, &a, &b] {
            share.hold().unwrap();
        }
        assert_eq!((one.asked(), other.asked()), (0, 0));
    }

    #[test]
    fn the_least_recently_used_loader_releases_its_memory_first() {
        let owner = "registry-lent";
        let (a, one) = loan(owner, "a", 60, true, 0);
        let (b, other) = loan(owner, "b", 40, true, 0);
        let (c, lent) = loan(owner, "c", 30, false, 0);
        // No other loader was iterated, so the memory suffices.
        c.hold().unwrap();
        b.hold().unwrap();
        // 60 in addition to 30 and 40.
        a.hold().unwrap();
        assert_eq!((one.asked(), other.asked(), lent.asked()), (0, 0, 1));
        c.hold().unwrap();
        assert_eq!((one.asked(), other.asked(), lent.asked()), (0, 1, 0));
        assert_eq!(a.with(|book| book.held_by_others(0)), 90);
    }

    #[test]
    fn a_loader_gets_nothing_from_loaders_that_are_iterated_and_the_error_names_them() {
        let owner = "registry-busy";
        let (a, one) = loan(owner, "a", 60, true, BUSY);
        let (b, other) = loan(owner, "b", 40, true, 20);
        let (c, _) = loan(owner, "c", 50, false, 0);
        a.hold().unwrap();
        b.hold().unwrap();
        // The user still holds 20 of b's bytes.
        let busy = c.hold().unwrap_err();
        assert_eq!((busy.names.join(" "), busy.held_bytes, busy.budget_bytes), ("a b".into(), 80, 100));
        assert_eq!((one.asked(), other.asked()), (1, 1));
        one.left.store(0, Ordering::Relaxed);
        c.hold().unwrap();
        drop(c);
        a.hold().unwrap();
    }

    #[test]
    fn retained_values_and_loaders_of_several_ranks_release_nothing() {
        let owner = "registry-fixed";
        let retained = take(owner, "retained values", 70, 100, true);
        let (lent, _) = loan(owner, "a", 50, false, 0);
        assert_eq!(fixed_bytes(owner), 70);
        assert_eq!(lent.hold().unwrap_err().held_bytes, 70);
        drop(retained);
        lent.hold().unwrap();
    }
}
