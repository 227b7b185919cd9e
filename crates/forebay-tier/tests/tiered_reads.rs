//! Reads through tiers give the bytes of the source, and the second time from the copies.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use forebay_host::SocketPath;
use forebay_io::{Access, Reader, ShardFiles, Transfer};
use forebay_plan::ChunkMap;
use forebay_plan::options::TierSpec;
use forebay_tier::daemon::Server;
use forebay_tier::{
    DaemonAddress, Fill, PlacementFn, Source, SourceKey, SourceState, TierClient, TierSetup, TieredFiles,
};
use forebay_types::ShardId;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

/// A daemon in a thread.
struct Daemon {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    socket: SocketPath,
}

impl Daemon {
    fn start(directory: &Path) -> Self {
        let socket = SocketPath::new(directory, &["tiers"]).unwrap();
        let server = Server::start(&socket, Duration::from_secs(60)).unwrap().unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::Builder::new().spawn(move || server.run(&stopped)).unwrap();
        Self { stop, thread: Some(thread), socket }
    }

    fn address(&self) -> DaemonAddress {
        DaemonAddress { socket: self.socket.socket().to_owned(), command: vec!["false".into()] }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // It looks at `stop` when something happens, too.
        drop(forebay_tier::TierConnection::existing(self.socket.socket()));
        self.thread.take().unwrap().join().unwrap();
    }
}

struct Bed {
    directory: tempfile::TempDir,
    shards: Vec<(PathBuf, u64)>,
    contents: Vec<Vec<u8>>,
}

impl Bed {
    fn new(sizes: &[usize]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let byte = |at: usize, shard: usize| {
            (at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_right(17) as u8 ^ shard as u8
        };
        let contents: Vec<Vec<u8>> = sizes
            .iter()
            .enumerate()
            .map(|(shard, bytes)| (0..*bytes).map(|at| byte(at, shard)).collect())
            .collect();
        let shards = contents
            .iter()
            .enumerate()
            .map(|(shard, bytes)| {
                let path = directory.path().join(format!("{shard}.bin"));
                std::fs::write(&path, bytes).unwrap();
                // A change that is long ago; the time of the inode cannot be set back.
                (path, bytes.len() as u64)
            })
            .collect();
        std::fs::create_dir(directory.path().join("tier")).unwrap();
        Self { directory, shards, contents }
    }

    fn tiers(&self, daemon: &Daemon, tier_bytes: u64, slots_are_enough: bool) -> TieredFiles {
        let files = Arc::new(ShardFiles::open(&self.shards, false).unwrap());
        let sizes: Vec<u64> = self.shards.iter().map(|(_, bytes)| *bytes).collect();
        let map = ChunkMap::of_files(&sizes);
        let chunks = map.chunks_of_sources();
        let states: Vec<SourceState> = (0..self.shards.len())
            .map(|shard| SourceState::of(&files.stat_now(ShardId(shard as u32)).unwrap()))
            .collect();
        let sources =
            self.shards.iter().zip(&states).zip(chunks).map(|(((path, bytes), state), chunks)| Source {
                key: SourceKey::new(path, state, 1, b"test"),
                path: path.display().to_string(),
                chunks,
                bytes: *bytes,
            });
        let spec = TierSpec {
            path: self.directory.path().join("tier"),
            bytes: tier_bytes,
            keep: false,
            force: false,
        };
        let client = TierClient::attach(vec![spec], sources.collect(), daemon.address()).unwrap();
        assert!(client.attached().levels[0].slots > 0);
        let all: PlacementFn = Arc::new(|_| Some(0));
        let half: PlacementFn = Arc::new(|chunk| chunk.0.is_multiple_of(2).then_some(0));
        let placement = if slots_are_enough { all } else { half };
        let setup =
            TierSetup { watched: Arc::clone(&files), files, states, map, placement, buffer_bytes: 16 << 20 };
        TieredFiles::new(client, setup).unwrap()
    }

    fn read(
        &self,
        tiers: &Arc<TieredFiles>,
        reader: &mut Reader,
        reads: &[(usize, usize, usize)],
        epoch: u64,
    ) {
        let mut memory: Vec<Vec<u8>> = reads.iter().map(|(.., length)| vec![0; *length]).collect();
        let mut transfers: Vec<Transfer<'_>> = reads
            .iter()
            .zip(&mut memory)
            .map(|((shard, offset, _), into)| Transfer {
                shard: ShardId(*shard as u32),
                offset: *offset as u64,
                into,
            })
            .collect();
        let how = Fill { epoch, direct: false, has_time: &|| true };
        tiers.fill(&mut transfers, how, &mut |transfers| reader.fill(transfers)).unwrap();
        drop(transfers);
        for ((shard, offset, length), found) in reads.iter().zip(&memory) {
            assert!(
                self.contents[*shard][*offset..offset + length] == found[..],
                "{shard} {offset} {length}"
            );
        }
    }
}

/// Sources must have been left alone for two seconds.
fn settle() {
    std::thread::sleep(Duration::from_millis(2_050));
}

fn cut(
    sizes: &[usize],
    at: &[(prop::sample::Index, prop::sample::Index, usize)],
) -> Vec<(usize, usize, usize)> {
    at.iter()
        .map(|(shard, offset, length)| {
            let shard = shard.index(sizes.len());
            let offset = offset.index(sizes[shard]);
            (shard, offset, (*length).min(sizes[shard] - offset))
        })
        .collect()
}

#[test]
fn what_was_read_once_comes_from_the_tier() {
    let bed = Bed::new(&[3_500_000, 10, 1 << 20, 70_000]);
    let daemon = Daemon::start(bed.directory.path());
    settle();
    let tiers = Arc::new(bed.tiers(&daemon, 64 << 20, true));
    let mut reader = Reader::with_io(tiers.clone(), Access::Pread, false, 8);
    let all = [(0, 0, 3_500_000), (1, 0, 10), (2, 0, 1 << 20), (3, 0, 70_000)];
    bed.read(&tiers, &mut reader, &all, 0);
    assert!(tiers.finish_copies(Duration::from_secs(30)));
    let first = reader.counters();
    assert_eq!(first.read_bytes, 3_500_000 + 10 + (1 << 20) + 70_000);
    assert_eq!((tiers.copied_bytes(), tiers.skipped_bytes()), (first.read_bytes, 0));
    bed.read(&tiers, &mut reader, &all, 1);
    bed.read(&tiers, &mut reader, &[(0, 1_000_000, 100_000), (0, 3_499_999, 1)], 1);
    let second = reader.counters();
    assert_eq!(second.read_bytes, first.read_bytes);
    assert_eq!(second.copies[0].read_bytes, first.read_bytes + 100_001);
    // Another client begins warm, and so does the next daemon.
    drop((reader, tiers));
    let again = Arc::new(bed.tiers(&daemon, 64 << 20, true));
    let mut reader = Reader::with_io(again.clone(), Access::Pread, false, 8);
    bed.read(&again, &mut reader, &all, 0);
    assert_eq!(reader.counters().read_bytes, 0);
    drop((reader, again, daemon));
    let daemon = Daemon::start(bed.directory.path());
    let again = Arc::new(bed.tiers(&daemon, 64 << 20, true));
    let mut reader = Reader::with_io(again.clone(), Access::Pread, false, 8);
    bed.read(&again, &mut reader, &all, 0);
    assert_eq!(reader.counters().read_bytes, 0);
    // A source that is changed meanwhile is read anew.
    let mut changed = bed.contents[0].clone();
    changed[5] ^= 1;
    std::fs::write(&bed.shards[0].0, &changed).unwrap();
    let bed = Bed { contents: [&[changed][..], &bed.contents[1..]].concat(), ..bed };
    bed.read(&again, &mut reader, &all, 1);
    assert!(again.take_warnings()[0].contains("it was changed"));
}

/// Reads of random bytes of random files, with room for some or all of their chunks.
#[derive(Clone, Debug)]
struct Case {
    sizes: Vec<usize>,
    reads: Vec<(prop::sample::Index, prop::sample::Index, usize)>,
    all: bool,
    slots: u64,
}

fn cases() -> impl Strategy<Value = Case> {
    let sizes = prop::collection::vec(1_usize..3_000_000, 1..4);
    let read = (any::<prop::sample::Index>(), any::<prop::sample::Index>(), 1_usize..400_000);
    (sizes, prop::collection::vec(read, 1..40), any::<bool>(), 1_u64..8)
        .prop_map(|(sizes, reads, all, slots)| Case { sizes, reads, all, slots })
}

#[test]
fn reads_of_any_bytes_are_those_of_the_source() {
    let mut runner = TestRunner::default();
    let mut case = || cases().new_tree(&mut runner).unwrap().current();
    // All files are made first, so that they are old enough together.
    let beds: Vec<(Case, Bed)> = std::iter::repeat_with(&mut case)
        .take(24)
        .map(|case| (case.clone(), Bed::new(&case.sizes)))
        .collect();
    settle();
    for (case, bed) in beds {
        let daemon = Daemon::start(bed.directory.path());
        let tiers = Arc::new(bed.tiers(&daemon, case.slots << 20, case.all));
        let mut reader = Reader::with_io(tiers.clone(), Access::Pread, false, 8);
        let reads = cut(&case.sizes, &case.reads);
        for epoch in 0..3 {
            for some in reads.chunks(5) {
                bed.read(&tiers, &mut reader, some, epoch);
            }
            assert!(tiers.finish_copies(Duration::from_secs(30)), "{case:?}");
        }
        assert_eq!(tiers.take_warnings(), Vec::<String>::new(), "{case:?}");
    }
}
