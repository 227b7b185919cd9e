//! All tests of the crate in one program: it is linked once.

mod client;
mod emulator_bytes;
mod emulator_counters;
mod emulator_faults;
mod emulator_life;
mod emulator_support;
mod model;
mod page;
mod properties;
mod shapes;
mod spec;
mod virtual_time;
