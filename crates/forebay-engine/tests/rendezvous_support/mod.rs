//! Ranks as real processes: the test binary runs itself again, once per rank, and talks to its
//! children by lines.
//!
//! A test file that uses this has a test named `child_process` that calls [`child_process`]; it
//! does nothing in the parent. Every wait of the parent has a watchdog, and a dropped [`Rank`] is
//! killed.

#![allow(clippy::disallowed_methods, reason = "a test may panic where there are no threads")]
#![allow(dead_code)] // each test file uses its own part

use std::io::{BufRead, BufReader, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use forebay_engine::rendezvous::{Membership, NodeSpec, RendezvousError, join};
use forebay_host::{EventCount, HostError, Map, fork, sealed_copy, sealed_memfd};
use serde::{Deserialize, Serialize};

/// Longest time without news from a child before a test is taken for hung.
const WATCHDOG: Duration = Duration::from_secs(240);
const VARIABLE: &str = "FOREBAY_TEST_RANK";
/// Begins a line of a child that is meant for the parent.
const MARK: &str = "@@";

/// What a child does.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Script {
    pub job: String,
    pub name: String,
    pub rank: u32,
    pub local_rank: u32,
    pub local_ranks: Vec<u32>,
    pub deadline_ms: u64,
    pub hello_bytes: usize,
    pub lead: Lead,
    /// Joins this often, one after the other, under the same name.
    pub rounds: u32,
    /// Interrupts itself as soon as this file exists.
    pub interrupt: Option<PathBuf>,
    /// Forks a child that keeps all descriptors, as soon as this file exists, and reports "forked"
    /// with its process id.
    pub fork: Option<PathBuf>,
}

/// What the leader does with the hellos.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Lead {
    /// Gives a region, that many other descriptors, and that many bytes.
    Give {
        fds: u32,
        bytes: usize,
    },
    Reject(String),
    /// Reports "leading" and waits for a line before it gives.
    Wait,
    /// Forks a child that keeps all descriptors, reports its process id, and waits.
    ForkAndWait,
    Panic,
}

impl Script {
    pub fn new(local_rank: u32, local_size: u32) -> Self {
        let local_ranks: Vec<u32> = (0..local_size).map(|local_rank| 100 + 3 * local_rank).collect();
        Self {
            job: "job".into(),
            name: "train".into(),
            rank: 100 + 3 * local_rank,
            local_rank,
            local_ranks,
            deadline_ms: 60_000,
            hello_bytes: 100,
            lead: Lead::Give { fds: 1, bytes: 1000 },
            rounds: 1,
            interrupt: None,
            fork: None,
        }
    }
}

/// What a child reports about an error.
#[derive(Debug, Serialize, Deserialize)]
pub struct Failure {
    /// Name of the variant.
    pub kind: String,
    pub message: String,
    pub hint: Option<String>,
    /// Local rank of the one that is meant, if any.
    pub about: Option<u32>,
}

/// A child.
pub struct Rank {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
}

impl Rank {
    pub fn start(directory: &Path, script: &Script) -> Self {
        let command = Command::new(std::env::current_exe().unwrap());
        Self::start_by(command, directory, script)
    }

    /// `command` ends where the test binary's arguments begin.
    pub fn start_by(mut command: Command, directory: &Path, script: &Script) -> Self {
        let mut child = command
            .args(["child_process", "--exact", "--nocapture", "--test-threads=1"])
            .env(VARIABLE, serde_json::to_string(script).unwrap())
            .env("FOREBAY_RUNTIME_DIR", directory)
            .env("RUST_BACKTRACE", "0")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take().unwrap());
        let stderr = child.stderr.take().unwrap();
        let (to, lines) = channel();
        for pipe in [Box::new(stdout) as Box<dyn std::io::Read + Send>, Box::new(stderr)] {
            let to = to.clone();
            std::thread::spawn(move || {
                for line in BufReader::new(pipe).lines().map_while(Result::ok) {
                    if to.send(line).is_err() {
                        return;
                    }
                }
            });
        }
        Self { child, stdin, lines }
    }

    pub fn pid(&self) -> i32 {
        self.child.id().cast_signed()
    }

    /// Waits for a line "@@word rest" and returns the rest; any other such line (but "started")
    /// fails the test.
    pub fn expect(&mut self, word: &str) -> String {
        let mut lines = Vec::new();
        loop {
            let line = match self.lines.recv_timeout(WATCHDOG) {
                Ok(line) => line,
                Err(RecvTimeoutError::Timeout) => panic!("watchdog: no \"{word}\" after {lines:#?}"),
                Err(RecvTimeoutError::Disconnected) => {
                    panic!("the child ended without \"{word}\": {lines:#?}")
                }
            };
            if let Some((_, event)) = line.split_once(MARK) {
                let (first, rest) = event.split_once(' ').unwrap_or((event, ""));
                if first == word {
                    return rest.to_owned();
                }
                assert_eq!(first, "started", "expected {word}: {line}, after {lines:#?}");
            }
            lines.push(line);
        }
    }

    pub fn expect_failure(&mut self) -> Failure {
        serde_json::from_str(&self.expect("failed")).unwrap()
    }

    /// Sends a line.
    pub fn send_line(&mut self, line: &str) {
        writeln!(self.stdin.as_mut().unwrap(), "{line}").unwrap();
    }

    /// SIGKILL.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Lets the child end, and waits for that.
    pub fn finish(mut self) {
        drop(self.stdin.take());
        let end = std::time::Instant::now() + WATCHDOG;
        while self.child.try_wait().unwrap().is_none() {
            assert!(std::time::Instant::now() < end, "watchdog: the child does not end");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Rank {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Starts all ranks of a node whose scripts `change` may change.
pub fn start_all(directory: &Path, local_size: u32, change: impl Fn(&mut Script)) -> Vec<Rank> {
    (0..local_size)
        .map(|local_rank| {
            let mut script = Script::new(local_rank, local_size);
            change(&mut script);
            Rank::start(directory, &script)
        })
        .collect()
}

/// A runtime directory for one test.
pub fn directory() -> (tempfile::TempDir, std::path::PathBuf) {
    let outer = tempfile::Builder::new().prefix("fb").tempdir_in("/tmp").unwrap();
    let inner = outer.path().join("run");
    (outer, inner)
}

/// Names of all that is left in a runtime directory.
pub fn left_in(directory: &Path) -> Vec<String> {
    match std::fs::read_dir(directory) {
        Ok(entries) => entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect(),
        Err(_) => Vec::new(),
    }
}

/// The socket in a runtime directory, if it is there.
pub fn socket_in(directory: &Path) -> Option<PathBuf> {
    let mut paths = left_in(directory).into_iter().map(|name| directory.join(name));
    paths.find(|path| path.extension().is_some_and(|extension| extension == "sock"))
}

/// Sockets that a process has open.
pub fn sockets_of(rank: &Rank) -> usize {
    let Ok(fds) = std::fs::read_dir(format!("/proc/{}/fd", rank.pid())) else { return 0 };
    let targets = fds.flatten().filter_map(|fd| std::fs::read_link(fd.path()).ok());
    targets.filter(|target| target.to_string_lossy().starts_with("socket:")).count()
}

/// Pidfds that a process has open: a leader that waits has its own, and one per follower that sent
/// its hello.
pub fn pidfds_of(rank: &Rank) -> usize {
    let Ok(fds) = std::fs::read_dir(format!("/proc/{}/fd", rank.pid())) else { return 0 };
    let targets = fds.flatten().filter_map(|fd| std::fs::read_link(fd.path()).ok());
    targets.filter(|target| target.to_string_lossy().contains("pidfd")).count()
}

/// Waits until `condition` holds, under the watchdog.
pub fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let end = std::time::Instant::now() + WATCHDOG;
    while !condition() {
        assert!(std::time::Instant::now() < end, "watchdog: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn report(word: &str, rest: &str) {
    println!("{MARK}{word} {rest}");
    std::io::stdout().flush().unwrap();
}

fn pattern(seed: usize, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at * 31 + seed * 7 + at / 251) as u8).collect()
}

/// What all ranks find in the region.
#[repr(C)]
struct Board {
    events: EventCount,
    arrived: AtomicU32,
}

/// The body of a child; nothing in the parent.
pub fn child_process() {
    let Ok(script) = std::env::var(VARIABLE) else { return };
    let script: Script = serde_json::from_str(&script).unwrap();
    let spec = NodeSpec {
        job: script.job.clone(),
        node: "node".into(),
        name: script.name.clone(),
        rank: script.rank,
        local_rank: script.local_rank,
        local_ranks: script.local_ranks.clone(),
        launcher: None,
        deadline: Duration::from_millis(script.deadline_ms),
    };
    let hello = pattern(script.local_rank as usize, script.hello_bytes);
    report("started", "");
    let mut open_after_first = None;
    for round in 0..script.rounds {
        let mut forked = false;
        let mut check = || {
            if !forked && script.fork.as_ref().is_some_and(|file| file.exists()) {
                forked = true;
                report("forked", &fork_idle_child().to_string());
            }
            !script.interrupt.as_ref().is_some_and(|file| file.exists())
        };
        let joined = join(&spec, &hello, |hellos, _| lead(&script, hellos), &mut check);
        match joined {
            Err(error) => {
                let named = match &error {
                    RendezvousError::Host(error @ HostError::Directory { .. }) => format!("{error:?}"),
                    error => format!("{error:?}"),
                };
                let text = Failure {
                    kind: named.split(['(', ' ', '{']).next().unwrap().to_owned(),
                    message: error.to_string(),
                    hint: error.hint().map(str::to_owned),
                    about: match &error {
                        RendezvousError::PeerLost { peer, .. } | RendezvousError::PeerLeft { peer, .. } => {
                            Some(peer.local_rank)
                        }
                        _ => None,
                    },
                };
                report("failed", &serde_json::to_string(&text).unwrap());
                break;
            }
            Ok(membership) => {
                let map = check_membership(&script, &membership);
                if round + 1 < script.rounds {
                    drop((map, membership));
                    let open = std::fs::read_dir("/proc/self/fd").unwrap().count();
                    assert_eq!(
                        open,
                        *open_after_first.get_or_insert(open),
                        "descriptors after round {round}"
                    );
                    continue;
                }
                report("joined", &serde_json::to_string(&membership.peers().collect::<Vec<_>>()).unwrap());
                run_commands(&membership);
            }
        }
    }
    // Lives on until the parent lets it go: an error is not a death.
    let _ = std::io::stdin().lines().last();
}

/// Forks a child that keeps all descriptors until it is killed; returns its process id.
fn fork_idle_child() -> i32 {
    let here = fork::generation();
    // SAFETY: the child only sleeps until it is killed.
    let child = unsafe { libc::fork() };
    if child == 0 {
        assert!(fork::in_forked_child(here));
        loop {
            // SAFETY: no arguments.
            unsafe { libc::pause() };
        }
    }
    child
}

/// Kills a child of a child, whose parent was killed.
pub fn kill_orphan(pid: &str) {
    let pid: i32 = pid.trim().parse().unwrap();
    // SAFETY: the process sleeps until it is killed, so the number is still its own.
    unsafe { libc::kill(pid, libc::SIGKILL) };
}

fn lead(script: &Script, hellos: &[Vec<u8>]) -> Result<(Vec<u8>, Vec<OwnedFd>), String> {
    assert_eq!(hellos.len(), script.local_ranks.len());
    for (local_rank, hello) in hellos.iter().enumerate() {
        assert!(*hello == pattern(local_rank, script.hello_bytes), "hello of {local_rank}");
    }
    let (mut others, mut bytes) = (1, 1000);
    match &script.lead {
        Lead::Give { fds, bytes: reply } => (others, bytes) = (*fds, *reply),
        Lead::Reject(message) => return Err(message.clone()),
        Lead::Panic => panic!("on purpose"),
        Lead::Wait => {
            report("leading", "");
            std::io::stdin().lines().next();
        }
        Lead::ForkAndWait => {
            report("leading", &fork_idle_child().to_string());
            std::io::stdin().lines().next();
        }
    }
    // The name lets the parent find out who still holds this memory.
    let name = format!("fb-{}-{}", script.job, script.name);
    let mut fds = vec![sealed_memfd(&name, size_of::<Board>()).unwrap()];
    fds.extend((0..others).map(|number| sealed_copy(&name, &pattern(number as usize, 5000)).unwrap()));
    Ok((pattern(77, bytes), fds))
}

/// Checks what came, and meets the other ranks in the shared region.
fn check_membership(script: &Script, membership: &Membership) -> Map {
    if let Lead::Give { bytes, fds } = script.lead {
        assert!(membership.reply == pattern(77, bytes));
        assert_eq!(membership.fds.len(), 1 + fds as usize);
    }
    for (number, fd) in membership.fds.iter().skip(1).enumerate() {
        assert!(Map::read_only(fd).unwrap().bytes() == pattern(number, 5000), "descriptor {number}");
    }
    let map = Map::shared(&membership.fds[0], size_of::<Board>()).unwrap();
    #[allow(clippy::cast_ptr_alignment)] // mappings begin at a page
    // SAFETY: the mapping is as large as a board, page-aligned, and began as zeros, which are valid
    // for atomics.
    let board = unsafe { &*map.as_ptr().cast::<Board>() };
    let all = script.local_ranks.len() as u32;
    board.arrived.fetch_add(1, Ordering::AcqRel);
    board.events.notify();
    assert!(board.events.wait(|| board.arrived.load(Ordering::Acquire) == all, WATCHDOG), "not all arrived");
    map
}

/// Runs the commands of the parent until its input ends.
fn run_commands(membership: &Membership) {
    for line in std::io::stdin().lines().map_while(Result::ok) {
        match line.split_once(' ').unwrap_or((&line, "")) {
            ("dead", _) => report("dead", &serde_json::to_string(&membership.dead()).unwrap()),
            ("await-death", _) => {
                until("a death", || membership.dead().is_some());
                report("dead", &serde_json::to_string(&membership.dead()).unwrap());
            }
            ("forget", local_rank) => membership.forget(local_rank.parse().unwrap()),
            other => panic!("{other:?}"),
        }
    }
}
