//! Injected faults.
//!
//! Unreadable ranges take effect here. The model executes stalls and slow servers, the mounts
//! execute partitions; here the former two are recorded for the report.
use std::collections::BTreeMap;

use forebay_model::{FileId, ModelTime, ServerId};
use serde::{Deserialize, Serialize};

/// A request to inject or clear faults, as the control socket takes it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase", deny_unknown_fields)]
pub enum Fault {
    /// Reads of a range of a file fail with EIO.
    Eio {
        /// Path below the root of the file system.
        file: String,
        /// First unreadable byte.
        from: u64,
        /// First readable byte after it.
        to: u64,
    },
    /// A server begins nothing new for a while.
    Stall {
        /// Number of the server.
        server: u32,
        /// Duration \[model s\].
        for_seconds: f64,
    },
    /// A server takes `factor` times as long; 1 is normal.
    Slow {
        /// Number of the server.
        server: u32,
        /// Factor on its times.
        factor: f64,
    },
    /// All requests to a mount fail with ENOTCONN.
    Partition {
        /// The mount point.
        mount: String,
    },
    /// Clears all faults; a mount whose connection was aborted stays partitioned.
    Clear,
}

/// The current faults.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Faults {
    unreadable: Vec<(FileId, u64, u64)>,
    stalled: BTreeMap<ServerId, ModelTime>,
    slow: BTreeMap<ServerId, f64>,
}

impl Faults {
    /// Makes `[from, to)` of a file unreadable.
    pub(crate) fn add_unreadable(&mut self, file: FileId, from: u64, to: u64) {
        self.unreadable.push((file, from, to));
    }

    /// Records a stall.
    pub(crate) fn stall(&mut self, server: ServerId, until: ModelTime) {
        self.stalled.insert(server, until);
    }

    /// Records a slow server; factor 1 removes it.
    pub(crate) fn slow(&mut self, server: ServerId, factor: f64) {
        if (factor - 1.0).abs() < f64::EPSILON {
            self.slow.remove(&server);
        } else {
            self.slow.insert(server, factor);
        }
    }

    /// The first unreadable byte of `[offset, offset + length)`.
    pub(crate) fn first_bad(&self, file: FileId, offset: u64, length: u64) -> Option<u64> {
        let end = offset.saturating_add(length);
        self.unreadable
            .iter()
            .filter(|&&(other, from, to)| other == file && from < end && offset < to && from < to)
            .map(|&(_, from, _)| from.max(offset))
            .min()
    }

    /// The unreadable ranges.
    pub(crate) fn unreadable(&self) -> &[(FileId, u64, u64)] {
        &self.unreadable
    }

    /// The servers that are stalled at `now`, and the end of each stall.
    pub(crate) fn stalled(&self, now: ModelTime) -> impl Iterator<Item = (ServerId, ModelTime)> {
        self.stalled.iter().map(|(&server, &until)| (server, until)).filter(move |&(_, until)| until > now)
    }

    /// The slow servers and their factors.
    pub(crate) fn slowed(&self) -> impl Iterator<Item = (ServerId, f64)> {
        self.slow.iter().map(|(&server, &factor)| (server, factor))
    }

    /// Clears all faults; returns the servers that the model must restore.
    pub(crate) fn clear(&mut self) -> Vec<ServerId> {
        let servers = self.stalled.keys().chain(self.slow.keys()).copied().collect();
        *self = Faults::default();
        servers
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_bad_byte_of_a_read_is_found() {
        let mut faults = Faults::default();
        faults.add_unreadable(FileId(1), 100, 200);
        faults.add_unreadable(FileId(1), 50, 60);
        faults.add_unreadable(FileId(1), 70, 70);
        assert_eq!(faults.first_bad(FileId(1), 0, 50), None);
        assert_eq!(faults.first_bad(FileId(1), 0, 51), Some(50));
        assert_eq!(faults.first_bad(FileId(1), 60, 1000), Some(100));
        assert_eq!(faults.first_bad(FileId(1), 150, 10), Some(150));
        assert_eq!(faults.first_bad(FileId(1), 200, u64::MAX), None);
        assert_eq!(faults.first_bad(FileId(2), 0, 1000), None);
        assert_eq!(faults.clear(), []);
        assert_eq!(faults.first_bad(FileId(1), 0, 1000), None);
    }

    #[test]
    fn clearing_returns_the_servers_that_were_stalled_or_slow() {
        let mut faults = Faults::default();
        faults.stall(ServerId(2), 10);
        faults.slow(ServerId(0), 4.0);
        faults.slow(ServerId(1), 4.0);
        faults.slow(ServerId(1), 1.0);
        assert_eq!(faults.stalled(9).count(), 1);
        assert_eq!(faults.stalled(10).count(), 0);
        assert_eq!(faults.slowed().collect::<Vec<_>>(), [(ServerId(0), 4.0)]);
        assert_eq!(faults.clear(), [ServerId(2), ServerId(0)]);
    }

    #[test]
    fn a_fault_is_parsed_strictly() {
        let fault: Fault = serde_json::from_str(r#"{"kind":"eio","file":"a","from":1,"to":2}"#).unwrap();
        assert_eq!(fault, Fault::Eio { file: "a".into(), from: 1, to: 2 });
        assert!(serde_json::from_str::<Fault>(r#"{"kind":"eio","file":"a","from":1,"to":2,"x":3}"#).is_err());
        assert!(serde_json::from_str::<Fault>(r#"{"kind":"flood"}"#).is_err());
    }
}
