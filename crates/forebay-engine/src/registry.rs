//! The loaders of this process that lead a node: what of the job's memory they hold.
//!
//! `memory=` is per job and node and shared by its loaders. The leader of a node is the same process for all loaders
//! of a job, so a table in that process is enough.

use std::collections::BTreeMap;
use std::sync::Mutex;

static HELD: Mutex<BTreeMap<String, u64>> = Mutex::new(BTreeMap::new());

/// Bytes held for a loader of a job until it is dropped.
#[derive(Debug)]
pub struct Share {
    job: String,
    bytes: u64,
}

/// Bytes that loaders of this job hold, as far as this process leads them.
pub fn taken_bytes(job: &str) -> u64 {
    held().get(job).copied().unwrap_or(0)
}

/// Takes a share.
pub fn take(job: &str, bytes: u64) -> Share {
    *held().entry(job.to_owned()).or_default() += bytes;
    Share { job: job.to_owned(), bytes }
}

fn held() -> std::sync::MutexGuard<'static, BTreeMap<String, u64>> {
    HELD.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut held = held();
        if let Some(bytes) = held.get_mut(&self.job) {
            *bytes = bytes.saturating_sub(self.bytes);
            if *bytes == 0 {
                held.remove(&self.job);
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
