//! What a loader tells of itself: counters, bad samples, and what was chosen and why.

use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use crate::engine::Engine;
use crate::links::Watch;
use crate::shuffling;
use crate::stats::{self, COUNTER_NAMES};

impl Engine {
    /// Counters of this rank by name.
    pub fn counters(&self) -> Vec<(&'static str, u64)> {
        if let Some(links) = &self.shared.links {
            self.ward.count(links.messages(), links.received());
        }
        let values = stats::read(self.shared.slot());
        COUNTER_NAMES.iter().map(|(_, name)| *name).zip(values).collect()
    }

    /// Counters added up over the ranks of the node, by name.
    pub fn node_counters(&self) -> Vec<(&'static str, u64)> {
        let mut sums = vec![0; COUNTER_NAMES.len()];
        for slot in self.shared.region.ranks() {
            for (sum, value) in sums.iter_mut().zip(stats::read(slot)) {
                *sum += value;
            }
        }
        COUNTER_NAMES.iter().map(|(_, name)| *name).zip(sums).collect()
    }

    /// Bytes read by this rank's readers for the last epochs: (epoch, bytes).
    pub fn read_bytes_by_epoch(&self) -> Vec<(u64, u64)> {
        self.shared.epoch_reads.all()
    }

    /// The bad samples that this rank has met and skipped, and why each is one.
    pub fn bad_samples(&self) -> Vec<(u64, String)> {
        self.shared.bad_samples.list()
    }

    /// What was chosen and why, a line each.
    pub fn explain(&self) -> Vec<String> {
        let shared = &self.shared;
        let mut lines = shared.reasons.clone();
        lines.extend(shuffling::lines(&shared.order, self.known_epochs(), shared.index.unit_samples()));
        if let Some(reason) = &*shared.fallback.lock().unwrap_or_else(PoisonError::into_inner) {
            lines.push(format!("fallback: {reason}"));
        }
        match shared.region.gate().groups.load(Ordering::Acquire) {
            0 => {}
            groups => lines.push(format!("stagger: the readers take turns in {groups} group(s) at present")),
        }
        lines.push(if self.huge_pages {
            format!("huge pages: {} MiB of the shared memory", shared.region.memory().huge_bytes() >> 20)
        } else {
            "huge pages: this system gives none to shared memory (transparent_hugepage/shmem_enabled)".into()
        });
        if let Some(nodes) = &self.ward.nodes {
            lines.push(format!("nodes: {}, linked by their leaders", nodes.0.len()));
        }
        lines.push(format!(
            "memory now: {} MiB of the shared memory are touched, which is what it costs",
            shared.region.touched_bytes().div_ceil(1 << 20)
        ));
        if shared.buffers.ring.keeps_all() {
            lines.push(
                "batches: the user keeps all buffers, so batches are copied into private memory".into(),
            );
        }
        lines
    }
}
