//! All tests of the crate in one program: it is linked once.

mod client;
mod model;
mod page;
mod properties;
mod shapes;
mod spec;
mod virtual_time;
