//! No wish is read torn, in every interleaving of two writers that overwrite each other and a
//! reader.
//!
//!     RUSTFLAGS="--cfg loom" cargo test -p forebay-table --test loom_wishes
#![cfg(loom)]

use forebay_table::sync::atomic::AtomicU64;
use forebay_table::{Next, WishRing, ring_words};
use loom::sync::Arc;
use loom::thread;

/// One entry: every wish overwrites the one before.
const ENTRIES: u32 = 1;
/// More take minutes.
const PREEMPTIONS: usize = 2;

fn words() -> Arc<Vec<AtomicU64>> {
    Arc::new((0..ring_words(ENTRIES)).map(|_| AtomicU64::new(0)).collect())
}

fn bounded(test: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(PREEMPTIONS);
    builder.check(test);
}

/// A wish whose fields all follow from one number.
fn push(words: &[AtomicU64], number: u64) -> bool {
    WishRing::new(words).push(number, number + 1, number + 2, &[number as u8])
}

/// Reads from ticket 0 on and checks each wish; returns the numbers of those that are whole.
fn read_all(words: &[AtomicU64]) -> Vec<u64> {
    let (ring, mut ticket, mut found) = (WishRing::new(words), 0, Vec::new());
    loop {
        match ring.read(ticket) {
            Next::Wish(wish) => {
                let number = wish.device;
                let fields = (wish.inode, wish.bytes, wish.path());
                assert_eq!(fields, (number + 1, number + 2, &[number as u8][..]));
                found.push(number);
                ticket += 1;
            }
            Next::Lost(next) => {
                assert!(next > ticket);
                ticket = next;
            }
            Next::Unfinished => ticket += 1,
            Next::Empty => return found,
        }
    }
}

#[test]
fn a_reader_sees_only_whole_wishes_of_two_writers() {
    bounded(|| {
        let words = words();
        let writers: Vec<_> = [10, 20]
            .into_iter()
            .map(|number| {
                let words = Arc::clone(&words);
                thread::spawn(move || push(&words, number))
            })
            .collect();
        read_all(&words);
        let written = writers.into_iter().map(|writer| writer.join().unwrap()).filter(|done| *done);
        let written = written.count();
        assert!(written >= 1);
        // Once the writers are done, the last written wish is there.
        assert_eq!(read_all(&words).len(), 1);
    });
}

#[test]
fn a_reader_sees_only_whole_wishes_of_a_writer_that_overtakes_it() {
    bounded(|| {
        let words = words();
        assert!(push(&words, 10));
        let writer = {
            let words = Arc::clone(&words);
            thread::spawn(move || push(&words, 20))
        };
        for number in read_all(&words) {
            assert!(number == 10 || number == 20);
        }
        assert!(writer.join().unwrap());
        assert_eq!(read_all(&words), [20]);
    });
}
