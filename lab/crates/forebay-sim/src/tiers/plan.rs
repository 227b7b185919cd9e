//! What a node copies into its tiers, and where: decided by the functions that the engine calls.

use std::convert::Infallible;

use forebay_plan::config::{TieringFacts, decide_tiering};
use forebay_plan::{
    ChunkMap, ChunkSet, Copies, Order, Placement, TierLevel, chunks_of_share, dataset_key, slots_of_levels,
};
use forebay_types::CHUNK_BYTES;

use crate::decided::Decisions;
use crate::error::Error;
use crate::job::Job;
use crate::places::Places;
use crate::shares::DATASET;

/// How a node uses its tiers.
#[derive(Clone, Debug)]
pub(crate) struct TierPlan {
    placement: Placement,
    /// The chunks that are placed, by their places in the set; all where there is none.
    own_chunks: Option<ChunkSet>,
    /// Whether what is read is copied.
    pub(crate) makes_copies: bool,
    /// Chunks that each tier has room for.
    pub(crate) slots: Vec<u64>,
    /// Memory for copies on their way, of all processes of the node \[B\].
    pub(crate) buffer_bytes: u64,
}

impl TierPlan {
    /// Decides for a node; `None` without tiers.
    ///
    /// # Errors
    ///
    /// More chunks than a placement can number.
    pub(crate) fn of(
        job: &Job,
        places: &Places,
        chunks: &ChunkMap,
        order: &Order,
        (node, decided): (u32, &Decisions),
    ) -> Result<Option<TierPlan>, Error> {
        if !decided.has_tiers {
            return Ok(None);
        }
        let node_ranks = job.ranks_of(node).len() as u64;
        let slots: Vec<u64> =
            slots_of_levels(chunks.chunks(), job.tiers.iter().map(|tier| tier.bytes / CHUNK_BYTES)).collect();
        let levels: Vec<TierLevel> =
            slots.iter().map(|slots| TierLevel { slots: *slots, held_chunks: 0, held_bytes: 0 }).collect();
        let own_chunks = order.shares().map(|shares| {
            let Ok(own) =
                chunks_of_share::<_, Infallible>(places, chunks, shares, node as usize, &mut |_, _| Ok(()));
            own
        });
        let facts = TieringFacts {
            order,
            settings: &decided.settings,
            nodes: (u64::from(job.ranks) / node_ranks).max(1),
            node_ranks,
            data_bytes: places.file_bytes(),
            chunks: chunks.chunks(),
            own_chunks: own_chunks.as_ref().map(ChunkSet::len),
            has_sample_files: places.has_sample_files(),
            levels: &levels,
            epochs: Some(job.epochs),
            source_in_memory: false,
            buffer_bytes: decided.copy_buffer_bytes,
            key: dataset_key(DATASET),
        };
        let tiering = decide_tiering(&facts, places)
            .map_err(|error| Error::job("tiers", "a placement", &error.to_string()))?;
        Ok(Some(TierPlan {
            placement: tiering.placement,
            own_chunks,
            makes_copies: tiering.copies == Copies::Pieces,
            slots,
            buffer_bytes: tiering.buffer_bytes * node_ranks,
        }))
    }

    /// The tier that a chunk is copied to.
    pub(crate) fn level(&self, chunk: u64) -> Option<u8> {
        match &self.own_chunks {
            Some(own) => own.place(chunk).and_then(|place| self.placement.level(place)),
            None => self.placement.level(chunk),
        }
    }
}
