//! Simulates a training job in virtual time: the orders, plans and decisions of the engine,
//! executed against the cost model of a file system. No file is read and nothing waits.
//!
//! Each part uses those above it:
//!
//! - `costs`: processor time of what the engine does ([`Costs`]).
//! - `places`: where the samples of a dataset lie, without the dataset ([`Places`]).
//! - `program`: programs in place of the loader ([`Program`]).
//! - `machine`: a node ([`Machine`]). `tier`: a storage tier as it is asked for ([`Tier`]).
//!   `run_options`: options of `forebay run` ([`RunOptions`]).
//! - `job`: what is simulated ([`Job`]). `facts`: those from which the engine decides. `decided`:
//!   what it would decide for a node.
//! - `run/`: `forebay run`: copies of whole files for programs.
//! - `shares`: which node holds which samples. `residents`: what nodes keep and stream in the order
//!   `opportunistic`. `store`: the in-memory store. `loads`: what nodes read into memory first.
//! - `decisions`: all that is decided for the nodes of a job.
//! - `request`: requests to the file system and to tiers. `tiers/`: storage tiers of a node.
//! - `mailbox`: messages between nodes. `gate`: which readers may read, where nodes take turns.
//! - `planned_segment`: a planned segment.
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
mod decided;
mod decisions;
mod error;
mod facts;
mod gate;
mod job;
mod loads;
mod machine;
mod mailbox;
mod node;
mod places;
mod planned_segment;
mod program;
mod request;
mod residents;
mod result;
mod run;
mod run_options;
mod shares;
mod simulate;
mod store;
mod tier;
mod tiers;
mod world;

pub use costs::Costs;
pub use error::Error;
pub use job::{Job, Window};
pub use machine::Machine;
pub use places::{Dataset, Lmdb, Places, Uniform};
pub use program::{Program, SampleReads};
pub use result::{EpochResult, LevelBytes, NodeResult, RunResult};
pub use run_options::RunOptions;
pub use simulate::{Simulated, simulate};
pub use tier::Tier;
