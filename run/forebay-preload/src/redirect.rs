//! What happens at an open, at a `stat` and at a change of a file.

use core::ffi::{CStr, c_int};

use forebay_table::{
    CopyStatus, Identity, RecordId, ServingState, SharedPart, SourceFile, Table, TableCounter, path_hash,
};

use crate::kernel::{FileStat, Kernel};
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

    fn count(&self, counter: TableCounter) {
        self.shared.count(self.process, counter, 1);
    }

    /// After the program's own open: puts a copy under the descriptor's number, or notes a writer.
    ///
    /// An error is that of the open; the caller closes the descriptor, which would write into a
    /// copy.
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
            // The daemon is gone, or no further table could be mapped.
            if path.is_some_and(|path| self.table.is_below_source(path.to_bytes())) {
                self.count(TableCounter::Retired);
            }
            return;
        }
        let Ok(found) = self.kernel.stat(fd) else { return };
        if !found.is_regular {
            return;
        }
        let identity = &found.identity;
        let reason = match self.table.records().find(identity) {
            CopyStatus::Whole(id) => match self.serve(id, identity, fd, flags) {
                Ok(()) => return,
                Err(reason) => reason,
            },
            CopyStatus::Stale(_) => TableCounter::Stale,
            CopyStatus::Copying(_) => TableCounter::Copying,
            CopyStatus::Refused(_) => TableCounter::Refused,
            CopyStatus::Changed => TableCounter::Changed,
            CopyStatus::Unknown => TableCounter::Unknown,
        };
        if matches!(reason, TableCounter::Stale | TableCounter::Changed | TableCounter::Unknown) {
            self.wish(identity, fd, path, reason);
        } else {
            self.count(reason);
        }
    }

    /// Puts the copy of a record under a descriptor's number; an error says why the source stays.
    fn serve(&self, id: RecordId, identity: &Identity, fd: c_int, flags: c_int) -> Result<(), TableCounter> {
        let (copy, level) = self.open_copy(id, identity.bytes, flags | libc::O_CLOEXEC)?;
        let moved = self.kernel.duplicate(copy, fd, flags & libc::O_CLOEXEC != 0);
        self.kernel.close(copy);
        moved.map_err(|_| TableCounter::NumberFailed)?;
        self.served(level, identity.bytes);
        Ok(())
    }

    fn served(&self, level: u8, bytes: u64) {
        self.count(TableCounter::Opened(level));
        self.shared.count(self.process, TableCounter::OpenedBytes(level), bytes);
    }

    /// Opens the copy of a whole record, and makes sure that it is that copy.
    fn open_copy(&self, id: RecordId, bytes: u64, flags: c_int) -> Result<(c_int, u8), TableCounter> {
        if self.shared.is_stale(id) {
            return Err(TableCounter::Stale);
        }
        if flags & libc::O_DIRECT != 0 {
            return Err(TableCounter::Direct);
        }
        let copy = self.table.records().copy(id).ok_or(TableCounter::OtherCopy)?;
        if self.table.level_state(copy.level) == ServingState::Out {
            return Err(TableCounter::LevelOut);
        }
        let path = self.table.path_of(&copy).ok_or(TableCounter::LevelOut)?;
        let path = CStr::from_bytes_with_nul(path.with_zero()).map_err(|_| TableCounter::OpenFailed)?;
        let opened = self.kernel.open(path, flags & !OPENING_FLAGS).map_err(|_| TableCounter::OpenFailed)?;
        let is_copy = self.kernel.stat(opened).is_ok_and(|found| {
            let identity = &found.identity;
            found.is_regular && stat::as_copy(identity) == copy.identity && identity.bytes == bytes
        });
        if is_copy {
            return Ok((opened, copy.level));
        }
        self.kernel.close(opened);
        Err(TableCounter::OtherCopy)
    }

    /// Tells the daemon of a source without a copy, if it is one.
    fn wish(&self, identity: &Identity, fd: c_int, path: Option<&CStr>, reason: TableCounter) {
        let is_source = |path: &[u8]| self.table.is_source_path(identity.device, path);
        let mut place = [0; MAX_PATH_BYTES + 1];
        // Other file systems may be mounted below a source; `..` may lead out of it.
        let is_plain = |path: &&[u8]| {
            path.first() == Some(&b'/') && !path.split(|byte| *byte == b'/').any(|part| part == b"..")
        };
        let path = path.map(CStr::to_bytes).filter(is_plain).filter(|path| self.table.is_below_source(path));
        let path = if let Some(path) = path {
            path
        } else {
            if !self.table.is_source_device(identity.device) {
                return;
            }
            // The kernel takes longer for the path than for the open: each file is asked once.
            if self.shared.is_foreign(identity) {
                return;
            }
            let Ok(length) = self.kernel.path_of(fd, &mut place) else { return };
            let Some(path) = place.get(..length).filter(|path| is_source(path)) else {
                return self.shared.remember_foreign(identity);
            };
            path
        };
        self.count(reason);
        let written = self.shared.wishes().push(identity.device, identity.inode, identity.bytes, path);
        self.count(if written { TableCounter::Wishes } else { TableCounter::LostWishes });
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
        self.count(TableCounter::RefusedChanges);
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
            self.count(TableCounter::Writes);
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

    /// Whether a file that a program wants to change is a copy, so that this must fail.
    pub fn refuses_change(&self, found: &FileStat) -> bool {
        let identity = &found.identity;
        let of_copy = || self.table.records().of_copy(identity.device, identity.inode);
        let is_copy = found.is_regular
            && (self.source_of(identity, found.is_deleted).is_some()
                || of_copy().any(|id| self.is_known_copy(id, identity)));
        if is_copy {
            self.count(TableCounter::RefusedChanges);
        }
        is_copy
    }

    fn source_of(&self, identity: &Identity, is_deleted: bool) -> Option<SourceFile> {
        let (records, copy) = (self.table.records(), stat::as_copy(identity));
        if is_deleted {
            records.source_of_deleted(&copy, identity.bytes)
        } else {
            records.source_of(&copy, identity.bytes)
        }
    }

    /// Shows the source in a result of `stat`, if that shows a copy of this table.
    pub fn translate(&self, found: &mut libc::stat) -> bool {
        let is_deleted = found.st_nlink == 0;
        let source = stat::is_regular(found.st_mode)
            .then(|| self.source_of(&stat::identity(found), is_deleted))
            .flatten();
        if let Some(source) = &source {
            stat::show(source, found);
            self.count(TableCounter::Stats);
        }
        source.is_some()
    }

    /// The same for `statx`.
    pub fn translate_statx(&self, found: &mut libc::statx) -> bool {
        let is_deleted = found.stx_mask & libc::STATX_NLINK != 0 && found.stx_nlink == 0;
        let source =
            stat::identity_of_statx(found).and_then(|identity| self.source_of(&identity, is_deleted));
        if let Some(source) = &source {
            stat::show_in_statx(source, found);
            self.count(TableCounter::Stats);
        }
        source.is_some()
    }

    /// Whether the sources do not change.
    pub fn is_frozen(&self) -> bool {
        self.table.flags().frozen
    }

    /// The hash of an absolute path, where the sources are frozen.
    fn frozen_hash(&self, path: &CStr) -> Option<u128> {
        let path = path.to_bytes();
        (self.is_frozen() && path.first() == Some(&b'/')).then(|| path_hash(path))
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
        self.count(TableCounter::Frozen);
        Some(copy)
    }

    /// What `stat` says of a frozen source.
    pub fn stat_frozen(&self, path: &CStr) -> Option<SourceFile> {
        let id = self.frozen_record(path)?;
        let source = self.table.records().source(id)?;
        self.count(TableCounter::Stats);
        Some(source)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};
    use std::collections::BTreeMap;
    use std::ffi::CString;
    use std::sync::atomic::AtomicU64;

    use forebay_table::{
        CopyFile, CopyIdentity, Flags, Layout, Next, RecordState, Settings, SourcePrefix, TableWriter,
        WORD_BYTES,
    };

    use super::*;
    use crate::kernel::{FileStat, Result};

    const SOURCE: &CStr = c"/data/a";
    const COPY: &str = "/scratch/v1/files/0000000000000007";
    /// The descriptor that the program's own open returned.
    const FD: c_int = 3;
    const SOURCE_DEVICE: u64 = 10;

    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    enum Call {
        Stat,
        StatPath,
        Open,
        Duplicate,
        PathOf,
    }

    /// Files by path, open descriptors, and a call that fails.
    #[derive(Default)]
    struct FakeKernel {
        files: RefCell<BTreeMap<String, FileStat>>,
        open: RefCell<BTreeMap<c_int, (String, c_int)>>,
        close_on_exec: Cell<bool>,
        calls: RefCell<Vec<Call>>,
        /// The call, which one of its kind, and its error.
        fails: Cell<Option<(Call, usize, c_int)>>,
    }

    impl FakeKernel {
        fn enter(&self, call: Call) -> Result<()> {
            self.calls.borrow_mut().push(call);
            let before = self.calls.borrow().iter().filter(|other| **other == call).count() - 1;
            match self.fails.get() {
                Some((failing, number, error)) if (failing, number) == (call, before) => Err(error),
                _ => Ok(()),
            }
        }

        fn opened(&self, fd: c_int) -> Option<String> {
            self.open.borrow().get(&fd).map(|file| file.0.clone())
        }
    }

    impl Kernel for FakeKernel {
        fn stat(&self, fd: c_int) -> Result<FileStat> {
            self.enter(Call::Stat)?;
            let path = self.opened(fd).ok_or(libc::EBADF)?;
            self.files.borrow().get(&path).copied().ok_or(libc::EIO)
        }

        fn stat_path(&self, path: &CStr) -> Result<FileStat> {
            self.enter(Call::StatPath)?;
            self.files.borrow().get(path.to_str().unwrap()).copied().ok_or(libc::ENOENT)
        }

        fn open(&self, path: &CStr, flags: c_int) -> Result<c_int> {
            self.enter(Call::Open)?;
            let path = path.to_str().unwrap().to_owned();
            if !self.files.borrow().contains_key(&path) {
                return Err(libc::ENOENT);
            }
            let mut open = self.open.borrow_mut();
            let fd = (3..c_int::MAX).find(|fd| !open.contains_key(fd)).unwrap();
            open.insert(fd, (path, flags));
            Ok(fd)
        }

        fn duplicate(&self, from: c_int, to: c_int, close_on_exec: bool) -> Result<()> {
            self.enter(Call::Duplicate)?;
            let file = self.open.borrow()[&from].clone();
            self.open.borrow_mut().insert(to, file);
            self.close_on_exec.set(close_on_exec);
            Ok(())
        }

        fn close(&self, fd: c_int) {
            assert!(self.open.borrow_mut().remove(&fd).is_some(), "descriptor {fd} is not open");
        }

        fn path_of(&self, fd: c_int, into: &mut [u8]) -> Result<usize> {
            self.enter(Call::PathOf)?;
            let path = self.opened(fd).ok_or(libc::ENOENT)?;
            let length = path.len().min(into.len());
            into[..length].copy_from_slice(&path.as_bytes()[..length]);
            Ok(length)
        }
    }

    fn source() -> SourceFile {
        let identity = Identity {
            device: SOURCE_DEVICE,
            inode: 11,
            bytes: 12,
            modified_ns: 13_000_000_014,
            changed_ns: -1,
        };
        SourceFile {
            identity,
            born_ns: Some(15),
            mode: libc::S_IFREG | 0o444,
            user: 16,
            group: 17,
            links: 18,
            blocks: 19,
            block_bytes: 20 * 512,
        }
    }

    fn copy() -> Identity {
        Identity { device: 21, inode: 22, bytes: 12, modified_ns: 23, changed_ns: 24 }
    }

    /// A table with one source that has a copy, and a kernel on which a program has just opened it.
    struct Scene {
        words: Vec<AtomicU64>,
        layout: Layout,
        kernel: FakeKernel,
    }

    impl Scene {
        fn with(flags: Flags, change: impl FnOnce(&mut TableWriter<'_>, RecordId)) -> Self {
            let layout = Layout::new(4, 4).unwrap();
            let words: Vec<AtomicU64> = (0..layout.bytes() / WORD_BYTES).map(|_| AtomicU64::new(0)).collect();
            let settings = Settings {
                flags,
                generation: 0,
                levels: &[b"/scratch/v1"],
                prefixes: &[SourcePrefix { device: SOURCE_DEVICE, path: b"/data" }],
            };
            let mut writer = TableWriter::create(&words, layout, &settings).unwrap();
            let id = writer.add(&source(), Some(SOURCE.to_bytes())).unwrap();
            change(&mut writer, id);
            let kernel = FakeKernel::default();
            let regular = |identity| FileStat { identity, is_regular: true, is_deleted: false };
            kernel.files.borrow_mut().insert(SOURCE.to_str().unwrap().into(), regular(source().identity));
            kernel.files.borrow_mut().insert(COPY.into(), regular(copy()));
            kernel.open.borrow_mut().insert(FD, (SOURCE.to_str().unwrap().into(), 0));
            Self { words, layout, kernel }
        }

        fn new() -> Self {
            Self::with(Flags::default(), publish)
        }

        fn frozen() -> Self {
            Self::with(Flags { frozen: true, check: false }, publish)
        }

        fn run<T>(&self, work: impl FnOnce(&Redirect<'_, FakeKernel>) -> T) -> T {
            let table = Table::open(&self.words).unwrap();
            let shared = self.shared();
            work(&Redirect::new(&self.kernel, &table, &shared, 5))
        }

        fn shared(&self) -> SharedPart<'_> {
            SharedPart::new(&self.words, self.layout).unwrap()
        }

        fn open(&self, flags: c_int, path: &CStr) -> core::result::Result<(), c_int> {
            self.run(|redirect| redirect.opened(FD, flags, Some(path)))
        }

        fn total(&self, counter: TableCounter) -> u64 {
            self.shared().total(counter)
        }

        /// The program reads the source, and nothing is left open.
        fn assert_source(&self) {
            assert_eq!(self.kernel.open.borrow().keys().collect::<Vec<_>>(), [&FD]);
            assert_eq!(self.kernel.opened(FD).as_deref(), SOURCE.to_str().ok());
            assert_eq!(self.total(TableCounter::Opened(0)), 0);
        }

        fn assert_copy(&self) {
            assert_eq!(self.kernel.open.borrow().keys().collect::<Vec<_>>(), [&FD]);
            assert_eq!(self.kernel.opened(FD).as_deref(), Some(COPY));
            assert_eq!(
                (self.total(TableCounter::Opened(0)), self.total(TableCounter::OpenedBytes(0))),
                (1, 12)
            );
        }

        fn wished(&self) -> Option<String> {
            match self.shared().wishes().read(0) {
                Next::Wish(wish) => Some(String::from_utf8(wish.path().into()).unwrap()),
                _ => None,
            }
        }
    }

    fn publish(writer: &mut TableWriter<'_>, id: RecordId) {
        let identity = stat::as_copy(&copy());
        writer.publish(id, &CopyFile { level: 0, number: 7, identity }).unwrap();
    }

    #[test]
    fn an_open_for_reading_gets_the_copy_with_the_flags_of_the_program() {
        for flags in
            [0, libc::O_CLOEXEC, libc::O_NONBLOCK | libc::O_NOATIME, libc::O_NOFOLLOW | libc::O_NOCTTY]
        {
            let scene = Scene::new();
            assert_eq!(scene.open(flags, SOURCE), Ok(()));
            scene.assert_copy();
            assert_eq!(scene.kernel.close_on_exec.get(), flags & libc::O_CLOEXEC != 0);
            let opened = scene.kernel.open.borrow()[&FD].1;
            assert_eq!(opened, (flags | libc::O_CLOEXEC) & !libc::O_NOCTTY);
            // One `fstat` of the source, and nothing else of it.
            assert_eq!(*scene.kernel.calls.borrow(), [Call::Stat, Call::Open, Call::Stat, Call::Duplicate]);
        }
    }

    #[test]
    fn a_failure_at_any_step_leaves_the_source_and_no_descriptor() {
        for (call, number, reason) in [
            (Call::Stat, 0, None),
            (Call::Open, 0, Some(TableCounter::OpenFailed)),
            (Call::Stat, 1, Some(TableCounter::OtherCopy)),
            (Call::Duplicate, 0, Some(TableCounter::NumberFailed)),
        ] {
            for error in 1..134 {
                let scene = Scene::new();
                scene.kernel.fails.set(Some((call, number, error)));
                assert_eq!(scene.open(0, SOURCE), Ok(()));
                scene.assert_source();
                if let Some(reason) = reason {
                    assert_eq!(scene.total(reason), 1, "{call:?} {error}");
                }
            }
        }
    }

    #[test]
    fn a_source_whose_identity_differs_in_anything_is_left_and_wished_for() {
        let changes: [fn(&mut Identity); 3] =
            [|found| found.bytes += 1, |found| found.modified_ns += 1, |found| found.changed_ns -= 1];
        for change in changes {
            let scene = Scene::new();
            change(&mut scene.kernel.files.borrow_mut().get_mut(SOURCE.to_str().unwrap()).unwrap().identity);
            assert_eq!(scene.open(0, SOURCE), Ok(()));
            scene.assert_source();
            assert_eq!((scene.total(TableCounter::Changed), scene.total(TableCounter::Wishes)), (1, 1));
            assert_eq!(scene.wished().as_deref(), SOURCE.to_str().ok());
        }
    }

    #[test]
    fn a_copy_whose_identity_differs_in_anything_is_not_served() {
        let changes: [fn(&mut FileStat); 6] = [
            |found| found.identity.device += 1,
            |found| found.identity.inode += 1,
            |found| found.identity.bytes -= 1,
            |found| found.identity.modified_ns += 1,
            |found| found.identity.changed_ns += 1,
            |found| found.is_regular = false,
        ];
        for change in changes {
            let scene = Scene::new();
            change(scene.kernel.files.borrow_mut().get_mut(COPY).unwrap());
            assert_eq!(scene.open(0, SOURCE), Ok(()));
            scene.assert_source();
            assert_eq!(scene.total(TableCounter::OtherCopy), 1);
        }
    }

    #[test]
    fn only_opens_that_just_read_a_file_are_redirected() {
        use libc::{O_APPEND, O_CREAT, O_DIRECTORY, O_PATH, O_RDONLY, O_RDWR, O_TMPFILE, O_TRUNC, O_WRONLY};
        for (flags, expected) in [
            (O_RDONLY, (true, false)),
            (O_RDONLY | O_CREAT, (false, false)),
            (O_RDONLY | O_TRUNC, (false, true)),
            (O_RDONLY | O_PATH, (false, false)),
            (O_RDONLY | O_DIRECTORY, (false, false)),
            (O_WRONLY, (false, true)),
            (O_RDWR, (false, true)),
            (O_RDWR | O_PATH, (false, false)),
            (O_WRONLY | O_APPEND | O_CREAT | O_TRUNC, (false, true)),
            (O_RDWR | O_TMPFILE, (false, true)),
            (3, (false, true)),
        ] {
            assert_eq!((reads(flags), writes(flags)), expected, "{flags:o}");
            if !reads(flags) {
                let scene = Scene::new();
                assert_eq!(scene.open(flags, SOURCE), Ok(()));
                scene.assert_source();
                assert_eq!(scene.total(TableCounter::Writes), u64::from(writes(flags)));
            }
        }
        let scene = Scene::new();
        scene.kernel.files.borrow_mut().get_mut(SOURCE.to_str().unwrap()).unwrap().is_regular = false;
        assert_eq!(scene.open(0, SOURCE), Ok(()));
        scene.assert_source();
    }

    #[test]
    fn a_record_that_is_not_served_is_counted_by_its_reason() {
        type Change = fn(&mut TableWriter<'_>, RecordId);
        let cases: [(Change, TableCounter, u64); 6] = [
            (|_, _| {}, TableCounter::Copying, 0),
            (|writer, id| writer.advance(id, RecordState::Refused), TableCounter::Refused, 0),
            (|writer, id| writer.advance(id, RecordState::Stale), TableCounter::Stale, 1),
            (|writer, id| writer.advance(id, RecordState::Gone), TableCounter::Unknown, 1),
            (
                |writer, id| {
                    publish(writer, id);
                    writer.set_level_state(0, ServingState::Out);
                },
                TableCounter::LevelOut,
                0,
            ),
            (
                |writer, id| {
                    publish(writer, id);
                    writer.advance(id, RecordState::Stale);
                },
                TableCounter::Stale,
                1,
            ),
        ];
        for (change, reason, wishes) in cases {
            let scene = Scene::with(Flags::default(), change);
            assert_eq!(scene.open(0, SOURCE), Ok(()));
            scene.assert_source();
            assert_eq!((scene.total(reason), scene.total(TableCounter::Wishes)), (1, wishes), "{reason:?}");
        }
        let scene = Scene::new();
        assert_eq!(scene.open(libc::O_DIRECT, SOURCE), Ok(()));
        scene.assert_source();
        assert_eq!(scene.total(TableCounter::Direct), 1);
    }

    #[test]
    fn a_retired_table_serves_nothing_but_translates() {
        let scene = Scene::with(Flags { frozen: true, check: false }, |writer, id| {
            publish(writer, id);
        });
        scene.run(|redirect| {
            scene.words[3].store(u64::MAX, std::sync::atomic::Ordering::Relaxed);
            assert_eq!(redirect.opened(FD, 0, Some(SOURCE)), Ok(()));
            scene.assert_source();
            assert_eq!(scene.total(TableCounter::Retired), 1);
            assert_eq!(redirect.open_frozen(SOURCE, 0), None);
            assert!(redirect.is_copy_of(&copy()));
        });
        assert!(scene.kernel.calls.borrow().is_empty());
    }

    #[test]
    fn a_wish_names_the_path_of_a_source_and_of_nothing_else() {
        let gone = |writer: &mut TableWriter<'_>, id| writer.advance(id, RecordState::Gone);
        let long = format!("/data/{}", "x".repeat(470));
        for (given, real, expected) in [
            // As the program wrote it.
            ("/data//./a", "/data/a", Some("/data//./a")),
            // What the kernel says, where the program's path says nothing.
            ("a", "/data/a", Some("/data/a")),
            ("/link/a", "/data/a", Some("/data/a")),
            ("/data/../data/a", "/data/a", Some("/data/a")),
            ("/data/../etc/a", "/etc/a", None),
            ("/etc/a", "/etc/a", None),
            ("a", "/database/a", None),
            (long.as_str(), "/data/a", None),
        ] {
            let scene = Scene::with(Flags::default(), gone);
            let found = scene.kernel.files.borrow()[SOURCE.to_str().unwrap()];
            scene.kernel.files.borrow_mut().insert(real.into(), found);
            scene.kernel.open.borrow_mut().insert(FD, (real.into(), 0));
            assert_eq!(scene.open(0, &CString::new(given).unwrap()), Ok(()));
            assert_eq!(scene.wished().as_deref(), expected, "{given}");
            let lost = u64::from(given == long);
            assert_eq!(scene.total(TableCounter::Wishes), u64::from(expected.is_some()));
            assert_eq!(scene.total(TableCounter::LostWishes), lost);
            assert_eq!(scene.total(TableCounter::Unknown), u64::from(expected.is_some()) + lost);
        }
        let scene = Scene::with(Flags::default(), gone);
        scene.kernel.fails.set(Some((Call::PathOf, 0, libc::ENOENT)));
        assert_eq!(scene.open(0, c"a"), Ok(()));
        assert_eq!(scene.wished(), None);
        // A file that is no source is asked for its path once.
        let scene = Scene::with(Flags::default(), gone);
        let found = scene.kernel.files.borrow()[SOURCE.to_str().unwrap()];
        scene.kernel.files.borrow_mut().insert("/etc/a".into(), found);
        scene.kernel.open.borrow_mut().insert(FD, ("/etc/a".into(), 0));
        for _ in 0..2 {
            assert_eq!(scene.open(0, c"/etc/a"), Ok(()));
        }
        assert_eq!(*scene.kernel.calls.borrow(), [Call::Stat, Call::PathOf, Call::Stat]);
        // A source that has an absolute path is wished for all the same.
        assert_eq!(scene.open(0, SOURCE), Ok(()));
        assert_eq!(scene.wished().as_deref(), SOURCE.to_str().ok());
        // Of a file of another device below a source, as it is written.
        let scene = Scene::with(Flags::default(), gone);
        scene.kernel.files.borrow_mut().get_mut(SOURCE.to_str().unwrap()).unwrap().identity.device += 1;
        assert_eq!(scene.open(0, SOURCE), Ok(()));
        assert_eq!(scene.wished().as_deref(), SOURCE.to_str().ok());
        // Elsewhere it costs no further call.
        let scene = Scene::with(Flags::default(), gone);
        scene.kernel.files.borrow_mut().get_mut(SOURCE.to_str().unwrap()).unwrap().identity.device += 1;
        assert_eq!(scene.open(0, c"a"), Ok(()));
        assert_eq!(*scene.kernel.calls.borrow(), [Call::Stat]);
    }

    #[test]
    fn a_writer_marks_all_records_of_the_source() {
        let scene = Scene::new();
        scene.kernel.files.borrow_mut().get_mut(SOURCE.to_str().unwrap()).unwrap().identity.bytes = 0;
        assert_eq!(scene.open(libc::O_RDWR | libc::O_TRUNC, SOURCE), Ok(()));
        assert!(scene.shared().is_stale(RecordId(0)));
        scene.kernel.files.borrow_mut().get_mut(SOURCE.to_str().unwrap()).unwrap().identity.bytes = 12;
        assert_eq!(scene.open(0, SOURCE), Ok(()));
        scene.assert_source();
        assert_eq!((scene.total(TableCounter::Writes), scene.total(TableCounter::Stale)), (1, 1));

        let scene = Scene::new();
        scene.run(|redirect| redirect.changed(c"/missing"));
        assert_eq!(scene.total(TableCounter::Writes), 0);
        scene.run(|redirect| redirect.changed(SOURCE));
        assert!(scene.shared().is_stale(RecordId(0)));
        for error in [libc::EIO, libc::EBADF] {
            let scene = Scene::new();
            scene.kernel.fails.set(Some((Call::Stat, 0, error)));
            assert_eq!(scene.open(libc::O_RDWR, SOURCE), Ok(()));
            scene.assert_source();
        }
    }

    #[test]
    fn nobody_writes_into_a_copy() {
        let scene = Scene::new();
        scene.kernel.open.borrow_mut().insert(FD, (COPY.into(), 0));
        assert_eq!(scene.open(libc::O_RDWR, c"/proc/self/fd/9"), Err(libc::EROFS));
        assert!(scene.shared().is_stale(RecordId(0)));
        assert_eq!(scene.total(TableCounter::RefusedChanges), 1);

        let scene = Scene::new();
        let refuses = |identity, is_deleted| {
            let found = FileStat { identity, is_regular: true, is_deleted };
            scene.run(|redirect| redirect.refuses_change(&found))
        };
        assert!(!refuses(source().identity, false));
        assert!(refuses(copy(), false));
        // Also if somebody has changed it, or deleted it while it is open.
        assert!(refuses(Identity { bytes: 0, modified_ns: 99, changed_ns: 99, ..copy() }, false));
        scene.kernel.files.borrow_mut().remove(COPY);
        assert!(refuses(Identity { changed_ns: 99, ..copy() }, true));
        assert!(!refuses(Identity { changed_ns: 99, ..copy() }, false));
        assert_eq!(scene.total(TableCounter::RefusedChanges), 3);
    }

    #[test]
    fn another_file_that_got_the_inode_of_a_removed_copy_may_be_written() {
        let scene = Scene::new();
        let found = scene.kernel.files.borrow_mut().remove(COPY).unwrap();
        scene.kernel.files.borrow_mut().insert("/scratch/mine".into(), found);
        scene.kernel.open.borrow_mut().insert(FD, ("/scratch/mine".into(), 0));
        assert_eq!(scene.open(libc::O_RDWR, c"/scratch/mine"), Ok(()));
        assert_eq!(scene.kernel.opened(FD).as_deref(), Some("/scratch/mine"));
    }

    fn stat_of(identity: &Identity, mode: u32) -> libc::stat {
        // SAFETY: zeros are a `stat`.
        let mut found: libc::stat = unsafe { core::mem::zeroed() };
        let file =
            SourceFile { identity: *identity, mode, links: 1, block_bytes: 4096, ..SourceFile::default() };
        stat::show(&file, &mut found);
        (found.st_atime, found.st_atime_nsec) = (77, 78);
        found
    }

    #[test]
    fn stat_shows_the_source_but_for_the_time_of_the_last_access() {
        let scene = Scene::new();
        let mut found = stat_of(&copy(), libc::S_IFREG | 0o400);
        scene.run(|redirect| redirect.translate(&mut found));
        assert_eq!(stat::identity(&found), source().identity);
        let numbers =
            (found.st_mode, found.st_uid, found.st_gid, found.st_nlink, found.st_blocks, found.st_blksize);
        assert_eq!(numbers, (libc::S_IFREG | 0o444, 16, 17, 18, 19, 10240));
        assert_eq!((found.st_mtime, found.st_mtime_nsec), (13, 14));
        assert_eq!((found.st_ctime, found.st_ctime_nsec), (-1, 999_999_999));
        assert_eq!((found.st_atime, found.st_atime_nsec), (77, 78));
        assert_eq!(scene.total(TableCounter::Stats), 1);
    }

    #[test]
    fn stat_of_another_file_is_left_alone() {
        let changes: [fn(&mut Identity); 5] = [
            |found| found.device += 1,
            |found| found.inode += 1,
            |found| found.bytes += 1,
            |found| found.modified_ns += 1,
            |found| found.changed_ns += 1,
        ];
        for change in changes {
            let mut identity = copy();
            change(&mut identity);
            let scene = Scene::new();
            let mut found = stat_of(&identity, libc::S_IFREG | 0o400);
            scene.run(|redirect| redirect.translate(&mut found));
            assert_eq!(stat::identity(&found), identity);
            assert_eq!(scene.total(TableCounter::Stats), 0);
        }
        let scene = Scene::new();
        let mut found = stat_of(&copy(), libc::S_IFDIR | 0o400);
        scene.run(|redirect| redirect.translate(&mut found));
        assert_eq!(stat::identity(&found), copy());
    }

    #[test]
    fn stat_of_a_copy_that_was_deleted_while_it_is_open_shows_the_source() {
        let scene = Scene::new();
        let gone = Identity { changed_ns: 99, ..copy() };
        let mut found = stat_of(&gone, libc::S_IFREG | 0o400);
        found.st_nlink = 0;
        assert!(scene.run(|redirect| redirect.translate(&mut found)));
        assert_eq!((stat::identity(&found), found.st_nlink), (source().identity, 18));
        let mut found = statx_of(&gone);
        found.stx_nlink = 0;
        assert!(scene.run(|redirect| redirect.translate_statx(&mut found)));
        assert_eq!((stat::identity_of_statx(&found), found.stx_nlink), (Some(source().identity), 18));
        // Another file that was deleted.
        let mut found = stat_of(&Identity { modified_ns: 99, ..gone }, libc::S_IFREG | 0o400);
        found.st_nlink = 0;
        assert!(!scene.run(|redirect| redirect.translate(&mut found)));
    }

    fn statx_of(identity: &Identity) -> libc::statx {
        // SAFETY: zeros are a `statx`.
        let mut found: libc::statx = unsafe { core::mem::zeroed() };
        let mode = libc::S_IFREG | 0o400;
        let file =
            SourceFile { identity: *identity, born_ns: Some(1), mode, links: 1, ..SourceFile::default() };
        found.stx_mask = libc::STATX_BASIC_STATS | libc::STATX_BTIME;
        stat::show_in_statx(&file, &mut found);
        found
    }

    #[test]
    fn statx_shows_the_source_where_it_has_all_that_identifies_a_copy() {
        let scene = Scene::new();
        let mut found = statx_of(&copy());
        scene.run(|redirect| redirect.translate_statx(&mut found));
        assert_eq!(stat::identity_of_statx(&found), Some(source().identity));
        let numbers = (found.stx_mode, found.stx_uid, found.stx_gid, found.stx_nlink, found.stx_blocks);
        assert_eq!(numbers, (libc::S_IFREG as u16 | 0o444, 16, 17, 18, 19));
        assert_eq!((found.stx_blksize, found.stx_btime.tv_nsec), (10240, 15));

        let mut found = statx_of(&copy());
        found.stx_mask &= !libc::STATX_MTIME;
        scene.run(|redirect| redirect.translate_statx(&mut found));
        assert_eq!(found.stx_ino, copy().inode);

        let mut found = statx_of(&copy());
        stat::show_in_statx(&SourceFile { born_ns: None, ..source() }, &mut found);
        assert_eq!(found.stx_mask & libc::STATX_BTIME, 0);
    }

    #[test]
    fn a_frozen_source_is_opened_and_described_without_a_call_to_it() {
        let scene = Scene::frozen();
        scene.kernel.open.borrow_mut().clear();
        let opened = scene.run(|redirect| redirect.open_frozen(SOURCE, libc::O_CLOEXEC));
        assert_eq!(opened, Some(FD));
        scene.assert_copy();
        assert_eq!(scene.kernel.open.borrow()[&FD].1, libc::O_CLOEXEC);
        assert_eq!(*scene.kernel.calls.borrow(), [Call::Open, Call::Stat]);
        assert_eq!(scene.run(|redirect| redirect.stat_frozen(SOURCE)), Some(source()));
        for (path, flags) in
            [(c"data/a", 0), (c"/data/b", 0), (SOURCE, libc::O_RDWR), (SOURCE, libc::O_DIRECT)]
        {
            assert_eq!(scene.run(|redirect| redirect.open_frozen(path, flags)), None, "{path:?}");
        }
        scene.run(|redirect| redirect.renamed(SOURCE));
        assert!(scene.shared().is_stale(RecordId(0)));
        assert_eq!(scene.run(|redirect| redirect.open_frozen(SOURCE, 0)), None);
        assert_eq!(scene.run(|redirect| redirect.stat_frozen(SOURCE)), None);

        let scene = Scene::new();
        scene.run(|redirect| redirect.renamed(SOURCE));
        assert!(
            !scene.shared().is_stale(RecordId(0)),
            "a source that is not frozen is opened by the program"
        );
        assert_eq!(scene.run(|redirect| redirect.open_frozen(SOURCE, 0)), None);
    }

    #[test]
    fn a_frozen_source_whose_copy_fails_is_left_to_the_program() {
        for call in [Call::Open, Call::Stat] {
            let scene = Scene::frozen();
            scene.kernel.fails.set(Some((call, 0, libc::EIO)));
            assert_eq!(scene.run(|redirect| redirect.open_frozen(SOURCE, 0)), None);
            scene.assert_source();
        }
    }

    impl Redirect<'_, FakeKernel> {
        fn is_copy_of(&self, identity: &Identity) -> bool {
            let copy: CopyIdentity = stat::as_copy(identity);
            self.table.records().source_of(&copy, identity.bytes).is_some()
        }
    }
}
