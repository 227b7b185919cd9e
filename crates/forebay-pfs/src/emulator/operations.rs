//! What the requests of one mount do, short of understanding and answering them.
use std::cell::RefCell;
use std::ffi::OsStr;
use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use fuser::{
    Errno, FileAttr, FileHandle, FopenFlags, Generation, INodeNo, RenameFlags, ReplyAttr, ReplyData,
    ReplyEmpty, ReplyEntry,
};
use rustix::fs::{AtFlags, Gid, Mode, OFlags, Uid};

use crate::emulator::backing::{self, Status, errno, open_flags, read_full, write_full};
use crate::emulator::errands::Errand;
use crate::emulator::mapping::Mapping;
use crate::emulator::nodes::Identity;
use crate::emulator::shared::{DirectoryEntry, Handle, Mounted, Shared, locked};
use crate::emulator::timers::{DataReply, Task};

/// How long names and attributes stay valid \[model seconds\]: what Lustre keeps an unused lock since 2024.
const VALID_SECONDS: u64 = 600;

thread_local! {
    /// Data of replies that leave on the spot.
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// The file system of one mount.
pub(crate) struct MountFileSystem {
    pub(crate) shared: Arc<Shared>,
    pub(crate) mount: Arc<Mounted>,
    /// How long the kernel may believe in names and attributes.
    pub(crate) valid: Duration,
}

pub(crate) fn read_lock<T>(lock: &RwLock<T>) -> std::sync::RwLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn write_lock<T>(lock: &RwLock<T>) -> std::sync::RwLockWriteGuard<'_, T> {
    lock.write().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn error_number(number: i32) -> io::Error {
    io::Error::from_raw_os_error(number)
}

/// The data of one read, on its way.
pub(crate) struct ReadReply {
    pub(crate) mount: Arc<Mounted>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) handle: Arc<Handle>,
    pub(crate) offset: u64,
    pub(crate) length: usize,
    pub(crate) failed: bool,
    pub(crate) reply: ReplyData,
}

impl DataReply for ReadReply {
    fn prepare(&mut self) -> bool {
        let Handle { mapping, descriptor, .. } = &*self.handle;
        let served = !self.failed && mapping.serves(descriptor, self.offset, self.length);
        if served {
            mapping.populate(self.offset, self.length);
        }
        served
    }

    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.failed {
            return Err(error_number(libc::EIO));
        }
        read_full(&self.handle.descriptor, &mut buffer[..self.length], self.offset)
    }

    fn length(&self) -> usize {
        self.length
    }

    fn send(self: Box<Self>, data: io::Result<Option<&[u8]>>) {
        // Before the reply: whoever gets it may look at the counters at once.
        self.mount.in_flight.leave();
        self.shared.in_flight.leave();
        match self.mount.check_alive().and(data) {
            Ok(Some(data)) => self.reply.data(data),
            Ok(None) => send_mapped(&self.shared, &self.handle, self.offset, self.length, self.reply),
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
    pub(crate) fn metadata<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> io::Result<T>,
        answer: impl FnOnce(Result<T, Errno>) + Send + 'static,
    ) {
        if let Err(error) = self.mount.check_alive() {
            return answer(Err(errno(&error)));
        }
        let due = self.shared.metadata(self.mount.node);
        let result = work().map_err(|error| errno(&error));
        if due <= self.shared.clock.real_now() {
            answer(result);
            return;
        }
        self.shared.timers.push(due, self.mount.node, Task::Answer(Box::new(move || answer(result))));
    }

    /// An open file; refused on a dead mount.
    pub(crate) fn handle(&self, handle: FileHandle) -> io::Result<Arc<Handle>> {
        self.mount.check_alive()?;
        read_lock(&self.mount.handles).get(&handle.0).cloned().ok_or_else(|| error_number(libc::EBADF))
    }

    pub(crate) fn next_handle(&self) -> u64 {
        self.mount.last_handle.fetch_add(1, Ordering::Relaxed) + 1
    }

    pub(crate) fn keep_handle(&self, handle: Handle) -> FileHandle {
        let number = self.next_handle();
        write_lock(&self.mount.handles).insert(number, Arc::new(handle));
        FileHandle(number)
    }

    /// Both numbers of what is called `name` in a directory.
    pub(crate) fn identity(&self, parent: u64, name: &OsStr, status: &Status) -> Identity {
        let path = || locked(&self.mount.nodes).path(parent, name).to_string_lossy().into_owned();
        locked(&self.shared.identities).of(status, path)
    }

    /// Finds a name and lets the kernel know the file.
    pub(crate) fn enter(&self, parent: INodeNo, name: &OsStr) -> io::Result<(FileAttr, Identity)> {
        let directory = locked(&self.mount.nodes).directory(parent.0)?;
        let status = Status::at(&directory, name)?;
        let identity = self.identity(parent.0, name, &status);
        locked(&self.mount.nodes).entered(parent.0, name, &status, identity)?;
        Ok((status.attributes(identity.inode), identity))
    }

    /// Makes a name, then lets the kernel know the file.
    pub(crate) fn make(
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
    pub(crate) fn status(&self, inode: u64, handle: Option<FileHandle>) -> io::Result<Status> {
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

    pub(crate) fn changed(&self, inode: u64, offset: u64, length: u64) {
        let _ = self.shared.errands.send(Errand::Changed { by: self.mount.node, inode, offset, length });
    }

    pub(crate) fn name_changed(&self, parent: INodeNo, name: &OsStr) {
        let (by, parent, name) = (self.mount.node, parent.0, name.to_owned());
        let _ = self.shared.errands.send(Errand::Renamed { by, parent, name });
    }

    /// The kernel's cache goes with the file as it is now.
    pub(crate) fn restamp(&self, inode: u64, file: impl AsFd) {
        if let Ok(status) = Status::of(file) {
            locked(&self.mount.nodes).restamp(inode, status.stamp());
        }
    }

    pub(crate) fn open_file(&self, inode: u64, flags: i32) -> io::Result<(FileHandle, FopenFlags)> {
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
            if let Some(notifier) = self.mount.notifier.get() {
                // Now and not as an errand: a read must not see the old size. A negative offset keeps the pages, so this waits for
                // none; they go with the answer.
                let _ = notifier.inval_inode(INodeNo(inode), -1, 0);
            }
        }
        Ok((self.keep_handle(Handle { descriptor, file, mapping: Mapping::default() }), answer))
    }

    pub(crate) fn read_directory(&self, inode: u64) -> io::Result<Vec<DirectoryEntry>> {
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

    pub(crate) fn remove(&self, parent: INodeNo, name: &OsStr, flags: AtFlags, reply: ReplyEmpty) {
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
    pub(crate) fn forget_name(&self, parent: u64, name: &OsStr, status: &Status, identity: Identity) {
        locked(&self.mount.nodes).removed(parent, name, identity.inode);
        if status.links() <= 1 || status.kind() == fuser::FileType::Directory {
            locked(&self.shared.identities).gone(status.key());
        }
    }

    #[expect(clippy::too_many_arguments, reason = "the kernel changes attributes all at once")]
    pub(crate) fn change(
        &self,
        inode: u64,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        times: Option<&rustix::fs::Timestamps>,
        handle: Option<FileHandle>,
    ) -> io::Result<FileAttr> {
        let place = locked(&self.mount.nodes).place(inode);
        if let Some(size) = size {
            let _nothing_is_sent = write_lock(&self.shared.sizes);
            let opened = handle.and_then(|handle| self.handle(handle).ok());
            if let Some(handle) = opened {
                rustix::fs::ftruncate(&handle.descriptor, size)?;
                self.restamp(inode, &handle.descriptor);
            } else {
                let place = place.as_ref().map_err(copy)?;
                let flags = open_flags(libc::O_WRONLY);
                let file = rustix::fs::openat(&place.directory, &place.name, flags, Mode::empty())?;
                rustix::fs::ftruncate(&file, size)?;
                self.restamp(inode, &file);
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
            if let Some(times) = times {
                rustix::fs::utimensat(&place.directory, &place.name, times, AtFlags::SYMLINK_NOFOLLOW)?;
            }
            let status = Status::at(&place.directory, &place.name)?;
            locked(&self.mount.nodes).restamp(inode, status.stamp());
            // Attributes only; beyond the end there are no pages.
            self.changed(inode, i64::MAX as u64 & !0xfff, 0);
        }
        Ok(self.status(inode, handle)?.attributes(inode))
    }

    pub(crate) fn rename_file(
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

    pub(crate) fn create_file(
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
        Ok((attributes, self.keep_handle(Handle { descriptor, file, mapping: Mapping::default() })))
    }

    pub(crate) fn write_file(&self, inode: u64, handle: &Handle, offset: u64, data: &[u8]) -> io::Result<()> {
        write_full(&handle.descriptor, data, offset)?;
        self.restamp(inode, &handle.descriptor);
        self.changed(inode, offset, data.len() as u64);
        Ok(())
    }

    /// How much of a read lies in the file.
    pub(crate) fn clipped(handle: &Handle, offset: u64, size: u32) -> io::Result<u64> {
        let end = rustix::fs::fstat(&handle.descriptor)?.st_size as u64;
        Ok(u64::from(size).min(end.saturating_sub(offset)))
    }

    /// Answers a read on the spot.
    pub(crate) fn read_now(&self, handle: &Handle, offset: u64, length: usize, reply: ReplyData) {
        if handle.mapping.serves(&handle.descriptor, offset, length) {
            return send_mapped(&self.shared, handle, offset, length, reply);
        }
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

/// Sends a range that the mapping of the file serves, as far as the file still reaches.
fn send_mapped(shared: &Shared, handle: &Handle, offset: u64, length: usize, reply: ReplyData) {
    let _no_shorter = read_lock(&shared.sizes);
    match MountFileSystem::clipped(handle, offset, length as u32) {
        Ok(length) => reply.data(handle.mapping.bytes(offset, length as usize).unwrap_or_default()),
        Err(error) => reply.error(errno(&error)),
    }
}

/// The same error again.
fn copy(error: &io::Error) -> io::Error {
    error_number(error.raw_os_error().unwrap_or(libc::EIO))
}

/// Sends the outcome of what finds or makes a name.
pub(crate) fn answer_entry(
    reply: ReplyEntry,
    valid: Duration,
) -> impl FnOnce(Result<FileAttr, Errno>) + Send + 'static {
    move |result| match result {
        Ok(attributes) => reply.entry(&valid, &attributes, Generation(0)),
        Err(error) => reply.error(error),
    }
}

/// Sends attributes.
pub(crate) fn answer_attributes(
    reply: ReplyAttr,
    valid: Duration,
) -> impl FnOnce(Result<FileAttr, Errno>) + Send + 'static {
    move |result| match result {
        Ok(attributes) => reply.attr(&valid, &attributes),
        Err(error) => reply.error(error),
    }
}

/// Sends that something is done.
pub(crate) fn answer_empty(reply: ReplyEmpty) -> impl FnOnce(Result<(), Errno>) + Send + 'static {
    move |result| match result {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(error),
    }
}
