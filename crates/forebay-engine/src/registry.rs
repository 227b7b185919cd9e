//! The loaders of this process that lead a node: what of the job's memory they hold.
//!
//! `memory=` is per job and node and shared by its loaders. The leader of a node is the same process for all loaders
//! of a job, so a table in that process is enough. A loader of one rank alone is a job by itself (two of them must never
//! meet); those of one process share all the same, under one owner.

use std::collections::BTreeMap;
use std::sync::Mutex;

static HELD: Mutex<BTreeMap<String, u64>> = Mutex::new(BTreeMap::new());

/// Bytes of a budget that are held until this is dropped.
#[derive(Debug)]
pub struct Share {
    owner: String,
    bytes: u64,
}

impl Share {
    /// Whose budget it is a share of ([`crate::Options::budget_owner`]).
    pub fn owner(&self) -> &str {
        &self.owner
    }
}

/// Bytes that loaders of this owner hold, as far as this process leads them.
pub fn taken_bytes(owner: &str) -> u64 {
    held().get(owner).copied().unwrap_or(0)
}

/// Takes a share.
pub fn take(owner: &str, bytes: u64) -> Share {
    *held().entry(owner.to_owned()).or_default() += bytes;
    Share { owner: owner.to_owned(), bytes }
}

fn held() -> std::sync::MutexGuard<'static, BTreeMap<String, u64>> {
    HELD.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut held = held();
        if let Some(bytes) = held.get_mut(&self.owner) {
            *bytes = bytes.saturating_sub(self.bytes);
            if *bytes == 0 {
                held.remove(&self.owner);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_of_a_job_add_up_and_come_back() {
        let (a, b) = (take("registry-test", 5), take("registry-test", 7));
        assert_eq!(taken_bytes("registry-test"), 12);
        drop(a);
        assert_eq!(taken_bytes("registry-test"), 7);
        drop(b);
        assert_eq!(taken_bytes("registry-test"), 0);
    }
}
