//! The threads of a node, as actors. Each file has one, under the name that the engine has for it.

mod consumer;
mod gather;
mod in_place;
mod planner;
mod reader;
mod root;
mod scanner;
mod walk;

use forebay_model::{Actor, Kernel};
use forebay_plan::config::Locate;

use self::consumer::Consumer;
use self::gather::Gather;
use self::planner::Planner;
use self::reader::Reader;
use self::root::Root;
use self::scanner::Scanner;
use crate::job::Job;
use crate::world::World;

/// A thread of a node.
pub(crate) enum Thread {
    Planner(Box<Planner>),
    Reader(Reader),
    Gather(Box<Gather>),
    Root(Box<Root>),
    Scanner(Scanner),
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
            Thread::Consumer(consumer) => consumer.resume(kernel, world),
        }
    }
}

/// The scan that comes before all, where the strategy has one.
pub(crate) fn scanner(job: &Job) -> Option<Thread> {
    (job.strategy.locate == Locate::Scan).then(|| Thread::Scanner(Scanner::new()))
}

/// The threads of a node; `gathers` is the number of its gather threads for each rank, and the
/// script computes for `compute_ns` in each step.
pub(crate) fn threads(world: &mut World<'_>, node: usize, gathers: usize, compute_ns: u64) -> Vec<Thread> {
    let settings = world.settings(node);
    let is_alone = settings.mode.is_alone();
    let mut threads = vec![Thread::Consumer(Consumer::new(node, compute_ns))];
    let ranks = world.job.ranks_of(node as u32);
    let alone = if is_alone { ranks.clone() } else { 0..0 };
    threads.extend(
        (0..gathers).map(|_| Thread::Gather(Box::new(Gather::new(node, alone.clone(), world.job.program)))),
    );
    if is_alone {
        return threads;
    }
    threads.push(Thread::Planner(Box::new(Planner::new(world, node))));
    let roots = settings.locating_roots;
    world.nodes[node].located = (0..roots as u64).collect();
    let root = |number| Thread::Root(Box::new(Root::new(node, number, roots, ranks.clone())));
    threads.extend((0..roots).map(root));
    let readers = settings.region.readers as u64;
    threads.extend((0..readers).map(|number| Thread::Reader(Reader::new(node, number, readers))));
    threads
}
