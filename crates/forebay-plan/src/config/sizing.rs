//! How large the parts of the shared region are, within the budget.

use forebay_types::{Field, Layout};

use super::MIB;
use super::facts::{DataFacts, ReadOptions};
use super::io_mode::IoChoice;
use super::memory::Budget;
use super::region_layout::{RegionLayout, RegionSizes};
use crate::order::{Order, OrderKind};

/// Batch buffers per rank: one in the user's hands, one held while the next is asked for, two being
/// filled.
const BUFFERS: usize = 4;
/// How many of these are being filled.
const FILLED_BUFFERS: usize = 2;
/// The least number: one in the user's hands, one being filled.
const MIN_BUFFERS: usize = 2;
/// The same where they are small, so that short delays of a busy core are not felt.
const SMALL_BUFFERS: usize = 8;
/// Size up to which a batch buffer is small \[bytes\].
const SMALL_BUFFER_BYTES: u64 = 2 * MIB;
/// The same where ranks copy from the page cache: nothing has to be waited for, and more buffers
/// would not stay in the cache of a core. With batches of 768 KiB, four buffers deliver 1.2 times
/// what eight do; with 96 KiB, eight deliver 1.1 times what four do.
const CACHED_BUFFER_BYTES: u64 = 256 << 10;
/// Segments by which the roots locate samples ahead of the slowest planner: as many as are planned
/// ahead of the readers, and two more.
const LOCATE_AHEAD_SEGMENTS: u64 = 4;
/// Bytes of the first segment: the first batches should be there soon.
const FIRST_SEGMENT_BYTES: u64 = 4 * MIB;
/// Segments that the staging ring holds at once: gathered, filled, being planned, and one for the
/// ring's seam.
const SEGMENTS: u64 = 4;
/// The staging ring is a multiple of this \[bytes\]; as many blocks of this size are alive at most.
const STAGING_STEP_BYTES: u64 = 64 * 1024;
/// Part of what may be lent that a loader on loan takes: one in this many, so that as many are
/// iterated at once.
const LOAN_PART: u64 = 8;

/// The parts of the region, and what goes with them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// The region.
    pub region: RegionSizes,
    /// Size of all of it \[bytes\].
    pub region_bytes: u64,
    /// What the loader may use \[bytes\].
    pub memory_bytes: u64,
    /// Whether it reserves none of that, but takes it while it is iterated.
    pub on_loan: bool,
    /// Steps that are read together at the beginning, for step-wise orders.
    pub first_segment_steps: u64,
    /// The same later.
    pub segment_steps: u64,
    /// The least budget that works for these options \[bytes\].
    pub minimum_bytes: u64,
}

/// A budget in which nothing that works has room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BudgetTooSmall {
    /// The least that works \[bytes\].
    pub minimum_bytes: u64,
    /// Of that, batch buffers \[bytes\].
    pub buffer_bytes: u64,
    /// Of that, the staging ring \[bytes\].
    pub staging_bytes: u64,
}

/// Room for the values of ragged fields \[bytes\]: what a batch holds on average and a quarter
/// more. `expansion` are their bytes for each byte of a record.
#[must_use]
pub fn ragged_bytes(
    fields: &[Field],
    batch: u64,
    mean_bytes: f64,
    longest_bytes: u64,
    expansion: f64,
) -> u64 {
    if fields.iter().all(|field| field.layout != Layout::Ragged) {
        return 0;
    }
    let longest = longest_bytes as f64;
    let usual = batch as f64 * mean_bytes * 1.25 + longest;
    (usual.min(batch as f64 * longest) * expansion) as u64
}

/// What the sizes follow from.
pub(super) struct Load<'a> {
    pub(super) options: &'a ReadOptions,
    pub(super) data: &'a DataFacts,
    pub(super) order: &'a Order,
    pub(super) choice: &'a IoChoice,
    /// What one sample costs in the staging ring \[bytes\].
    pub(super) staged_bytes: f64,
    /// What a step of the node costs there \[bytes\].
    pub(super) step_bytes: u64,
}

impl Load<'_> {
    /// Fits the region into a budget.
    pub(super) fn fit(&self, budget: &Budget) -> Result<Sizes, BudgetTooSmall> {
        let segment_bytes = self.choice.segment_bytes;
        let (mut memory_bytes, mut on_loan) = (budget.left_bytes(), false);
        let mut region = self.region();
        let (min_staging, wanted_staging) = self.staging();
        let mut fits = self.size(&mut region, wanted_staging) <= memory_bytes;
        while !fits && self.options.batch_buffers.is_none() && region.buffers > MIN_BUFFERS {
            // Each buffer less is a thread less that decodes.
            let decodes = self.options.decode_threads > 0;
            region.buffers = if decodes { region.buffers - 1 } else { MIN_BUFFERS };
            fits = self.size(&mut region, wanted_staging) <= memory_bytes;
        }
        if !fits {
            let least = self.size(&mut region, min_staging);
            if least > memory_bytes && least <= budget.lendable_bytes {
                (memory_bytes, on_loan) = (least.max(budget.lendable_bytes / LOAN_PART), true);
            }
            if least > memory_bytes {
                return Err(BudgetTooSmall {
                    minimum_bytes: least,
                    buffer_bytes: region.buffer_bytes * (region.buffers * region.ranks) as u64,
                    staging_bytes: region.staging_bytes,
                });
            }
            let rest = memory_bytes - least + region.staging_bytes;
            let mut total = self.size(&mut region, rest.saturating_sub(STAGING_STEP_BYTES).max(min_staging));
            while total > memory_bytes && region.staging_bytes > STAGING_STEP_BYTES {
                let less = region.staging_bytes - STAGING_STEP_BYTES;
                total = self.size(&mut region, less);
            }
        }
        Ok(Sizes {
            region_bytes: region.total_bytes(),
            memory_bytes,
            on_loan,
            first_segment_steps: self
                .segment_steps(region.staging_bytes, FIRST_SEGMENT_BYTES.min(segment_bytes)),
            segment_steps: self.segment_steps(region.staging_bytes, segment_bytes),
            minimum_bytes: RegionLayout::new(&region).control_bytes()
                + self.rounded(min_staging)
                + 2 * region.buffer_bytes * region.ranks as u64,
            region,
        })
    }

    /// The region before its staging ring is sized.
    fn region(&self) -> RegionSizes {
        let ranks = self.options.node_ranks;
        let buffer_bytes = self.data.batch_bytes;
        RegionSizes {
            ranks,
            readers: self.choice.readers,
            location_steps: 0,
            step_needs: self.order.largest_batch() * ranks as u64,
            blocks: 0,
            staging_bytes: 0,
            buffer_bytes,
            buffers: self.options.batch_buffers.map_or_else(
                || {
                    let is_alone = self.choice.mode.is_alone();
                    let small_bytes = if is_alone { CACHED_BUFFER_BYTES } else { SMALL_BUFFER_BYTES };
                    let usual = if buffer_bytes <= small_bytes { SMALL_BUFFERS } else { BUFFERS };
                    usual.max(self.options.decode_threads + BUFFERS - FILLED_BUFFERS)
                },
                |buffers| buffers as usize,
            ),
        }
    }

    /// The staging bytes that have to be there, and those that there should be.
    fn staging(&self) -> (u64, u64) {
        let (order, ranks) = (self.order, self.options.node_ranks as u64);
        if self.choice.mode.is_alone() {
            // Nothing is staged: every rank copies from its own mapping.
            return (0, 0);
        }
        if let OrderKind::Opportunistic { .. } = order.kind() {
            let least = self.data.stream_bytes;
            let windows = self.options.prefetch_windows.map_or(2, u64::from).max(2);
            return (least, (least / 2).saturating_mul(windows).max(least));
        }
        if let OrderKind::Group { .. } = order.kind() {
            let least = order.min_staging_bytes(self.staged_bytes, self.options.node_ranks);
            let window = (least / (order.lanes() * ranks / order.spec().ranks).max(1)).max(MIB);
            let wanted = match self.options.prefetch_windows {
                // The rest is for the ring's seam.
                Some(windows) => least.saturating_mul(u64::from(windows)) + least / 8,
                None => least + least / 8 + 3 * window,
            };
            return (least, wanted);
        }
        let segment = self.step_bytes.max(self.choice.segment_bytes);
        (self.step_bytes.min(self.choice.segment_bytes), segment.saturating_mul(self.segments()))
    }

    fn segments(&self) -> u64 {
        self.options.prefetch_windows.map_or(SEGMENTS, u64::from)
    }

    /// A size of the staging ring: in whole steps, and no more than the dataset twice (this epoch
    /// and the next). An epoch of a mixture may pass a source any number of times.
    fn rounded(&self, bytes: u64) -> u64 {
        let samples = self.data.samples.max(self.order.mixture().map_or(0, |_| self.order.spec().samples));
        let whole = (2.0 * self.staged_bytes * samples as f64) as u64;
        let whole = whole.saturating_add(2 * self.choice.read_bytes);
        bytes.min(whole).next_multiple_of(STAGING_STEP_BYTES)
    }

    fn segment_steps(&self, staging_bytes: u64, bytes: u64) -> u64 {
        let fitting = (bytes.min(staging_bytes / self.segments()) / self.step_bytes.max(1)).max(1);
        self.options.coalesce.map_or(fitting, |steps| fitting.min(u64::from(steps)))
    }

    /// Sets all that follows from the size of the staging ring; returns the size of the region.
    fn size(&self, region: &mut RegionSizes, staging_bytes: u64) -> u64 {
        region.staging_bytes = self.rounded(staging_bytes);
        if !self.choice.mode.is_alone() {
            // A block holds one read of at least a page.
            region.blocks = (region.staging_bytes / STAGING_STEP_BYTES).clamp(256, 1 << 20) as usize;
        }
        if self.choice.locating_roots > 0 {
            region.location_steps =
                LOCATE_AHEAD_SEGMENTS * self.segment_steps(region.staging_bytes, self.choice.segment_bytes);
        }
        region.total_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::super::facts::{AccessChoice, DirectIo, Locate, Mapping, Readers, StorageFacts, StorageKind};
    use super::super::memory::MemoryBound;
    use super::super::{Settings, decide};
    use super::*;
    use crate::order::{LastBatch, OrderSpec};
    use forebay_types::Dtype;

    const RANKS: u64 = 4;
    const RECORD_BYTES: u64 = 100 << 10;
    const SAMPLES: u64 = 100_000;
    const GROUP: OrderKind = OrderKind::Group { samples: 16, window: 4 };

    fn budget(left_mib: u64) -> Budget {
        Budget {
            requested_bytes: left_mib * MIB,
            is_default: true,
            held_bytes: 0,
            lendable_bytes: 0,
            bound: MemoryBound::Free(64 << 30),
            is_cut: false,
            is_half_of_address_space: false,
        }
    }

    fn options() -> ReadOptions {
        ReadOptions::new(RANKS as usize)
    }

    /// Decides for a cold dataset on a file system of other nodes; resident ones are local.
    fn decided(
        options: &ReadOptions,
        kind: OrderKind,
        resident: bool,
        budget: &Budget,
    ) -> Result<Settings, BudgetTooSmall> {
        let data = DataFacts {
            samples: SAMPLES,
            record_bytes: SAMPLES * RECORD_BYTES,
            drawn_bytes: SAMPLES * RECORD_BYTES,
            file_bytes: SAMPLES * RECORD_BYTES,
            unit_samples: 1,
            is_coded: false,
            has_sample_files: false,
            has_checksums: false,
            batch_bytes: 16 * RECORD_BYTES,
            ragged_bytes: 0,
            stream_bytes: 0,
            stream_unit_bytes: 0,
        };
        let storage = StorageFacts {
            source: if resident { StorageKind::LocalDisk } else { StorageKind::Network },
            mapping: if resident { Mapping::Resident } else { Mapping::None },
            direct: DirectIo::Unavailable,
            memory_bytes: 64 << 30,
        };
        let spec = OrderSpec {
            kind,
            last_batch: LastBatch::Fill,
            seed: 0,
            samples: SAMPLES,
            batch: 16,
            ranks: RANKS,
            lanes: None,
        };
        let order = Order::new(spec).unwrap();
        decide(options, &data, &storage, &order, budget)
    }

    #[test]
    fn a_large_budget_holds_four_segments_and_eight_small_buffers() {
        // A step of the node takes 64 records, 6.25 MiB; a segment of 16 MiB has 2 of them.
        let settings = decided(&options(), OrderKind::Sequential, false, &budget(4096)).unwrap();
        let region = &settings.region;
        assert_eq!((region.staging_bytes, region.buffers, region.readers), (64 * MIB, 8, 4));
        assert_eq!((settings.first_segment_steps, settings.segment_steps), (1, 2));
        assert_eq!(region.blocks as u64, 64 * MIB / STAGING_STEP_BYTES);
        let buffers = 8 * RANKS * 16 * RECORD_BYTES;
        assert_eq!(settings.region_bytes, RegionLayout::new(region).control_bytes() + 64 * MIB + buffers);
        assert_eq!((settings.memory_bytes, settings.on_loan), (4096 * MIB, false));
    }

    #[test]
    fn ranks_that_copy_from_the_page_cache_have_fewer_buffers() {
        let buffers = |resident| decided(&options(), GROUP, resident, &budget(4096)).unwrap().region.buffers;
        assert_eq!((buffers(true), buffers(false)), (4, 8));
    }

    #[test]
    fn each_thread_that_decodes_gets_a_buffer_where_the_budget_has_room() {
        let decoding = ReadOptions { decode_threads: 16, ..options() };
        let buffers = |budget: &Budget| decided(&decoding, GROUP, false, budget).unwrap().region.buffers;
        assert_eq!(buffers(&budget(4096)), 18);
        let least = decided(&decoding, GROUP, false, &budget(1)).unwrap_err().minimum_bytes;
        let found: Vec<usize> = (0..40)
            .map(|more| buffers(&Budget { requested_bytes: least + more * 8 * MIB, ..budget(0) }))
            .collect();
        assert!(found.is_sorted() && found.iter().any(|buffers| (3..18).contains(buffers)), "{found:?}");
    }

    #[test]
    fn a_budget_that_is_just_large_enough_works_and_one_byte_less_does_not() {
        for (kind, options) in [
            (OrderKind::Sequential, options()),
            (OrderKind::Contiguous, options()),
            (GROUP, options()),
            (OrderKind::Shuffle, ReadOptions { coalesce: Some(4), ..options() }),
            (GROUP, ReadOptions { prefetch_windows: Some(3), ..options() }),
            (GROUP, ReadOptions { batch_buffers: Some(3), ..options() }),
            (GROUP, ReadOptions { decode_threads: 16, ..options() }),
        ] {
            let least = decided(&options, kind, false, &budget(1)).unwrap_err();
            assert!(least.buffer_bytes + least.staging_bytes < least.minimum_bytes);
            let exact = |bytes| Budget { requested_bytes: bytes, ..budget(0) };
            let settings = decided(&options, kind, false, &exact(least.minimum_bytes)).unwrap();
            assert!(settings.region_bytes <= least.minimum_bytes, "{kind}: {settings:?}");
            assert_eq!(settings.region.buffers, options.batch_buffers.unwrap_or(2) as usize);
            assert_eq!(decided(&options, kind, false, &exact(least.minimum_bytes - 1)).unwrap_err(), least);
        }
    }

    #[test]
    fn whatever_the_budget_the_region_fits_into_it() {
        for mib in (10..400).step_by(7) {
            let budget = budget(mib);
            for kind in [OrderKind::Sequential, OrderKind::Contiguous, GROUP, OrderKind::Shuffle] {
                match decided(&options(), kind, false, &budget) {
                    Ok(settings) => {
                        assert!(settings.region_bytes <= mib * MIB, "{kind} in {mib} MiB: {settings:?}");
                        assert!(settings.minimum_bytes <= mib * MIB, "{kind} in {mib} MiB: {settings:?}");
                    }
                    Err(least) => assert!(least.minimum_bytes > mib * MIB, "{kind} in {mib} MiB: {least:?}"),
                }
            }
        }
    }

    #[test]
    fn a_loader_is_made_on_loan_where_others_could_lend_it_what_it_needs() {
        let least = decided(&options(), GROUP, false, &budget(1)).unwrap_err().minimum_bytes;
        let lent = |lendable_bytes| Budget { lendable_bytes, held_bytes: 4096 * MIB, ..budget(4096) };
        let settings = decided(&options(), GROUP, false, &lent(least)).unwrap();
        assert_eq!((settings.on_loan, settings.memory_bytes), (true, least));
        let settings = decided(&options(), GROUP, false, &lent(100 * least)).unwrap();
        assert_eq!((settings.on_loan, settings.memory_bytes), (true, 100 * least / LOAN_PART));
        assert!(decided(&options(), GROUP, false, &lent(least - 1)).is_err());
    }

    #[test]
    fn only_locating_roots_have_locations_and_only_readers_have_blocks() {
        let cursor = ReadOptions { locate: Locate::Cursor, access: AccessChoice::Mmap, ..options() };
        let roots = ReadOptions { readers: Some(Readers::Count(2)), ..cursor };
        for (options, resident, locations, blocks) in [
            (options(), true, false, false),
            (options(), false, false, true),
            (cursor, false, false, false),
            (roots, false, true, true),
        ] {
            let settings = decided(&options, OrderKind::Sequential, resident, &budget(4096)).unwrap();
            let region = &settings.region;
            assert_eq!(
                (region.location_steps > 0, region.blocks > 0, region.staging_bytes > 0),
                (locations, blocks, blocks)
            );
            assert_eq!(region.step_needs, RANKS * 16);
        }
    }

    #[test]
    fn ragged_fields_get_a_quarter_more_than_their_mean_but_no_more_than_the_longest() {
        let ragged = [Field::new("data", Dtype::Uint8, Layout::Ragged)];
        for (fields, longest, expansion, expected) in [
            (&ragged[..], 1_000, 1.0, 1_000 + 10 * 125),
            (&ragged[..], 110, 1.0, 10 * 110),
            (&ragged[..], 110, 2.0, 2 * 10 * 110),
            (&[][..], 110, 1.0, 0),
        ] {
            assert_eq!(ragged_bytes(fields, 10, 100.0, longest, expansion), expected);
        }
    }
}
