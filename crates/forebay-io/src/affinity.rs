//! Where reader threads may run.
//!
//! Launchers bind a rank to a core or two. A reader that shared them would take time from training,
//! so it may run wherever the job may: on the processors of the launcher itself. That is the
//! nearest ancestor which is no rank (it has no rank in its environment), looked for among
//! processes of the same user in the same control group only, because other users share the rest
//! of the machine. A process that no launcher started keeps its processors: there the
//! user chose them (taskset(1)).

use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Variables that tell a process its rank: Open MPI, Hydra and its kin, `PMIx`, Intel MPI, SLURM,
/// PALS, Flux.
const RANK_VARIABLES: [&str; 7] = [
    "OMPI_COMM_WORLD_RANK",
    "PMI_RANK",
    "PMIX_RANK",
    "MPI_LOCALRANKID",
    "SLURM_PROCID",
    "PALS_RANKID",
    "FLUX_TASK_RANK",
];

/// Ancestors to look at: between a rank and its launcher stand a shell or two.
const MAX_ANCESTORS: usize = 16;

/// Lets the calling thread run on all processors that its job may use; says how many those are.
///
/// Does nothing where no launcher is found, and where the kernel refuses.
pub fn widen_affinity() -> usize {
    let mut allowed = sched_getaffinity(None).unwrap_or_default();
    let own = allowed;
    if RANK_VARIABLES.iter().any(|name| std::env::var_os(name).is_some()) {
        for ancestor in ancestors() {
            let Ok(set) = sched_getaffinity(Some(ancestor)) else { break };
            for processor in (0..CpuSet::MAX_CPU).filter(|processor| set.is_set(*processor)) {
                allowed.set(processor);
            }
            if !is_rank(ancestor) {
                break;
            }
        }
    }
    if allowed != own && sched_setaffinity(None, &allowed).is_err() {
        return own.count() as usize;
    }
    allowed.count() as usize
}

/// Ancestors of the same user in the same control group, the parent first.
fn ancestors() -> impl Iterator<Item = Pid> {
    let group = std::fs::read("/proc/self/cgroup").unwrap_or_default();
    let user = rustix::process::getuid().as_raw();
    std::iter::successors(rustix::process::getppid(), |process| {
        let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
        // The name, in parentheses, may hold anything; state and parent follow it.
        let parent: i32 = stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()?;
        Pid::from_raw(parent)
    })
    .take(MAX_ANCESTORS)
    .take_while(move |process| {
        rustix::fs::stat(format!("/proc/{process}")).is_ok_and(|stat| stat.st_uid == user)
            && std::fs::read(format!("/proc/{process}/cgroup")).is_ok_and(|other| other == group)
    })
}

fn is_rank(process: Pid) -> bool {
    let environment = std::fs::read(format!("/proc/{process}/environ")).unwrap_or_default();
    environment.split(|byte| *byte == 0).any(|entry| {
        RANK_VARIABLES
            .iter()
            .any(|name| entry.strip_prefix(name.as_bytes()).is_some_and(|rest| rest.first() == Some(&b'=')))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn widening_never_takes_a_processor_away() {
        std::thread::spawn(|| {
            let before = sched_getaffinity(None).expect("own processors");
            let count = widen_affinity();
            let after = sched_getaffinity(None).expect("own processors");
            assert_eq!(count, after.count() as usize);
            assert!((0..CpuSet::MAX_CPU).all(|place| !before.is_set(place) || after.is_set(place)));
        })
        .join()
        .expect("no panic");
    }

    #[test]
    fn the_parent_is_the_first_ancestor() {
        let parent = rustix::process::getppid();
        assert!(ancestors().next().is_none_or(|first| Some(first) == parent));
    }
}
