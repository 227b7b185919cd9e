//! What is broken on command.
//!
//! Unreadable ranges are looked up here; stalls and slow servers are the model's business, dead mounts the emulator's, and are only
//! remembered here for the report.
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::model::{FileId, ModelTime, ServerId};

/// One order to break something, as it comes over the control socket.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase", deny_unknown_fields)]
pub enum Fault {
    /// Reads of a range of a file fail with EIO.
    Eio {
        /// Path below the root of the file system.
        file: String,
        /// First bad byte.
        from: u64,
        /// First good byte behind it.
        to: u64,
    },
    /// A server begins nothing new for so many model seconds.
    Stall {
        /// Its number.
        server: u32,
        /// How long.
        for_seconds: f64,
    },
    /// A server takes `factor` times as long for everything; 1 is normal.
    Slow {
        /// Its number.
        server: u32,
        /// How many times as long.
        factor: f64,
    },
    /// A mount stops answering: ENOTCONN.
    Partition {
        /// Where it is mounted.
        mount: String,
    },
    /// Nothing is broken any more; a connection that was cut stays cut.
    Clear,
}

/// What is broken now.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Faults {
    bad: Vec<(FileId, u64, u64)>,
    stalled: BTreeMap<ServerId, ModelTime>,
    slow: BTreeMap<ServerId, f64>,
}

impl Faults {
    /// Makes `[from, to)` of a file unreadable.
    pub fn spoil(&mut self, file: FileId, from: u64, to: u64) {
        self.bad.push((file, from, to));
    }

    /// Remembers a stall.
    pub fn stall(&mut self, server: ServerId, until: ModelTime) {
        self.stalled.insert(server, until);
    }

    /// Remembers a slow server; factor 1 forgets it.
    pub fn slow(&mut self, server: ServerId, factor: f64) {
        if (factor - 1.0).abs() < f64::EPSILON {
            self.slow.remove(&server);
        } else {
            self.slow.insert(server, factor);
        }
    }

    /// The first unreadable byte of `[offset, offset + length)`.
    pub fn first_bad(&self, file: FileId, offset: u64, length: u64) -> Option<u64> {
        let end = offset.saturating_add(length);
        self.bad
            .iter()
            .filter(|&&(bad, from, to)| bad == file && from < end && offset < to && from < to)
            .map(|&(_, from, _)| from.max(offset))
            .min()
    }

    /// Unreadable ranges.
    pub fn ranges(&self) -> &[(FileId, u64, u64)] {
        &self.bad
    }

    /// Servers that are stalled at `now`, and until when.
    pub fn stalled(&self, now: ModelTime) -> impl Iterator<Item = (ServerId, ModelTime)> {
        self.stalled.iter().map(|(&server, &until)| (server, until)).filter(move |&(_, until)| until > now)
    }

    /// Servers that are slow, and how slow.
    pub fn slowed(&self) -> impl Iterator<Item = (ServerId, f64)> {
        self.slow.iter().map(|(&server, &factor)| (server, factor))
    }

    /// Forgets everything; answers which servers the model must be told about.
    pub fn clear(&mut self) -> Vec<ServerId> {
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
        faults.spoil(FileId(1), 100, 200);
        faults.spoil(FileId(1), 50, 60);
        faults.spoil(FileId(1), 70, 70);
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
    fn servers_that_were_stalled_or_slow_are_named_when_all_is_cleared() {
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
    fn an_order_is_read_strictly() {
        let order: Fault = serde_json::from_str(r#"{"kind":"eio","file":"a","from":1,"to":2}"#).unwrap();
        assert_eq!(order, Fault::Eio { file: "a".into(), from: 1, to: 2 });
        assert!(serde_json::from_str::<Fault>(r#"{"kind":"eio","file":"a","from":1,"to":2,"x":3}"#).is_err());
        assert!(serde_json::from_str::<Fault>(r#"{"kind":"flood"}"#).is_err());
    }
}
