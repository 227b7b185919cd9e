//! Releases the memory of an idle loader, so that another loader of the process can use it
//! (`memory_ledger.rs`).
//!
//! A loader is idle between its epochs, and after an iteration that was left. Its session ends as
//! for a jump: data that was read ahead is dropped, and the next iteration begins a new session.
//! The pages of the staging ring and of all batch buffers that the user does not hold return to the
//! system; they read as zeros afterwards. While a thread inside a read may still write to them,
//! nothing is released.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};

use forebay_host::fork;

use crate::base::memory_ledger::{Busy, Idle};
use crate::error::Error;
use crate::loader::{Consumer, Engine};
use crate::pipeline::context::Context;

const MIB: u64 = 1 << 20;

/// A loader, registered with the memory ledger.
struct Idler {
    context: Weak<Context>,
    consumer: Weak<Mutex<Consumer>>,
    generation: u64,
}

impl Idle for Idler {
    fn give_up(&self) -> Option<u64> {
        if fork::in_forked_child(self.generation) {
            return None;
        }
        // A dropped loader returns its loan itself.
        let (context, consumer) = (self.context.upgrade()?, self.consumer.upgrade()?);
        // A locked loader is in use.
        let mut consumer = consumer.try_lock().ok()?;
        let is_idle = consumer.detached || consumer.step >= consumer.end;
        if consumer.closed || consumer.agreed.is_some() || consumer.ending.is_some() || !is_idle {
            return None;
        }
        consumer.detach(&context);
        if let Some(session) = consumer.session.take() {
            session.end();
            let out = Arc::new(AtomicBool::new(false));
            let set_out = Arc::clone(&out);
            session.when_out(Box::new(move || set_out.store(true, Ordering::Release)));
            if !out.load(Ordering::Acquire) {
                consumer.ending = Some(session);
                return None;
            }
        }
        let free = context.buffers.ring.free_buffers();
        context.region.release(context.local_rank(), &free).ok()?;
        context.decoded.clear();
        context.untouched.store(true, Ordering::Release);
        let layout = context.region.layout();
        Some(layout.buffer_bytes * (layout.buffers - free.len()) as u64)
    }
}

impl Engine {
    /// Lets other loaders of this process use the memory of this one while it is idle, if it is the
    /// only rank.
    pub(crate) fn lend_memory(&self) {
        if let Some(loan) = self.context.loan.as_ref().filter(|_| self.context.options.size == 1) {
            loan.is_idle_at_first(Arc::new(Idler {
                context: Arc::downgrade(&self.context),
                consumer: Arc::downgrade(&self.consumer),
                generation: self.generation,
            }));
        }
    }

    /// Takes the memory of this loader for an iteration.
    pub(crate) fn hold_memory(&self) -> Result<(), Error> {
        let Some(loan) = &self.context.loan else { return Ok(()) };
        loan.hold().map_err(|Busy { names, held_bytes, budget_bytes }| Error::Memory {
            message: format!(
                "loader \"{}\": no memory for an iteration: it needs {} MiB of the {} MiB that the loaders of this process \
                 share, and {} MiB are held by loaders in the middle of an epoch: {}",
                self.context.options.name,
                self.context.region.total_bytes().div_ceil(MIB),
                budget_bytes / MIB,
                held_bytes.div_ceil(MIB),
                names.join(", "),
            ),
            hint: "end their iterations, close loaders, or give node_memory= more to the first one".into(),
        })
    }
}
