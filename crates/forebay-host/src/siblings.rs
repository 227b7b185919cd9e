//! Detects ranks that ended before they joined, among the processes that the same launcher started
//! on this node.
//!
//! No process at a rendezvous knows a rank that ends before it joins. But its launcher (torchrun's
//! agent, mpiexec's proxy, slurmstepd) also started this process, and wrote the rank into the
//! environment, which processes of the same user can read:
//!
//! 1. The launcher is the parent of the first ancestor of this process that carries this rank in
//!    `variable`.
//! 2. Its children with another rank and the same values of [`JOB_VARIABLES`] are the *tops* of
//!    those ranks: the ranks themselves, or a shell around them. [`Siblings::probe`] examines each
//!    again, through a pidfd.
//! 3. A rank has *ended* if a top of it was seen alive and has ended, no other top of it exists,
//!    and no process of this machine carries the rank any more. Then it has ended for the launcher
//!    as well.
//!
//! A living rank is never reported as ended. A rank that ended before the first probe looks like
//! one that has not started. Without a variable, as under `multiprocessing`, processes cannot be
//! mapped to ranks: then only the number of ended children of the parent is reported.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::pidfd::has_exited;

/// Minimum interval between probes, each of which takes 0.1 ms per process.
const MIN_PROBE_INTERVAL: Duration = Duration::from_millis(500);
/// Variables that distinguish jobs of one launcher, and restarts of one job.
const JOB_VARIABLES: [&str; 9] = [
    "FOREBAY_JOB",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_RESTART_COUNT",
    "MASTER_ADDR",
    "MASTER_PORT",
    "PMIX_NAMESPACE",
    "PMI_PORT",
    "SLURM_JOB_ID",
    "SLURM_STEP_ID",
];
/// Maximum number of ancestors between a rank and its launcher.
const MAX_ANCESTORS: usize = 16;

/// A process that the launcher started.
#[derive(Debug)]
struct Top {
    /// Its rank; `None` if its environment is unreadable or has none.
    rank: Option<u32>,
    started: u64,
    pidfd: Option<OwnedFd>,
    ended: bool,
    how: Option<How>,
}

/// How a process ended, if its parent has not reaped it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    Exit(i32),
    Signal(i32),
}

/// A rank that has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Its process.
    pub pid: i32,
    /// How it ended, as text; may be empty.
    pub how: String,
}

/// See the module header.
#[derive(Debug)]
pub struct Siblings {
    variable: Option<String>,
    /// Values of [`JOB_VARIABLES`] in this process.
    job: Vec<(&'static str, Option<String>)>,
    launcher: (i32, u64),
    tops: BTreeMap<i32, Top>,
    probed_at: Option<Instant>,
}

impl Siblings {
    /// Finds the launcher of this process; `variable` names the environment variable of the rank.
    ///
    /// `None` if the launcher has ended or is in another pid namespace.
    pub fn find(variable: Option<&str>, rank: u32) -> Option<Self> {
        Self::find_in(variable, rank, std::process::id().cast_signed())
    }

    fn find_in(variable: Option<&str>, rank: u32, own_pid: i32) -> Option<Self> {
        let own = process::environment(own_pid)?;
        let job = JOB_VARIABLES.map(|name| (name, own.get(name).cloned())).to_vec();
        let rank = rank.to_string();
        let variable = variable.filter(|name| own.get(*name) == Some(&rank));
        let mut top = own_pid;
        for _ in 0..MAX_ANCESTORS {
            let parent = process::stat(top)?.parent;
            if parent <= 1 {
                return None;
            }
            let above = variable.and_then(|name| process::environment(parent)?.get(name).cloned());
            match above {
                Some(found) if found == rank => top = parent,
                // A launcher may itself be a rank of another one. Until exec, its children have its
                // rank.
                Some(_) => return None,
                None => {
                    let launcher = (parent, process::stat(parent)?.started);
                    let variable = variable.map(str::to_owned);
                    return Some(Self { variable, job, launcher, tops: BTreeMap::new(), probed_at: None });
                }
            }
        }
        None
    }

    /// Examines the launcher's processes, at most once per interval.
    pub fn probe(&mut self) {
        if self.probed_at.is_some_and(|at| at.elapsed() < MIN_PROBE_INTERVAL) {
            return;
        }
        self.probed_at = Some(Instant::now());
        let (launcher, started) = self.launcher;
        if process::stat(launcher).is_none_or(|stat| stat.started != started) {
            return;
        }
        for pid in process::children(launcher) {
            let Some(stat) = process::stat(pid).filter(|stat| stat.parent == launcher) else { continue };
            if self.tops.get(&pid).is_some_and(|top| top.started != stat.started) {
                self.tops.remove(&pid);
            }
            if stat.ended {
                let top = self.tops.entry(pid).or_insert(Top {
                    rank: None,
                    started: stat.started,
                    pidfd: None,
                    ended: true,
                    how: None,
                });
                top.how = stat.how.or(top.how);
                continue;
            }
            let rank = self.rank_of(pid);
            if let Some(top) = self.tops.get_mut(&pid) {
                // A forked process may have executed another program, or may now hide its
                // environment.
                top.rank = rank.or(top.rank);
            } else if let Some(pidfd) = process::pidfd(pid, stat.started) {
                self.tops.insert(
                    pid,
                    Top { rank, started: stat.started, pidfd: Some(pidfd), ended: false, how: None },
                );
            }
        }
        for (pid, top) in &mut self.tops {
            if !top.ended && top.pidfd.as_ref().is_some_and(has_exited) {
                top.ended = true;
                let stat = process::stat(*pid).filter(|stat| stat.started == top.started);
                top.how = stat.and_then(|stat| stat.how);
            }
        }
    }

    /// Whether a rank has certainly ended.
    pub fn ended(&self, rank: u32) -> Option<Ended> {
        let of_rank = || self.tops.iter().filter(move |(_, top)| top.rank == Some(rank));
        let (pid, top) = of_rank().next_back()?;
        let lives = of_rank().any(|(_, top)| !top.ended)
            || process::all().into_iter().any(|pid| {
                self.rank_of(pid) == Some(rank) && process::stat(pid).is_some_and(|stat| !stat.ended)
            });
        (!lives).then(|| Ended { pid: *pid, how: described(top.how) })
    }

    /// All ranks that have ended.
    pub fn all_ended(&self) -> Vec<(u32, Ended)> {
        let ranks: std::collections::BTreeSet<u32> = self.tops.values().filter_map(|top| top.rank).collect();
        ranks.into_iter().filter_map(|rank| Some((rank, self.ended(rank)?))).collect()
    }

    /// What is known of missing ranks, as text for a warning.
    pub fn about(&self, ranks: &[u32]) -> String {
        let mut facts = Vec::new();
        if self.variable.is_some() {
            for rank in ranks {
                let lives = self.tops.iter().find(|(_, top)| top.rank == Some(*rank) && !top.ended);
                facts.push(match lives {
                    Some((pid, _)) => format!("rank {rank} is process {pid}, which runs"),
                    None => format!(
                        "no process of rank {rank} was seen on this node, so it has ended or was not started"
                    ),
                });
            }
        } else {
            let mut ended: Vec<_> = self.tops.iter().filter(|(_, top)| top.ended).collect();
            // The latest first: others may have ended long ago.
            ended.sort_by_key(|(_, top)| std::cmp::Reverse(top.started));
            facts.extend(ended.into_iter().map(|(pid, top)| {
                let how = described(top.how);
                format!("process {pid}, which the same process {} started, has ended{how}", self.launcher.0)
            }));
        }
        // Limit the output of a large job.
        facts.truncate(4);
        facts.join("; ")
    }

    /// The rank that a process carries, if it belongs to this job.
    fn rank_of(&self, pid: i32) -> Option<u32> {
        let environment = process::environment(pid)?;
        let same = self.job.iter().all(|(name, value)| environment.get(*name) == value.as_ref());
        environment.get(self.variable.as_ref()?)?.parse().ok().filter(|_| same)
    }
}

fn described(how: Option<How>) -> String {
    match how {
        Some(How::Exit(code)) => format!(" with exit code {code}"),
        Some(How::Signal(number)) => format!(" by signal {number}"),
        None => String::new(),
    }
}

/// The process table (proc(5)).
mod process {
    use super::{BTreeMap, How, OsString, OsStringExt, OwnedFd, Pid, PidfdFlags, fs, pidfd_open};

    pub(super) struct Stat {
        pub(super) parent: i32,
        /// Start in clock ticks since boot: distinguishes processes that reuse an id.
        pub(super) started: u64,
        pub(super) ended: bool,
        pub(super) how: Option<How>,
    }

    pub(super) fn stat(pid: i32) -> Option<Stat> {
        let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name, in parentheses, may contain anything. State and parent follow. Field 22 is the
        // start; the last one is the status as of wait(2), or 0 without permission.
        let fields: Vec<&str> = text[text.rfind(')')? + 1..].split_ascii_whitespace().collect();
        let ended = matches!(*fields.first()?, "Z" | "X" | "x");
        let status: i32 = fields.get(49).and_then(|field| field.parse().ok()).unwrap_or(0);
        let how = match (status & 0x7f, status >> 8 & 0xff) {
            _ if !ended => None,
            // 0 also means without permission.
            (0, 0) => None,
            (0, code) => Some(How::Exit(code)),
            (signal, _) => Some(How::Signal(signal)),
        };
        Some(Stat {
            parent: fields.get(1)?.parse().ok()?,
            started: fields.get(19)?.parse().ok()?,
            ended,
            how,
        })
    }

    pub(super) fn environment(pid: i32) -> Option<BTreeMap<String, String>> {
        let bytes = fs::read(format!("/proc/{pid}/environ")).ok()?;
        let words = bytes.split(|byte| *byte == 0).filter_map(|word| {
            let word = OsString::from_vec(word.to_vec()).into_string().ok()?;
            word.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned()))
        });
        Some(words.collect())
    }

    pub(super) fn children(pid: i32) -> Vec<i32> {
        let mut children = Vec::new();
        let mut told = false;
        for task in fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
            if let Ok(text) = fs::read_to_string(task.path().join("children")) {
                told = true;
                children.extend(text.split_ascii_whitespace().filter_map(|pid| pid.parse::<i32>().ok()));
            }
        }
        if told {
            return children;
        }
        // A kernel without CONFIG_PROC_CHILDREN.
        let mut all = all();
        all.retain(|child| stat(*child).is_some_and(|stat| stat.parent == pid));
        all
    }

    pub(super) fn all() -> Vec<i32> {
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
    }

    /// A descriptor of the process that was started then.
    pub(super) fn pidfd(pid: i32, started: u64) -> Option<OwnedFd> {
        let pidfd = pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty()).ok()?;
        stat(pid).is_some_and(|stat| stat.started == started).then_some(pidfd)
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command, Stdio};

    use super::*;

    const VARIABLE: &str = "FOREBAY_SIBLINGS_TEST_RANK";

    /// Children of this process in the parts of ranks; killed in the end.
    struct Ranks(Vec<Child>);

    impl Ranks {
        fn start(job: &str, commands: &[(&str, u32)]) -> Self {
            let start = |(command, rank): &(&str, u32)| {
                let mut program = Command::new("sh");
                program.args(["-c", command]).env(VARIABLE, rank.to_string()).env("FOREBAY_JOB", job);
                program.stdout(Stdio::null()).spawn().unwrap()
            };
            Self(commands.iter().map(start).collect())
        }

        fn pid(&self, number: usize) -> i32 {
            self.0[number].id().cast_signed()
        }

        /// What the first of them sees, once all have become shells.
        fn seen(&self) -> Siblings {
            loop {
                let found = Siblings::find_in(Some(VARIABLE), 0, self.pid(0));
                if let Some(mut siblings) = found.filter(|one| one.variable.is_some()) {
                    probe(&mut siblings);
                    if self.0.iter().all(|child| {
                        let top = siblings.tops.get(&child.id().cast_signed());
                        top.is_some_and(|top| top.rank.is_some() || top.ended)
                    }) {
                        return siblings;
                    }
                }
            }
        }
    }

    impl Drop for Ranks {
        fn drop(&mut self) {
            for child in &mut self.0 {
                let _ = child.kill();
                let _ = child.wait();
            }
        }
    }

    fn probe(siblings: &mut Siblings) {
        siblings.probed_at = None;
        siblings.probe();
    }

    #[test]
    fn a_rank_that_was_seen_and_has_ended_is_reported_alone() {
        let mut ranks =
            Ranks::start("ended", &[("exec sleep 1000", 0), ("exec sleep 1000", 1), ("exec sleep 1000", 2)]);
        let mut siblings = ranks.seen();
        assert_eq!(siblings.all_ended(), []);
        assert!(siblings.about(&[1]).contains(&format!("rank 1 is process {}, which runs", ranks.pid(1))));
        ranks.0[1].kill().unwrap();
        // A zombie first, then nothing at all.
        while siblings.ended(1).is_none() {
            probe(&mut siblings);
        }
        let found = siblings.ended(1).unwrap();
        assert_eq!((found.pid, found.how.as_str()), (ranks.pid(1), " by signal 9"));
        ranks.0[1].wait().unwrap();
        probe(&mut siblings);
        assert_eq!(siblings.all_ended(), [(1, found)]);
        assert!(siblings.about(&[1, 7]).contains("no process of rank 7 was seen"));
    }

    #[test]
    fn a_rank_that_goes_on_without_the_shell_around_it_has_not_ended() {
        let mut ranks = Ranks::start("shell", &[("exec sleep 1000", 0), ("sleep 1000 & wait", 1)]);
        let mut siblings = ranks.seen();
        // The shell's child is there, with the same environment.
        while process::children(ranks.pid(1)).is_empty() {}
        let child = process::children(ranks.pid(1))[0];
        ranks.0[1].kill().unwrap();
        ranks.0[1].wait().unwrap();
        probe(&mut siblings);
        assert!(siblings.tops[&ranks.pid(1)].ended);
        assert_eq!(siblings.ended(1), None);
        rustix::process::kill_process(Pid::from_raw(child).unwrap(), rustix::process::Signal::KILL).unwrap();
        while siblings.ended(1).is_none() {
            probe(&mut siblings);
        }
    }

    #[test]
    fn ranks_of_other_jobs_and_of_no_job_are_not_reported() {
        let ranks = Ranks::start("one", &[("exec sleep 1000", 0)]);
        let mut others = Ranks::start("another", &[("exec sleep 1000", 1)]);
        let siblings = &mut ranks.seen();
        others.0[0].kill().unwrap();
        while !siblings.tops.get(&others.pid(0)).is_some_and(|top| top.ended) {
            probe(siblings);
        }
        assert_eq!(siblings.all_ended(), []);
        assert!(Siblings::find_in(None, 0, ranks.pid(0)).is_some_and(|one| one.variable.is_none()));
    }

    #[test]
    fn without_a_variable_children_that_ended_are_mentioned() {
        let mut ranks = Ranks::start("parent", &[("exec sleep 1000", 0), ("exit 3", 1)]);
        let mut siblings = Siblings::find_in(None, 0, ranks.pid(0)).unwrap();
        while siblings.tops.get(&ranks.pid(1)).is_none_or(|top| top.how.is_none()) {
            probe(&mut siblings);
        }
        // Other tests also have children.
        siblings.tops.retain(|pid, _| *pid == ranks.pid(1));
        let (pid, parent) = (ranks.pid(1), std::process::id());
        let found =
            format!("process {pid}, which the same process {parent} started, has ended with exit code 3");
        assert_eq!(siblings.about(&[1]), found);
        assert_eq!(siblings.all_ended(), []);
        ranks.0[1].wait().unwrap();
    }
}
