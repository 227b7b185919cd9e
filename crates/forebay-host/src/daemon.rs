//! The loop of a daemon: clients that connect, ask and leave.
//!
//! How it works, in order:
//! 1. [`Daemon::start`] locks the name of a socket and listens there: a name has one daemon.
//! 2. Each round waits for connections, packets, and the ends of clients' processes.
//! 3. The [`Service`] answers one packet after the other. Packets that a process sent before it
//!    ended come first.
//! 4. The loop ends when the service has been idle for long enough, or `stop` is set.
//!
//! Promises: it serves processes of this user only. It never waits for a client: one that does not
//! take its answers is cut off. It starts no threads, so none can be refused.
//!
//! Not done here: what messages mean, and who may ask what.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::error::HostError;
use crate::packet_socket::{Packet, PacketListener, PacketSocket, Received, Sent};
use crate::runtime_directory::{SocketLock, SocketPath};

/// Pending connections.
const BACKLOG: i32 = 64;

/// Maximum number of clients: two loaders in each of 2048 ranks, more than a node has cores.
const MAX_CLIENTS: usize = 4096;

/// Longest wait between two looks at `stop` and the idle time.
const INTERVAL: Duration = Duration::from_millis(500);

/// Number of a connection; none is used again.
pub type ClientId = u64;

/// Who sent a packet.
#[derive(Clone, Copy, Debug)]
pub struct Caller {
    /// Its connection.
    pub client: ClientId,
    /// Its process; 0 if it is of another pid namespace.
    pub pid: i32,
}

/// The answer to a packet.
#[derive(Debug, Default)]
pub struct Reply {
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// Its descriptors.
    pub fds: Vec<OwnedFd>,
    /// The client's pidfd: it has left when the process ends, also if a child holds its socket
    /// open.
    pub pidfd: Option<OwnedFd>,
}

/// What a daemon does for its clients.
pub trait Service {
    /// Answers a packet.
    fn answer(&mut self, caller: Caller, packet: Packet) -> Reply;

    /// A client has left: it closed its socket, its process ended, or it was cut off.
    fn left(&mut self, client: ClientId);

    /// How long the daemon goes on if nothing happens, with this number of clients; zero ends it.
    /// Called at least twice a second.
    fn idle_left(&mut self, clients: usize) -> Duration;
}

struct Client {
    socket: PacketSocket,
    pidfd: Option<OwnedFd>,
}

/// See the module header.
pub struct Daemon {
    listener: PacketListener,
    _lock: SocketLock,
    clients: BTreeMap<ClientId, Client>,
    next_client: ClientId,
    max_clients: usize,
    /// The last attempt to accept failed: descriptors are short, for example.
    is_refused: bool,
}

impl Daemon {
    /// Listens; `None` if there is a daemon at this socket.
    ///
    /// # Errors
    /// The runtime directory cannot be used.
    pub fn start(path: &SocketPath) -> Result<Option<Self>, HostError> {
        let Some(lock) = path.try_lock()? else { return Ok(None) };
        Ok(Some(Self {
            listener: lock.listen(BACKLOG)?,
            _lock: lock,
            clients: BTreeMap::new(),
            next_client: 0,
            max_clients: MAX_CLIENTS,
            is_refused: false,
        }))
    }

    /// Serves until the idle time is over or `stop` is set. The socket stays locked until `self` is
    /// dropped.
    ///
    /// # Errors
    /// The system refuses to wait for clients.
    pub fn run(&mut self, service: &mut impl Service, stop: &AtomicBool) -> Result<(), HostError> {
        while !stop.load(Ordering::Relaxed) {
            let idle_left = service.idle_left(self.clients.len());
            if idle_left.is_zero() {
                break;
            }
            self.wait_and_serve(service, idle_left.min(INTERVAL))?;
        }
        Ok(())
    }

    fn wait_and_serve(&mut self, service: &mut impl Service, within: Duration) -> Result<(), HostError> {
        // After a refusal the listener would be ready again at once: it waits for a round.
        let accepts = !std::mem::take(&mut self.is_refused);
        let mut polled =
            vec![PollFd::new(&self.listener, if accepts { PollFlags::IN } else { PollFlags::empty() })];
        let mut owners = Vec::new();
        for (id, client) in &self.clients {
            polled.push(PollFd::new(&client.socket, PollFlags::IN));
            owners.push((*id, false));
            if let Some(pidfd) = &client.pidfd {
                polled.push(PollFd::new(pidfd, PollFlags::IN));
                owners.push((*id, true));
            }
        }
        let within = Timespec { tv_sec: within.as_secs() as i64, tv_nsec: within.subsec_nanos().into() };
        match poll(&mut polled, Some(&within)) {
            Ok(_) => {}
            Err(Errno::INTR) => return Ok(()),
            Err(error) => return Err(HostError::system("wait for clients")(error)),
        }
        let is_ready: Vec<bool> = polled.iter().map(|one| !one.revents().is_empty()).collect();
        drop(polled);
        for wants_pidfd in [false, true] {
            let ready = owners.iter().zip(&is_ready[1..]).filter(|(_, is_ready)| **is_ready);
            for ((id, _), _) in ready.filter(|((_, is_pidfd), _)| *is_pidfd == wants_pidfd) {
                if wants_pidfd {
                    self.cut_off(service, *id);
                } else {
                    self.serve(service, *id);
                }
            }
        }
        if is_ready[0] {
            self.accept();
        }
        Ok(())
    }

    fn accept(&mut self) {
        loop {
            match self.listener.accept() {
                Ok(Some(socket)) if self.clients.len() < self.max_clients => {
                    self.clients.insert(self.next_client, Client { socket, pidfd: None });
                    self.next_client += 1;
                }
                Ok(Some(_)) => tracing::warn!(clients = self.clients.len(), "a client too many is refused"),
                Ok(None) => return,
                Err(error) => {
                    tracing::warn!(%error, "a client cannot be accepted");
                    self.is_refused = true;
                    return;
                }
            }
        }
    }

    fn cut_off(&mut self, service: &mut impl Service, id: ClientId) {
        if self.clients.remove(&id).is_some() {
            service.left(id);
        }
    }

    /// Answers what a client has sent.
    fn serve(&mut self, service: &mut impl Service, id: ClientId) {
        while let Some(client) = self.clients.get_mut(&id) {
            let packet = match client.socket.try_receive() {
                Ok(Received::Packet(packet)) => packet,
                Ok(Received::Nothing) => return,
                Ok(Received::Closed) => return self.cut_off(service, id),
                Err(error) => {
                    tracing::info!(%error, "a client is cut off");
                    return self.cut_off(service, id);
                }
            };
            let reply = service.answer(Caller { client: id, pid: client.socket.peer_pid() }, packet);
            client.pidfd = reply.pidfd.or(client.pidfd.take());
            let fds: Vec<BorrowedFd<'_>> = reply.fds.iter().map(AsFd::as_fd).collect();
            // A client has one request under way: a full socket means that it takes none.
            if !matches!(client.socket.try_send(&reply.bytes, b"", &fds), Ok(Sent::Yes)) {
                return self.cut_off(service, id);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;
    use std::process::Command;
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::thread::JoinHandle;
    use std::time::Instant;

    use rustix::process::{Pid, PidfdFlags, pidfd_open};

    use super::*;

    /// Time within which something happens that must happen.
    const DEADLINE: Duration = Duration::from_secs(60);

    /// Sends packets back, takes descriptors for pidfds, and reports who leaves.
    struct Echo(Sender<ClientId>);

    impl Service for Echo {
        fn answer(&mut self, _: Caller, packet: Packet) -> Reply {
            let bytes = if packet.is_truncated { b"truncated".to_vec() } else { packet.bytes };
            Reply { bytes, fds: Vec::new(), pidfd: packet.fds.into_iter().next() }
        }

        fn left(&mut self, client: ClientId) {
            self.0.send(client).unwrap();
        }

        fn idle_left(&mut self, _: usize) -> Duration {
            DEADLINE
        }
    }

    struct Running {
        directory: tempfile::TempDir,
        path: SocketPath,
        left: Receiver<ClientId>,
        stop: std::sync::Arc<AtomicBool>,
        thread: Option<JoinHandle<()>>,
    }

    impl Running {
        fn start(max_clients: usize) -> Self {
            let directory = tempfile::tempdir().unwrap();
            let path = SocketPath::new(directory.path(), &["echo"]).unwrap();
            let mut daemon = Daemon::start(&path).unwrap().unwrap();
            assert!(Daemon::start(&path).unwrap().is_none());
            daemon.max_clients = max_clients;
            let (sender, left) = channel();
            let stop = std::sync::Arc::new(AtomicBool::new(false));
            let stopped = std::sync::Arc::clone(&stop);
            let serve = move || daemon.run(&mut Echo(sender), &stopped).unwrap();
            let thread = Some(std::thread::spawn(serve));
            Self { directory, path, left, stop, thread }
        }

        fn connect(&self) -> PacketSocket {
            loop {
                // None while as many connections are pending as may be.
                if let Some(socket) = PacketSocket::connect(self.path.socket()).unwrap() {
                    return socket;
                }
                std::thread::sleep(Duration::from_millis(1));
            }
        }

        fn next_left(&self) -> ClientId {
            self.left.recv_timeout(DEADLINE).unwrap()
        }
    }

    impl Drop for Running {
        fn drop(&mut self) {
            self.stop.store(true, Ordering::Relaxed);
            let _ = PacketSocket::connect(self.path.socket());
            self.thread.take().unwrap().join().unwrap();
        }
    }

    /// The next answer; none if the daemon has cut the client off.
    fn answer(socket: &PacketSocket) -> Option<Vec<u8>> {
        let begun = Instant::now();
        loop {
            match socket.try_receive().unwrap() {
                Received::Packet(packet) => return Some(packet.bytes),
                Received::Closed => return None,
                Received::Nothing => assert!(begun.elapsed() < DEADLINE),
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn ask(socket: &PacketSocket, text: &[u8]) -> Option<Vec<u8>> {
        if socket.try_send(text, b"", &[]).unwrap() == Sent::Closed {
            return None;
        }
        answer(socket)
    }

    #[test]
    fn idle_clients_do_not_keep_others_from_their_answers() {
        let daemon = Running::start(301);
        let idle: Vec<PacketSocket> = (0..300).map(|_| daemon.connect()).collect();
        let client = daemon.connect();
        assert_eq!(ask(&client, b"hello").unwrap(), b"hello");
        // One too many is closed, and its place is free once another leaves.
        assert_eq!(ask(&daemon.connect(), b"hello"), None);
        drop(idle);
        let mut left: Vec<_> = (0..300).map(|_| daemon.next_left()).collect();
        left.sort_unstable();
        assert_eq!(left, (0..300).collect::<Vec<_>>());
        assert_eq!(ask(&daemon.connect(), b"later").unwrap(), b"later");
        assert_eq!(ask(&client, b"again").unwrap(), b"again");
    }

    #[test]
    fn a_message_that_was_sent_by_halves_ends_no_other_client() {
        let daemon = Running::start(10);
        let (client, half, long) = (daemon.connect(), daemon.connect(), daemon.connect());
        // A packet without bytes is what a closed socket reads.
        half.try_send(b"", b"", &[]).unwrap();
        assert_eq!(answer(&half), None);
        assert_eq!(daemon.next_left(), 1);
        // What is longer than a packet is known to be cut short.
        assert_eq!(ask(&long, &vec![7; 100_000]).unwrap(), b"truncated");
        assert_eq!(ask(&long, b"whole").unwrap(), b"whole");
        assert_eq!(ask(&client, b"hello").unwrap(), b"hello");
    }

    #[test]
    fn a_client_that_takes_no_answers_is_cut_off() {
        let daemon = Running::start(10);
        let (client, deaf) = (daemon.connect(), daemon.connect());
        let bytes = vec![7; deaf.max_packet_bytes()];
        let begun = Instant::now();
        while deaf.try_send(&bytes, b"", &[]).unwrap() != Sent::Closed {
            assert!(begun.elapsed() < DEADLINE);
        }
        assert_eq!(daemon.next_left(), 1);
        assert_eq!(ask(&client, b"hello").unwrap(), b"hello");
    }

    #[test]
    fn a_client_whose_process_ends_has_left_though_its_socket_is_open() {
        let daemon = Running::start(10);
        let client = daemon.connect();
        let mut process = Command::new("sleep").arg("1000").spawn().unwrap();
        let pid = Pid::from_raw(process.id() as i32).unwrap();
        let pidfd = pidfd_open(pid, PidfdFlags::empty()).unwrap();
        client.try_send(b"mine", b"", &[pidfd.as_fd()]).unwrap();
        assert_eq!(answer(&client).unwrap(), b"mine");
        // It keeps the pidfd when it asks again.
        assert_eq!(ask(&client, b"hello").unwrap(), b"hello");
        process.kill().unwrap();
        process.wait().unwrap();
        assert_eq!(daemon.next_left(), 0);
        assert_eq!(answer(&client), None);
    }

    #[test]
    fn another_user_is_neither_served_nor_asked() {
        let daemon = Running::start(10);
        let socket = daemon.path.socket().to_owned();
        // As if the directory had been opened to others.
        for (path, mode) in [(daemon.directory.path(), 0o755), (socket.as_path(), 0o777)] {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        }
        let as_nobody = move || {
            let user: libc::uid_t = 65_534;
            // SAFETY: it changes the user of this thread alone.
            if unsafe { libc::syscall(libc::SYS_setresuid, user, user, user) } != 0 {
                eprintln!("skipped: only root can act as another user");
                return;
            }
            let refused = PacketSocket::connect(&socket);
            assert!(matches!(refused, Err(HostError::OtherUser { expected: 65_534, .. })), "{refused:?}");
            assert_eq!(raw_ask(&socket, b"hello"), None);
        };
        std::thread::spawn(as_nobody).join().unwrap();
        // The one client that was served is still there.
        let client = daemon.connect();
        assert_eq!(ask(&client, b"hello").unwrap(), b"hello");
        assert!(daemon.left.try_recv().is_err());
    }

    /// Asks without a look at who listens.
    fn raw_ask(path: &Path, text: &[u8]) -> Option<Vec<u8>> {
        use rustix::net::{
            AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketType, connect, recv, send, socket,
        };
        let client = socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
        connect(&client, &SocketAddrUnix::new(path).unwrap()).unwrap();
        let mut answer = [0; 100];
        // The daemon may close it before or after.
        send(&client, text, SendFlags::NOSIGNAL).ok()?;
        let (length, _) = recv(&client, &mut answer, RecvFlags::empty()).ok()?;
        (length > 0).then(|| answer[..length].to_vec())
    }
}
