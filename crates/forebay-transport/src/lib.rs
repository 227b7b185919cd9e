//! Carries samples between the nodes of a job.
//!
//! A node exports its share of a dataset with an [`Exporter`]. Ranks fetch parts of the shares of
//! other nodes through a [`Fetcher`], straight into memory that they have claimed.
//!
//! * [`Fetcher`] is the seam: one request per peer and step, several in flight. [`TcpFetcher`]
//!   implements it over TCP, [`UcxFetcher`] by one-sided reads where the network has RDMA.
//! * [`Exporter`] serves [`Share`]s with one or two threads, straight from their memory, and gives
//!   every client the same share of them.
//!
//! Each folder imports only from those above it:
//!
//! - `message`: the protocol to the byte.
//! - `error`, `socket`, `checksum`: what both sides use.
//! - `server`: the serving side of a node.
//! - `client`: the fetching side of a rank.
//! - `ucx`: both sides for one-sided reads.
//!
//! Promises: client and server prove to each other that they know the secret of the job. Neither
//! reads or writes outside of a share or a destination, whatever the other sends. Checksums find
//! bytes that changed on their way. A peer that is lost is reported within 10 s of waiting for it.
//!
//! Not done here: which node holds which sample, what to do after a loss, and reading from storage.

// A test may panic where there are no threads.
#![cfg_attr(test, allow(clippy::disallowed_methods))]

mod checksum;
mod client;
mod error;
mod message;
mod server;
mod socket;
mod ucx;

pub use client::fetcher::{Destination, Fetcher, Peer, Piece, Ticket};
pub use client::tcp::{FetcherOptions, PeerAddress, TcpFetcher};
pub use error::{TransportError, UNREACHABLE_HINT};
pub use message::auth::{DatasetDigest, SECRET_BYTES, Secret, StoreId, VERSION};
pub use message::handshake;
pub use message::refusal::Refusal;
pub use message::request::MAX_COUNT;
pub use server::exporter::{Exporter, ExporterOptions};
pub use server::share::Share;
pub use ucx::{Ucx, UcxExporter, UcxFetcher, UcxPeer, UcxPolicy};
#[doc(hidden)]
pub use {client::turns, message::untrusted};
