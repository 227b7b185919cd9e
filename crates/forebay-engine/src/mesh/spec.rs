//! The nodes of a job, their leaders, and the secret that they share.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::endpoint::Endpoint;
use super::error::LinkError;
use super::hex::{from_hex, to_hex};
use crate::base::failure::PeerFailure;

/// Maximum number of linked nodes.
///
/// Every leader holds one connection to every other one, and the usual limit of 1024 open files
/// must leave room for the training script's own. 512 nodes of 36 ranks are 18,432 ranks.
pub const MAX_NODES: usize = 512;

/// Bytes of the secret.
pub const SECRET_BYTES: usize = 32;

/// The secret of a job's loader. The job's own channel (MPI or a socket) distributes it; no link
/// carries it and no message shows it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Secret([u8; SECRET_BYTES]);

impl Secret {
    /// A secret of these bytes.
    #[must_use]
    pub fn new(bytes: [u8; SECRET_BYTES]) -> Self {
        Self(bytes)
    }

    /// A secret for another purpose, from which this one cannot be found.
    #[must_use]
    pub fn derive(&self, purpose: &str) -> [u8; SECRET_BYTES] {
        blake3::derive_key(purpose, &self.0)
    }

    pub(super) fn bytes(&self) -> &[u8; SECRET_BYTES] {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

impl TryFrom<String> for Secret {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let bytes = from_hex(&text).and_then(|bytes| bytes.try_into().ok());
        bytes.map(Self).ok_or_else(|| format!("a secret is {} hexadecimal digits", 2 * SECRET_BYTES))
    }
}

impl From<Secret> for String {
    fn from(secret: Secret) -> Self {
        to_hex(&secret.0)
    }
}

/// A node of the job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeFacts {
    /// Its name, for messages.
    pub name: String,
    /// Ranks in the job of its ranks, by local rank; the first one leads.
    pub ranks: Vec<u32>,
    /// Process ids of those, as the node sees them; for messages.
    pub pids: Vec<i32>,
}

/// All nodes of the job, in the order of their leaders' ranks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Nodes(pub Vec<NodeFacts>);

impl Nodes {
    /// The leader of a node, for messages.
    #[must_use]
    pub fn leader(&self, node: usize) -> String {
        match self.0.get(node) {
            Some(facts) => format!(
                "rank {} (the leader of node {}, process {})",
                facts.ranks.first().copied().unwrap_or_default(),
                facts.name,
                facts.pids.first().copied().unwrap_or_default()
            ),
            None => format!("node {node}"),
        }
    }

    /// The name of the node on which a rank runs.
    #[must_use]
    pub fn node_of(&self, rank: u32) -> Option<&str> {
        self.0.iter().find(|facts| facts.ranks.contains(&rank)).map(|facts| facts.name.as_str())
    }

    /// The loss of the leader of a node.
    pub(super) fn loss(&self, node: usize, cause: crate::base::failure::Cause) -> PeerFailure {
        let facts = &self.0[node];
        PeerFailure { cause, rank: facts.ranks[0], pid: facts.pids[0] }
    }
}

/// What a leader needs to make its links.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinksSpec {
    /// Index of this node among the nodes.
    pub own_node: usize,
    /// All nodes.
    pub nodes: Nodes,
    /// Where their leaders listen.
    pub endpoints: Vec<Endpoint>,
    /// Proves that a peer belongs to the job.
    pub secret: Secret,
}

impl LinksSpec {
    pub(super) fn check(&self) -> Result<(), LinkError> {
        let nodes = &self.nodes.0;
        let wrong = |message: String| Err(LinkError::Usage { message });
        if nodes.len() != self.endpoints.len() || self.own_node >= nodes.len() {
            return wrong(format!(
                "node {} of {} nodes with {} addresses",
                self.own_node,
                nodes.len(),
                self.endpoints.len()
            ));
        }
        if nodes.len() > MAX_NODES {
            return wrong(format!("too many nodes: {} (at most {MAX_NODES} can be linked)", nodes.len()));
        }
        match nodes.iter().find(|facts| facts.ranks.is_empty() || facts.ranks.len() != facts.pids.len()) {
            Some(facts) => wrong(format!(
                "node {} has {} ranks and {} processes",
                facts.name,
                facts.ranks.len(),
                facts.pids.len()
            )),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_read_and_never_shown() {
        let secret = Secret::new([0xab; SECRET_BYTES]);
        let text = serde_json::to_string(&secret).unwrap();
        assert_eq!(serde_json::from_str::<Secret>(&text).unwrap(), secret);
        assert_eq!(format!("{secret:?}"), "Secret(..)");
        for wrong in ["\"ab\"", "\"\"", "\"zz\"", "\"é\""] {
            assert!(serde_json::from_str::<Secret>(wrong).is_err());
        }
    }
}
