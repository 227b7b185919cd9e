//! A reader: fills the blocks of the plan whose sequence falls to it.
//!
//! Reader k takes the blocks q with q mod R = k, in order. It tells what it is about to overwrite, waits until every
//! rank is behind that and the blocks that were there are filled, looks whether the bytes are resident in the page cache (then there is nothing to read), reads,
//! decodes what is coded, and publishes the block. A read that failed after all attempts is published as such: a rank that needs a sample of
//! the block tries once to read that sample itself, and meets the error, with file and offset, itself.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use forebay_io::{Mappings, ReadCounters, Reader, Transfer, guard};
use forebay_plan::{Block, Read};

use crate::announce::announce;
use crate::blame::Doing;
use crate::coded::{Fetched, decode_block};
use crate::options::AccessChoice;
use crate::pass::{PATIENCE, Pass};
use crate::plans::Planned;
use crate::position::{BlockSeq, Position};
use crate::protocol::{Filled, block_passed, is_behind, publish_block, publish_overwritten};
use crate::stagger::Turn;
use crate::stats::{Counter, count, count_since, monotonic_ns};
use crate::threads::in_storage;

/// How long a reader waits for an order that this rank was not given and others were, before it goes on elsewhere.
const GRACE: Duration = Duration::from_millis(250);

/// Runs reader `number` of a pass until the pass is stopped.
pub(crate) fn run(pass: &Pass, number: usize) {
    read_blocks(pass, number);
    does(pass, number, Doing::Nothing);
}

/// Tells what reader `number` does.
fn does(pass: &Pass, number: usize, doing: Doing) {
    doing.publish(&pass.shared.region.readers()[number].doing);
}

/// Runs a call that asks storage, and tells so meanwhile.
fn reading<T>(pass: &Pass, number: usize, call: impl FnOnce() -> T) -> T {
    does(pass, number, Doing::Reading(monotonic_ns()));
    let answer = in_storage(call);
    does(pass, number, Doing::Nothing);
    answer
}

fn read_blocks(pass: &Pass, number: usize) {
    forebay_io::widen_affinity();
    let shared = &pass.shared;
    let readers = shared.region.layout().readers as u64;
    let choice = match shared.settings.access {
        AccessChoice::IoUring => forebay_io::Access::IoUring,
        AccessChoice::Auto | AccessChoice::Pread | AccessChoice::Mmap => forebay_io::Access::Pread,
    };
    let (mut reader, fallback) = Reader::new(
        Arc::clone(&shared.files),
        choice,
        shared.settings.direct,
        shared.settings.depth as usize,
    );
    if let Some(reason) = fallback {
        shared.falls_back(reason);
    }
    let mut sequence = number as u64;
    let mut fetched = Fetched::default();
    let mut counted = ReadCounters::default();
    let mut turn = Turn::new(pass);
    while !pass.is_stopped() {
        let begun = Instant::now();
        let Some((planned, place)) = pass.plans.next_block(sequence, number as u64, readers) else {
            turn.end();
            let found = shared.region.gathered().wait(
                || pass.is_stopped() || pass.plans.next_block(sequence, number as u64, readers).is_some(),
                if pass.lacks_order() { GRACE } else { PATIENCE },
            );
            count_since(shared.slot(), Counter::ReaderIdleNs, begun);
            if !found && pass.lacks_order() {
                pass.hand_on(number);
                return;
            }
            continue;
        };
        let block = &planned.plan.blocks[place];
        sequence = block.sequence + 1;
        // A reader that moved here from a rank that left may find blocks that are filled already.
        if block_passed(shared.region.block_word(block.sequence), pass.number, BlockSeq(block.sequence)) {
            continue;
        }
        let slot = &shared.region.readers()[number];
        slot.begun.store(Position::new(pass.number, block.sequence + 1).word(), Ordering::Release);
        if place < readers as usize {
            shared.region.planning().notify(); // the first of its blocks in this tranche
        }
        if let Some(step) = block.after_step {
            publish_overwritten(&slot.overwritten, pass.number, step);
            if !wait_for_room(pass, number, step, &mut turn)
                || !wait_for_filled(pass, number, &planned, place, &mut turn)
            {
                return;
            }
        }
        does(pass, number, Doing::Turn);
        if !turn.begin(planned.tranche.first_step) {
            return;
        }
        count_since(shared.slot(), Counter::ReaderIdleNs, begun);
        reading(pass, number, || announce(pass, &planned, block, readers));
        if pass.is_stopped() {
            return;
        }
        let filled = fill(pass, number, &mut reader, &mut fetched, &planned, block);
        turn.count(block.length);
        // Counted first: who has a batch finds what was read for it in the counters.
        let now = reader.counters();
        let read_bytes = now.read_bytes - counted.read_bytes;
        let epoch = planned.tranche.first_step / shared.order.steps_per_epoch();
        shared.epoch_reads.add(epoch, read_bytes);
        count(shared.slot(), Counter::ReadBytes, read_bytes);
        count(shared.slot(), Counter::Reads, now.reads - counted.reads);
        count(shared.slot(), Counter::Retries, now.retries - counted.retries);
        count(shared.slot(), Counter::ReadNs, now.io_ns - counted.io_ns);
        counted = now;
        publish_block(
            shared.region.block_word(block.sequence),
            pass.number,
            BlockSeq(block.sequence),
            filled,
        );
        shared.region.filled().notify();
    }
}

/// Waits until every rank of the node is behind `step`; false when the pass was stopped.
///
/// A rank that is leaving counts as long as one of its threads may still copy from landing memory (protocol.rs, rule 5).
fn wait_for_room(pass: &Pass, number: usize, step: u64, turn: &mut Turn<'_>) -> bool {
    let ready = || pass.shared.present().all(|(_, slot)| is_behind(&slot.position, pass.number, step));
    while !ready() {
        if pass.is_stopped() {
            return false;
        }
        does(pass, number, Doing::Room(step));
        turn.end();
        pass.shared.region.gathered().wait(|| pass.is_stopped() || ready(), PATIENCE);
    }
    true
}

/// Waits until the blocks that had the block's memory before are filled; false when the pass was stopped.
///
/// A block that only ranks needed which went away is waited for by nobody, while its reader, stalled or just moved to
/// another process, still means to write there.
fn wait_for_filled(pass: &Pass, number: usize, planned: &Planned, place: usize, turn: &mut Turn<'_>) -> bool {
    let region = &pass.shared.region;
    let filled = |sequence: u64| block_passed(region.block_word(sequence), pass.number, BlockSeq(sequence));
    let ready = || pass.plans.is_free(planned, place, region.layout().blocks as u64, filled);
    while !ready() {
        if pass.is_stopped() {
            return false;
        }
        does(pass, number, Doing::Blocks);
        turn.end();
        region.filled().wait(|| pass.is_stopped() || ready(), PATIENCE);
    }
    true
}

fn fill(
    pass: &Pass,
    number: usize,
    reader: &mut Reader,
    fetched: &mut Fetched,
    planned: &Planned,
    block: &Block,
) -> Filled {
    let shared = &pass.shared;
    let reads = &planned.plan.reads[block.first_read as usize..(block.first_read + block.reads) as usize];
    if block.decodes == 0 && reading(pass, number, || is_mapped(pass, reads)) {
        count(shared.slot(), Counter::MmapBytes, block.length);
        return Filled::Mapped;
    }
    // SAFETY: this reader is the only one for the block's sequence, every rank is behind the step up to which the bytes
    // were needed before (`wait_for_room`), and no other reader still fills them (`wait_for_filled`), be it one of a rank
    // that closed (`Shared::host`); a rank that was away and comes back keeps off (protocol.rs, rules 2 and 4).
    let memory = unsafe { shared.region.landing_mut(block.ring_offset, block.length) };
    if block.decodes == 0 {
        return reading(pass, number, || fetch(pass, reader, reads, memory));
    }
    let bytes = reads.iter().map(|read| read.block_offset + read.length).max().unwrap_or(0);
    let encoded = fetched.bytes(bytes as usize);
    match reading(pass, number, || fetch(pass, reader, reads, encoded)) {
        Filled::Landed if !decode_block(shared, planned, block, encoded, memory) => Filled::Left,
        filled => filled,
    }
}

/// Reads into `memory`, where each read says.
fn fetch(pass: &Pass, reader: &mut Reader, reads: &[Read], memory: &mut [u8]) -> Filled {
    let shared = &pass.shared;
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
    match &shared.mappings {
        Some(mappings) if shared.settings.access == AccessChoice::Mmap => {
            let begun = Instant::now();
            let copied = copy(mappings, &mut transfers);
            count(shared.slot(), Counter::MmapBytes, transfers.iter().map(|one| one.into.len() as u64).sum());
            count_since(shared.slot(), Counter::ReadNs, begun);
            if copied { Filled::Landed } else { Filled::Left }
        }
        _ => match reader.fill(&mut transfers) {
            Ok(()) => Filled::Landed,
            Err(error) => {
                tracing::info!(loader = shared.options.name, %error, "a block cannot be read");
                Filled::Failed
            }
        },
    }
}

/// Copies from the mappings, so that missing pages are faults of this thread alone; false where the file has shrunk or a page was
/// lost.
fn copy(mappings: &Mappings, transfers: &mut [Transfer<'_>]) -> bool {
    guard::keep();
    let faults = guard::faults();
    let copied = transfers.iter_mut().all(|transfer| {
        let bytes = mappings.bytes(transfer.shard, transfer.offset, transfer.into.len() as u64);
        bytes.map(|bytes| forebay_io::copy_in_order(bytes, transfer.into)).is_some()
    });
    copied && guard::faults() == faults
}

fn is_mapped(pass: &Pass, reads: &[Read]) -> bool {
    match (&pass.shared.mappings, pass.shared.settings.access) {
        (Some(_), AccessChoice::Mmap) => !pass.shared.settings.mode.has_roots(),
        (Some(mappings), AccessChoice::Auto) => {
            reads.iter().all(|read| mappings.resident(read.shard, read.file_offset, read.length))
        }
        _ => false,
    }
}
