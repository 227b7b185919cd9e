//! Carries samples between the nodes of a job.
//!
//! A node exports its share of a data set with an [`Exporter`]. Ranks fetch parts of the shares of
//! other nodes through a [`Fetcher`], straight into memory that they have claimed.
//!
//! - [`Fetcher`] is the seam: one request per peer and step, several in flight. [`TcpFetcher`]
//!   implements it over TCP, [`UcxFetcher`] by one-sided reads where the network has RDMA.
//! - [`Exporter`] serves [`Share`]s with one or two threads, straight from their memory, and gives
//!   every client the same share of them.
//! - `auth.rs`, `request.rs` and `answer.rs` describe the protocol to the byte.
//!
//! Promises: client and server prove to each other that they know the secret of the job. Neither
//! reads or writes outside of a share or a destination, whatever the other sends. Checksums find
//! bytes that changed on their way. A peer that is lost is reported within 10 s of waiting for it.
//!
//! Not done here: which node holds which sample, what to do after a loss, and reading from storage.

// A test may panic where there are no threads.
#![cfg_attr(test, allow(clippy::disallowed_methods))]

mod answer;
mod answering;
mod auth;
mod checksum;
mod connect;
mod connection;
mod error;
mod exporter;
mod fetcher;
pub mod handshake;
mod link;
mod receiver;
mod refusal;
mod registry;
mod request;
mod share;
mod socket;
mod tcp_fetcher;
#[doc(hidden)]
pub mod turns;
mod ucx;
#[doc(hidden)]
pub mod untrusted;
mod worker;

pub use auth::{DataSetDigest, SECRET_BYTES, Secret, StoreId, VERSION};
pub use error::{TransportError, UNREACHABLE_HINT};
pub use exporter::{Exporter, ExporterOptions, server_threads};
pub use fetcher::{Destination, Fetcher, Peer, Piece, Ticket};
pub use refusal::Refusal;
pub use request::{MAX_ANSWER_BYTES, MAX_COUNT};
pub use share::Share;
pub use tcp_fetcher::{FetcherOptions, PeerAddress, TcpFetcher};
pub use ucx::{Ucx, UcxExporter, UcxFetcher, UcxPeer, UcxPolicy};
