//! All tests of the crate in one program: it is linked once.

mod emulator_bytes;
mod emulator_counters;
mod emulator_faults;
mod emulator_life;
mod emulator_support;
