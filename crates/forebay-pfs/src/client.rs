//! One node: turns what its programs touch into requests.
//!
//! A node has one page cache and, per open file, a state of read-ahead (`read_ahead`). A program's access goes forward step by step:
//! [`Client::proceed`] says what to fetch now and what to wait for before the next step, so that somebody with a clock (`virtual_time`)
//! can let other programs of the node do things meanwhile. A page counts as there from the moment it is asked for; who comes later waits
//! for the same request.
use serde::{Deserialize, Serialize};

use crate::model::FileId;
use crate::page_cache::PageCache;
use crate::read_ahead::{Linux, Lustre, Pages};
use crate::spec::{PAGE_BYTES, Spec};

/// The most that Linux puts into one request of a FUSE mount \[B\]: 256 pages.
const FUSE_REQUEST_BYTES: u64 = 1 << 20;

/// Whose rules decide what is read ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rules {
    /// Those of a Lustre client, with the windows of the specification.
    #[default]
    Lustre,
    /// Those of the Linux page cache, as on a FUSE mount with this `read_ahead_kb` (in bytes).
    Linux {
        /// The largest window \[B\].
        read_ahead_bytes: u64,
    },
}

/// How a program touches a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum How {
    /// `read()` or `pread()` through the page cache.
    Read,
    /// Loads from a mapping, page after page.
    Mmap,
    /// The same under `MADV_RANDOM`: no read-ahead.
    MmapRandom,
    /// `O_DIRECT`: past the page cache.
    Direct,
}

/// A file that one program has open on one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct OpenFile(u32);

/// Bytes of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// Where they begin \[B\].
    pub offset: u64,
    /// How many \[B\].
    pub length: u64,
}

/// One access of a program, and how far it has got.
#[derive(Clone, Debug)]
pub struct Access {
    open: OpenFile,
    at: u64,
    end: u64,
    how: How,
    begun: bool,
}

/// One node's page cache and open files.
#[derive(Debug)]
pub struct Client {
    rules: Rules,
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
}

#[derive(Debug)]
enum ReadAhead {
    Lustre(Lustre),
    Linux(Linux),
}

impl Client {
    /// A node with an empty cache.
    pub fn new(spec: &Spec, rules: Rules) -> Client {
        Client {
            rules,
            read_ahead_pages: spec.read_ahead_bytes / PAGE_BYTES,
            read_ahead_mmap_pages: spec.read_ahead_mmap_bytes / PAGE_BYTES,
            cache: PageCache::new(spec.cache_bytes.map_or(u64::MAX, |bytes| bytes / PAGE_BYTES)),
            opens: Vec::new(),
        }
    }

    /// Opens a file of this size; each program that opens it has its own state of read-ahead.
    pub fn open(&mut self, file: FileId, bytes: u64) -> OpenFile {
        let read_ahead = match self.rules {
            Rules::Lustre => {
                ReadAhead::Lustre(Lustre::new(self.read_ahead_pages, self.read_ahead_mmap_pages))
            }
            Rules::Linux { read_ahead_bytes } => ReadAhead::Linux(Linux::new(read_ahead_bytes / PAGE_BYTES)),
        };
        self.opens.push(Open { file, bytes, read_ahead });
        OpenFile(self.opens.len() as u32 - 1)
    }

    /// Begins an access; what lies behind the end of the file is left out.
    pub fn access(&self, open: OpenFile, offset: u64, length: u64, how: How) -> Access {
        let end = offset.saturating_add(length).min(self.opens[open.0 as usize].bytes);
        Access { open, at: offset, end, how, begun: false }
    }

    /// Takes an access one step further: fills `fetches` with what to ask the servers for now, and answers what must have arrived
    /// before the next step; nothing when the access is done.
    pub fn proceed(&mut self, access: &mut Access, fetches: &mut Vec<Range>) -> Option<Range> {
        fetches.clear();
        if access.at >= access.end {
            return None;
        }
        let open = &mut self.opens[access.open.0 as usize];
        let wanted: Pages = (access.at / PAGE_BYTES, access.end.div_ceil(PAGE_BYTES));
        let mut node = Fetching { cache: &mut self.cache, file: open.file, bytes: open.bytes, fetches };
        let done = match (access.how, &mut open.read_ahead) {
            (How::Direct, read_ahead) => {
                let most =
                    if matches!(read_ahead, ReadAhead::Linux(_)) { FUSE_REQUEST_BYTES } else { u64::MAX };
                node.send(access.at, access.end, most);
                wanted.1
            }
            (How::MmapRandom, _) => {
                node.fetch((wanted.0, wanted.0 + 1), u64::MAX);
                wanted.0 + 1
            }
            (How::Read, ReadAhead::Lustre(state)) => {
                node.fetch(wanted, u64::MAX);
                if let Some(ahead) = (!access.begun).then(|| state.request(wanted.0, wanted.1)).flatten() {
                    node.fetch(ahead, u64::MAX);
                }
                wanted.1
            }
            (How::Mmap, ReadAhead::Lustre(state)) => {
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
            (How::Read, ReadAhead::Linux(state)) => {
                if !node.has(wanted.0) {
                    let window =
                        state.miss(wanted.0, wanted.1 - wanted.0, |most| node.before(wanted.0, most));
                    node.fetch(window, FUSE_REQUEST_BYTES);
                } else if state.marker == Some(wanted.0) {
                    node.fetch(state.marked(), FUSE_REQUEST_BYTES);
                }
                let end = node.run(wanted, state.marker);
                state.used(end - 1);
                end
            }
            (How::Mmap, ReadAhead::Linux(state)) => {
                if node.has(wanted.0) {
                    state.found(1);
                    if state.marker == Some(wanted.0) {
                        node.fetch(state.marked(), FUSE_REQUEST_BYTES);
                    }
                } else {
                    node.fetch(state.fault(wanted.0), FUSE_REQUEST_BYTES);
                }
                let end = node.run(wanted, state.marker);
                state.found(end - wanted.0 - 1);
                end
            }
        };
        if access.how != How::Direct {
            self.cache.touch(open.file, wanted.0, done);
        }
        access.begun = true;
        let begin = access.at;
        access.at = access.end.min(done * PAGE_BYTES);
        Some(Range { offset: begin, length: access.at - begin })
    }

    /// Drops the cache; open files keep their state of read-ahead.
    pub fn drop_caches(&mut self) {
        self.cache.clear();
    }

    /// What the node keeps \[B\].
    pub fn cached_bytes(&self) -> u64 {
        self.cache.pages() * PAGE_BYTES
    }
}

/// Where one step looks pages up and writes requests down.
struct Fetching<'a> {
    cache: &'a mut PageCache,
    file: FileId,
    bytes: u64,
    fetches: &'a mut Vec<Range>,
}

impl Fetching<'_> {
    fn has(&self, page: u64) -> bool {
        self.cache.has(self.file, page)
    }

    /// How many pages there are right before this one, counting no further than `most`.
    fn before(&self, page: u64, most: u64) -> u64 {
        (1..=most.min(page)).take_while(|back| self.has(page - back)).count() as u64
    }

    /// Where a run of pages that are there ends; it has at least one, and does not enter the marker page.
    fn run(&self, wanted: Pages, marker: Option<u64>) -> u64 {
        (wanted.0 + 1..wanted.1).find(|&page| Some(page) == marker || !self.has(page)).unwrap_or(wanted.1)
    }

    /// Asks for what of these pages is not there.
    fn fetch(&mut self, pages: Pages, most_bytes: u64) {
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
            self.send(begin * PAGE_BYTES, (page * PAGE_BYTES).min(self.bytes), most_bytes);
            for page in begin..page {
                self.cache.insert(self.file, page);
            }
        }
    }

    /// Writes requests down, none larger than `most_bytes`.
    fn send(&mut self, begin: u64, end: u64, most_bytes: u64) {
        let mut offset = begin;
        while offset < end {
            let length = (end - offset).min(most_bytes);
            self.fetches.push(Range { offset, length });
            offset += length;
        }
    }
}
