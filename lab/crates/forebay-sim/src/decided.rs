//! What is decided for a node, and what that rests on besides the job.

use forebay_plan::Order;
use forebay_plan::config::Settings;

/// What was decided for a node.
#[derive(Clone, Debug)]
pub(crate) struct Decisions {
    /// It knows nothing of shares.
    pub(crate) order: Order,
    pub(crate) settings: Settings,
    /// Whether its strategy can use tiers, and there are some.
    pub(crate) has_tiers: bool,
    /// Memory for copies on their way to tiers, of each process \[B\].
    pub(crate) copy_buffer_bytes: u64,
}

/// What a node streams.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Streamed<'a> {
    pub(crate) order: &'a Order,
    /// Staging memory for that \[B\].
    pub(crate) staging_bytes: u64,
    /// Length of a unit \[B\].
    pub(crate) unit_bytes: u64,
}
