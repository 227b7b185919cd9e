//! Pure functions between the order and the readers: no I/O, no clock, no unsafe.
//!
//! - `order`: which sample stands at which position of an epoch ([`Order`]); `permutation` and `group` are its parts,
//!   `quality` states its shuffle quality, `convergence` the epochs that it is good for, `state` what must be kept to resume.
//! - `schedule`: which samples are read together ([`Schedule`], [`Tranche`]).
//! - `place`: where in the landing ring bytes go and from when on they may ([`Landing`]).
//! - `runs`, `read`: which reads fetch them ([`plan_into`], [`Plan`]); `coded`: the same for units that have to be decoded.
//!
//! Every process of a node calls these functions with the same arguments and gets the same answers; that is what
//! replaces a work queue between processes.
#![forbid(unsafe_code)]

mod coded;
mod convergence;
mod group;
mod order;
mod permutation;
mod place;
mod quality;
mod read;
mod runs;
mod schedule;
mod state;

pub use coded::Decode;
pub use convergence::Convergence;
pub use order::{Kind, Last, Order, OrderError, OrderSpec, default_group};
pub use place::{Landing, Placement};
pub use quality::Quality;
pub use read::{Block, Part, Plan, Read, Traits, plan_into};
pub use schedule::{Need, Next, Schedule, Tranche};
pub use state::OrderState;
