//! Real time: the clock, the scheduler of replies, and the overhead of the kernel.
pub(crate) mod clock;
pub(crate) mod reply_scheduler;
pub(crate) mod round_trip;
