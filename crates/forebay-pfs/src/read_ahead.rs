//! What a client asks for beyond what the program asks for.
//!
//! Two sets of rules, each a state per open file. They say which pages to fetch when a page is touched; pages that are there are left out
//! by the caller.
//!
//! **Lustre** (2.6, the base of FEFS; llite/rw.c). `read()`: from the second sequential request on, a window that begins at the
//! aligned MiB of the request and grows by 1 MiB per request, up to the cap. Page faults: from the fourth consecutive page on, to the
//! end of the aligned window that the page lies in. Whoever jumps by more than 8 pages begins anew. Demanded page and read-ahead go out
//! together. Left out: strided read-ahead, and the reading of whole files of up to 2 MiB at their second request.
//!
//! **Linux** (mm/readahead.c and mm/filemap.c as of 6.18), which is what the page cache of a FUSE mount does. `read()`: sequential misses
//! open a window, a marker page in it asks for the next one, twice or four times as large. Page faults: a window around the page, unless
//! more than 100 faults missed. Of several markers only the latest is remembered.

/// A range of pages `[first, end)`.
pub(crate) type Pages = (u64, u64);

/// Pages that Lustre still takes for sequential, in either direction.
const LUSTRE_NEAR_PAGES: u64 = 8;

/// By how much Lustre's window grows, and what it is aligned to: 1 MiB.
const LUSTRE_STEP_PAGES: u64 = 256;

/// Consecutive pages after which Lustre reads ahead of page faults.
const LUSTRE_MAPPED_PAGES: u64 = 4;

/// Misses after which Linux no longer reads around a fault (`MMAP_LOTSAMISS`), and ten times which it no longer counts.
const LINUX_MISSES: u64 = 100;

/// Lustre's state of one open file.
#[derive(Clone, Debug)]
pub(crate) struct Lustre {
    most_pages: u64,
    mapped_pages: u64,
    last: u64,
    requests: u64,
    consecutive: u64,
    window_pages: u64,
    next: u64,
}

impl Lustre {
    pub(crate) fn new(most_pages: u64, mapped_pages: u64) -> Lustre {
        Lustre { most_pages, mapped_pages, last: 0, requests: 0, consecutive: 0, window_pages: 0, next: 0 }
    }

    /// A `read()` begins; answers what to read ahead of it.
    pub(crate) fn request(&mut self, first: u64, end: u64) -> Option<Pages> {
        if first.abs_diff(self.last) > LUSTRE_NEAR_PAGES {
            self.requests = 0;
            self.window_pages = 0;
            self.next = 0;
        } else {
            self.requests += 1;
            if self.requests > 1 {
                self.window_pages = (self.window_pages + LUSTRE_STEP_PAGES).min(self.most_pages);
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

    /// A page of a mapping is touched; answers what to read ahead of it.
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

/// The Linux page cache's state of one open file (`struct file_ra_state`).
#[derive(Clone, Debug, Default)]
pub(crate) struct Linux {
    most_pages: u64,
    begin: u64,
    size: u64,
    ahead: u64,
    misses: u64,
    /// The last page that a `read()` used.
    last: Option<u64>,
    /// The page whose use asks for the next window.
    pub(crate) marker: Option<u64>,
}

impl Linux {
    pub(crate) fn new(most_pages: u64) -> Linux {
        Linux { most_pages, ..Linux::default() }
    }

    /// Pages up to `page` were used by a `read()`.
    pub(crate) fn used(&mut self, page: u64) {
        self.last = Some(page);
    }

    /// A `read()` that still wants `wanted` pages misses one; `before` counts the pages there are right before it (up to the window).
    pub(crate) fn miss(&mut self, page: u64, wanted: u64, before: impl FnOnce(u64) -> u64) -> Pages {
        let most = self.most_pages;
        if most == 0 {
            return (page, page + wanted);
        }
        let sequential = self.last.is_some_and(|last| page.wrapping_sub(last) <= 1);
        if page == 0 || wanted > most || sequential {
            self.begin = page;
            self.size = first_window(wanted, most);
            self.ahead = if self.size > wanted { self.size - wanted } else { self.size / 2 };
            return self.window();
        }
        let mut history = before(most);
        if history <= wanted {
            return (page, page + wanted);
        }
        if history == page {
            history *= 2;
        }
        self.begin = page;
        self.size = (history + wanted).min(most);
        self.ahead = 1;
        self.window()
    }

    /// The marker page is used.
    pub(crate) fn marked(&mut self) -> Pages {
        self.begin += self.size;
        self.size = next_window(self.size, self.most_pages);
        self.ahead = self.size;
        self.window()
    }

    /// A page fault misses.
    pub(crate) fn fault(&mut self, page: u64) -> Pages {
        self.misses = (self.misses + 1).min(LINUX_MISSES * 10);
        if self.misses > LINUX_MISSES || self.most_pages == 0 {
            return (page, page + 1);
        }
        self.begin = page.saturating_sub(self.most_pages / 2);
        self.size = self.most_pages;
        self.ahead = self.most_pages / 4;
        self.window()
    }

    /// So many pages of a mapping were there when they were touched.
    pub(crate) fn found(&mut self, pages: u64) {
        self.misses = self.misses.saturating_sub(pages);
    }

    fn window(&mut self) -> Pages {
        let end = self.begin + self.size;
        self.marker = (self.ahead > 0).then_some(end - self.ahead);
        (self.begin, end)
    }
}

/// The first window of a stream whose first request has so many pages.
fn first_window(wanted: u64, most: u64) -> u64 {
    let size = wanted.next_power_of_two();
    if size <= most / 32 {
        size * 4
    } else if size <= most / 4 {
        size * 2
    } else {
        most
    }
}

/// The window after one of this size.
fn next_window(size: u64, most: u64) -> u64 {
    if size < most / 16 {
        size * 4
    } else if size <= most / 2 {
        size * 2
    } else {
        most
    }
}
