//! Reads many pages: batches of bounded size, sorted by page number, neighbours in one read,
//! several threads.
//!
//! A level of the tree is a list of page numbers in key order, cut into batches. The numbers of a
//! batch are sorted, and each run of neighbours becomes one read. The reads are announced to the
//! kernel and go to as many threads as the system gives; without threads the caller reads alone.
//! While the pages of one batch are processed in key order, the next one is being read: two batches
//! exist at any time, and memory is bounded by them and the list.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::meta::Layout;
use super::page_reads::read_all;
use crate::file::{Input, IoCounters};
use crate::threads::start_up_to;
use crate::unit_check::lmdb_page_error::WalkError;

/// Longest single read \[bytes\].
///
/// Large enough that the cost of a request is small against the transfer on any storage, small
/// enough that the leaves of an inline database are shared evenly among the threads.
const MAX_READ_BYTES: u64 = 1 << 20;

/// Time between two calls of the progress callback; Ctrl-C should feel immediate.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(100);

/// Receives a page: its index in the list of its level, its number, its bytes.
pub(super) type OnPage<'a> = dyn FnMut(usize, u64, &[u8]) -> Result<(), WalkError> + 'a;

/// Reads the pages of levels.
pub(super) struct Fetch<'a> {
    pub(super) input: &'a Input,
    pub(super) layout: &'a Layout,
    pub(super) counters: &'a IoCounters,
    pub(super) threads: usize,
    pub(super) memory_bytes: u64,
    /// Called a few times a second while reads are waited for; an error ends them.
    pub(super) waiting: &'a dyn Fn() -> Result<(), WalkError>,
}

/// One read: neighbouring pages of a batch.
struct Read {
    batch: usize,
    index: usize,
    offset: u64,
    bytes: Vec<u8>,
}

/// One batch under way.
struct Batch {
    /// First page in the list of the level, and number of pages.
    first: usize,
    pages: usize,
    /// For each page, in key order: its read and its byte in there.
    places: Vec<(u32, u32)>,
    /// The bytes of the reads that are done.
    reads: Vec<Option<Vec<u8>>>,
    missing: usize,
}

impl Fetch<'_> {
    /// Calls `on_page` for each page of `level`, in the order of the list. The pages lie in the
    /// file, and each is there once.
    pub(super) fn level(&self, level: &[u64], on_page: &mut OnPage<'_>) -> Result<(), WalkError> {
        let batch_pages =
            (self.memory_bytes / 2 / u64::from(self.layout.page_bytes)).clamp(1, 1 << 24) as usize;
        let batches = level.len().div_ceil(batch_pages);
        let threads = self.threads.min(level.len());
        if threads <= 1 {
            return self.alone(level, batch_pages, batches, on_page);
        }
        let (to_threads, work) = mpsc::channel::<Read>();
        let (to_here, done) = mpsc::channel::<(Read, Result<(), WalkError>)>();
        let (work, stop) = (&Mutex::new(work), &AtomicBool::new(false));
        let (input, counters) = (self.input, self.counters);
        thread::scope(|scope| {
            let started = start_up_to(threads, scope, move || {
                loop {
                    let next = work.lock().unwrap_or_else(PoisonError::into_inner).recv();
                    let Ok(mut read) = next else { break };
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    let result = read_all(input, read.offset, &mut read.bytes, counters);
                    if to_here.send((read, result)).is_err() {
                        break;
                    }
                }
            });
            if started.is_empty() {
                return self.alone(level, batch_pages, batches, on_page);
            }
            let result = self.pipeline(level, batch_pages, batches, &to_threads, &done, on_page);
            // After an error the threads leave what is still queued.
            stop.store(true, Ordering::Relaxed);
            drop(to_threads);
            result
        })
    }

    /// Reads batch after batch in the calling thread.
    fn alone(
        &self,
        level: &[u64],
        batch_pages: usize,
        batches: usize,
        on_page: &mut OnPage<'_>,
    ) -> Result<(), WalkError> {
        for number in 0..batches {
            let first = number * batch_pages;
            let (mut batch, reads) = self.cut(level, first, batch_pages, number, &mut Vec::new());
            self.announce(&reads);
            let mut last_progress = Instant::now();
            for mut read in reads {
                if last_progress.elapsed() >= PROGRESS_INTERVAL {
                    (self.waiting)()?;
                    last_progress = Instant::now();
                }
                read_all(self.input, read.offset, &mut read.bytes, self.counters)?;
                batch.reads[read.index] = Some(read.bytes);
            }
            self.visit_pages(level, &batch, on_page)?;
        }
        Ok(())
    }

    /// Keeps two batches in flight and returns the pages of the older one.
    fn pipeline(
        &self,
        level: &[u64],
        batch_pages: usize,
        batches: usize,
        to_threads: &mpsc::Sender<Read>,
        done: &mpsc::Receiver<(Read, Result<(), WalkError>)>,
        on_page: &mut OnPage<'_>,
    ) -> Result<(), WalkError> {
        let mut under_way = VecDeque::new();
        let mut spare = Vec::new();
        let mut next = 0;
        for current in 0..batches {
            while next < batches && next < current + 2 {
                let (batch, reads) = self.cut(level, next * batch_pages, batch_pages, next, &mut spare);
                self.announce(&reads);
                for read in reads {
                    to_threads.send(read).expect("the threads live as long as this channel");
                }
                under_way.push_back(batch);
                next += 1;
            }
            while under_way.front().is_some_and(|batch: &Batch| batch.missing > 0) {
                let (read, result) = match done.recv_timeout(PROGRESS_INTERVAL) {
                    Ok(answer) => answer,
                    Err(RecvTimeoutError::Timeout) => {
                        (self.waiting)()?;
                        continue;
                    }
                    Err(RecvTimeoutError::Disconnected) => {
                        unreachable!("the threads live as long as the channel")
                    }
                };
                result?;
                let batch = &mut under_way[read.batch - current];
                batch.reads[read.index] = Some(read.bytes);
                batch.missing -= 1;
            }
            let batch = under_way.pop_front().expect("the current batch was sent");
            self.visit_pages(level, &batch, on_page)?;
            spare.extend(batch.reads.into_iter().flatten());
        }
        Ok(())
    }

    /// Announces the reads of a batch to the kernel, so that all of them are in flight at once. A
    /// single read gains nothing.
    fn announce(&self, reads: &[Read]) {
        if reads.len() > 1 {
            for read in reads {
                self.input.will_need(read.offset, read.bytes.len() as u64);
            }
        }
    }

    /// Plans the batch that starts at index `first` of the level; reuses buffers from `spare`.
    fn cut(
        &self,
        level: &[u64],
        first: usize,
        batch_pages: usize,
        number: usize,
        spare: &mut Vec<Vec<u8>>,
    ) -> (Batch, Vec<Read>) {
        let page_bytes = u64::from(self.layout.page_bytes);
        let numbers = &level[first..level.len().min(first + batch_pages)];
        let mut sorted: Vec<u32> = (0..numbers.len() as u32).collect();
        sorted.sort_unstable_by_key(|&index| numbers[index as usize]);
        let mut places = vec![(0, 0); numbers.len()];
        let mut spans: Vec<(u64, u64)> = Vec::new();
        for &index in &sorted {
            let offset = self.layout.offset(numbers[index as usize]);
            match spans.last_mut() {
                Some((start, length)) if *start + *length == offset && *length < MAX_READ_BYTES => {
                    *length += page_bytes;
                }
                _ => spans.push((offset, page_bytes)),
            }
            let (start, _) = spans[spans.len() - 1];
            places[index as usize] = (spans.len() as u32 - 1, (offset - start) as u32);
        }
        let reads: Vec<Read> = spans
            .iter()
            .enumerate()
            .map(|(index, &(offset, length))| {
                let mut bytes = spare.pop().unwrap_or_default();
                bytes.resize(length as usize, 0);
                Read { batch: number, index, offset, bytes }
            })
            .collect();
        // What is left over would only hold memory.
        spare.clear();
        let missing = reads.len();
        let slots = (0..missing).map(|_| None).collect();
        (Batch { first, pages: numbers.len(), places, reads: slots, missing }, reads)
    }

    fn visit_pages(&self, level: &[u64], batch: &Batch, on_page: &mut OnPage<'_>) -> Result<(), WalkError> {
        let page_bytes = self.layout.page_bytes as usize;
        for index in 0..batch.pages {
            let (read, at) = batch.places[index];
            let bytes = batch.reads[read as usize].as_deref().expect("all reads of the batch are done");
            let page = level[batch.first + index];
            on_page(batch.first + index, page, &bytes[at as usize..at as usize + page_bytes])?;
        }
        Ok(())
    }
}
