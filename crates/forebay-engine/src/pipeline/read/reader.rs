//! A reader: fills its blocks of the plan.
//!
//! It takes its blocks (`readers.rs` of forebay-plan) in order:
//!
//! 1. It publishes what it is about to overwrite, then waits until each rank is past that and the
//!    earlier blocks in the same memory are filled.
//! 2. If a level has the bytes in memory (`near.rs`), it does not read. Otherwise it reads, and
//!    decodes coded units.
//! 3. It publishes the block, also if the read failed after all attempts. A rank that needs a
//!    sample of a failed block then reads that sample once, and raises the error with file and
//!    offset.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use forebay_io::{Mappings, ReadCounters, ReadError, Reader, Refused, Transfer, guard};
use forebay_plan::config::AccessChoice;
use forebay_plan::{Block, Read};
use forebay_tier::Fill;
use forebay_types::Extent;

use crate::base::fallback::Wanted;
use crate::pipeline::context::Context;
use crate::pipeline::plan_queue::PlannedSegment;
use crate::pipeline::read::readahead::announce;
use crate::pipeline::read::token::ReadToken;
use crate::pipeline::read::unit_decoder::{Fetched, decode_block, fill_from_kept};
use crate::pipeline::session::{Session, WAKEUP_INTERVAL};
use crate::pipeline::thread_group::in_storage;
use crate::shm::block_state::{Filled, block_passed, is_behind, publish_block, publish_overwritten};
use crate::shm::counters::{Counter, Level, LevelCounts, count, count_since, monotonic_ns};
use crate::shm::position::{BlockSeq, Position, SessionId};
use crate::shm::region::RankSlot;
use crate::shm::stall::Doing;

/// How long a reader waits for an order that only other ranks were given, before it moves to
/// another rank.
const GRACE: Duration = Duration::from_millis(250);

/// Runs reader `number` of a session until the session is stopped.
pub(crate) fn run(session: &Session, number: usize) {
    read_blocks(session, number);
    does(session, number, Doing::Nothing);
}

/// Publishes the activity of reader `number`.
fn does(session: &Session, number: usize, doing: Doing) {
    doing.publish(&session.context.region.readers()[number].doing);
}

/// Runs a storage call, and publishes meanwhile that the reader is inside one.
fn reading<T>(session: &Session, number: usize, call: impl FnOnce() -> T) -> T {
    does(session, number, Doing::Reading(monotonic_ns()));
    let answer = in_storage(call);
    does(session, number, Doing::Nothing);
    answer
}

fn read_blocks(session: &Session, number: usize) {
    forebay_io::widen_affinity();
    let context = &session.context;
    let readers = context.region.layout().readers as u64;
    let choice = match context.settings.access {
        AccessChoice::IoUring => forebay_io::Access::IoUring,
        AccessChoice::Auto | AccessChoice::Pread | AccessChoice::Mmap => forebay_io::Access::Pread,
    };
    let mut reader = Reader::with_io(
        Arc::clone(&context.io),
        choice,
        context.settings.direct,
        context.settings.depth as usize,
    );
    note_refusals(context, &mut reader);
    let mut sequence = number as u64;
    let mut fetched = Fetched::default();
    let mut counted = ReadCounters::default();
    let mut token = ReadToken::new(session);
    while !session.is_stopped() {
        let begun = Instant::now();
        let Some((planned, place)) = session.plans.next_block(sequence, number as u64, readers) else {
            token.give_back();
            let found = context.region.gathered().wait(
                || {
                    session.is_stopped()
                        || session.plans.next_block(sequence, number as u64, readers).is_some()
                },
                if session.lacks_order() { GRACE } else { WAKEUP_INTERVAL },
            );
            count_since(context.slot(), Counter::ReaderIdleNs, begun);
            if !found && session.lacks_order() {
                session.hand_over(number);
                return;
            }
            continue;
        };
        let block = &planned.plan.blocks[place];
        sequence = block.sequence + 1;
        // A reader that moved here from a rank that left may find blocks that are filled already.
        if block_passed(
            context.region.block_word(BlockSeq(block.sequence)),
            session.number,
            BlockSeq(block.sequence),
        ) {
            continue;
        }
        let slot = &context.region.readers()[number];
        slot.begun.store(Position::new(session.number, block.sequence + 1).word(), Ordering::Release);
        if place < readers as usize {
            context.region.planning().notify(); // the first of its blocks in this segment
        }
        if let Some(step) = block.after_step {
            publish_overwritten(&slot.overwritten, session.number, step);
            if !wait_for_room(session, number, step, &mut token)
                || !wait_for_filled(session, number, &planned, place, &mut token)
            {
                return;
            }
        }
        does(session, number, Doing::OtherNodes);
        if !token.take(planned.segment.first_step) {
            return;
        }
        count_since(context.slot(), Counter::ReaderIdleNs, begun);
        reading(session, number, || announce(session, &planned, block, readers));
        if session.is_stopped() {
            return;
        }
        let filled = fill(session, number, &mut reader, &mut fetched, &planned, block);
        note_refusals(context, &mut reader);
        if context.settings.drops_behind {
            reading(session, number, || wont_need(session, &planned, block));
        }
        token.count(block.length);
        // Count first: the counters then include all reads for a delivered batch.
        let now = reader.counters();
        let read_bytes = now.read_bytes - counted.read_bytes;
        let epoch = context.epoch_of(planned.segment.first_step);
        context.epoch_reads.add(epoch, read_bytes);
        count(context.slot(), Counter::ReadBytes, read_bytes);
        count(context.slot(), Counter::Reads, now.reads - counted.reads);
        count(context.slot(), Counter::Retries, now.retries - counted.retries);
        count_source(context, epoch, now.reads - counted.reads, read_bytes, filled);
        count_copies(context, epoch, &now, &counted);
        count(context.slot(), Counter::ReadNs, now.io_ns - counted.io_ns);
        counted = now;
        publish_block(
            context.region.block_word(BlockSeq(block.sequence)),
            session.number,
            BlockSeq(block.sequence),
            filled,
        );
        context.region.filled().notify();
    }
}

/// Counts the results of a block's requests.
fn count_source(context: &Context, epoch: u64, operations: u64, bytes: u64, filled: Filled) {
    let failed = filled == Filled::Failed;
    count(context.slot(), Counter::FailedBlocks, u64::from(failed));
    let hits = if failed { 0 } else { operations };
    let counts = LevelCounts { hits, bytes, operations, skipped: u64::from(failed) };
    context.count_level(epoch, Level::Source, counts);
}

/// Counts what the tiers answered since `before`.
fn count_copies(context: &Context, epoch: u64, now: &ReadCounters, before: &ReadCounters) {
    if context.tiers.is_none() {
        return;
    }
    for (place, (now, before)) in now.copies.iter().zip(&before.copies).enumerate() {
        let operations = now.reads - before.reads;
        let bytes = now.read_bytes - before.read_bytes;
        let counts =
            LevelCounts { hits: operations, bytes, operations, skipped: now.failures - before.failures };
        context.count_level(epoch, Level::Tier(place), counts);
    }
    context.count_copied();
}

/// Records an access method that the reader cannot use.
fn note_refusals(context: &Context, reader: &mut Reader) {
    for (refused, reason) in reader.take_refusals() {
        let wanted = match refused {
            Refused::IoUring => Wanted::IoUring,
            Refused::Direct => Wanted::Direct,
        };
        context.falls_back(wanted, reason);
    }
}

/// Waits until each rank of the node is past `step`; false if the session was stopped.
///
/// A rank that is leaving counts as long as one of its threads may still copy from staging memory
/// (`block_state.rs`, rule 5).
fn wait_for_room(session: &Session, number: usize, step: u64, token: &mut ReadToken<'_>) -> bool {
    let ready = || session.context.present().all(|(_, slot)| is_behind(&slot.position, session.number, step));
    while !ready() {
        if session.is_stopped() {
            return false;
        }
        does(session, number, Doing::Room(step));
        token.give_back();
        session.context.region.gathered().wait(|| session.is_stopped() || ready(), WAKEUP_INTERVAL);
    }
    true
}

/// Waits until the earlier blocks in the block's memory are filled; false if the session was
/// stopped.
///
/// If every rank that needed a block has detached, no rank waits for it, yet a stalled or migrated
/// reader may still write to its memory.
fn wait_for_filled(
    session: &Session,
    number: usize,
    planned: &PlannedSegment,
    place: usize,
    token: &mut ReadToken<'_>,
) -> bool {
    let region = &session.context.region;
    let filled = |sequence: u64| {
        block_passed(region.block_word(BlockSeq(sequence)), session.number, BlockSeq(sequence))
    };
    let ready = || session.plans.is_free(planned, place, region.layout().blocks as u64, filled);
    while !ready() {
        if session.is_stopped() {
            return false;
        }
        does(session, number, Doing::Blocks);
        token.give_back();
        region.filled().wait(|| session.is_stopped() || ready(), WAKEUP_INTERVAL);
    }
    true
}

/// Lets the kernel drop the pages that were read for a block.
fn wont_need(session: &Session, planned: &PlannedSegment, block: &Block) {
    let first = block.first_read as usize;
    for read in &planned.plan.reads[first..first + block.reads as usize] {
        session.context.wont_need(read.shard, read.file_offset, read.length);
    }
}

fn fill(
    session: &Session,
    number: usize,
    reader: &mut Reader,
    fetched: &mut Fetched,
    planned: &PlannedSegment,
    block: &Block,
) -> Filled {
    let context = &session.context;
    let first_step = planned.segment.first_step;
    let reads = &planned.plan.reads[block.first_read as usize..(block.first_read + block.reads) as usize];
    let ranges =
        reads.iter().map(|read| Extent { shard: read.shard, offset: read.file_offset, length: read.length });
    if block.decodes == 0
        && let Some(level) = reading(session, number, || context.near.holder(&ranges))
    {
        if level == Level::PageCache {
            count(context.slot(), Counter::MmapBytes, block.length);
        }
        let counts =
            LevelCounts { hits: u64::from(block.reads), bytes: block.length, ..LevelCounts::default() };
        context.count_level(context.epoch_of(first_step), level, counts);
        return Filled::Mapped;
    }
    // SAFETY: this reader is the only one for the block's sequence. Each rank is past the last step
    // that needed the bytes (`wait_for_room`). No other reader still fills them
    // (`wait_for_filled`), not even one of a rank that closed (`Context::host`). A rank that
    // reattaches does not read them (`block_state.rs`, rules 2 and 4).
    let memory = unsafe { context.region.staging_mut(block.ring_offset, block.length) };
    if block.decodes == 0 {
        return reading(session, number, || fetch(session, reader, first_step, reads, memory));
    }
    if fill_from_kept(context, planned, block, memory) {
        return Filled::Staged;
    }
    let bytes = reads.iter().map(|read| read.block_offset + read.length).max().unwrap_or(0);
    let encoded = fetched.bytes(bytes as usize);
    match reading(session, number, || fetch(session, reader, first_step, reads, encoded)) {
        Filled::Staged if !decode_block(context, planned, block, encoded, memory) => Filled::Left,
        filled => filled,
    }
}

/// Reads into `memory`, each read at its own offset.
fn fetch(
    session: &Session,
    reader: &mut Reader,
    first_step: u64,
    reads: &[Read],
    memory: &mut [u8],
) -> Filled {
    let context = &session.context;
    let mut transfers = Vec::with_capacity(reads.len());
    let mut rest = memory;
    let mut at = 0;
    for read in reads {
        let (_, behind) = rest.split_at_mut((read.block_offset - at) as usize);
        let (into, behind) = behind.split_at_mut(read.length as usize);
        transfers.push(Transfer { shard: read.shard, offset: read.file_offset, into });
        rest = behind;
        at = read.block_offset + read.length;
    }
    match &context.mappings {
        Some(mappings) if context.settings.access == AccessChoice::Mmap => {
            let begun = Instant::now();
            let copied = copy(mappings, &mut transfers);
            let bytes = transfers.iter().map(|one| one.into.len() as u64).sum();
            count(context.slot(), Counter::MmapBytes, bytes);
            let (hits, skipped) = if copied { (transfers.len() as u64, 0) } else { (0, 1) };
            let counts = LevelCounts { hits, bytes, operations: 0, skipped };
            context.count_level(context.epoch_of(first_step), Level::PageCache, counts);
            count_since(context.slot(), Counter::ReadNs, begun);
            if copied { Filled::Staged } else { Filled::Left }
        }
        _ => match fill_transfers(session, reader, first_step, &mut transfers) {
            Ok(()) => Filled::Staged,
            Err(error) => {
                tracing::info!(loader = context.options.name, %error, "a block cannot be read");
                Filled::Failed
            }
        },
    }
}

/// Whether a rank has not gathered the step before this one yet.
fn is_behind_step(slot: &RankSlot, session: SessionId, step: u64) -> bool {
    Position::from_word(slot.position.load(Ordering::Acquire)).step_in(session) < step
}

/// Completes transfers, from the tiers where there are any.
fn fill_transfers(
    session: &Session,
    reader: &mut Reader,
    first_step: u64,
    transfers: &mut [Transfer<'_>],
) -> Result<(), ReadError> {
    let context = &session.context;
    let Some(tiers) = &context.tiers else { return reader.fill(transfers) };
    let steps = context.order.steps_per_epoch();
    // All ranks are before the segment: what they gather now is in earlier ones. While a program
    // waits, each read counts, since the next wait may be for it.
    let is_before = |slot: &RankSlot| {
        slot.waits.load(Ordering::Relaxed) == 0 && is_behind_step(slot, session.number, first_step)
    };
    let has_time = || !session.is_stopped() && context.active().all(|(_, slot)| is_before(slot));
    let how = Fill { epoch: first_step / steps, direct: context.settings.direct, has_time: &has_time };
    tiers.fill(transfers, how, &mut |transfers| reader.fill(transfers))
}

/// Copies from the mappings, so that only this thread takes the page faults; false if a file has
/// shrunk or a page was lost.
fn copy(mappings: &Mappings, transfers: &mut [Transfer<'_>]) -> bool {
    guard::keep();
    let faults = guard::faults();
    let copied = transfers.iter_mut().all(|transfer| {
        let bytes = mappings.bytes(transfer.shard, transfer.offset, transfer.into.len() as u64);
        bytes.map(|bytes| forebay_io::copy_in_order(bytes, transfer.into)).is_some()
    });
    let ends = transfers.iter().map(|one| (one.shard, one.offset + one.into.len() as u64));
    copied && !mappings.is_cut_before(ends) && guard::faults() == faults
}
