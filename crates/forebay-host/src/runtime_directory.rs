//! The meeting point of the processes of a node: a private directory of the user with one socket
//! per name.
//!
//! The directory is `$FOREBAY_RUNTIME_DIR`, else `$XDG_RUNTIME_DIR/forebay` if that variable's
//! directory exists (schedulers pass the login node's value to nodes without it), else
//! `/tmp/forebay-UID`. `$TMPDIR` is ignored, because it often differs between ranks. The directory
//! is created with mode 0700; an existing one must be a real directory with our owner and that
//! mode.
//!
//! A name has two files, named by its hash: the socket, and a lock file. The listener holds an
//! `fcntl` lock as long as the socket exists; the lock ends with the process, and forked children
//! do not inherit it. So a process that gets the lock knows that the socket is stale, and removes
//! both files. That may be the next listener, a process whose listener died
//! ([`SocketPath::remove_if_stale`]), or a listener for another name ([`remove_stale_sockets`]).

use std::ffi::OsString;
use std::fs;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use rustix::fs::{FileType, FlockOperation, Mode, OFlags, fcntl_lock, fstat, open, stat};
use rustix::io::Errno;
use xxhash_rust::xxh3::Xxh3;

use crate::error::{HostError, LOCK as LOCK_ACTION};
use crate::fork;
use crate::packet_socket::PacketListener;

const VARIABLE: &str = "FOREBAY_RUNTIME_DIR";
const SOCKET: &str = "sock";
const LOCK: &str = "lock";
/// Longest path of a socket \[bytes\]: `sun_path` has 108, including the final NUL.
const SOCKET_PATH_BYTES: usize = 107;

/// Returns the runtime directory of this user; creates it if needed.
///
/// # Errors
/// The path is not a directory of this user with mode 0700, or cannot be created.
pub fn runtime_directory() -> Result<PathBuf, HostError> {
    let path = runtime_directory_path()?;
    prepare(&path, rustix::process::geteuid().as_raw())?;
    Ok(path)
}

/// Returns where the runtime directory is, or would be; neither creates nor checks it.
///
/// # Errors
/// The environment variable holds a relative path.
pub fn runtime_directory_path() -> Result<PathBuf, HostError> {
    choose(|name| std::env::var_os(name), rustix::process::geteuid().as_raw())
}

fn choose(variable: impl Fn(&str) -> Option<OsString>, uid: u32) -> Result<PathBuf, HostError> {
    let variable = |name: &str| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(path) = variable(VARIABLE) {
        if path.is_absolute() {
            return Ok(path);
        }
        return Err(HostError::Directory {
            path,
            problem: format!("${VARIABLE} is not an absolute path"),
            hint: "ranks may have different working directories; give a path that starts with \"/\"".into(),
        });
    }
    if let Some(path) = variable("XDG_RUNTIME_DIR").filter(|path| path.is_absolute()) {
        let is_ours = stat(&path).is_ok_and(|stat| {
            FileType::from_raw_mode(stat.st_mode) == FileType::Directory && stat.st_uid == uid
        });
        if is_ours {
            return Ok(path.join("forebay"));
        }
    }
    Ok(PathBuf::from(format!("/tmp/forebay-{uid}")))
}

/// Creates the directory if needed, and checks that no other user can write to it.
fn prepare(path: &Path, uid: u32) -> Result<(), HostError> {
    let refuse = |problem: String, hint: String| HostError::Directory { path: path.into(), problem, hint };
    let elsewhere =
        || format!("set {VARIABLE} to a directory of your own on this node, the same for all ranks");
    let unusable = |action: &str, error: Errno| refuse(format!("cannot {action} it: {error}"), elsewhere());
    match rustix::fs::mkdir(path, Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(error) => return Err(unusable("make", error)),
    }
    let directory = match open(path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty()) {
        Ok(directory) => directory,
        Err(error) => return Err(unusable("open", error)),
    };
    let stat = fstat(&directory).map_err(|error| unusable("examine", error))?;
    let kind = FileType::from_raw_mode(stat.st_mode);
    if kind != FileType::Directory {
        return Err(refuse(format!("expected a directory, found {}", describe(kind)), elsewhere()));
    }
    if stat.st_uid != uid {
        return Err(refuse(
            format!("expected it to belong to user {uid}, found user {}", stat.st_uid),
            elsewhere(),
        ));
    }
    let mode = stat.st_mode & 0o777;
    if mode != 0o700 {
        let hint = format!("chmod 700 {}, or {}", path.display(), elsewhere());
        return Err(refuse(format!("expected mode 0700, found {mode:04o}"), hint));
    }
    Ok(())
}

fn describe(kind: FileType) -> &'static str {
    match kind {
        FileType::Symlink => "a symbolic link",
        FileType::RegularFile => "a file",
        _ => "something else",
    }
}

/// The two files of a name.
#[derive(Clone, Debug)]
pub struct SocketPath {
    socket: PathBuf,
    lock: PathBuf,
}

impl SocketPath {
    /// The files in `directory` of the name with these parts.
    pub fn new(directory: &Path, name: &[&str]) -> Result<Self, HostError> {
        let mut hash = Xxh3::new();
        for word in name {
            // Each part with its length, so that ("ab", "c") and ("a", "bc") differ.
            hash.update(&(word.len() as u64).to_le_bytes());
            hash.update(word.as_bytes());
        }
        let file = directory.join(format!("{:032x}", hash.digest128()));
        let (socket, lock) = (file.with_extension(SOCKET), file.with_extension(LOCK));
        let length = socket.as_os_str().len();
        if length > SOCKET_PATH_BYTES {
            let most = SOCKET_PATH_BYTES - (length - directory.as_os_str().len());
            return Err(HostError::Directory {
                path: directory.into(),
                problem: format!(
                    "its path is too long for a socket: expected at most {most} bytes, found {}",
                    directory.as_os_str().len()
                ),
                hint: format!("set {VARIABLE} to a shorter path, the same for all ranks of the node"),
            });
        }
        Ok(Self { socket, lock })
    }

    /// The socket.
    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Locks the name for a listener; `None` if another process holds the lock.
    pub fn try_lock(&self) -> Result<Option<SocketLock>, HostError> {
        self.lock(OFlags::CREATE)
    }

    /// Removes the files of a dead listener, if any.
    pub fn remove_if_stale(&self) {
        // Another process may be faster; the next listener reports errors.
        drop(self.lock(OFlags::empty()));
    }

    fn lock(&self, create: OFlags) -> Result<Option<SocketLock>, HostError> {
        let fail = || HostError::system(format!("{LOCK_ACTION}{}", self.lock.display()));
        let Some(held) = Held::reserve(&self.lock) else { return Ok(None) };
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW | create;
        loop {
            let file = match open(&self.lock, flags, Mode::RUSR | Mode::WUSR) {
                Ok(file) => file,
                Err(Errno::NOENT) if create.is_empty() => return Ok(None),
                Err(Errno::INTR) => continue,
                Err(error) => return Err(fail()(error)),
            };
            match fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {}
                Err(Errno::AGAIN | Errno::ACCESS) => return Ok(None),
                Err(Errno::INTR) => continue,
                Err(error) => return Err(fail()(error)),
            }
            // The former owner may have removed the file between our open and our lock: then the
            // lock is void.
            let ours = fstat(&file).map_err(fail())?;
            match stat(&self.lock) {
                Ok(named) if (named.st_dev, named.st_ino) == (ours.st_dev, ours.st_ino) => {
                    return Ok(Some(SocketLock { path: self.clone(), _file: file, held }));
                }
                Ok(_) | Err(Errno::NOENT) => {}
                Err(error) => return Err(fail()(error)),
            }
        }
    }
}

/// Removes the files of dead listeners under all names.
pub fn remove_stale_sockets(directory: &Path) {
    let Ok(entries) = fs::read_dir(directory) else { return };
    for entry in entries.flatten() {
        let lock = entry.path();
        let is_ours = lock.extension().is_some_and(|extension| extension == LOCK)
            && lock.file_stem().is_some_and(|stem| stem.len() == 32);
        if is_ours {
            SocketPath { socket: lock.with_extension(SOCKET), lock }.remove_if_stale();
        }
    }
}

/// A locked name; dropping it removes its files and unlocks it.
#[derive(Debug)]
pub struct SocketLock {
    path: SocketPath,
    // Drop order: the lock ends before this process may take it again.
    _file: OwnedFd,
    held: Held,
}

impl SocketLock {
    /// Removes the socket of a dead listener, and listens.
    pub fn listen(&self, backlog: i32) -> Result<PacketListener, HostError> {
        let socket = self.path.socket();
        match fs::remove_file(socket) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(HostError::system(format!("remove the stale socket {}", socket.display()))(
                    error,
                ));
            }
            _ => {}
        }
        PacketListener::bind(socket, backlog)
    }
}

impl Drop for SocketLock {
    fn drop(&mut self) {
        if fork::in_forked_child(self.held.generation) {
            return;
        }
        // The socket first: while the lock file exists, another process can find and remove both.
        let _ = fs::remove_file(&self.path.socket);
        let _ = fs::remove_file(&self.path.lock);
    }
}

/// The names that this process has locked or is about to lock.
///
/// `fcntl` locks do not exclude threads of one process, and closing any descriptor of a file ends
/// all locks of the process on it. So only the thread whose path is in this list opens a lock file.
/// A forked child has none of its parent's locks: entries of another generation do not count.
static HELD: Mutex<Vec<(u64, PathBuf)>> = Mutex::new(Vec::new());

#[derive(Debug)]
struct Held {
    generation: u64,
    path: PathBuf,
}

impl Held {
    fn reserve(path: &Path) -> Option<Self> {
        let generation = fork::generation();
        let mut held = HELD.lock().unwrap_or_else(PoisonError::into_inner);
        held.retain(|(made, _)| *made == generation);
        if held.iter().any(|(_, taken)| taken == path) {
            return None;
        }
        held.push((generation, path.into()));
        Some(Self { generation, path: path.into() })
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut held = HELD.lock().unwrap_or_else(PoisonError::into_inner);
        held.retain(|(made, path)| (*made, path) != (self.generation, &self.path));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn uid() -> u32 {
        rustix::process::geteuid().as_raw()
    }

    fn directory() -> (tempfile::TempDir, PathBuf) {
        let outer = tempfile::tempdir().unwrap();
        let inner = outer.path().join("forebay");
        (outer, inner)
    }

    fn names(directory: &Path) -> usize {
        fs::read_dir(directory).unwrap().count()
    }

    #[test]
    fn the_variables_are_asked_in_order() {
        let outer = tempfile::tempdir().unwrap();
        let xdg = outer.path().as_os_str().to_owned();
        let both = |name: &str| Some(if name == VARIABLE { "/somewhere".into() } else { xdg.clone() });
        assert_eq!(choose(both, 7).unwrap(), Path::new("/somewhere"));
        let only_xdg = |name: &str| (name == "XDG_RUNTIME_DIR").then(|| xdg.clone());
        assert_eq!(choose(only_xdg, uid()).unwrap(), outer.path().join("forebay"));
        assert_eq!(choose(only_xdg, uid() + 1).unwrap(), Path::new(&format!("/tmp/forebay-{}", uid() + 1)));
        let gone = |name: &str| (name == "XDG_RUNTIME_DIR").then(|| "/run/user/that/is/not/here".into());
        assert_eq!(choose(gone, 7).unwrap(), Path::new("/tmp/forebay-7"));
        assert_eq!(choose(|_| Some(OsString::new()), 7).unwrap(), Path::new("/tmp/forebay-7"));
        let error = choose(|_| Some("relative".into()), 7).unwrap_err();
        assert!(error.to_string().contains("not an absolute path"), "{error}");
    }

    #[test]
    fn the_directory_is_made_for_us_alone_and_used_again() {
        let (_outer, path) = directory();
        prepare(&path, uid()).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o700);
        prepare(&path, uid()).unwrap();
    }

    #[test]
    fn a_directory_that_is_open_to_others_is_refused() {
        let (_outer, path) = directory();
        fs::create_dir(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o750)).unwrap();
        let error = prepare(&path, uid()).unwrap_err();
        assert!(error.to_string().ends_with("expected mode 0700, found 0750"), "{error}");
        assert!(error.hint().unwrap().contains("chmod 700"), "{:?}", error.hint());
    }

    #[test]
    fn a_directory_of_another_user_is_refused() {
        let (_outer, path) = directory();
        fs::create_dir(&path).unwrap();
        let error = prepare(&path, uid() + 1).unwrap_err();
        assert!(error.to_string().contains("expected it to belong to user"), "{error}");
        assert!(error.hint().unwrap().contains(VARIABLE));
    }

    #[test]
    fn links_and_files_are_not_taken_for_the_directory() {
        let (outer, path) = directory();
        symlink(outer.path(), &path).unwrap();
        let error = prepare(&path, uid()).unwrap_err();
        assert!(error.to_string().contains("found a symbolic link"), "{error}");
        fs::remove_file(&path).unwrap();
        fs::write(&path, "").unwrap();
        assert!(prepare(&path, uid()).unwrap_err().to_string().contains("found a file"));
        let missing = outer.path().join("no/such");
        assert!(prepare(&missing, uid()).unwrap_err().to_string().contains("cannot make it"));
    }

    #[test]
    fn different_names_have_different_sockets() {
        let place = |job, node, name| SocketPath::new(Path::new("/run"), &[job, node, name]).unwrap().socket;
        assert_ne!(place("ab", "c", "d"), place("a", "bc", "d"));
        assert_ne!(place("a", "b", "train"), place("a", "b", "test"));
        assert_eq!(place("a", "b", "train"), place("a", "b", "train"));
        assert_eq!(place("a", "b", "train").as_os_str().len(), "/run/".len() + 32 + ".sock".len());
    }

    #[test]
    fn a_path_that_is_too_long_for_a_socket_is_refused() {
        let longest = PathBuf::from(format!("/{}", "x".repeat(68)));
        let place = SocketPath::new(&longest, &["j", "n", "l"]).unwrap();
        rustix::net::SocketAddrUnix::new(&place.socket).unwrap();
        let error = SocketPath::new(&longest.join("y"), &["j", "n", "l"]).unwrap_err();
        assert!(error.to_string().contains("expected at most 69 bytes, found 71"), "{error}");
    }

    #[test]
    fn one_at_a_time_has_a_place_and_leaves_it_empty() {
        let (_outer, path) = directory();
        prepare(&path, uid()).unwrap();
        let place = SocketPath::new(&path, &["j", "n", "l"]).unwrap();
        let lock = place.try_lock().unwrap().expect("nobody is here");
        assert!(place.try_lock().unwrap().is_none());
        place.remove_if_stale();
        remove_stale_sockets(&path);
        assert_eq!(names(&path), 1, "what is locked stays");
        fs::write(&place.socket, "").unwrap();
        drop(lock);
        assert_eq!(names(&path), 0);
        drop(place.try_lock().unwrap().expect("free again"));
    }

    #[test]
    fn what_the_dead_left_is_swept_up() {
        let (_outer, path) = directory();
        prepare(&path, uid()).unwrap();
        let place = SocketPath::new(&path, &["j", "n", "l"]).unwrap();
        fs::write(&place.socket, "").unwrap();
        fs::write(&place.lock, "").unwrap();
        fs::write(path.join("notes.lock"), "").unwrap();
        remove_stale_sockets(&path);
        assert_eq!(names(&path), 1, "only files that are named like ours");
    }
}
