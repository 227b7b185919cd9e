//! The threads of a node, as actors. Each file has one, under the name that the engine has for it
//! (`run_worker` and `run_copier` are threads of the daemon of `forebay run`); `walk`, `in_place`,
//! `share_reads`, `share_requests`, `transfers`, `requests`, `program_files` and `advice` are what
//! they do.

mod advice;
mod consumer;
mod copier;
mod gather;
mod handoff_walk;
mod in_place;
mod loader;
mod mapped_copy;
mod planner;
mod program_files;
mod reader;
mod requests;
mod root;
mod run_copier;
mod run_worker;
mod sample_reads;
mod scanner;
mod share_gather;
mod share_reads;
mod share_requests;
mod token_thread;
mod transfers;
mod turns;
mod walk;
mod worker;

use forebay_model::{Actor, Kernel};
use forebay_plan::config::{IoMode, Locate};
use forebay_plan::{COPIERS, COPY_THREADS, load_threads};

use self::consumer::Consumer;
use self::copier::Copier;
use self::gather::Gather;
use self::loader::Loader;
use self::planner::Planner;
use self::reader::Reader;
use self::root::Root;
use self::run_copier::RunCopier;
use self::run_worker::RunWorker;
use self::scanner::Scanner;
use self::share_gather::ShareGather;
use self::token_thread::TokenThread;
use self::worker::Worker;
use crate::job::Job;
use crate::world::World;

/// A thread of a node.
pub(crate) enum Thread {
    Planner(Box<Planner>),
    Reader(Reader),
    Gather(Box<Gather>),
    Root(Box<Root>),
    Scanner(Scanner),
    Tokens(TokenThread),
    Loader(Loader),
    ShareGather(Box<ShareGather>),
    Copier(Copier),
    Worker(Box<Worker>),
    RunWorker(Box<RunWorker>),
    RunCopier(Box<RunCopier>),
    Consumer(Consumer),
}

impl<'a> Actor<World<'a>> for Thread {
    fn resume(&mut self, kernel: &mut Kernel, world: &mut World<'a>) {
        match self {
            Thread::Planner(planner) => planner.resume(kernel, world),
            Thread::Reader(reader) => reader.resume(kernel, world),
            Thread::Gather(gather) => gather.resume(kernel, world),
            Thread::Root(root) => root.resume(kernel, world),
            Thread::Scanner(scanner) => scanner.resume(kernel, world),
            Thread::Tokens(tokens) => tokens.resume(kernel, world),
            Thread::Loader(loader) => loader.resume(kernel, world),
            Thread::ShareGather(gather) => gather.resume(kernel, world),
            Thread::Copier(copier) => copier.resume(kernel, world),
            Thread::Worker(worker) => worker.resume(kernel, world),
            Thread::RunWorker(worker) => worker.resume(kernel, world),
            Thread::RunCopier(copier) => copier.resume(kernel, world),
            Thread::Consumer(consumer) => consumer.resume(kernel, world),
        }
    }
}

/// What comes before all: the scan, where the strategy has one, or the threads that load what nodes
/// keep in memory, or those that stage files.
pub(crate) fn preparing(job: &Job, world: &World<'_>) -> Vec<Thread> {
    if job.strategy.locate == Locate::Scan {
        return vec![Thread::Scanner(Scanner::new())];
    }
    if job.run.stage && !world.runs.is_empty() {
        return (0..world.runs.len()).flat_map(|node| run_threads(node, true)).collect();
    }
    let loading = (0..world.loads.len()).filter(|node| !world.loads[*node].is_empty());
    loading
        .flat_map(|node| (0..load_threads(false)).map(move |_| Thread::Loader(Loader::new(node))))
        .collect()
}

/// The threads of a node; `gathers` is the number of its gather threads for each rank, and the
/// script computes for `compute_ns` in each step. A program has workers in place of the loader's
/// threads.
pub(crate) fn threads(world: &mut World<'_>, node: usize, gathers: usize, compute_ns: u64) -> Vec<Thread> {
    let mut threads = vec![Thread::Consumer(Consumer::new(node, compute_ns))];
    if let Some(program) = world.job.program {
        let worker = |_| Thread::Worker(Box::new(Worker::new(world, node, program)));
        threads.extend((0..program.workers()).map(worker));
        if world.runs.get(node).is_some() {
            threads.extend(run_threads(node, false));
        }
        return threads;
    }
    let settings = world.settings(node);
    let is_alone = settings.mode.is_alone();
    let ranks = world.job.ranks_of(node as u32);
    if settings.mode == IoMode::Store {
        let gather = |_| Thread::ShareGather(Box::new(ShareGather::new(node, ranks.clone())));
        threads.extend((0..gathers).map(gather));
        return threads;
    }
    let alone = if is_alone { ranks.clone() } else { 0..0 };
    threads.extend((0..gathers).map(|_| Thread::Gather(Box::new(Gather::new(node, alone.clone())))));
    if is_alone {
        return threads;
    }
    threads.push(Thread::Planner(Box::new(Planner::new(world, node))));
    let roots = settings.locating_roots;
    world.nodes[node].located = (0..roots as u64).collect();
    threads.extend((0..roots).map(|number| Thread::Root(Box::new(Root::new(world, node, number, roots)))));
    if world.tiers.get(node).is_some_and(|tiers| tiers.plan.makes_copies) {
        // Of each process that has readers.
        let processes = ranks.len().min(settings.region.readers).max(1);
        threads.extend((0..processes * COPY_THREADS).map(|_| Thread::Copier(Copier::new(node))));
    }
    let readers = settings.region.readers as u64;
    threads.extend((0..readers).map(|number| Thread::Reader(Reader::new(node, number, readers))));
    let groups = world.job.strategy.stagger_groups().filter(|_| world.nodes[node].gate.is_some());
    threads.extend(groups.map(|groups| Thread::Tokens(TokenThread::new(node, world.nodes.len(), groups))));
    threads
}

/// The threads of the daemon of `forebay run` on a node. `only_stages`: they end once all files are
/// staged.
fn run_threads(node: usize, only_stages: bool) -> impl Iterator<Item = Thread> {
    let worker = Thread::RunWorker(Box::new(RunWorker::new(node, only_stages)));
    let copier = move |_| Thread::RunCopier(Box::new(RunCopier::new(node)));
    std::iter::once(worker).chain((0..COPIERS).map(copier))
}
