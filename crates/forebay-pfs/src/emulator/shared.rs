//! What all mounts of one emulator share: the model and its books under one lock, the timers, the numbers of files.
use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};

use fuser::Notifier;

use crate::counters::{Counters, Transfer};
use crate::emulator::calibration::Calibration;
use crate::emulator::clock::{Clock, RealTime};
use crate::emulator::errands::Errands;
use crate::emulator::mapping::Mapping;
use crate::emulator::nodes::{Identities, Nodes};
use crate::emulator::timers::Timers;
use crate::events::{Event, Ring};
use crate::faults::Faults;
use crate::model::{FileId, Kind, Model, ModelTime, NodeId, Piece};
use crate::spec::Spec;

/// Locks; a thread that panicked while it held the lock left counters behind that may be one short, nothing worse.
pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What one lock guards, so that bookings, counters and events have one order.
pub(crate) struct State {
    pub(crate) model: Model,
    pub(crate) counters: Counters,
    pub(crate) events: Ring,
    pub(crate) faults: Faults,
    pieces: Vec<Piece>,
}

impl State {
    pub(crate) fn new(model: Model) -> State {
        State {
            model,
            counters: Counters::default(),
            events: Ring::new(crate::events::KEPT_EVENTS),
            faults: Faults::default(),
            pieces: Vec::new(),
        }
    }
}

/// When a reply is due, and what of a read there is to reply with.
pub(crate) struct Booking {
    pub(crate) due: RealTime,
    /// The first unreadable byte.
    pub(crate) bad: Option<u64>,
}

/// Requests that have come and were not answered, and the most there ever were.
#[derive(Debug, Default)]
pub(crate) struct InFlight {
    now: AtomicU64,
    most: AtomicU64,
}

impl InFlight {
    pub(crate) fn enter(&self) {
        let now = self.now.fetch_add(1, Ordering::Relaxed) + 1;
        self.most.fetch_max(now, Ordering::Relaxed);
    }

    pub(crate) fn leave(&self) {
        self.now.fetch_sub(1, Ordering::Relaxed);
    }

    pub(crate) fn most(&self) -> u64 {
        self.most.load(Ordering::Relaxed)
    }

    pub(crate) fn reset(&self) {
        self.most.store(self.now.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

/// All that mounts share.
pub(crate) struct Shared {
    pub(crate) spec: Spec,
    pub(crate) clock: Clock,
    pub(crate) root: Arc<OwnedFd>,
    pub(crate) state: Mutex<State>,
    pub(crate) identities: Mutex<Identities>,
    pub(crate) timers: Timers,
    pub(crate) errands: Errands,
    pub(crate) mounts: RwLock<Vec<Arc<Mounted>>>,
    pub(crate) in_flight: InFlight,
    /// Held for reading while bytes are sent out of a mapping, and for writing while a file becomes shorter.
    pub(crate) sizes: RwLock<()>,
    pub(crate) calibration: Calibration,
}

impl Shared {
    /// Books a transfer that comes now.
    pub(crate) fn transfer(
        &self,
        node: NodeId,
        file: FileId,
        offset: u64,
        length: u64,
        kind: Kind,
    ) -> Booking {
        let mut state = locked(&self.state);
        let State { model, counters, events, faults, pieces } = &mut *state;
        let time = self.clock.model_now();
        let due = model.transfer(time, node, file, offset, length, kind, pieces);
        counters.transfer(&self.spec, &Transfer { time, node, file, offset, length, kind }, pieces);
        let mut bad = None;
        if kind == Kind::Read {
            events.push(Event { time, node, file, offset, length, latency_ns: due.saturating_sub(time) });
            bad = faults.first_bad(file, offset, length);
        }
        drop(state);
        Booking { due: self.real_due(time, due), bad }
    }

    /// Books an operation of the metadata server that comes now.
    pub(crate) fn metadata(&self, node: NodeId) -> RealTime {
        let mut state = locked(&self.state);
        let time = self.clock.model_now();
        state.counters.metadata(node);
        let due = state.model.metadata(time, node);
        drop(state);
        self.real_due(time, due)
    }

    /// When a reply must have left, so that it is there in time.
    fn real_due(&self, came: ModelTime, due: ModelTime) -> RealTime {
        // What the model lets take less than the way to and fro cannot be had; half of it is what is left for the reply.
        let taken = self.clock.real(due.saturating_sub(came)) / 2;
        self.clock.real(due) - self.calibration.way().min(taken)
    }

    /// All mounts that are there now.
    pub(crate) fn mounts(&self) -> Vec<Arc<Mounted>> {
        self.mounts.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Path of a file below the root.
    pub(crate) fn name(&self, file: FileId) -> String {
        locked(&self.identities).name(file).to_owned()
    }

    /// Model time now.
    pub(crate) fn now(&self) -> ModelTime {
        self.clock.model_now()
    }
}

/// An open file.
#[derive(Debug)]
pub(crate) struct Handle {
    pub(crate) descriptor: OwnedFd,
    pub(crate) file: FileId,
    pub(crate) mapping: Mapping,
}

/// One entry of an open directory: inode, kind, name.
pub(crate) type DirectoryEntry = (u64, fuser::FileType, std::ffi::OsString);

/// One mount: a node of the model with a page cache of its own.
pub(crate) struct Mounted {
    pub(crate) node: NodeId,
    pub(crate) path: PathBuf,
    /// `major:minor` of the mount, once it is there.
    pub(crate) device: OnceLock<String>,
    /// What the kernel reads ahead \[KiB\], once it is known.
    pub(crate) read_ahead_kb: OnceLock<u64>,
    pub(crate) notifier: OnceLock<Notifier>,
    pub(crate) nodes: Mutex<Nodes>,
    pub(crate) handles: RwLock<HashMap<u64, Arc<Handle>>>,
    pub(crate) directories: RwLock<HashMap<u64, Arc<Vec<DirectoryEntry>>>>,
    pub(crate) last_handle: AtomicU64,
    /// Answers nothing any more but ENOTCONN.
    pub(crate) dead: AtomicBool,
    /// Its connection was cut: it will never answer again.
    pub(crate) cut: AtomicBool,
    pub(crate) in_flight: InFlight,
}

impl Mounted {
    pub(crate) fn new(node: NodeId, path: PathBuf, root: Arc<OwnedFd>) -> io::Result<Mounted> {
        Ok(Mounted {
            node,
            path,
            device: OnceLock::new(),
            read_ahead_kb: OnceLock::new(),
            notifier: OnceLock::new(),
            nodes: Mutex::new(Nodes::new(root)?),
            handles: RwLock::default(),
            directories: RwLock::default(),
            last_handle: AtomicU64::new(0),
            dead: AtomicBool::new(false),
            cut: AtomicBool::new(false),
            in_flight: InFlight::default(),
        })
    }

    pub(crate) fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Relaxed)
    }

    /// Refuses what comes to a dead mount, and what would leave it.
    pub(crate) fn check_alive(&self) -> io::Result<()> {
        if self.is_dead() { Err(io::Error::from_raw_os_error(libc::ENOTCONN)) } else { Ok(()) }
    }

    /// Drops all pages and attributes that the kernel caches of every file it knows here; answers of how many files.
    pub(crate) fn drop_caches(&self) -> u64 {
        let Some(notifier) = self.notifier.get() else { return 0 };
        let files = locked(&self.nodes).files();
        // The kernel refuses (ENOENT) what it has forgotten meanwhile.
        files.iter().filter(|&&inode| notifier.inval_inode(fuser::INodeNo(inode), 0, 0).is_ok()).count()
            as u64
    }
}
