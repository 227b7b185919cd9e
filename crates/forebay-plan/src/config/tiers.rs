//! How a node uses its storage tiers: the memory for copies, whether copies are made, of which
//! chunks and in which tier, and what each epoch will read.

use forebay_types::{CHUNK_BYTES, Located, PIECE_BYTES, Piece, SampleId, SamplePlaces};

use super::Settings;
use crate::order::mixture::Stop;
use crate::order::{Order, OrderKind};
use crate::tier::copies::Copies;
use crate::tier::forecast::{EpochBytes, TierForecast, TierLevel};
use crate::tier::node_reads::NodeReads;
use crate::tier::placement::{Placement, PlacementError};

/// Memory for copies on their way, of all processes of a node, and of each where these are many
/// \[bytes\]. Small samples need the most: readers have some tens of MiB under way, and widened to
/// whole pieces that is twice as much.
const NODE_BUFFER_BYTES: u64 = 64 << 20;
const PROCESS_BUFFER_BYTES: u64 = 16 << 20;

/// Part of the memory of a node that copies may take.
const BUFFER_SHARE: u64 = 4;

/// What file systems read at least \[bytes\].
const PAGE_BYTES: u64 = 4096;

/// Epochs that are forecast.
const FORECAST_EPOCHS: usize = 3;

/// Facts that the use of tiers follows from.
#[derive(Clone, Copy, Debug)]
pub struct TieringFacts<'a> {
    /// The order, with the shares of the nodes if it depends on them.
    pub order: &'a Order,
    /// The decisions of the node.
    pub settings: &'a Settings,
    /// Nodes that share an epoch.
    pub nodes: u64,
    /// Ranks of this node.
    pub node_ranks: u64,
    /// Bytes of all files.
    pub data_bytes: u64,
    /// Chunks of the dataset.
    pub chunks: u64,
    /// Chunks of this node's share, where the nodes have shares.
    pub own_chunks: Option<u64>,
    /// Whether every sample is a file.
    pub has_sample_files: bool,
    /// The tiers, as the node found them.
    pub levels: &'a [TierLevel],
    /// Epochs that the user declared.
    pub epochs: Option<u64>,
    /// The files are local and in the page cache.
    pub source_in_memory: bool,
    /// [`copy_buffer_bytes`].
    pub buffer_bytes: u64,
    /// Identifies the sources.
    pub key: u64,
}

/// How a node uses its tiers.
#[derive(Clone, Debug)]
pub struct Tiering {
    /// Whether copies are made.
    pub copies: Copies,
    /// The chunks that are kept, and where.
    pub placement: Placement,
    /// What each of the first epochs reads, of all nodes.
    pub forecast: Vec<EpochBytes>,
    /// Memory for copies on their way, of each process \[bytes\].
    pub buffer_bytes: u64,
}

/// Decides how a node uses its tiers.
///
/// # Errors
/// More chunks or tiers than a placement can number.
pub fn decide_tiering<P: SamplePlaces>(
    facts: &TieringFacts<'_>,
    places: &P,
) -> Result<Tiering, PlacementError> {
    let &TieringFacts { order, settings, nodes, data_bytes, chunks, own_chunks, levels, key, .. } = facts;
    let mut reads = NodeReads::of(order, nodes, data_bytes as f64 / places.samples().max(1) as f64);
    if let Some(own) = own_chunks {
        reads = reads.aligned(alignment_of_shares(own * nodes, chunks, reads.run_bytes));
    } else if !facts.has_sample_files {
        reads = reads.aligned(alignment_of_runs(order, places));
    }
    if !facts.has_sample_files {
        let step_samples = order.spec().batch * facts.node_ranks.max(1);
        let segment_samples = settings.segment_steps.saturating_mul(step_samples);
        reads = reads.fetching(order, segment_samples, settings.limits.gap_bytes, PAGE_BYTES);
    }
    let forecast = |copies| TierForecast {
        reads,
        data_bytes,
        chunks: chunks.max(1),
        chunk_bytes: CHUNK_BYTES,
        piece_bytes: PIECE_BYTES,
        levels,
        copies,
    };
    // An epoch of a mixture may read samples again.
    let repeats = order.mixture().is_some_and(|mixture| mixture.stop() != Stop::First);
    let known_epochs = facts.epochs.filter(|_| !repeats);
    let copies = Copies::decide(&forecast(true), known_epochs, facts.source_in_memory);
    let makes_copies = copies == Copies::Pieces;
    let slots: Vec<u64> = levels.iter().map(|level| level.slots).collect();
    let placement = match own_chunks {
        Some(own) => Placement::new(own, key, &slots),
        None => Placement::for_reads(chunks, key, &slots, forecast(true).read_share()),
    };
    Ok(Tiering {
        copies,
        placement: placement?,
        forecast: forecast(makes_copies).epochs().take(FORECAST_EPOCHS).collect(),
        buffer_bytes: if makes_copies { facts.buffer_bytes } else { 0 },
    })
}

/// Memory for copies on their way, of each of the processes of a node, out of what the node has
/// \[bytes\].
#[must_use]
pub fn copy_buffer_bytes(processes: usize, left_bytes: u64) -> u64 {
    let processes = processes.max(1) as u64;
    let most = (NODE_BUFFER_BYTES / processes).max(PROCESS_BUFFER_BYTES);
    (left_bytes / BUFFER_SHARE / processes).min(most)
}

/// Gap over which reads are joined, where each node's tiers hold its own share of the data and
/// `gap_bytes` suit the source \[bytes\].
///
/// Between a node's samples lie chunks of other nodes, which it would read from the source. Its own
/// samples come from the tiers, where a request costs less than at the source.
#[must_use]
pub fn gap_bytes_of_shares(gap_bytes: u64) -> u64 {
    gap_bytes.min(PAGE_BYTES)
}

/// The largest power of two that the places where runs of samples begin are multiples of, as far as
/// some of them tell \[bytes\].
fn alignment_of_runs<P: SamplePlaces>(order: &Order, places: &P) -> u64 {
    const LOOKED_AT: u64 = 64;
    const LARGEST_ALIGNMENT: u64 = 1 << 32;
    let run_samples = match order.kind() {
        // Groups of later sources begin after any number of samples.
        OrderKind::Group { .. } if order.mixture().is_some() => return 1,
        OrderKind::Group { samples, .. } => samples.max(1),
        OrderKind::Shuffle => 1,
        _ => return 1,
    };
    let runs = places.samples().div_ceil(run_samples);
    // Neighbours, since runs of one length may be better aligned at regular distances.
    let ids: Vec<SampleId> = (0..runs)
        .step_by(runs.div_ceil(LOOKED_AT).max(1) as usize)
        .flat_map(|run| [run, run + 1])
        .filter(|run| *run < runs)
        .map(|run| SampleId(run * run_samples))
        .collect();
    let mut located = Located::default();
    if places.locate(&ids, &mut located).is_err() {
        return 1;
    }
    let bits = located.pieces().iter().fold(0, |bits, piece| match piece {
        Piece::Extent(extent) => bits | extent.offset,
        Piece::Literal { .. } => bits,
    });
    1 << bits.trailing_zeros().min(LARGEST_ALIGNMENT.trailing_zeros())
}

/// The alignment at which units of `unit_bytes` have as many borders inside chunks as shares have:
/// all shares together have `chunks_of_shares` chunks, where the dataset has `chunks` \[bytes\].
fn alignment_of_shares(chunks_of_shares: u64, chunks: u64, unit_bytes: f64) -> u64 {
    let borders = (chunks_of_shares as f64 / chunks.max(1) as f64 - 1.0).max(0.0);
    (CHUNK_BYTES as f64 - borders * unit_bytes).max(1.0) as u64
}

#[cfg(test)]
mod tests {
    use super::super::memory::MemoryBound;
    use super::super::{
        Budget, DataFacts, DirectIo, Mapping, ReadOptions, StorageFacts, StorageKind, decide,
    };
    use super::*;
    use crate::order::{LastBatch, OrderSpec};
    use crate::tier::copies::NoCopies;
    use forebay_types::{Extent, ShardId, Slice};

    const MIB: u64 = 1 << 20;

    /// Records of the same length, one after another in a file, behind a header.
    struct Records {
        samples: u64,
        header: u64,
        bytes: u64,
    }

    impl SamplePlaces for Records {
        type Error = ();

        fn samples(&self) -> u64 {
            self.samples
        }

        fn shard_bytes(&self) -> Vec<u64> {
            vec![self.header + self.samples * self.bytes]
        }

        fn locate(&self, ids: &[SampleId], out: &mut Located) -> Result<(), ()> {
            out.clear(1);
            for SampleId(id) in ids {
                let offset = self.header + id * self.bytes;
                let unit = out.push_stored_unit(Extent { shard: ShardId(0), offset, length: self.bytes }, 0);
                out.push_slice(Slice { unit, offset: 0, length: self.bytes });
                out.end_column();
            }
            Ok(())
        }
    }

    fn order(kind: OrderKind, samples: u64, ranks: u64) -> Order {
        let last_batch = LastBatch::Fill;
        Order::new(OrderSpec { kind, last_batch, seed: 0, samples, batch: 16, ranks, lanes: None }).unwrap()
    }

    /// Of a node with one of `ranks` ranks, for 10,000 records of 3 KiB on a network file system.
    fn settings(order: &Order, records: &Records) -> Settings {
        let record_bytes = records.samples * records.bytes;
        let data = DataFacts {
            samples: records.samples,
            record_bytes,
            drawn_bytes: record_bytes,
            file_bytes: record_bytes,
            unit_samples: 1,
            is_coded: false,
            has_sample_files: false,
            has_checksums: false,
            batch_bytes: 16 * records.bytes,
            ragged_bytes: 0,
            stream_bytes: 0,
            stream_unit_bytes: 0,
        };
        let storage = StorageFacts {
            source: StorageKind::Network,
            mapping: Mapping::None,
            direct: DirectIo::Unavailable,
            memory_bytes: 64 << 30,
        };
        let budget = Budget {
            requested_bytes: 1024 * MIB,
            is_default: true,
            held_bytes: 0,
            lendable_bytes: 0,
            bound: MemoryBound::Free(64 << 30),
            is_cut: false,
            is_half_of_address_space: false,
        };
        decide(&ReadOptions::new(1), &data, &storage, order, &budget).unwrap()
    }

    #[test]
    fn copies_are_made_where_they_pay_and_take_memory_only_then() {
        let records = Records { samples: 10_000, header: 0, bytes: 3 << 10 };
        let chunks = (records.samples * records.bytes).div_ceil(CHUNK_BYTES);
        let levels = [TierLevel { slots: 20, held_chunks: 0, held_bytes: 0 }];
        for (nodes, epochs, source_in_memory, own_chunks, expected) in [
            (1, None, false, None, Copies::Pieces),
            (1, Some(2), false, None, Copies::Pieces),
            (1, Some(1), false, None, Copies::Off(NoCopies::OneEpoch)),
            (1, None, true, None, Copies::Off(NoCopies::SourceInMemory)),
            (4, None, false, None, Copies::Off(NoCopies::CostMore { pays_from: Some(2) })),
            (4, Some(9), false, None, Copies::Pieces),
        ] {
            let order = order(OrderKind::Shuffle, records.samples, nodes);
            let facts = TieringFacts {
                order: &order,
                settings: &settings(&order, &records),
                nodes,
                node_ranks: 1,
                data_bytes: records.samples * records.bytes,
                chunks,
                own_chunks,
                has_sample_files: false,
                levels: &levels,
                epochs,
                source_in_memory,
                buffer_bytes: MIB,
                key: 7,
            };
            let found = decide_tiering(&facts, &records).unwrap();
            assert_eq!(found.copies, expected, "{nodes} nodes, {epochs:?}");
            assert_eq!(found.buffer_bytes, if expected == Copies::Pieces { MIB } else { 0 });
            assert_eq!((found.placement.chunks(), found.placement.placed()), (chunks, 20));
            assert_eq!(found.forecast.len(), FORECAST_EPOCHS);
            let saves = found.forecast[2].source < found.forecast[0].source;
            assert_eq!(saves, expected == Copies::Pieces, "{:?}", found.forecast);
        }
    }

    #[test]
    fn copies_take_a_quarter_of_the_memory_up_to_a_bound() {
        for (processes, left_bytes, expected) in [
            (1, 4096 * MIB, 64 * MIB),
            (1, 100 * MIB, 25 * MIB),
            (0, 100 * MIB, 25 * MIB),
            (2, 4096 * MIB, 32 * MIB),
            (16, 4096 * MIB, 16 * MIB),
            (16, 640 * MIB, 10 * MIB),
            (4, 0, 0),
        ] {
            assert_eq!(copy_buffer_bytes(processes, left_bytes), expected, "{processes}, {left_bytes}");
        }
    }

    #[test]
    fn nodes_with_shares_read_no_further_than_a_page() {
        assert_eq!([0, 512, 4096, 1 << 20].map(gap_bytes_of_shares), [0, 512, 4096, 4096]);
    }

    #[test]
    fn runs_are_aligned_as_their_samples_are() {
        let group = |samples| OrderKind::Group { samples, window: 4 };
        for (kind, header, bytes, expected) in [
            (OrderKind::Shuffle, 0, 4096, 4096),
            (OrderKind::Shuffle, 512, 4096, 512),
            (OrderKind::Shuffle, 1, 4096, 1),
            (OrderKind::Shuffle, 0, 3 << 10, 1 << 10),
            (group(16), 0, 4096, 64 << 10),
            (group(3), 0, 4096, 4096),
            (OrderKind::Sequential, 0, 4096, 1),
            (OrderKind::Contiguous, 0, 4096, 1),
        ] {
            let records = Records { samples: 1000, header, bytes };
            let found = alignment_of_runs(&order(kind, records.samples, 1), &records);
            assert_eq!(found, expected, "{kind}, {bytes} bytes behind {header}");
        }
    }

    #[test]
    fn shares_with_borders_inside_chunks_are_less_aligned() {
        for (of_shares, chunks, unit_bytes, expected) in [
            (100, 100, 1e6, CHUNK_BYTES),
            (150, 100, 1e6, CHUNK_BYTES - 500_000),
            (300, 100, 1e6, 1),
            (90, 100, 1e6, CHUNK_BYTES),
        ] {
            assert_eq!(alignment_of_shares(of_shares, chunks, unit_bytes), expected);
        }
    }
}
