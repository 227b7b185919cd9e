//! What all mounts of one emulator share.
use std::os::fd::OwnedFd;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, RwLock};

use forebay_model::{Direction, FileId, Model, ModelTime, NodeId, Piece, Spec};

use crate::deferred::Deferred;
use crate::files::inodes::FileNumbers;
use crate::locks::{locked, read_locked};
use crate::mount::{InFlight, Mount, Mounts};
use crate::records::counters::{Counters, Transfer};
use crate::records::events::{Event, Ring};
use crate::records::faults::Faults;
use crate::timing::clock::{Clock, RealTime};
use crate::timing::reply_scheduler::ReplyScheduler;
use crate::timing::round_trip::RoundTrip;

/// The model and its records, under one lock: bookings, counters and events have one order.
pub(crate) struct EmulatorState {
    pub(crate) model: Model,
    pub(crate) counters: Counters,
    pub(crate) events: Ring,
    pub(crate) faults: Faults,
    pieces: Vec<Piece>,
}

impl EmulatorState {
    pub(crate) fn new(model: Model) -> EmulatorState {
        EmulatorState {
            model,
            counters: Counters::default(),
            events: Ring::default(),
            faults: Faults::default(),
            pieces: Vec::new(),
        }
    }
}

/// The modelled outcome of a transfer.
pub(crate) struct Booking {
    /// When the reply is due.
    pub(crate) due: RealTime,
    /// The first unreadable byte, if any.
    pub(crate) bad: Option<u64>,
}

pub(crate) struct Context {
    pub(crate) spec: Spec,
    pub(crate) clock: Clock,
    pub(crate) root: Arc<OwnedFd>,
    pub(crate) state: Mutex<EmulatorState>,
    pub(crate) numbers: Mutex<FileNumbers>,
    pub(crate) scheduler: ReplyScheduler,
    pub(crate) deferred: Sender<Deferred>,
    pub(crate) mounts: Arc<Mounts>,
    pub(crate) in_flight: InFlight,
    /// Read-locked while bytes of a mapping are sent, write-locked while a file is truncated.
    pub(crate) sizes: RwLock<()>,
    pub(crate) round_trip: RoundTrip,
}

impl Context {
    /// Books a transfer that arrives now.
    pub(crate) fn transfer(
        &self,
        node: NodeId,
        file: FileId,
        offset: u64,
        length: u64,
        direction: Direction,
    ) -> Booking {
        let mut state = locked(&self.state);
        let EmulatorState { model, counters, events, faults, pieces } = &mut *state;
        let time = self.clock.model_now();
        let due = model.transfer(time, node, file, offset, length, direction, pieces);
        counters.transfer(&self.spec, &Transfer { time, node, file, offset, length, direction }, pieces);
        let mut bad = None;
        if direction == Direction::Read {
            events.push(Event { time, node, file, offset, length, latency_ns: due.saturating_sub(time) });
            bad = faults.first_bad(file, offset, length);
        }
        let due = match direction {
            Direction::Read => due,
            Direction::Write => model.written(time, node, length, due),
        };
        drop(state);
        Booking { due: self.real_due(time, due), bad }
    }

    /// When all writes of a node have reached the servers.
    pub(crate) fn synchronized(&self, node: NodeId) -> RealTime {
        let state = locked(&self.state);
        let time = self.clock.model_now();
        let due = state.model.synchronized(node).max(time);
        drop(state);
        self.real_due(time, due)
    }

    /// Books a metadata operation that arrives now; returns when its reply is due.
    pub(crate) fn metadata(&self, node: NodeId) -> RealTime {
        let mut state = locked(&self.state);
        let time = self.clock.model_now();
        state.counters.metadata(node);
        let due = state.model.metadata(time, node);
        drop(state);
        self.real_due(time, due)
    }

    /// When a reply must leave to reach the program at `due`.
    fn real_due(&self, arrived: ModelTime, due: ModelTime) -> RealTime {
        // At most half of a modelled duration is spent on the kernel's round trip.
        let half = self.clock.real(due.saturating_sub(arrived)) / 2;
        self.clock.real(due) - self.round_trip.overhead().min(half)
    }

    /// The current mounts.
    pub(crate) fn mounts(&self) -> Vec<Arc<Mount>> {
        read_locked(&self.mounts).clone()
    }

    /// Path of a file below the root.
    pub(crate) fn name(&self, file: FileId) -> String {
        locked(&self.numbers).name(file).to_owned()
    }
}
