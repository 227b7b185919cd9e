//! A root of a node: walks through the container, for all ranks of the node.
//!
//! Root k of R lives in the process of reader k and finds the samples of the steps s with s mod R = k, in order, as far
//! ahead as the ring of finds lets it. How it walks is in `walk.rs`.
//!
//! When its process says goodbye, the next one goes on at the step that was published last. When the walk meets an error,
//! the root says so in `explain()` and marks what it should have found as unknown.

use std::sync::atomic::Ordering;
use std::time::Instant;

use super::walk::Walk;
use crate::blame::Doing;
use crate::pass::{PATIENCE, Pass};
use crate::planner::wanted_end;
use crate::position::Position;
use crate::protocol::{is_behind, publish_position};
use crate::stats::{Counter, count, monotonic_ns};
use crate::threads::in_storage;

/// Runs root `number` of a pass until the pass is stopped.
pub(crate) fn run(pass: &Pass, number: usize) {
    seek(pass, number);
    Doing::Nothing.publish(&pass.shared.region.readers()[number].seeking);
}

fn seek(pass: &Pass, number: usize) {
    forebay_io::widen_affinity();
    let shared = &pass.shared;
    let finds = shared.region.finds();
    let roots = shared.settings.finders() as u64;
    let found = &shared.region.readers()[number].found;
    let mut step = match Position::from_word(found.load(Ordering::Acquire)) {
        reached if reached.pass() == pass.number => reached.step(),
        _ => pass.start + (number as u64 + roots - pass.start % roots) % roots,
    };
    publish_position(found, pass.number, step);
    let mut walk = Walk::new(pass, number);
    let seeking = &shared.region.readers()[number].seeking;
    let mut lost = false;
    loop {
        let is_wanted = || {
            let has_room = finds.overwrites(step, pass.start).is_none_or(|last| {
                shared.present().all(|(_, slot)| is_behind(&slot.taken, pass.number, last))
            });
            has_room && step < wanted_end(pass)
        };
        while !is_wanted() && !pass.is_stopped() {
            finds.overwrites(step, pass.start).map_or(Doing::Nothing, Doing::Room).publish(seeking);
            shared.region.planning().wait(|| pass.is_stopped() || is_wanted(), PATIENCE);
        }
        if pass.is_stopped() {
            return;
        }
        let begun = Instant::now();
        Doing::Reading(monotonic_ns()).publish(seeking);
        if !lost && let Err(error) = in_storage(|| walk.step(step)) {
            let failed = "the walk through the container failed, so places come from the index";
            shared.falls_back(format!("{failed}: {error}"));
            lost = true;
        }
        if lost {
            (0..shared.region.layout().step_needs).for_each(|need| finds.put(step, need, None));
        }
        let seek = begun.elapsed().saturating_sub(walk.take_aside());
        count(shared.slot(), Counter::LocateNs, seek.as_nanos() as u64);
        step += roots;
        Doing::Nothing.publish(seeking);
        publish_position(found, pass.number, step);
        shared.region.planning().notify();
    }
}
