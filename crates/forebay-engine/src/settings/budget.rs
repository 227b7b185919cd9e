//! How much memory a loader may use on its node.
//!
//! What was asked for by `memory=`, or the default, less what other loaders of the job hold. A
//! control group and the free memory bound both. `RLIMIT_AS` bounds both, too: the region is mapped
//! by every rank, so the one with the least address space left decides. Of that the default takes
//! up to half; a mapping of the data set gets up to a quarter; the rest is for the stacks of
//! threads, the allocator's arenas, which reserve 64 MiB a thread where they can, and the script.
//!
//! Where other loaders of the process reserved so much that nothing works with the rest, a loader
//! with the default memory is made on loan (`registry.rs`).

use forebay_host as host;

use super::MIB;
use crate::error::Error;
use crate::options::Options;
use crate::registry;

/// Part of the address space that is left which the default budget takes: one in this many.
const DEFAULT_ADDRESS_PART: u64 = 2;
/// Part of it that a mapping of the data set takes: one in this many.
const MAPPED_ADDRESS_PART: u64 = 4;

/// What a loader may use on its node.
#[derive(Debug)]
pub struct Budget {
    /// What was asked for, or is the default \[bytes\].
    pub asked_bytes: u64,
    /// Whether it is the default.
    pub is_default: bool,
    /// What other loaders and kept data hold of it \[bytes\].
    pub held_bytes: u64,
    /// What a loader may take on loan where nothing that works is left (`registry.rs`): all but
    /// what nobody gives up \[bytes\].
    pub lendable_bytes: u64,
    /// The most that `memory=` could ask for now \[bytes\].
    pub most_bytes: u64,
    /// Whether the default is less than it would be without a limit of this process or group.
    pub is_cut: bool,
    /// What `most_bytes` follows from, for messages, and the way out.
    pub bound: (String, &'static str),
    /// Why it is so much, in words.
    pub reasons: Vec<String>,
}

impl Budget {
    /// What is left for this loader \[bytes\]: nothing where others, which were given more, hold
    /// more than was asked for.
    pub fn left_bytes(&self) -> u64 {
        self.asked_bytes.saturating_sub(self.held_bytes)
    }
}

/// What a loader may use. `address_left` is the address space left to the rank that has the least
/// \[bytes\], where one has a limit.
///
/// # Errors
/// More was asked for than there is.
pub fn budget(options: &Options, address_left: Option<u64>) -> Result<Budget, Error> {
    let free = (host::available_bytes(), address_left);
    let owner = options.budget_owner();
    let taken = registry::taken_bytes(owner);
    let mut budget = decide(options.memory_bytes, host::default_memory_bytes(), free, taken)?;
    // Ranks would have to agree on who is idle; and who says how much a loader may use is not given
    // something else.
    if options.size == 1 && budget.is_default {
        budget.lendable_bytes = budget.asked_bytes.saturating_sub(registry::fixed_bytes(owner));
    }
    Ok(budget)
}

/// Whether a data set of so many bytes is to be mapped by every rank; else why not.
///
/// # Errors
/// The reason, in words.
pub fn may_map(file_bytes: u64, address_left: Option<u64>) -> Result<(), String> {
    match address_left {
        Some(left) if file_bytes > left / MAPPED_ADDRESS_PART => Err(format!(
            "the files have {} MiB, and RLIMIT_AS (ulimit -v) leaves {} MiB of address space, of which they may take a \
             quarter",
            file_bytes.div_ceil(MIB),
            left / MIB
        )),
        _ => Ok(()),
    }
}

/// `free` is the memory that is free and the address space that is left.
fn decide(
    asked: Option<u64>,
    default: u64,
    (free, address_left): (u64, Option<u64>),
    taken: u64,
) -> Result<Budget, Error> {
    let most_bytes = address_left.map_or(free, |left| left.min(free));
    let bound = match address_left {
        Some(left) if left < free => (
            format!("RLIMIT_AS (ulimit -v) leaves {} MiB of address space", left / MIB),
            "raise the limit with `ulimit -v`",
        ),
        _ => (
            format!("{} MiB of memory are free on this node for this job", free / MIB),
            "the limit of the control group counts; ask the scheduler for more memory",
        ),
    };
    let mut reasons = Vec::new();
    let of_address = address_left.map_or(u64::MAX, |left| left / DEFAULT_ADDRESS_PART);
    let is_cut = asked.is_none() && free.min(of_address) < default;
    let asked_bytes = match asked {
        Some(asked) if asked > most_bytes => {
            return Err(Error::Memory {
                message: format!(
                    "memory={asked} bytes, but this job may use only {most_bytes} bytes more on this node: {}",
                    bound.0
                ),
                hint: format!("{}, or give memory= less", bound.1),
            });
        }
        Some(asked) => asked,
        None => {
            if of_address < default.min(free) {
                reasons.push(format!("memory: {}, of which the default takes half", bound.0));
            }
            default.min(free).min(of_address)
        }
    };
    if taken > 0 {
        reasons.push(format!("memory: other loaders of this job hold {} MiB of the budget", taken / MIB));
    }
    let is_default = asked.is_none();
    let lendable_bytes = 0;
    Ok(Budget {
        asked_bytes,
        is_default,
        lendable_bytes,
        held_bytes: taken,
        most_bytes,
        is_cut,
        bound,
        reasons,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEFAULT: u64 = 2560 * MIB;
    const FREE: u64 = 8192 * MIB;

    fn bytes(asked: Option<u64>, address_left: Option<u64>) -> Result<u64, Error> {
        decide(asked, DEFAULT, (FREE, address_left), 0).map(|budget| budget.asked_bytes)
    }

    #[test]
    fn address_space_bounds_the_default_and_what_is_asked_for() {
        let mib =
            |found: Result<u64, Error>| found.map(|bytes| bytes / MIB).map_err(|error| error.to_string());
        assert_eq!(mib(bytes(None, None)), Ok(2560));
        assert_eq!(mib(bytes(None, Some(100 << 40))), Ok(2560));
        assert_eq!(mib(bytes(None, Some(1536 * MIB))), Ok(768));
        assert_eq!(mib(bytes(Some(1000 * MIB), Some(1536 * MIB))), Ok(1000));
        let error = bytes(Some(2000 * MIB), Some(1536 * MIB)).unwrap_err();
        assert!(matches!(error, Error::Memory { .. }) && error.to_string().contains("RLIMIT_AS"), "{error}");
        assert!(error.hint().is_some_and(|hint| hint.contains("ulimit -v")));
        let error = bytes(Some(9000 * MIB), None).unwrap_err();
        assert!(matches!(error, Error::Memory { .. }) && !error.to_string().contains("RLIMIT_AS"), "{error}");
    }

    #[test]
    fn files_are_mapped_where_that_leaves_address_space_for_the_rest() {
        assert!(may_map(1 << 50, None).is_ok());
        assert!(may_map(384 * MIB, Some(1536 * MIB)).is_ok());
        assert!(may_map(385 * MIB, Some(1536 * MIB)).unwrap_err().contains("385 MiB"));
    }
}
