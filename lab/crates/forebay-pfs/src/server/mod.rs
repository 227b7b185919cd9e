//! The server process: an emulator, its control socket, and the signals that end it.
//!
//! In order:
//!
//! 1. Block SIGTERM and SIGINT for all threads, and bind the socket.
//! 2. Mount everything, then listen: a client that connects finds all mounts ready.
//! 3. Wait for a signal, a connection, a request to end, or the end of the last mount.
//! 4. End: unmount everything, remove the socket, send outstanding answers, join all threads.
mod control;

use std::io;
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fs::Mode;

use self::control::{is_allowed, serve_connection};
use crate::error::{EmulatorError, doing};
use crate::instance::{Configuration, Emulator};
use crate::locks::locked;
use crate::system::TerminationSignals;

/// Maximum number of connections; each has a thread.
const MAX_CONNECTIONS: usize = 64;

/// Whether the server ends.
enum Phase {
    Running,
    EndRequested,
    Ended(Result<(), String>),
}

/// Wakes the server's main thread, and reports its end to the connections.
struct Lifecycle {
    wakeup: OwnedFd,
    phase: Mutex<Phase>,
    ended: Condvar,
}

impl Lifecycle {
    fn new() -> io::Result<Lifecycle> {
        let wakeup = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Lifecycle { wakeup, phase: Mutex::new(Phase::Running), ended: Condvar::new() })
    }

    fn wake(&self) {
        // Fails only after 2^64 - 1 unread wake-ups.
        let _ = rustix::io::write(&self.wakeup, &1u64.to_ne_bytes());
    }

    fn consume_wakeup(&self) {
        let _ = rustix::io::read(&self.wakeup, &mut [0; 8]);
    }

    fn is_running(&self) -> bool {
        matches!(*locked(&self.phase), Phase::Running)
    }

    /// Requests the end and waits for it.
    fn end(&self) -> Result<(), String> {
        let mut phase = locked(&self.phase);
        if matches!(*phase, Phase::Running) {
            *phase = Phase::EndRequested;
            self.wake();
        }
        loop {
            if let Phase::Ended(result) = &*phase {
                return result.clone();
            }
            phase = self.ended.wait(phase).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn set_ended(&self, result: Result<(), String>) {
        *locked(&self.phase) = Phase::Ended(result);
        self.ended.notify_all();
    }
}

/// The socket file, removed at the end unless another server has replaced it.
struct SocketFile {
    path: PathBuf,
    /// Device and inode.
    identity: (u64, u64),
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if std::fs::symlink_metadata(&self.path)
            .is_ok_and(|found| (found.dev(), found.ino()) == self.identity)
        {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// A connection for shutting it down, and its thread.
type Connection = (Option<UnixStream>, JoinHandle<()>);

/// Runs an emulator until a signal, a request or the end of its last mount ends it.
pub fn serve(configuration: &Configuration) -> Result<(), EmulatorError> {
    let failed = |what| doing(what, &configuration.socket);
    let signals = TerminationSignals::block().map_err(failed("blocking signals for"))?;
    let (listener, socket_file) = bind(&configuration.socket)?;
    let lifecycle = Arc::new(Lifecycle::new().map_err(failed("waiting for requests on"))?);
    let on_end = {
        let lifecycle = lifecycle.clone();
        Arc::new(move || lifecycle.wake())
    };
    let emulator = Arc::new(Emulator::start_with(configuration, on_end)?);
    rustix::net::listen(&listener, 64).map_err(|error| failed("listening on")(error.into()))?;

    let mut connections: Vec<Connection> = Vec::new();
    loop {
        let mut polled = [
            PollFd::new(&signals, PollFlags::IN),
            PollFd::new(&listener, PollFlags::IN),
            PollFd::new(&lifecycle.wakeup, PollFlags::IN),
        ];
        match poll(&mut polled, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(failed("waiting for requests on")(error.into())),
        }
        let [signal, connection, wakeup] = polled.map(|one| one.revents().contains(PollFlags::IN));
        if wakeup {
            lifecycle.consume_wakeup();
        }
        if signal || !lifecycle.is_running() || emulator.mounts().is_empty() {
            break;
        }
        if connection {
            connections.retain(|(_, thread)| !thread.is_finished());
            accept(&listener, &emulator, &lifecycle, &mut connections);
        }
    }

    let result = emulator.end();
    drop(socket_file);
    lifecycle.set_ended(result.as_ref().map_err(EmulatorError::text).copied());
    for (stream, thread) in connections {
        // A connection that is about to answer does so; one that waits for a request ends.
        if let Some(stream) = stream {
            let _ = stream.shutdown(Shutdown::Read);
        }
        let _ = thread.join();
    }
    result
}

fn accept(
    listener: &UnixListener,
    emulator: &Arc<Emulator>,
    lifecycle: &Arc<Lifecycle>,
    connections: &mut Vec<Connection>,
) {
    // A failure concerns this connection only.
    let Ok((stream, _)) = listener.accept() else { return };
    if connections.len() >= MAX_CONNECTIONS || !is_allowed(&stream) || stream.set_nonblocking(false).is_err()
    {
        return;
    }
    let (emulator, lifecycle, copy) = (emulator.clone(), lifecycle.clone(), stream.try_clone().ok());
    let thread = std::thread::Builder::new()
        .name("pfs-control".to_owned())
        .spawn(move || serve_connection(&emulator, &stream, || lifecycle.end()));
    if let Ok(thread) = thread {
        connections.push((copy, thread));
    }
}

/// Binds the socket with mode 0600 and replaces one of a dead server. Clients cannot connect yet.
fn bind(path: &Path) -> Result<(UnixListener, SocketFile), EmulatorError> {
    let failed = |what| doing(what, path);
    if UnixStream::connect(path).is_ok() {
        let text = format!("control socket {}: another server listens on it", path.display());
        return Err(EmulatorError::Wrong(text));
    }
    let old = std::fs::symlink_metadata(path);
    if old.is_ok_and(|found| found.file_type().is_socket()) {
        std::fs::remove_file(path).map_err(failed("removing the control socket of a dead server"))?;
    }
    let bound = bind_private(path).map_err(failed("creating the control socket"))?;
    let found = std::fs::symlink_metadata(path).map_err(failed("creating the control socket"))?;
    let socket_file = SocketFile { path: path.to_owned(), identity: (found.dev(), found.ino()) };
    Ok((bound, socket_file))
}

fn bind_private(path: &Path) -> io::Result<UnixListener> {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    // Linux creates the file with the mode of the descriptor, so it is never open to others.
    rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(UnixListener::from(socket))
}
