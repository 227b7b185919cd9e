//! Simulates a training job in virtual time: the orders, plans and decisions of the engine,
//! executed against the cost model of a file system. No file is read and nothing waits.
//!
//! Each part uses those above it:
//!
//! - `costs`: processor time of what the engine does ([`Costs`]).
//! - `places`: where the samples of a dataset lie, without the dataset ([`Places`]).
//! - `program`: programs in place of the loader ([`Program`]).
//! - `job`: what is simulated ([`Job`]), and the decisions that the engine would make for it.
//! - `node`: what the threads of a node share: plans, positions, counters.
//! - `world`: what all nodes share: the file system, the barrier of the job.
//! - `actors/`: the threads of a node, one file each, as in the engine's `pipeline/`.
//! - `result`: what a run measured ([`RunResult`]).
//! - `simulate`: runs a job ([`simulate`]).
//!
//! A node is simulated once for all its ranks where these are alike: they have one plan, and take
//! their batches together.
#![forbid(unsafe_code)]

mod actors;
mod costs;
mod error;
mod job;
mod node;
mod places;
mod program;
mod result;
mod simulate;
mod world;

pub use costs::Costs;
pub use error::Error;
pub use job::{Job, Machine};
pub use places::{Dataset, Lmdb, Places, Uniform};
pub use program::Program;
pub use result::{NodeResult, RunResult};
pub use simulate::{Simulated, simulate};
