//! A root of a node: runs a plugged-in locator for all ranks of the node.
//!
//! Root k of R runs in the process of reader k and locates the samples of the steps s with s mod R
//! = k, in order, as far ahead as the ring of locations has room.
//!
//! When its process leaves, the next one continues at the last published step. When the
//! locator fails, the root records a fallback and marks all later samples as unknown: planners then
//! locate them by the index.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use forebay_io::guard;

use crate::base::fallback::Wanted;
use crate::config::strategies::Locator;
use crate::error::Error;
use crate::pipeline::plan::locator_host::{Audience, StepHost};
use crate::pipeline::plan::planner::wanted_end;
use crate::pipeline::session::{Session, WAKEUP_INTERVAL};
use crate::pipeline::thread_group::in_storage;
use crate::shm::block_state::{is_behind, publish_position};
use crate::shm::counters::{Counter, count, monotonic_ns};
use crate::shm::position::Position;
use crate::shm::stall::Doing;

/// Runs root `number` of a session until the session is stopped.
pub(crate) fn run(session: &Session, number: usize) {
    if let Some(mut locator) = session.context.locator(session.context.node_ranks.clone(), session.start) {
        locate_steps(session, number, &mut locator);
    }
    Doing::Nothing.publish(&session.context.region.readers()[number].seeking);
}

fn locate_steps(session: &Session, number: usize, locator: &mut Locator) {
    forebay_io::widen_affinity();
    let context = &session.context;
    let locations = context.region.locations();
    let roots = context.settings.locating_roots as u64;
    let found = &context.region.readers()[number].found;
    let mut step = match Position::from_word(found.load(Ordering::Acquire)) {
        reached if reached.session() == session.number => reached.step(),
        _ => session.start + (number as u64 + roots - session.start % roots) % roots,
    };
    publish_position(found, session.number, step);
    let seeking = &context.region.readers()[number].seeking;
    let mut lost = false;
    loop {
        let is_wanted = || {
            let has_room = locations.overwrites(step, session.start).is_none_or(|last| {
                context.present().all(|(_, slot)| is_behind(&slot.taken, session.number, last))
            });
            has_room && step < wanted_end(session)
        };
        while !is_wanted() && !session.is_stopped() {
            locations.overwrites(step, session.start).map_or(Doing::Nothing, Doing::Room).publish(seeking);
            context.region.planning().wait(|| session.is_stopped() || is_wanted(), WAKEUP_INTERVAL);
        }
        if session.is_stopped() {
            return;
        }
        let begun = Instant::now();
        let mut aside = Duration::ZERO;
        Doing::Reading(monotonic_ns()).publish(seeking);
        if !lost && let Err(error) = in_storage(|| locate(session, number, locator, step, &mut aside)) {
            context.falls_back(Wanted::Walk, error.to_string());
            lost = true;
        }
        if lost {
            (0..context.region.layout().step_needs).for_each(|need| locations.put(step, need, None));
        }
        let seek = begun.elapsed().saturating_sub(aside);
        count(context.slot(), Counter::LocateNs, seek.as_nanos() as u64);
        step += roots;
        Doing::Nothing.publish(seeking);
        publish_position(found, session.number, step);
        context.region.planning().notify();
    }
}

/// Locates the samples of a step; `aside` is the time that was not spent on locating.
fn locate(
    session: &Session,
    number: usize,
    locator: &mut Locator,
    step: u64,
    aside: &mut Duration,
) -> Result<(), Error> {
    let Some(mappings) = &session.context.mappings else {
        return Err(Error::local("the dataset cannot be mapped"));
    };
    guard::keep();
    let faults = guard::faults();
    let host = StepHost::new(session, mappings, step, Audience::Node(number));
    let located = locator.locate(step, &host);
    *aside = host.aside();
    if guard::faults() != faults {
        // A walk through lost pages found zeros.
        mappings.check()?;
    }
    Ok(located?)
}
