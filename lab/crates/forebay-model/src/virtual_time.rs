//! Runs programs against the model in virtual time.
//!
//! A [`Scenario`] lists programs, their nodes and their actions in order. [`run`] executes them
//! with one client per node and one model, and returns the waits of each program and the work of
//! each server. At the start, programs run in the order of the scenario.
use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use crate::client::{Access, AccessMethod, ByteRange, OpenFile, ReadAheadRules};
use crate::error::Error;
use crate::file_system::{FileSystem, ServerResult};
use crate::ids::{FileId, ModelTime, NodeId};
use crate::kernel::{Actor, Condition, Kernel};
use crate::model::Direction;
use crate::spec::Spec;

/// Programs, and the nodes that they run on.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// Read-ahead of the nodes.
    #[serde(default)]
    pub rules: ReadAheadRules,
    /// Seed of the model's jitter.
    #[serde(default)]
    pub seed: u64,
    /// Sizes of the files by number \[B\]; a file beyond the list has no end.
    #[serde(default)]
    pub files: Vec<u64>,
    /// The programs.
    pub streams: Vec<Stream>,
}

/// One program (or thread) on a node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stream {
    /// Its node; programs of one node share its page cache and link.
    #[serde(default)]
    pub node: u32,
    /// Its actions, in order.
    pub actions: Vec<Action>,
}

/// One action of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// Computes for this long \[ns\].
    ThinkNs(u64),
    /// Accesses bytes of a file and waits for them.
    Touch {
        /// Number of the file.
        #[serde(default)]
        file: u64,
        /// Offset \[B\].
        offset: u64,
        /// Length \[B\].
        length: u64,
        /// Method of access.
        how: AccessMethod,
    },
    /// Writes bytes of a file and waits until the servers have them.
    Write {
        /// Number of the file.
        #[serde(default)]
        file: u64,
        /// Offset \[B\].
        offset: u64,
        /// Length \[B\].
        length: u64,
    },
    /// One operation of the metadata server.
    Metadata,
    /// Waits until every program that has not ended is at a barrier.
    Barrier,
}

/// The result of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SimulationResult {
    /// When the last program ended \[model ns\].
    pub end_ns: ModelTime,
    /// Per program.
    pub streams: Vec<StreamResult>,
    /// Per server.
    pub servers: Vec<ServerResult>,
}

/// The work and waits of one program.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamResult {
    /// When it ended \[model ns\].
    pub end_ns: ModelTime,
    /// Time spent waiting for the file system \[ns\].
    pub wait_ns: u64,
    /// Time spent computing \[ns\].
    pub think_ns: u64,
    /// Time spent waiting at barriers \[ns\].
    pub barrier_ns: u64,
    /// Bytes that it accessed \[B\].
    pub requested_bytes: u64,
    /// Bytes that its node fetched for it, read-ahead included \[B\].
    pub read_bytes: u64,
    /// Number of requests for them.
    pub reads: u64,
}

/// Runs a scenario on a file system.
pub fn run(spec: &Spec, scenario: &Scenario) -> Result<SimulationResult, Error> {
    let mut storage = FileSystem::new(spec, scenario.rules, scenario.seed)?;
    let last = scenario.streams.iter().map(|stream| stream.node).max();
    for _ in 0..last.map_or(0, |last| last + 1) {
        storage.add_node();
    }
    let mut kernel = Kernel::default();
    let mut world = World {
        storage,
        files: &scenario.files,
        results: vec![StreamResult::default(); scenario.streams.len()],
        running: scenario.streams.len(),
        arrived: 0,
        barrier: kernel.condition(),
    };
    let mut programs: Vec<Program<'_>> = scenario.streams.iter().enumerate().map(Program::new).collect();
    kernel.run(&mut programs, &mut world);
    Ok(SimulationResult {
        end_ns: world.results.iter().map(|stream| stream.end_ns).max().unwrap_or(0),
        servers: world.storage.servers().to_vec(),
        streams: world.results,
    })
}

/// What the programs share.
struct World<'a> {
    storage: FileSystem,
    files: &'a [u64],
    results: Vec<StreamResult>,
    running: usize,
    /// Programs at the barrier.
    arrived: usize,
    barrier: Condition,
}

impl World<'_> {
    /// Opens the barrier once all programs that still run have arrived.
    fn open_barrier(&mut self, kernel: &mut Kernel) {
        if self.arrived == self.running {
            self.arrived = 0;
            kernel.notify(self.barrier);
        }
    }
}

struct Program<'a> {
    number: usize,
    node: NodeId,
    actions: std::slice::Iter<'a, Action>,
    opens: HashMap<u64, OpenFile>,
    access: Option<Access>,
    /// When it arrived at the barrier.
    at_barrier: Option<ModelTime>,
}

impl<'a> Program<'a> {
    fn new((number, stream): (usize, &'a Stream)) -> Program<'a> {
        Program {
            number,
            node: NodeId(stream.node),
            actions: stream.actions.iter(),
            opens: HashMap::new(),
            access: None,
            at_barrier: None,
        }
    }
}

impl Actor<World<'_>> for Program<'_> {
    fn resume(&mut self, kernel: &mut Kernel, world: &mut World<'_>) {
        let now = kernel.now();
        if let Some(since) = self.at_barrier.take() {
            world.results[self.number].barrier_ns += now - since;
        }
        loop {
            if let Some(access) = &mut self.access {
                let step = world.storage.step(now, self.node, access);
                let result = &mut world.results[self.number];
                result.reads += step.reads;
                result.read_bytes += step.read_bytes;
                match step.due {
                    None => self.access = None,
                    Some(due) if due > now => {
                        result.wait_ns += due - now;
                        return kernel.resume_at(due);
                    }
                    Some(_) => {}
                }
                continue;
            }
            let result = &mut world.results[self.number];
            let Some(&action) = self.actions.next() else {
                result.end_ns = now;
                world.running -= 1;
                return world.open_barrier(kernel);
            };
            let due = match action {
                Action::ThinkNs(think_ns) => {
                    result.think_ns += think_ns;
                    return kernel.resume_after(think_ns);
                }
                Action::Barrier => {
                    self.at_barrier = Some(now);
                    kernel.wait(world.barrier);
                    world.arrived += 1;
                    return world.open_barrier(kernel);
                }
                Action::Touch { file, offset, length, how } => {
                    result.requested_bytes += length;
                    let client = world.storage.client(self.node);
                    let bytes = world.files.get(file as usize).copied().unwrap_or(u64::MAX);
                    let open = *self.opens.entry(file).or_insert_with(|| client.open(FileId(file), bytes));
                    self.access = Some(client.access(open, offset, length, how));
                    continue;
                }
                Action::Write { file, offset, length } => {
                    let range = ByteRange { offset, length };
                    world.storage.transfer(now, self.node, FileId(file), range, Direction::Write).1
                }
                Action::Metadata => world.storage.model().metadata(now, self.node),
            };
            world.results[self.number].wait_ns += due - now;
            return kernel.resume_at(due);
        }
    }
}
