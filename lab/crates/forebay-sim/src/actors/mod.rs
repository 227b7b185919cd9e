//! The threads of a node, as actors. Each file has one, under the name that the engine has for it.

mod consumer;
mod gather;
mod in_place;
mod planner;
mod reader;

use forebay_model::{Actor, Kernel};

use self::consumer::Consumer;
use self::gather::Gather;
use self::planner::Planner;
use self::reader::Reader;
use crate::world::World;

/// A thread of a node.
pub(crate) enum Thread {
    Planner(Box<Planner>),
    Reader(Reader),
    Gather(Gather),
    Consumer(Consumer),
}

impl<'a> Actor<World<'a>> for Thread {
    fn resume(&mut self, kernel: &mut Kernel, world: &mut World<'a>) {
        match self {
            Thread::Planner(planner) => planner.resume(kernel, world),
            Thread::Reader(reader) => reader.resume(kernel, world),
            Thread::Gather(gather) => gather.resume(kernel, world),
            Thread::Consumer(consumer) => consumer.resume(kernel, world),
        }
    }
}

/// The threads of a node; `gathers` is the number of its gather threads for each rank, and the
/// script computes for `compute_ns` in each step.
pub(crate) fn threads(world: &World<'_>, node: usize, gathers: usize, compute_ns: u64) -> Vec<Thread> {
    let mut threads = vec![
        Thread::Consumer(Consumer::new(node, compute_ns)),
        Thread::Planner(Box::new(Planner::new(world, node))),
    ];
    threads.extend((0..gathers).map(|_| Thread::Gather(Gather::new(node))));
    let readers = world.settings(node).region.readers as u64;
    threads.extend((0..readers).map(|number| Thread::Reader(Reader::new(node, number, readers))));
    threads
}
