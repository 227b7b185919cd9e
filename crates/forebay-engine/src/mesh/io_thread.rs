//! The thread that moves frames over all links of a leader, and watches.
//!
//! Round after round: fill what may go, write it, wait for sockets, a ring or [`ROUND`], read, look
//! at the clock and at the processes of this node. A socket that ends without a goodbye is a death
//! at once. A node that is gone without closing anything is seen by the kernel: what we send is not
//! acknowledged for [`SILENT_AFTER_S`], and heartbeats see to it that something is always sent. A
//! process that is stopped keeps its kernel acknowledging, so it only misses heartbeats: that is a
//! warning. While it is silent it gets few of ours, for its kernel has to keep them.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use forebay_host::{failpoint, fork};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt;

use super::error::LinkError;
use super::frames::{ACKNOWLEDGE_BYTES, Broken, CHANNELS, Channel, Decoder, Frame, MESSAGE_BYTES};
use super::state::{Mesh, Outbox, Presence};
use crate::base::failure::Cause;

/// How often the processes of this node are looked at.
const ROUND: Duration = Duration::from_millis(200);
const HEARTBEAT_EVERY: Duration = Duration::from_secs(1);
/// Heartbeats that a silent peer is sent at most: what it does not read its kernel has to keep.
const UNANSWERED_HEARTBEATS: u32 = 64;
/// How long a peer may be silent before the user is warned.
const WARN_AFTER: Duration = Duration::from_secs(10);
/// How long a node may leave what we send unacknowledged before it is lost \[s\]. With a
/// heartbeat's pause before it, and a second until a rank looks behind it, a death is told within
/// 10 s.
const SILENT_AFTER_S: u64 = 7;
/// How long a goodbye may take.
const FAREWELL: Duration = Duration::from_secs(1);
const READ_BYTES: usize = 64 << 10;

/// One link, as the thread has it.
struct Link {
    node: usize,
    /// Closes the socket in forked children, where it would hide our end. Dropped before it, so
    /// that no child closes another one.
    _fork: fork::ClosedInChild,
    socket: TcpStream,
    decoder: Decoder,
    /// Messages that are not complete, by channel.
    partial: [Vec<u8>; CHANNELS],
    /// Bytes of pieces that were taken and not acknowledged.
    taken: usize,
    out: Vec<u8>,
    written: usize,
    /// The socket takes nothing more; what it still has to say is read.
    is_deaf: bool,
    heard: Instant,
    beat: Instant,
    beats_unanswered: u32,
    warned: bool,
    said_goodbye: bool,
}

/// How a link ended.
enum End {
    Goodbye,
    Lost(Cause),
}

/// Sets up the socket of a link.
pub(super) fn prepare(socket: &TcpStream) -> Result<(), LinkError> {
    let set = || -> std::io::Result<()> {
        socket.set_nonblocking(true)?;
        socket.set_nodelay(true)?;
        let seconds = Duration::from_secs;
        // With nothing on its way the kernel asks by itself.
        sockopt::set_socket_keepalive(socket, true)?;
        sockopt::set_tcp_keepidle(socket, seconds(2))?;
        sockopt::set_tcp_keepintvl(socket, seconds(1))?;
        sockopt::set_tcp_keepcnt(socket, 4)?;
        sockopt::set_tcp_user_timeout(socket, (SILENT_AFTER_S * 1000) as u32)?;
        Ok(())
    };
    set().map_err(LinkError::system("set up a link to another node"))
}

impl Link {
    fn new(node: usize, socket: TcpStream) -> Self {
        let now = Instant::now();
        Self {
            node,
            _fork: fork::ClosedInChild::new(socket.as_raw_fd()),
            socket,
            decoder: Decoder::default(),
            partial: Default::default(),
            taken: 0,
            out: Vec::new(),
            written: 0,
            is_deaf: false,
            heard: now,
            beat: now,
            beats_unanswered: 0,
            warned: false,
            said_goodbye: false,
        }
    }

    fn is_written(&self) -> bool {
        self.written == self.out.len()
    }

    /// Takes what may go, once everything before it is written.
    fn fill(&mut self, outbox: &mut Outbox) {
        if self.is_written() {
            self.out.clear();
            self.written = 0;
            outbox.fill(&mut self.out);
        }
    }

    fn write(&mut self) {
        while !self.is_written() && !self.is_deaf {
            match self.socket.write(&self.out[self.written..]) {
                Ok(bytes) => self.written += bytes,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                // What it said before it went is still to be read, a goodbye perhaps.
                Err(_) => self.is_deaf = true,
            }
        }
        if self.is_deaf {
            self.written = self.out.len();
        }
    }

    /// Reads what is there. `Some`: how the link ended.
    fn read(&mut self, mesh: &Mesh, buffer: &mut [u8]) -> Option<End> {
        loop {
            let bytes = match self.socket.read(buffer) {
                Ok(0) => return Some(self.end(Cause::Died)),
                Ok(bytes) => bytes,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return None,
                Err(error) => {
                    let reset = matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe);
                    return Some(self.end(if reset { Cause::Died } else { Cause::Silent }));
                }
            };
            self.heard = Instant::now();
            self.beats_unanswered = 0;
            self.warned = false;
            self.decoder.feed(&buffer[..bytes]);
            loop {
                match self.decoder.next() {
                    Ok(None) => break,
                    Ok(Some(frame)) => {
                        if self.take(mesh, frame).is_err() {
                            return Some(End::Lost(Cause::Broken));
                        }
                    }
                    Err(Broken) => return Some(End::Lost(Cause::Broken)),
                }
            }
        }
    }

    fn end(&self, cause: Cause) -> End {
        if self.said_goodbye { End::Goodbye } else { End::Lost(cause) }
    }

    fn take(&mut self, mesh: &Mesh, frame: Frame) -> Result<(), Broken> {
        if self.said_goodbye {
            return Err(Broken);
        }
        match frame {
            Frame::Piece { channel, last, body } => {
                self.taken += body.len();
                let partial = &mut self.partial[channel as usize];
                if partial.len() + body.len() > MESSAGE_BYTES {
                    return Err(Broken);
                }
                partial.extend_from_slice(&body);
                let message = last.then(|| std::mem::take(partial));
                let mut state = mesh.lock();
                if self.taken >= ACKNOWLEDGE_BYTES {
                    let taken = std::mem::take(&mut self.taken) as u32;
                    state.nodes[self.node].outbox.control(&Frame::Acknowledge(taken));
                }
                if let Some(message) = message {
                    mesh.received.fetch_add(1, Ordering::Relaxed);
                    mesh.received_bytes.fetch_add(message.len() as u64, Ordering::Relaxed);
                    state.inbox[channel as usize].push_back((self.node, message));
                    mesh.changed.notify_all();
                }
            }
            Frame::Acknowledge(bytes) => {
                if !mesh.lock().nodes[self.node].outbox.acknowledge(bytes as usize) {
                    return Err(Broken);
                }
            }
            Frame::Heartbeat => {}
            Frame::Lost(loss) => {
                mesh.nodes.node_of(loss.rank).ok_or(Broken)?;
                mesh.lose(loss);
            }
            Frame::Abandoned { reason, after_loss } => {
                mesh.lock().abandoned.get_or_insert((self.node, reason, after_loss));
                mesh.lose(mesh.nodes.loss(self.node, Cause::GaveUp));
            }
            Frame::Made => {
                mesh.lock().nodes[self.node].made = true;
                mesh.changed.notify_all();
            }
            Frame::Started { number, step } => {
                let conflict = mesh.lock().starts.hear(self.node, number, step);
                mesh.report(conflict);
            }
            Frame::Goodbye => {
                self.said_goodbye = true;
                mesh.lock().nodes[self.node].presence = Presence::Gone;
                mesh.changed.notify_all();
            }
        }
        Ok(())
    }

    /// Heartbeats, and those that do not come.
    fn look_at_the_clock(&mut self, mesh: &Mesh) {
        let now = Instant::now();
        if self.said_goodbye {
            return;
        }
        if now.duration_since(self.beat) >= HEARTBEAT_EVERY && self.beats_unanswered < UNANSWERED_HEARTBEATS {
            self.beat = now;
            self.beats_unanswered += 1;
            mesh.lock().nodes[self.node].outbox.control(&Frame::Heartbeat);
        }
        if now.duration_since(self.heard) >= WARN_AFTER && !self.warned {
            self.warned = true;
            mesh.lock().warnings.push(format!(
                "{} has not been heard of for {} s; it is stopped or very busy, and waited for",
                mesh.nodes.leader(self.node),
                now.duration_since(self.heard).as_secs()
            ));
        }
    }
}

/// Runs until the links are closed.
pub(super) fn run(mesh: &Arc<Mesh>) {
    let mut links: Vec<Link> = Vec::new();
    let mut buffer = vec![0; READ_BYTES];
    let mut looked = Instant::now();
    loop {
        // Nodes that are told an index in this round, for drills.
        let mut broadcasting = Vec::new();
        let closing = {
            let mut state = mesh.lock();
            links.extend(state.adopted.drain(..).map(|(node, socket)| Link::new(node, socket)));
            for link in &mut links {
                let outbox = &mut state.nodes[link.node].outbox;
                if outbox.holds(Channel::Index) {
                    broadcasting.push(link.node);
                }
                link.fill(outbox);
            }
            state.closing
        };
        if closing {
            break;
        }
        for link in &mut links {
            link.write();
            if broadcasting.contains(&link.node) {
                failpoint::at(failpoint::Place::Broadcast);
            }
        }
        tell(mesh, &links);
        wait(mesh, &links, ROUND);
        turn(mesh, &mut links, &mut buffer);
        for link in &mut links {
            link.look_at_the_clock(mesh);
        }
        if looked.elapsed() >= ROUND {
            looked = Instant::now();
            let watch = mesh.lock().watch.clone();
            if let Some(watch) = watch {
                watch.count(mesh.sent.load(Ordering::Relaxed), mesh.received.load(Ordering::Relaxed));
                if let Some(loss) = watch.lost() {
                    mesh.lose(loss);
                }
            }
        }
    }
    say_goodbye(mesh, links, &mut buffer);
}

/// Reads from all links and drops those that ended.
fn turn(mesh: &Mesh, links: &mut Vec<Link>, buffer: &mut [u8]) {
    links.retain_mut(|link| match link.read(mesh, buffer) {
        None => true,
        Some(End::Goodbye) => false,
        Some(End::Lost(cause)) => {
            mesh.lose_node(link.node, cause);
            false
        }
    });
}

/// Notes whether everything that had to be told is with the kernel.
fn tell(mesh: &Mesh, links: &[Link]) {
    if links.iter().all(Link::is_written) {
        let mut state = mesh.lock();
        if !state.told && state.nodes.iter().all(|node| node.outbox.is_told()) {
            state.told = true;
            mesh.changed.notify_all();
        }
    }
}

fn wait(mesh: &Mesh, links: &[Link], limit: Duration) {
    let mut polled = vec![PollFd::new(&mesh.wake, PollFlags::IN)];
    polled.extend(links.iter().map(|link| {
        let out = if link.is_written() { PollFlags::empty() } else { PollFlags::OUT };
        PollFd::from_borrowed_fd(link.socket.as_fd(), PollFlags::IN | out)
    }));
    let limit = Timespec { tv_sec: 0, tv_nsec: i64::from(limit.subsec_nanos()) };
    // A signal: the next round asks again.
    let _ = poll(&mut polled, Some(&limit));
    let _ = rustix::io::read(&mesh.wake, &mut [0_u8; 8]);
}

/// Sends what is left and a goodbye, and waits a moment for the others to close, so that nothing of
/// it is lost.
fn say_goodbye(mesh: &Mesh, mut links: Vec<Link>, buffer: &mut [u8]) {
    let begun = Instant::now();
    let mut waved = vec![false; mesh.nodes.0.len()];
    while !links.is_empty() && begun.elapsed() < FAREWELL {
        let late = begun.elapsed() > FAREWELL / 2;
        {
            let mut state = mesh.lock();
            for link in &mut links {
                let outbox = &mut state.nodes[link.node].outbox;
                link.fill(outbox);
                if link.is_written() && !waved[link.node] && (late || outbox.is_empty()) {
                    waved[link.node] = true;
                    Frame::Goodbye.put(&mut link.out);
                }
            }
        }
        for link in &mut links {
            link.write();
            if waved[link.node] && link.is_written() {
                // Again after the first time it does nothing.
                let _ = link.socket.shutdown(Shutdown::Write);
            }
        }
        wait(mesh, &links, Duration::from_millis(20));
        // Whoever ends now is no loss to us any more.
        links.retain_mut(|link| link.read(mesh, buffer).is_none());
    }
}
