//! The threads of a pass: one planner, the readers and roots that this process hosts, and gather threads. Where every
//! rank gets its samples alone there is nothing to plan or to read for others, and the gather threads do it all.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use forebay_io::guard;
use forebay_plan::config::Mapping;

use crate::error::Error;
use crate::locate::run_root;
use crate::pass::Pass;
use crate::position::SessionId;
use crate::protocol::publish_position;
use crate::shared::Shared;
use crate::threads::Kind;
use crate::{gather, planner, reader};

/// Gather threads of a rank: copying 3 KB samples needs more than one, and the cores of a node are shared by its ranks.
const GATHER_THREADS: usize = 4;

/// Begins pass `number` at an absolute step of the epoch that ends at step `end`; the ring must be paused and every rank at rest.
pub(crate) fn begin(
    shared: Arc<Shared>,
    number: SessionId,
    start: u64,
    end: u64,
) -> Result<Arc<Pass>, Error> {
    let pass = Arc::new(Pass::new(shared, number, start));
    let shared = &pass.shared;
    guard::keep_now();
    publish_position(&shared.slot().position, number, start);
    shared.buffers.ring.restart(number);
    shared.buffers.ring.claim_up_to(shared.wanted_end(end));
    shared.buffers.ring.resume(start);
    if let Err(error) = start_threads(&pass, number) {
        drop(shared.buffers.ring.pause());
        pass.end();
        pass.go_away();
        return Err(error);
    }
    shared.ring_all();
    Ok(pass)
}

/// Starts the threads of a pass; gather threads are as many as the system allows, at least one.
fn start_threads(pass: &Arc<Pass>, number: SessionId) -> Result<(), Error> {
    let shared = &pass.shared;
    if !shared.settings.mode.is_alone() {
        pass.spawn("planner", Kind::Shares, |pass| planner::run(pass, &|| host_readers(pass)))?;
    }
    let gatherers = if shared.settings.mode.walks_alone() {
        1 // a cursor goes one way
    } else {
        gather_threads(shared.region.layout().ranks, shared.region.layout().buffers)
    };
    for gatherer in 0..gatherers {
        match pass.spawn("gather", Kind::Gathers, |pass| gather::run(pass)) {
            Err(error) if gatherer == 0 => return Err(error),
            Err(error) => {
                shared.falls_back(format!("{gatherer} of {gatherers} gather threads: {error}"));
                break;
            }
            Ok(()) => {}
        }
    }
    let reads = (0..shared.region.layout().readers).any(|reader| shared.host(reader, number) == shared.me());
    if shared.untouched.swap(false, Ordering::AcqRel) && shared.settings.mapping != Mapping::Resident && reads
    {
        // Only saves time.
        if let Err(error) = pass.spawn("touch", Kind::Shares, |pass| touch_landing(pass)) {
            shared.falls_back(format!("memory is not touched ahead of the readers: {error}"));
        }
    }
    Ok(())
}

/// Starts the readers that this process hosts now and that do not run here yet, each with its root where samples are found
/// by walking.
fn host_readers(pass: &Arc<Pass>) {
    for number in 0..pass.shared.region.layout().readers {
        if pass.take_in(number) {
            let read = move |pass: &Arc<Pass>| reader::run(pass, number);
            let mut spawned = pass.spawn(&format!("reader-{number}"), Kind::Shares, read);
            if pass.shared.settings.mode.has_finds() && number < pass.shared.settings.finders() {
                let seek = move |pass: &Arc<Pass>| run_root(pass, number);
                let root = || pass.spawn(&format!("root-{number}"), Kind::Shares, seek);
                spawned = spawned.and_then(|()| root());
            }
            if let Err(error) = spawned {
                pass.fail(error);
            }
        }
    }
}

/// Touches the landing ring ahead of the readers of this process: reading into untouched shared memory costs seven times the copy.
///
/// Every process has page tables of its own, but those that only copy from the ring come to a part of it, and a fault that reads
/// maps sixteen pages at once: touching all of it in all of sixteen ranks was a third of their start on two cores.
fn touch_landing(pass: &Pass) {
    let region = &pass.shared.region;
    // Untouched pages are slower, not wrong.
    let _ = region.memory().populate(region.landing_range(), || pass.is_stopped());
}

/// As many gather threads as the rank's share of the cores, and no more than can have a buffer.
fn gather_threads(ranks: usize, buffers: usize) -> usize {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    (cores / ranks).clamp(1, GATHER_THREADS).min(buffers - 1)
}
