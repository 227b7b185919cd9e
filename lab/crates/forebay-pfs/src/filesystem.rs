//! The requests of the kernel to one mount.
//!
//! A request arrives on a request thread, which never sleeps: it books the cost with the model,
//! performs quick work on the backing directory, and passes the reply to the scheduler. A request
//! without cost is answered immediately.
//!
//! - **Reads** are booked first, so that the queues of the servers keep the order of arrival; the
//!   data are read while the reply waits. A request of the page cache that touches an unreadable
//!   range fails whole, and the kernel then requests each page that a program needs. One of
//!   `O_DIRECT` ends before the range.
//! - **Writes** reach the backing directory at once and are booked like reads. With
//!   `write_back_bytes` the program does not wait for the servers, but fsync does.
//! - **Names and attributes** cost one metadata operation each, and stay valid as long as Lustre
//!   keeps an unused lock.
//! - **Open files** keep their cached pages, unless the backing file has changed since the last
//!   open.
use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use forebay_model::Direction;
use fuser::{
    BsdFileFlags, Errno, FileAttr, FileHandle, Filesystem, FopenFlags, Generation, INodeNo, InitFlags,
    KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory,
    ReplyEmpty, ReplyEntry, ReplyOpen, ReplyStatfs, ReplyWrite, Request, TimeOrNow, WriteFlags,
};
use rustix::fs::{AtFlags, Gid, Mode, OFlags, Timestamps, Uid};

use crate::context::Context;
use crate::deferred::Deferred;
use crate::files::backing::{self, Status, errno, error_number, open_flags, write_full};
use crate::files::inodes::{Numbers, ROOT};
use crate::files::mapping::Mapping;
use crate::locks::{locked, read_locked, write_locked};
use crate::mount::{DirectoryEntry, Handle, Mount};
use crate::read_reply::{ReadReply, clip, send_now};
use crate::timing::reply_scheduler::Reply;
use crate::timing::round_trip::{self, RoundTrip};

/// The largest request \[B\]: the kernel's default (`/proc/sys/fs/fuse/max_pages_limit`).
const REQUEST_BYTES: u32 = 1 << 20;

/// Requests of read-ahead and of asynchronous programs in flight. The kernel's default of 16 would
/// limit every deep queue.
const MAX_BACKGROUND: u16 = 256;

/// Validity of names and attributes \[model s\]: how long Lustre has kept an unused lock since
/// 2024.
const VALID_SECONDS: u64 = 600;

/// The file system of one mount.
pub(crate) struct MountFileSystem {
    context: Arc<Context>,
    mount: Arc<Mount>,
    /// Validity of names and attributes in the kernel's cache.
    valid: Duration,
}

/// A reply that can be an error.
trait FallibleReply: Send + 'static {
    fn fail(self, error: Errno);
}

macro_rules! fallible_replies {
    ($($reply:ty),*) => {
        $(impl FallibleReply for $reply {
            fn fail(self, error: Errno) {
                self.error(error);
            }
        })*
    };
}

fallible_replies!(ReplyAttr, ReplyCreate, ReplyData, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyStatfs);

fn send_entry(valid: Duration) -> impl FnOnce(ReplyEntry, FileAttr) + Send + 'static {
    move |reply, attributes| reply.entry(&valid, &attributes, Generation(0))
}

fn send_attributes(valid: Duration) -> impl FnOnce(ReplyAttr, FileAttr) + Send + 'static {
    move |reply, attributes| reply.attr(&valid, &attributes)
}

impl Filesystem for MountFileSystem {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        // One by one: an old kernel that lacks one of them refuses the whole call.
        for wanted in [InitFlags::FUSE_ASYNC_DIO, InitFlags::FUSE_PARALLEL_DIROPS] {
            let _ = config.add_capabilities(wanted);
        }
        // These values are within the limits of every kernel.
        let _ = config.set_max_background(MAX_BACKGROUND);
        let _ = config.set_congestion_threshold(MAX_BACKGROUND);
        let _ = config.set_max_write(REQUEST_BYTES);
        Ok(())
    }

    fn lookup(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        if parent.0 == ROOT && self.context.round_trip.is_probe(name) {
            reply.entry(&Duration::ZERO, &RoundTrip::attributes(), Generation(0));
            return;
        }
        self.metadata(reply, || Ok(self.look_up(parent, name)?.0), send_entry(self.valid));
    }

    fn forget(&self, _request: &Request, inode: INodeNo, lookups: u64) {
        locked(&self.mount.inodes).forget(inode.0, lookups);
    }

    fn getattr(&self, _request: &Request, inode: INodeNo, handle: Option<FileHandle>, reply: ReplyAttr) {
        if inode.0 == round_trip::INODE {
            reply.attr(&Duration::ZERO, &RoundTrip::attributes());
            return;
        }
        let work = || Ok(self.status(inode.0, handle)?.attributes(inode.0));
        self.metadata(reply, work, send_attributes(self.valid));
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
        let work = || {
            if let Some(size) = size {
                self.truncate(inode.0, size, handle)?;
            }
            if mode.is_some() || uid.is_some() || gid.is_some() || times.is_some() {
                self.set_attributes(inode.0, mode, uid, gid, times.as_ref())?;
            }
            Ok(self.status(inode.0, handle)?.attributes(inode.0))
        };
        self.metadata(reply, work, send_attributes(self.valid));
    }

    fn readlink(&self, _request: &Request, inode: INodeNo, reply: ReplyData) {
        let work = || {
            let found = locked(&self.mount.inodes).locate(inode.0)?;
            Ok(rustix::fs::readlinkat(&found.directory, &found.name, Vec::new())?.into_bytes())
        };
        self.metadata(reply, work, |reply, target| reply.data(&target));
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
        let make = |directory: &OwnedFd| {
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
        self.metadata(reply, work, |reply, ()| reply.ok());
    }

    fn link(
        &self,
        _request: &Request,
        inode: INodeNo,
        new_parent: INodeNo,
        new_name: &OsStr,
        reply: ReplyEntry,
    ) {
        let found = locked(&self.mount.inodes).locate(inode.0);
        let make = |directory: &OwnedFd| {
            let found = found.map_err(|_| rustix::io::Errno::STALE)?;
            rustix::fs::linkat(&found.directory, &found.name, directory, new_name, AtFlags::empty())
        };
        self.make(new_parent, new_name, make, reply);
    }

    fn open(&self, _request: &Request, inode: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        if inode.0 == round_trip::INODE {
            // FOPEN_DIRECT_IO: no read is answered from the page cache. No other file has handle 0.
            reply.opened(FileHandle(0), FopenFlags::FOPEN_DIRECT_IO);
            return;
        }
        let work = || self.open_file(inode.0, flags.0);
        self.metadata(reply, work, |reply, (handle, flags)| reply.opened(handle, flags));
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
        if inode.0 == round_trip::INODE {
            let (scheduler, now) = (&self.context.scheduler, self.context.clock.real_now());
            RoundTrip::answer(scheduler, now, self.mount.node, size as usize, reply);
            return;
        }
        let found = self.handle(handle).and_then(|handle| {
            let length = clip(&handle, offset, size.into())?;
            Ok((handle, length))
        });
        let (handle, length) = match found {
            Ok(found) => found,
            Err(error) => return reply.error(errno(&error)),
        };
        if length == 0 {
            return reply.data(&[]);
        }
        let booking = self.context.transfer(self.mount.node, handle.file, offset, length, Direction::Read);
        let direct = flags.0 & libc::O_DIRECT != 0;
        let (length, failed) = match booking.bad {
            None => (length, false),
            Some(bad) if direct && bad > offset => (bad - offset, false),
            Some(_) => (length, true),
        };
        let length = length as usize;
        if booking.due <= self.context.clock.real_now() {
            if failed {
                reply.error(Errno::EIO);
            } else {
                send_now(&self.context, &handle, offset, length, reply);
            }
            return;
        }
        self.mount.in_flight.enter();
        self.context.in_flight.enter();
        let (mount, context) = (self.mount.clone(), self.context.clone());
        let reply = ReadReply { mount, context, handle, offset, length, failed, reply };
        self.context.scheduler.schedule(booking.due, self.mount.node, Reply::Data(Box::new(reply)));
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
        let handle = match self.handle(handle) {
            Ok(handle) => handle,
            Err(error) => return reply.error(errno(&error)),
        };
        let length = data.len() as u64;
        let booking = self.context.transfer(self.mount.node, handle.file, offset, length, Direction::Write);
        let result = self.write_file(inode.0, &handle, offset, data);
        let mount = self.mount.clone();
        let answer = move || match mount.check_serving().and(result) {
            Ok(()) => reply.written(length as u32),
            Err(error) => reply.error(errno(&error)),
        };
        if booking.due <= self.context.clock.real_now() {
            return answer();
        }
        self.context.scheduler.schedule(booking.due, self.mount.node, Reply::Plain(Box::new(answer)));
    }

    fn flush(
        &self,
        _request: &Request,
        _inode: INodeNo,
        _handle: FileHandle,
        _lock_owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        // Nothing is buffered. The kernel treats ENOSYS as success and does not ask again.
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
        write_locked(&self.mount.handles).remove(&handle.0);
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
        let sync = move || {
            let sync = if data_only { rustix::fs::fdatasync } else { rustix::fs::fsync };
            let synced = sync(&handle.descriptor);
            match synced {
                Ok(()) => reply.ok(),
                Err(error) => reply.error(errno(&error.into())),
            }
        };
        let due = self.context.synchronized(self.mount.node);
        let deferred = self.context.deferred.clone();
        let work = move || {
            let _ = deferred.send(Deferred::Run(Box::new(sync)));
        };
        if due <= self.context.clock.real_now() {
            return work();
        }
        self.context.scheduler.schedule(due, self.mount.node, Reply::Plain(Box::new(work)));
    }

    fn opendir(&self, _request: &Request, inode: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        let work = || {
            let entries = self.read_directory(inode.0)?;
            let number = self.next_handle();
            write_locked(&self.mount.directories).insert(number, Arc::new(entries));
            Ok(FileHandle(number))
        };
        self.metadata(reply, work, |reply, handle| reply.opened(handle, FopenFlags::empty()));
    }

    fn readdir(
        &self,
        _request: &Request,
        _inode: INodeNo,
        handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let Some(entries) = read_locked(&self.mount.directories).get(&handle.0).cloned() else {
            return reply.error(Errno::EBADF);
        };
        let rest = entries.iter().enumerate().skip(offset as usize);
        for (index, (inode, kind, name)) in rest {
            if reply.add(INodeNo(*inode), index as u64 + 1, *kind, name) {
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
        write_locked(&self.mount.directories).remove(&handle.0);
        reply.ok();
    }

    fn statfs(&self, _request: &Request, _inode: INodeNo, reply: ReplyStatfs) {
        let work = || Ok(rustix::fs::fstatvfs(&self.context.root)?);
        self.metadata(reply, work, |reply, found| {
            reply.statfs(
                found.f_blocks,
                found.f_bfree,
                found.f_bavail,
                found.f_files,
                found.f_ffree,
                found.f_bsize as u32,
                found.f_namemax as u32,
                found.f_frsize as u32,
            );
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
        let work = || self.create_file(parent, name, mode, flags);
        self.metadata(reply, work, move |reply, (attributes, handle)| {
            reply.created(&valid, &attributes, Generation(0), handle, FopenFlags::FOPEN_KEEP_CACHE);
        });
    }

    // Left out on purpose, because no reader or converter of datasets needs them: device files and
    // sockets, fallocate, SEEK_DATA and SEEK_HOLE, extended attributes, locks, copying of ranges.
    // After ENOSYS the kernel does not ask again. It refuses attributes and fallocate (EOPNOTSUPP),
    // reports files without holes, implements locks within the mount, and copies by reading and
    // writing.
}

impl MountFileSystem {
    pub(crate) fn new(context: Arc<Context>, mount: Arc<Mount>) -> MountFileSystem {
        let valid = context.clock.scaled(Duration::from_secs(VALID_SECONDS));
        MountFileSystem { context, mount, valid }
    }

    /// Performs a metadata operation, and answers once the metadata server would have.
    fn metadata<R: FallibleReply, T: Send + 'static>(
        &self,
        reply: R,
        work: impl FnOnce() -> io::Result<T>,
        send: impl FnOnce(R, T) + Send + 'static,
    ) {
        if let Err(error) = self.mount.check_serving() {
            return reply.fail(errno(&error));
        }
        let due = self.context.metadata(self.mount.node);
        let result = work();
        let answer = move || match result {
            Ok(value) => send(reply, value),
            Err(error) => reply.fail(errno(&error)),
        };
        if due <= self.context.clock.real_now() {
            return answer();
        }
        self.context.scheduler.schedule(due, self.mount.node, Reply::Plain(Box::new(answer)));
    }

    /// An open file. Fails unless the mount is serving.
    fn handle(&self, handle: FileHandle) -> io::Result<Arc<Handle>> {
        self.mount.check_serving()?;
        read_locked(&self.mount.handles).get(&handle.0).cloned().ok_or_else(|| error_number(libc::EBADF))
    }

    fn next_handle(&self) -> u64 {
        self.mount.last_handle.fetch_add(1, Ordering::Relaxed) + 1
    }

    fn keep_handle(&self, handle: Handle) -> FileHandle {
        let number = self.next_handle();
        write_locked(&self.mount.handles).insert(number, Arc::new(handle));
        FileHandle(number)
    }

    /// The numbers of `name` in a directory.
    fn numbers(&self, parent: u64, name: &OsStr, status: &Status) -> Numbers {
        let path = || locked(&self.mount.inodes).path(parent, name).to_string_lossy().into_owned();
        locked(&self.context.numbers).of(status, path)
    }

    /// Looks a name up on behalf of the kernel.
    fn look_up(&self, parent: INodeNo, name: &OsStr) -> io::Result<(FileAttr, Numbers)> {
        let directory = locked(&self.mount.inodes).directory(parent.0)?;
        let status = Status::at(&directory, name)?;
        let numbers = self.numbers(parent.0, name, &status);
        locked(&self.mount.inodes).looked_up(parent.0, name, &status, numbers)?;
        Ok((status.attributes(numbers.inode), numbers))
    }

    /// Creates a name, then looks it up.
    fn make(
        &self,
        parent: INodeNo,
        name: &OsStr,
        make: impl FnOnce(&OwnedFd) -> rustix::io::Result<()>,
        reply: ReplyEntry,
    ) {
        let work = || {
            make(&*locked(&self.mount.inodes).directory(parent.0)?)?;
            Ok(self.look_up(parent, name)?.0)
        };
        self.metadata(reply, work, send_entry(self.valid));
    }

    /// Status of a file, through its handle if the kernel sent one.
    fn status(&self, inode: u64, handle: Option<FileHandle>) -> io::Result<Status> {
        if let Some(handle) = handle
            && let Ok(handle) = self.handle(handle)
        {
            return Status::of(&handle.descriptor);
        }
        let found = locked(&self.mount.inodes).locate(inode)?;
        let status = Status::at(&found.directory, &found.name)?;
        if status.key() != found.key {
            return Err(error_number(libc::ESTALE));
        }
        Ok(status)
    }

    fn invalidate_data(&self, inode: u64, offset: u64, length: u64) {
        let _ = self.context.deferred.send(Deferred::InvalidateData {
            by: self.mount.node,
            inode,
            offset,
            length,
        });
    }

    fn invalidate_name(&self, parent: INodeNo, name: &OsStr) {
        let (by, parent, name) = (self.mount.node, parent.0, name.to_owned());
        let _ = self.context.deferred.send(Deferred::InvalidateName { by, parent, name });
    }

    /// Records that the kernel's cache holds the current contents.
    fn update_version(&self, inode: u64, file: impl AsFd) {
        if let Ok(status) = Status::of(file) {
            locked(&self.mount.inodes).set_version(inode, status.version());
        }
    }

    fn open_file(&self, inode: u64, flags: i32) -> io::Result<(FileHandle, FopenFlags)> {
        let found = locked(&self.mount.inodes).locate(inode)?;
        let descriptor = rustix::fs::openat(&found.directory, &found.name, open_flags(flags), Mode::empty())?;
        let status = Status::of(&descriptor)?;
        if status.key() != found.key {
            return Err(error_number(libc::ESTALE));
        }
        let file = found.numbers.file.ok_or_else(|| error_number(libc::EINVAL))?;
        let mut answer = FopenFlags::FOPEN_KEEP_CACHE;
        if locked(&self.mount.inodes).set_version(inode, status.version()) {
            answer = FopenFlags::empty();
            if let Some(notifier) = self.mount.notifier.get() {
                // Not deferred, since a read must not see the old size. A negative offset drops the
                // attributes only and never waits; the answer drops the pages.
                let _ = notifier.inval_inode(INodeNo(inode), -1, 0);
            }
        }
        Ok((self.keep_handle(Handle { descriptor, file, mapping: Mapping::default() }), answer))
    }

    fn read_directory(&self, inode: u64) -> io::Result<Vec<DirectoryEntry>> {
        let directory = locked(&self.mount.inodes).directory(inode)?;
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
            let directory = locked(&self.mount.inodes).directory(parent.0)?;
            let status = Status::at(&directory, name)?;
            let numbers = self.numbers(parent.0, name, &status);
            rustix::fs::unlinkat(&directory, name, flags)?;
            self.forget_name(parent.0, name, &status, numbers);
            self.invalidate_name(parent, name);
            Ok(())
        };
        self.metadata(reply, work, |reply, ()| reply.ok());
    }

    /// Forgets a deleted name, and after the last one the file.
    fn forget_name(&self, parent: u64, name: &OsStr, status: &Status, numbers: Numbers) {
        locked(&self.mount.inodes).removed(parent, name, numbers.inode);
        if status.links() <= 1 || status.kind() == fuser::FileType::Directory {
            locked(&self.context.numbers).remove(status.key());
        }
    }

    fn truncate(&self, inode: u64, size: u64, handle: Option<FileHandle>) -> io::Result<()> {
        let _no_reply_is_sent = write_locked(&self.context.sizes);
        if let Some(handle) = handle.and_then(|handle| self.handle(handle).ok()) {
            rustix::fs::ftruncate(&handle.descriptor, size)?;
            self.update_version(inode, &handle.descriptor);
        } else {
            let found = locked(&self.mount.inodes).locate(inode)?;
            let flags = open_flags(libc::O_WRONLY);
            let file = rustix::fs::openat(&found.directory, &found.name, flags, Mode::empty())?;
            rustix::fs::ftruncate(&file, size)?;
            self.update_version(inode, &file);
        }
        self.invalidate_data(inode, size, 0);
        Ok(())
    }

    fn set_attributes(
        &self,
        inode: u64,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        times: Option<&Timestamps>,
    ) -> io::Result<()> {
        let found = locked(&self.mount.inodes).locate(inode)?;
        if uid.is_some() || gid.is_some() {
            let (uid, gid) = (uid.map(Uid::from_raw), gid.map(Gid::from_raw));
            rustix::fs::chownat(&found.directory, &found.name, uid, gid, AtFlags::SYMLINK_NOFOLLOW)?;
        }
        if let Some(mode) = mode {
            let mode = Mode::from_raw_mode(mode & 0o7777);
            rustix::fs::chmodat(&found.directory, &found.name, mode, AtFlags::empty())?;
        }
        if let Some(times) = times {
            rustix::fs::utimensat(&found.directory, &found.name, times, AtFlags::SYMLINK_NOFOLLOW)?;
        }
        let status = Status::at(&found.directory, &found.name)?;
        locked(&self.mount.inodes).set_version(inode, status.version());
        // Attributes only: there are no pages that far.
        self.invalidate_data(inode, i64::MAX as u64 & !0xfff, 0);
        Ok(())
    }

    fn rename_file(
        &self,
        from: (INodeNo, &OsStr),
        to: (INodeNo, &OsStr),
        flags: RenameFlags,
    ) -> io::Result<()> {
        if !flags.difference(RenameFlags::RENAME_NOREPLACE).is_empty() {
            return Err(error_number(libc::EINVAL));
        }
        let (old, new) = {
            let inodes = locked(&self.mount.inodes);
            (inodes.directory(from.0.0)?, inodes.directory(to.0.0)?)
        };
        let status = Status::at(&old, from.1)?;
        let moved = self.numbers(from.0.0, from.1, &status);
        let replaced = Status::at(&new, to.1).ok();
        let replaced = replaced.map(|status| (status, self.numbers(to.0.0, to.1, &status)));
        let kernel_flags = rustix::fs::RenameFlags::from_bits_retain(flags.bits());
        rustix::fs::renameat_with(&old, from.1, &new, to.1, kernel_flags)?;
        let source = (from.0.0, from.1);
        let target = (to.0.0, to.1);
        if let Some((status, numbers)) = replaced
            && numbers != moved
        {
            self.forget_name(target.0, target.1, &status, numbers);
        }
        let mut inodes = locked(&self.mount.inodes);
        inodes.renamed(source, target, moved.inode);
        let path = inodes.path(target.0, target.1).to_string_lossy().into_owned();
        drop(inodes);
        if let Some(file) = moved.file {
            locked(&self.context.numbers).renamed(file, path);
        }
        self.invalidate_name(from.0, from.1);
        self.invalidate_name(to.0, to.1);
        Ok(())
    }

    fn create_file(
        &self,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        flags: i32,
    ) -> io::Result<(FileAttr, FileHandle)> {
        let directory = locked(&self.mount.inodes).directory(parent.0)?;
        let mode = Mode::from_raw_mode(mode & 0o7777);
        let fresh = open_flags(flags) | OFlags::CREATE | OFlags::EXCL;
        let descriptor = match rustix::fs::openat(&directory, name, fresh, mode) {
            Ok(descriptor) => {
                // The kernel has applied the program's umask; undo that of this process.
                rustix::fs::fchmod(&descriptor, mode)?;
                descriptor
            }
            Err(rustix::io::Errno::EXIST) if flags & libc::O_EXCL == 0 => {
                rustix::fs::openat(&directory, name, open_flags(flags), Mode::empty())?
            }
            Err(error) => return Err(error.into()),
        };
        let (attributes, numbers) = self.look_up(parent, name)?;
        let file = numbers.file.ok_or_else(|| error_number(libc::EEXIST))?;
        Ok((attributes, self.keep_handle(Handle { descriptor, file, mapping: Mapping::default() })))
    }

    fn write_file(&self, inode: u64, handle: &Handle, offset: u64, data: &[u8]) -> io::Result<()> {
        write_full(&handle.descriptor, data, offset)?;
        self.update_version(inode, &handle.descriptor);
        self.invalidate_data(inode, offset, data.len() as u64);
        Ok(())
    }
}
