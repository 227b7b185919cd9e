//! One mount, as the kernel sees it.
//!
//! Every request comes here on a loop thread, which never sleeps: it books the cost with the model, does what is quick on the backing store,
//! and leaves the reply to the timers. Requests that cost nothing are answered on the spot.
//!
//! - Reads: booked first, so that the servers' queues have the order of coming; the data are read while the reply waits. A request that the
//!   page cache made and that touches an unreadable range fails whole, and the kernel then asks for each page that somebody wants; one of
//!   `O_DIRECT` ends before the range (and where one `read()` is several requests, the error of any is the kernel's answer to all).
//! - Writes reach the backing store at once and are booked like reads; there is no write-back cache.
//! - Names and attributes cost an operation of the metadata server each. They stay valid for as long as Lustre keeps an unused lock.
//! - Open files keep their pages. They are dropped where the backing file was changed by somebody else since the last look.
use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use fuser::{
    BsdFileFlags, Errno, FileHandle, Filesystem, FopenFlags, Generation, INodeNo, InitFlags, KernelConfig,
    LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyEmpty,
    ReplyEntry, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, Request, TimeOrNow, WriteFlags,
};
use rustix::fs::{AtFlags, FallocateFlags, Mode};

use crate::emulator::backing::{self, errno};
use crate::emulator::calibration::{self, Calibration};
use crate::emulator::errands::Errand;
use crate::emulator::nodes::ROOT;
use crate::emulator::operations::{
    MountFileSystem, ReadReply, answer_attributes, answer_empty, answer_entry, error_number, read_lock,
    write_lock,
};
use crate::emulator::shared::locked;
use crate::emulator::timers::Task;
use crate::model::Kind;

/// The largest request \[B\]: what the kernel carries unless `/proc/sys/fs/fuse/max_pages_limit` is raised.
const REQUEST_BYTES: u32 = 1 << 20;

/// Requests of read-ahead and of asynchronous programs that the kernel lets come at once; the default of 16 would be the bottleneck
/// of every deep queue.
const MAX_BACKGROUND: u16 = 256;

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
        let work = || self.change(inode.0, mode, uid, gid, size, times.as_ref(), handle);
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
            if failed {
                reply.error(Errno::EIO);
            } else {
                self.read_now(&handle, offset, length, reply);
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
        let handle = match self.handle(handle) {
            Ok(handle) => handle,
            Err(error) => return reply.error(errno(&error)),
        };
        let length = data.len() as u64;
        let booking = self.shared.transfer(self.mount.node, handle.file, offset, length, Kind::Write);
        let result = self.write_file(inode.0, &handle, offset, data);
        let mount = self.mount.clone();
        let answer = move || match mount.check_alive().and(result) {
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
            let sync = if data_only { rustix::fs::fdatasync } else { rustix::fs::fsync };
            let synced = sync(&handle.descriptor);
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
            let _nothing_is_sent = write_lock(&self.shared.sizes);
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
