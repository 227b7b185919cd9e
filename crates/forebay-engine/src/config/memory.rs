//! The memory budget of a loader on its node ([`forebay_plan::config::budget`]): facts and errors.
//!
//! If other loaders of the process have reserved so much that the rest is too little, a loader with
//! the default memory is created on loan (`memory_ledger.rs`).

use forebay_host as host;
use forebay_plan::OrderKind;
use forebay_plan::config::{self, Budget, BudgetTooSmall, MemoryBound, MemoryFacts};

use super::MIB;
use crate::base::memory_ledger;
use crate::config::options::Options;
use crate::error::Error;

/// The memory that a loader may use. `address_left` is the least address space that a rank with a
/// limit has left \[bytes\].
///
/// # Errors
/// The user requested more than is available.
pub fn budget(options: &Options, address_left: Option<u64>) -> Result<Budget, Error> {
    let owner = options.budget_owner();
    let facts = MemoryFacts {
        requested_bytes: options.node_memory_bytes,
        default_bytes: config::default_memory_bytes(host::limit_bytes()),
        free_bytes: host::available_bytes(),
        address_left_bytes: address_left,
        held_bytes: memory_ledger::taken_bytes(owner),
    };
    let mut budget = config::budget(&facts).map_err(|bound| asked_too_much(&facts, bound))?;
    // Several ranks would have to agree on which loader is idle. An explicit size is not changed.
    if options.size == 1 && budget.is_default {
        budget.lendable_bytes = budget.requested_bytes.saturating_sub(memory_ledger::fixed_bytes(owner));
    }
    Ok(budget)
}

/// Checks whether each rank may map a dataset of this size.
///
/// # Errors
/// The reason why not.
pub fn may_map(file_bytes: u64, address_left: Option<u64>) -> Result<(), String> {
    match address_left {
        Some(left) if !config::may_map(file_bytes, address_left) => Err(format!(
            "the files have {} MiB, and RLIMIT_AS (ulimit -v) leaves {} MiB of address space, of which mappings may \
             use a quarter",
            file_bytes.div_ceil(MIB),
            left / MIB
        )),
        _ => Ok(()),
    }
}

/// A bound as text, and a hint.
fn describe_bound(bound: MemoryBound) -> (String, &'static str) {
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
    let (why, hint) = describe_bound(bound);
    Error::Memory {
        message: format!(
            "node_memory={} bytes, but this job may use only {} bytes more on this node: {why}",
            facts.requested_bytes.unwrap_or(0),
            bound.bytes(),
        ),
        hint: format!("{hint}, or give node_memory= less"),
    }
}

/// The error for a budget below the minimum: names the minimum, and how to reach it.
pub(super) fn too_small(options: &Options, budget: &Budget, kind: OrderKind, least: BudgetTooSmall) -> Error {
    let held = match budget.held_bytes {
        0 => String::new(),
        held => format!(", of which other loaders, retained data and copy buffers hold {held},"),
    };
    let memory = if budget.is_default { "the default memory of " } else { "node_memory=" };
    let message = format!(
        "{memory}{} bytes{held} is too little for {} rank(s) of this node with batches of {} in the \
         order {kind}: \
         the least that works is {} bytes ({} for batch buffers, {} for staging blocks)",
        budget.requested_bytes,
        options.local_ranks.len(),
        options.batch_size,
        least.minimum_bytes,
        least.buffer_bytes,
        least.staging_bytes,
    );
    let smaller = if matches!(kind, OrderKind::Group { .. }) { ", group or window" } else { "" };
    let sufficient = budget.held_bytes + least.minimum_bytes;
    // Others that were given more as well would hold more.
    let alone = if budget.held_bytes > 0 { " to this loader alone" } else { "" };
    let give = format!("give node_memory=\"{}MiB\"{alone}, or ", sufficient.div_ceil(MIB));
    let is_beyond = sufficient.next_multiple_of(MIB) > budget.bound.bytes();
    if is_beyond || budget.is_cut {
        let (bound, hint) = describe_bound(budget.bound);
        let give = if is_beyond { "or " } else { &give };
        return Error::Memory {
            message: format!("{message}, and {bound}"),
            hint: format!("{hint}, {give}ask for a smaller batch{smaller}"),
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
            requested_bytes: Some(2000 * MIB),
            default_bytes: 2560 * MIB,
            free_bytes: 8192 * MIB,
            address_left_bytes: Some(1536 * MIB),
            held_bytes: 0,
        };
        let error = asked_too_much(&facts, config::budget(&facts).unwrap_err());
        assert!(matches!(error, Error::Memory { .. }) && error.to_string().contains("RLIMIT_AS"), "{error}");
        assert!(error.hint().is_some_and(|hint| hint.contains("ulimit -v")));
        let facts = MemoryFacts { requested_bytes: Some(9000 * MIB), address_left_bytes: None, ..facts };
        let error = asked_too_much(&facts, config::budget(&facts).unwrap_err());
        assert!(matches!(error, Error::Memory { .. }) && !error.to_string().contains("RLIMIT_AS"), "{error}");
    }

    #[test]
    fn the_reason_against_a_mapping_names_the_size_of_the_files() {
        assert!(may_map(1 << 50, None).is_ok());
        assert!(may_map(385 * MIB, Some(1536 * MIB)).unwrap_err().contains("385 MiB"));
    }
}
