//! Runs programs against the model in virtual time: a discrete-event simulation that never waits.
//!
//! A [`Scenario`] lists programs, their nodes and their actions in order. [`run`] executes them
//! with one client per node and one model, and returns the waits of each program and the work of
//! each server. Simultaneous events run in the order in which they were scheduled; at the start,
//! that is the order of the scenario.
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use serde::{Deserialize, Serialize};

use crate::client::{Access, AccessMethod, ByteRange, Client, OpenFile, ReadAheadRules};
use crate::error::Error;
use crate::ids::{FileId, ModelTime, NodeId};
use crate::model::{Direction, Model, Piece};
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

/// The work of one server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerResult {
    /// Number of pieces that it served.
    pub pieces: u64,
    /// Bytes read and written \[B\].
    pub bytes: u64,
    /// Number of pieces that began with a seek.
    pub seeks: u64,
    /// Time spent working \[ns\].
    pub busy_ns: u64,
    /// Time that pieces waited for it, summed \[ns\].
    pub queue_ns: u64,
}

/// Runs a scenario on a file system.
pub fn run(spec: &Spec, scenario: &Scenario) -> Result<SimulationResult, Error> {
    let mut model = Model::new(spec.clone(), scenario.seed)?;
    let nodes = scenario.streams.iter().map(|stream| stream.node as usize + 1).max().unwrap_or(0);
    let mut run = Simulation {
        nodes: (0..nodes)
            .map(|_| SimulatedNode {
                id: model.add_node(),
                client: Client::new(spec, scenario.rules),
                in_flight: Vec::new(),
            })
            .collect(),
        model,
        files: &scenario.files,
        programs: scenario.streams.iter().map(Program::new).collect(),
        result: SimulationResult {
            streams: vec![StreamResult::default(); scenario.streams.len()],
            servers: vec![ServerResult::default(); spec.targets as usize],
            ..SimulationResult::default()
        },
        events: BinaryHeap::new(),
        scheduled: 0,
        running: scenario.streams.len(),
        at_barrier: Vec::new(),
        pieces: Vec::new(),
        fetches: Vec::new(),
    };
    for program in 0..scenario.streams.len() {
        run.resume_at(0, program);
    }
    while let Some(Reverse((now, _, program))) = run.events.pop() {
        run.resume(now, program);
    }
    run.result.end_ns = run.result.streams.iter().map(|stream| stream.end_ns).max().unwrap_or(0);
    Ok(run.result)
}

struct Simulation<'a> {
    model: Model,
    nodes: Vec<SimulatedNode>,
    files: &'a [u64],
    programs: Vec<Program<'a>>,
    result: SimulationResult,
    /// (time, sequence number, program).
    events: BinaryHeap<Reverse<(ModelTime, u64, usize)>>,
    scheduled: u64,
    running: usize,
    /// Programs at the barrier, and the time of their arrival.
    at_barrier: Vec<(usize, ModelTime)>,
    pieces: Vec<Piece>,
    fetches: Vec<ByteRange>,
}

struct SimulatedNode {
    id: NodeId,
    client: Client,
    in_flight: Vec<Arrival>,
}

/// Bytes in flight to a node's page cache.
struct Arrival {
    file: FileId,
    begin: u64,
    end: u64,
    due: ModelTime,
}

struct Program<'a> {
    node: usize,
    actions: std::slice::Iter<'a, Action>,
    opens: HashMap<u64, OpenFile>,
    access: Option<(FileId, Access)>,
}

impl<'a> Program<'a> {
    fn new(stream: &'a Stream) -> Program<'a> {
        Program {
            node: stream.node as usize,
            actions: stream.actions.iter(),
            opens: HashMap::new(),
            access: None,
        }
    }
}

impl Simulation<'_> {
    fn resume_at(&mut self, when: ModelTime, program: usize) {
        self.events.push(Reverse((when, self.scheduled, program)));
        self.scheduled += 1;
    }

    /// Runs a program until it waits.
    fn resume(&mut self, now: ModelTime, program: usize) {
        loop {
            if let Some((file, mut access)) = self.programs[program].access.take() {
                if let Some(due) = self.advance(now, program, file, &mut access) {
                    self.programs[program].access = Some((file, access));
                    if due > now {
                        self.result.streams[program].wait_ns += due - now;
                        self.resume_at(due, program);
                        return;
                    }
                }
                continue;
            }
            let Some(&action) = self.programs[program].actions.next() else {
                self.result.streams[program].end_ns = now;
                self.running -= 1;
                self.open_barrier(now);
                return;
            };
            let node = self.programs[program].node;
            let result = &mut self.result.streams[program];
            let due = match action {
                Action::ThinkNs(think_ns) => {
                    result.think_ns += think_ns;
                    self.resume_at(now.saturating_add(think_ns), program);
                    return;
                }
                Action::Barrier => {
                    self.at_barrier.push((program, now));
                    self.open_barrier(now);
                    return;
                }
                Action::Touch { file, offset, length, how } => {
                    result.requested_bytes += length;
                    let client = &mut self.nodes[node].client;
                    let bytes = self.files.get(file as usize).copied().unwrap_or(u64::MAX);
                    let opens = &mut self.programs[program].opens;
                    let open = *opens.entry(file).or_insert_with(|| client.open(FileId(file), bytes));
                    let access = client.access(open, offset, length, how);
                    self.programs[program].access = Some((FileId(file), access));
                    continue;
                }
                Action::Write { file, offset, length } => {
                    self.transfer(now, node, FileId(file), ByteRange { offset, length }, Direction::Write)
                }
                Action::Metadata => self.model.metadata(now, self.nodes[node].id),
            };
            self.result.streams[program].wait_ns += due - now;
            self.resume_at(due, program);
            return;
        }
    }

    /// Advances an access by one step and sends its requests.
    ///
    /// Returns until when the program waits; `None` once the access is done.
    fn advance(
        &mut self,
        now: ModelTime,
        program: usize,
        file: FileId,
        access: &mut Access,
    ) -> Option<ModelTime> {
        let node = self.programs[program].node;
        let mut fetches = std::mem::take(&mut self.fetches);
        let needed = self.nodes[node].client.step(access, &mut fetches);
        self.nodes[node].in_flight.retain(|arrival| arrival.due > now);
        for &range in &fetches {
            self.transfer(now, node, file, range, Direction::Read);
            let result = &mut self.result.streams[program];
            result.read_bytes += range.length;
            result.reads += 1;
            let arrivals = self.pieces.iter().map(|piece| Arrival {
                file,
                begin: piece.offset,
                end: piece.offset + piece.bytes,
                due: piece.due,
            });
            self.nodes[node].in_flight.extend(arrivals);
        }
        self.fetches = fetches;
        needed.map(|range| {
            let end = range.offset + range.length;
            let of_range = |arrival: &&Arrival| {
                arrival.file == file && arrival.begin < end && arrival.end > range.offset
            };
            let in_flight = &self.nodes[node].in_flight;
            in_flight.iter().filter(of_range).map(|arrival| arrival.due).max().unwrap_or(now)
        })
    }

    /// Resumes the programs at the barrier once all that still run have arrived.
    fn open_barrier(&mut self, now: ModelTime) {
        if self.at_barrier.len() < self.running {
            return;
        }
        for (program, since) in std::mem::take(&mut self.at_barrier) {
            self.result.streams[program].barrier_ns += now - since;
            self.resume_at(now, program);
        }
    }

    fn transfer(
        &mut self,
        now: ModelTime,
        node: usize,
        file: FileId,
        range: ByteRange,
        direction: Direction,
    ) -> ModelTime {
        let id = self.nodes[node].id;
        let due = self.model.transfer(now, id, file, range.offset, range.length, direction, &mut self.pieces);
        for piece in &self.pieces {
            let server = &mut self.result.servers[piece.server.0 as usize];
            server.pieces += 1;
            server.bytes += piece.bytes;
            server.seeks += u64::from(piece.seek);
            server.busy_ns += piece.end - piece.start;
            server.queue_ns += piece.queue_ns;
        }
        due
    }
}
