//! The thread that moves frames over all links of a leader, and detects failures.
//!
//! Each round: fill the send buffers, write them, wait for sockets, a wake-up or
//! [`ROUND_INTERVAL`], read, check heartbeats and the processes of this node.
//!
//! - A socket that ends without a shutdown is a death at once.
//! - If a node fails without closing its sockets, the kernel reports that it acknowledged nothing
//!   for [`UNACKNOWLEDGED_TIMEOUT_S`]. Heartbeats ensure that some data is always in flight.
//! - The kernel of a stopped process still acknowledges: missing heartbeats cause only a warning. A
//!   silent process gets few heartbeats, because its kernel has to buffer them.

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
use super::frames::{ACKNOWLEDGE_BYTES, Broken, CHANNELS, Channel, Decoder, Frame, MAX_MESSAGE_BYTES};
use super::state::{Mesh, NodePresence, Outbox};
use crate::base::failure::Cause;

/// How often the processes of this node are checked.
const ROUND_INTERVAL: Duration = Duration::from_millis(200);
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(1);
/// Heartbeats sent to a silent peer at most: its kernel has to buffer them.
const MAX_UNANSWERED_HEARTBEATS: u32 = 64;
/// How long a peer may be silent before the user is warned.
const WARN_AFTER: Duration = Duration::from_secs(10);
/// How long a node may leave data unacknowledged before it is lost \[s\]. With one heartbeat
/// interval before and a second until a rank checks, ranks report a death within 10 s.
const UNACKNOWLEDGED_TIMEOUT_S: u64 = 7;
/// How long a shutdown may take.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(1);
const READ_BYTES: usize = 64 << 10;

/// One link, with the thread's state.
struct Link {
    node: usize,
    /// Closes the socket in forked children, which would keep the connection open after this
    /// process ended. Dropped before the socket, so that no child closes a reused descriptor.
    _fork: fork::ClosedInChild,
    socket: TcpStream,
    decoder: Decoder,
    /// Messages that are not complete, by channel.
    partial: [Vec<u8>; CHANNELS],
    /// Bytes of pieces that were received and not acknowledged.
    taken: usize,
    out: Vec<u8>,
    written: usize,
    /// The socket accepts no more data; received frames are still read.
    write_closed: bool,
    received_at: Instant,
    sent_at: Instant,
    unanswered: u32,
    warned: bool,
    shut_down: bool,
}

/// How a link ended.
enum End {
    Shutdown,
    Lost(Cause),
}

/// Sets up the socket of a link.
pub(super) fn prepare(socket: &TcpStream) -> Result<(), LinkError> {
    let set = || -> std::io::Result<()> {
        socket.set_nonblocking(true)?;
        socket.set_nodelay(true)?;
        let seconds = Duration::from_secs;
        // With no data in flight the kernel probes the peer.
        sockopt::set_socket_keepalive(socket, true)?;
        sockopt::set_tcp_keepidle(socket, seconds(2))?;
        sockopt::set_tcp_keepintvl(socket, seconds(1))?;
        sockopt::set_tcp_keepcnt(socket, 4)?;
        sockopt::set_tcp_user_timeout(socket, (UNACKNOWLEDGED_TIMEOUT_S * 1000) as u32)?;
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
            write_closed: false,
            received_at: now,
            sent_at: now,
            unanswered: 0,
            warned: false,
            shut_down: false,
        }
    }

    fn is_written(&self) -> bool {
        self.written == self.out.len()
    }

    /// Moves frames from the outbox, once all earlier ones are written.
    fn fill(&mut self, outbox: &mut Outbox) {
        if self.is_written() {
            self.out.clear();
            self.written = 0;
            outbox.fill(&mut self.out);
        }
    }

    fn write(&mut self) {
        while !self.is_written() && !self.write_closed {
            match self.socket.write(&self.out[self.written..]) {
                Ok(bytes) => self.written += bytes,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                // Frames that the peer sent before, perhaps a shutdown, are still to be read.
                Err(_) => self.write_closed = true,
            }
        }
        if self.write_closed {
            self.written = self.out.len();
        }
    }

    /// Reads all that has arrived. `Some`: how the link ended.
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
            self.received_at = Instant::now();
            self.unanswered = 0;
            self.warned = false;
            self.decoder.feed(&buffer[..bytes]);
            loop {
                match self.decoder.next() {
                    Ok(None) => break,
                    Ok(Some(frame)) => {
                        if self.handle(mesh, frame).is_err() {
                            return Some(End::Lost(Cause::Broken));
                        }
                    }
                    Err(Broken) => return Some(End::Lost(Cause::Broken)),
                }
            }
        }
    }

    fn end(&self, cause: Cause) -> End {
        if self.shut_down { End::Shutdown } else { End::Lost(cause) }
    }

    fn handle(&mut self, mesh: &Mesh, frame: Frame) -> Result<(), Broken> {
        if self.shut_down {
            return Err(Broken);
        }
        match frame {
            Frame::Piece { channel, last, body } => {
                self.taken += body.len();
                let partial = &mut self.partial[channel as usize];
                if partial.len() + body.len() > MAX_MESSAGE_BYTES {
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
                let conflict = mesh.lock().starts.compare(self.node, number, step);
                mesh.report(conflict);
            }
            Frame::Shutdown => {
                self.shut_down = true;
                mesh.lock().nodes[self.node].presence = NodePresence::Gone;
                mesh.changed.notify_all();
            }
        }
        Ok(())
    }

    /// Sends a heartbeat when one is due, and warns about a silent peer.
    fn check_heartbeats(&mut self, mesh: &Mesh) {
        let now = Instant::now();
        if self.shut_down {
            return;
        }
        if now.duration_since(self.sent_at) >= HEARTBEAT_INTERVAL
            && self.unanswered < MAX_UNANSWERED_HEARTBEATS
        {
            self.sent_at = now;
            self.unanswered += 1;
            mesh.lock().nodes[self.node].outbox.control(&Frame::Heartbeat);
        }
        if now.duration_since(self.received_at) >= WARN_AFTER && !self.warned {
            self.warned = true;
            mesh.lock().warnings.push(format!(
                "{} has been silent for {} s: it is stopped or very busy; still waiting",
                mesh.nodes.leader(self.node),
                now.duration_since(self.received_at).as_secs()
            ));
        }
    }
}

/// Runs until the links are closed.
pub(super) fn run(mesh: &Arc<Mesh>) {
    let mut links: Vec<Link> = Vec::new();
    let mut buffer = vec![0; READ_BYTES];
    let mut checked = Instant::now();
    loop {
        // Nodes that get a part of the index in this round, for the failpoint.
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
                failpoint::at(failpoint::StopPoint::Broadcast);
            }
        }
        report_flushed(mesh, &links);
        wait(mesh, &links, ROUND_INTERVAL);
        read_all(mesh, &mut links, &mut buffer);
        for link in &mut links {
            link.check_heartbeats(mesh);
        }
        if checked.elapsed() >= ROUND_INTERVAL {
            checked = Instant::now();
            let sink = mesh.lock().sink.clone();
            if let Some(sink) = sink {
                sink.count(mesh.sent.load(Ordering::Relaxed), mesh.received.load(Ordering::Relaxed));
                if let Some(loss) = sink.lost() {
                    mesh.lose(loss);
                }
            }
        }
    }
    shut_down_links(mesh, links, &mut buffer);
}

/// Reads from all links and drops those that ended.
fn read_all(mesh: &Mesh, links: &mut Vec<Link>, buffer: &mut [u8]) {
    links.retain_mut(|link| match link.read(mesh, buffer) {
        None => true,
        Some(End::Shutdown) => false,
        Some(End::Lost(cause)) => {
            mesh.lose_node(link.node, cause);
            false
        }
    });
}

/// Records when the kernel has all control frames.
fn report_flushed(mesh: &Mesh, links: &[Link]) {
    if links.iter().all(Link::is_written) {
        let mut state = mesh.lock();
        if !state.control_flushed && state.nodes.iter().all(|node| node.outbox.control_is_empty()) {
            state.control_flushed = true;
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
    // After a signal the next round polls again.
    let _ = poll(&mut polled, Some(&limit));
    let _ = rustix::io::read(&mesh.wake, &mut [0_u8; 8]);
}

/// Sends the remaining frames and a shutdown, then waits for the peers to close: a socket that is
/// closed too early may discard data that was not delivered.
fn shut_down_links(mesh: &Mesh, mut links: Vec<Link>, buffer: &mut [u8]) {
    let begun = Instant::now();
    let mut sent_shutdown = vec![false; mesh.nodes.0.len()];
    while !links.is_empty() && begun.elapsed() < SHUTDOWN_TIMEOUT {
        let late = begun.elapsed() > SHUTDOWN_TIMEOUT / 2;
        {
            let mut state = mesh.lock();
            for link in &mut links {
                let outbox = &mut state.nodes[link.node].outbox;
                link.fill(outbox);
                if link.is_written() && !sent_shutdown[link.node] && (late || outbox.is_empty()) {
                    sent_shutdown[link.node] = true;
                    Frame::Shutdown.put(&mut link.out);
                }
            }
        }
        for link in &mut links {
            link.write();
            if sent_shutdown[link.node] && link.is_written() {
                // Again after the first time it does nothing.
                let _ = link.socket.shutdown(Shutdown::Write);
            }
        }
        wait(mesh, &links, Duration::from_millis(20));
        // A peer that ends now is no loss for this node any more.
        links.retain_mut(|link| link.read(mesh, buffer).is_none());
    }
}
