//! The upper bound for any FUSE server: one file, and every read is answered from one buffer.
//!
//! It has the mount options, request sizes and threads of the emulator, but books nothing, waits
//! for nothing and reads nothing. All other names do not exist.
use std::ffi::OsStr;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

use fuser::{
    BackgroundSession, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation,
    INodeNo, InitFlags, KernelConfig, LockOwner, OpenFlags, ReplyAttr, ReplyData, ReplyEntry, ReplyOpen,
    Request,
};

const REQUEST_BYTES: usize = 1 << 20;
const VALID: Duration = Duration::from_secs(600);
const FILE: u64 = 2;

struct Constant {
    file_bytes: u64,
    buffer: Vec<u8>,
}

impl Constant {
    fn attributes(&self, inode: u64) -> FileAttr {
        let is_file = inode == FILE;
        FileAttr {
            ino: INodeNo(inode),
            size: if is_file { self.file_bytes } else { 0 },
            blocks: 0,
            atime: SystemTime::UNIX_EPOCH,
            mtime: SystemTime::UNIX_EPOCH,
            ctime: SystemTime::UNIX_EPOCH,
            crtime: SystemTime::UNIX_EPOCH,
            kind: if is_file { FileType::RegularFile } else { FileType::Directory },
            perm: 0o755,
            nlink: 1,
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            rdev: 0,
            blksize: 4096,
            flags: 0,
        }
    }
}

impl Filesystem for Constant {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        for wanted in [InitFlags::FUSE_ASYNC_DIO, InitFlags::FUSE_PARALLEL_DIROPS] {
            let _ = config.add_capabilities(wanted);
        }
        let _ = config.set_max_background(256);
        let _ = config.set_congestion_threshold(256);
        let _ = config.set_max_write(REQUEST_BYTES as u32);
        Ok(())
    }

    fn lookup(&self, _request: &Request, _parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        if name == "file" {
            reply.entry(&VALID, &self.attributes(FILE), Generation(0));
        } else {
            reply.error(Errno::ENOENT);
        }
    }

    fn getattr(&self, _request: &Request, inode: INodeNo, _handle: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&VALID, &self.attributes(inode.0));
    }

    fn open(&self, _request: &Request, _inode: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        // Without FOPEN_KEEP_CACHE: every opening begins with nothing in the page cache.
        reply.opened(FileHandle(0), FopenFlags::empty());
    }

    fn read(
        &self,
        _request: &Request,
        _inode: INodeNo,
        _handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let length = u64::from(size).min(self.file_bytes.saturating_sub(offset)) as usize;
        reply.data(&self.buffer[..length.min(REQUEST_BYTES)]);
    }
}

/// Mounts it, with the emulator's number of threads; it goes when the answer is dropped.
pub(crate) fn mount(place: &Path, file_bytes: u64, read_ahead_kb: u64) -> io::Result<BackgroundSession> {
    let mut config = Config::default();
    config.n_threads = Some(2);
    let session =
        fuser::spawn_mount(Constant { file_bytes, buffer: vec![7; REQUEST_BYTES] }, place, &config)?;
    let device = std::fs::metadata(place.join("file"))?.dev();
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    std::fs::write(format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb"), read_ahead_kb.to_string())?;
    Ok(session)
}
