//! The threads of a session: one planner, the readers and roots that this process hosts, and gather
//! threads. If each rank reads its samples itself, there is no planner and no reader: the gather
//! threads do all work.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use forebay_io::guard;
use forebay_plan::config::{GatherFacts, Mapping, gather_threads};

use crate::base::fallback::Wanted;
use crate::dataset::field_decoders::decode_threads;
use crate::error::Error;
use crate::pipeline::context::Context;
use crate::pipeline::gather;
use crate::pipeline::plan::{planner, root};
use crate::pipeline::read::reader;
use crate::pipeline::session::Session;
use crate::pipeline::thread_group::ThreadKind;
use crate::shm::block_state::publish_position;
use crate::shm::position::SessionId;
use crate::store::Store;

/// Begins session `number` at an absolute step of the epoch that ends at step `end`; the pool must
/// be paused and each rank at rest.
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

/// Starts the threads of a session; fewer gather threads if the system allows no more, at least
/// one.
fn start_threads(session: &Arc<Session>, number: SessionId) -> Result<(), Error> {
    let context = &session.context;
    if !context.settings.mode.is_alone() {
        session.spawn("planner", ThreadKind::Shares, |session| {
            planner::run(session, &|| host_readers(session));
        })?;
    }
    let gatherers = gather_threads(&GatherFacts {
        cores: context.cores,
        buffers: context.region.layout().buffers,
        decode_threads: decode_threads(&context.options.decode, context.cores),
        store_requests: context.store.as_deref().map(Store::requests_per_node),
        has_locator: session.rank_locator.is_some(),
    });
    for gatherer in 0..gatherers {
        match session.spawn("gather", ThreadKind::Gathers, |session| gather::run(session)) {
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
        // Without it the session is only slower.
        if let Err(error) = session.spawn("touch", ThreadKind::Shares, |session| touch_staging(session)) {
            context.falls_back(Wanted::Prefault, error.to_string());
        }
    }
    Ok(())
}

/// Starts the readers that this process hosts and that do not run here yet, each with its root if
/// roots locate samples.
fn host_readers(session: &Arc<Session>) {
    for number in 0..session.context.region.layout().readers {
        if session.adopt_reader(number) {
            let read = move |session: &Arc<Session>| reader::run(session, number);
            let mut spawned = session.spawn(&format!("reader-{number}"), ThreadKind::Shares, read);
            if number < session.context.settings.locating_roots {
                let seek = move |session: &Arc<Session>| root::run(session, number);
                let root = || session.spawn(&format!("root-{number}"), ThreadKind::Shares, seek);
                spawned = spawned.and_then(|()| root());
            }
            if let Err(error) = spawned {
                session.fail(error);
            }
        }
    }
}

/// Prefaults the staging ring for the readers of this process: reading into untouched shared memory
/// costs seven times the copy.
///
/// Only processes that host readers prefault: prefaulting in all 16 ranks took a third of start-up
/// on two cores. The others copy only a part of the ring, and their read faults map 16 pages each.
fn touch_staging(session: &Session) {
    let region = &session.context.region;
    // On failure the readers fault the pages, which is slower but correct.
    let _ = region.memory().populate(region.staging_range(), || session.is_stopped());
}
