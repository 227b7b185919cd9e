//! Whether a store uses UCX instead of TCP. Every node must be able to, else none does; the first
//! reason against it is kept for `explain()`.

use std::sync::Arc;

use forebay_host::{Map, failpoint};
use forebay_transport::{Fetcher, TcpFetcher, Ucx, UcxExporter, UcxFetcher, UcxPeer, UcxPolicy};

/// How a rank fetches. The connections over TCP stay open also with UCX: servers count them.
pub(super) struct Fetchers {
    /// Dropped first: it may write to the memory of requests until then.
    ucx: Option<UcxFetcher>,
    pub(super) tcp: TcpFetcher,
}

impl Fetchers {
    /// Uses UCX if it reaches all nodes; else returns why not, too.
    pub(super) fn new(
        tcp: TcpFetcher,
        peers: Result<Vec<UcxPeer>, String>,
        max_in_flight: usize,
    ) -> (Self, Option<String>) {
        match peers.and_then(|peers| UcxFetcher::new(&library()?, peers, max_in_flight)) {
            Ok(ucx) => (Self { ucx: Some(ucx), tcp }, None),
            Err(reason) => {
                tracing::info!(reason, "the store does not use UCX");
                (Self { ucx: None, tcp }, Some(reason))
            }
        }
    }

    /// What samples are fetched with.
    pub(super) fn active(&self) -> &dyn Fetcher {
        self.ucx.as_ref().map_or(&self.tcp, |ucx| ucx)
    }

    /// The names of UCX's transports, if it is used.
    pub(super) fn transports(&self) -> Option<Vec<String>> {
        self.ucx.as_ref().map(|ucx| ucx.transports().to_vec())
    }
}

/// Loads the library.
fn library() -> Result<Ucx, String> {
    match failpoint::forces_ucx() {
        None => Ucx::find(UcxPolicy::Rdma),
        Some(failpoint::ForcedUcx::AnyTransport) => Ucx::find(UcxPolicy::AnyTransport),
        Some(failpoint::ForcedUcx::AnyDevice) => {
            Ok(Ucx::find(UcxPolicy::AnyTransport)?.with_policy(UcxPolicy::Rdma))
        }
    }
}

/// Exports the share of this node by UCX; the error says why not.
pub(super) fn export(share: Map) -> Result<UcxExporter, String> {
    UcxExporter::start(&library()?, Arc::new(share))
}
