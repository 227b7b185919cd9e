//! All tests of the crate in one program: it is linked once.

mod invariants;
mod jobs;
mod orders;
mod programs;
mod run;
mod store;
mod tiers;
mod turns;
mod walks;
