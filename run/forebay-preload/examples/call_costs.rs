//! What the preload library adds to a call: the same call through it and past it, in turns.
//!
//!     LD_PRELOAD=... FOREBAY_TABLE=... call_costs FOREIGN OUTSIDE SOURCE
//!
//! FOREIGN is a file on another device than the sources, OUTSIDE one on their device but below none
//! of their directories, SOURCE one that has a copy. Prints a JSON object a line: the median of
//! libc's own time, the median of the differences of neighbours, and whether the program calls libc
//! itself.

use std::env;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::mem::{self, MaybeUninit};
use std::ptr;
use std::time::Instant;

const PAIRS: usize = 301;
const CALLS: u32 = 100;

type Open = unsafe extern "C" fn(*const c_char, c_int, ...) -> c_int;
type Stat = unsafe extern "C" fn(*const c_char, *mut libc::stat) -> c_int;
type Fstat = unsafe extern "C" fn(c_int, *mut libc::stat) -> c_int;
type Read = unsafe extern "C" fn(c_int, *mut c_void, usize) -> isize;
type Pread = unsafe extern "C" fn(c_int, *mut c_void, usize, i64) -> isize;
type Mmap = unsafe extern "C" fn(*mut c_void, usize, c_int, c_int, c_int, i64) -> *mut c_void;

/// The function that the program gets, and that of libc.
fn both(name: &CStr) -> [*mut c_void; 2] {
    // SAFETY: the names end with zeros; libc is loaded.
    unsafe {
        let libc = libc::dlopen(c"libc.so.6".as_ptr(), libc::RTLD_NOW);
        let found = [libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()), libc::dlsym(libc, name.as_ptr())];
        assert!(found.iter().all(|address| !address.is_null()), "{name:?}");
        found
    }
}

fn measure(name: &CStr, shown: &str, mut call: impl FnMut(*mut c_void)) {
    let [ours, libc] = both(name);
    let mut time = |function| {
        let start = Instant::now();
        (0..CALLS).for_each(|_| call(function));
        start.elapsed().as_nanos() as f64 / f64::from(CALLS)
    };
    let (mut plain, mut added) = (Vec::new(), Vec::new());
    for pair in 0..PAIRS {
        // The first in turn first.
        let (without, with) = if pair % 2 == 0 {
            let without = time(libc);
            (without, time(ours))
        } else {
            let with = time(ours);
            (time(libc), with)
        };
        plain.push(without);
        added.push(with - without);
    }
    let median = |values: &mut Vec<f64>| {
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    };
    let (libc_ns, added_ns) = (median(&mut plain), median(&mut added));
    let direct = ours == libc;
    println!(
        r#"{{"call": "{shown}", "libc_ns": {libc_ns:.1}, "added_ns": {added_ns:.1}, "direct": {direct}}}"#
    );
}

fn main() {
    let paths: Vec<CString> = env::args().skip(1).map(|path| CString::new(path).expect("a path")).collect();
    let [foreign, outside, source] = &paths[..] else { panic!("expected FOREIGN OUTSIDE SOURCE") };
    let open_close = |path: &CStr| {
        let path = path.to_owned();
        move |function: *mut c_void| {
            // SAFETY: the function is open(2) of libc or the library.
            unsafe {
                let open = mem::transmute::<*mut c_void, Open>(function);
                libc::close(open(path.as_ptr(), libc::O_RDONLY));
            }
        }
    };
    measure(c"open", "open and close, foreign", open_close(foreign));
    measure(c"open", "open and close, on the sources' device", open_close(outside));
    measure(c"open", "open and close, served", open_close(source));
    measure(c"open", "open that fails", |function| {
        // SAFETY: the function is open(2) of libc or the library.
        unsafe {
            mem::transmute::<*mut c_void, Open>(function)(c"/nonexistent/file".as_ptr(), libc::O_RDONLY)
        };
    });
    measure(c"open", "open for writing and close, foreign", |function| {
        // SAFETY: the function is open(2) of libc or the library.
        unsafe { libc::close(mem::transmute::<*mut c_void, Open>(function)(foreign.as_ptr(), libc::O_RDWR)) };
    });
    let mut found = MaybeUninit::<libc::stat>::uninit();
    measure(c"stat", "stat, foreign", |function| {
        // SAFETY: the function is stat(2) of libc or the library.
        unsafe { mem::transmute::<*mut c_void, Stat>(function)(foreign.as_ptr(), found.as_mut_ptr()) };
    });
    // SAFETY: plain calls of libc; the descriptors stay open.
    let (plain, served) = unsafe {
        (libc::open(foreign.as_ptr(), libc::O_RDONLY), libc::open(source.as_ptr(), libc::O_RDONLY))
    };
    for (fd, shown) in [(plain, "fstat, foreign"), (served, "fstat, served")] {
        measure(c"fstat", shown, |function| {
            // SAFETY: the function is fstat(2) of libc or the library.
            unsafe { mem::transmute::<*mut c_void, Fstat>(function)(fd, found.as_mut_ptr()) };
        });
    }
    // SAFETY: a plain call of libc.
    let zero = unsafe { libc::open(c"/dev/zero".as_ptr(), libc::O_RDONLY) };
    let mut byte = [0_u8; 1];
    measure(c"read", "read, 1 byte", |function| {
        // SAFETY: the function is read(2).
        unsafe { mem::transmute::<*mut c_void, Read>(function)(zero, byte.as_mut_ptr().cast(), 1) };
    });
    measure(c"pread", "pread, 1 byte", |function| {
        // SAFETY: the function is pread(2).
        unsafe { mem::transmute::<*mut c_void, Pread>(function)(zero, byte.as_mut_ptr().cast(), 1, 0) };
    });
    measure(c"mmap", "mmap and munmap, 1 page", |function| {
        // SAFETY: the function is mmap(2).
        unsafe {
            let mmap = mem::transmute::<*mut c_void, Mmap>(function);
            libc::munmap(mmap(ptr::null_mut(), 4096, libc::PROT_READ, libc::MAP_PRIVATE, served, 0), 4096);
        }
    });
}
