//! The facts of a job from which the engine decides.

use forebay_model::spec::PAGE_BYTES;
use forebay_plan::Order;
use forebay_plan::config::{
    AccessChoice, Budget, DataFacts, DirectIo, Mapping, MemoryFacts, StorageFacts, StorageKind, budget,
    default_memory_bytes, wants_direct,
};
use forebay_plan::options::{LoaderOptions, TierOptions, TierSpec};

use crate::error::Error;
use crate::job::Job;
use crate::places::Places;
use crate::tier::Tier;

impl Job {
    pub(crate) fn loader_options(&self, node_ranks: u32) -> LoaderOptions {
        LoaderOptions {
            name: "simulated".to_owned(),
            job: "simulated".to_owned(),
            node: "0".to_owned(),
            rank: 0,
            size: self.ranks,
            local_rank: 0,
            local_ranks: (0..node_ranks).collect(),
            batch_size: self.batch_size,
            order: self.order.clone(),
            seed: self.seed,
            last_batch: self.last_batch,
            expected_epochs: Some(self.epochs),
            node_memory_bytes: self.node_memory_bytes,
            strategy: self.strategy.clone(),
            skips_bad_samples: false,
            checksums: false,
            timeout_s: 600,
            // Rows that cannot have tiers have none, as with those that an administrator names.
            tiers: TierOptions { tiers: (0..).zip(&self.tiers).map(tier_spec).collect(), of_system: true },
            store: self.store,
            store_of_system: false,
        }
    }

    pub(crate) fn storage_facts(
        &self,
        options: &LoaderOptions,
        data: &DataFacts,
        order: &Order,
    ) -> StorageFacts {
        let read_options = options.read_options(false, 0);
        let (source, memory_bytes) = (StorageKind::Network, self.machine.memory_bytes);
        let wanted = wants_direct(&read_options, data, source, order.kind(), false, memory_bytes);
        StorageFacts {
            source,
            mapping: if options.strategy.access == AccessChoice::Mmap {
                Mapping::Cold
            } else {
                Mapping::None
            },
            direct: if wanted { DirectIo::IoUring } else { DirectIo::Unavailable },
            memory_bytes,
        }
    }

    pub(crate) fn budget(&self) -> Result<Budget, Error> {
        let memory_bytes = self.machine.memory_bytes;
        let facts = MemoryFacts {
            requested_bytes: self.node_memory_bytes,
            // A program keeps its batches as it likes.
            default_bytes: match self.program {
                Some(_) => memory_bytes,
                None => default_memory_bytes(memory_bytes),
            },
            free_bytes: memory_bytes,
            address_left_bytes: None,
            held_bytes: 0,
        };
        budget(&facts).map_err(|bound| {
            let found = self.node_memory_bytes.unwrap_or_default();
            Error::job("node_memory_bytes", format!("at most {}", bound.bytes()), &found)
        })
    }
}

fn tier_spec((number, tier): (u32, &Tier)) -> TierSpec {
    TierSpec { path: format!("tier{number}").into(), bytes: tier.bytes, keep: false, force: false }
}

pub(crate) fn data_facts(places: &Places, largest_batch: u64) -> DataFacts {
    // Ids, and the values of one field.
    let batch_bytes = largest_batch * (8 + places.sample_bytes());
    DataFacts {
        samples: places.samples(),
        record_bytes: places.record_bytes(),
        drawn_bytes: places.record_bytes(),
        file_bytes: places.file_bytes(),
        unit_samples: 1,
        is_coded: false,
        has_sample_files: places.has_sample_files(),
        has_checksums: false,
        batch_bytes: batch_bytes.next_multiple_of(PAGE_BYTES),
        ragged_bytes: 0,
        stream_bytes: 0,
        stream_unit_bytes: 0,
    }
}
