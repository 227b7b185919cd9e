//! Takes what programs wish for.

use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use forebay_table::Next;

use crate::daemon::run::table_file::TableFile;
use crate::daemon::run::worker::{MOST_WAITING, Wanted, Worker};

/// How long an unfinished wish is waited for: its writer has died, or dropped it.
const WISH_WITHIN: Duration = Duration::from_millis(100);

impl Worker {
    pub(super) fn take_wishes(&mut self, file: &TableFile) -> bool {
        let ring = file.shared().wishes();
        let first = self.ticket;
        for _ in 0..file.layout().wishes() {
            match ring.read(self.ticket) {
                Next::Wish(wish) => {
                    let path = PathBuf::from(std::ffi::OsString::from_vec(wish.path().to_vec()));
                    self.want(Wanted { key: (wish.device, wish.inode), path, is_staged: false, at_ns: 0 });
                    self.ticket += 1;
                }
                Next::Lost(ticket) => self.ticket = ticket,
                Next::Empty => break,
                Next::Unfinished => {
                    if self.unfinished_since.get_or_insert_with(Instant::now).elapsed() < WISH_WITHIN {
                        break;
                    }
                    self.ticket += 1;
                }
            }
            self.unfinished_since = None;
        }
        self.ticket != first
    }

    pub(super) fn want(&mut self, wanted: Wanted) {
        let key = wanted.key;
        let is_known =
            self.copying.contains_key(&key) || self.flushing.iter().any(|(other, _)| *other == key);
        if self.is_finishing() || is_known || !self.wanted.insert(key) {
            return;
        }
        if self.waiting.len() >= MOST_WAITING && !wanted.is_staged {
            self.wanted.remove(&key);
            self.shared.note_not_copied(key, "too_many_wishes");
            return;
        }
        self.waiting.push_back(wanted);
    }
}
