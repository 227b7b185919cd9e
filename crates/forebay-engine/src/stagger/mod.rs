//! Staggering (LMDBIO): only some of the nodes touch storage at a time.
//!
//! - `gate`: words in the shared memory of a node that say whether its readers may read now;
//! - `turn`: what a reader does there, from the first read of a tranche until it has nothing more to read;
//! - `turns`: the leader's threads between the gate and the tokens ([`forebay_plan::TokenServer`]), which the leader of the node
//!   with the least rank keeps, over the links.
//!
//! It changes when something is read, never what, nor into which batch it goes. One node has nobody to take turns with.

mod gate;
#[cfg(not(loom))]
mod turn;
#[cfg(not(loom))]
mod turns;

pub use gate::{Entry, Gate};
#[cfg(not(loom))]
pub(crate) use {turn::Turn, turns::Turns};
