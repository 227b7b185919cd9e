//! How much memory a loader may use on its node ([`forebay_plan::config::budget`]): the facts, and
//! the errors.
//!
//! Where other loaders of the process reserved so much that nothing works with the rest, a loader
//! with the default memory is made on loan (`memory_ledger.rs`).

use forebay_host as host;
use forebay_plan::Kind;
use forebay_plan::config::{self, Budget, BudgetTooSmall, MemoryBound, MemoryFacts};

use super::MIB;
use crate::base::memory_ledger;
use crate::config::options::Options;
use crate::error::Error;

/// What a loader may use. `address_left` is the address space left to the rank that has the least
/// \[bytes\], where one has a limit.
///
/// # Errors
/// More was asked for than there is.
pub fn budget(options: &Options, address_left: Option<u64>) -> Result<Budget, Error> {
    let owner = options.budget_owner();
    let facts = MemoryFacts {
        asked_bytes: options.memory_bytes,
        default_bytes: host::default_memory_bytes(),
        free_bytes: host::available_bytes(),
        address_left_bytes: address_left,
        held_bytes: memory_ledger::taken_bytes(owner),
    };
    let mut budget = config::budget(&facts).map_err(|bound| asked_too_much(&facts, bound))?;
    // Ranks would have to agree on who is idle; and who says how much a loader may use is not given
    // something else.
    if options.size == 1 && budget.is_default {
        budget.lendable_bytes = budget.asked_bytes.saturating_sub(memory_ledger::fixed_bytes(owner));
    }
    Ok(budget)
}

/// Whether a data set of so many bytes is to be mapped by every rank; else why not.
///
/// # Errors
/// The reason, in words.
pub fn may_map(file_bytes: u64, address_left: Option<u64>) -> Result<(), String> {
    match address_left {
        Some(left) if !config::may_map(file_bytes, address_left) => Err(format!(
            "the files have {} MiB, and RLIMIT_AS (ulimit -v) leaves {} MiB of address space, of which they may take a \
             quarter",
            file_bytes.div_ceil(MIB),
            left / MIB
        )),
        _ => Ok(()),
    }
}

/// A bound in words, and the way out.
fn bound_in_words(bound: MemoryBound) -> (String, &'static str) {
    match bound {
        MemoryBound::AddressSpace(left) => (
            format!("RLIMIT_AS (ulimit -v) leaves {} MiB of address space", left / MIB),
            "raise the limit with `ulimit -v`",
        ),
        MemoryBound::Free(free) => (
            format!("{} MiB of memory are free on this node for this job", free / MIB),
            "the limit of the control group counts; ask the scheduler for more memory",
        ),
    }
}

fn asked_too_much(facts: &MemoryFacts, bound: MemoryBound) -> Error {
    let (why, way_out) = bound_in_words(bound);
    Error::Memory {
        message: format!(
            "memory={} bytes, but this job may use only {} bytes more on this node: {why}",
            facts.asked_bytes.unwrap_or(0),
            bound.bytes(),
        ),
        hint: format!("{way_out}, or give memory= less"),
    }
}

/// Nothing that works has room: says what has, and how to get there.
pub(super) fn too_small(options: &Options, budget: &Budget, kind: Kind, least: BudgetTooSmall) -> Error {
    let held = match budget.held_bytes {
        0 => String::new(),
        held => format!(", of which other loaders and kept data hold {held},"),
    };
    let memory = if budget.is_default { "the default memory of " } else { "memory=" };
    let message = format!(
        "{memory}{} bytes{held} is too little for {} rank(s) of this node with batches of {} in the \
         order {kind}: \
         the least that works is {} bytes ({} for batch buffers, {} for staging blocks)",
        budget.asked_bytes,
        options.local_ranks.len(),
        options.batch_size,
        least.least_bytes,
        least.buffer_bytes,
        least.staging_bytes,
    );
    let smaller = if matches!(kind, Kind::Group { .. }) { ", group or window" } else { "" };
    let would_do = budget.held_bytes + least.least_bytes;
    let give = format!("give memory=\"{}MiB\", or ", would_do.div_ceil(MIB));
    let is_beyond = would_do.next_multiple_of(MIB) > budget.bound.bytes();
    if is_beyond || budget.is_cut {
        let (bound, way_out) = bound_in_words(budget.bound);
        let give = if is_beyond { "or " } else { &give };
        return Error::Memory {
            message: format!("{message}, and {bound}"),
            hint: format!("{way_out}, {give}ask for a smaller batch{smaller}"),
        };
    }
    Error::Options { message, hint: format!("{give}ask for a smaller batch{smaller}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_names_the_limit_and_the_way_to_raise_it() {
        let facts = MemoryFacts {
            asked_bytes: Some(2000 * MIB),
            default_bytes: 2560 * MIB,
            free_bytes: 8192 * MIB,
            address_left_bytes: Some(1536 * MIB),
            held_bytes: 0,
        };
        let error = asked_too_much(&facts, config::budget(&facts).unwrap_err());
        assert!(matches!(error, Error::Memory { .. }) && error.to_string().contains("RLIMIT_AS"), "{error}");
        assert!(error.hint().is_some_and(|hint| hint.contains("ulimit -v")));
        let facts = MemoryFacts { asked_bytes: Some(9000 * MIB), address_left_bytes: None, ..facts };
        let error = asked_too_much(&facts, config::budget(&facts).unwrap_err());
        assert!(matches!(error, Error::Memory { .. }) && !error.to_string().contains("RLIMIT_AS"), "{error}");
    }

    #[test]
    fn files_that_are_not_mapped_are_told_with_their_size() {
        assert!(may_map(1 << 50, None).is_ok());
        assert!(may_map(385 * MIB, Some(1536 * MIB)).unwrap_err().contains("385 MiB"));
    }
}
