//! Mounts that only a test sees.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use libc::{CLONE_NEWNS, MS_BIND, MS_PRIVATE, MS_RDONLY, MS_REC, MS_REMOUNT, c_ulong};

/// Runs a test in a thread with its own mounts; says so and skips it where the system forbids that.
pub(crate) fn with_own_mounts(test: impl FnOnce() + Send + 'static) {
    let run = move || {
        // SAFETY: it changes nothing but what this thread sees.
        if unsafe { libc::unshare(CLONE_NEWNS) } != 0 {
            eprintln!("skipped: no mount namespace: {}", std::io::Error::last_os_error());
            return;
        }
        mount(Path::new("none"), Path::new("/"), MS_REC | MS_PRIVATE);
        test();
    };
    if let Err(panic) = std::thread::spawn(run).join() {
        std::panic::resume_unwind(panic);
    }
}

/// Makes a directory appear at another place.
pub(crate) fn bind(from: &Path, to: &Path) {
    mount(from, to, MS_BIND);
}

/// Makes a directory appear at another place, where nothing can be written.
pub(crate) fn bind_read_only(from: &Path, to: &Path) {
    bind(from, to);
    mount(from, to, MS_BIND | MS_REMOUNT | MS_RDONLY);
}

fn mount(from: &Path, to: &Path, flags: c_ulong) {
    let text = |path: &Path| CString::new(path.as_os_str().as_bytes()).unwrap();
    let (from, to) = (text(from), text(to));
    let none = std::ptr::null();
    // SAFETY: both strings live until the call returns.
    let result = unsafe { libc::mount(from.as_ptr(), to.as_ptr(), none, flags, none.cast()) };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
}
