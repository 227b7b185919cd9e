//! Entries of directories, and the sizes of files, many at a time.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use forebay_io::Links;
use rustix::fs::{AtFlags, FileType, RawDir, StatxFlags};
use rustix::io::Errno;

use super::foreign::is_leftover;
use crate::threads::start_up_to;

/// Room for the entries that one getdents64(2) brings \[bytes\]: about 2,000.
const ENTRIES_BYTES: usize = 64 << 10;

/// Concurrent requests for the sizes of files: on a file system of other nodes each waits for half
/// a millisecond.
const THREADS: usize = 16;

/// Fewest requests per thread for which a thread is started.
const MIN_REQUESTS: usize = 64;

/// Requests that a thread takes at once.
const REQUESTS_AT_ONCE: usize = 32;

/// Names in one piece of memory.
#[derive(Debug, Default)]
pub(super) struct Names {
    text: Vec<u8>,
    /// First byte and length of each.
    places: Vec<(usize, u8)>,
}

impl Names {
    fn push(&mut self, name: &[u8]) {
        // The kernel gives no longer ones.
        self.places.push((self.text.len(), name.len() as u8));
        self.text.extend_from_slice(name);
    }

    pub(super) fn len(&self) -> usize {
        self.places.len()
    }

    pub(super) fn get(&self, index: usize) -> &[u8] {
        let (start, length) = self.places[index];
        &self.text[start..start + usize::from(length)]
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &[u8]> + Clone {
        (0..self.len()).map(|index| self.get(index))
    }

    /// Puts the names in the order of their bytes.
    pub(super) fn sort(&mut self) {
        let Self { text, places } = self;
        let name = |(start, length): &(usize, u8)| &text[*start..*start + usize::from(*length)];
        places.sort_unstable_by(|left, right| name(left).cmp(name(right)));
    }
}

/// The entries of a directory.
#[derive(Debug, Default)]
pub(super) struct Entries {
    pub(super) files: Names,
    pub(super) directories: Names,
    /// Entries that are skipped.
    pub(super) hidden: u64,
    pub(super) leftovers: u64,
    pub(super) links: u64,
    pub(super) special: u64,
}

/// Lists a directory, sorted.
pub(super) fn entries(directory: impl AsFd, links: Links) -> rustix::io::Result<Entries> {
    let mut found = Entries::default();
    let mut room = vec![MaybeUninit::uninit(); ENTRIES_BYTES];
    let directory = directory.as_fd();
    let mut listing = RawDir::new(directory, &mut room);
    let mut unknown: Vec<Vec<u8>> = Vec::new();
    while let Some(entry) = listing.next() {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        match name {
            b"." | b".." => {}
            [b'.', ..] => found.hidden += 1,
            _ if is_leftover(name) => found.leftovers += 1,
            // Some file systems give the type of an entry only through statx(2).
            _ if entry.file_type() == FileType::Unknown => unknown.push(name.to_vec()),
            _ if entry.file_type() == FileType::Symlink && links == Links::Followed => {
                unknown.push(name.to_vec());
            }
            _ => found.add(name, entry.file_type()),
        }
    }
    for name in unknown {
        match rustix::fs::statx(directory, name.as_slice(), at_flags(links), StatxFlags::TYPE) {
            Ok(answer) => found.add(&name, FileType::from_raw_mode(u32::from(answer.stx_mode))),
            // A link that leads nowhere, or in a circle.
            Err(Errno::NOENT | Errno::LOOP) if links == Links::Followed => found.links += 1,
            Err(errno) => return Err(errno),
        }
    }
    found.files.sort();
    found.directories.sort();
    Ok(found)
}

impl Entries {
    fn add(&mut self, name: &[u8], kind: FileType) {
        match kind {
            FileType::RegularFile => self.files.push(name),
            FileType::Directory => self.directories.push(name),
            FileType::Symlink => self.links += 1,
            _ => self.special += 1,
        }
    }
}

/// When an entry of a directory was last made or removed [ns since 1970].
pub(super) fn modified_ns(directory: impl AsFd) -> rustix::io::Result<i64> {
    let answer = rustix::fs::statx(directory, c"", AtFlags::EMPTY_PATH, StatxFlags::MTIME)?;
    Ok(answer
        .stx_mtime
        .tv_sec
        .saturating_mul(1_000_000_000)
        .saturating_add(i64::from(answer.stx_mtime.tv_nsec)))
}

/// Size of a regular file in a directory \[bytes\]; `None` if the name is now that of something
/// else.
pub(super) fn file_bytes(directory: &OwnedFd, name: &[u8], links: Links) -> io::Result<Option<u64>> {
    match file_kind(directory, name, links) {
        Ok((FileType::RegularFile, bytes)) => Ok(Some(bytes)),
        Ok(_) | Err(Errno::NOENT) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

/// Kind of what has a name in a directory, and its size \[bytes\].
pub(super) fn file_kind(
    directory: &OwnedFd,
    name: &[u8],
    links: Links,
) -> rustix::io::Result<(FileType, u64)> {
    let answer = rustix::fs::statx(directory, name, at_flags(links), StatxFlags::TYPE | StatxFlags::SIZE)?;
    Ok((FileType::from_raw_mode(u32::from(answer.stx_mode)), answer.stx_size))
}

/// Device and number of an open directory.
pub(super) fn identity(directory: impl AsFd) -> rustix::io::Result<(u64, u64)> {
    let stat = rustix::fs::fstat(directory)?;
    Ok((stat.st_dev, stat.st_ino))
}

fn at_flags(links: Links) -> AtFlags {
    match links {
        Links::Refused => AtFlags::SYMLINK_NOFOLLOW,
        Links::Followed => AtFlags::empty(),
    }
}

/// Calls `ask` for every number below `count`, from several threads at once, as far as the system
/// allows.
pub(super) fn call_all<T: Send>(count: usize, ask: &(dyn Fn(usize) -> T + Sync)) -> Vec<T> {
    let threads = (count / MIN_REQUESTS).clamp(1, THREADS);
    if threads == 1 {
        return (0..count).map(ask).collect();
    }
    let next = AtomicUsize::new(0);
    let work = || {
        let mut answers = Vec::new();
        loop {
            let first = next.fetch_add(REQUESTS_AT_ONCE, Ordering::Relaxed);
            if first >= count {
                return answers;
            }
            answers.push((first, (first..count.min(first + REQUESTS_AT_ONCE)).map(ask).collect::<Vec<T>>()));
        }
    };
    let mut answers = thread::scope(|scope| {
        let others = start_up_to(threads - 1, scope, work);
        let mut answers = work();
        for other in others {
            answers.extend(other.join().expect("a thread that only asks"));
        }
        answers
    });
    answers.sort_unstable_by_key(|(first, _)| *first);
    answers.into_iter().flat_map(|(_, answers)| answers).collect()
}
