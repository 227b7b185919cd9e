//! Random programs of file operations, for a comparison with and without the preload library.
//!
//!     file_operations generate SEED OPERATIONS      print a program
//!     file_operations run TREE PROGRAM              run it in a directory, print every result
//!     file_operations digest TREE PROGRAM           the same, print a digest of 64 results a line
//!     file_operations read FILE...                  read and describe files with the standard library
//!
//! A program has a line for each operation: thread, name, three numbers. Every number means
//! something, so that any subset of the lines is a program, too. The operations of a thread run in
//! order; `fork` runs the next ones in a child. Results name files, not inodes, so that two runs in
//! two equal trees compare.
//!
//! A run leaves out what is known to differ: changes of a file while one of its readers is open.
#![allow(clippy::many_single_char_names, reason = "a, b and c are the numbers of an operation")]

use std::collections::HashMap;
use std::env;
use std::ffi::{CStr, CString, c_int, c_long};
use std::fmt::Write as _;
use std::fs;
use std::io::{Read as _, Seek as _, Write as _};
use std::mem::{self, MaybeUninit};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::ptr;
use std::sync::Arc;

/// Files that nobody changes, and files of each thread.
const SHARED_FILES: u64 = 10;
const PRIVATE_FILES: u64 = 24;
const SLOTS: usize = 8;
const BUFFER_BYTES: usize = 16384;
/// What `errno` is before an operation: whoever does not set it leaves this.
const NO_ERRNO: c_int = 999;
const LINES_PER_DIGEST: usize = 64;

/// Names, and how often each comes.
const OPERATIONS: [(&str, u64); 33] = [
    ("open", 14),
    ("open_private", 6),
    ("openat", 4),
    ("open_raw", 2),
    ("open_missing", 2),
    ("reopen", 2),
    ("fopen", 3),
    ("freopen", 1),
    ("close", 10),
    ("dup", 3),
    ("dup2", 2),
    ("read", 8),
    ("pread", 8),
    ("readv", 2),
    ("lseek", 4),
    ("fstat", 4),
    ("stat", 4),
    ("lstat", 2),
    ("fstatat", 2),
    ("statx", 3),
    ("statx_raw", 2),
    ("mmap", 3),
    ("sendfile", 2),
    ("fcntl", 2),
    ("fadvise", 1),
    ("write", 2),
    ("truncate", 1),
    ("rename", 1),
    ("unlink", 1),
    ("chmod", 1),
    ("utimens", 1),
    ("chdir", 1),
    ("fork", 1),
];

struct Operation {
    thread: usize,
    name: String,
    a: u64,
    b: u64,
    c: u64,
}

fn random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state >> 16
}

fn generate(seed: u64, operations: u64) {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let threads = if random(&mut state).is_multiple_of(2) { 1 } else { 3 };
    let all: u64 = OPERATIONS.iter().map(|(_, weight)| weight).sum();
    let mut text = format!("threads {threads}\n");
    for _ in 0..operations {
        let thread = random(&mut state) % threads;
        let mut choice = random(&mut state) % all;
        let (name, _) = OPERATIONS
            .iter()
            .find(|(_, weight)| {
                let found = choice < *weight;
                choice = choice.wrapping_sub(*weight);
                found
            })
            .expect("a weight");
        let mut number = || random(&mut state) % 1_000_000;
        let (a, b, c) = (number(), number(), number());
        writeln!(text, "{thread} {name} {a} {b} {c}").expect("memory");
    }
    print!("{text}");
}

fn parse(path: &str) -> (usize, Vec<Operation>) {
    let text = fs::read_to_string(path).expect("a program");
    let mut lines = text.lines();
    let threads = lines.next().and_then(|line| line.strip_prefix("threads ")).expect("threads");
    let operation = |line: &str| {
        let mut words = line.split(' ');
        let mut word = || words.next().expect("five words").to_owned();
        let (thread, name) = (word().parse().expect("a thread"), word());
        let mut number = || word().parse().expect("a number");
        Operation { thread, name, a: number(), b: number(), c: number() }
    };
    (threads.parse().expect("a number"), lines.map(operation).collect())
}

fn c(path: impl AsRef<str>) -> CString {
    CString::new(path.as_ref()).expect("no zero")
}

fn hash(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
}

fn errno() -> c_int {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

fn set_errno(value: c_int) {
    // SAFETY: the place of this thread's errno.
    unsafe { *libc::__errno_location() = value }
}

/// What a file was called and when it was changed before the program began.
struct Initial {
    name: String,
    modified: (i64, i64),
    changed: (i64, i64),
}

type Initials = HashMap<(u64, u64), Initial>;

fn initials(directory: &Path, into: &mut Initials) {
    let mut entries: Vec<_> =
        fs::read_dir(directory).expect("a tree").map(|entry| entry.expect("an entry")).collect();
    entries.sort_by_key(fs::DirEntry::path);
    for entry in entries {
        let (path, found) = (entry.path(), entry.metadata().expect("metadata"));
        if found.is_dir() {
            initials(&path, into);
        }
        into.entry((found.dev(), found.ino())).or_insert_with(|| Initial {
            name: path.file_name().expect("a name").to_string_lossy().into_owned(),
            modified: (found.mtime(), found.mtime_nsec()),
            changed: (found.ctime(), found.ctime_nsec()),
        });
    }
}

#[derive(Clone, Copy)]
struct Slot {
    fd: c_int,
    file: (u64, u64),
    reader: bool,
}

/// A thread, or a forked child of one, that runs operations.
struct Runner {
    thread: usize,
    alone: bool,
    root: String,
    initials: Arc<Initials>,
    slots: [Option<Slot>; SLOTS],
    /// Files that were opened for writing: whoever opens them later reads the source in both runs.
    written: Vec<(u64, u64)>,
    /// Files that a parent reads.
    read_by_parents: Vec<(u64, u64)>,
    buffer: Buffer,
    log: Vec<String>,
}

#[repr(align(4096))]
struct Aligned([u8; BUFFER_BYTES]);
type Buffer = Box<Aligned>;

impl Runner {
    /// The path of a file, in one of the ways to write it.
    fn path(&self, file: u64, form: u64, private: bool) -> CString {
        let (directory, name) = if private {
            (format!("private{}", self.thread), format!("p{}", file % PRIVATE_FILES))
        } else {
            ("shared".to_owned(), format!("s{}", file % SHARED_FILES))
        };
        let root = &self.root;
        c(match form % 8 {
            0 | 1 => format!("{directory}/{name}"),
            2 => format!("./{directory}//{name}"),
            3 => format!("shared/../{directory}/./{name}"),
            4 => format!("{root}/{directory}/{name}"),
            5 => format!("{root}//link-{directory}/{name}"),
            6 if !private => format!("links/{name}"),
            6 => format!("../{}/{directory}/{name}", Path::new(root).file_name().unwrap().display()),
            _ => format!("{root}/keep/{directory}-{name}"),
        })
    }

    fn flags(b: u64) -> c_int {
        [
            0,
            0,
            0,
            libc::O_CLOEXEC,
            libc::O_CLOEXEC | libc::O_NONBLOCK,
            libc::O_NOFOLLOW,
            libc::O_NOATIME,
            libc::O_SYNC,
            libc::O_PATH,
            libc::O_DIRECTORY,
            libc::O_DIRECT,
            libc::O_APPEND,
        ][b as usize % 12]
    }

    fn fd(&self, slot: u64) -> c_int {
        self.slots[slot as usize % SLOTS].map_or(-1, |slot| slot.fd)
    }

    fn stat_of(path: &CStr) -> Option<libc::stat> {
        let mut found = MaybeUninit::<libc::stat>::uninit();
        // SAFETY: the path ends with a zero, and the place is one of a `stat`.
        let result = unsafe { libc::stat(path.as_ptr(), found.as_mut_ptr()) };
        // SAFETY: stat(2) has filled it.
        (result == 0).then(|| unsafe { found.assume_init() })
    }

    fn keep(&mut self, slot: u64, fd: c_int, reader: bool) -> String {
        if fd < 0 {
            return "-1".into();
        }
        let mut found = MaybeUninit::<libc::stat>::uninit();
        let before = errno();
        // SAFETY: the place is one of a `stat`.
        let found = unsafe {
            libc::fstat(fd, found.as_mut_ptr());
            found.assume_init()
        };
        set_errno(before);
        let place = &mut self.slots[slot as usize % SLOTS];
        let file = (found.st_dev, found.st_ino);
        // A file that the program made has no copy, and its inode may be used again.
        let reader = reader && self.initials.contains_key(&file);
        if let Some(old) = place.replace(Slot { fd, file, reader }) {
            // SAFETY: the descriptor is in no slot any more.
            unsafe { libc::close(old.fd) };
        }
        if self.alone { format!("{fd} {}", self.show(&found)) } else { self.show(&found) }
    }

    /// Keeps what was opened by its path for reading.
    fn keep_reader(&mut self, slot: u64, fd: c_int) -> String {
        let result = self.keep(slot, fd, true);
        if fd >= 0
            && let Some(slot) = &mut self.slots[slot as usize % SLOTS]
        {
            slot.reader &= !self.written.contains(&slot.file);
        }
        result
    }

    /// Keeps what was opened for writing.
    fn keep_writer(&mut self, slot: u64, fd: c_int) -> String {
        let result = self.keep(slot, fd, false);
        if fd >= 0
            && let Some(slot) = self.slots[slot as usize % SLOTS]
        {
            self.written.push(slot.file);
        }
        result
    }

    /// A `stat` without what differs between two trees.
    fn show(&self, found: &libc::stat) -> String {
        let times = |name, modified, changed| {
            format!(
                "{name} {} {} {:o} {} {} {} {}",
                modified,
                changed,
                found.st_mode,
                found.st_nlink,
                found.st_uid,
                found.st_size,
                found.st_blksize
            )
        };
        match self.initials.get(&(found.st_dev, found.st_ino)) {
            Some(initial) => times(
                initial.name.as_str(),
                (found.st_mtime, found.st_mtime_nsec) == initial.modified,
                (found.st_ctime, found.st_ctime_nsec) == initial.changed,
            ),
            None => times("?", false, false),
        }
    }

    fn show_statx(&self, found: &libc::statx) -> String {
        // SAFETY: zeros are a `stat`.
        let mut plain: libc::stat = unsafe { mem::zeroed() };
        plain.st_dev = libc::makedev(found.stx_dev_major, found.stx_dev_minor);
        plain.st_ino = found.stx_ino;
        plain.st_mode = found.stx_mode.into();
        plain.st_nlink = found.stx_nlink.into();
        plain.st_uid = found.stx_uid;
        plain.st_size = found.stx_size as i64;
        plain.st_blksize = found.stx_blksize.into();
        (plain.st_mtime, plain.st_mtime_nsec) = (found.stx_mtime.tv_sec, found.stx_mtime.tv_nsec.into());
        (plain.st_ctime, plain.st_ctime_nsec) = (found.stx_ctime.tv_sec, found.stx_ctime.tv_nsec.into());
        self.show(&plain)
    }

    /// Whether a reader of the file at a path is open: then one run would see a change of it.
    fn is_read(&self, path: &CStr) -> bool {
        let before = errno();
        let file = Self::stat_of(path).map(|found| (found.st_dev, found.st_ino));
        set_errno(before);
        file.is_some_and(|file| self.has_reader(file))
    }

    fn has_reader(&self, file: (u64, u64)) -> bool {
        let readers = self.slots.iter().flatten().filter(|slot| slot.reader);
        readers.map(|slot| slot.file).chain(self.read_by_parents.iter().copied()).any(|read| read == file)
    }

    fn bytes(&self, count: isize) -> String {
        let read = &self.buffer.0[..count.max(0) as usize];
        format!("{count} {:x}", hash(read))
    }

    fn run(&mut self, operations: &[&Operation]) {
        let mut next = 0;
        while let Some(operation) = operations.get(next) {
            next += 1;
            set_errno(NO_ERRNO);
            let result = if operation.name == "fork" {
                let end = (next + 1 + operation.a as usize % 20).min(operations.len());
                let child = &operations[next..end];
                next = end;
                self.fork(child)
            } else {
                let result = self.step(operation);
                format!("{result} errno {}", errno())
            };
            self.log.push(format!("{} {} {result}", self.thread, operation.name));
        }
    }

    fn fork(&mut self, operations: &[&Operation]) -> String {
        let mut ends = [0; 2];
        // SAFETY: the child runs this thread alone, uses no lock of another, and ends by _exit.
        unsafe {
            if libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) != 0 {
                return "pipe".into();
            }
            let child = libc::fork();
            if child == 0 {
                libc::close(ends[0]);
                self.log.clear();
                self.read_by_parents
                    .extend(self.slots.iter().flatten().filter(|slot| slot.reader).map(|slot| slot.file));
                self.run(operations);
                let text = self.log.join("\n");
                let mut rest = text.as_bytes();
                while !rest.is_empty() {
                    let written = libc::write(ends[1], rest.as_ptr().cast(), rest.len());
                    if written <= 0 {
                        break;
                    }
                    rest = &rest[written as usize..];
                }
                libc::_exit(0);
            }
            libc::close(ends[1]);
            let mut text = Vec::new();
            loop {
                let mut part = [0_u8; 4096];
                let count = libc::read(ends[0], part.as_mut_ptr().cast(), part.len());
                if count <= 0 {
                    break;
                }
                text.extend_from_slice(&part[..count as usize]);
            }
            libc::close(ends[0]);
            let mut status = 0;
            libc::waitpid(child, &raw mut status, 0);
            format!("status {status}\n{}", String::from_utf8_lossy(&text))
        }
    }

    fn step(&mut self, operation: &Operation) -> String {
        let Operation { a, b, c: number, .. } = *operation;
        let form = b / 12;
        let fd = self.fd(a);
        let length = number as usize % BUFFER_BYTES;
        let buffer = self.buffer.0.as_mut_ptr();
        // SAFETY: all paths end with a zero; the kernel writes at most BUFFER_BYTES into the
        // buffer, and a `stat` into the place of one; descriptors belong to this thread.
        unsafe {
            match operation.name.as_str() {
                "open" => {
                    let (path, flags) = (self.path(number, form, number.is_multiple_of(3)), Self::flags(b));
                    let opened = if number.is_multiple_of(2) {
                        libc::open(path.as_ptr(), flags)
                    } else {
                        libc::open64(path.as_ptr(), flags)
                    };
                    self.keep_reader(a, opened)
                }
                "open_private" => {
                    let path = self.path(number, form, true);
                    let writes =
                        [libc::O_RDWR, libc::O_WRONLY | libc::O_APPEND, libc::O_RDWR | libc::O_CREAT];
                    let flags = match b % 5 {
                        3 if !self.is_read(&path) => libc::O_RDWR | libc::O_TRUNC,
                        4 if !self.is_read(&path) => libc::O_RDWR | libc::O_CREAT | libc::O_TRUNC,
                        other => writes[other as usize % 3],
                    };
                    let opened = libc::open(path.as_ptr(), flags, 0o640);
                    self.keep_writer(a, opened)
                }
                "openat" => {
                    let directory = libc::open(c"shared".as_ptr(), libc::O_RDONLY | libc::O_DIRECTORY);
                    let names =
                        [format!("s{}", number % SHARED_FILES), format!("../keep/shared-s{}", number % 5)];
                    let name = c(&names[form as usize % 2]);
                    set_errno(NO_ERRNO);
                    let opened = libc::openat(directory, name.as_ptr(), Self::flags(b));
                    let error = errno();
                    libc::close(directory);
                    set_errno(error);
                    let result = self.keep_reader(a, opened);
                    result.split_once(' ').map_or(String::new(), |(_, rest)| rest.to_owned())
                }
                "open_raw" => {
                    let path = self.path(number, form, false);
                    let number = libc::SYS_openat;
                    let opened = libc::syscall(number, libc::AT_FDCWD, path.as_ptr(), Self::flags(b), 0);
                    self.keep_reader(a, opened as c_int)
                }
                "open_missing" => {
                    let names = ["missing", "shared/s0/x", "", "shared", "loop", "private0/../nothing/s1"];
                    let path = c(names[number as usize % names.len()]);
                    let flags =
                        [libc::O_RDONLY, libc::O_WRONLY, libc::O_RDONLY | libc::O_NOFOLLOW][b as usize % 3];
                    let opened = libc::open(path.as_ptr(), flags);
                    let result = if opened >= 0 { "opened" } else { "-1" };
                    libc::close(opened.max(-1));
                    result.into()
                }
                "reopen" => {
                    let path = c(format!("/proc/self/fd/{fd}"));
                    let opened = libc::open(path.as_ptr(), libc::O_RDONLY);
                    self.keep(b, opened, true)
                }
                "fopen" | "freopen" => {
                    let path = self.path(number, form, number.is_multiple_of(4));
                    let mode = [c"r", c"rb", c"re", c"rm"][b as usize % 4];
                    let stream = if operation.name == "fopen" {
                        libc::fopen(path.as_ptr(), mode.as_ptr())
                    } else {
                        let stream = libc::fopen(c"/dev/null".as_ptr(), c"r".as_ptr());
                        libc::freopen(path.as_ptr(), mode.as_ptr(), stream)
                    };
                    if stream.is_null() {
                        return "none".into();
                    }
                    let error = errno();
                    let read = libc::fread(buffer.cast(), 1, length, stream);
                    libc::fseek(stream, (number % 5000) as c_long, libc::SEEK_SET);
                    let next = libc::fgetc(stream);
                    libc::fclose(stream);
                    set_errno(error);
                    format!("{} {next}", self.bytes(read as isize))
                }
                "close" => match self.slots[a as usize % SLOTS].take() {
                    Some(slot) => libc::close(slot.fd).to_string(),
                    None => "-".into(),
                },
                "dup" => match self.slots[a as usize % SLOTS] {
                    Some(slot) => {
                        let copy = libc::dup(slot.fd);
                        self.keep(b, copy, slot.reader)
                    }
                    None => "-".into(),
                },
                "dup2" => match (self.slots[a as usize % SLOTS], self.slots[b as usize % SLOTS]) {
                    (Some(from), Some(to)) if from.fd != to.fd => {
                        let result = libc::dup2(from.fd, to.fd);
                        self.slots[b as usize % SLOTS] = Some(Slot { fd: to.fd, ..from });
                        (result == to.fd).to_string()
                    }
                    _ => "-".into(),
                },
                "read" => {
                    let count = libc::read(fd, buffer.cast(), length);
                    self.bytes(count)
                }
                "pread" => {
                    let count = libc::pread(fd, buffer.cast(), length, (b % 100_000) as i64);
                    self.bytes(count)
                }
                "readv" => {
                    let half = length / 2;
                    let parts = [
                        libc::iovec { iov_base: buffer.cast(), iov_len: half },
                        libc::iovec { iov_base: buffer.add(half).cast(), iov_len: length - half },
                    ];
                    let count = libc::readv(fd, parts.as_ptr(), 2);
                    self.bytes(count)
                }
                "lseek" => {
                    let whence = [libc::SEEK_SET, libc::SEEK_CUR, libc::SEEK_END][b as usize % 3];
                    libc::lseek(fd, (number % 9000) as i64 - 3000, whence).to_string()
                }
                "fstat" => {
                    let mut found = MaybeUninit::<libc::stat>::uninit();
                    match libc::fstat(fd, found.as_mut_ptr()) {
                        0 => self.show(&found.assume_init()),
                        other => other.to_string(),
                    }
                }
                "stat" => {
                    let path = self.path(number, form, b.is_multiple_of(2));
                    Self::stat_of(&path).map_or("-1".into(), |found| self.show(&found))
                }
                "lstat" | "fstatat" => {
                    let path = self.path(number, form, b.is_multiple_of(2));
                    let mut found = MaybeUninit::<libc::stat>::uninit();
                    let result = if operation.name == "lstat" {
                        libc::lstat(path.as_ptr(), found.as_mut_ptr())
                    } else if fd >= 0 {
                        libc::fstatat(fd, c"".as_ptr(), found.as_mut_ptr(), libc::AT_EMPTY_PATH)
                    } else {
                        libc::fstatat(libc::AT_FDCWD, path.as_ptr(), found.as_mut_ptr(), 0)
                    };
                    if result == 0 { self.show(&found.assume_init()) } else { "-1".into() }
                }
                "statx" | "statx_raw" => {
                    let mut found = MaybeUninit::<libc::statx>::uninit();
                    let path = self.path(number, form, false);
                    let (directory, path, flags) = if fd >= 0 {
                        (fd, c"".as_ptr(), libc::AT_EMPTY_PATH)
                    } else {
                        (libc::AT_FDCWD, path.as_ptr(), 0)
                    };
                    let (mask, place) = (libc::STATX_BASIC_STATS, found.as_mut_ptr());
                    let result = if operation.name == "statx" {
                        libc::statx(directory, path, flags, mask, place)
                    } else {
                        libc::syscall(libc::SYS_statx, directory, path, flags, mask, place) as c_int
                    };
                    if result == 0 { self.show_statx(&found.assume_init()) } else { "-1".into() }
                }
                "mmap" => {
                    let kind = [libc::MAP_PRIVATE, libc::MAP_SHARED][b as usize % 2];
                    let offset = (number % 4) as i64 * 4096;
                    let map = libc::mmap(ptr::null_mut(), 8192, libc::PROT_READ, kind, fd, offset);
                    if map == libc::MAP_FAILED {
                        return "failed".into();
                    }
                    let mut found = MaybeUninit::<libc::stat>::uninit();
                    libc::fstat(fd, found.as_mut_ptr());
                    let there = (found.assume_init().st_size - offset).clamp(0, 8192) as usize;
                    let result = hash(std::slice::from_raw_parts(map.cast::<u8>(), there));
                    libc::munmap(map, 8192);
                    format!("{result:x}")
                }
                "sendfile" => {
                    let memory = libc::memfd_create(c"sink".as_ptr(), 0);
                    set_errno(NO_ERRNO);
                    let count = libc::sendfile(memory, fd, ptr::null_mut(), length);
                    let error = errno();
                    libc::pread(memory, buffer.cast(), count.max(0) as usize, 0);
                    libc::close(memory);
                    set_errno(error);
                    self.bytes(count)
                }
                "fcntl" => format!("{} {}", libc::fcntl(fd, libc::F_GETFL), libc::fcntl(fd, libc::F_GETFD)),
                "fadvise" => libc::posix_fadvise(fd, 0, 0, [0, 1, 2, 3, 4, 5][b as usize % 6]).to_string(),
                "write" => {
                    let Some(slot) = self.slots[a as usize % SLOTS] else { return "-".into() };
                    if !slot.reader && self.has_reader(slot.file) {
                        return "read".into();
                    }
                    self.buffer.0[..64].fill(number as u8);
                    libc::write(fd, buffer.cast(), 64).to_string()
                }
                "truncate" | "unlink" | "chmod" | "utimens" => {
                    let path = self.path(number, form % 6, true);
                    if self.is_read(&path) {
                        return "read".into();
                    }
                    match operation.name.as_str() {
                        "truncate" => libc::truncate(path.as_ptr(), (b % 5000) as i64),
                        "unlink" => libc::unlink(path.as_ptr()),
                        "chmod" => libc::chmod(path.as_ptr(), 0o400 | (b % 0o200) as u32),
                        _ => libc::utimensat(libc::AT_FDCWD, path.as_ptr(), ptr::null(), 0),
                    }
                    .to_string()
                }
                "rename" => {
                    let (from, to) = (self.path(a, form % 6, true), self.path(number, 4, true));
                    if self.is_read(&from) || self.is_read(&to) {
                        return "read".into();
                    }
                    libc::rename(from.as_ptr(), to.as_ptr()).to_string()
                }
                "chdir" if self.alone => {
                    let directory = c([".", "shared", "..", self.root.as_str()][b as usize % 4]);
                    let result = libc::chdir(directory.as_ptr());
                    if number.is_multiple_of(2) {
                        libc::chdir(c(&self.root).as_ptr());
                    }
                    result.to_string()
                }
                _ => "-".into(),
            }
        }
    }
}

fn run(tree: &str, program: &str, digest: bool) {
    let (threads, operations) = parse(program);
    let root = fs::canonicalize(tree).expect("a tree");
    env::set_current_dir(&root).expect("a tree");
    let mut found = Initials::new();
    initials(&root, &mut found);
    let found = Arc::new(found);
    let logs: Vec<Vec<String>> = std::thread::scope(|scope| {
        let running: Vec<_> = (0..threads)
            .map(|thread| {
                let (root, initials) = (root.to_string_lossy().into_owned(), Arc::clone(&found));
                let mine: Vec<&Operation> =
                    operations.iter().filter(|operation| operation.thread == thread).collect();
                let work = move || {
                    let buffer = Box::new(Aligned([0; BUFFER_BYTES]));
                    let alone = threads == 1;
                    let mut runner = Runner {
                        thread,
                        alone,
                        root,
                        initials,
                        slots: [None; SLOTS],
                        written: Vec::new(),
                        read_by_parents: Vec::new(),
                        buffer,
                        log: Vec::new(),
                    };
                    runner.run(&mine);
                    runner.log
                };
                std::thread::Builder::new().spawn_scoped(scope, work).expect("a thread")
            })
            .collect();
        running.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    });
    let mut output = std::io::stdout().lock();
    for line in logs.iter().flat_map(|log| log.chunks(if digest { LINES_PER_DIGEST } else { 1 })) {
        let text = line.join("\n");
        if digest {
            writeln!(output, "{:x}", hash(text.as_bytes())).expect("output");
        } else {
            writeln!(output, "{text}").expect("output");
        }
    }
}

fn read(paths: &[String]) {
    for path in paths {
        let mut file = fs::File::open(path).expect("a file");
        let found = file.metadata().expect("metadata");
        assert_eq!(found.ino(), fs::metadata(path).expect("metadata").ino());
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).expect("bytes");
        file.seek(std::io::SeekFrom::Start(7)).expect("a place");
        let mut some = [0; 5];
        file.read_exact(&mut some).expect("bytes");
        let times = (found.modified().expect("a time"), found.created().ok());
        let path = Path::new(path).as_os_str().as_bytes().escape_ascii();
        println!("{path} {} {} {times:?} {some:?} {:x}", found.ino(), found.len(), hash(&bytes));
    }
}

fn main() {
    let arguments: Vec<String> = env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["generate", seed, operations] => {
            generate(seed.parse().expect("a seed"), operations.parse().expect("a number"));
        }
        ["run", tree, program] => run(tree, program, false),
        ["digest", tree, program] => run(tree, program, true),
        ["read", ..] => read(&arguments[1..]),
        _ => panic!("expected: generate SEED OPERATIONS, run|digest TREE PROGRAM, or read FILE..."),
    }
}
