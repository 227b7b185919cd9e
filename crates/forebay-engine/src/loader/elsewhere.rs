//! Finds ranks that wait for each other in different loaders, which never ends.
//!
//! How it works, in order:
//! 1. Each process knows its loaders, and the thread that made each.
//! 2. A thread that has waited for a rank for [`TOLD_AFTER`] publishes that rank's number in all
//!    other loaders that it made (`RankSlot::elsewhere`): it will not iterate them meanwhile.
//! 3. A rank that waits for another one, and finds its own number there, will wait for ever. After
//!    [`CERTAIN_AFTER`] that is an error on both ranks.
//!
//! Threads that iterate a loader that another thread made neither publish nor fail: the thread that
//! waits for them may be any.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use crate::error::Error;
use crate::pipeline::context::Context;

/// A shorter wait is an ordinary one, of which other loaders need not know.
const TOLD_AFTER: Duration = Duration::from_secs(2);

/// How long two ranks must be seen to wait for each other: longer than a rank takes to notice that
/// its wait is over.
const CERTAIN_AFTER: Duration = Duration::from_secs(4);

/// The loaders of this process, and the threads that made them.
static LOADERS: Mutex<Vec<(ThreadId, Weak<Context>)>> = Mutex::new(Vec::new());

fn loaders() -> MutexGuard<'static, Vec<(ThreadId, Weak<Context>)>> {
    LOADERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Records a loader that this thread has made.
pub(crate) fn record(context: &Arc<Context>) {
    let mut loaders = loaders();
    loaders.retain(|(_, context)| context.strong_count() > 0);
    loaders.push((std::thread::current().id(), Arc::downgrade(context)));
}

/// Whether this thread made the loader.
fn made_here(context: &Context) -> bool {
    let thread = std::thread::current().id();
    loaders().iter().any(|(maker, one)| *maker == thread && std::ptr::eq(one.as_ptr(), context))
}

/// Notes that this rank iterates the loader: it waits in no other one.
pub(crate) fn is_here(context: &Context) {
    context.slot().elsewhere.store(0, Ordering::Release);
}

/// A wait of this thread in a loader.
pub(crate) struct RankWait<'a> {
    context: &'a Context,
    /// Whether this thread made the loader, once that is asked.
    is_maker: Option<bool>,
    /// The local rank that it waits for, and since when.
    awaited: Option<(usize, Instant)>,
    /// Since when that rank is known to wait for this one.
    mutual: Option<Instant>,
    /// The other loaders that know of the wait.
    told: Vec<Arc<Context>>,
}

impl<'a> RankWait<'a> {
    pub(crate) fn new(context: &'a Context) -> Self {
        Self { context, is_maker: None, awaited: None, mutual: None, told: Vec::new() }
    }

    /// Notes that the thread waits for this local rank, or for no rank. Fails if the rank waits for
    /// this one in another loader; `name` is the rank, for the message.
    pub(crate) fn check(
        &mut self,
        awaited: Option<usize>,
        name: impl FnOnce(usize) -> String,
    ) -> Result<(), Error> {
        let Some(local) = awaited else {
            self.end();
            return Ok(());
        };
        let since = match self.awaited {
            Some((known, since)) if known == local => since,
            _ => {
                self.end();
                self.awaited.insert((local, Instant::now())).1
            }
        };
        if since.elapsed() < TOLD_AFTER || !*self.is_maker.get_or_insert_with(|| made_here(self.context)) {
            return Ok(());
        }
        if self.told.is_empty() {
            self.tell(self.context.options.local_ranks[local]);
        }
        let own = self.context.options.rank + 1;
        if self.context.region.ranks()[local].elsewhere.load(Ordering::Acquire) != own {
            self.mutual = None;
            return Ok(());
        }
        if self.mutual.get_or_insert_with(Instant::now).elapsed() < CERTAIN_AFTER {
            return Ok(());
        }
        // The other rank has to see it as well: what is published stays until this one comes.
        self.told.clear();
        Err(Error::waits_elsewhere(&self.context.options.name, &name(local)))
    }

    fn tell(&mut self, rank: u32) {
        let thread = std::thread::current().id();
        let is_other = |one: &Arc<Context>| !std::ptr::eq(Arc::as_ptr(one), self.context);
        let others = loaders();
        let made = others.iter().filter(|(maker, _)| *maker == thread);
        self.told = made.filter_map(|(_, one)| one.upgrade()).filter(is_other).collect();
        drop(others);
        for other in &self.told {
            other.slot().elsewhere.store(rank + 1, Ordering::Release);
        }
    }

    fn end(&mut self) {
        (self.awaited, self.mutual) = (None, None);
        for other in self.told.drain(..) {
            other.slot().elsewhere.store(0, Ordering::Release);
        }
    }
}

impl Drop for RankWait<'_> {
    fn drop(&mut self) {
        self.end();
    }
}
