//! The samples that a rank could not read or decode, and why.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use forebay_types::SampleId;

use crate::error::Error;

/// Bad samples that the user is told of as they are found; the list has all.
const MAX_TOLD: usize = 10;

/// The bad samples that this rank has met.
#[derive(Default)]
pub(crate) struct BadSamples {
    found: Mutex<BTreeMap<u64, String>>,
    /// What the user was not told yet.
    news: Mutex<Vec<String>>,
    is_news: AtomicBool,
}

impl BadSamples {
    /// Notes a bad sample and why it is one.
    pub(crate) fn add(&self, sample: SampleId, error: &Error) {
        let mut found = lock(&self.found);
        if found.insert(sample.0, error.to_string()).is_some() {
            return;
        }
        tracing::info!(sample = sample.0, reason = %error, "a sample is replaced");
        let text = match found.len().cmp(&MAX_TOLD) {
            std::cmp::Ordering::Less => format!("skipped: {error}"),
            std::cmp::Ordering::Equal => {
                format!("skipped: {error}; further ones are in loader.bad_samples()")
            }
            std::cmp::Ordering::Greater => return,
        };
        lock(&self.news).push(text);
        self.is_news.store(true, Ordering::Release);
    }

    /// Whether this rank has met it as a bad one.
    pub(crate) fn knows(&self, sample: SampleId) -> bool {
        lock(&self.found).contains_key(&sample.0)
    }

    /// What the user was not told yet.
    pub(crate) fn news(&self) -> Vec<String> {
        if !self.is_news.swap(false, Ordering::Acquire) {
            return Vec::new();
        }
        std::mem::take(&mut *lock(&self.news))
    }

    /// All of them: sample and reason.
    pub(crate) fn list(&self) -> Vec<(u64, String)> {
        lock(&self.found).iter().map(|(sample, reason)| (*sample, reason.clone())).collect()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
