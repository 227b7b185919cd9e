//! The table of this process, mapped before the program begins.

use core::cell::UnsafeCell;
use core::ffi::{CStr, c_char, c_int};
use core::mem::MaybeUninit;
use core::slice;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use forebay_table::{Counter, SharedPart, Table, WORD_BYTES};

use crate::kernel::Kernel;
use crate::redirect::Redirect;
use crate::system_calls::Linux;

/// The variable with the path of the table.
const VARIABLE: &[u8] = b"FOREBAY_TABLE=";

struct Mapped {
    table: Table<'static>,
    shared: SharedPart<'static>,
    process: usize,
}

/// Written once, before `READY` is set.
struct Place(UnsafeCell<MaybeUninit<Mapped>>);

// SAFETY: the constructor writes it once, and publishes it by READY; afterwards it is only read.
unsafe impl Sync for Place {}

static PLACE: Place = Place(UnsafeCell::new(MaybeUninit::uninit()));
static READY: AtomicBool = AtomicBool::new(false);
static LINUX: Linux = Linux;

/// The table, if this process has one.
#[inline]
pub fn redirect() -> Option<Redirect<'static, Linux>> {
    if !READY.load(Ordering::Acquire) {
        return None;
    }
    // SAFETY: READY is set after the only write.
    let mapped = unsafe { (*PLACE.0.get()).assume_init_ref() };
    Some(Redirect::new(&LINUX, &mapped.table, &mapped.shared, mapped.process))
}

/// The table, if its sources are frozen. Only then paths are looked at before libc has seen them: a
/// program may hand over anything, and get EFAULT for it.
#[inline]
pub fn frozen() -> Option<Redirect<'static, Linux>> {
    redirect().filter(Redirect::is_frozen)
}

/// Maps the table that the environment names. Runs once, before the program has threads.
pub fn begin(environment: *const *const c_char) {
    let Some(path) = table_path(environment) else { return };
    let Some(mapped) = map(path) else { return };
    mapped.shared.count(mapped.process, Counter::Programs, 1);
    // SAFETY: the loader runs constructors once, on one thread; nobody reads before READY is set.
    unsafe { (*PLACE.0.get()).write(mapped) };
    READY.store(true, Ordering::Release);
}

/// The value of the variable.
fn table_path(environment: *const *const c_char) -> Option<&'static CStr> {
    let mut entry = environment;
    if entry.is_null() {
        return None;
    }
    loop {
        // SAFETY: the loader hands over an array that ends with a null pointer.
        let variable = unsafe { *entry };
        if variable.is_null() {
            return None;
        }
        // SAFETY: its other entries are strings.
        let variable = unsafe { CStr::from_ptr(variable) };
        if let Some(path) = variable.to_bytes_with_nul().strip_prefix(VARIABLE) {
            return CStr::from_bytes_with_nul(path).ok();
        }
        // SAFETY: the end has not been reached.
        entry = unsafe { entry.add(1) };
    }
}

/// Maps a table of this user; no descriptor stays open.
fn map(path: &CStr) -> Option<Mapped> {
    let fd = LINUX.open(path, libc::O_RDWR | libc::O_CLOEXEC | libc::O_NOFOLLOW | libc::O_NONBLOCK).ok()?;
    let mapped = map_descriptor(fd);
    LINUX.close(fd);
    mapped
}

fn map_descriptor(fd: c_int) -> Option<Mapped> {
    let found = LINUX.stat(fd).ok()?;
    if !found.is_regular || Linux::owner(fd).ok()? != Linux::user() {
        return None;
    }
    let bytes = found.identity.bytes as usize;
    let address = Linux::map(fd, bytes).ok()?;
    // SAFETY: the mapping is this long, aligned to pages, and never removed once it is in use.
    // Other processes write it as atomic words, too; the daemon does not shorten the file.
    let words: &'static [AtomicU64] = unsafe { slice::from_raw_parts(address.cast(), bytes / WORD_BYTES) };
    let parts =
        Table::open(words).ok().and_then(|table| Some((table, SharedPart::new(words, table.layout())?)));
    let Some((table, shared)) = parts else {
        // SAFETY: nothing refers to the mapping any more.
        unsafe { Linux::unmap(address, bytes) };
        return None;
    };
    // SAFETY: this process only writes behind part 1.
    unsafe { Linux::protect(address, table.layout().part_1_bytes()) }.ok()?;
    Some(Mapped { table, shared, process: Linux::process() })
}
