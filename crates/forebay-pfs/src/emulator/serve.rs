//! A server: an emulator, a control socket, and the signals that end it.
//!
//! In order: SIGTERM and SIGINT are held back for all threads; everything is mounted; the socket appears, so who can connect finds all
//! mounts ready. The calling thread then waits for a signal, a connection, or the end of a mount. The end, however it comes: unmount
//! everything, remove the socket, send the answers that are still owed, join all threads. The server ends by itself when its last mount is gone.
use std::io;
use std::net::Shutdown;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fs::Mode;

use crate::emulator::control::{converse, is_allowed};
use crate::emulator::error::{EmulatorError, doing};
use crate::emulator::running::{Configuration, Emulator};
use crate::emulator::shared::locked;
use crate::emulator::system::EndSignals;

/// Connections at a time; nobody needs more, and each costs a thread.
const CONNECTIONS: usize = 64;

/// What the connections and the waiting thread tell each other.
struct Bell {
    rung: std::os::fd::OwnedFd,
    end: AtomicBool,
    /// The result of the end, once it is done.
    done: Mutex<Option<Result<(), String>>>,
    told: Condvar,
}

impl Bell {
    fn ring(&self) {
        // Fails only when it has been rung 2^64 - 1 times.
        let _ = rustix::io::write(&self.rung, &1u64.to_ne_bytes());
    }

    fn silence(&self) {
        let _ = rustix::io::read(&self.rung, &mut [0; 8]);
    }

    /// Asks for the end and waits for it.
    fn end(&self) -> Result<(), String> {
        self.end.store(true, Ordering::SeqCst);
        self.ring();
        let mut done = locked(&self.done);
        loop {
            match &*done {
                Some(result) => return result.clone(),
                None => done = self.told.wait(done).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }

    fn tell(&self, result: Result<(), String>) {
        *locked(&self.done) = Some(result);
        self.told.notify_all();
    }
}

/// Removes the socket, if it is still ours.
struct Socket {
    path: PathBuf,
    identity: (u64, u64),
}

impl Drop for Socket {
    fn drop(&mut self) {
        if std::fs::symlink_metadata(&self.path)
            .is_ok_and(|found| (found.dev(), found.ino()) == self.identity)
        {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Runs an emulator until a signal, a request, or the end of its last mount ends it.
pub fn serve(configuration: &Configuration) -> Result<(), EmulatorError> {
    let signals = EndSignals::hold().map_err(doing("holding signals back for", &configuration.socket))?;
    let (listener, socket) = listen(&configuration.socket)?;
    let bell = Arc::new(Bell {
        rung: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|error| doing("waiting for requests on", &configuration.socket)(error.into()))?,
        end: AtomicBool::new(false),
        done: Mutex::default(),
        told: Condvar::new(),
    });
    let on_end = {
        let bell = bell.clone();
        Arc::new(move || bell.ring())
    };
    let emulator = Arc::new(Emulator::start_with(configuration, on_end)?);
    rustix::net::listen(&listener, 64)
        .map_err(|error| doing("listening on", &configuration.socket)(error.into()))?;

    let mut connections: Vec<(Option<UnixStream>, JoinHandle<()>)> = Vec::new();
    loop {
        let mut waited = [
            PollFd::new(&signals, PollFlags::IN),
            PollFd::new(&listener, PollFlags::IN),
            PollFd::new(&bell.rung, PollFlags::IN),
        ];
        match poll(&mut waited, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(doing("waiting for requests on", &configuration.socket)(error.into())),
        }
        let [signal, connection, rung] = waited.map(|one| one.revents().contains(PollFlags::IN));
        if rung {
            bell.silence();
        }
        if signal || bell.end.load(Ordering::SeqCst) || emulator.mounts().is_empty() {
            break;
        }
        if connection {
            connections.retain(|(_, thread)| !thread.is_finished());
            accept(&listener, &emulator, &bell, &mut connections);
        }
    }

    let result = emulator.end();
    drop(socket);
    bell.tell(result.as_ref().map_err(EmulatorError::text).copied());
    for (stream, thread) in connections {
        // Who is about to answer does; who waits for a request does not any more.
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
    bell: &Arc<Bell>,
    connections: &mut Vec<(Option<UnixStream>, JoinHandle<()>)>,
) {
    // Refused or gone again: the next one may succeed.
    let Ok((stream, _)) = listener.accept() else { return };
    if connections.len() >= CONNECTIONS || !is_allowed(&stream) || stream.set_nonblocking(false).is_err() {
        return;
    }
    let (emulator, bell, copy) = (emulator.clone(), bell.clone(), stream.try_clone().ok());
    let thread = std::thread::Builder::new()
        .name("pfs-control".to_owned())
        .spawn(move || converse(&emulator, &stream, || bell.end()));
    if let Ok(thread) = thread {
        connections.push((copy, thread));
    }
}

/// Binds the socket, for us alone; one that a dead server left behind is replaced. Nobody can connect yet.
fn listen(path: &Path) -> Result<(UnixListener, Socket), EmulatorError> {
    let failed = |doing_what| doing(doing_what, path);
    if UnixStream::connect(path).is_ok() {
        return Err(EmulatorError::Wrong(format!(
            "control socket {}: another server is there",
            path.display()
        )));
    }
    let old = std::fs::symlink_metadata(path);
    if old.is_ok_and(|found| std::os::unix::fs::FileTypeExt::is_socket(&found.file_type())) {
        std::fs::remove_file(path).map_err(failed("removing the control socket of a dead server"))?;
    }
    let bound = bind(path).map_err(failed("making the control socket"))?;
    let found = std::fs::symlink_metadata(path).map_err(failed("making the control socket"))?;
    let socket = Socket { path: path.to_owned(), identity: (found.dev(), found.ino()) };
    Ok((bound, socket))
}

fn bind(path: &Path) -> io::Result<UnixListener> {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    // On Linux the mode of a new socket is that of its descriptor less the mask; so it is never open to others.
    rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(UnixListener::from(socket))
}
