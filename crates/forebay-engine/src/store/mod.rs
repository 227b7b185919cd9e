//! The in-memory store: each node keeps a share of the dataset in memory and serves it to the
//! others.
//!
//! - `setup`: the leaders agree on the layout, load the shares and exchange addresses
//!   ([`StorePlan`]).
//! - `server`: each leader's [`Server`] exports its share.
//! - `load`: reads a share from the files.
//! - `daemon`: keeps shares between jobs. `keeping`: what a leader does with it.
//! - `client`: what each rank does with a store ([`Store`]): where bytes are, and requests for
//!   those of other nodes; `requests` limits how many are in flight.
//! - `ucx`: whether UCX takes the place of TCP; `probe` measures the network between the nodes.
//!
//! The store works on bytes of files, as storage tiers do: a chunk of the dataset is in a share
//! whole or not at all. What no share holds is read from the source.

mod client;
pub(crate) mod daemon;
mod keeping;
mod load;
mod probe;
mod requests;
mod server;
mod setup;
mod ucx;

pub(crate) use client::{Store, Want, request_limits};
pub(crate) use requests::Failed;
pub(crate) use server::Server;
pub(crate) use setup::{MadeStore, StorePlan, StoreQuestion, exceeds_memory, exchange, set_up};
