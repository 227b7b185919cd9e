//! The engine of a loader: from an indexed dataset to batches in shared memory.
//!
//! Each folder imports only from those above it:
//!
//! - `base`: failures of peers, the memory ledger. No engine types.
//! - [`mesh`]: connections between the leaders of the nodes.
//! - [`rendezvous`]: how the ranks of a node meet.
//! - `error`: the error type of the crate.
//! - [`shm`]: the layout of a node's shared memory, and the rules for using it.
//! - `host`: callbacks to the calling program; calls that may block, made on a thread of their own.
//! - `dataset`: an opened dataset with its index.
//! - [`batch`]: batch buffers, their layout and their leases.
//! - `config`: options, plugged-in strategies, and the facts that decisions rest on.
//! - `store`: the in-memory store: shares of the dataset that nodes serve to each other.
//! - `residents`: what nodes keep in memory for the order `opportunistic`.
//! - `pipeline`: the threads of a session: plan → read → gather.
//! - `loader`: a loader of one rank, from its creation to its end.

// A loom build has the parts that its tests are about, and not most of what uses them.
#![cfg_attr(loom, allow(dead_code, unused_imports))]
// A test may panic where there are no threads.
#![cfg_attr(test, allow(clippy::disallowed_methods))]

#[cfg(not(loom))]
mod base;
#[doc(hidden)]
pub mod batch;
#[cfg(not(loom))]
mod config;
#[cfg(not(loom))]
mod dataset;
#[cfg(not(loom))]
mod error;
#[cfg(not(loom))]
mod host;
#[cfg(not(loom))]
mod loader;
#[cfg(not(loom))]
pub mod mesh;
#[cfg(not(loom))]
mod pipeline;
#[cfg(not(loom))]
pub mod rendezvous;
#[cfg(not(loom))]
mod residents;
#[doc(hidden)]
pub mod shm;
#[cfg(not(loom))]
mod store;

#[cfg(not(loom))]
pub use {
    batch::layout::{Batch, BatchLayout, FieldPlacement},
    config::Settings,
    config::options::Options,
    config::strategies::Strategies,
    dataset::batch_read::{BatchRead, Decoded, Place},
    dataset::field_decoders::{Decoding, Delivery, FieldDecoder, FieldDecoders},
    dataset::shuffle_quality::{GroupSize, ShuffleQuality},
    dataset::{Built, INDEX_THREADS, IndexedDataset, Loaded},
    error::{Error, ErrorDetails},
    forebay_plan::config::Locate,
    forebay_transport::handshake,
    host::offload::offload,
    host::{Host, NoHost},
    loader::Engine,
    loader::iterate::Delivered,
    shm::counters::LEVEL_COLUMNS,
    store::daemon::{StoreDaemon, StoreDaemonError, stop_store, store_status},
};
