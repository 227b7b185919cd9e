//! Read-ahead: which pages a client fetches beyond those that the program accesses.
//!
//! Two algorithms, each with a state per open file. They return the pages to fetch; the caller
//! skips cached pages.
//!
//! **Lustre** (2.6, the base of FEFS; llite/rw.c):
//!
//! - `read()`: from the second sequential request on, a window that begins at the aligned MiB of
//!   the request and grows by 1 MiB per request, up to a maximum.
//! - Page faults: from the fourth consecutive page on, to the end of the aligned window that holds
//!   the page.
//! - A jump of more than 8 pages resets the state. The accessed page and the read-ahead are
//!   requested together.
//! - Not modelled: strided read-ahead, and reading a file of up to 2 MiB whole at its second
//!   request.
//!
//! **Linux** (mm/readahead.c and mm/filemap.c as of 6.18), the page cache of a FUSE mount:
//!
//! - `read()`: sequential misses open a window. Access to its marker page fetches the next window,
//!   two or four times as large.
//! - `read()` under `POSIX_FADV_RANDOM`: what it asks for, one window after another.
//! - Page faults: a window around the page, unless more than 100 faults missed.
//! - Of several markers only the latest is kept.

/// A range of pages `[first, end)`.
pub(crate) type Pages = (u64, u64);

/// The largest distance, in either direction, that Lustre treats as sequential \[pages\].
const LUSTRE_NEAR_PAGES: u64 = 8;

/// Growth and alignment of Lustre's window: 1 MiB \[pages\].
const LUSTRE_STEP_PAGES: u64 = 256;

/// Consecutive page faults after which Lustre reads ahead.
const LUSTRE_MAPPED_PAGES: u64 = 4;

/// Misses after which Linux no longer reads around a fault (`MMAP_LOTSAMISS`); it counts at most
/// ten times as many.
const LINUX_MISSES: u64 = 100;

/// Lustre's state of one open file.
#[derive(Clone, Debug)]
pub(crate) struct Lustre {
    max_pages: u64,
    mapped_pages: u64,
    last: u64,
    requests: u64,
    consecutive: u64,
    window_pages: u64,
    next: u64,
}

impl Lustre {
    pub(crate) fn new(max_pages: u64, mapped_pages: u64) -> Lustre {
        Lustre { max_pages, mapped_pages, last: 0, requests: 0, consecutive: 0, window_pages: 0, next: 0 }
    }

    /// A `read()` of pages `[first, end)` begins: returns the pages to read ahead.
    pub(crate) fn request(&mut self, first: u64, end: u64) -> Option<Pages> {
        if first.abs_diff(self.last) > LUSTRE_NEAR_PAGES {
            self.requests = 0;
            self.window_pages = 0;
            self.next = 0;
        } else {
            self.requests += 1;
            if self.requests > 1 {
                self.window_pages = (self.window_pages + LUSTRE_STEP_PAGES).min(self.max_pages);
            }
        }
        self.last = end - 1;
        let begin = first - first % LUSTRE_STEP_PAGES;
        let ahead = (end.max(self.next), begin + self.window_pages);
        (self.window_pages > 0 && ahead.0 < ahead.1).then(|| {
            self.next = ahead.1;
            ahead
        })
    }

    /// A mapped page is accessed: returns the pages to read ahead.
    pub(crate) fn fault(&mut self, page: u64) -> Option<Pages> {
        if self.consecutive == 0 || page.abs_diff(self.last) > LUSTRE_NEAR_PAGES {
            self.consecutive = 0;
            self.next = 0;
        }
        self.last = page;
        self.consecutive += 1;
        if self.consecutive < LUSTRE_MAPPED_PAGES || self.mapped_pages == 0 {
            return None;
        }
        let end = page - page % self.mapped_pages + self.mapped_pages;
        let begin = (page + 1).max(self.next);
        (begin < end).then(|| {
            self.next = end;
            (begin, end)
        })
    }
}

/// Linux's state of one open file (`struct file_ra_state`).
#[derive(Clone, Debug, Default)]
pub(crate) struct Linux {
    max_pages: u64,
    begin: u64,
    size: u64,
    ahead: u64,
    misses: u64,
    /// The last page that a `read()` used.
    last: Option<u64>,
    /// The page whose access fetches the next window.
    pub(crate) marker: Option<u64>,
}

impl Linux {
    pub(crate) fn new(max_pages: u64) -> Linux {
        Linux { max_pages, ..Linux::default() }
    }

    /// A `read()` has read the pages up to `page`.
    pub(crate) fn was_read(&mut self, page: u64) {
        self.last = Some(page);
    }

    /// A `read()` that still needs `wanted` pages misses `page`: returns the pages to fetch.
    ///
    /// `before` counts the cached pages right before it, up to its argument.
    pub(crate) fn miss(&mut self, page: u64, wanted: u64, before: impl FnOnce(u64) -> u64) -> Pages {
        let max = self.max_pages;
        if max == 0 {
            return (page, page + wanted);
        }
        let sequential = self.last.is_some_and(|last| page.wrapping_sub(last) <= 1);
        if page == 0 || wanted > max || sequential {
            self.begin = page;
            self.size = first_window_pages(wanted, max);
            self.ahead = if self.size > wanted { self.size - wanted } else { self.size / 2 };
            return self.window();
        }
        let mut history = before(max);
        if history <= wanted {
            return (page, page + wanted);
        }
        if history == page {
            history *= 2;
        }
        self.begin = page;
        self.size = (history + wanted).min(max);
        self.ahead = 1;
        self.window()
    }

    /// A `read()` without read-ahead misses the first of its pages: returns the pages to fetch.
    pub(crate) fn forced(&self, wanted: Pages) -> Pages {
        (wanted.0, wanted.1.min(wanted.0.saturating_add(self.most_pages())))
    }

    /// Most pages that are fetched at once without read-ahead, and for one announcement
    /// (`POSIX_FADV_WILLNEED`); a window of 0 does not limit them.
    pub(crate) fn most_pages(&self) -> u64 {
        if self.max_pages == 0 { u64::MAX } else { self.max_pages }
    }

    /// The marker page is accessed: returns the next window.
    pub(crate) fn next_window(&mut self) -> Pages {
        self.begin += self.size;
        self.size = next_window_pages(self.size, self.max_pages);
        self.ahead = self.size;
        self.window()
    }

    /// A page fault misses: returns the pages to fetch.
    pub(crate) fn fault(&mut self, page: u64) -> Pages {
        self.misses = (self.misses + 1).min(LINUX_MISSES * 10);
        if self.misses > LINUX_MISSES || self.max_pages == 0 {
            return (page, page + 1);
        }
        self.begin = page.saturating_sub(self.max_pages / 2);
        self.size = self.max_pages;
        self.ahead = self.max_pages / 4;
        self.window()
    }

    /// `pages` page faults found their page in the cache.
    pub(crate) fn hit(&mut self, pages: u64) {
        self.misses = self.misses.saturating_sub(pages);
    }

    fn window(&mut self) -> Pages {
        let end = self.begin + self.size;
        self.marker = (self.ahead > 0).then_some(end - self.ahead);
        (self.begin, end)
    }
}

/// The first window of a stream whose first request has `wanted` pages.
fn first_window_pages(wanted: u64, max: u64) -> u64 {
    let size = wanted.next_power_of_two();
    if size <= max / 32 {
        size * 4
    } else if size <= max / 4 {
        size * 2
    } else {
        max
    }
}

/// The window after one of `size` pages.
fn next_window_pages(size: u64, max: u64) -> u64 {
    if size < max / 16 {
        size * 4
    } else if size <= max / 2 {
        size * 2
    } else {
        max
    }
}
