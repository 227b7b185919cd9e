//! Identifiers of the model, and its time.
use serde::{Deserialize, Serialize};

/// Nanoseconds since the model's start, in the time of the modelled file system.
pub type ModelTime = u64;

/// A client of the file system, with its own link and its own requests in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct NodeId(pub u32);

/// A file. Consecutive numbers begin on consecutive servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct FileId(pub u64);

/// A server (target).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ServerId(pub u32);
