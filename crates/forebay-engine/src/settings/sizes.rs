//! How large the parts of the shared region are, within the budget.

use forebay_format::Index;
use forebay_plan::{Kind, Order};
use forebay_types::Layout;

use super::approach::Approach;
use super::budget::Budget;
use super::{KIB, MIB};
use crate::batch::BatchLayout;
use crate::error::Error;
use crate::options::Options;
use crate::region::RegionLayout;
use crate::room::ragged_bytes;

/// Batch buffers per rank: one in the user's hands, one he still holds while he asks for the next, two being filled.
const BUFFERS: usize = 4;
/// The same where they are small, so that short delays of a busy core are not felt.
const SMALL_BUFFERS: usize = 8;
/// Size up to which a batch buffer is small \[bytes\].
const SMALL_BUFFER_BYTES: u64 = 2 * MIB;
/// Steps that the roots find samples ahead of the slowest planner: as many as are planned ahead of the readers, and two more.
const FIND_AHEAD_TRANCHES: u64 = 4;
/// Bytes of the first tranche: the first batches should be there soon.
const FIRST_TRANCHE_BYTES: u64 = 4 * MIB;
/// Tranches that the landing ring holds at once: gathered, filled, being planned, and one for the ring's seam.
const TRANCHES: u64 = 4;
/// The landing ring is a multiple of this \[bytes\]; as many blocks of this size are alive at most.
const LANDING_STEP_BYTES: u64 = 64 * KIB;

/// Part of what may be lent that a loader on loan takes: one in this many, so that as many are
/// iterated at once.
const LOAN_PART: u64 = 8;

/// See the module header.
pub(super) struct Sizes {
    /// What the loader may use \[bytes\].
    pub(super) memory_bytes: u64,
    /// Whether it reserves nothing of it.
    pub(super) on_loan: bool,
    pub(super) region: RegionLayout,
    /// Steps that are read together at the beginning, for step-wise orders.
    pub(super) first_tranche_steps: u64,
    /// The same later.
    pub(super) tranche_steps: u64,
    /// What the ragged fields of a batch get \[bytes\].
    pub(super) ragged_bytes: u64,
    /// The least budget that works for these options \[bytes\].
    pub(super) least_bytes: u64,
}

/// What the sizes follow from.
pub(super) struct Load<'a> {
    pub(super) options: &'a Options,
    pub(super) index: &'a Index,
    pub(super) order: &'a Order,
    pub(super) kind: Kind,
    pub(super) approach: &'a Approach,
    /// What one sample costs in the landing ring \[bytes\].
    pub(super) landed_bytes: f64,
    /// What a step of the node costs there \[bytes\].
    pub(super) step_bytes: u64,
    pub(super) ragged_growth: f64,
}

impl Load<'_> {
    /// Fits the region into a budget; tells how.
    ///
    /// # Errors
    /// A budget that is too small: the message says the least that works.
    pub(super) fn fit(&self, budget: &Budget, reasons: &mut Vec<String>) -> Result<Sizes, Error> {
        let Self { options, index, order, kind, approach, landed_bytes, step_bytes, ragged_growth } = *self;
        let Approach { alone, read_bytes, tranche_bytes, .. } = *approach;
        let (mut memory_bytes, mut on_loan) = (budget.left_bytes(), false);
        let (samples, ranks) = (index.samples(), options.local_ranks.len());
        let is_ragged = index.fields().iter().any(|field| field.layout == Layout::Ragged);
        let ragged_bytes = if is_ragged {
            ragged_bytes(options.batch_size, index.summary(), samples, ragged_growth)
        } else {
            0
        };
        let layout = BatchLayout::new(index.fields(), options.batch_size, ragged_bytes).ok_or_else(|| {
            Error::Options {
                message: format!("a batch of {} samples is larger than 64 bits can say", options.batch_size),
                hint: String::new(),
            }
        })?;
        let mut region = RegionLayout {
            ranks,
            readers: approach.readers,
            find_steps: 0,
            step_needs: options.batch_size * ranks as u64,
            blocks: 0,
            landing_bytes: 0,
            buffer_bytes: layout.bytes,
            buffers: match options.buffers {
                Some(buffers) => buffers as usize,
                None if layout.bytes <= SMALL_BUFFER_BYTES => SMALL_BUFFERS,
                None => BUFFERS,
            },
        };
        let tranches = options.group_buffers.map_or(TRANCHES, u64::from);
        let is_grouped = matches!(kind, Kind::Group { .. });
        let (least_landing, wanted_landing) = if alone {
            // Nothing lands: every rank copies from its own mapping.
            (0, 0)
        } else if is_grouped {
            let least = order.least_staging_bytes(landed_bytes, ranks);
            let window = (least / (order.lanes() * ranks as u64 / u64::from(options.size)).max(1)).max(MIB);
            let wanted = match options.group_buffers {
                // The rest is for the ring's seam.
                Some(buffers) => least.saturating_mul(u64::from(buffers)) + least / 8,
                None => least + least / 8 + 3 * window,
            };
            (least, wanted)
        } else {
            let tranche = step_bytes.max(tranche_bytes);
            (step_bytes.min(tranche_bytes), tranche.saturating_mul(tranches))
        };
        // More than the data set twice (this epoch and the next) is never read ahead.
        let whole = (2.0 * landed_bytes * samples as f64) as u64 + 2 * read_bytes;
        let up = |bytes: u64| bytes.min(whole).next_multiple_of(LANDING_STEP_BYTES);
        let tranche_steps = |landing: u64, bytes: u64| {
            let fitting = (bytes.min(landing / tranches) / step_bytes.max(1)).max(1);
            options.coalesce.map_or(fitting, |steps| fitting.min(u64::from(steps)))
        };
        let size = |region: &mut RegionLayout, landing: u64| {
            region.landing_bytes = up(landing);
            // A block holds one read of at least a page.
            let blocks = (region.landing_bytes / LANDING_STEP_BYTES).clamp(256, 1 << 20) as usize;
            region.blocks = if alone { 0 } else { blocks };
            if options.locate.walks() && !alone {
                region.find_steps = FIND_AHEAD_TRANCHES * tranche_steps(region.landing_bytes, tranche_bytes);
            }
            region.total_bytes()
        };
        let mut fits = size(&mut region, wanted_landing) <= memory_bytes;
        if !fits && options.buffers.is_none() {
            region.buffers = 2;
            fits = size(&mut region, wanted_landing) <= memory_bytes;
        }
        if !fits {
            let least = size(&mut region, least_landing);
            if least > memory_bytes && least <= budget.lendable_bytes {
                (memory_bytes, on_loan) = (least.max(budget.lendable_bytes / LOAN_PART), true);
                reasons.push(format!(
                    "memory: other loaders of this process have reserved the {} MiB that they share, so this one is made on loan: it \
                     takes memory while it is iterated, from loaders that are between epochs or not iterated",
                    budget.asked_bytes / MIB
                ));
            }
            if least > memory_bytes {
                let held = match budget.held_bytes {
                    0 => String::new(),
                    held => format!(", of which other loaders and kept data hold {held},"),
                };
                let memory = if budget.is_default { "the default memory of " } else { "memory=" };
                let message = format!(
                    "{memory}{} bytes{held} is too little for {ranks} rank(s) of this node with batches of {} in the \
                     order {kind}: \
                     the least that works is {least} bytes ({} for batch buffers, {} for landing blocks)",
                    budget.asked_bytes,
                    options.batch_size,
                    region.buffer_bytes * (region.buffers * ranks) as u64,
                    region.landing_bytes,
                );
                let smaller = if is_grouped { ", group or window" } else { "" };
                let would_do = budget.held_bytes + least;
                let give = format!("give memory=\"{}MiB\", or ", would_do.div_ceil(MIB));
                let is_beyond = would_do.next_multiple_of(MIB) > budget.most_bytes;
                if is_beyond || budget.is_cut {
                    let (bound, way_out) = &budget.bound;
                    let give = if is_beyond { "or " } else { &give };
                    return Err(Error::Memory {
                        message: format!("{message}, and {bound}"),
                        hint: format!("{way_out}, {give}ask for a smaller batch{smaller}"),
                    });
                }
                return Err(Error::Options {
                    message,
                    hint: format!("{give}ask for a smaller batch{smaller}"),
                });
            }
            let rest = memory_bytes - least + region.landing_bytes;
            size(&mut region, rest.saturating_sub(LANDING_STEP_BYTES).max(least_landing));
            while region.total_bytes() > memory_bytes && region.landing_bytes > LANDING_STEP_BYTES {
                let less = region.landing_bytes - LANDING_STEP_BYTES;
                size(&mut region, less);
            }
        }
        let landing = match region.landing_bytes {
            0 => "no landing blocks".into(),
            bytes => format!("{} MiB of landing blocks", bytes / MIB),
        };
        reasons.push(format!(
        "memory: {} MiB of {} MiB on this node: {landing}, {} batch buffers of {} KiB for each of {ranks} rank(s)",
        region.total_bytes() / MIB,
        memory_bytes / MIB,
        region.buffers,
        region.buffer_bytes / KIB,
    ));
        Ok(Sizes {
            memory_bytes,
            on_loan,
            first_tranche_steps: tranche_steps(region.landing_bytes, FIRST_TRANCHE_BYTES.min(tranche_bytes)),
            tranche_steps: tranche_steps(region.landing_bytes, tranche_bytes),
            ragged_bytes,
            least_bytes: region.control_bytes() + up(least_landing) + 2 * region.buffer_bytes * ranks as u64,
            region,
        })
    }
}
