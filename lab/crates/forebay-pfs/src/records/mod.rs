//! What the emulator records: counters, the last reads, and injected faults. Pure bookkeeping.
pub(crate) mod counters;
pub(crate) mod events;
pub(crate) mod faults;
