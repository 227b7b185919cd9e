//! A root of a node: walks through the container, for all ranks of the node.
//!
//! Root k of R lives in the process of reader k and finds the samples of the steps s with s mod R = k, in order, as far
//! ahead as the ring of finds lets it. How it walks is in `walk.rs`.
//!
//! When its process says goodbye, the next one goes on at the step that was published last. When the walk meets an error,
//! the root records a fallback and marks what it should have found as unknown.

use std::sync::atomic::Ordering;
use std::time::Instant;

use super::walk::Walk;
use crate::base::fallback::Wanted;
use crate::pipeline::planner::wanted_end;
use crate::pipeline::session::{Session, WAKEUP_INTERVAL};
use crate::pipeline::thread_group::in_storage;
use crate::shm::block_state::{is_behind, publish_position};
use crate::shm::counters::{Counter, count, monotonic_ns};
use crate::shm::position::Position;
use crate::shm::stall::Doing;

/// Runs root `number` of a session until the session is stopped.
pub(crate) fn run(session: &Session, number: usize) {
    seek(session, number);
    Doing::Nothing.publish(&session.context.region.readers()[number].seeking);
}

fn seek(session: &Session, number: usize) {
    forebay_io::widen_affinity();
    let context = &session.context;
    let finds = context.region.finds();
    let roots = context.settings.finders() as u64;
    let found = &context.region.readers()[number].found;
    let mut step = match Position::from_word(found.load(Ordering::Acquire)) {
        reached if reached.session() == session.number => reached.step(),
        _ => session.start + (number as u64 + roots - session.start % roots) % roots,
    };
    publish_position(found, session.number, step);
    let mut walk = Walk::new(session, number);
    let seeking = &context.region.readers()[number].seeking;
    let mut lost = false;
    loop {
        let is_wanted = || {
            let has_room = finds.overwrites(step, session.start).is_none_or(|last| {
                context.present().all(|(_, slot)| is_behind(&slot.taken, session.number, last))
            });
            has_room && step < wanted_end(session)
        };
        while !is_wanted() && !session.is_stopped() {
            finds.overwrites(step, session.start).map_or(Doing::Nothing, Doing::Room).publish(seeking);
            context.region.planning().wait(|| session.is_stopped() || is_wanted(), WAKEUP_INTERVAL);
        }
        if session.is_stopped() {
            return;
        }
        let begun = Instant::now();
        Doing::Reading(monotonic_ns()).publish(seeking);
        if !lost && let Err(error) = in_storage(|| walk.step(step)) {
            context.falls_back(Wanted::Walk, error.to_string());
            lost = true;
        }
        if lost {
            (0..context.region.layout().step_needs).for_each(|need| finds.put(step, need, None));
        }
        let seek = begun.elapsed().saturating_sub(walk.take_aside());
        count(context.slot(), Counter::LocateNs, seek.as_nanos() as u64);
        step += roots;
        Doing::Nothing.publish(seeking);
        publish_position(found, session.number, step);
        context.region.planning().notify();
    }
}
