//! Registers a share, so that other nodes can read it.
//!
//! With RDMA, the network card answers reads. The thread is needed while peers connect, and by
//! transports that emulate reads; it sleeps otherwise.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use forebay_host::fork;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};

use crate::server::share::Share;
use crate::ucx::Ucx;
use crate::ucx::api::{self, Api, MapParams};
use crate::ucx::card::Card;
use crate::ucx::worker::Worker;

/// Pause where a worker cannot announce events.
const PAUSE: Duration = Duration::from_millis(1);

/// A share that other nodes can read, until it is dropped.
#[derive(Debug)]
pub struct UcxExporter {
    card: Vec<u8>,
    stop: Arc<Stop>,
    thread: Option<JoinHandle<()>>,
    born: u64,
}

#[derive(Debug)]
struct Stop {
    stopping: AtomicBool,
    wake: OwnedFd,
}

impl UcxExporter {
    /// Registers all of a share.
    ///
    /// # Errors
    /// Why UCX cannot.
    pub fn start(ucx: &Ucx, share: Arc<dyn Share>) -> Result<Self, String> {
        let wake = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC);
        let wake = wake.map_err(|error| format!("eventfd: {error}"))?;
        let stop = Arc::new(Stop { stopping: AtomicBool::new(false), wake });
        let (sender, receiver) = mpsc::channel();
        let (api, stopping) = (Arc::clone(&ucx.api), Arc::clone(&stop));
        let work = move || match Exported::new(api, &share) {
            Ok((exported, card)) => {
                let _ = sender.send(Ok(card));
                exported.run(&stopping);
            }
            Err(reason) => drop(sender.send(Err(reason))),
        };
        let thread = std::thread::Builder::new().name("forebay-ucx".into()).spawn(work);
        let thread = thread.map_err(|error| format!("cannot start a thread: {error}"))?;
        let card = receiver.recv().unwrap_or_else(|_| Err("the thread has panicked".into()))?;
        Ok(Self { card, stop, thread: Some(thread), born: fork::generation() })
    }

    /// What others need to read the share; [`UcxPeer`](crate::UcxPeer) takes it.
    pub fn card(&self) -> &[u8] {
        &self.card
    }
}

impl Drop for UcxExporter {
    fn drop(&mut self) {
        if fork::in_forked_child(self.born) {
            return; // there is no thread
        }
        self.stop.stopping.store(true, Ordering::Release);
        let _ = rustix::io::write(&self.stop.wake, &1_u64.to_ne_bytes());
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the thread of UCX has panicked");
        }
    }
}

/// What the thread owns; `memory` is unmapped before the worker is destroyed.
struct Exported {
    memory: api::UcpMemory,
    worker: Worker,
    _share: Arc<dyn Share>,
}

impl Exported {
    fn new(api: Arc<Api>, share: &Arc<dyn Share>) -> Result<(Self, Vec<u8>), String> {
        let worker = Worker::new(api, api::FEATURE_RMA | api::FEATURE_WAKEUP)?;
        let mut exported = Self { memory: null_mut(), worker, _share: Arc::clone(share) };
        let bytes = share.slice(0, share.bytes()).ok_or("the share consists of several mappings")?;
        let (api, params) = (&exported.worker.api, MapParams::read_only(bytes));
        // SAFETY: the bytes stay until they are unmapped, since `_share` is dropped later.
        let status = unsafe {
            (api.ucp_mem_map)(exported.worker.context, &raw const params, &raw mut exported.memory)
        };
        api.check("ucp_mem_map", status)?;
        let (mut start, mut length) = (null_mut(), 0);
        // SAFETY: the memory was just mapped.
        let status = unsafe {
            (api.ucp_rkey_pack)(exported.worker.context, exported.memory, &raw mut start, &raw mut length)
        };
        api.check("ucp_rkey_pack", status)?;
        // SAFETY: the library has allocated these bytes.
        let key = unsafe { std::slice::from_raw_parts(start.cast::<u8>(), length) }.to_vec();
        // SAFETY: they are released once.
        unsafe { (api.ucp_rkey_buffer_release)(start) };
        // SAFETY: as above.
        let status =
            unsafe { (api.ucp_worker_get_address)(exported.worker.handle, &raw mut start, &raw mut length) };
        api.check("ucp_worker_get_address", status)?;
        // SAFETY: the library has allocated these bytes.
        let worker = unsafe { std::slice::from_raw_parts(start.cast::<u8>(), length) }.to_vec();
        // SAFETY: they are released once.
        unsafe { (api.ucp_worker_release_address)(exported.worker.handle, start) };
        let card = Card { start: bytes.as_ptr() as u64, length: bytes.len() as u64, worker, key };
        Ok((exported, card.encode()))
    }

    fn run(&self, stop: &Stop) {
        let api = &self.worker.api;
        let mut descriptor = -1;
        // SAFETY: the worker was made with wake-ups, and lives as long as its descriptor is used.
        let events = unsafe {
            let status = (api.ucp_worker_get_efd)(self.worker.handle, &raw mut descriptor);
            (status == api::OK && descriptor >= 0).then(|| BorrowedFd::borrow_raw(descriptor))
        };
        while !stop.stopping.load(Ordering::Acquire) {
            if self.worker.progress() {
                continue;
            }
            // SAFETY: the worker lives as long as `self`.
            let armed = unsafe { (api.ucp_worker_arm)(self.worker.handle) };
            match events {
                Some(events) if armed == api::OK => {
                    let mut wait = [
                        PollFd::from_borrowed_fd(events, PollFlags::IN),
                        PollFd::new(&stop.wake, PollFlags::IN),
                    ];
                    // A signal: the next round looks again.
                    let _ = poll(&mut wait, None);
                }
                _ if armed == api::BUSY => {}
                _ => {
                    let wake = stop.wake.as_fd();
                    let time = rustix::event::Timespec { tv_sec: 0, tv_nsec: PAUSE.subsec_nanos().into() };
                    let _ = poll(&mut [PollFd::from_borrowed_fd(wake, PollFlags::IN)], Some(&time));
                }
            }
        }
    }
}

impl Drop for Exported {
    fn drop(&mut self) {
        if !self.memory.is_null() {
            // SAFETY: it was mapped in this context, and is unmapped once.
            let status = unsafe { (self.worker.api.ucp_mem_unmap)(self.worker.context, self.memory) };
            if let Err(error) = self.worker.api.check("ucp_mem_unmap", status) {
                tracing::warn!(error, "a share stays registered");
            }
        }
    }
}
