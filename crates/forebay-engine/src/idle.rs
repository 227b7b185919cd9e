//! Giving up the memory of a loader that is not iterated, so that another one of the process can
//! have it (`registry.rs`).
//!
//! A loader is idle between its epochs and where an iteration was broken off. Its pass is ended as
//! for a jump: what was read ahead is dropped, and the next iteration begins a new pass. Then the
//! pages of the landing ring and of all batch buffers that the user does not hold go back to the
//! system; they are zeros when they are touched again, as in a new region. Where storage keeps a
//! thread that may still write to them, nothing is given up.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};

use forebay_host::fork;

use crate::engine::{Consumer, Engine};
use crate::error::Error;
use crate::registry::{Busy, Idle};
use crate::shared::Shared;

const MIB: u64 = 1 << 20;

/// A loader, as the registry knows it.
struct Idler {
    shared: Weak<Shared>,
    consumer: Weak<Mutex<Consumer>>,
    generation: u64,
}

impl Idle for Idler {
    fn give_up(&self) -> Option<u64> {
        if fork::in_forked_child(self.generation) {
            return None;
        }
        // What is gone gives its share back by itself.
        let (shared, consumer) = (self.shared.upgrade()?, self.consumer.upgrade()?);
        // Whoever has the lock uses the loader.
        let mut consumer = consumer.try_lock().ok()?;
        let is_idle = consumer.away || consumer.step >= consumer.end;
        if consumer.closed || consumer.agreed.is_some() || consumer.ending.is_some() || !is_idle {
            return None;
        }
        shared.step_aside(&mut consumer);
        if let Some(pass) = consumer.pass.take() {
            pass.end();
            let out = Arc::new(AtomicBool::new(false));
            let told = Arc::clone(&out);
            pass.when_out(Box::new(move || told.store(true, Ordering::Release)));
            if !out.load(Ordering::Acquire) {
                consumer.ending = Some(pass);
                return None;
            }
        }
        let free = shared.buffers.ring.free_buffers();
        shared.region.release(shared.me(), &free).ok()?;
        shared.untouched.store(true, Ordering::Release);
        let layout = shared.region.layout();
        Some(layout.buffer_bytes * (layout.buffers - free.len()) as u64)
    }
}

impl Engine {
    /// Lets other loaders of this process have the memory of this one while it is idle: where it is
    /// the only rank.
    pub(crate) fn lend_memory(&self) {
        if let Some(share) = self.shared.share.as_ref().filter(|_| self.shared.options.size == 1) {
            share.is_idle_at_first(Arc::new(Idler {
                shared: Arc::downgrade(&self.shared),
                consumer: Arc::downgrade(&self.consumer),
                generation: self.generation,
            }));
        }
    }

    /// Takes the memory of this loader for an iteration.
    pub(crate) fn hold_memory(&self) -> Result<(), Error> {
        let Some(share) = &self.shared.share else { return Ok(()) };
        share.hold().map_err(|Busy { names, held_bytes, budget_bytes }| Error::Memory {
            message: format!(
                "loader \"{}\": no memory for an iteration: it needs {} MiB of the {} MiB that the loaders of this process \
                 share, and {} MiB are held by loaders in the middle of an epoch: {}",
                self.shared.options.name,
                self.shared.region.total_bytes().div_ceil(MIB),
                budget_bytes / MIB,
                held_bytes.div_ceil(MIB),
                names.join(", "),
            ),
            hint: "end their iterations, close loaders, or give memory= more to the first one".into(),
        })
    }
}
