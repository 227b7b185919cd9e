//! Why the system refused to start a thread.
//!
//! clone(2) returns EAGAIN for every limit, and the C library returns it also for a stack without
//! memory. So the limits are compared with their use afterwards: `pids.max` of the control groups,
//! `RLIMIT_NPROC` of the user, `RLIMIT_AS` and `RLIMIT_DATA` of the process, `threads-max` of the
//! machine. The message names the first one that is reached, with its value. If none is, because
//! the use has dropped or is hidden, it lists the limits that are set.

use std::fmt;
use std::fs;
use std::io;

use rustix::process::{Resource, getrlimit};

use crate::memory_limits::{Machine, kib_after, number, value_after};

/// Address space of a thread \[bytes\]: the stack that Rust allocates.
const STACK_BYTES: u64 = 2 << 20;

/// A thread that could not be started.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot start {what}: {cause}")]
pub struct ThreadError {
    what: String,
    cause: String,
    hint: String,
    lacks_memory: bool,
}

impl ThreadError {
    /// Determines why `what` could not be started.
    pub fn new(what: impl fmt::Display, error: &io::Error) -> Self {
        let limits = Limits::read(&Machine::this());
        let (cause, hint) = limits.explain(error);
        let lacks_memory = limits.have_threads_left() && limits.lacks_memory().is_some();
        Self { what: what.to_string(), cause, hint, lacks_memory }
    }

    /// Whether a memory limit leaves no room for its stack.
    #[must_use]
    pub fn lacks_memory(&self) -> bool {
        self.lacks_memory
    }

    /// Advice for the line below the message.
    #[must_use]
    pub fn hint(&self) -> &str {
        &self.hint
    }
}

/// A limit and its use.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Use {
    limit: u64,
    used: u64,
}

impl Use {
    fn is_reached(&self, more: u64) -> bool {
        self.used.saturating_add(more) > self.limit
    }
}

/// The limits on threads.
#[derive(Clone, Debug, Default)]
struct Limits {
    /// `pids.max` of each control group that has one, by directory.
    groups: Vec<(String, Use)>,
    /// `RLIMIT_NPROC`, and the visible processes and threads of the user; `None` for an exempt
    /// user.
    user: Option<(u32, Use)>,
    /// `RLIMIT_AS` \[bytes\].
    space: Option<Use>,
    /// `RLIMIT_DATA` \[bytes\].
    data: Option<Use>,
    /// `kernel.threads-max`.
    machine: Option<Use>,
}

impl Limits {
    fn read(machine: &Machine) -> Self {
        let groups = machine.directories("pids").into_iter().filter_map(|group| {
            let limit = number(&group.path.join("pids.max"))?;
            let used = number(&group.path.join("pids.current"))?;
            Some((group.path.display().to_string(), Use { limit, used }))
        });
        let uid = rustix::process::getuid();
        let user = getrlimit(Resource::Nproc).current.filter(|_| !uid.is_root());
        let user =
            user.map(|limit| (uid.as_raw(), Use { limit, used: tasks_of_user(machine, uid.as_raw()) }));
        let status = machine.read("proc/self/status");
        let of_process = |resource, field| {
            let used = kib_after(&status, field).unwrap_or(0);
            getrlimit(resource).current.map(|limit| Use { limit, used })
        };
        let space = of_process(Resource::As, "VmSize:");
        let data = of_process(Resource::Data, "VmData:");
        // 0.20 0.18 0.12 1/80 11206: running tasks / all tasks.
        let load = machine.read("proc/loadavg");
        let tasks =
            load.split_ascii_whitespace().nth(3).and_then(|both| both.split_once('/')?.1.parse().ok());
        let most = machine.read("proc/sys/kernel/threads-max").trim().parse().ok();
        let machine = most.zip(tasks).map(|(limit, used)| Use { limit, used });
        Self { groups: groups.collect(), user, space, data, machine }
    }

    /// Whether no limit on threads of the group or the user is reached.
    fn have_threads_left(&self) -> bool {
        let of_groups = self.groups.iter().map(|(_, found)| found);
        !of_groups.chain(self.user.iter().map(|(_, found)| found)).any(|found| found.is_reached(1))
    }

    /// The memory limit that leaves no room for a stack: its name, and the option of ulimit.
    fn lacks_memory(&self) -> Option<(&'static str, &'static str, &Use)> {
        let both = [("RLIMIT_AS", "-v", &self.space), ("RLIMIT_DATA", "-d", &self.data)];
        both.into_iter().find_map(|(name, flag, found)| {
            found.as_ref().filter(|found| found.is_reached(STACK_BYTES)).map(|found| (name, flag, found))
        })
    }

    /// The cause, and advice.
    fn explain(&self, error: &io::Error) -> (String, String) {
        if let Some((path, Use { limit, used })) = self.groups.iter().find(|(_, found)| found.is_reached(1)) {
            return (
                format!("pids.max of the control group {path} is reached (limit {limit}, in use {used})"),
                "raise the limit of the group (TasksMax= of systemd, --pids-limit of a container, the job's limit of a \
                 scheduler), or run fewer ranks in it"
                    .into(),
            );
        }
        if let Some((uid, Use { limit, used })) = self.user.as_ref().filter(|(_, found)| found.is_reached(1))
        {
            return (
                format!(
                    "RLIMIT_NPROC is reached (limit {limit} processes and threads of user {uid}, in use {used})"
                ),
                "raise `ulimit -u`, or run fewer processes and threads of this user".into(),
            );
        }
        if let Some((name, flag, Use { limit, used })) = self.lacks_memory() {
            let less = if name == "RLIMIT_AS" {
                "; node_memory= and strategy=\"pread\" make a loader take less address space"
            } else {
                ""
            };
            return (
                format!(
                    "{name} leaves no room for its stack of {} MiB (limit {} MiB, in use {} MiB)",
                    STACK_BYTES >> 20,
                    limit >> 20,
                    used >> 20
                ),
                format!("raise `ulimit {flag}`{less}"),
            );
        }
        if let Some(Use { limit, used }) = self.machine.as_ref().filter(|found| found.is_reached(1)) {
            return (
                format!("threads-max of this machine is reached (limit {limit}, in use {used})"),
                "run fewer processes and threads here, or raise the sysctl kernel.threads-max".into(),
            );
        }
        let set = self.described();
        let cause = if set.is_empty() { error.to_string() } else { format!("{error} ({set})") };
        let hint =
            "look at `ulimit -u`, at pids.max of the control group, and whether memory is left for a stack";
        (cause, hint.into())
    }

    /// The limits that are set, if none seems to be reached.
    fn described(&self) -> String {
        let mut set = Vec::new();
        if let Some((_, Use { limit, used })) = &self.user {
            set.push(format!("RLIMIT_NPROC: limit {limit}, in use {used}"));
        }
        for (path, Use { limit, used }) in &self.groups {
            set.push(format!("pids.max of {path}: limit {limit}, in use {used}"));
        }
        if let Some(Use { limit, used }) = &self.space {
            set.push(format!("RLIMIT_AS: limit {} MiB, in use {} MiB", limit >> 20, used >> 20));
        }
        set.join("; ")
    }
}

/// Number of visible processes and threads of a user.
fn tasks_of_user(machine: &Machine, uid: u32) -> u64 {
    let Ok(processes) = fs::read_dir(machine.root.join("proc")) else { return 0 };
    let threads = |status: String| {
        let owner = value_after(&status, "Uid:")?;
        (owner == u64::from(uid)).then(|| value_after(&status, "Threads:")).flatten()
    };
    processes
        .filter_map(|entry| {
            let path = entry.ok()?.path();
            path.file_name()?.to_str()?.parse::<u32>().ok()?;
            threads(fs::read_to_string(path.join("status")).ok()?)
        })
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn again() -> io::Error {
        io::Error::from_raw_os_error(libc::EAGAIN)
    }

    #[test]
    fn the_limit_that_is_reached_is_named_with_its_figure() {
        let free = Use { limit: 100, used: 5 };
        let full = Use { limit: 100, used: 100 };
        let group =
            |found: &Use| vec![("/cg/up".to_owned(), free.clone()), ("/cg".to_owned(), found.clone())];
        let mib = |limit: u64, used: u64| Some(Use { limit: limit << 20, used: used << 20 });
        let table = [
            (
                Limits { groups: group(&full), user: Some((7, full.clone())), ..Limits::default() },
                "pids.max of the control group /cg is reached (limit 100, in use 100)",
                "TasksMax",
            ),
            (
                Limits { groups: group(&free), user: Some((7, full.clone())), ..Limits::default() },
                "RLIMIT_NPROC is reached (limit 100 processes and threads of user 7, in use 100)",
                "ulimit -u",
            ),
            (
                Limits { user: Some((7, free.clone())), space: mib(1000, 999), ..Limits::default() },
                "RLIMIT_AS leaves no room for its stack of 2 MiB (limit 1000 MiB, in use 999 MiB)",
                "ulimit -v",
            ),
            (
                Limits { space: mib(1000, 9), data: mib(500, 499), ..Limits::default() },
                "RLIMIT_DATA leaves no room for its stack of 2 MiB (limit 500 MiB, in use 499 MiB)",
                "ulimit -d",
            ),
            (
                Limits { space: mib(1000, 998), machine: Some(full.clone()), ..Limits::default() },
                "threads-max of this machine is reached (limit 100, in use 100)",
                "kernel.threads-max",
            ),
            (
                Limits {
                    groups: vec![("/cg".into(), free.clone())],
                    user: Some((7, free.clone())),
                    ..Limits::default()
                },
                "(RLIMIT_NPROC: limit 100, in use 5; pids.max of /cg: limit 100, in use 5)",
                "ulimit -u",
            ),
            (Limits::default(), "Resource temporarily unavailable", "pids.max"),
        ];
        for (limits, cause, hint) in table {
            let found = limits.explain(&again());
            assert!(found.0.contains(cause) && found.1.contains(hint), "{found:?}");
            let lacks_memory = limits.have_threads_left() && limits.lacks_memory().is_some();
            assert_eq!(lacks_memory, cause.contains("for its stack"), "{found:?}");
        }
    }

    #[test]
    fn the_limits_are_read_where_the_kernel_tells_them() {
        let directory = tempfile::tempdir().unwrap();
        let uid = rustix::process::getuid().as_raw();
        for (path, text) in [
            ("proc/self/cgroup", "0::/job\n".to_owned()),
            ("proc/self/mountinfo", "30 25 0:26 / /cg rw - cgroup2 cgroup2 rw\n".to_owned()),
            ("proc/self/status", "VmSize:\t  2048 kB\n".to_owned()),
            ("proc/loadavg", "0.20 0.18 0.12 1/80 11206\n".to_owned()),
            ("proc/sys/kernel/threads-max", "90\n".to_owned()),
            ("proc/12/status", format!("Uid:\t{uid}\t9\t9\t9\nThreads:\t4\n")),
            ("proc/13/status", format!("Uid:\t{}\t{uid}\t9\t9\nThreads:\t8\n", uid + 1)),
            ("proc/irq/status", format!("Uid:\t{uid}\nThreads:\t100\n")),
            ("cg/job/pids.max", "20\n".to_owned()),
            ("cg/job/pids.current", "19\n".to_owned()),
            ("cg/pids.max", "max\n".to_owned()),
        ] {
            let path = directory.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let machine = Machine { root: directory.path().into() };
        let limits = Limits::read(&machine);
        assert_eq!(limits.groups.len(), 1);
        assert!(limits.groups[0].0.ends_with("/cg/job"));
        assert_eq!(limits.groups[0].1, Use { limit: 20, used: 19 });
        assert_eq!(limits.machine, Some(Use { limit: 90, used: 80 }));
        assert_eq!(tasks_of_user(&machine, uid), 4);
    }
}
