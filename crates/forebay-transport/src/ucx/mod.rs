//! UCX: one-sided reads from the shares of other nodes, where the network can do them (RDMA).
//!
//! The library `libucp.so.0` is loaded at run time, by nodes that have an RDMA device. A node
//! exports its share with a [`UcxExporter`], whose card tells others how to read it; the caller
//! exchanges cards over an authenticated channel. A [`UcxFetcher`] reads with `ucp_get_nbx`.
//!
//! It is used only if UCX reads from every peer by a transport `rc` or `dc`. Over others, such as
//! TCP, it emulates a read by messages that the target has to handle, and
//! [`TcpFetcher`](crate::TcpFetcher) is faster. Each reason against UCX is a string, for the user.
//!
//! Reads carry no checksum: RDMA networks have their own. Untested with an RDMA device; tests read
//! over UCX's TCP on one machine ([`UcxPolicy::AnyTransport`]).

mod api;
mod card;
mod exporter;
mod fetcher;
mod worker;

use std::path::Path;
use std::sync::Arc;

use api::Api;
pub use exporter::UcxExporter;
pub use fetcher::{UcxFetcher, UcxPeer};

/// Where the kernel lists RDMA devices.
const DEVICES: &str = "/sys/class/infiniband";

/// Which transports of UCX are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UcxPolicy {
    /// Those that read without the target's processor, on nodes with an RDMA device.
    Rdma,
    /// Any, for tests.
    AnyTransport,
}

/// The loaded library.
#[derive(Clone, Debug)]
pub struct Ucx {
    api: Arc<Api>,
    policy: UcxPolicy,
}

impl Ucx {
    /// Loads the library.
    ///
    /// # Errors
    /// Why it is not used: no device, no library, another version, a missing function.
    pub fn find(policy: UcxPolicy) -> Result<Self, String> {
        Self::load(api::LIBRARY, policy)
    }

    /// The same library with another policy.
    #[must_use]
    pub fn with_policy(&self, policy: UcxPolicy) -> Self {
        Self { policy, ..self.clone() }
    }

    fn load(library: &str, policy: UcxPolicy) -> Result<Self, String> {
        if policy == UcxPolicy::Rdma && !has_device(Path::new(DEVICES)) {
            return Err("this node has no RDMA device".into());
        }
        let api = Api::load(library).inspect_err(|reason| tracing::info!(reason, "UCX is not used"))?;
        Ok(Self { api: Arc::new(api), policy })
    }

    /// Why an endpoint with these transports is not used.
    fn refuse(&self, transports: &[String]) -> Option<String> {
        let fits = self.policy == UcxPolicy::AnyTransport || reads_remotely(transports);
        (!fits).then(|| format!("UCX would use {}, and no rc or dc transport", transports.join(", ")))
    }
}

fn has_device(directory: &Path) -> bool {
    std::fs::read_dir(directory).is_ok_and(|mut devices| devices.next().is_some())
}

/// Whether one of the transports reads without the target's processor.
fn reads_remotely(transports: &[String]) -> bool {
    let families = ["rc", "dc"];
    transports.iter().any(|name| families.contains(&name.split('_').next().unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_rc_and_dc_read_without_the_target() {
        let reads =
            |names: &[&str]| reads_remotely(&names.iter().map(ToString::to_string).collect::<Vec<_>>());
        for names in [&["rc_mlx5"][..], &["dc_mlx5", "tcp"], &["self", "rc_verbs"], &["rc"]] {
            assert!(reads(names), "{names:?}");
        }
        for names in [&[][..], &["tcp"], &["posix", "cma", "sysv"], &["ud_mlx5"], &["rcache", "dcx"]] {
            assert!(!reads(names), "{names:?}");
        }
    }

    #[test]
    fn a_node_without_a_device_does_not_load_the_library() {
        assert!(!has_device(Path::new("/sys/class/no-such-class")));
        assert!(has_device(Path::new("/sys/class")));
        if !has_device(Path::new(DEVICES)) {
            let reason = Ucx::load("libforebay-no-such.so.0", UcxPolicy::Rdma).unwrap_err();
            assert_eq!(reason, "this node has no RDMA device");
        }
        let reason = Ucx::load("libforebay-no-such.so.0", UcxPolicy::AnyTransport).unwrap_err();
        assert!(reason.contains("cannot be loaded"), "{reason}");
    }
}
