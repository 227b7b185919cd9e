//! Which pages of a mapped file are in the page cache: asked chunk by chunk, remembered for a
//! second.
//!
//! One word per chunk of 2 MiB holds when it was asked and what was found: all pages, none, or
//! some; then a bit per page stands beside it. Words and bits are atomics that all threads share.
//! Two threads that ask about the same chunk at once may mix their bits: every bit was true a
//! moment ago, and more is not promised. Memory of words and bits is touched only where the file
//! is: at most 72 bytes per chunk.
//!
//! Who is asked, with the measured cost per chunk (Linux 6.18, ext4; page cache in large / in 4 KiB
//! folios):
//!
//! - mincore(2): 30 / 55 us where this process has not touched the pages yet, 1.5-3 us where it
//!   has, 18 us where nothing is cached;
//! - cachestat(2) (Linux 6.5): 0.5 / 15-30 us, 0.3 us where nothing is cached, but counts only. So
//!   it answers the first question about a chunk, and mincore the later ones and those about chunks
//!   of which a part is cached;
//! - preadv2(2) with `RWF_NOWAIT`, a byte per page: 360-1100 us, as much as reading the chunk. Not
//!   used.
//!
//! mincore says "resident" of everything where the caller neither owns the file nor may write it
//! (since Linux 5.2). There only cachestat is called. If it also refuses (since 6.15), the answer
//! is "no".

use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use memmap2::Mmap;
use rustix::fs::{Access, AtFlags};
use rustix::thread::CapabilitySet;
use rustix::time::{ClockId, clock_gettime};

/// Bytes that are asked about at once \[bytes\]: two thousand answers per second cover 4 GB/s.
const CHUNK_BYTES: u64 = 2 << 20;

/// How long an answer is believed \[ms\].
const LIFE_MS: u64 = 1000;

/// Pages of a chunk at most; no supported machine has smaller ones than 4 KiB.
const MAX_PAGES: usize = (CHUNK_BYTES / 4096) as usize;

/// `__NR_cachestat`, the same on x86-64 and aarch64.
const SYS_CACHESTAT: libc::c_long = 451;

/// Bits of a word that hold its kind; the time stands above them.
const KIND_BITS: u32 = 2;
const NONE: u64 = 1;
const ALL: u64 = 2;
const SOME: u64 = 3;

/// Whom to ask about a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Oracle {
    /// mincore(2), helped by cachestat(2).
    Mincore,
    /// cachestat(2) alone.
    Cachestat,
    /// Nothing: the answer is always "no".
    Silent,
}

impl Oracle {
    /// Who tells the truth about this file to this process.
    pub(crate) fn for_file(descriptor: BorrowedFd<'_>) -> Self {
        if mincore_is_honest(descriptor) {
            Self::Mincore
        } else if count_cached(descriptor, 0, CHUNK_BYTES).is_some() {
            Self::Cachestat
        } else {
            Self::Silent
        }
    }
}

/// The rule of the kernel (`can_do_mincore`): the owner, `CAP_FOWNER`, or a user who may write
/// the file.
fn mincore_is_honest(descriptor: BorrowedFd<'_>) -> bool {
    let owner =
        rustix::fs::fstat(descriptor).is_ok_and(|stat| stat.st_uid == rustix::process::geteuid().as_raw());
    owner
        || rustix::thread::capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::FOWNER))
        || rustix::fs::accessat(descriptor, c"", Access::WRITE_OK, AtFlags::EMPTY_PATH | AtFlags::EACCESS)
            .is_ok()
}

/// What is known of one file.
pub(crate) struct Residency {
    oracle: Oracle,
    bytes: u64,
    page_bytes: u64,
    /// Per chunk: 0 (never asked), or when and which kind.
    words: Box<[AtomicU64]>,
    /// Per chunk `bit_words` words of bits, valid where the kind is `SOME`.
    bits: Box<[AtomicU64]>,
    bit_words: usize,
}

impl Residency {
    /// Nothing is known of a file of so many bytes.
    pub(crate) fn new(bytes: u64, oracle: Oracle) -> Self {
        let page_bytes = rustix::param::page_size() as u64;
        let bit_words = CHUNK_BYTES.div_ceil(page_bytes).div_ceil(64) as usize;
        let chunks = if oracle == Oracle::Silent { 0 } else { bytes.div_ceil(CHUNK_BYTES) as usize };
        Self { oracle, bytes, page_bytes, words: zeros(chunks), bits: zeros(chunks * bit_words), bit_words }
    }

    /// Whether the pages of `from .. end` are all cached. `memory` is the mapping of the whole
    /// file; its descriptor is asked for before each question to the kernel, and without one the
    /// answer is no.
    pub(crate) fn covers<'a>(
        &self,
        from: u64,
        end: u64,
        memory: &Mmap,
        descriptor: impl Fn() -> Option<BorrowedFd<'a>>,
    ) -> bool {
        if from >= end {
            return true;
        }
        if self.oracle == Oracle::Silent || end > self.bytes {
            return false;
        }
        let now_ms = coarse_ms();
        (from / CHUNK_BYTES..=(end - 1) / CHUNK_BYTES).all(|chunk| {
            let start = chunk * CHUNK_BYTES;
            let first = from.saturating_sub(start) / self.page_bytes;
            let last = ((end - start).min(CHUNK_BYTES) - 1) / self.page_bytes;
            let word = self.words[chunk as usize].load(Ordering::Acquire);
            let known = word != 0 && now_ms.wrapping_sub(word >> KIND_BITS) < LIFE_MS;
            let kind = if known {
                word & ((1 << KIND_BITS) - 1)
            } else {
                let Some(descriptor) = descriptor() else { return false };
                let kind = self.look(chunk, memory, descriptor, word == 0);
                self.words[chunk as usize].store(now_ms << KIND_BITS | kind, Ordering::Release);
                kind
            };
            match kind {
                ALL => true,
                SOME => self.has_bits(chunk, first as usize, last as usize),
                _ => false,
            }
        })
    }

    fn has_bits(&self, chunk: u64, first: usize, last: usize) -> bool {
        let bits = &self.bits[chunk as usize * self.bit_words..][..self.bit_words];
        (first / 64..=last / 64).all(|place| {
            let low = if place == first / 64 { first % 64 } else { 0 };
            let high = if place == last / 64 { last % 64 } else { 63 };
            let mask = (u64::MAX >> (63 - high)) & (u64::MAX << low);
            bits[place].load(Ordering::Relaxed) & mask == mask
        })
    }

    /// Asks the kernel about a chunk.
    fn look(&self, chunk: u64, memory: &Mmap, descriptor: BorrowedFd<'_>, first_time: bool) -> u64 {
        let start = chunk * CHUNK_BYTES;
        let length = CHUNK_BYTES.min(self.bytes - start);
        let pages = length.div_ceil(self.page_bytes);
        if first_time || self.oracle == Oracle::Cachestat {
            match count_cached(descriptor, start, length) {
                Some(count) if count >= pages => return ALL,
                Some(0) => return NONE,
                _ if self.oracle == Oracle::Cachestat => return NONE,
                _ => {}
            }
        }
        let mut answer = [0_u8; MAX_PAGES];
        let pages = pages as usize;
        // SAFETY: the range lies in the mapping (`bytes` is its length, `start` is a multiple of
        // the page), and `answer` has a byte for each of its pages, of which there are at most
        // `MAX_PAGES`.
        let status = unsafe {
            let address = memory.as_ptr().add(start as usize).cast_mut().cast();
            libc::mincore(address, length as usize, answer.as_mut_ptr())
        };
        if status != 0 {
            return NONE;
        }
        let mut cached = 0;
        for (place, pages) in answer[..pages].chunks(64).enumerate() {
            let bits = pages
                .iter()
                .enumerate()
                .fold(0_u64, |bits, (page, state)| bits | u64::from(state & 1) << page);
            cached += bits.count_ones() as usize;
            self.bits[chunk as usize * self.bit_words + place].store(bits, Ordering::Relaxed);
        }
        match cached {
            0 => NONE,
            _ if cached == pages => ALL,
            _ => SOME,
        }
    }
}

/// A zeroed table; the pages of a large one are not touched.
fn zeros(length: usize) -> Box<[AtomicU64]> {
    let zeros = Box::into_raw(vec![0_u64; length].into_boxed_slice());
    // SAFETY: AtomicU64 has the size, bit validity and (on 64-bit machines, the only ones
    // supported) the alignment of u64; ownership goes from one box to the other.
    unsafe { Box::from_raw(zeros as *mut [AtomicU64]) }
}

/// Time of a coarse clock that needs no system call \[ms\]; never 0.
pub(crate) fn coarse_ms() -> u64 {
    let time = clock_gettime(ClockId::MonotonicCoarse);
    time.tv_sec as u64 * 1000 + time.tv_nsec as u64 / 1_000_000 + 1
}

/// Pages of a range that are in the page cache, by cachestat(2).
fn count_cached(descriptor: BorrowedFd<'_>, offset: u64, length: u64) -> Option<u64> {
    #[repr(C)]
    struct CachestatRange {
        offset: u64,
        length: u64,
    }
    #[repr(C)]
    #[derive(Default)]
    struct CachestatCounts {
        cache: u64,
        dirty: u64,
        writeback: u64,
        evicted: u64,
        recently_evicted: u64,
    }
    let range = CachestatRange { offset, length };
    let mut answer = CachestatCounts::default();
    // SAFETY: both structures live through the call and have the layout of cachestat(2); on kernels
    // without it the call returns ENOSYS and touches nothing.
    let status = unsafe {
        libc::syscall(
            SYS_CACHESTAT,
            descriptor.as_raw_fd(),
            &raw const range,
            &raw mut answer,
            0 as libc::c_uint,
        )
    };
    (status == 0).then_some(answer.cache)
}
