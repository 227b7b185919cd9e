//! Replies at their time.
//!
//! In order, for one reply that is due at an absolute time:
//!
//! 1. A loop thread puts a task into a heap. Of the idle timer threads one, the leader, sleeps until the earliest task's time; the others
//!    sleep until there is no leader. A task that is earlier than all others wakes the leader.
//! 2. Data that a reply carries are made ready a little before it is due ([`PREPARE`]), so that reading costs no lateness: at once where that
//!    is soon and needs no buffer, small ones with the reply.
//! 3. A reply is begun early by as long as it usually takes, so that its end is at the due time. That, and the time by which the kernel
//!    wakes sleepers too late, are learned from the last replies and never exceed [`EARLY`]; the rest until the time is spent spinning.
//! 4. How late it ended is recorded.
//!
//! Threads sleep with a timer slack of 1 ns and take precedence over ordinary ones when allowed.
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use std::{io, num::NonZeroU64, thread};

use crate::counters::Histogram;
use crate::emulator::clock::{Clock, RealTime};
use crate::emulator::system;
use crate::model::NodeId;

/// How long before its due time the data of a reply are read: memory holds what is due within this time, however deep the queues are.
const PREPARE: RealTime = 20_000_000;

/// Up to this size data are read when the reply is sent: 16 KiB take 3 µs from the page cache, a turn through the heap as long.
const INLINE_BYTES: usize = 16 * 1024;

/// The most by which a reply is begun early, and by which a sleeper wants to be woken early.
const EARLY: RealTime = 2_000_000;

/// The most by which a sleeper wants to be woken early; the time until the task is spent spinning.
const SPIN: RealTime = 150_000;

/// Buffers that are kept for the next reply: as many as two threads and a full window of 1 MiB requests ordinarily use.
const KEPT_BUFFERS: usize = 64;

/// A reply that carries data.
pub(crate) trait DataReply: Send {
    /// Makes them ready; answers whether it has them without a buffer.
    fn prepare(&mut self) -> bool;
    /// Reads them into a buffer; answers how many bytes there are.
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize>;
    /// How many bytes at most.
    fn length(&self) -> usize;
    /// Sends them, or the error; none: those that it has itself.
    fn send(self: Box<Self>, data: io::Result<Option<&[u8]>>);
}

/// What is to be done at some time.
pub(crate) enum Task {
    /// A reply without data.
    Answer(Box<dyn FnOnce() + Send>),
    /// A reply with data.
    Data(Box<dyn DataReply>),
}

/// A buffer, and how many bytes of it are data.
type Filled = (Vec<u8>, usize);

enum Step {
    Prepare(Box<dyn DataReply>),
    Data(Box<dyn DataReply>),
    Prepared(Box<dyn DataReply>, io::Result<Option<Filled>>),
    Answer(Box<dyn FnOnce() + Send>),
}

struct Entry {
    at: RealTime,
    order: u64,
    due: RealTime,
    node: NodeId,
    step: Step,
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.order) == (other.at, other.order)
    }
}

impl Eq for Entry {}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entry {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.order).cmp(&(other.at, other.order))
    }
}

#[derive(Default)]
struct Queue {
    heap: BinaryHeap<Reverse<Entry>>,
    order: u64,
    leader: bool,
    stopping: bool,
}

struct Shared {
    clock: Clock,
    queue: Mutex<Queue>,
    leader: Condvar,
    follower: Condvar,
    buffers: Mutex<Vec<Vec<u8>>>,
    lateness: Mutex<Histogram>,
    /// By how much sleepers wake too late, usually.
    wake_ns: AtomicU64,
    /// How long a reply without data takes, usually.
    send_ns: AtomicU64,
    /// How long a MiB takes, usually, beyond that.
    mebibyte_ns: AtomicU64,
}

/// The timer threads of one emulator.
pub(crate) struct Timers {
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// Moves an average an eighth of the way to a new value.
fn learn(average: &AtomicU64, value: u64) {
    let old = average.load(Ordering::Relaxed);
    average.store(old - old / 8 + value.min(EARLY) / 8, Ordering::Relaxed);
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Timers {
    pub(crate) fn start(clock: Clock, threads: usize) -> io::Result<Timers> {
        let shared = Arc::new(Shared {
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
        let timers = Timers { shared, threads: Mutex::default() };
        for number in 0..threads {
            let shared = timers.shared.clone();
            let work = move || {
                // Refused only by kernels without it; then sleeps are up to 50 µs longer.
                let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
                system::take_precedence();
                shared.work();
            };
            let thread = thread::Builder::new().name(format!("pfs-timer-{number}")).spawn(work)?;
            locked(&timers.threads).push(thread);
        }
        Ok(timers)
    }

    /// Does a task so that it ends at `due`.
    pub(crate) fn push(&self, due: RealTime, node: NodeId, task: Task) {
        let (at, step) = match task {
            Task::Answer(answer) => (due.saturating_sub(self.shared.send_time(0)), Step::Answer(answer)),
            Task::Data(reply) if reply.length() <= INLINE_BYTES => {
                (due.saturating_sub(self.shared.send_time(reply.length())), Step::Data(reply))
            }
            Task::Data(mut reply) => match due.saturating_sub(PREPARE) {
                // Here and not by a timer thread, which would let replies wait that are due.
                at if at <= self.shared.clock.real_now() && reply.prepare() => (
                    due.saturating_sub(self.shared.send_time(reply.length())),
                    Step::Prepared(reply, Ok(None)),
                ),
                at => (at, Step::Prepare(reply)),
            },
        };
        self.shared.insert(at, due, node, step);
    }

    /// Does everything for a node now.
    pub(crate) fn hurry(&self, node: NodeId) {
        let mut queue = locked(&self.shared.queue);
        let entries = std::mem::take(&mut queue.heap).into_vec();
        let now = self.shared.clock.real_now();
        let hurried = entries.into_iter().map(|Reverse(mut entry)| {
            if entry.node == node {
                (entry.at, entry.due) = (0, now);
            }
            Reverse(entry)
        });
        queue.heap = hurried.collect();
        self.shared.leader.notify_one();
        self.shared.follower.notify_one();
    }

    /// How late replies ended, in real nanoseconds.
    pub(crate) fn lateness(&self) -> Histogram {
        locked(&self.shared.lateness).clone()
    }

    /// Forgets how late replies were.
    pub(crate) fn reset(&self) {
        *locked(&self.shared.lateness) = Histogram::default();
    }

    /// Drops what is still to be done, and waits for the threads.
    pub(crate) fn stop(&self) {
        let dropped = {
            let mut queue = locked(&self.shared.queue);
            queue.stopping = true;
            self.shared.leader.notify_all();
            self.shared.follower.notify_all();
            std::mem::take(&mut queue.heap)
        };
        // A reply that is dropped answers with an error.
        drop(dropped);
        for thread in locked(&self.threads).drain(..) {
            let _ = thread.join();
        }
    }
}

impl Drop for Timers {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Shared {
    fn insert(&self, at: RealTime, due: RealTime, node: NodeId, step: Step) {
        let mut queue = locked(&self.queue);
        if queue.stopping {
            drop(queue);
            // A reply that is dropped answers with an error.
            drop(step);
            return;
        }
        let first = queue.heap.peek().is_none_or(|Reverse(first)| at < first.at);
        let order = queue.order;
        queue.order += 1;
        queue.heap.push(Reverse(Entry { at, order, due, node, step }));
        if first {
            if queue.leader {
                self.leader.notify_one();
            } else {
                self.follower.notify_one();
            }
        }
    }

    /// How long a reply of this size usually takes.
    fn send_time(&self, length: usize) -> RealTime {
        let each = self.send_ns.load(Ordering::Relaxed);
        let data = self.mebibyte_ns.load(Ordering::Relaxed) * length as u64 / (1 << 20);
        (each + data).min(EARLY)
    }

    fn work(&self) {
        let mut queue = locked(&self.queue);
        while !queue.stopping {
            let next = queue.heap.peek().map(|Reverse(entry)| entry.at);
            let early = self.wake_ns.load(Ordering::Relaxed).min(SPIN);
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

    fn run(&self, entry: Entry) {
        let Entry { due, node, step, .. } = entry;
        let begun = self.clock.real_now();
        match step {
            Step::Prepare(mut reply) => {
                let data = if reply.prepare() { Ok(None) } else { self.read(&mut *reply) };
                let at = due.saturating_sub(self.send_time(reply.length()));
                self.insert(at, due, node, Step::Prepared(reply, data));
            }
            Step::Answer(answer) => {
                answer();
                self.sent(begun, due, 0);
            }
            Step::Data(mut reply) => {
                let data = self.read(&mut *reply);
                self.send(begun, due, reply, data);
            }
            Step::Prepared(reply, data) => self.send(begun, due, reply, data),
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
        due: RealTime,
        reply: Box<dyn DataReply>,
        data: io::Result<Option<Filled>>,
    ) {
        match data {
            Ok(None) => {
                let count = reply.length();
                reply.send(Ok(None));
                self.sent(begun, due, count);
            }
            Ok(Some((buffer, count))) => {
                reply.send(Ok(Some(&buffer[..count])));
                self.sent(begun, due, count);
                let mut buffers = locked(&self.buffers);
                if buffers.len() < KEPT_BUFFERS {
                    buffers.push(buffer);
                }
            }
            Err(error) => {
                reply.send(Err(error));
                self.sent(begun, due, 0);
            }
        }
    }

    fn sent(&self, begun: RealTime, due: RealTime, count: usize) {
        let ended = self.clock.real_now();
        let took = ended - begun;
        if count <= INLINE_BYTES {
            learn(&self.send_ns, took);
        } else {
            let data = took.saturating_sub(self.send_ns.load(Ordering::Relaxed));
            learn(&self.mebibyte_ns, data * (1 << 20) / count as u64);
        }
        locked(&self.lateness).record(ended.saturating_sub(due));
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
    fn replies_leave_in_the_order_of_their_due_times_and_not_before_them() {
        let clock = Clock::new(1.0);
        let timers = Timers::start(clock, 2).unwrap();
        let (sender, receiver) = mpsc::channel();
        let now = clock.real_now();
        // Far enough apart that a busy machine does not turn them around.
        for (length, after) in [(1 << 20, 90_000_000), (10, 30_000_000), (100_000, 60_000_000)] {
            let reply = Bytes(length, sender.clone(), clock);
            timers.push(now + after, NodeId(0), Task::Data(Box::new(reply)));
        }
        for (length, after) in [(10, 30_000_000), (100_000, 60_000_000), (1 << 20, 90_000_000)] {
            let (sent, at) = receiver.recv().unwrap();
            assert_eq!(sent, length);
            assert!(at + EARLY >= now + after, "{sent} bytes left {} ns early", now + after - at);
        }
        timers.stop();
        assert_eq!(timers.lateness().count(), 3);
    }

    #[test]
    fn hurrying_a_node_sends_its_replies_and_no_others() {
        let clock = Clock::new(1.0);
        let timers = Timers::start(clock, 2).unwrap();
        let (sender, receiver) = mpsc::channel();
        let far = clock.real_now() + 3_600_000_000_000;
        for (node, length) in [(0, 1), (1, 2), (1, 1 << 20)] {
            timers.push(far, NodeId(node), Task::Data(Box::new(Bytes(length, sender.clone(), clock))));
        }
        timers.hurry(NodeId(1));
        let mut sent = [receiver.recv().unwrap().0, receiver.recv().unwrap().0];
        sent.sort_unstable();
        assert_eq!(sent, [2, 1 << 20]);
        drop(sender);
        timers.stop();
        assert_eq!(receiver.iter().count(), 0);
    }
}
