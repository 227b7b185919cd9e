//! One file system as numbers.
//!
//! A [`Spec`] comes from a preset, from a TOML file whose keys are the field names, or from code.
//! [`Spec::check`] validates each field. docs/cost-model.md has the formulas that use them.
mod presets;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::error::Error;

/// A rate at which no request takes a nanosecond \[B/s\]; JSON has no infinity.
pub(crate) const FREE_BYTES_PER_SECOND: f64 = 1e18;

/// Default read-ahead of Linux \[B\] (mm/readahead.c, `VM_READAHEAD_PAGES`).
const KERNEL_READ_AHEAD_BYTES: u64 = 128 * 1024;

/// Total rate that an emulator carries on a small machine (two cores under other load) \[B/s\].
const EMULATOR_BYTES_PER_SECOND: f64 = 0.4e9;

/// Latency next to which the emulator's own lateness (50 to 100 µs) is small \[µs\].
const EMULATOR_LATENCY_US: f64 = 500.0;

/// Page size of the client \[B\].
pub const PAGE_BYTES: u64 = 4096;

/// One file system: servers, network and clients.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spec {
    /// Name.
    pub name: String,
    /// The file system that it models.
    #[serde(default)]
    pub about: String,
    /// Number of servers that hold data: object storage targets, NSD servers, bricks.
    pub targets: u32,
    /// Bandwidth of one target, reads and writes together \[B/s\].
    pub target_bytes_per_second: f64,
    /// Latency of network and server per request \[µs\]. A delay, not work: any number of requests
    /// overlap in it.
    pub latency_us: f64,
    /// Work of a target for each request, whatever its size \[µs\].
    #[serde(default)]
    pub request_us: f64,
    /// Seek before a request that does not continue the last one of its object \[µs\].
    #[serde(default)]
    pub seek_us: f64,
    /// For smaller requests the seek is divided by `data_disks` \[B\].
    #[serde(default)]
    pub small_request_bytes: u64,
    /// Disks of a target that serve small requests in parallel.
    #[serde(default = "one")]
    pub data_disks: u32,
    /// Consecutive bytes of a file on one target \[B\].
    pub stripe_bytes: u64,
    /// Number of targets that a file is striped over.
    pub stripe_count: u32,
    /// Largest request to a target (RPC) \[B\].
    pub request_bytes: u64,
    /// Requests that a node keeps in flight to one target.
    pub request_depth: u32,
    /// Largest read-ahead of `read()` \[B\].
    #[serde(default = "kernel_read_ahead")]
    pub read_ahead_bytes: u64,
    /// Aligned read-ahead window of page faults \[B\].
    #[serde(default = "kernel_read_ahead")]
    pub read_ahead_mmap_bytes: u64,
    /// Bandwidth of the link of one node, per direction \[B/s\]; absent: unlimited.
    #[serde(default)]
    pub link_bytes_per_second: Option<f64>,
    /// Largest rate at which one node reads one file \[B/s\]; absent: unlimited.
    #[serde(default)]
    pub stream_bytes_per_second: Option<f64>,
    /// Delay of the first request of a node to an object, to get its lock \[µs\].
    #[serde(default)]
    pub lock_us: f64,
    /// Duration of one open or stat on an idle metadata server \[µs\].
    pub metadata_us: f64,
    /// Largest rate of the metadata server, all nodes together \[1/s\]; absent: unlimited.
    #[serde(default)]
    pub metadata_operations_per_second: Option<f64>,
    /// Page cache of one node \[B\]; absent: unlimited.
    #[serde(default)]
    pub cache_bytes: Option<u64>,
    /// Written bytes that the page cache of one node keeps before a write waits for the servers
    /// \[B\]; 0: every write waits.
    #[serde(default)]
    pub write_back_bytes: u64,
    /// Latency and seeks are longer by a random fraction of up to this.
    #[serde(default)]
    pub jitter: f64,
    /// The source of each number, by field; `E` marks an estimate.
    #[serde(default)]
    pub sources: BTreeMap<String, String>,
}

fn one() -> u32 {
    1
}

fn kernel_read_ahead() -> u64 {
    KERNEL_READ_AHEAD_BYTES
}

impl Spec {
    /// Returns a preset; `none` is [`Spec::free`].
    pub fn preset(name: &str) -> Result<Spec, Error> {
        if name == "none" {
            return Ok(Spec::free());
        }
        let text = presets::text(name)
            .ok_or_else(|| Error::UnknownPreset { name: name.to_owned(), known: presets::NAMES })?;
        Spec::from_toml(text, &format!("preset {name}"))
    }

    /// Names of all presets but `none`.
    pub fn preset_names() -> &'static [&'static str] {
        presets::NAMES
    }

    /// Parses a specification; `path` is for messages only.
    pub fn from_toml(text: &str, path: &str) -> Result<Spec, Error> {
        let spec: Spec = toml::from_str(text)
            .map_err(|source| Error::Toml { path: path.to_owned(), source: Box::new(source) })?;
        spec.check()?;
        Ok(spec)
    }

    /// Replaces some fields: a JSON object of field names and values.
    ///
    /// A replaced number loses its source.
    pub fn overridden(&self, fields: &str) -> Result<Spec, Error> {
        let refused = |source| Error::Overrides { name: self.name.clone(), source };
        let changes: serde_json::Map<String, serde_json::Value> =
            serde_json::from_str(fields).map_err(refused)?;
        let mut whole = serde_json::to_value(self).map_err(refused)?;
        for (field, value) in changes {
            if field != "sources"
                && let Some(sources) = whole["sources"].as_object_mut()
            {
                sources.remove(&field);
            }
            whole[field] = value;
        }
        let spec: Spec = serde_json::from_value(whole).map_err(refused)?;
        spec.check()?;
        Ok(spec)
    }

    /// A file system without costs, to measure the machine's own floor.
    pub fn free() -> Spec {
        Spec {
            name: "none".to_owned(),
            about: "No costs: shows what the machine and the emulator themselves cost.".to_owned(),
            targets: 1,
            target_bytes_per_second: FREE_BYTES_PER_SECOND,
            latency_us: 0.0,
            request_us: 0.0,
            seek_us: 0.0,
            small_request_bytes: 0,
            data_disks: 1,
            stripe_bytes: 1 << 20,
            stripe_count: 1,
            request_bytes: 1 << 20,
            request_depth: u32::MAX,
            read_ahead_bytes: KERNEL_READ_AHEAD_BYTES,
            read_ahead_mmap_bytes: KERNEL_READ_AHEAD_BYTES,
            link_bytes_per_second: None,
            stream_bytes_per_second: None,
            lock_us: 0.0,
            metadata_us: 0.0,
            metadata_operations_per_second: None,
            cache_bytes: None,
            write_back_bytes: 0,
            jitter: 0.0,
            sources: BTreeMap::new(),
        }
    }

    /// Whether no request costs anything.
    pub fn is_free(&self) -> bool {
        self.target_bytes_per_second >= FREE_BYTES_PER_SECOND
            && self.latency_us == 0.0
            && self.request_us == 0.0
            && self.seek_us == 0.0
            && self.lock_us == 0.0
            && self.metadata_us == 0.0
            && self.link_bytes_per_second.is_none()
            && self.stream_bytes_per_second.is_none()
            && self.metadata_operations_per_second.is_none()
    }

    /// Changes the number of targets; `stripe_count` shrinks with it.
    #[must_use]
    pub fn with_targets(&self, targets: u32) -> Spec {
        Spec { targets, stripe_count: self.stripe_count.min(targets), ..self.clone() }
    }

    /// The time scale that a small machine needs to emulate this file system, at least 1.
    ///
    /// `max(rate of all targets / 0.4 GB/s, 0.5 ms / latency)`.
    pub fn suggested_time_scale(&self) -> f64 {
        if self.is_free() {
            return 1.0;
        }
        let rate = f64::from(self.targets) * self.target_bytes_per_second / EMULATOR_BYTES_PER_SECOND;
        // No factor lengthens a latency of zero: only the rate counts then.
        let latency = if self.latency_us > 0.0 { EMULATOR_LATENCY_US / self.latency_us } else { 0.0 };
        rate.max(latency).max(1.0)
    }

    /// Largest throughput of large sequential reads of one file by `nodes` nodes \[B/s\].
    ///
    /// The minimum of four limits: the bandwidth of the file's targets, that of the nodes' links,
    /// that of their streams of the file, and that of the requests in flight at the given latency.
    pub fn limit_bytes_per_second(&self, nodes: u32) -> f64 {
        if self.is_free() {
            return f64::INFINITY;
        }
        let targets = f64::from(self.stripe_count);
        let nodes = f64::from(nodes.max(1));
        let request_bytes = self.request_bytes.min(self.stripe_bytes) as f64;
        let service_seconds = self.request_us / 1e6 + request_bytes / self.target_bytes_per_second;
        let disks = targets * request_bytes / service_seconds;
        let links = nodes * self.link_bytes_per_second.unwrap_or(f64::INFINITY);
        let streams = nodes * self.stream_bytes_per_second.unwrap_or(f64::INFINITY);
        let seconds = self.latency_us / 1e6 + service_seconds;
        let flight = nodes * targets * f64::from(self.request_depth) * request_bytes / seconds;
        disks.min(links).min(streams).min(flight)
    }

    /// Largest throughput of reads of `read_bytes` at random offsets of one file \[B/s\].
    ///
    /// Like [`Spec::limit_bytes_per_second`], plus one seek per read on every target that the read
    /// touches. Holds for reads that begin at a stripe edge, whatever the queue depth.
    pub fn limit_of_random_reads(&self, nodes: u32, read_bytes: u64) -> f64 {
        if self.is_free() || read_bytes == 0 {
            return f64::INFINITY;
        }
        let touched = read_bytes.div_ceil(self.stripe_bytes).min(self.stripe_count.into()) as f64;
        let piece_bytes = read_bytes.min(self.request_bytes).min(self.stripe_bytes);
        let disks = if piece_bytes < self.small_request_bytes { f64::from(self.data_disks) } else { 1.0 };
        let seeks = touched * self.seek_us / disks / 1e6;
        let requests = read_bytes.div_ceil(self.request_bytes.min(self.stripe_bytes)) as f64;
        let work_seconds =
            seeks + requests * self.request_us / 1e6 + read_bytes as f64 / self.target_bytes_per_second;
        let disks = f64::from(self.stripe_count) * read_bytes as f64 / work_seconds;
        disks.min(self.limit_bytes_per_second(nodes))
    }

    /// Validates the fields; the error names the first invalid one.
    pub fn check(&self) -> Result<(), Error> {
        let integer = |field, value: u64, min: u64, max: u64| {
            self.expect(field, (min..=max).contains(&value), value, || format!("{min} to {max}"))
        };
        let real = |field, value: f64, min: f64, max: f64| {
            self.expect(field, (min..=max).contains(&value), value, || format!("{min} to {max:e}"))
        };
        let pages = |field, value: u64| {
            let max = 1 << 40;
            self.expect(field, value > 0 && value.is_multiple_of(PAGE_BYTES) && value <= max, value, || {
                format!("a multiple of {PAGE_BYTES}, at most {max}")
            })
        };
        self.expect("name", !self.name.is_empty(), "\"\"", || "a non-empty string".to_owned())?;
        integer("targets", self.targets.into(), 1, 1 << 16)?;
        // Below 1 B/s one request could exceed the clock.
        real("target_bytes_per_second", self.target_bytes_per_second, 1.0, FREE_BYTES_PER_SECOND)?;
        let hour_us = 3600e6;
        real("latency_us", self.latency_us, 0.0, hour_us)?;
        real("request_us", self.request_us, 0.0, hour_us)?;
        real("seek_us", self.seek_us, 0.0, hour_us)?;
        integer("small_request_bytes", self.small_request_bytes, 0, 1 << 40)?;
        integer("data_disks", self.data_disks.into(), 1, 1 << 16)?;
        pages("stripe_bytes", self.stripe_bytes)?;
        integer("stripe_count", self.stripe_count.into(), 1, self.targets.into())?;
        pages("request_bytes", self.request_bytes)?;
        integer("request_depth", self.request_depth.into(), 1, u32::MAX.into())?;
        integer("read_ahead_bytes", self.read_ahead_bytes, 0, 1 << 40)?;
        integer("read_ahead_mmap_bytes", self.read_ahead_mmap_bytes, 0, 1 << 40)?;
        if let Some(rate) = self.link_bytes_per_second {
            real("link_bytes_per_second", rate, 1.0, FREE_BYTES_PER_SECOND)?;
        }
        if let Some(rate) = self.stream_bytes_per_second {
            real("stream_bytes_per_second", rate, 1.0, FREE_BYTES_PER_SECOND)?;
        }
        real("lock_us", self.lock_us, 0.0, hour_us)?;
        real("metadata_us", self.metadata_us, 0.0, hour_us)?;
        if let Some(rate) = self.metadata_operations_per_second {
            real("metadata_operations_per_second", rate, 1e-3, 1e12)?;
        }
        if let Some(bytes) = self.cache_bytes {
            integer("cache_bytes", bytes, PAGE_BYTES, 1 << 60)?;
        }
        integer("write_back_bytes", self.write_back_bytes, 0, 1 << 40)?;
        real("jitter", self.jitter, 0.0, 100.0)?;
        for field in self.sources.keys() {
            self.expect(&format!("sources.{field}"), is_field(field), "an unknown field", || {
                "the name of a field of the specification".to_owned()
            })?;
        }
        Ok(())
    }

    fn expect(
        &self,
        field: &str,
        holds: bool,
        found: impl std::fmt::Display,
        expected: impl FnOnce() -> String,
    ) -> Result<(), Error> {
        if holds {
            return Ok(());
        }
        Err(Error::Field {
            name: self.name.clone(),
            field: field.to_owned(),
            expected: expected(),
            found: found.to_string(),
        })
    }
}

/// Whether a specification has this field.
fn is_field(name: &str) -> bool {
    let known = serde_json::to_value(Spec::free()).expect("a specification is plain data");
    known.get(name).is_some()
}
