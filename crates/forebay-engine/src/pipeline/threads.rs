//! The threads of a session: one planner, the readers and roots that this process hosts, and gather
//! threads. Where every rank gets its samples alone there is nothing to plan or to read for others,
//! and the gather threads do it all.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use forebay_io::guard;
use forebay_plan::config::Mapping;

use crate::base::fallback::Wanted;
use crate::error::Error;
use crate::pipeline::context::Context;
use crate::pipeline::session::Session;
use crate::pipeline::thread_group::Kind;
use crate::pipeline::{gather, planner, reader, root};
use crate::shm::block_state::publish_position;
use crate::shm::position::SessionId;

/// Gather threads of a rank: copying 3 KB samples needs more than one, and the cores of a node are
/// shared by its ranks.
const GATHER_THREADS: usize = 4;

/// Begins pass `number` at an absolute step of the epoch that ends at step `end`; the ring must be
/// paused and every rank at rest.
pub(crate) fn begin(
    context: Arc<Context>,
    number: SessionId,
    start: u64,
    end: u64,
) -> Result<Arc<Session>, Error> {
    let session = Arc::new(Session::new(context, number, start));
    let context = &session.context;
    guard::keep_now();
    publish_position(&context.slot().position, number, start);
    context.buffers.ring.restart(number);
    context.buffers.ring.claim_up_to(context.wanted_end(end));
    context.buffers.ring.resume(start);
    if let Err(error) = start_threads(&session, number) {
        drop(context.buffers.ring.pause());
        session.end();
        session.publish_detached();
        return Err(error);
    }
    context.notify_all();
    Ok(session)
}

/// Starts the threads of a session; gather threads are as many as the system allows, at least one.
fn start_threads(session: &Arc<Session>, number: SessionId) -> Result<(), Error> {
    let context = &session.context;
    if !context.settings.mode.is_alone() {
        session.spawn("planner", Kind::Shares, |session| planner::run(session, &|| host_readers(session)))?;
    }
    let gatherers = if session.rank_locator.is_some() {
        1 // a locator takes steps in order
    } else {
        gather_threads(context.region.layout().ranks, context.region.layout().buffers)
    };
    for gatherer in 0..gatherers {
        match session.spawn("gather", Kind::Gathers, |session| gather::run(session)) {
            Err(error) if gatherer == 0 => return Err(error),
            Err(error) => {
                let reason = format!("{gatherer} of {gatherers} gather threads: {error}");
                context.falls_back(Wanted::GatherThreads, reason);
                break;
            }
            Ok(()) => {}
        }
    }
    let reads = (0..context.region.layout().readers)
        .any(|reader| context.host(reader, number) == context.local_rank());
    if context.untouched.swap(false, Ordering::AcqRel)
        && context.settings.mapping != Mapping::Resident
        && reads
    {
        // Only saves time.
        if let Err(error) = session.spawn("touch", Kind::Shares, |session| touch_staging(session)) {
            context.falls_back(Wanted::Prefault, error.to_string());
        }
    }
    Ok(())
}

/// Starts the readers that this process hosts now and that do not run here yet, each with its root
/// where roots locate samples.
fn host_readers(session: &Arc<Session>) {
    for number in 0..session.context.region.layout().readers {
        if session.adopt_reader(number) {
            let read = move |session: &Arc<Session>| reader::run(session, number);
            let mut spawned = session.spawn(&format!("reader-{number}"), Kind::Shares, read);
            if number < session.context.settings.locating_roots {
                let seek = move |session: &Arc<Session>| root::run(session, number);
                let root = || session.spawn(&format!("root-{number}"), Kind::Shares, seek);
                spawned = spawned.and_then(|()| root());
            }
            if let Err(error) = spawned {
                session.fail(error);
            }
        }
    }
}

/// Touches the staging ring ahead of the readers of this process: reading into untouched shared
/// memory costs seven times the copy.
///
/// Every process has page tables of its own, but those that only copy from the ring come to a part
/// of it, and a fault that reads maps sixteen pages at once: touching all of it in all of sixteen
/// ranks was a third of their start on two cores.
fn touch_staging(session: &Session) {
    let region = &session.context.region;
    // Untouched pages are slower, not wrong.
    let _ = region.memory().populate(region.staging_range(), || session.is_stopped());
}

/// As many gather threads as the rank's share of the cores, and no more than can have a buffer.
fn gather_threads(ranks: usize, buffers: usize) -> usize {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    (cores / ranks).clamp(1, GATHER_THREADS).min(buffers - 1)
}
