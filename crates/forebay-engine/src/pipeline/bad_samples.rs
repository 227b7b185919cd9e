//! The samples that a rank could not read or decode, and why.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use forebay_types::SampleId;

use crate::error::Error;

/// Maximum number of bad samples that cause a warning; the list has all.
const MAX_WARNINGS: usize = 10;

/// The bad samples that this rank has met.
#[derive(Default)]
pub(crate) struct BadSamples {
    found: Mutex<BTreeMap<u64, String>>,
    /// Warnings that were not shown yet.
    warnings: Mutex<Vec<String>>,
    has_warnings: AtomicBool,
}

impl BadSamples {
    /// Records a bad sample and its error.
    pub(crate) fn add(&self, sample: SampleId, error: &Error) {
        let mut found = lock(&self.found);
        if found.insert(sample.0, error.to_string()).is_some() {
            return;
        }
        tracing::info!(sample = sample.0, reason = %error, "a sample is replaced");
        let text = match found.len().cmp(&MAX_WARNINGS) {
            std::cmp::Ordering::Less => format!("skipped: {error}"),
            std::cmp::Ordering::Equal => {
                format!("skipped: {error}; further ones are in loader.bad_samples()")
            }
            std::cmp::Ordering::Greater => return,
        };
        lock(&self.warnings).push(text);
        self.has_warnings.store(true, Ordering::Release);
    }

    /// Whether this rank knows the sample as bad.
    pub(crate) fn knows(&self, sample: SampleId) -> bool {
        lock(&self.found).contains_key(&sample.0)
    }

    /// Warnings that were not shown yet.
    pub(crate) fn take_warnings(&self) -> Vec<String> {
        if !self.has_warnings.swap(false, Ordering::Acquire) {
            return Vec::new();
        }
        std::mem::take(&mut *lock(&self.warnings))
    }

    /// All of them: sample and reason.
    pub(crate) fn list(&self) -> Vec<(u64, String)> {
        lock(&self.found).iter().map(|(sample, reason)| (*sample, reason.clone())).collect()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
