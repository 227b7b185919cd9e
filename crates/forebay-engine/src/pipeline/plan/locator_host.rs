//! What a plugged-in locator is given by the session that it runs in.

use std::cell::{Cell, RefCell};
use std::time::{Duration, Instant};

use forebay_io::Mappings;
use forebay_plan::config::AccessChoice;
use forebay_plan::{LocatorCounter, LocatorHost, MappedShards, SendError};
use forebay_types::{Extent, Located, SampleLocation, ShardId};

use crate::base::fallback::Wanted;
use crate::mesh::{Channel, LinkError, Links};
use crate::pipeline::session::Session;
use crate::pipeline::thread_group::out_of_storage;
use crate::shm::block_state::is_behind;
use crate::shm::counters::{Counter, count, monotonic_ns};
use crate::shm::stall::Doing;

/// Whom the samples of a step are located for.
pub(crate) enum Audience<'a> {
    /// The planners of the node, by the root of this number.
    Node(usize),
    /// This rank.
    Rank(&'a RefCell<Located>),
}

/// The host of a locator for one step.
pub(crate) struct StepHost<'a> {
    session: &'a Session,
    mappings: &'a Mappings,
    step: u64,
    audience: Audience<'a>,
    aside: Cell<Duration>,
}

impl<'a> StepHost<'a> {
    pub(crate) fn new(
        session: &'a Session,
        mappings: &'a Mappings,
        step: u64,
        audience: Audience<'a>,
    ) -> Self {
        Self { session, mappings, step, audience, aside: Cell::default() }
    }

    /// Time spent waiting for messages and touching records: it is not locating.
    pub(crate) fn aside(&self) -> Duration {
        self.aside.get()
    }

    fn spend_aside<T>(&self, call: impl FnOnce() -> T) -> (T, Duration) {
        let begun = Instant::now();
        let answer = call();
        let took = begun.elapsed();
        self.aside.set(self.aside.get() + took);
        (answer, took)
    }

    /// The links of a root whose process leads the node.
    fn links(&self) -> Option<&Links> {
        self.session.context.links.as_deref().filter(|_| matches!(self.audience, Audience::Node(_)))
    }

    fn does(&self, doing: Doing) {
        if let Audience::Node(root) = self.audience {
            doing.publish(&self.session.context.region.readers()[root].seeking);
        }
    }
}

impl MappedShards for StepHost<'_> {
    fn bytes(&self, shard: ShardId, offset: u64, length: u64) -> Option<&[u8]> {
        self.mappings.bytes(shard, offset, length)
    }

    fn prefetch(&self, extent: Extent) -> u64 {
        self.session.context.files.prefetch(extent)
    }
}

impl LocatorHost for StepHost<'_> {
    fn publish(&self, rank: usize, slot: usize, location: SampleLocation) {
        let context = &self.session.context;
        match self.audience {
            Audience::Node(_) => {
                let number = rank as u64 * context.order.largest_batch() + slot as u64;
                context.region.locations().put(self.step, number, Some(location));
            }
            Audience::Rank(located) => {
                let mut located = located.borrow_mut();
                debug_assert_eq!(located.samples(), slot, "samples come in the order of their slots");
                location.push(&mut located);
                // Storage has answered; the next record is another request.
                out_of_storage(|| ());
            }
        }
    }

    fn touch(&self, record: Extent) {
        let context = &self.session.context;
        if context.settings.access != AccessChoice::Mmap {
            return;
        }
        let touch = || self.mappings.touch(record.shard, record.offset, record.length);
        let ((), took) = self.spend_aside(touch);
        count(context.slot(), Counter::ReadNs, took.as_nanos() as u64);
    }

    fn count(&self, counter: LocatorCounter, amount: u64) {
        let counter = match counter {
            LocatorCounter::CursorBytes => Counter::CursorBytes,
            LocatorCounter::GuessedPages => Counter::GuessedPages,
            LocatorCounter::GuessHits => Counter::GuessHits,
            LocatorCounter::GuessMisses => Counter::GuessMisses,
        };
        count(self.session.context.slot(), counter, amount);
    }

    fn report_refused_cursor(&self, reason: String) {
        self.session.context.falls_back(Wanted::Handoff, reason);
    }

    fn is_stopped(&self) -> bool {
        self.session.is_stopped()
    }

    fn is_starving(&self, step: u64) -> bool {
        let Session { context, number, start, .. } = self.session;
        context.active().any(|(_, slot)| step == *start || is_behind(&slot.taken, *number, step - 1))
    }

    fn is_linked(&self) -> bool {
        self.links().is_some()
    }

    fn send(&self, node: usize, message: Vec<u8>) -> Result<(), SendError> {
        let links = self.links().ok_or(SendError::Closed)?;
        links.send(node, Channel::Cursor, message).map_err(|error| match error {
            LinkError::Gone { .. } => SendError::Gone,
            _ => SendError::Closed,
        })
    }

    fn receive(&self, stop: &dyn Fn() -> bool) -> Result<Option<Vec<u8>>, SendError> {
        let links = self.links().ok_or(SendError::Closed)?;
        self.does(Doing::OtherNodes);
        let wait = || links.receive(Channel::Cursor, None, stop);
        let (received, _) = self.spend_aside(|| out_of_storage(wait));
        self.does(Doing::Reading(monotonic_ns()));
        match received {
            Ok(message) => Ok(message.map(|(_, message)| message)),
            Err(_) => Err(SendError::Closed),
        }
    }
}
