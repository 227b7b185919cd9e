//! What storage can do: `probe` finds out which accesses work, `bandwidth` how fast it is.

pub(crate) mod bandwidth;
pub(crate) mod probe;
