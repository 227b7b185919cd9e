//! How much memory a loader may use on its node.

use super::MIB;
use crate::error::Error;
use crate::node::memory;
use crate::options::Options;

/// What a loader may use on its node.
#[derive(Debug)]
pub struct Budget {
    /// What was asked for, or is the default \[bytes\].
    pub asked_bytes: u64,
    /// What other loaders and kept data hold of it \[bytes\].
    pub held_bytes: u64,
    /// Why it is so much, in words.
    pub reasons: Vec<String>,
}

impl Budget {
    /// What is left for this loader \[bytes\]: nothing where others, which were given more, hold more than was asked for.
    pub fn left_bytes(&self) -> u64 {
        self.asked_bytes.saturating_sub(self.held_bytes)
    }
}

/// What a loader may use: what was asked for or is the default, less what other loaders of the job hold.
pub fn budget(options: &Options) -> Result<Budget, Error> {
    let available = memory::available_bytes();
    let asked = options.memory_bytes.unwrap_or_else(memory::default_memory_bytes);
    let taken = crate::registry::taken_bytes(options.budget_owner());
    if options.memory_bytes.is_some() && asked > available {
        return Err(Error::Options {
            message: format!("memory={asked} bytes, but this job may use only {available} bytes more on this node"),
            hint: "the limit of the control group counts; ask the scheduler for more memory, or give memory= less".into(),
        });
    }
    let mut reasons = Vec::new();
    if taken > 0 {
        reasons.push(format!("memory: other loaders of this job hold {} MiB of the budget", taken / MIB));
    }
    Ok(Budget { asked_bytes: asked.min(available), held_bytes: taken, reasons })
}
