//! What storage can do: `access_probe` finds out which accesses work, `bandwidth` how fast it is.

pub(crate) mod access_probe;
pub(crate) mod bandwidth;
