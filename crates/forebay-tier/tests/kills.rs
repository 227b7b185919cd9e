//! Processes that fill and read the same tiny tiers, and a daemon: whoever is killed, and whatever
//! becomes of the files of the tiers, each byte that is read is that of the source.
//!
//! Each process is this program again, with a role.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use forebay_host::SocketPath;
use forebay_io::{Access, Reader, ShardFiles, Transfer};
use forebay_plan::ChunkMap;
use forebay_plan::options::TierSpec;
use forebay_tier::daemon::{DamagedPiece, Server, StoredTier};
use forebay_tier::{DaemonAddress, Fill, Source, SourceKey, SourceState, TierClient, TierSetup, TieredFiles};
use forebay_types::ShardId;

const ROLE: &str = "FOREBAY_TEST_ROLE";
const DIRECTORY: &str = "FOREBAY_TEST_DIRECTORY";
/// Files, of which each process uses one or all.
const SIZES: [usize; 3] = [5_300_000, 3_000_001, 9_000_000];
/// Rounds of `make test` and of `make test-long`.
const ROUNDS: u64 = 10;
const LONG_ROUNDS: u64 = 400;

/// xorshift64.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % end
    }
}

/// Byte `at` of a file.
fn byte(file: usize, at: usize) -> u8 {
    ((at as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_right(23) as u8) ^ (file as u8 * 77)
}

fn path(directory: &Path, file: usize) -> PathBuf {
    directory.join(format!("{file}.bin"))
}

/// This program with a role.
fn process(directory: &Path, role: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "child", "--nocapture"]).env(ROLE, role).env(DIRECTORY, directory);
    command
}

/// The other processes of the test below; by itself it does nothing.
#[test]
fn child() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let directory = PathBuf::from(std::env::var_os(DIRECTORY).unwrap());
    if role == "daemon" {
        let socket = SocketPath::new(&directory, &["tiers"]).unwrap();
        let idle = Duration::from_millis(300);
        if let Some(server) = Server::start(&socket, idle).unwrap() {
            std::fs::write(directory.join("daemon"), std::process::id().to_string()).unwrap();
            server.run(&AtomicBool::new(false));
        }
    } else {
        read_until_killed(&directory, role.parse().unwrap());
    }
}

/// Says `attached` when it begins, and `round` after each round; fails at a byte that is wrong.
fn read_until_killed(directory: &Path, seed: u64) {
    let mut random = Random(seed | 1);
    let used: Vec<usize> = match random.below(4) {
        3 => vec![0, 1, 2],
        one => vec![one],
    };
    let shards: Vec<(PathBuf, u64)> =
        used.iter().map(|file| (path(directory, *file), SIZES[*file] as u64)).collect();
    let files = Arc::new(ShardFiles::open(&shards, false).unwrap());
    let sizes: Vec<u64> = shards.iter().map(|(_, bytes)| *bytes).collect();
    let map = ChunkMap::of_files(&sizes);
    let states: Vec<SourceState> = (0..used.len())
        .map(|shard| SourceState::of(&files.stat_now(ShardId(shard as u32)).unwrap()))
        .collect();
    let sources = shards.iter().zip(&states).zip(map.chunks_of_sources());
    let sources = sources.map(|(((path, bytes), state), chunks)| Source {
        key: SourceKey::new(path, state, 1, b"test"),
        path: path.display().to_string(),
        chunks,
        bytes: *bytes,
    });
    let tier = |(name, mib): (&str, u64)| TierSpec {
        path: directory.join(name),
        bytes: mib << 20,
        keep: true,
        force: false,
    };
    let daemon = r#"FOREBAY_TEST_ROLE=daemon "$0" --exact child >/dev/null 2>&1 &"#;
    let program = std::env::current_exe().unwrap().display().to_string();
    let address = DaemonAddress {
        socket: SocketPath::new(directory, &["tiers"]).unwrap().socket().to_owned(),
        command: vec!["sh".into(), "-c".into(), daemon.into(), program],
    };
    let tiers: Vec<TierSpec> = [("first", 4), ("second", 7)].map(tier).into();
    let Ok(client) = TierClient::attach(tiers, sources.collect(), address) else { return };
    let setup = TierSetup {
        watched: Arc::clone(&files),
        files,
        states,
        map,
        placement: Arc::new(|chunk| Some(u8::from(chunk.0.is_multiple_of(2)))),
        buffer_bytes: 8 << 20,
    };
    let tiers = Arc::new(TieredFiles::new(client, setup).unwrap());
    let access = [Access::Pread, Access::IoUring][random.below(2)];
    let mut reader = Reader::with_io(tiers.clone(), access, false, 8);
    println!("attached");
    for epoch in 0.. {
        for _ in 0..20 {
            let places: Vec<(usize, usize, usize)> = (0..=random.below(6))
                .map(|_| {
                    let shard = random.below(used.len());
                    let start = random.below(SIZES[used[shard]]);
                    (shard, start, (1 + random.below(700_000)).min(SIZES[used[shard]] - start))
                })
                .collect();
            let mut memory: Vec<Vec<u8>> = places.iter().map(|(.., length)| vec![0; *length]).collect();
            let mut transfers: Vec<Transfer<'_>> = places
                .iter()
                .zip(&mut memory)
                .map(|((shard, start, _), into)| Transfer {
                    shard: ShardId(*shard as u32),
                    offset: *start as u64,
                    into,
                })
                .collect();
            let how = Fill { epoch, direct: false, has_time: &|| true };
            tiers.fill(&mut transfers, how, &mut |transfers| reader.fill(transfers)).unwrap();
            for ((shard, start, _), found) in places.iter().zip(&memory) {
                let wrong = (0..found.len()).find(|at| found[*at] != byte(used[*shard], start + at));
                if let Some(at) = wrong {
                    println!("wrong byte {} of file {}", start + at, used[*shard]);
                    std::process::exit(1);
                }
            }
        }
        println!("round");
    }
}

/// A process that reads; it is killed at the end.
struct Reading {
    process: Child,
    lines: BufReader<std::process::ChildStdout>,
}

impl Reading {
    fn start(directory: &Path, seed: u64) -> Self {
        let mut command = process(directory, &seed.to_string());
        let mut process = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap());
        Self { process, lines }
    }

    /// Waits until the process has said a line; false if it has ended instead.
    fn goes_on(&mut self) -> bool {
        let mut line = String::new();
        while self.lines.read_line(&mut line).unwrap() > 0 {
            assert!(!line.contains("wrong byte"), "{line}");
            if line.ends_with("attached\n") || line == "round\n" {
                return true;
            }
            line.clear();
        }
        false
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn kill_daemon(directory: &Path) {
    let Ok(text) = std::fs::read_to_string(directory.join("daemon")) else { return };
    let Ok(pid) = text.parse::<i32>() else { return };
    // Its number may be that of another process by now.
    let command = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    let mine = format!("{DIRECTORY}={}", directory.display());
    if command.split(|byte| *byte == 0).any(|variable| variable == mine.as_bytes()) {
        // SAFETY: a signal to a process of this test.
        unsafe { libc::kill(pid, libc::SIGKILL) };
    }
}

/// Something that happens to the files of a tier, but for a change of a slot's bytes.
fn damage(tier: &Path, random: &mut Random) {
    let Some(user) = std::fs::read_dir(tier).unwrap().next() else { return };
    let version = user.unwrap().path().join("v1");
    let slabs = std::fs::read_dir(version.join("slabs")).into_iter().flatten();
    let slab = slabs.map(|slab| slab.unwrap().path()).min();
    match (random.below(6), slab) {
        (0, Some(slab)) => drop(std::fs::remove_file(slab)),
        (1, Some(slab)) => {
            let file = std::fs::File::options().write(true).open(slab);
            drop(file.and_then(|file| file.set_len(random.below(1 << 20) as u64)));
        }
        (2, _) => {
            let Ok(log) = std::fs::File::options().read(true).write(true).open(version.join("log")) else {
                return;
            };
            let length = log.metadata().unwrap().len() as usize;
            if length > 16 {
                let at = (16 + random.below(length - 16)) as u64;
                let mut found = [0];
                log.read_exact_at(&mut found, at).unwrap();
                log.write_all_at(&[found[0] ^ (1 << random.below(8))], at).unwrap();
            }
        }
        (3, _) => drop(std::fs::remove_dir_all(version)),
        _ => {}
    }
}

fn run(rounds: u64, seed: u64) {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    for (file, bytes) in SIZES.iter().enumerate() {
        let contents: Vec<u8> = (0..*bytes).map(|at| byte(file, at)).collect();
        std::fs::write(path(directory, file), contents).unwrap();
    }
    let tiers = ["first", "second"].map(|name| directory.join(name));
    for tier in &tiers {
        std::fs::create_dir(tier).unwrap();
    }
    std::thread::sleep(Duration::from_millis(2_050));
    let mut random = Random(seed);
    let mut reading: Vec<Reading> = Vec::new();
    let mut count = 0;
    for _ in 0..rounds {
        while reading.len() < 3 {
            count += 1;
            reading.push(Reading::start(directory, seed ^ count << 20));
        }
        for _ in 0..random.below(4) {
            reading.retain_mut(Reading::goes_on);
        }
        match random.below(4) {
            0 => kill_daemon(directory),
            1 => {
                kill_daemon(directory);
                damage(&tiers[random.below(2)], &mut random);
            }
            _ if reading.is_empty() => {}
            _ => drop(reading.swap_remove(random.below(reading.len()))),
        }
    }
    reading.clear();
    kill_daemon(directory);
    for tier in &tiers {
        if let Some(stored) = StoredTier::open(tier).unwrap() {
            let verified = stored.verify(&mut |_, _| true);
            // Slabs were deleted and cut.
            let is_there = |piece: &DamagedPiece| {
                let length = std::fs::metadata(&piece.slab).map_or(0, |slab| slab.len());
                piece.offset + piece.bytes <= length
            };
            assert!(!verified.damaged.iter().any(is_there), "{:?}", verified.damaged);
        }
    }
}

#[test]
fn each_byte_is_that_of_the_source_whoever_is_killed() {
    run(ROUNDS, 0x1234_5678_9abc_def1);
}

#[test]
#[ignore = "minutes: `make test-long`"]
fn each_byte_is_that_of_the_source_for_long() {
    let seed = std::env::var("FOREBAY_TEST_SEED").ok().and_then(|seed| seed.parse().ok());
    run(LONG_ROUNDS, seed.unwrap_or(0x0fed_cba9_8765_4321));
}
