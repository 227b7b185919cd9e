//! The file with a run's table, mapped.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::slice;

use forebay_host::Map;
use forebay_host::sync::atomic::AtomicU64;
use forebay_table::{Layout, SharedPart, WORD_BYTES, retire};
use rustix::fs::FallocateFlags;

use crate::error::TierError;

/// Entries of the wish ring: what programs may open between two looks at it.
const WISHES: u32 = 2048;

/// A table's memory, which programs map, too.
pub(super) struct TableFile {
    map: Map,
    layout: Layout,
}

impl TableFile {
    /// A file of zeros for so many records, beside the place where programs will look for it.
    pub(super) fn create(path: &Path, capacity: u32) -> Result<Self, TierError> {
        let draft = draft(path);
        let failed = TierError::io(&draft, "make a file table");
        let make = || -> io::Result<(fs::File, Layout)> {
            let layout = Layout::new(capacity, WISHES)
                .map_err(|error| io::Error::new(io::ErrorKind::OutOfMemory, error.to_string()))?;
            let _ = fs::remove_file(&draft);
            let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&draft)?;
            // Where no space is left, this fails, and not a program that counts something.
            rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, layout.bytes() as u64)?;
            Ok((file, layout))
        };
        let mapped = make().map_err(failed).and_then(|(file, layout)| Ok((Map::file(&file)?, layout)));
        let (map, layout) = mapped.inspect_err(|_| _ = fs::remove_file(&draft))?;
        Ok(Self { map, layout })
    }

    /// Puts the file that was made for a path in its place. The table that was there is retired,
    /// since programs may use it.
    pub(super) fn install(path: &Path) -> Result<(), TierError> {
        let before = Words::existing(path);
        fs::rename(draft(path), path).map_err(TierError::io(path, "install the file table"))?;
        if let Some(before) = before {
            retire(before.words());
        }
        Ok(())
    }

    pub(super) fn layout(&self) -> Layout {
        self.layout
    }

    pub(super) fn words(&self) -> &[AtomicU64] {
        words(&self.map)
    }

    /// The part that programs write.
    pub(super) fn shared(&self) -> SharedPart<'_> {
        SharedPart::new(self.words(), self.layout).expect("the file was made with this layout")
    }
}

/// The words of a table that somebody made.
struct Words(Map);

impl Words {
    fn existing(path: &Path) -> Option<Self> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
            .open(path)
            .ok()?;
        let map = file.metadata().ok()?.is_file().then(|| Map::file(&file).ok())??;
        (map.len() >= WORD_BYTES).then_some(Self(map))
    }

    fn words(&self) -> &[AtomicU64] {
        words(&self.0)
    }
}

fn words(map: &Map) -> &[AtomicU64] {
    // SAFETY: the mapping is that long and begins at a page, nobody shortens the file, and all who
    // map it access its words by atomic operations.
    unsafe { slice::from_raw_parts(map.as_ptr().cast(), map.len() / WORD_BYTES) }
}

fn draft(path: &Path) -> PathBuf {
    path.with_extension("new")
}
