//! Whether copying what is read into storage tiers pays.
//!
//! A copy is made of whole pieces, so reads are widened to pieces. That is free where a node reads
//! the rest of each piece anyway: on one node, and in orders that give a node runs of many pieces.
//! Small samples that are shuffled over W nodes are read by each node together with their
//! neighbours: W·q + (1 − q) datasets in epoch 1, which later epochs pay back one q at a time.

use serde::{Deserialize, Serialize};

use crate::tier::forecast::TierForecast;

/// Whether a loader copies what it reads into its storage tiers.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Copies {
    /// Reads of chunks that the placement keeps are widened to whole pieces, and copied.
    Pieces,
    /// Only what is in the tiers already is read from there.
    Off(NoCopies),
}

/// Why a loader makes no copies.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NoCopies {
    /// The source is local and in memory.
    SourceInMemory,
    /// Nothing is read again.
    OneEpoch,
    /// The nodes would read more for their copies than they save.
    CostMore {
        /// Epochs from which copies read less than they cost, where there are that many.
        pays_from: Option<u64>,
    },
}

impl Copies {
    /// Decides for a loader of `epochs` (`None`: unknown).
    ///
    /// With known epochs the forecast decides. With unknown ones copies are made where widening at
    /// most doubles what is read: for runs of at least a piece.
    #[must_use]
    pub fn decide(forecast: &TierForecast<'_>, epochs: Option<u64>, source_in_memory: bool) -> Self {
        /// Trainings are shorter.
        const MOST_EPOCHS: u64 = 10_000;
        if source_in_memory {
            return Self::Off(NoCopies::SourceInMemory);
        }
        if epochs.is_some_and(|epochs| epochs <= 1) {
            return Self::Off(NoCopies::OneEpoch);
        }
        let reads = &forecast.reads;
        let pays = match epochs {
            _ if reads.nodes == 1 => true,
            Some(epochs) => forecast.pays_from(epochs).is_some(),
            None => reads.run_bytes >= forecast.piece_bytes as f64,
        };
        if pays {
            return Self::Pieces;
        }
        Self::Off(NoCopies::CostMore { pays_from: forecast.pays_from(MOST_EPOCHS) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::order::OrderKind;
    use crate::tier::forecast::TierLevel;
    use crate::tier::node_reads::NodeReads;

    const GROUP: OrderKind = OrderKind::Group { samples: 512, window: 4 };

    fn decide(order: OrderKind, nodes: u64, run_bytes: f64, epochs: Option<u64>) -> Copies {
        let repeats = nodes == 1 || order == OrderKind::Contiguous;
        let levels = [TierLevel { slots: 2500, held_chunks: 0, held_bytes: 0 }];
        let forecast = TierForecast {
            reads: NodeReads {
                nodes,
                run_bytes,
                aligned_bytes: 1,
                fetched: 1.0,
                repeats,
                moved: 0.0,
                sample_bytes: run_bytes,
            },
            data_bytes: 10_000 << 20,
            chunks: 10_000,
            chunk_bytes: 1 << 20,
            piece_bytes: 64 << 10,
            levels: &levels,
            copies: true,
        };
        Copies::decide(&forecast, epochs, false)
    }

    fn cost_more(pays_from: u64) -> Copies {
        Copies::Off(NoCopies::CostMore { pays_from: Some(pays_from) })
    }

    #[test]
    fn copies_are_made_where_they_pay() {
        let shuffle = OrderKind::Shuffle;
        for (order, nodes, run_bytes, epochs, expected) in [
            // One node.
            (shuffle, 1, 3e3, None, Copies::Pieces),
            (shuffle, 1, 3e3, Some(2), Copies::Pieces),
            (shuffle, 1, 3e3, Some(1), Copies::Off(NoCopies::OneEpoch)),
            // Small samples in a full shuffle pay after as many epochs as nodes.
            (shuffle, 4, 3e3, None, cost_more(5)),
            (shuffle, 4, 3e3, Some(4), cost_more(5)),
            (shuffle, 4, 3e3, Some(5), Copies::Pieces),
            // Large samples, groups and regions.
            (shuffle, 4, 110e3, None, Copies::Pieces),
            (shuffle, 4, 110e3, Some(2), cost_more(3)),
            (shuffle, 4, 16e6, Some(2), Copies::Pieces),
            (GROUP, 4, 1.5e6, None, Copies::Pieces),
            (GROUP, 4, 1.5e6, Some(2), Copies::Pieces),
            (GROUP, 4, 1.5e6, Some(1), Copies::Off(NoCopies::OneEpoch)),
            (OrderKind::Contiguous, 4, 2.6e9, Some(2), Copies::Pieces),
        ] {
            assert_eq!(
                decide(order, nodes, run_bytes, epochs),
                expected,
                "{order}, {nodes} nodes, {epochs:?}"
            );
        }
    }

    #[test]
    fn a_source_in_memory_is_not_copied() {
        let levels = [TierLevel { slots: 10, held_chunks: 0, held_bytes: 0 }];
        let forecast = TierForecast {
            reads: NodeReads {
                nodes: 1,
                run_bytes: 1e5,
                aligned_bytes: 1,
                fetched: 1.0,
                repeats: true,
                moved: 0.0,
                sample_bytes: 1e5,
            },
            data_bytes: 100 << 20,
            chunks: 100,
            chunk_bytes: 1 << 20,
            piece_bytes: 64 << 10,
            levels: &levels,
            copies: true,
        };
        let found = Copies::decide(&forecast, Some(10), true);
        assert_eq!(found, Copies::Off(NoCopies::SourceInMemory));
    }
}
