//! Mapped files that lose pages: a SIGBUS that is an error instead of the end of the process.
//!
//! If a file is truncated, or a page cannot be read, a thread that touches it through a mapping
//! gets SIGBUS. The handler here acts on addresses in mappings that are watched ([`Watch`]), which
//! nothing but this crate touches:
//!
//! 1. it marks the mapping as lost and counts the fault ([`faults`]),
//! 2. it puts zeros (anonymous memory) in place of the mapping from the lost page on, and returns,
//!    so the load is repeated and finds zeros. No jump leaves any frame.
//!
//! A user of mapped bytes compares [`faults`] before and after. If they differ, it discards its
//! result: a step is gathered again, a block is left to the ranks, a walk fails. A lost mapping is
//! not used again. Its bytes are read with pread(2), whose error names file, offset and sizes.
//!
//! Any other SIGBUS is not ours: the handler puts back what was there before it and returns. The
//! fault then happens again, or the signal is queued again with the same facts, and whatever was
//! there gets it, as without Forebay.
//!
//! The handler is installed with the first mapping. A program that installs its own afterwards
//! (`faulthandler.enable()`) gets in front of it; [`keep`] notices within [`LOOK_MS`] and installs
//! another level in front of that one, with a function of its own, so that each level stands before
//! the one it replaced and no cycle can come about.
//!
//! What it does not do: a thread that blocks SIGBUS is killed by the kernel, so the engine's
//! threads unblock it ([`unblock`]); the rest of the page in which a file ends now is zeros without
//! any signal, until its size is looked at.
//!
//! Source: sigaction(2), mmap(2), `rt_tgsigqueueinfo(2)`.

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering, fence};

use memmap2::Mmap;

use crate::map::residency::coarse_ms;

/// Interval between checks for a handler that another library has installed before ours \[ms\].
const LOOK_MS: u64 = 250;

/// How often other libraries may install a handler before ours.
const LEVELS: usize = 8;

/// A mapping that is watched. It lives for good, as a handler may look at it at any time, and is
/// used again.
struct Range {
    start: AtomicUsize,
    /// 0 while nothing is watched.
    end: AtomicUsize,
    lost: AtomicBool,
    /// Offset of the first page that was lost.
    lost_at: AtomicUsize,
    next: *const Range,
}

/// All ranges there are: only ever grows, and is read without a lock.
static RANGES: AtomicPtr<Range> = AtomicPtr::new(ptr::null_mut());

/// Ranges that may be used again.
static FREE: Mutex<Vec<&'static Range>> = Mutex::new(Vec::new());

/// Faults so far.
static FAULTS: AtomicU64 = AtomicU64::new(0);

/// Size of a page, known before the handler is installed \[bytes\].
static PAGE_BYTES: AtomicUsize = AtomicUsize::new(4096);

// SAFETY: `next` leads to a range that lives for good and is never written again.
unsafe impl Sync for Range {}

/// Watches over a mapping, as long as this lives: it must go before the mapping does.
pub(crate) struct Watch(&'static Range);

impl Watch {
    pub(crate) fn new(memory: &Mmap) -> Self {
        keep_now();
        // A child that was forked while the lock was held never gets it, and adds a new range.
        let free = FREE.try_lock().ok().and_then(|mut free| free.pop());
        let range = free.unwrap_or_else(Range::add);
        range.lost.store(false, Ordering::Relaxed);
        let start = memory.as_ptr() as usize;
        range.start.store(start, Ordering::Relaxed);
        range.end.store(start + memory.len(), Ordering::Release);
        Self(range)
    }

    /// Whether bytes of the mapping were replaced by zeros, or it was given up
    /// ([`Watch::give_up`]).
    pub(crate) fn is_lost(&self) -> bool {
        self.0.lost.load(Ordering::Relaxed)
    }

    /// Offset of the page whose loss was seen first; `None` where the mapping was given up without
    /// a fault.
    pub(crate) fn lost_at(&self) -> Option<u64> {
        let at = self.0.lost_at.load(Ordering::Relaxed);
        (at != usize::MAX).then_some(at as u64)
    }

    /// The file has shrunk: the mapping is not used any more.
    pub(crate) fn give_up(&self) {
        self.0.lost.store(true, Ordering::Relaxed);
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.0.end.store(0, Ordering::Release);
        self.0.lost_at.store(usize::MAX, Ordering::Relaxed);
        if let Ok(mut free) = FREE.try_lock() {
            free.push(self.0);
        }
    }
}

impl Range {
    fn add() -> &'static Self {
        let range = Box::leak(Box::new(Self {
            start: AtomicUsize::new(0),
            end: AtomicUsize::new(0),
            lost: AtomicBool::new(false),
            lost_at: AtomicUsize::new(usize::MAX),
            next: ptr::null(),
        }));
        let mut head = RANGES.load(Ordering::Relaxed);
        loop {
            range.next = head;
            match RANGES.compare_exchange_weak(head, range, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return range,
                Err(found) => head = found,
            }
        }
    }
}

/// Number of faults so far, of all mappings: read before and after mapped bytes are looked at.
///
/// SYNC: lost page: the bytes are loaded before the fence, and zeros appear only after the count in
/// [`lose`].
pub fn faults() -> u64 {
    fence(Ordering::Acquire);
    FAULTS.load(Ordering::Relaxed)
}

/// Lets this thread take SIGBUS: where it is blocked, a fault ends the process.
pub fn unblock() {
    // SAFETY: an empty set is a valid one, and the call only reads it.
    unsafe {
        let mut set = MaybeUninit::<libc::sigset_t>::zeroed().assume_init();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, libc::SIGBUS);
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const set, ptr::null_mut());
    }
}

/// Whether this thread takes SIGBUS.
pub fn is_unblocked() -> bool {
    // SAFETY: without a new set the call only writes the current one.
    unsafe {
        let mut set = MaybeUninit::<libc::sigset_t>::zeroed().assume_init();
        libc::pthread_sigmask(libc::SIG_BLOCK, ptr::null(), &raw mut set) == 0
            && libc::sigismember(&raw const set, libc::SIGBUS) == 0
    }
}

/// Sees to it, every [`LOOK_MS`], that the handler is the first one.
pub fn keep() {
    static LOOKED_MS: AtomicU64 = AtomicU64::new(0);
    let now = coarse_ms();
    if now.wrapping_sub(LOOKED_MS.load(Ordering::Relaxed)) >= LOOK_MS {
        LOOKED_MS.store(now, Ordering::Relaxed);
        keep_now();
    }
}

/// What each level has replaced; written once, before the level is installed.
struct Previous(UnsafeCell<MaybeUninit<libc::sigaction>>);

// SAFETY: a place is written under the lock of `keep_now`, before its handler is installed, and
// only read afterwards.
unsafe impl Sync for Previous {}

static PREVIOUS: [Previous; LEVELS] = [const { Previous(UnsafeCell::new(MaybeUninit::zeroed())) }; LEVELS];

/// Levels that have been installed.
static INSTALLED: Mutex<usize> = Mutex::new(0);

type Handler = extern "C" fn(c_int, *mut libc::siginfo_t, *mut libc::c_void);

const HANDLERS: [Handler; LEVELS] =
    [handle::<0>, handle::<1>, handle::<2>, handle::<3>, handle::<4>, handle::<5>, handle::<6>, handle::<7>];

/// Installs the handler, unless it is the first one already.
pub fn keep_now() {
    // Another thread is at it, or was when this process forked; then the handler came along.
    let Ok(mut installed) = INSTALLED.try_lock() else { return };
    PAGE_BYTES.store(rustix::param::page_size(), Ordering::Relaxed);
    // SAFETY: the structures live through the calls; zeros are a valid `sigaction`. What is
    // installed is a function of the type that SA_SIGINFO asks for, which calls nothing but what is
    // safe in a handler.
    unsafe {
        let mut current: libc::sigaction = MaybeUninit::zeroed().assume_init();
        if libc::sigaction(libc::SIGBUS, ptr::null(), &raw mut current) != 0
            || HANDLERS.iter().any(|handler| *handler as usize == current.sa_sigaction)
        {
            return;
        }
        let replaced = |level: &usize| {
            let previous = &*PREVIOUS[*level].0.get().cast::<libc::sigaction>();
            previous.sa_sigaction == current.sa_sigaction && previous.sa_flags == current.sa_flags
        };
        let level = match (0..*installed).find(replaced) {
            Some(level) => level,
            None if *installed < LEVELS => {
                PREVIOUS[*installed].0.get().write(MaybeUninit::new(current));
                *installed += 1;
                *installed - 1
            }
            None => return,
        };
        let mut ours: libc::sigaction = MaybeUninit::zeroed().assume_init();
        ours.sa_sigaction = HANDLERS[level] as usize;
        ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | (current.sa_flags & libc::SA_RESTART);
        libc::sigemptyset(&raw mut ours.sa_mask);
        libc::sigaction(libc::SIGBUS, &raw const ours, ptr::null_mut());
    }
}

/// The handler, one function per level.
extern "C" fn handle<const LEVEL: usize>(
    signal: c_int,
    info: *mut libc::siginfo_t,
    _context: *mut libc::c_void,
) {
    // SAFETY: the kernel hands over the facts of this signal, and errno is this thread's.
    // Everything called here is a system call or an atomic.
    unsafe {
        let errno = *libc::__errno_location();
        // Faults have positive codes; an address comes with them alone.
        let is_fault = (*info).si_code > 0;
        if !(is_fault && lose((*info).si_addr() as usize)) {
            step_aside(LEVEL, signal, info, is_fault);
        }
        *libc::__errno_location() = errno;
    }
}

/// Puts zeros in place of a watched mapping from a page on; false where the address is in none.
fn lose(address: usize) -> bool {
    let mut next = RANGES.load(Ordering::Acquire).cast_const();
    // SAFETY: ranges live for good.
    while let Some(range) = unsafe { next.as_ref() } {
        next = range.next;
        let end = range.end.load(Ordering::Acquire);
        let start = range.start.load(Ordering::Relaxed);
        if !(start..end).contains(&address) {
            continue;
        }
        let page_bytes = PAGE_BYTES.load(Ordering::Relaxed);
        let page = address - address % page_bytes;
        let at = page - start;
        let _ = range.lost_at.compare_exchange(usize::MAX, at, Ordering::Relaxed, Ordering::Relaxed);
        range.lost.store(true, Ordering::Relaxed);
        // SYNC: lost page: counted before zeros appear, see `faults`.
        FAULTS.fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let length = (end - page).next_multiple_of(page_bytes);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE;
        // SAFETY: the pages belong to a mapping that is watched, so it is there, read-only, and its
        // bytes are input that may change at any time. Its owner unmaps this memory with it.
        let answer = unsafe { libc::mmap(page as *mut libc::c_void, length, libc::PROT_READ, flags, -1, 0) };
        return answer != libc::MAP_FAILED;
    }
    false
}

/// Puts back what was there before a level, and lets it have the signal: a fault happens again,
/// another signal is queued again.
unsafe fn step_aside(level: usize, signal: c_int, info: *mut libc::siginfo_t, is_fault: bool) {
    // SAFETY: the level was installed, so what it replaced was written; `info` is what the kernel
    // handed over.
    unsafe {
        libc::sigaction(signal, PREVIOUS[level].0.get().cast::<libc::sigaction>(), ptr::null_mut());
        if !is_fault {
            libc::syscall(libc::SYS_rt_tgsigqueueinfo, libc::getpid(), libc::gettid(), signal, info);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsRawFd;

    use memmap2::MmapOptions;

    use super::*;

    const PAGE: usize = 4096;

    fn mapped(bytes: usize) -> (File, Mmap) {
        let file = tempfile::tempfile().unwrap();
        rustix::io::pwrite(&file, &vec![7; bytes], 0).unwrap();
        // SAFETY: read-only; what becomes of the bytes is what the tests are about.
        let memory = unsafe { MmapOptions::new().len(bytes).map(file.as_raw_fd()) }.unwrap();
        (file, memory)
    }

    static FOREIGN: AtomicU64 = AtomicU64::new(0);
    static FOREIGN_ADDRESS: AtomicUsize = AtomicUsize::new(0);

    /// What another library might have: it counts, and makes the access succeed.
    extern "C" fn foreign(_: c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
        FOREIGN.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the facts of a signal; a fault comes from the test's own mapping.
        unsafe {
            if (*info).si_code > 0 {
                let address = (*info).si_addr() as usize;
                FOREIGN_ADDRESS.store(address, Ordering::Relaxed);
                let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
                let page = (address - address % PAGE) as *mut libc::c_void;
                libc::mmap(page, PAGE, libc::PROT_READ, flags, -1, 0);
            }
        }
    }

    fn install_foreign() {
        // SAFETY: as in `keep_now`.
        unsafe {
            let mut action: libc::sigaction = MaybeUninit::zeroed().assume_init();
            action.sa_sigaction = foreign as Handler as usize;
            action.sa_flags = libc::SA_SIGINFO;
            libc::sigaction(libc::SIGBUS, &raw const action, ptr::null_mut());
        }
    }

    fn current() -> usize {
        // SAFETY: as in `keep_now`.
        unsafe {
            let mut current: libc::sigaction = MaybeUninit::zeroed().assume_init();
            libc::sigaction(libc::SIGBUS, ptr::null(), &raw mut current);
            current.sa_sigaction
        }
    }

    // One test, as there is one handler.
    #[test]
    fn lost_pages_read_as_zeros_and_faults_of_others_go_to_their_handlers() {
        let (file, memory) = mapped(8 * PAGE + 100);
        let (_whole_file, whole) = mapped(2 * PAGE);
        let (watch, whole_watch) = (Watch::new(&memory), Watch::new(&whole));
        let first = current();
        assert!(HANDLERS.iter().any(|handler| *handler as usize == first));

        file.set_len(3 * PAGE as u64).unwrap();
        let before = faults();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    unblock();
                    let mut copy = vec![1; memory.len()];
                    copy.copy_from_slice(&memory);
                    assert!(copy[..3 * PAGE].iter().all(|byte| *byte == 7));
                    assert!(copy[3 * PAGE..].iter().all(|byte| *byte == 0));
                });
            }
        });
        assert!(faults() > before && watch.is_lost() && !whole_watch.is_lost());
        assert_eq!(watch.lost_at(), Some(3 * PAGE as u64));
        let after = faults();
        // What is in front of the lost page is lost later, or never.
        file.set_len(0).unwrap();
        assert_eq!((memory[PAGE], memory[7 * PAGE], faults()), (0, 0, after + 1));

        // Another handler comes in front of ours, and is the next one when ours is first again.
        install_foreign();
        let (foreign_file, foreign_memory) = mapped(2 * PAGE);
        foreign_file.set_len(0).unwrap();
        assert_eq!((foreign_memory[PAGE + 5], FOREIGN.load(Ordering::Relaxed)), (0, 1));
        keep_now();
        let second = current();
        assert!(second != first && HANDLERS.iter().any(|handler| *handler as usize == second));
        assert_eq!((foreign_memory[9], FOREIGN.load(Ordering::Relaxed)), (0, 2));
        assert_eq!(FOREIGN_ADDRESS.load(Ordering::Relaxed), foreign_memory.as_ptr() as usize + 9);
        // It was let in front for that; the level that stood before it is used again, however often
        // that happens.
        for number in 3..20 {
            assert_eq!(current(), foreign as Handler as usize);
            keep_now();
            assert_eq!(current(), second);
            // SAFETY: sends a signal to this thread, whose handler counts it.
            unsafe { libc::raise(libc::SIGBUS) };
            assert_eq!(FOREIGN.load(Ordering::Relaxed), number);
        }
        keep_now();

        // A range that is given back is used again, as if nothing had been lost.
        drop(watch);
        drop(memory);
        let (file, memory) = mapped(PAGE);
        let watch = Watch::new(&memory);
        assert!(!watch.is_lost() && watch.lost_at().is_none());
        file.set_len(0).unwrap();
        assert_eq!((memory[0], watch.is_lost(), watch.lost_at()), (0, true, Some(0)));
        assert_eq!(FOREIGN.load(Ordering::Relaxed), 19);
    }
}
