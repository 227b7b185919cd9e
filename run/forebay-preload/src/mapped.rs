//! The table of this process, mapped before the program begins, and those that follow it.

use core::cell::UnsafeCell;
use core::ffi::{CStr, c_char, c_int};
use core::mem::MaybeUninit;
use core::slice;
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use forebay_table::{SharedPart, Table, TableCounter, WORD_BYTES};

use crate::kernel::{FileStat, Kernel, Result};
use crate::redirect::Redirect;
use crate::system_calls::Linux;

/// The variable with the path of the table.
const TABLE: &[u8] = b"FOREBAY_TABLE=";
/// The variable with the number of system call filters that `forebay run` itself runs under, as in
/// most containers.
const FILTERS: &[u8] = b"FOREBAY_FILTERS=";

/// Tables that a process maps, one after the other: each is twice as large as the one before, and
/// other daemons may make some.
const MAX_TABLES: usize = 64;
/// How often a process looks for the next table in vain.
const MAX_FAILURES: usize = 64;
const MAX_PATH_BYTES: usize = libc::PATH_MAX as usize;
/// More than `/proc/self/status` has.
const STATUS_BYTES: usize = 8192;

struct Mapped {
    table: Table<'static>,
    shared: SharedPart<'static>,
    process: usize,
}

/// What is written before a number or a flag says so, and then only read.
struct Place<T>(UnsafeCell<MaybeUninit<T>>);

// SAFETY: whoever holds BUSY, or runs before the program has threads, writes; MAPPED publishes it.
unsafe impl<T> Sync for Place<T> {}

static PATH: Place<[u8; MAX_PATH_BYTES]> = Place(UnsafeCell::new(MaybeUninit::zeroed()));
static TABLES: [Place<Mapped>; MAX_TABLES] =
    [const { Place(UnsafeCell::new(MaybeUninit::uninit())) }; MAX_TABLES];
/// How many tables are mapped; none is ever unmapped.
static MAPPED: AtomicUsize = AtomicUsize::new(0);
static BUSY: AtomicBool = AtomicBool::new(false);
static FAILURES: AtomicUsize = AtomicUsize::new(0);
/// The program has forbidden itself system calls; those of ours may end it.
static IS_CONFINED: AtomicBool = AtomicBool::new(false);
static LINUX: Linux = Linux;

/// A table that is mapped.
fn table(number: usize) -> &'static Mapped {
    // SAFETY: MAPPED is beyond the number, so it was written, and nobody writes it again.
    unsafe { (*TABLES[number].0.get()).assume_init_ref() }
}

fn redirect(mapped: &'static Mapped) -> Redirect<'static, Linux> {
    Redirect::new(&LINUX, &mapped.table, &mapped.shared, mapped.process)
}

/// All tables of this process, the newest first: descriptors may have copies of any of them.
#[inline]
pub fn all() -> impl Iterator<Item = Redirect<'static, Linux>> {
    (0..MAPPED.load(Ordering::Acquire)).rev().map(|number| redirect(table(number)))
}

/// Serves this process no more: it has forbidden itself system calls.
pub fn confine() {
    IS_CONFINED.store(true, Ordering::Relaxed);
}

fn refuses_change(found: Result<FileStat>) -> bool {
    found.is_ok_and(|found| all().any(|redirect| redirect.refuses_change(&found)))
}

fn is_served() -> bool {
    MAPPED.load(Ordering::Acquire) > 0 && !IS_CONFINED.load(Ordering::Relaxed)
}

/// Whether a descriptor is one of a copy, which the program must not change: it means the source.
pub fn is_copy(fd: c_int) -> bool {
    is_served() && refuses_change(LINUX.stat(fd))
}

/// Whether a path leads to a copy, as `/proc/self/fd/N` does; `flags` as for fstatat(2).
pub fn is_path_of_copy(directory: c_int, path: *const c_char, flags: c_int) -> bool {
    is_served() && refuses_change(Linux::stat_at(directory, path, flags))
}

/// The newest table, if this process has one.
#[inline]
pub fn newest() -> Option<Redirect<'static, Linux>> {
    if IS_CONFINED.load(Ordering::Relaxed) {
        return None;
    }
    let newest = table(MAPPED.load(Ordering::Acquire).checked_sub(1)?);
    if newest.table.is_current() { Some(redirect(newest)) } else { Some(next()) }
}

/// The newest table, if its sources are frozen. Only then paths are looked at before libc has seen
/// them: a program may hand over anything, and get EFAULT for it.
#[inline]
pub fn frozen() -> Option<Redirect<'static, Linux>> {
    newest().filter(Redirect::is_frozen)
}

/// Maps the table that took the place of a retired one; without such a table, the retired one.
#[cold]
fn next() -> Redirect<'static, Linux> {
    if FAILURES.load(Ordering::Relaxed) < MAX_FAILURES && !BUSY.swap(true, Ordering::Acquire) {
        let number = MAPPED.load(Ordering::Acquire);
        // Another thread may have been faster.
        if number < MAX_TABLES && !table(number - 1).table.is_current() {
            // SAFETY: the constructor has written it, and nobody writes it again.
            let path = unsafe { (*PATH.0.get()).assume_init_ref() };
            match CStr::from_bytes_until_nul(path).ok().and_then(map) {
                Some(mapped) => publish(number, mapped),
                None => _ = FAILURES.fetch_add(1, Ordering::Relaxed),
            }
        }
        BUSY.store(false, Ordering::Release);
    }
    redirect(table(MAPPED.load(Ordering::Acquire) - 1))
}

/// Publishes a table that was mapped. Only who holds BUSY, or is alone, may do that.
fn publish(number: usize, mapped: Mapped) {
    // SAFETY: nobody else writes, and nobody reads before MAPPED is beyond the number.
    unsafe { (*TABLES[number].0.get()).write(mapped) };
    MAPPED.store(number + 1, Ordering::Release);
}

/// Maps the table that the environment names. Runs once, before the program has threads.
pub fn begin(environment: *const *const c_char) {
    let Some(path) = variable(environment, TABLE) else { return };
    // Which system calls these forbid is not known; without further ones nothing can go wrong.
    if system_call_filters() > variable(environment, FILTERS).map_or(0, |value| number(value.to_bytes())) {
        return;
    }
    let bytes = path.to_bytes_with_nul();
    if bytes.len() > MAX_PATH_BYTES {
        return;
    }
    let Some(mapped) = map(path) else { return };
    mapped.shared.count(mapped.process, TableCounter::Programs, 1);
    // Programs may write over their environment.
    // SAFETY: the program has not begun; the path fits, as was checked.
    unsafe { PATH.0.get().cast::<u8>().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    publish(0, mapped);
}

/// How many filters (seccomp(2)) this process has inherited. It is found out by those system calls
/// alone that the loader has made before.
fn system_call_filters() -> u64 {
    let mut place = [0; STATUS_BYTES];
    let Ok(status) = Linux::read_file(c"/proc/self/status", &mut place) else { return 0 };
    let field = |name: &[u8]| {
        status.split(|byte| *byte == b'\n').find_map(|line| line.strip_prefix(name)).map(number)
    };
    // Linux before 5.9 tells only that there are some.
    field(b"Seccomp_filters:\t").or_else(|| field(b"Seccomp:\t")).unwrap_or(0)
}

/// The number at the front of a text.
fn number(text: &[u8]) -> u64 {
    let digits = text.iter().take_while(|byte| byte.is_ascii_digit());
    digits.fold(0, |number: u64, digit| number.saturating_mul(10).saturating_add(u64::from(digit - b'0')))
}

/// The value of a variable, whose name ends with `=`.
fn variable(environment: *const *const c_char, name: &[u8]) -> Option<&'static CStr> {
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
        if let Some(path) = variable.to_bytes_with_nul().strip_prefix(name) {
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
