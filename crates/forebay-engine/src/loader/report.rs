//! What a loader tells of itself: counters, bad samples, and what was chosen and why.

use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use crate::dataset::shuffle_quality;
use crate::loader::Engine;
use crate::mesh::FailureSink;
use crate::shm::counters::{self, COUNTER_NAMES};

impl Engine {
    /// Counters of this rank by name.
    pub fn counters(&self) -> Vec<(&'static str, u64)> {
        if let Some(links) = &self.context.links {
            self.ward.count(links.messages(), links.received());
        }
        let values = counters::read(self.context.slot());
        COUNTER_NAMES.iter().map(|(_, name)| *name).zip(values).collect()
    }

    /// Counters added up over the ranks of the node, by name.
    pub fn node_counters(&self) -> Vec<(&'static str, u64)> {
        let mut sums = vec![0; COUNTER_NAMES.len()];
        for slot in self.context.region.ranks() {
            for (sum, value) in sums.iter_mut().zip(counters::read(slot)) {
                *sum += value;
            }
        }
        COUNTER_NAMES.iter().map(|(_, name)| *name).zip(sums).collect()
    }

    /// Bytes read by this rank's readers for the last epochs: (epoch, bytes).
    pub fn read_bytes_by_epoch(&self) -> Vec<(u64, u64)> {
        self.context.epoch_reads.all()
    }

    /// The bad samples that this rank has met and skipped, and why each is one.
    pub fn bad_samples(&self) -> Vec<(u64, String)> {
        self.context.bad_samples.list()
    }

    /// What was chosen and why, a line each.
    pub fn explain(&self) -> Vec<String> {
        let context = &self.context;
        let mut lines = context.reasons.clone();
        lines.extend(shuffle_quality::lines(
            &context.order,
            self.known_epochs(),
            context.index.unit_samples(),
        ));
        if let Some(reason) = &*context.fallback.lock().unwrap_or_else(PoisonError::into_inner) {
            lines.push(format!("fallback: {reason}"));
        }
        match context.region.gate().groups.load(Ordering::Acquire) {
            0 => {}
            groups => lines.push(format!("stagger: the readers take turns in {groups} group(s) at present")),
        }
        lines.push(if self.huge_pages {
            format!("huge pages: {} MiB of the shared memory", context.region.memory().huge_bytes() >> 20)
        } else {
            "huge pages: this system gives none to shared memory (transparent_hugepage/shmem_enabled)".into()
        });
        if let Some(nodes) = &self.ward.nodes {
            lines.push(format!("nodes: {}, linked by their leaders", nodes.0.len()));
        }
        lines.push(format!(
            "memory now: {} MiB of the shared memory are touched, which is what it costs",
            context.region.touched_bytes().div_ceil(1 << 20)
        ));
        if context.buffers.ring.keeps_all() {
            lines.push(
                "batches: the user keeps all buffers, so batches are copied into private memory".into(),
            );
        }
        lines
    }
}
