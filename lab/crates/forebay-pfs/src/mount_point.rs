//! Validates mount points, mounts and unmounts.
//!
//! Nothing here accesses a file on a mount of an emulator: a server that sends itself a request
//! waits for itself. Mounts are found in `/proc/self/mountinfo`, and a mount point is examined only
//! before it is mounted.
use std::ffi::{CString, OsString};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::fs::{Mode, OFlags};
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

use crate::error::{EmulatorError, doing};

/// File system type of our mounts after the kernel's `fuse.`.
const SUBTYPE: &str = "forebay-pfs";

/// The device that delivers requests.
const DEVICE: &str = "/dev/fuse";

/// One line of mountinfo.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MountEntry {
    /// `major:minor`.
    pub(crate) device: String,
    pub(crate) path: PathBuf,
    pub(crate) fs_type: String,
}

/// Parses a mountinfo file; see `proc_pid_mountinfo(5)`.
pub(crate) fn parse_mounts(text: &[u8]) -> Vec<MountEntry> {
    let parse = |line: &[u8]| {
        let mut fields = line.split(|&byte| byte == b' ');
        let device = String::from_utf8_lossy(fields.nth(2)?).into_owned();
        let path = PathBuf::from(unescape(fields.nth(1)?));
        let fs_type = fields.skip_while(|field| *field != b"-").nth(1)?;
        Some(MountEntry { device, path, fs_type: String::from_utf8_lossy(fs_type).into_owned() })
    };
    text.split(|&byte| byte == b'\n').filter_map(parse).collect()
}

/// Decodes octal escapes such as `\040`.
fn unescape(field: &[u8]) -> OsString {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let [first, tail @ ..] = rest {
        if let [b'\\', a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', ..] = rest {
            out.push((a - b'0') * 64 + (b - b'0') * 8 + (c - b'0'));
            rest = &rest[4..];
        } else {
            out.push(*first);
            rest = tail;
        }
    }
    OsString::from_vec(out)
}

const MOUNT_TABLE: &str = "/proc/self/mountinfo";

/// All mounts that this process sees.
fn mounts() -> io::Result<Vec<MountEntry>> {
    Ok(parse_mounts(&std::fs::read(MOUNT_TABLE)?))
}

/// The device of the topmost mount at a path.
pub(crate) fn device_of(path: &Path) -> Option<String> {
    let all = mounts().ok()?;
    all.into_iter().rev().find(|mount| mount.path == path).map(|mount| mount.device)
}

/// The mount of an emulator that contains a path.
fn emulator_around<'a>(all: &'a [MountEntry], path: &Path) -> Option<&'a MountEntry> {
    let fs_type = format!("fuse.{SUBTYPE}");
    all.iter().find(|entry| entry.fs_type == fs_type && path.starts_with(&entry.path))
}

/// Validates a mount point; returns its absolute path.
pub(crate) fn check_mount_point(mount: &Path, backing: &Path) -> Result<PathBuf, EmulatorError> {
    let refuse = |problem: &str, hint| Err(EmulatorError::mount(mount, problem, hint));
    let path = match resolve(mount) {
        Ok(path) => path,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return refuse("it does not exist", "make it with mkdir");
        }
        Err(error) if error.raw_os_error() == Some(libc::ENOTCONN) => {
            return refuse(
                "it is a stale mount, whose server has ended",
                "remove it with umount -l or fusermount3 -uz",
            );
        }
        Err(error) => return refuse(&format!("cannot resolve it: {error}"), ""),
    };
    let all = mounts().map_err(doing("reading", Path::new(MOUNT_TABLE)))?;
    if all.iter().any(|entry| entry.path == path) {
        return refuse("something is mounted there already", "unmount it first, or use another directory");
    }
    if let Some(outer) = emulator_around(&all, &path) {
        let problem = format!("it lies inside the emulator mount {}", outer.path.display());
        return refuse(&problem, "mounts must not be nested");
    }
    if path.starts_with(backing) || backing.starts_with(&path) {
        let problem = format!("it lies inside the backing directory {}, or around it", backing.display());
        return refuse(&problem, "use a directory beside the backing directory");
    }
    match std::fs::read_dir(&path) {
        Ok(mut entries) => match entries.next() {
            None => Ok(path),
            Some(_) => refuse("it is not empty", "the mount would hide its contents; use an empty directory"),
        },
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => refuse("it is no directory", ""),
        Err(error) => refuse(&format!("cannot list it: {error}"), ""),
    }
}

/// Resolves links. A path that is a mount is returned as it is, since it may not answer.
fn resolve(path: &Path) -> io::Result<PathBuf> {
    let absolute = std::path::absolute(path)?;
    let known = mounts()?;
    if known.iter().any(|entry| entry.path == absolute) {
        return Ok(absolute);
    }
    absolute.canonicalize()
}

/// Validates the backing directory; returns its absolute path.
pub(crate) fn check_backing(backing: &Path) -> Result<PathBuf, EmulatorError> {
    let failed = || doing("opening the backing directory", backing);
    let path = backing.canonicalize().map_err(failed())?;
    std::fs::read_dir(&path).map_err(failed())?;
    let all = mounts().map_err(failed())?;
    match emulator_around(&all, &path) {
        None => Ok(path),
        Some(outer) => Err(EmulatorError::Wrong(format!(
            "backing directory {}: it lies inside the emulator mount {}\nhint: mounts must not be nested",
            backing.display(),
            outer.path.display()
        ))),
    }
}

/// Mounts, directly or through fusermount3, and returns the descriptor that delivers requests.
///
/// A session of fuser that mounts also unmounts by path when it ends. By then another file system
/// may be mounted there, and a mount that was partitioned must stay.
pub(crate) fn mount(path: &Path, socket: &Path) -> io::Result<OwnedFd> {
    let source = format!("{SUBTYPE}:{}", socket.to_string_lossy());
    let device = OpenOptions::new().read(true).write(true).open(DEVICE)?;
    let data = format!(
        "fd={},rootmode={:o},user_id={},group_id={},default_permissions,subtype={SUBTYPE}",
        device.as_raw_fd(),
        std::fs::metadata(path)?.mode(),
        rustix::process::getuid().as_raw(),
        rustix::process::getgid().as_raw(),
    );
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    match rustix::mount::mount(&source, path, "fuse", flags, CString::new(data)?.as_c_str()) {
        Ok(()) => Ok(device.into()),
        Err(rustix::io::Errno::PERM) => mount_by_helper(path, &source),
        Err(error) => Err(error.into()),
    }
}

/// Mounts through fusermount3, which sends the descriptor over the socket that `_FUSE_COMMFD`
/// names.
fn mount_by_helper(path: &Path, source: &str) -> io::Result<OwnedFd> {
    let program = find_fusermount().ok_or_else(|| io::Error::from_raw_os_error(libc::EPERM))?;
    let (ours, theirs) = UnixStream::pair()?;
    let name = source.replace('\\', "\\\\").replace(',', "\\,");
    let helper = Command::new(program)
        .arg("-o")
        .arg(format!("fsname={name},subtype={SUBTYPE},default_permissions,nosuid,nodev"))
        .arg("--")
        .arg(path)
        .env("_FUSE_COMMFD", "0")
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()?;
    let received = receive_descriptor(&ours);
    let output = helper.wait_with_output()?;
    match received {
        Ok(Some(descriptor)) => Ok(descriptor),
        Ok(None) => Err(io::Error::other(String::from_utf8_lossy(&output.stderr).trim_end().to_owned())),
        Err(error) => Err(error),
    }
}

fn receive_descriptor(socket: &UnixStream) -> io::Result<Option<OwnedFd>> {
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let flags = RecvFlags::CMSG_CLOEXEC;
    rustix::io::retry_on_intr(|| {
        recvmsg(socket, &mut [io::IoSliceMut::new(&mut byte)], &mut control, flags)
    })?;
    let rights = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    Ok(rights)
}

/// Finds the cause of a failed mount, and advice.
pub(crate) fn explain(mount: &Path, error: &io::Error) -> EmulatorError {
    let root = rustix::process::geteuid().is_root();
    if let Err(refused) = OpenOptions::new().read(true).write(true).open(DEVICE) {
        if refused.kind() == io::ErrorKind::NotFound {
            let problem = format!("this machine has no {DEVICE}");
            let hint =
                "load the kernel module (modprobe fuse), or start the container with --device /dev/fuse";
            return EmulatorError::mount(mount, problem, hint);
        }
        let mode = std::fs::metadata(DEVICE).map_or(0, |found| found.permissions().mode() & 0o777);
        let problem = format!("cannot open {DEVICE} (mode {mode:04o}): {refused}");
        return EmulatorError::mount(
            mount,
            problem,
            "as root: chmod 0666 /dev/fuse, which is the usual mode",
        );
    }
    if find_fusermount().is_none() {
        if !root {
            let problem = "mounting is refused: expected root or fusermount3, found neither";
            let hint = "install fuse3, or work inside `unshare -Urm`, where you are root";
            return EmulatorError::mount(mount, problem, hint);
        }
        if error.raw_os_error() == Some(libc::EPERM) {
            let problem = "mounting is refused: root lacks CAP_SYS_ADMIN";
            let hint = "start the container with --cap-add SYS_ADMIN --device /dev/fuse";
            return EmulatorError::mount(mount, problem, hint);
        }
    }
    EmulatorError::mount(mount, format!("mounting failed: {}", error.to_string().trim_end()), "")
}

fn find_fusermount() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let places = std::env::split_paths(&path).chain(["/bin".into(), "/usr/bin".into(), "/sbin".into()]);
    places
        .flat_map(|place| ["fusermount3", "fusermount"].map(|name| place.join(name)))
        .find(|candidate| candidate.is_file())
}

fn fusermount(arguments: &[&str], mount: &Path) -> io::Result<()> {
    let program = find_fusermount().ok_or_else(|| io::Error::from_raw_os_error(libc::EPERM))?;
    let mut command = Command::new(program);
    command.args(arguments).arg("--").arg(mount).stdin(Stdio::null());
    let output = command.output()?;
    if output.status.success() {
        return Ok(());
    }
    Err(io::Error::other(String::from_utf8_lossy(&output.stderr).trim_end().to_owned()))
}

/// Unmounts, also while programs use the mount: they get ENOTCONN from then on.
pub(crate) fn unmount(path: &Path, device: &str) -> io::Result<()> {
    if device_of(path).as_deref() != Some(device) {
        // Unmounted already.
        return Ok(());
    }
    match rustix::mount::unmount(path, UnmountFlags::NOFOLLOW) {
        Ok(()) => return Ok(()),
        Err(rustix::io::Errno::PERM) => {
            return fusermount(&["-u", "-q"], path).or_else(|_| {
                abort(device);
                fusermount(&["-u", "-z"], path)
            });
        }
        Err(_) => {}
    }
    // Busy. MNT_FORCE aborts the connection, so that waiting requests fail; MNT_DETACH hides the
    // mount.
    abort(device);
    let forced = UnmountFlags::NOFOLLOW | UnmountFlags::FORCE | UnmountFlags::DETACH;
    match rustix::mount::unmount(path, forced) {
        // MNT_FORCE needs privileges in the initial user namespace.
        Err(rustix::io::Errno::PERM) => {
            rustix::mount::unmount(path, UnmountFlags::NOFOLLOW | UnmountFlags::DETACH)?;
        }
        other => other?,
    }
    Ok(())
}

/// Aborts the connection of a mount and keeps the mount: all requests fail with ENOTCONN.
///
/// Returns whether that was allowed.
pub(crate) fn abort_connection(path: &Path, device: &str) -> bool {
    if device_of(path).as_deref() != Some(device) {
        return false;
    }
    if abort(device) {
        return true;
    }
    // A descriptor of the root keeps the mount busy: MNT_FORCE aborts the connection and then
    // fails.
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let Ok(_held) = rustix::fs::open(path, flags, Mode::empty()) else { return false };
    matches!(
        rustix::mount::unmount(path, UnmountFlags::NOFOLLOW | UnmountFlags::FORCE),
        Err(rustix::io::Errno::BUSY)
    )
}

/// Aborts a connection through fusectl, if that is mounted and the connection is our user's.
fn abort(device: &str) -> bool {
    let Some((_, minor)) = device.split_once(':') else { return false };
    let path = format!("/sys/fs/fuse/connections/{minor}/abort");
    std::fs::write(path, "1").is_ok()
}

/// Sets the read-ahead of a mount, if that is allowed; returns the resulting value \[KiB\].
pub(crate) fn set_read_ahead(device: &str, wanted_kb: u64) -> Option<u64> {
    let path = PathBuf::from(format!("/sys/class/bdi/{device}/read_ahead_kb"));
    // Only root may write; the current value is returned either way.
    let _ = File::options()
        .write(true)
        .open(&path)
        .and_then(|mut file| io::Write::write_all(&mut file, wanted_kb.to_string().as_bytes()));
    std::fs::read_to_string(path).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mountinfo_is_parsed_with_escapes_and_optional_fields() {
        let text = b"36 35 98:0 /a /mnt/with\\040space rw,noatime shared:1 master:2 - ext4 /dev/root rw\n\
            40 35 0:52 / /tmp/m rw,nosuid,nodev - fuse.forebay-pfs forebay-pfs:/run/s rw,user_id=0\n";
        let lines = parse_mounts(text);
        assert_eq!(lines.len(), 2);
        assert_eq!(lines[0].path, Path::new("/mnt/with space"));
        assert_eq!((&*lines[0].device, &*lines[0].fs_type), ("98:0", "ext4"));
        assert_eq!((&*lines[1].device, &*lines[1].fs_type), ("0:52", "fuse.forebay-pfs"));
    }

    #[test]
    fn invalid_mount_points_are_refused_with_the_cause() {
        let room = tempfile::tempdir().unwrap();
        let at = |name: &str| room.path().canonicalize().unwrap().join(name);
        for name in ["backing", "backing/inside", "full", "empty"] {
            std::fs::create_dir(at(name)).unwrap();
        }
        std::fs::write(at("full/file"), "x").unwrap();
        let problem = |mount: &Path| check_mount_point(mount, &at("backing")).unwrap_err().text();
        assert!(problem(&at("missing")).contains("does not exist\nhint: make it with mkdir"));
        assert!(problem(&at("full")).contains("not empty"));
        assert!(problem(&at("full/file")).contains("no directory"));
        assert!(problem(&at("backing")).contains("backing directory"));
        assert!(problem(&at("backing/inside")).contains("backing directory"));
        assert!(problem(room.path()).contains("around it"));
        assert!(problem(Path::new("/proc")).contains("mounted there already"));
        assert_eq!(check_mount_point(&at("empty"), &at("backing")).unwrap(), at("empty"));
    }
}
