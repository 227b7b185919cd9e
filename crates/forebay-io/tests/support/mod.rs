//! What the tests of the readers share: files with known bytes, and readers of every kind.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay_io::{Access, FaultyIo, Reader, ShardFiles, Transfer, probe_io_uring};
use forebay_types::ShardId;
use tempfile::TempDir;

/// Files with known bytes.
pub struct Shards {
    pub directory: TempDir,
    pub paths: Vec<PathBuf>,
    pub contents: Vec<Vec<u8>>,
}

impl Shards {
    /// Files of these sizes.
    pub fn new(sizes: &[usize]) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let contents: Vec<Vec<u8>> =
            sizes.iter().enumerate().map(|(number, size)| pattern(number as u64, *size)).collect();
        let paths = contents
            .iter()
            .enumerate()
            .map(|(number, bytes)| {
                let path = directory.path().join(format!("shard-{number}"));
                std::fs::write(&path, bytes).expect("written");
                path
            })
            .collect();
        Self { directory, paths, contents }
    }

    /// Opens them.
    pub fn open(&self, direct: bool) -> Arc<ShardFiles> {
        let shards: Vec<(PathBuf, u64)> = self
            .paths
            .iter()
            .zip(&self.contents)
            .map(|(path, bytes)| (path.clone(), bytes.len() as u64))
            .collect();
        Arc::new(ShardFiles::open(&shards, direct).expect("the shards open"))
    }
}

/// Bytes that differ from place to place and from file to file.
fn pattern(seed: u64, length: usize) -> Vec<u8> {
    (0..length as u64)
        .map(|place| {
            ((place / 8).wrapping_add(seed << 40).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (place % 8 * 8))
                as u8
        })
        .collect()
}

/// The accesses that make requests and work here; a missing one is reported.
pub fn requesting() -> Vec<Access> {
    match probe_io_uring() {
        Ok(()) => vec![Access::Pread, Access::IoUring],
        Err(reason) => {
            eprintln!("skipped for io_uring: {reason}");
            vec![Access::Pread]
        }
    }
}

/// A reader on failing files that does what was asked for.
pub fn reader(io: &Arc<FaultyIo>, access: Access, direct: bool) -> Reader {
    let mut reader = Reader::with_io(Arc::clone(io) as _, access, direct, 4);
    assert_eq!(reader.take_refusals(), []);
    reader
}

/// One transfer of the first shard.
pub fn transfer(offset: u64, into: &mut [u8]) -> Transfer<'_> {
    Transfer { shard: ShardId(0), offset, into }
}

/// Memory for reads around the page cache.
pub struct Aligned {
    memory: Vec<u8>,
    first: usize,
    length: usize,
}

impl Aligned {
    pub fn new(length: usize) -> Self {
        let memory = vec![0xEE; length + 4096];
        let first = memory.as_ptr().align_offset(4096);
        Self { memory, first, length }
    }

    pub fn bytes(&mut self) -> &mut [u8] {
        &mut self.memory[self.first..self.first + self.length]
    }
}

/// Writes a file's pages back and drops them from the page cache; `false` where the file system
/// keeps them.
pub fn drop_from_cache(path: &Path) -> bool {
    let file = File::open(path).expect("the file is there");
    file.sync_all().expect("written back");
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).is_ok()
}
