//! Sends replies at their due times.
//!
//! For one reply, in order:
//!
//! 1. A request thread adds it to a heap. One idle reply thread, the leader, sleeps until the
//!    earliest entry; the others sleep until there is no leader. A new earliest entry wakes the
//!    leader.
//! 2. Its data are read [`READ_BEFORE_DUE`], so that reading causes no lateness. A mapped range
//!    that is due sooner is populated by the request thread, and a small one is read when it is
//!    sent.
//! 3. Sending begins early by its usual duration, so that it ends at the due time. The scheduler
//!    learns that duration, and the kernel's usual wake-up delay, from the last replies; neither
//!    exceeds [`MAX_EARLY`]. A thread that wakes early spins.
//! 4. Its lateness is recorded.
//!
//! Threads sleep with a timer slack of 1 ns, at real-time priority if that is allowed.
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use std::{io, num::NonZeroU64, thread};

use forebay_model::NodeId;

use crate::locks::locked;
use crate::records::counters::Histogram;
use crate::system;
use crate::timing::clock::{Clock, RealTime};

/// How long before the due time data are read \[ns\]. Memory holds the replies due within it,
/// however deep the queues are.
const READ_BEFORE_DUE: RealTime = 20_000_000;

/// Largest reply whose data are read when it is sent \[B\]. 16 KiB take 3 µs from the page cache,
/// as long as another pass through the heap.
const INLINE_BYTES: usize = 16 * 1024;

/// Maximum time by which sending begins early \[ns\].
const MAX_EARLY: RealTime = 2_000_000;

/// Maximum time by which a thread wakes early, and spins \[ns\].
const MAX_SPIN: RealTime = 150_000;

/// Buffers kept for reuse: as many as two threads and a full window of 1 MiB requests usually need.
const KEPT_BUFFERS: usize = 64;

/// A reply with data.
pub(crate) trait DataReply: Send {
    /// Prepares the data; returns whether they need no buffer.
    fn prepare(&mut self) -> bool;
    /// Reads the data into a buffer; returns the number of bytes.
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize>;
    /// Maximum number of bytes.
    fn length(&self) -> usize;
    /// Sends the data or the error; `Ok(None)` if [`DataReply::prepare`] needed no buffer.
    fn send(self: Box<Self>, data: io::Result<Option<&[u8]>>);
}

/// A reply to send at its due time.
pub(crate) enum Reply {
    /// A reply without data.
    Plain(Box<dyn FnOnce() + Send>),
    /// A reply with data.
    Data(Box<dyn DataReply>),
}

/// A buffer, and the number of valid bytes.
type Filled = (Vec<u8>, usize);

/// What a thread does with an entry of the heap.
enum Step {
    /// Read the data, then wait for the due time.
    Read(Box<dyn DataReply>),
    ReadAndSend(Box<dyn DataReply>),
    Send(Box<dyn DataReply>, io::Result<Option<Filled>>),
    Plain(Box<dyn FnOnce() + Send>),
}

/// When a reply was scheduled, and when it is due.
#[derive(Clone, Copy)]
struct Times {
    scheduled: RealTime,
    due: RealTime,
}

/// How late replies were.
#[derive(Clone, Default)]
pub(crate) struct Lateness {
    /// Of each reply \[real ns\].
    pub(crate) each: Histogram,
    /// Sum over the replies \[real ns\].
    late_ns: u64,
    /// Sum of the times that the model lets requests wait \[real ns\].
    modelled_ns: u64,
}

impl Lateness {
    fn record(&mut self, times: Times, sent: RealTime) {
        let late = sent.saturating_sub(times.due);
        self.each.record(late);
        self.late_ns += late;
        self.modelled_ns += times.due.saturating_sub(times.scheduled);
    }

    /// Share of the time from requests to their replies that is lateness, from 0 to 1.
    pub(crate) fn share(&self) -> f64 {
        match self.late_ns + self.modelled_ns {
            0 => 0.0,
            all => self.late_ns as f64 / all as f64,
        }
    }
}

struct ScheduledStep {
    /// When the step begins.
    at: RealTime,
    order: u64,
    times: Times,
    node: NodeId,
    step: Step,
}

impl PartialEq for ScheduledStep {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.order) == (other.at, other.order)
    }
}

impl Eq for ScheduledStep {}

impl PartialOrd for ScheduledStep {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for ScheduledStep {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.order).cmp(&(other.at, other.order))
    }
}

#[derive(Default)]
struct Queue {
    heap: BinaryHeap<Reverse<ScheduledStep>>,
    order: u64,
    leader: bool,
    stopping: bool,
}

struct Core {
    clock: Clock,
    queue: Mutex<Queue>,
    leader: Condvar,
    follower: Condvar,
    buffers: Mutex<Vec<Vec<u8>>>,
    lateness: Mutex<Lateness>,
    /// Usual delay of the kernel's wake-ups.
    wake_ns: AtomicU64,
    /// Usual duration of sending a reply without data.
    send_ns: AtomicU64,
    /// Usual additional duration per MiB.
    mebibyte_ns: AtomicU64,
}

/// The reply threads of one emulator.
pub(crate) struct ReplyScheduler {
    core: Arc<Core>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// Moves an average by an eighth of the difference to a new value.
fn learn(average: &AtomicU64, value: u64) {
    let old = average.load(Ordering::Relaxed);
    average.store(old - old / 8 + value.min(MAX_EARLY) / 8, Ordering::Relaxed);
}

impl ReplyScheduler {
    pub(crate) fn start(clock: Clock, threads: usize) -> io::Result<ReplyScheduler> {
        let core = Arc::new(Core {
            clock,
            queue: Mutex::default(),
            leader: Condvar::new(),
            follower: Condvar::new(),
            buffers: Mutex::default(),
            lateness: Mutex::default(),
            wake_ns: AtomicU64::new(0),
            send_ns: AtomicU64::new(0),
            mebibyte_ns: AtomicU64::new(0),
        });
        let scheduler = ReplyScheduler { core, threads: Mutex::default() };
        for number in 0..threads {
            let core = scheduler.core.clone();
            let work = move || {
                // Without it sleeps are up to 50 µs longer.
                let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
                system::use_real_time_priority();
                core.work();
            };
            let thread = thread::Builder::new().name(format!("pfs-reply-{number}")).spawn(work)?;
            locked(&scheduler.threads).push(thread);
        }
        Ok(scheduler)
    }

    /// Sends a reply so that sending ends at `due`.
    pub(crate) fn schedule(&self, due: RealTime, node: NodeId, reply: Reply) {
        let times = Times { scheduled: self.core.clock.real_now(), due };
        let (at, step) = match reply {
            Reply::Plain(send) => (due.saturating_sub(self.core.send_time(0)), Step::Plain(send)),
            Reply::Data(reply) if reply.length() <= INLINE_BYTES => {
                (due.saturating_sub(self.core.send_time(reply.length())), Step::ReadAndSend(reply))
            }
            Reply::Data(mut reply) => match due.saturating_sub(READ_BEFORE_DUE) {
                // Here, as a reply thread would delay other replies.
                at if at <= self.core.clock.real_now() && reply.prepare() => {
                    (due.saturating_sub(self.core.send_time(reply.length())), Step::Send(reply, Ok(None)))
                }
                at => (at, Step::Read(reply)),
            },
        };
        self.core.insert(at, times, node, step);
    }

    /// Sends all replies to a node now.
    pub(crate) fn expedite(&self, node: NodeId) {
        let mut queue = locked(&self.core.queue);
        let entries = std::mem::take(&mut queue.heap).into_vec();
        let now = self.core.clock.real_now();
        let expedited = entries.into_iter().map(|Reverse(mut entry)| {
            if entry.node == node {
                (entry.at, entry.times.due) = (0, now);
            }
            Reverse(entry)
        });
        queue.heap = expedited.collect();
        self.core.leader.notify_one();
        self.core.follower.notify_one();
    }

    /// Lateness of the replies.
    pub(crate) fn lateness(&self) -> Lateness {
        locked(&self.core.lateness).clone()
    }

    /// Clears the lateness.
    pub(crate) fn reset(&self) {
        *locked(&self.core.lateness) = Lateness::default();
    }

    /// Drops the waiting replies and joins the threads.
    pub(crate) fn stop(&self) {
        let dropped = {
            let mut queue = locked(&self.core.queue);
            queue.stopping = true;
            self.core.leader.notify_all();
            self.core.follower.notify_all();
            std::mem::take(&mut queue.heap)
        };
        // A dropped reply sends an error.
        drop(dropped);
        for thread in locked(&self.threads).drain(..) {
            let _ = thread.join();
        }
    }
}

impl Drop for ReplyScheduler {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Core {
    fn insert(&self, at: RealTime, times: Times, node: NodeId, step: Step) {
        let mut queue = locked(&self.queue);
        if queue.stopping {
            drop(queue);
            // A dropped reply sends an error.
            drop(step);
            return;
        }
        let first = queue.heap.peek().is_none_or(|Reverse(first)| at < first.at);
        let order = queue.order;
        queue.order += 1;
        queue.heap.push(Reverse(ScheduledStep { at, order, times, node, step }));
        if first {
            if queue.leader {
                self.leader.notify_one();
            } else {
                self.follower.notify_one();
            }
        }
    }

    /// Usual duration of sending a reply of this size.
    fn send_time(&self, length: usize) -> RealTime {
        let each = self.send_ns.load(Ordering::Relaxed);
        let data = self.mebibyte_ns.load(Ordering::Relaxed) * length as u64 / (1 << 20);
        (each + data).min(MAX_EARLY)
    }

    fn work(&self) {
        let mut queue = locked(&self.queue);
        while !queue.stopping {
            let next = queue.heap.peek().map(|Reverse(entry)| entry.at);
            let early = self.wake_ns.load(Ordering::Relaxed).min(MAX_SPIN);
            let now = self.clock.real_now();
            if let Some(at) = next
                && at <= now + early
            {
                let Some(Reverse(entry)) = queue.heap.pop() else { continue };
                if !queue.heap.is_empty() && !queue.leader {
                    self.follower.notify_one();
                }
                drop(queue);
                while self.clock.real_now() < entry.at {
                    std::hint::spin_loop();
                }
                self.run(entry);
                queue = locked(&self.queue);
            } else if queue.leader {
                queue = self.follower.wait(queue).unwrap_or_else(PoisonError::into_inner);
            } else {
                queue.leader = true;
                queue = match next {
                    None => self.leader.wait(queue).unwrap_or_else(PoisonError::into_inner),
                    Some(at) => {
                        let wake = at - early;
                        let sleep = Duration::from_nanos(wake - now);
                        let (queue, result) =
                            self.leader.wait_timeout(queue, sleep).unwrap_or_else(PoisonError::into_inner);
                        if result.timed_out() {
                            learn(&self.wake_ns, self.clock.real_now().saturating_sub(wake));
                        }
                        queue
                    }
                };
                queue.leader = false;
            }
        }
    }

    fn run(&self, entry: ScheduledStep) {
        let ScheduledStep { times, node, step, .. } = entry;
        let begun = self.clock.real_now();
        match step {
            Step::Read(mut reply) => {
                let data = if reply.prepare() { Ok(None) } else { self.read(&mut *reply) };
                let at = times.due.saturating_sub(self.send_time(reply.length()));
                self.insert(at, times, node, Step::Send(reply, data));
            }
            Step::Plain(send) => {
                send();
                self.sent(begun, times, 0);
            }
            Step::ReadAndSend(mut reply) => {
                let data = self.read(&mut *reply);
                self.send(begun, times, reply, data);
            }
            Step::Send(reply, data) => self.send(begun, times, reply, data),
        }
    }

    fn read(&self, reply: &mut dyn DataReply) -> io::Result<Option<Filled>> {
        let mut buffer = locked(&self.buffers).pop().unwrap_or_default();
        if buffer.len() < reply.length() {
            buffer.resize(reply.length(), 0);
        }
        let count = reply.read(&mut buffer[..])?;
        Ok(Some((buffer, count)))
    }

    fn send(
        &self,
        begun: RealTime,
        times: Times,
        reply: Box<dyn DataReply>,
        data: io::Result<Option<Filled>>,
    ) {
        match data {
            Ok(None) => {
                let count = reply.length();
                reply.send(Ok(None));
                self.sent(begun, times, count);
            }
            Ok(Some((buffer, count))) => {
                reply.send(Ok(Some(&buffer[..count])));
                self.sent(begun, times, count);
                let mut buffers = locked(&self.buffers);
                if buffers.len() < KEPT_BUFFERS {
                    buffers.push(buffer);
                }
            }
            Err(error) => {
                reply.send(Err(error));
                self.sent(begun, times, 0);
            }
        }
    }

    fn sent(&self, begun: RealTime, times: Times, count: usize) {
        let ended = self.clock.real_now();
        let took = ended - begun;
        if count <= INLINE_BYTES {
            learn(&self.send_ns, took);
        } else {
            let data = took.saturating_sub(self.send_ns.load(Ordering::Relaxed));
            learn(&self.mebibyte_ns, data * (1 << 20) / count as u64);
        }
        locked(&self.lateness).record(times, ended);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    struct Bytes(usize, mpsc::Sender<(usize, RealTime)>, Clock);

    impl DataReply for Bytes {
        fn prepare(&mut self) -> bool {
            false
        }

        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            buffer[..self.0].fill(7);
            Ok(self.0)
        }

        fn length(&self) -> usize {
            self.0
        }

        fn send(self: Box<Self>, data: io::Result<Option<&[u8]>>) {
            let data = data.unwrap().unwrap();
            assert!(data.iter().all(|&byte| byte == 7));
            self.1.send((data.len(), self.2.real_now())).unwrap();
        }
    }

    #[test]
    fn one_late_reply_is_a_small_share_of_a_row_of_them() {
        let mut lateness = Lateness::default();
        assert!(lateness.share().abs() < 1e-9);
        for number in 0..100 {
            let late = if number == 50 { 500_000 } else { 0 };
            let times = Times { scheduled: 1_000, due: 501_000 };
            lateness.record(times, times.due + late);
        }
        // Its 99th percentile is that of the one: 100 replies have no other.
        assert_eq!(lateness.each.max(), 500_000);
        assert!((lateness.share() - 1.0 / 101.0).abs() < 1e-9);
    }

    #[test]
    fn replies_leave_in_order_of_their_due_times_and_not_before_them() {
        let clock = Clock::new(1.0);
        let scheduler = ReplyScheduler::start(clock, 2).unwrap();
        let (sender, receiver) = mpsc::channel();
        let now = clock.real_now();
        // Far enough apart that a busy machine keeps their order.
        for (length, after) in [(1 << 20, 90_000_000), (10, 30_000_000), (100_000, 60_000_000)] {
            let reply = Bytes(length, sender.clone(), clock);
            scheduler.schedule(now + after, NodeId(0), Reply::Data(Box::new(reply)));
        }
        for (length, after) in [(10, 30_000_000), (100_000, 60_000_000), (1 << 20, 90_000_000)] {
            let (sent, at) = receiver.recv().unwrap();
            assert_eq!(sent, length);
            assert!(at + MAX_EARLY >= now + after, "{sent} bytes left {} ns early", now + after - at);
        }
        scheduler.stop();
        assert_eq!(scheduler.lateness().each.count(), 3);
    }

    #[test]
    fn expediting_a_node_sends_only_its_replies() {
        let clock = Clock::new(1.0);
        let scheduler = ReplyScheduler::start(clock, 2).unwrap();
        let (sender, receiver) = mpsc::channel();
        let far = clock.real_now() + 3_600_000_000_000;
        for (node, length) in [(0, 1), (1, 2), (1, 1 << 20)] {
            scheduler.schedule(
                far,
                NodeId(node),
                Reply::Data(Box::new(Bytes(length, sender.clone(), clock))),
            );
        }
        scheduler.expedite(NodeId(1));
        let mut sent = [receiver.recv().unwrap().0, receiver.recv().unwrap().0];
        sent.sort_unstable();
        assert_eq!(sent, [2, 1 << 20]);
        drop(sender);
        scheduler.stop();
        assert_eq!(receiver.iter().count(), 0);
    }
}
