//! The client of one node: turns file accesses of its programs into requests.
//!
//! A node has one page cache, and per open file a read-ahead state. An access advances in steps:
//! [`Client::step`] returns what to fetch now and what to wait for before the next step. In between
//! the caller, which has the clock (`virtual_time`), runs other programs of the node. A page counts
//! as cached once it is requested: later accesses wait for the same request.
mod page_cache;
mod read_ahead;

use serde::{Deserialize, Serialize};

use self::page_cache::PageCache;
use self::read_ahead::{Linux, Lustre, Pages};
use crate::ids::FileId;
use crate::spec::{PAGE_BYTES, Spec};

/// The largest request of Linux on a FUSE mount \[B\]: 256 pages.
const FUSE_REQUEST_BYTES: u64 = 1 << 20;

/// Which client's read-ahead applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReadAheadRules {
    /// A Lustre client with the windows of the specification.
    #[default]
    Lustre,
    /// The Linux page cache, as on a FUSE mount.
    Linux {
        /// The largest window, as of `read_ahead_kb` \[B\].
        read_ahead_bytes: u64,
    },
}

/// How a program accesses a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AccessMethod {
    /// `read()` or `pread()` through the page cache.
    Read,
    /// Loads from a mapping, page by page.
    Mmap,
    /// Loads from a mapping under `MADV_RANDOM`: no read-ahead.
    MmapRandom,
    /// `O_DIRECT`: bypasses the page cache.
    Direct,
}

/// A file that one program has open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct OpenFile(u32);

/// A range of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByteRange {
    /// Offset \[B\].
    pub offset: u64,
    /// Length \[B\].
    pub length: u64,
}

/// One access of a program, and its progress.
#[derive(Clone, Debug)]
pub struct Access {
    pub(crate) open: OpenFile,
    at: u64,
    end: u64,
    how: AccessMethod,
    begun: bool,
}

impl Access {
    /// Whether all its bytes have been asked for.
    pub(crate) fn is_done(&self) -> bool {
        self.at >= self.end
    }
}

/// The page cache and open files of one node.
#[derive(Debug)]
pub struct Client {
    rules: ReadAheadRules,
    read_ahead_pages: u64,
    read_ahead_mmap_pages: u64,
    cache: PageCache,
    opens: Vec<Open>,
}

#[derive(Debug)]
struct Open {
    file: FileId,
    bytes: u64,
    read_ahead: ReadAhead,
    /// `POSIX_FADV_RANDOM`.
    is_random: bool,
}

#[derive(Debug)]
enum ReadAhead {
    Lustre(Lustre),
    Linux(Linux),
}

impl Client {
    /// Creates a node with an empty cache.
    pub fn new(spec: &Spec, rules: ReadAheadRules) -> Client {
        Client {
            rules,
            read_ahead_pages: spec.read_ahead_bytes / PAGE_BYTES,
            read_ahead_mmap_pages: spec.read_ahead_mmap_bytes / PAGE_BYTES,
            cache: PageCache::new(spec.cache_bytes.map_or(u64::MAX, |bytes| bytes / PAGE_BYTES)),
            opens: Vec::new(),
        }
    }

    /// Opens a file of `bytes` bytes. Each opening has its own read-ahead state.
    pub fn open(&mut self, file: FileId, bytes: u64) -> OpenFile {
        let read_ahead = match self.rules {
            ReadAheadRules::Lustre => {
                ReadAhead::Lustre(Lustre::new(self.read_ahead_pages, self.read_ahead_mmap_pages))
            }
            ReadAheadRules::Linux { read_ahead_bytes } => {
                ReadAhead::Linux(Linux::new(read_ahead_bytes / PAGE_BYTES))
            }
        };
        self.opens.push(Open { file, bytes, read_ahead, is_random: false });
        OpenFile(self.opens.len() as u32 - 1)
    }

    /// Reads of the file fetch what they ask for and nothing beyond it (`POSIX_FADV_RANDOM`).
    pub fn without_read_ahead(&mut self, open: OpenFile) {
        self.opens[open.0 as usize].is_random = true;
    }

    /// Begins an access, clipped to the end of the file.
    pub fn access(&self, open: OpenFile, offset: u64, length: u64, how: AccessMethod) -> Access {
        let end = offset.saturating_add(length).min(self.opens[open.0 as usize].bytes);
        Access { open, at: offset, end, how, begun: false }
    }

    /// Whether all pages of a range, clipped to the end of the file, are cached or requested. Does
    /// not count as a use.
    pub fn is_cached(&self, open: OpenFile, range: ByteRange) -> bool {
        let open = &self.opens[open.0 as usize];
        let end = range.offset.saturating_add(range.length).min(open.bytes);
        let (first, end) = (range.offset / PAGE_BYTES, end.div_ceil(PAGE_BYTES));
        self.cache.has_all(open.file, first, end)
    }

    /// The file that is open.
    pub fn file(&self, open: OpenFile) -> FileId {
        self.opens[open.0 as usize].file
    }

    /// Advances an access by one step.
    ///
    /// Fills `fetches` with the requests to send now, and returns what must have arrived before the
    /// next step; `None` once the access is done.
    pub fn step(&mut self, access: &mut Access, fetches: &mut Vec<ByteRange>) -> Option<ByteRange> {
        fetches.clear();
        if access.is_done() {
            return None;
        }
        let open = &mut self.opens[access.open.0 as usize];
        let wanted: Pages = (access.at / PAGE_BYTES, access.end.div_ceil(PAGE_BYTES));
        let mut node = Fetching { cache: &mut self.cache, file: open.file, bytes: open.bytes, fetches };
        let done = match (access.how, &mut open.read_ahead) {
            (AccessMethod::Direct, read_ahead) => {
                let max_bytes =
                    if matches!(read_ahead, ReadAhead::Linux(_)) { FUSE_REQUEST_BYTES } else { u64::MAX };
                node.send(access.at, access.end, max_bytes);
                wanted.1
            }
            (AccessMethod::MmapRandom, _) => {
                node.fetch((wanted.0, wanted.0 + 1), u64::MAX);
                wanted.0 + 1
            }
            (AccessMethod::Read, ReadAhead::Lustre(_)) if open.is_random => {
                node.fetch(wanted, u64::MAX);
                wanted.1
            }
            (AccessMethod::Read, ReadAhead::Linux(state)) if open.is_random => {
                // A window after another, each once the one before is there.
                if !node.has(wanted.0) {
                    node.fetch(state.forced(wanted), FUSE_REQUEST_BYTES);
                }
                node.run(wanted, None)
            }
            (AccessMethod::Read, ReadAhead::Lustre(state)) => {
                node.fetch(wanted, u64::MAX);
                if let Some(ahead) = (!access.begun).then(|| state.request(wanted.0, wanted.1)).flatten() {
                    node.fetch(ahead, u64::MAX);
                }
                wanted.1
            }
            (AccessMethod::Mmap, ReadAhead::Lustre(state)) => {
                // Pages that are there and ask for nothing are touched in one go.
                let mut page = wanted.0;
                loop {
                    let there = node.has(page);
                    let ahead = state.fault(page);
                    page += 1;
                    if !there || ahead.is_some() {
                        node.fetch((page - 1, ahead.map_or(page, |ahead| ahead.1)), u64::MAX);
                        break page;
                    }
                    if page == wanted.1 || !node.has(page) {
                        break page;
                    }
                }
            }
            (AccessMethod::Read, ReadAhead::Linux(state)) => {
                if !node.has(wanted.0) {
                    let window = state.miss(wanted.0, wanted.1 - wanted.0, |max| node.before(wanted.0, max));
                    node.fetch(window, FUSE_REQUEST_BYTES);
                } else if state.marker == Some(wanted.0) {
                    node.fetch(state.next_window(), FUSE_REQUEST_BYTES);
                }
                let end = node.run(wanted, state.marker);
                state.was_read(end - 1);
                end
            }
            (AccessMethod::Mmap, ReadAhead::Linux(state)) => {
                if node.has(wanted.0) {
                    state.hit(1);
                    if state.marker == Some(wanted.0) {
                        node.fetch(state.next_window(), FUSE_REQUEST_BYTES);
                    }
                } else {
                    node.fetch(state.fault(wanted.0), FUSE_REQUEST_BYTES);
                }
                let end = node.run(wanted, state.marker);
                state.hit(end - wanted.0 - 1);
                end
            }
        };
        if access.how != AccessMethod::Direct {
            self.cache.touch(open.file, wanted.0, done);
        }
        access.begun = true;
        let begin = access.at;
        access.at = access.end.min(done * PAGE_BYTES);
        Some(ByteRange { offset: begin, length: access.at - begin })
    }

    /// Asks for bytes that will be needed (`posix_fadvise`): fills `fetches` with requests for
    /// those that are not cached.
    pub fn will_need(&mut self, open: OpenFile, range: ByteRange, fetches: &mut Vec<ByteRange>) {
        fetches.clear();
        let open = &self.opens[open.0 as usize];
        let end = range.offset.saturating_add(range.length).min(open.bytes);
        let pages = (range.offset / PAGE_BYTES, end.div_ceil(PAGE_BYTES));
        let max_bytes = match &open.read_ahead {
            ReadAhead::Lustre(_) => u64::MAX,
            // The kernel fetches no more for one call; the engine makes as many as it takes.
            ReadAhead::Linux(state) => state.most_pages().saturating_mul(PAGE_BYTES).min(FUSE_REQUEST_BYTES),
        };
        let mut node = Fetching { cache: &mut self.cache, file: open.file, bytes: open.bytes, fetches };
        node.fetch(pages, max_bytes);
        self.cache.touch(open.file, pages.0, pages.1);
    }

    /// Drops the pages that lie within a range (`POSIX_FADV_DONTNEED`).
    pub fn wont_need(&mut self, open: OpenFile, range: ByteRange) {
        let open = &self.opens[open.0 as usize];
        let end = range.offset.saturating_add(range.length);
        // The last page of a file need not be full.
        let end = if end >= open.bytes { open.bytes.div_ceil(PAGE_BYTES) } else { end / PAGE_BYTES };
        self.cache.remove(open.file, range.offset.div_ceil(PAGE_BYTES), end);
    }

    /// Empties the cache; open files keep their read-ahead state.
    pub fn drop_caches(&mut self) {
        self.cache.clear();
    }

    /// Size of the cached pages \[B\].
    pub fn cached_bytes(&self) -> u64 {
        self.cache.pages() * PAGE_BYTES
    }
}

/// What one step needs to look pages up and to add requests.
struct Fetching<'a> {
    cache: &'a mut PageCache,
    file: FileId,
    bytes: u64,
    fetches: &'a mut Vec<ByteRange>,
}

impl Fetching<'_> {
    fn has(&self, page: u64) -> bool {
        self.cache.has(self.file, page)
    }

    /// Number of cached pages right before this one, at most `max`.
    fn before(&self, page: u64, max: u64) -> u64 {
        (1..=max.min(page)).take_while(|back| self.has(page - back)).count() as u64
    }

    /// End of the run of cached pages: at least one page, and up to the marker page.
    fn run(&self, wanted: Pages, marker: Option<u64>) -> u64 {
        (wanted.0 + 1..wanted.1).find(|&page| Some(page) == marker || !self.has(page)).unwrap_or(wanted.1)
    }

    /// Requests those of the pages that are not cached.
    fn fetch(&mut self, pages: Pages, max_bytes: u64) {
        let end = pages.1.min(self.bytes.div_ceil(PAGE_BYTES));
        let mut page = pages.0;
        while page < end {
            if self.has(page) {
                page += 1;
                continue;
            }
            let begin = page;
            while page < end && !self.has(page) {
                page += 1;
            }
            self.send(begin * PAGE_BYTES, (page * PAGE_BYTES).min(self.bytes), max_bytes);
            for page in begin..page {
                self.cache.insert(self.file, page);
            }
        }
    }

    /// Adds requests of at most `max_bytes` each.
    fn send(&mut self, begin: u64, end: u64, max_bytes: u64) {
        let mut offset = begin;
        while offset < end {
            let length = (end - offset).min(max_bytes);
            self.fetches.push(ByteRange { offset, length });
            offset += length;
        }
    }
}
