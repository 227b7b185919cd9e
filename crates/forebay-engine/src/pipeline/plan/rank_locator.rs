//! Locating the samples of this rank by a locator of its own, where the node has no roots.

use std::cell::RefCell;
use std::sync::PoisonError;
use std::time::Instant;

use forebay_io::guard;
use forebay_types::Located;

use crate::error::Error;
use crate::pipeline::plan::locator_host::{Audience, StepHost};
use crate::pipeline::session::Session;
use crate::pipeline::thread_group::in_storage;
use crate::shm::counters::{Counter, count};

/// Locates the samples of a step; `None` where this rank has no locator, or its mappings have lost
/// pages.
pub(crate) fn locate(session: &Session, step: u64) -> Result<Option<Located>, Error> {
    let (Some(locator), Some(mappings)) = (&session.rank_locator, &session.context.mappings) else {
        return Ok(None);
    };
    let mut located = Located::default();
    located.clear(1);
    let located = RefCell::new(located);
    let mut locator = locator.lock().unwrap_or_else(PoisonError::into_inner);
    guard::keep();
    let faults = guard::faults();
    let begun = Instant::now();
    let host = StepHost::new(session, mappings, step, Audience::Rank(&located));
    let done = in_storage(|| locator.locate(step, &host));
    // A walk through lost pages found zeros; reading the samples tells what became of them.
    if guard::faults() != 0 && (guard::faults() != faults || done.is_err()) && mappings.is_any_lost() {
        return Ok(None);
    }
    done?;
    let seek = begun.elapsed().saturating_sub(host.aside());
    count(session.context.slot(), Counter::LocateNs, seek.as_nanos() as u64);
    Ok(Some(located.into_inner()))
}
