//! Processor time of what the engine does, apart from waiting for storage.

use serde::{Deserialize, Serialize};

use crate::error::Error;

/// Costs of one machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Costs {
    /// The machine that they were measured on.
    pub machine: String,
    /// Finding a sample in the index \[ns\].
    pub locate_ns: f64,
    /// Planning a sample: order, segment, reads \[ns\].
    pub plan_ns: f64,
    /// Gathering a sample, besides copying its bytes \[ns\].
    pub gather_ns: f64,
    /// Copying, by one thread \[B/s\].
    pub copy_bytes_per_second: f64,
    /// One `pread`, besides copying its bytes \[ns\].
    pub read_ns: f64,
    /// Sending one request of the page cache to the file system \[ns\].
    pub request_ns: f64,
    /// The first touch of a mapped page that is in memory \[ns\]: the kernel maps its neighbours
    /// with it.
    pub fault_ns: f64,
    /// Passing a record with a cursor, in a Python program \[ns\].
    pub pass_ns: f64,
    /// Waking a thread that waits \[ns\].
    pub wake_ns: f64,
    /// Serving a part of a share to another node, or receiving it, besides its bytes \[ns\].
    pub serve_ns: f64,
    /// Serving, or receiving, by one thread \[B/s\].
    pub serve_bytes_per_second: f64,
    /// A message between two ranks, and a step of an all-reduce \[ns\].
    pub message_ns: f64,
    /// Making a loader, besides what it waits for \[ns\].
    pub start_up_ns: f64,
}

impl Default for Costs {
    /// Two cores of a virtual machine, by `forebay costs`; a request there is one to a FUSE mount.
    fn default() -> Costs {
        Costs {
            machine: "2 cores, x86-64, virtual".to_owned(),
            locate_ns: 95.0,
            plan_ns: 85.0,
            gather_ns: 95.0,
            copy_bytes_per_second: 9e9,
            read_ns: 700.0,
            request_ns: 50_000.0,
            fault_ns: 20.0,
            pass_ns: 95.0,
            wake_ns: 5_000.0,
            message_ns: 13_500.0,
            start_up_ns: 16_000_000.0,
            // docs/results/store.md, two nodes: 0.41 s per GiB for parts of 64 KiB and more, 0.76 s
            // for parts of 3 KiB; half of that on each side.
            serve_ns: 500.0,
            serve_bytes_per_second: 5.2e9,
        }
    }
}

impl Costs {
    /// Validates the numbers; the error names the first invalid one.
    pub fn check(&self) -> Result<(), Error> {
        for (what, value) in [
            ("costs.locate_ns", self.locate_ns),
            ("costs.plan_ns", self.plan_ns),
            ("costs.gather_ns", self.gather_ns),
            ("costs.read_ns", self.read_ns),
            ("costs.request_ns", self.request_ns),
            ("costs.fault_ns", self.fault_ns),
            ("costs.pass_ns", self.pass_ns),
            ("costs.wake_ns", self.wake_ns),
            ("costs.message_ns", self.message_ns),
            ("costs.serve_ns", self.serve_ns),
            ("costs.start_up_ns", self.start_up_ns),
        ] {
            if !(0.0..=1e12).contains(&value) {
                return Err(Error::job(what, "0 to 1e12", &value));
            }
        }
        for (what, rate) in [
            ("costs.copy_bytes_per_second", self.copy_bytes_per_second),
            ("costs.serve_bytes_per_second", self.serve_bytes_per_second),
        ] {
            if !(1.0..=1e18).contains(&rate) {
                return Err(Error::job(what, "1 to 1e18", &rate));
            }
        }
        Ok(())
    }

    /// Time to serve or to receive parts of a share \[ns\].
    pub(crate) fn serve(&self, parts: u64, bytes: u64) -> u64 {
        nanoseconds(parts as f64 * self.serve_ns + bytes as f64 / self.serve_bytes_per_second * 1e9)
    }

    /// Time to copy bytes \[ns\].
    pub(crate) fn copy(&self, bytes: u64) -> u64 {
        nanoseconds(bytes as f64 / self.copy_bytes_per_second * 1e9)
    }
}

/// Rounds a duration \[ns\].
pub(crate) fn nanoseconds(duration: f64) -> u64 {
    duration.round() as u64
}
