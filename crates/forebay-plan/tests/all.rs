//! All tests of the crate in one program: it is linked once.

mod local_shuffle;
mod mixture;
mod opportunistic;
mod order_common;
mod order_cover;
mod order_golden;
mod order_last_steps;
mod order_quality;
mod order_refused;
mod order_schedule;
mod state;
mod tier_forecast;
