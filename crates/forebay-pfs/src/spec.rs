//! One file system in numbers.
//!
//! A [`Spec`] comes from a preset, from a TOML file whose keys are its field names, or from code; [`Spec::check`] says what is wrong with
//! it, field by field. What the numbers do is told in `model` and `client`, to the formula in docs/cost-model.md.
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::presets;

/// A target so fast that no request takes a nanosecond of it \[B/s\]: JSON has no infinity.
pub(crate) const FREE_BYTES_PER_SECOND: f64 = 1e18;

/// What Linux reads ahead where nobody says otherwise \[B\] (mm/readahead.c, `VM_READAHEAD_PAGES`).
const KERNEL_READ_AHEAD_BYTES: u64 = 128 * 1024;

/// Total rate that an emulator on a small machine carries without becoming the bottleneck \[B/s\] (two cores under foreign load).
const EMULATOR_BYTES_PER_SECOND: f64 = 0.4e9;

/// Latency beside which the emulator's own lateness (0.05 to 0.1 ms) is small \[µs\].
const EMULATOR_LATENCY_US: f64 = 500.0;

/// Pages of client and server caches \[B\].
pub const PAGE_BYTES: u64 = 4096;

/// One file system: servers, network, clients.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spec {
    /// What it is called.
    pub name: String,
    /// What it imitates.
    #[serde(default)]
    pub about: String,
    /// Servers that hold data: object storage targets, NSD servers, bricks.
    pub targets: u32,
    /// What one target moves, in either direction \[B/s\].
    pub target_bytes_per_second: f64,
    /// Network and server, per request, however small \[µs\]; no queue, so many requests bear it side by side.
    pub latency_us: f64,
    /// What a target does first when a request does not follow the last one on that object \[µs\].
    #[serde(default)]
    pub seek_us: f64,
    /// A request smaller than this costs a seek divided by `data_disks` \[B\].
    #[serde(default)]
    pub small_request_bytes: u64,
    /// Disks of a target that serve small requests side by side.
    #[serde(default = "one")]
    pub data_disks: u32,
    /// Consecutive bytes of a file on one target \[B\].
    pub stripe_bytes: u64,
    /// Targets that a file is spread over.
    pub stripe_count: u32,
    /// The most bytes that one request to a target carries (an RPC) \[B\].
    pub request_bytes: u64,
    /// Requests that a node has in flight to one target.
    pub request_depth: u32,
    /// The most that `read()` reads ahead \[B\].
    #[serde(default = "kernel_read_ahead")]
    pub read_ahead_bytes: u64,
    /// The aligned window that page faults of a mapping read ahead in \[B\].
    #[serde(default = "kernel_read_ahead")]
    pub read_ahead_mmap_bytes: u64,
    /// What the link of one node carries, in each direction \[B/s\].
    #[serde(default)]
    pub link_bytes_per_second: Option<f64>,
    /// One open or stat on an idle metadata server \[µs\].
    pub metadata_us: f64,
    /// What the metadata server does at most, for all nodes together \[1/s\].
    #[serde(default)]
    pub metadata_operations_per_second: Option<f64>,
    /// What one node keeps of what it read \[B\]; absent: as much as the machine has.
    #[serde(default)]
    pub cache_bytes: Option<u64>,
    /// Latency and seeks are longer by a random part of up to this fraction.
    #[serde(default)]
    pub jitter: f64,
    /// Field by field, where its number comes from; `E` marks an estimate.
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
    /// The preset of this name; `none` is [`Spec::free`].
    pub fn preset(name: &str) -> Result<Spec, Error> {
        if name == "none" {
            return Ok(Spec::free());
        }
        let text = presets::text(name)
            .ok_or_else(|| Error::UnknownPreset { name: name.to_owned(), known: presets::NAMES })?;
        Spec::from_toml(text, &format!("preset {name}"))
    }

    /// All presets that imitate something; `none` is not among them.
    pub fn preset_names() -> &'static [&'static str] {
        presets::NAMES
    }

    /// Reads a specification; `path` is only for messages.
    pub fn from_toml(text: &str, path: &str) -> Result<Spec, Error> {
        let spec: Spec = toml::from_str(text)
            .map_err(|source| Error::Toml { path: path.to_owned(), source: Box::new(source) })?;
        spec.check()?;
        Ok(spec)
    }

    /// This specification with some fields changed: a JSON object of field names and values.
    ///
    /// A number that is replaced loses its source.
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

    /// A file system that costs nothing: what is left is the machine's own floor.
    pub fn free() -> Spec {
        Spec {
            name: "none".to_owned(),
            about: "No costs: shows what the machine and the emulator themselves cost.".to_owned(),
            targets: 1,
            target_bytes_per_second: FREE_BYTES_PER_SECOND,
            latency_us: 0.0,
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
            metadata_us: 0.0,
            metadata_operations_per_second: None,
            cache_bytes: None,
            jitter: 0.0,
            sources: BTreeMap::new(),
        }
    }

    /// Whether no request of any size costs anything.
    pub fn is_free(&self) -> bool {
        self.target_bytes_per_second >= FREE_BYTES_PER_SECOND
            && self.latency_us == 0.0
            && self.seek_us == 0.0
            && self.metadata_us == 0.0
            && self.link_bytes_per_second.is_none()
            && self.metadata_operations_per_second.is_none()
    }

    /// This file system with fewer (or more) targets; a file is spread over no more than there are.
    #[must_use]
    pub fn with_targets(&self, targets: u32) -> Spec {
        Spec { targets, stripe_count: self.stripe_count.min(targets), ..self.clone() }
    }

    /// Factor by which a small machine must stretch model time to carry this file system, at least 1.
    ///
    /// `max(all targets' rate / 0.4 GB/s, 0.5 ms / latency)`.
    pub fn suggested_time_scale(&self) -> f64 {
        if self.is_free() {
            return 1.0;
        }
        let rate = f64::from(self.targets) * self.target_bytes_per_second / EMULATOR_BYTES_PER_SECOND;
        let latency =
            if self.latency_us > 0.0 { EMULATOR_LATENCY_US / self.latency_us } else { f64::INFINITY };
        // A latency of zero cannot be stretched; then only the rate counts.
        let factor = if latency.is_finite() { rate.max(latency) } else { rate };
        factor.max(1.0)
    }

    /// The most that large sequential reads of one file can reach from so many nodes \[B/s\].
    ///
    /// The least of what the targets of its stripes move, what the nodes' links carry, and what their requests in flight can carry
    /// given the latency.
    pub fn limit_bytes_per_second(&self, nodes: u32) -> f64 {
        if self.is_free() {
            return f64::INFINITY;
        }
        let targets = f64::from(self.stripe_count);
        let nodes = f64::from(nodes.max(1));
        let disks = targets * self.target_bytes_per_second;
        let links = nodes * self.link_bytes_per_second.unwrap_or(f64::INFINITY);
        let request_bytes = self.request_bytes.min(self.stripe_bytes) as f64;
        let seconds = self.latency_us / 1e6 + request_bytes / self.target_bytes_per_second;
        let flight = nodes * targets * f64::from(self.request_depth) * request_bytes / seconds;
        disks.min(links).min(flight)
    }

    /// The most that reads of so many bytes each, at random places of one file, can reach from so many nodes \[B/s\].
    ///
    /// Like [`Spec::limit_bytes_per_second`], where each read costs a seek on every target that it touches. It holds for reads that begin at
    /// a stripe edge, and however many are in flight.
    pub fn limit_of_random_reads(&self, nodes: u32, read_bytes: u64) -> f64 {
        if self.is_free() || read_bytes == 0 {
            return f64::INFINITY;
        }
        let touched = read_bytes.div_ceil(self.stripe_bytes).min(self.stripe_count.into()) as f64;
        let piece_bytes = read_bytes.min(self.request_bytes).min(self.stripe_bytes);
        let disks = if piece_bytes < self.small_request_bytes { f64::from(self.data_disks) } else { 1.0 };
        let seeks = touched * self.seek_us / disks / 1e6;
        let work_seconds = seeks + read_bytes as f64 / self.target_bytes_per_second;
        let disks = f64::from(self.stripe_count) * read_bytes as f64 / work_seconds;
        disks.min(self.limit_bytes_per_second(nodes))
    }

    /// Says which field is wrong, if one is.
    pub fn check(&self) -> Result<(), Error> {
        let whole = |field, value: u64, least: u64, most: u64| {
            self.expect(field, (least..=most).contains(&value), value, || format!("{least} to {most}"))
        };
        let real = |field, value: f64, least: f64, most: f64| {
            self.expect(field, (least..=most).contains(&value), value, || format!("{least} to {most:e}"))
        };
        let pages = |field, value: u64| {
            let most = 1 << 40;
            self.expect(field, value > 0 && value.is_multiple_of(PAGE_BYTES) && value <= most, value, || {
                format!("a multiple of {PAGE_BYTES}, at most {most}")
            })
        };
        self.expect("name", !self.name.is_empty(), "\"\"", || "a name".to_owned())?;
        whole("targets", self.targets.into(), 1, 1 << 16)?;
        // Below 1 B/s one request could outlast the clock.
        real("target_bytes_per_second", self.target_bytes_per_second, 1.0, FREE_BYTES_PER_SECOND)?;
        let hour_us = 3600e6;
        real("latency_us", self.latency_us, 0.0, hour_us)?;
        real("seek_us", self.seek_us, 0.0, hour_us)?;
        whole("small_request_bytes", self.small_request_bytes, 0, 1 << 40)?;
        whole("data_disks", self.data_disks.into(), 1, 1 << 16)?;
        pages("stripe_bytes", self.stripe_bytes)?;
        whole("stripe_count", self.stripe_count.into(), 1, self.targets.into())?;
        pages("request_bytes", self.request_bytes)?;
        whole("request_depth", self.request_depth.into(), 1, u32::MAX.into())?;
        whole("read_ahead_bytes", self.read_ahead_bytes, 0, 1 << 40)?;
        whole("read_ahead_mmap_bytes", self.read_ahead_mmap_bytes, 0, 1 << 40)?;
        if let Some(rate) = self.link_bytes_per_second {
            real("link_bytes_per_second", rate, 1.0, FREE_BYTES_PER_SECOND)?;
        }
        real("metadata_us", self.metadata_us, 0.0, hour_us)?;
        if let Some(rate) = self.metadata_operations_per_second {
            real("metadata_operations_per_second", rate, 1e-3, 1e12)?;
        }
        if let Some(bytes) = self.cache_bytes {
            whole("cache_bytes", bytes, PAGE_BYTES, 1 << 60)?;
        }
        real("jitter", self.jitter, 0.0, 100.0)?;
        for field in self.sources.keys() {
            self.expect(&format!("sources.{field}"), is_field(field), "a source", || {
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

/// Whether a specification has such a field.
fn is_field(name: &str) -> bool {
    let known = serde_json::to_value(Spec::free()).expect("a specification is plain data");
    known.get(name).is_some()
}
