//! Test support: a [`LevelStorage`] that fails on purpose.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::level::storage::LevelStorage;

/// A call of a [`LevelStorage`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    Slabs,
    Create,
    Allocate,
    TakenBytes,
    Length,
    Remove,
    Open,
    Read,
    Write,
    StartFlush,
    FinishFlush,
    FreeBytes,
}

/// How a call fails.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fault {
    /// An error, by number.
    Errno(i32),
    /// Somebody deleted the slab before the call.
    Removed,
    /// The call takes this much longer.
    Delay(Duration),
}

type FaultRule = dyn Fn(Call) -> Option<Fault> + Send + Sync;

/// Slabs whose calls fail as a script says, one entry per call, and after its end as a rule says.
pub(crate) struct FaultyLevel {
    storage: Arc<dyn LevelStorage>,
    script: Mutex<VecDeque<Option<Fault>>>,
    rule: Box<FaultRule>,
    calls: AtomicU64,
}

impl FaultyLevel {
    /// Slabs that do not fail yet.
    pub(crate) fn new(storage: Arc<dyn LevelStorage>) -> Self {
        Self { storage, script: Mutex::default(), rule: Box::new(|_| None), calls: AtomicU64::new(0) }
    }

    /// Makes the next calls fail in this order; `None` lets one pass.
    pub(crate) fn with_script(self, script: impl IntoIterator<Item = Option<Fault>>) -> Self {
        self.script.lock().unwrap().extend(script);
        self
    }

    /// Makes every call after the script fail as `rule` says.
    pub(crate) fn with_rule(mut self, rule: impl Fn(Call) -> Option<Fault> + Send + Sync + 'static) -> Self {
        self.rule = Box::new(rule);
        self
    }

    /// Number of calls.
    pub(crate) fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    /// The slabs to call, unless the call fails.
    fn next(&self, call: Call, slab: Option<u32>) -> io::Result<&dyn LevelStorage> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        let scripted = self.script.lock().unwrap().pop_front();
        match scripted.unwrap_or_else(|| (self.rule)(call)) {
            Some(Fault::Errno(number)) => return Err(io::Error::from_raw_os_error(number)),
            Some(Fault::Removed) => slab.map_or(Ok(()), |slab| self.storage.remove(slab))?,
            Some(Fault::Delay(delay)) => std::thread::sleep(delay),
            None => {}
        }
        Ok(&*self.storage)
    }
}

impl LevelStorage for FaultyLevel {
    fn slabs(&self) -> io::Result<Vec<u32>> {
        self.next(Call::Slabs, None)?.slabs()
    }

    fn create(&self, slab: u32) -> io::Result<()> {
        self.next(Call::Create, Some(slab))?.create(slab)
    }

    fn allocate(&self, slab: u32, bytes: u64) -> io::Result<()> {
        self.next(Call::Allocate, Some(slab))?.allocate(slab, bytes)
    }

    fn taken_bytes(&self, slab: u32) -> io::Result<u64> {
        self.next(Call::TakenBytes, Some(slab))?.taken_bytes(slab)
    }

    fn length(&self, slab: u32) -> io::Result<u64> {
        self.next(Call::Length, Some(slab))?.length(slab)
    }

    fn remove(&self, slab: u32) -> io::Result<()> {
        self.next(Call::Remove, Some(slab))?.remove(slab)
    }

    fn open(&self, slab: u32, direct: bool) -> io::Result<Arc<OwnedFd>> {
        self.next(Call::Open, Some(slab))?.open(slab, direct)
    }

    fn read(&self, slab: u32, offset: u64, into: &mut [u8]) -> io::Result<()> {
        self.next(Call::Read, Some(slab))?.read(slab, offset, into)
    }

    fn write(&self, slab: u32, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.next(Call::Write, Some(slab))?.write(slab, offset, bytes)
    }

    fn start_flush(&self, slab: u32, offset: u64, bytes: u64) -> io::Result<()> {
        self.next(Call::StartFlush, Some(slab))?.start_flush(slab, offset, bytes)
    }

    fn finish_flush(&self, slab: u32, offset: u64, bytes: u64) -> io::Result<()> {
        self.next(Call::FinishFlush, Some(slab))?.finish_flush(slab, offset, bytes)
    }

    fn is_memory(&self) -> bool {
        self.storage.is_memory()
    }

    fn free_bytes(&self) -> io::Result<u64> {
        self.next(Call::FreeBytes, None)?.free_bytes()
    }
}
