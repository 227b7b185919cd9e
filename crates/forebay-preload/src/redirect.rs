//! What happens at an open, at a `stat` and at a change of a file.

use core::ffi::{CStr, c_int};

use forebay_table::{
    Counter, Found, Identity, LevelState, RecordId, SharedPart, SourceFile, Table, path_hash,
};

use crate::kernel::Kernel;
use crate::stat;

/// Longest path that is looked at for a wish.
const MAX_PATH_BYTES: usize = forebay_table::MAX_WISH_PATH_BYTES;
/// Flags that only make sense for the program's own open.
const OPENING_FLAGS: c_int = libc::O_CREAT | libc::O_EXCL | libc::O_NOCTTY | libc::O_TRUNC;
/// A descriptor of a directory, of no file, or of a new file.
const NO_REGULAR_FILE: c_int = libc::O_PATH | libc::O_DIRECTORY | libc::O_TMPFILE;

/// Whether an open can only read.
pub fn reads(flags: c_int) -> bool {
    flags & libc::O_ACCMODE == libc::O_RDONLY
        && flags & (libc::O_CREAT | libc::O_TRUNC | NO_REGULAR_FILE) == 0
}

/// Whether an open can change a file that exists.
pub fn writes(flags: c_int) -> bool {
    let writes = flags & libc::O_ACCMODE != libc::O_RDONLY || flags & libc::O_TRUNC != 0;
    writes && flags & libc::O_PATH == 0
}

/// The table of this process, and the kernel that it runs on.
pub struct Redirect<'a, K> {
    kernel: &'a K,
    table: &'a Table<'a>,
    shared: &'a SharedPart<'a>,
    process: usize,
}

impl<'a, K: Kernel> Redirect<'a, K> {
    /// `process` is a number that differs between processes.
    pub fn new(kernel: &'a K, table: &'a Table<'a>, shared: &'a SharedPart<'a>, process: usize) -> Self {
        Self { kernel, table, shared, process }
    }

    fn count(&self, counter: Counter) {
        self.shared.count(self.process, counter, 1);
    }

    /// After the program's own open: puts a copy under the descriptor's number, or notes a writer.
    ///
    /// An error is that of the open, and the descriptor is closed: it would write into a copy.
    pub fn opened(&self, fd: c_int, flags: c_int, path: Option<&CStr>) -> Result<(), c_int> {
        if reads(flags) {
            self.opened_for_reading(fd, flags, path);
        } else if writes(flags) {
            return self.opened_for_writing(fd);
        }
        Ok(())
    }

    fn opened_for_reading(&self, fd: c_int, flags: c_int, path: Option<&CStr>) {
        if !self.table.is_current() {
            return;
        }
        let Ok(found) = self.kernel.stat(fd) else { return };
        if !found.is_regular {
            return;
        }
        let identity = &found.identity;
        let reason = match self.table.records().find(identity) {
            Found::Whole(id) => match self.serve(id, identity, fd, flags) {
                Ok(()) => return,
                Err(reason) => reason,
            },
            Found::Stale(_) => Counter::Stale,
            Found::Copying(_) => Counter::Copying,
            Found::Refused(_) => Counter::Refused,
            Found::Changed => Counter::Changed,
            Found::Unknown => Counter::Unknown,
        };
        if matches!(reason, Counter::Stale | Counter::Changed | Counter::Unknown) {
            self.wish(identity, fd, path, reason);
        } else {
            self.count(reason);
        }
    }

    /// Puts the copy of a record under a descriptor's number; an error says why the source stays.
    fn serve(&self, id: RecordId, identity: &Identity, fd: c_int, flags: c_int) -> Result<(), Counter> {
        let (copy, level) = self.open_copy(id, identity.bytes, flags | libc::O_CLOEXEC)?;
        let moved = self.kernel.duplicate(copy, fd, flags & libc::O_CLOEXEC != 0);
        self.kernel.close(copy);
        moved.map_err(|_| Counter::NumberFailed)?;
        self.served(level, identity.bytes);
        Ok(())
    }

    fn served(&self, level: u8, bytes: u64) {
        self.count(Counter::Opened(level));
        self.shared.count(self.process, Counter::OpenedBytes(level), bytes);
    }

    /// Opens the copy of a whole record, and makes sure that it is that copy.
    fn open_copy(&self, id: RecordId, bytes: u64, flags: c_int) -> Result<(c_int, u8), Counter> {
        if self.shared.is_stale(id) {
            return Err(Counter::Stale);
        }
        if flags & libc::O_DIRECT != 0 {
            return Err(Counter::Direct);
        }
        let copy = self.table.records().copy(id).ok_or(Counter::OtherCopy)?;
        if self.table.level_state(copy.level) == LevelState::Out {
            return Err(Counter::LevelOut);
        }
        let path = self.table.path_of(&copy).ok_or(Counter::LevelOut)?;
        let path = CStr::from_bytes_with_nul(path.with_zero()).map_err(|_| Counter::OpenFailed)?;
        let opened = self.kernel.open(path, flags & !OPENING_FLAGS).map_err(|_| Counter::OpenFailed)?;
        let is_copy = self.kernel.stat(opened).is_ok_and(|found| {
            let identity = &found.identity;
            found.is_regular && stat::as_copy(identity) == copy.identity && identity.bytes == bytes
        });
        if is_copy {
            return Ok((opened, copy.level));
        }
        self.kernel.close(opened);
        Err(Counter::OtherCopy)
    }

    /// Tells the daemon of a source without a copy, if it is one.
    fn wish(&self, identity: &Identity, fd: c_int, path: Option<&CStr>, reason: Counter) {
        if !self.table.is_source_device(identity.device) {
            return;
        }
        let is_source = |path: &[u8]| self.table.is_source_path(identity.device, path);
        let mut place = [0; MAX_PATH_BYTES + 1];
        let given = path.map(CStr::to_bytes).filter(|path| path.first() == Some(&b'/') && is_source(path));
        let path = given.or_else(|| {
            let length = self.kernel.path_of(fd, &mut place).ok()?;
            place.get(..length).filter(|path| is_source(path))
        });
        let Some(path) = path else { return };
        self.count(reason);
        let written = self.shared.wishes().push(identity.device, identity.inode, identity.bytes, path);
        self.count(if written { Counter::Wishes } else { Counter::LostWishes });
    }

    fn opened_for_writing(&self, fd: c_int) -> Result<(), c_int> {
        let Ok(found) = self.kernel.stat(fd) else { return Ok(()) };
        if !found.is_regular {
            return Ok(());
        }
        let identity = &found.identity;
        self.mark(self.table.records().of_file(identity.device, identity.inode));
        // `/proc/self/fd/N` of a descriptor that has a copy names the copy.
        let mut copies = self.table.records().of_copy(identity.device, identity.inode);
        if !copies.any(|id| self.is_known_copy(id, identity)) {
            return Ok(());
        }
        self.mark(self.table.records().of_copy(identity.device, identity.inode));
        self.count(Counter::RefusedChanges);
        self.kernel.close(fd);
        Err(libc::EROFS)
    }

    /// Whether a file is the copy of a record; a write may have changed its size and times.
    fn is_known_copy(&self, id: RecordId, identity: &Identity) -> bool {
        let Some(copy) = self.table.records().copy(id) else { return false };
        let Some(path) = self.table.path_of(&copy) else { return false };
        let path = CStr::from_bytes_with_nul(path.with_zero());
        path.is_ok_and(|path| {
            self.kernel.stat_path(path).is_ok_and(|found| {
                (found.identity.device, found.identity.inode) == (identity.device, identity.inode)
            })
        })
    }

    fn mark(&self, records: impl Iterator<Item = RecordId>) {
        let mut known = false;
        for id in records {
            known = true;
            self.shared.mark_stale(id);
        }
        if known {
            self.count(Counter::Writes);
        }
    }

    /// Notes that a file was changed by its path.
    pub fn changed(&self, path: &CStr) {
        if let Ok(found) = self.kernel.stat_path(path) {
            self.mark(self.table.records().of_file(found.identity.device, found.identity.inode));
        }
    }

    /// Notes that a path names something else now, where programs look paths up.
    pub fn renamed(&self, path: &CStr) {
        if let Some(hash) = self.frozen_hash(path) {
            self.mark(self.table.records().of_path(hash));
        }
    }

    /// Whether a descriptor is that of a copy, so that a change through it must fail.
    pub fn is_copy(&self, fd: c_int) -> bool {
        let is_copy = self
            .kernel
            .stat(fd)
            .is_ok_and(|found| found.is_regular && self.source_of(&found.identity).is_some());
        if is_copy {
            self.count(Counter::RefusedChanges);
        }
        is_copy
    }

    fn source_of(&self, identity: &Identity) -> Option<SourceFile> {
        self.table.records().source_of(&stat::as_copy(identity), identity.bytes)
    }

    /// Shows the source in a result of `stat` that shows its copy.
    pub fn translate(&self, found: &mut libc::stat) {
        if !stat::is_regular(found.st_mode) {
            return;
        }
        if let Some(source) = self.source_of(&stat::identity(found)) {
            stat::show(&source, found);
            self.count(Counter::Stats);
        }
    }

    /// The same for `statx`.
    pub fn translate_statx(&self, found: &mut libc::statx) {
        let Some(identity) = stat::identity_of_statx(found) else { return };
        if let Some(source) = self.source_of(&identity) {
            stat::show_in_statx(&source, found);
            self.count(Counter::Stats);
        }
    }

    /// The hash of an absolute path, where the sources are frozen.
    fn frozen_hash(&self, path: &CStr) -> Option<u128> {
        let path = path.to_bytes();
        (self.table.flags().frozen && path.first() == Some(&b'/')).then(|| path_hash(path))
    }

    /// The whole record of a path, where the sources are frozen.
    fn frozen_record(&self, path: &CStr) -> Option<RecordId> {
        let hash = self.frozen_hash(path).filter(|_| self.table.is_current())?;
        self.table.records().find_path(hash).filter(|id| !self.shared.is_stale(*id))
    }

    /// Opens the copy of a frozen source in place of the source.
    pub fn open_frozen(&self, path: &CStr, flags: c_int) -> Option<c_int> {
        if !reads(flags) {
            return None;
        }
        let id = self.frozen_record(path)?;
        let bytes = self.table.records().source(id)?.identity.bytes;
        let (copy, level) = self.open_copy(id, bytes, flags).ok()?;
        self.served(level, bytes);
        self.count(Counter::Frozen);
        Some(copy)
    }

    /// What `stat` says of a frozen source.
    pub fn stat_frozen(&self, path: &CStr) -> Option<SourceFile> {
        let id = self.frozen_record(path)?;
        let source = self.table.records().source(id)?;
        self.count(Counter::Stats);
        Some(source)
    }
}
