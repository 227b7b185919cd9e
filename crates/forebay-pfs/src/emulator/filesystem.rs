//! One mount, as the kernel sees it.
//!
//! Every request comes here on a loop thread, which never sleeps: it books the cost with the model, does what is quick on the backing store,
//! and leaves the reply to the timers. Requests that cost nothing are answered on the spot.
//!
//! - Reads: booked first, so that the servers' queues have the order of coming; the data are read while the reply waits. A request that the
//!   page cache made and that touches an unreadable range fails whole, and the kernel then asks for each page that somebody wants; one of
//!   O_DIRECT ends before the range.
//! - Writes reach the backing store at once and are booked like reads; there is no write-back cache.
//! - Names and attributes cost an operation of the metadata server each. They stay valid for as long as Lustre keeps an unused lock.
//! - Open files keep their pages. They are dropped where the backing file was changed by somebody else since the last look.
use std::cell::RefCell;
use std::ffi::OsStr;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, SystemTime};

use fuser::{
    BsdFileFlags, Errno, FileAttr, FileHandle, Filesystem, FopenFlags, Generation, INodeNo, InitFlags,
    KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory,
    ReplyEmpty, ReplyEntry, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, Request, TimeOrNow, WriteFlags,
};
use rustix::fs::{AtFlags, FallocateFlags, Gid, Mode, OFlags, Uid};

use crate::emulator::backing::{self, Status, errno, open_flags, read_full, write_full};
use crate::emulator::calibration::{self, Calibration};
use crate::emulator::errands::Errand;
use crate::emulator::nodes::{Identity, ROOT};
use crate::emulator::shared::{DirectoryEntry, Handle, Mounted, Shared, locked};
use crate::emulator::timers::{DataReply, Task};
use crate::model::Kind;

/// The largest request \[B\]: what the kernel carries unless `/proc/sys/fs/fuse/max_pages_limit` is raised.
const REQUEST_BYTES: u32 = 1 << 20;

/// Requests of read-ahead and of asynchronous programs that the kernel lets come at once; the default of 16 would be the bottleneck
/// of every deep queue.
const MAX_BACKGROUND: u16 = 256;

/// How long names and attributes stay valid \[model seconds\]: what Lustre keeps an unused lock since 2024.
const VALID_SECONDS: u64 = 600;

thread_local! {
    /// Data of replies that leave on the spot.
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// The file system of one mount.
pub(crate) struct MountFileSystem {
    shared: Arc<Shared>,
    mount: Arc<Mounted>,
    valid: Duration,
}

fn read_lock<T>(lock: &RwLock<T>) -> std::sync::RwLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(PoisonError::into_inner)
}

fn write_lock<T>(lock: &RwLock<T>) -> std::sync::RwLockWriteGuard<'_, T> {
    lock.write().unwrap_or_else(PoisonError::into_inner)
}

fn error_number(number: i32) -> io::Error {
    io::Error::from_raw_os_error(number)
}

/// The data of one read, on its way.
struct ReadReply {
    mount: Arc<Mounted>,
    shared: Arc<Shared>,
    handle: Arc<Handle>,
    offset: u64,
    length: usize,
    failed: bool,
    reply: ReplyData,
}

impl DataReply for ReadReply {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.failed {
            return Err(error_number(libc::EIO));
        }
        read_full(&self.handle.descriptor, &mut buffer[..self.length], self.offset)
    }

    fn length(&self) -> usize {
        self.length
    }

    fn send(self: Box<Self>, data: io::Result<&[u8]>) {
        // Before the reply: whoever gets it may look at the counters at once.
        self.mount.in_flight.leave();
        self.shared.in_flight.leave();
        match data {
            _ if self.mount.is_dead() => self.reply.error(Errno::ENOTCONN),
            Ok(data) => self.reply.data(data),
            Err(error) => self.reply.error(errno(&error)),
        }
    }
}

impl MountFileSystem {
    pub(crate) fn new(shared: Arc<Shared>, mount: Arc<Mounted>) -> MountFileSystem {
        let valid = shared.clock.stretched(Duration::from_secs(VALID_SECONDS));
        MountFileSystem { shared, mount, valid }
    }

    /// Does something with names or attributes, and answers once the metadata server would have.
    fn metadata<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> io::Result<T>,
        answer: impl FnOnce(Result<T, Errno>) + Send + 'static,
    ) {
        if self.mount.is_dead() {
            answer(Err(Errno::ENOTCONN));
            return;
        }
        let due = self.shared.metadata(self.mount.node);
        let result = work().map_err(|error| errno(&error));
        if due <= self.shared.clock.real_now() {
            answer(result);
            return;
        }
        self.shared.timers.push(due, self.mount.node, Task::Answer(Box::new(move || answer(result))));
    }

    fn handle(&self, handle: FileHandle) -> io::Result<Arc<Handle>> {
        read_lock(&self.mount.handles).get(&handle.0).cloned().ok_or_else(|| error_number(libc::EBADF))
    }

    fn next_handle(&self) -> u64 {
        self.mount.last_handle.fetch_add(1, Ordering::Relaxed) + 1
    }

    fn keep_handle(&self, handle: Handle) -> FileHandle {
        let number = self.next_handle();
        write_lock(&self.mount.handles).insert(number, Arc::new(handle));
        FileHandle(number)
    }

    /// Both numbers of what is called `name` in a directory.
    fn identity(&self, parent: u64, name: &OsStr, status: &Status) -> Identity {
        let path = || locked(&self.mount.nodes).path(parent, name).to_string_lossy().into_owned();
        locked(&self.shared.identities).of(status, path)
    }

    /// Finds a name and lets the kernel know the file.
    fn enter(&self, parent: INodeNo, name: &OsStr) -> io::Result<(FileAttr, Identity)> {
        let directory = locked(&self.mount.nodes).directory(parent.0)?;
        let status = Status::at(&directory, name)?;
        let identity = self.identity(parent.0, name, &status);
        locked(&self.mount.nodes).entered(parent.0, name, &status, identity)?;
        Ok((status.attributes(identity.inode), identity))
    }

    /// Makes a name, then lets the kernel know the file.
    fn make(
        &self,
        parent: INodeNo,
        name: &OsStr,
        make: impl FnOnce(&std::os::fd::OwnedFd) -> rustix::io::Result<()>,
        reply: ReplyEntry,
    ) {
        let work = || {
            make(&*locked(&self.mount.nodes).directory(parent.0)?)?;
            Ok(self.enter(parent, name)?.0)
        };
        self.metadata(work, answer_entry(reply, self.valid));
    }

    /// Status of a file, by its handle if the kernel sent one.
    fn status(&self, inode: u64, handle: Option<FileHandle>) -> io::Result<Status> {
        if let Some(handle) = handle
            && let Ok(handle) = self.handle(handle)
        {
            return Status::of(&handle.descriptor);
        }
        let place = locked(&self.mount.nodes).place(inode)?;
        let status = Status::at(&place.directory, &place.name)?;
        if status.key() != place.key {
            return Err(error_number(libc::ESTALE));
        }
        Ok(status)
    }

    fn changed(&self, inode: u64, offset: u64, length: u64) {
        let _ = self.shared.errands.send(Errand::Changed { by: self.mount.node, inode, offset, length });
    }

    fn name_changed(&self, parent: INodeNo, name: &OsStr) {
        let (by, parent, name) = (self.mount.node, parent.0, name.to_owned());
        let _ = self.shared.errands.send(Errand::Renamed { by, parent, name });
    }

    /// The kernel's cache goes with the file as it is now.
    fn restamp(&self, inode: u64, file: impl AsFd) {
        if let Ok(status) = Status::of(file) {
            locked(&self.mount.nodes).restamp(inode, status.stamp());
        }
    }

    fn open_file(&self, inode: u64, flags: i32) -> io::Result<(FileHandle, FopenFlags)> {
        let place = locked(&self.mount.nodes).place(inode)?;
        let descriptor = rustix::fs::openat(&place.directory, &place.name, open_flags(flags), Mode::empty())?;
        let status = Status::of(&descriptor)?;
        if status.key() != place.key {
            return Err(error_number(libc::ESTALE));
        }
        let file = place.identity.file.ok_or_else(|| error_number(libc::EINVAL))?;
        let mut answer = FopenFlags::FOPEN_KEEP_CACHE;
        if locked(&self.mount.nodes).restamp(inode, status.stamp()) {
            answer = FopenFlags::empty();
            let _ = self.shared.errands.send(Errand::Stale { on: self.mount.node, inode });
        }
        Ok((self.keep_handle(Handle { descriptor, file }), answer))
    }

    fn read_directory(&self, inode: u64) -> io::Result<Vec<DirectoryEntry>> {
        let directory = locked(&self.mount.nodes).directory(inode)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = rustix::fs::openat(&directory, ".", flags, Mode::empty())?;
        let mut entries = Vec::new();
        for entry in rustix::fs::Dir::new(opened)? {
            let entry = entry?;
            let name = std::os::unix::ffi::OsStrExt::from_bytes(entry.file_name().to_bytes());
            entries.push((entry.ino(), backing::kind_of(entry.file_type()), OsStr::to_owned(name)));
        }
        Ok(entries)
    }

    fn remove(&self, parent: INodeNo, name: &OsStr, flags: AtFlags, reply: ReplyEmpty) {
        let work = || {
            let directory = locked(&self.mount.nodes).directory(parent.0)?;
            let status = Status::at(&directory, name)?;
            let identity = self.identity(parent.0, name, &status);
            rustix::fs::unlinkat(&directory, name, flags)?;
            self.forget_name(parent.0, name, &status, identity);
            self.name_changed(parent, name);
            Ok(())
        };
        self.metadata(work, answer_empty(reply));
    }

    /// A name is gone, and with its last name the file.
    fn forget_name(&self, parent: u64, name: &OsStr, status: &Status, identity: Identity) {
        locked(&self.mount.nodes).removed(parent, name, identity.inode);
        if status.links() <= 1 || status.kind() == fuser::FileType::Directory {
            locked(&self.shared.identities).gone(status.key());
        }
    }

    #[expect(clippy::too_many_arguments, reason = "the kernel changes attributes all at once")]
    fn change(
        &self,
        inode: u64,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        times: Option<rustix::fs::Timestamps>,
        handle: Option<FileHandle>,
    ) -> io::Result<FileAttr> {
        let place = locked(&self.mount.nodes).place(inode);
        if let Some(size) = size {
            let opened = handle.and_then(|handle| self.handle(handle).ok());
            match opened {
                Some(handle) => {
                    rustix::fs::ftruncate(&handle.descriptor, size)?;
                    self.restamp(inode, &handle.descriptor);
                }
                None => {
                    let place = place.as_ref().map_err(copy)?;
                    let flags = open_flags(libc::O_WRONLY);
                    let file = rustix::fs::openat(&place.directory, &place.name, flags, Mode::empty())?;
                    rustix::fs::ftruncate(&file, size)?;
                    self.restamp(inode, &file);
                }
            }
            self.changed(inode, size, 0);
        }
        if mode.is_some() || uid.is_some() || gid.is_some() || times.is_some() {
            let place = place.as_ref().map_err(copy)?;
            if uid.is_some() || gid.is_some() {
                let (uid, gid) = (uid.map(Uid::from_raw), gid.map(Gid::from_raw));
                rustix::fs::chownat(&place.directory, &place.name, uid, gid, AtFlags::SYMLINK_NOFOLLOW)?;
            }
            if let Some(mode) = mode {
                let mode = Mode::from_raw_mode(mode & 0o7777);
                rustix::fs::chmodat(&place.directory, &place.name, mode, AtFlags::empty())?;
            }
            if let Some(times) = &times {
                rustix::fs::utimensat(&place.directory, &place.name, times, AtFlags::SYMLINK_NOFOLLOW)?;
            }
            let status = Status::at(&place.directory, &place.name)?;
            locked(&self.mount.nodes).restamp(inode, status.stamp());
            // Attributes only; beyond the end there are no pages.
            self.changed(inode, i64::MAX as u64 & !0xfff, 0);
        }
        Ok(self.status(inode, handle)?.attributes(inode))
    }

    fn rename_file(
        &self,
        from: (INodeNo, &OsStr),
        to: (INodeNo, &OsStr),
        flags: RenameFlags,
    ) -> io::Result<()> {
        let (old, new) = {
            let nodes = locked(&self.mount.nodes);
            (nodes.directory(from.0.0)?, nodes.directory(to.0.0)?)
        };
        let status = Status::at(&old, from.1)?;
        let moved = self.identity(from.0.0, from.1, &status);
        let replaced = Status::at(&new, to.1).ok();
        let replaced = replaced.map(|status| (status, self.identity(to.0.0, to.1, &status)));
        let kernel_flags = rustix::fs::RenameFlags::from_bits_retain(flags.bits());
        rustix::fs::renameat_with(&old, from.1, &new, to.1, kernel_flags)?;
        let source = (from.0.0, from.1);
        let target = (to.0.0, to.1);
        if let Some((status, identity)) = replaced {
            if flags.contains(RenameFlags::RENAME_EXCHANGE) {
                locked(&self.mount.nodes).renamed(target, source, identity.inode);
            } else if identity != moved {
                self.forget_name(target.0, target.1, &status, identity);
            }
        }
        let mut nodes = locked(&self.mount.nodes);
        nodes.renamed(source, target, moved.inode);
        let path = nodes.path(target.0, target.1).to_string_lossy().into_owned();
        drop(nodes);
        if let Some(file) = moved.file {
            locked(&self.shared.identities).renamed(file, path);
        }
        self.name_changed(from.0, from.1);
        self.name_changed(to.0, to.1);
        Ok(())
    }

    fn create_file(
        &self,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        flags: i32,
    ) -> io::Result<(FileAttr, FileHandle)> {
        let directory = locked(&self.mount.nodes).directory(parent.0)?;
        let mode = Mode::from_raw_mode(mode & 0o7777);
        let fresh = open_flags(flags) | OFlags::CREATE | OFlags::EXCL;
        let descriptor = match rustix::fs::openat(&directory, name, fresh, mode) {
            Ok(descriptor) => {
                // The kernel has applied the program's mask; ours must not be applied too.
                rustix::fs::fchmod(&descriptor, mode)?;
                descriptor
            }
            Err(rustix::io::Errno::EXIST) if flags & libc::O_EXCL == 0 => {
                rustix::fs::openat(&directory, name, open_flags(flags), Mode::empty())?
            }
            Err(error) => return Err(error.into()),
        };
        let (attributes, identity) = self.enter(parent, name)?;
        let file = identity.file.ok_or_else(|| error_number(libc::EEXIST))?;
        Ok((attributes, self.keep_handle(Handle { descriptor, file })))
    }

    fn write_file(&self, inode: u64, handle: &Handle, offset: u64, data: &[u8]) -> io::Result<()> {
        write_full(&handle.descriptor, data, offset)?;
        self.restamp(inode, &handle.descriptor);
        self.changed(inode, offset, data.len() as u64);
        Ok(())
    }

    /// How much of a read lies in the file.
    fn clipped(handle: &Handle, offset: u64, size: u32) -> io::Result<u64> {
        let end = rustix::fs::fstat(&handle.descriptor)?.st_size as u64;
        Ok(u64::from(size).min(end.saturating_sub(offset)))
    }

    /// Answers a read on the spot.
    fn read_now(handle: &Handle, offset: u64, length: usize, reply: ReplyData) {
        BUFFER.with_borrow_mut(|buffer| {
            if buffer.len() < length {
                buffer.resize(length, 0);
            }
            match read_full(&handle.descriptor, &mut buffer[..length], offset) {
                Ok(count) => reply.data(&buffer[..count]),
                Err(error) => reply.error(errno(&error)),
            }
        });
    }
}

/// The same error again.
fn copy(error: &io::Error) -> io::Error {
    error_number(error.raw_os_error().unwrap_or(libc::EIO))
}

fn answer_entry(reply: ReplyEntry, valid: Duration) -> impl FnOnce(Result<FileAttr, Errno>) + Send + 'static {
    move |result| match result {
        Ok(attributes) => reply.entry(&valid, &attributes, Generation(0)),
        Err(error) => reply.error(error),
    }
}

fn answer_attributes(
    reply: ReplyAttr,
    valid: Duration,
) -> impl FnOnce(Result<FileAttr, Errno>) + Send + 'static {
    move |result| match result {
        Ok(attributes) => reply.attr(&valid, &attributes),
        Err(error) => reply.error(error),
    }
}

fn answer_empty(reply: ReplyEmpty) -> impl FnOnce(Result<(), Errno>) + Send + 'static {
    move |result| match result {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(error),
    }
}

impl Filesystem for MountFileSystem {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        // Each alone, as one that an old kernel lacks must not take the others along.
        for wanted in [InitFlags::FUSE_ASYNC_DIO, InitFlags::FUSE_PARALLEL_DIROPS] {
            let _ = config.add_capabilities(wanted);
        }
        // Refused values answer with the nearest allowed one; these are within the limits of every kernel.
        let _ = config.set_max_background(MAX_BACKGROUND);
        let _ = config.set_congestion_threshold(MAX_BACKGROUND);
        let _ = config.set_max_write(REQUEST_BYTES);
        Ok(())
    }

    fn lookup(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        if parent.0 == ROOT && self.shared.calibration.has(name) {
            reply.entry(&Duration::ZERO, &Calibration::attributes(), Generation(0));
            return;
        }
        self.metadata(|| Ok(self.enter(parent, name)?.0), answer_entry(reply, self.valid));
    }

    fn forget(&self, _request: &Request, inode: INodeNo, lookups: u64) {
        locked(&self.mount.nodes).forget(inode.0, lookups);
    }

    fn getattr(&self, _request: &Request, inode: INodeNo, handle: Option<FileHandle>, reply: ReplyAttr) {
        if inode.0 == calibration::INODE {
            reply.attr(&Duration::ZERO, &Calibration::attributes());
            return;
        }
        let work = || Ok(self.status(inode.0, handle)?.attributes(inode.0));
        self.metadata(work, answer_attributes(reply, self.valid));
    }

    fn setattr(
        &self,
        _request: &Request,
        inode: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        accessed: Option<TimeOrNow>,
        modified: Option<TimeOrNow>,
        _changed: Option<SystemTime>,
        handle: Option<FileHandle>,
        _created: Option<SystemTime>,
        _changed_at: Option<SystemTime>,
        _backed_up: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let timed = accessed.is_some() || modified.is_some();
        let times = timed.then(|| backing::timestamps(accessed, modified));
        let work = || self.change(inode.0, mode, uid, gid, size, times, handle);
        self.metadata(work, answer_attributes(reply, self.valid));
    }

    fn readlink(&self, _request: &Request, inode: INodeNo, reply: ReplyData) {
        let work = || {
            let place = locked(&self.mount.nodes).place(inode.0)?;
            Ok(rustix::fs::readlinkat(&place.directory, &place.name, Vec::new())?.into_bytes())
        };
        self.metadata(work, move |result| match result {
            Ok(target) => reply.data(&target),
            Err(error) => reply.error(error),
        });
    }

    fn mknod(
        &self,
        _request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        device: u32,
        reply: ReplyEntry,
    ) {
        let kind = rustix::fs::FileType::from_raw_mode(mode);
        let bits = Mode::from_raw_mode(mode & 0o7777);
        let make = |directory: &std::os::fd::OwnedFd| {
            rustix::fs::mknodat(directory, name, kind, bits, device.into())?;
            rustix::fs::chmodat(directory, name, bits, AtFlags::empty())
        };
        self.make(parent, name, make, reply);
    }

    fn mkdir(
        &self,
        _request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        reply: ReplyEntry,
    ) {
        let mode = Mode::from_raw_mode(mode & 0o7777);
        let make = |directory: &std::os::fd::OwnedFd| {
            rustix::fs::mkdirat(directory, name, mode)?;
            rustix::fs::chmodat(directory, name, mode, AtFlags::empty())
        };
        self.make(parent, name, make, reply);
    }

    fn unlink(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.remove(parent, name, AtFlags::empty(), reply);
    }

    fn rmdir(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.remove(parent, name, AtFlags::REMOVEDIR, reply);
    }

    fn symlink(&self, _request: &Request, parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        self.make(parent, name, |directory| rustix::fs::symlinkat(target, directory, name), reply);
    }

    fn rename(
        &self,
        _request: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let work = || self.rename_file((parent, name), (new_parent, new_name), flags);
        self.metadata(work, answer_empty(reply));
    }

    fn link(
        &self,
        _request: &Request,
        inode: INodeNo,
        new_parent: INodeNo,
        new_name: &OsStr,
        reply: ReplyEntry,
    ) {
        let place = locked(&self.mount.nodes).place(inode.0);
        let make = |directory: &std::os::fd::OwnedFd| {
            let place = place.map_err(|_| rustix::io::Errno::STALE)?;
            rustix::fs::linkat(&place.directory, &place.name, directory, new_name, AtFlags::empty())
        };
        self.make(new_parent, new_name, make, reply);
    }

    fn open(&self, _request: &Request, inode: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        if inode.0 == calibration::INODE {
            // Every read comes here, and no handle has this number.
            reply.opened(FileHandle(0), FopenFlags::FOPEN_DIRECT_IO);
            return;
        }
        self.metadata(
            || self.open_file(inode.0, flags.0),
            move |result| match result {
                Ok((handle, flags)) => reply.opened(handle, flags),
                Err(error) => reply.error(error),
            },
        );
    }

    fn read(
        &self,
        _request: &Request,
        inode: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        if self.mount.is_dead() {
            reply.error(Errno::ENOTCONN);
            return;
        }
        if inode.0 == calibration::INODE {
            let (timers, now) = (&self.shared.timers, self.shared.clock.real_now());
            Calibration::answer(timers, now, self.mount.node, size as usize, reply);
            return;
        }
        let found = self.handle(handle).and_then(|handle| {
            let length = Self::clipped(&handle, offset, size)?;
            Ok((handle, length))
        });
        let (handle, length) = match found {
            Ok(found) => found,
            Err(error) => return reply.error(errno(&error)),
        };
        if length == 0 {
            return reply.data(&[]);
        }
        let booking = self.shared.transfer(self.mount.node, handle.file, offset, length, Kind::Read);
        let direct = flags.0 & libc::O_DIRECT != 0;
        let (length, failed) = match booking.bad {
            None => (length, false),
            Some(bad) if direct && bad > offset => (bad - offset, false),
            Some(_) => (length, true),
        };
        let length = length as usize;
        if booking.due <= self.shared.clock.real_now() {
            match failed {
                true => reply.error(Errno::EIO),
                false => Self::read_now(&handle, offset, length, reply),
            }
            return;
        }
        self.mount.in_flight.enter();
        self.shared.in_flight.enter();
        let (mount, shared) = (self.mount.clone(), self.shared.clone());
        let reply = ReadReply { mount, shared, handle, offset, length, failed, reply };
        self.shared.timers.push(booking.due, self.mount.node, Task::Data(Box::new(reply)));
    }

    fn write(
        &self,
        _request: &Request,
        inode: INodeNo,
        handle: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        if self.mount.is_dead() {
            reply.error(Errno::ENOTCONN);
            return;
        }
        let handle = match self.handle(handle) {
            Ok(handle) => handle,
            Err(error) => return reply.error(errno(&error)),
        };
        let length = data.len() as u64;
        let booking = self.shared.transfer(self.mount.node, handle.file, offset, length, Kind::Write);
        let result = self.write_file(inode.0, &handle, offset, data);
        let mount = self.mount.clone();
        let answer = move || match result {
            _ if mount.is_dead() => reply.error(Errno::ENOTCONN),
            Ok(()) => reply.written(length as u32),
            Err(error) => reply.error(errno(&error)),
        };
        if booking.due <= self.shared.clock.real_now() {
            return answer();
        }
        self.shared.timers.push(booking.due, self.mount.node, Task::Answer(Box::new(answer)));
    }

    fn flush(
        &self,
        _request: &Request,
        _inode: INodeNo,
        _handle: FileHandle,
        _lock_owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        // Nothing is held back; the kernel takes this for success and does not ask again.
        reply.error(Errno::ENOSYS);
    }

    fn release(
        &self,
        _request: &Request,
        _inode: INodeNo,
        handle: FileHandle,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        write_lock(&self.mount.handles).remove(&handle.0);
        reply.ok();
    }

    fn fsync(
        &self,
        _request: &Request,
        _inode: INodeNo,
        handle: FileHandle,
        data_only: bool,
        reply: ReplyEmpty,
    ) {
        let handle = match self.handle(handle) {
            Ok(handle) => handle,
            Err(error) => return reply.error(errno(&error)),
        };
        let work = move || {
            let synced = match data_only {
                true => rustix::fs::fdatasync(&handle.descriptor),
                false => rustix::fs::fsync(&handle.descriptor),
            };
            answer_empty(reply)(synced.map_err(|error| errno(&error.into())));
        };
        let _ = self.shared.errands.send(Errand::Slow(Box::new(work)));
    }

    fn opendir(&self, _request: &Request, inode: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        let work = || {
            let entries = self.read_directory(inode.0)?;
            let number = self.next_handle();
            write_lock(&self.mount.directories).insert(number, Arc::new(entries));
            Ok(FileHandle(number))
        };
        self.metadata(work, move |result| match result {
            Ok(handle) => reply.opened(handle, FopenFlags::empty()),
            Err(error) => reply.error(error),
        });
    }

    fn readdir(
        &self,
        _request: &Request,
        _inode: INodeNo,
        handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let Some(entries) = read_lock(&self.mount.directories).get(&handle.0).cloned() else {
            return reply.error(Errno::EBADF);
        };
        let rest = entries.iter().enumerate().skip(offset as usize);
        for (place, (inode, kind, name)) in rest {
            if reply.add(INodeNo(*inode), place as u64 + 1, *kind, name) {
                break;
            }
        }
        reply.ok();
    }

    fn releasedir(
        &self,
        _request: &Request,
        _inode: INodeNo,
        handle: FileHandle,
        _flags: OpenFlags,
        reply: ReplyEmpty,
    ) {
        write_lock(&self.mount.directories).remove(&handle.0);
        reply.ok();
    }

    fn statfs(&self, _request: &Request, _inode: INodeNo, reply: ReplyStatfs) {
        let work = || Ok(rustix::fs::fstatvfs(&self.shared.root)?);
        self.metadata(work, move |result| match result {
            Ok(found) => reply.statfs(
                found.f_blocks,
                found.f_bfree,
                found.f_bavail,
                found.f_files,
                found.f_ffree,
                found.f_bsize as u32,
                found.f_namemax as u32,
                found.f_frsize as u32,
            ),
            Err(error) => reply.error(error),
        });
    }

    fn create(
        &self,
        _request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let valid = self.valid;
        self.metadata(
            || self.create_file(parent, name, mode, flags),
            move |result| match result {
                Ok((attributes, handle)) => {
                    reply.created(&valid, &attributes, Generation(0), handle, FopenFlags::FOPEN_KEEP_CACHE);
                }
                Err(error) => reply.error(error),
            },
        );
    }

    fn fallocate(
        &self,
        _request: &Request,
        inode: INodeNo,
        handle: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let work = || {
            let handle = self.handle(handle)?;
            let mode = FallocateFlags::from_bits_retain(mode as u32);
            rustix::fs::fallocate(&handle.descriptor, mode, offset, length)?;
            self.restamp(inode.0, &handle.descriptor);
            self.changed(inode.0, offset, length);
            Ok(())
        };
        self.metadata(work, answer_empty(reply));
    }

    fn lseek(
        &self,
        _request: &Request,
        _inode: INodeNo,
        handle: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        let work = || {
            let handle = self.handle(handle)?;
            let offset = u64::try_from(offset).map_err(|_| error_number(libc::EINVAL))?;
            // The kernel answers the other kinds itself. Nobody uses the position of the backing file.
            let to = match whence {
                libc::SEEK_DATA => rustix::fs::SeekFrom::Data(offset),
                libc::SEEK_HOLE => rustix::fs::SeekFrom::Hole(offset),
                _ => return Err(error_number(libc::EINVAL)),
            };
            Ok(rustix::fs::seek(&handle.descriptor, to)?)
        };
        self.metadata(work, move |result| match result {
            Ok(found) => reply.offset(found as i64),
            Err(error) => reply.error(error),
        });
    }

    // Not here on purpose: extended attributes, locks and copying ranges. The kernel takes "not implemented" for an answer, does not ask
    // again, refuses attributes (EOPNOTSUPP), locks within the mount and copies by reading and writing.
}
