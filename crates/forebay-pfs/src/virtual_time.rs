//! Runs programs against the model without waiting.
//!
//! A [`Scenario`] says which programs run on which nodes and what each of them does, one thing after the other. [`run`] takes them through
//! their nodes' clients and one model; whatever happens at the same time happens in the order in which it was begun, programs in the
//! order of the scenario first. The answer says what each program waited for, and what the servers saw.
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use serde::{Deserialize, Serialize};

use crate::client::{Access, Client, How, OpenFile, Range, Rules};
use crate::error::Error;
use crate::model::{FileId, Kind, Model, ModelTime, NodeId, Piece};
use crate::spec::Spec;

/// What runs where.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// Whose rules the nodes follow in reading ahead.
    #[serde(default)]
    pub rules: Rules,
    /// Of the model's jitter.
    #[serde(default)]
    pub seed: u64,
    /// Sizes of the files \[B\]; file k is the k-th. A file that is not named here has no end.
    #[serde(default)]
    pub files: Vec<u64>,
    /// The programs.
    pub streams: Vec<Stream>,
}

/// One program (or thread) on a node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stream {
    /// Its node; those with the same number share a page cache and a link.
    #[serde(default)]
    pub node: u32,
    /// What it does, in order.
    pub actions: Vec<Action>,
}

/// One thing that a program does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// Computes for so long \[ns\].
    ThinkNs(u64),
    /// Touches bytes of a file, and waits for them.
    Touch {
        /// Which file.
        #[serde(default)]
        file: u64,
        /// Where \[B\].
        offset: u64,
        /// How many \[B\].
        length: u64,
        /// In which way.
        how: How,
    },
    /// Writes bytes of a file, and waits until they are on the servers.
    Write {
        /// Which file.
        #[serde(default)]
        file: u64,
        /// Where \[B\].
        offset: u64,
        /// How many \[B\].
        length: u64,
    },
    /// One operation of the metadata server.
    Metadata,
    /// Waits until every program that has not ended has come to its barrier.
    Barrier,
}

/// What happened.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// When the last program ended \[model ns\].
    pub end_ns: ModelTime,
    /// Program by program.
    pub streams: Vec<StreamOutcome>,
    /// Server by server.
    pub servers: Vec<ServerOutcome>,
}

/// What one program did and waited for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamOutcome {
    /// When it ended \[model ns\].
    pub end_ns: ModelTime,
    /// What it waited for the file system \[ns\].
    pub wait_ns: u64,
    /// What it computed \[ns\].
    pub think_ns: u64,
    /// What it waited for other programs \[ns\].
    pub barrier_ns: u64,
    /// What it asked for \[B\].
    pub requested_bytes: u64,
    /// What its node fetched on its account, read-ahead included \[B\].
    pub read_bytes: u64,
    /// In how many requests.
    pub reads: u64,
}

/// What one server did.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerOutcome {
    /// Pieces of requests it served.
    pub pieces: u64,
    /// What it moved, in either direction \[B\].
    pub bytes: u64,
    /// How many of them began with a seek.
    pub seeks: u64,
    /// How long it was at work \[ns\].
    pub busy_ns: u64,
    /// How long pieces waited for it \[ns\].
    pub queue_ns: u64,
}

/// What a file system makes of a scenario.
pub fn run(spec: &Spec, scenario: &Scenario) -> Result<Outcome, Error> {
    let mut model = Model::new(spec.clone(), scenario.seed)?;
    let nodes = scenario.streams.iter().map(|stream| stream.node as usize + 1).max().unwrap_or(0);
    let mut run = Run {
        nodes: (0..nodes)
            .map(|_| Node {
                id: model.add_node(),
                client: Client::new(spec, scenario.rules),
                in_flight: Vec::new(),
            })
            .collect(),
        model,
        files: &scenario.files,
        programs: scenario.streams.iter().map(Program::new).collect(),
        outcome: Outcome {
            streams: vec![StreamOutcome::default(); scenario.streams.len()],
            servers: vec![ServerOutcome::default(); spec.targets as usize],
            ..Outcome::default()
        },
        events: BinaryHeap::new(),
        begun: 0,
        running: scenario.streams.len(),
        waiting: Vec::new(),
        pieces: Vec::new(),
        fetches: Vec::new(),
    };
    for program in 0..scenario.streams.len() {
        run.resume_at(0, program);
    }
    while let Some(Reverse((now, _, program))) = run.events.pop() {
        run.resume(now, program);
    }
    run.outcome.end_ns = run.outcome.streams.iter().map(|stream| stream.end_ns).max().unwrap_or(0);
    Ok(run.outcome)
}

struct Run<'a> {
    model: Model,
    nodes: Vec<Node>,
    files: &'a [u64],
    programs: Vec<Program<'a>>,
    outcome: Outcome,
    /// (when, how many were begun before it, whose).
    events: BinaryHeap<Reverse<(ModelTime, u64, usize)>>,
    begun: u64,
    running: usize,
    /// Programs at the barrier, and since when.
    waiting: Vec<(usize, ModelTime)>,
    pieces: Vec<Piece>,
    fetches: Vec<Range>,
}

struct Node {
    id: NodeId,
    client: Client,
    in_flight: Vec<Arrival>,
}

/// Bytes that are on their way to a node's page cache.
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

impl Run<'_> {
    fn resume_at(&mut self, when: ModelTime, program: usize) {
        self.events.push(Reverse((when, self.begun, program)));
        self.begun += 1;
    }

    /// Lets a program go on until it must wait.
    fn resume(&mut self, now: ModelTime, program: usize) {
        loop {
            if let Some((file, mut access)) = self.programs[program].access.take() {
                if let Some(due) = self.proceed(now, program, file, &mut access) {
                    self.programs[program].access = Some((file, access));
                    if due > now {
                        self.outcome.streams[program].wait_ns += due - now;
                        self.resume_at(due, program);
                        return;
                    }
                }
                continue;
            }
            let Some(&action) = self.programs[program].actions.next() else {
                self.outcome.streams[program].end_ns = now;
                self.running -= 1;
                self.open_barrier(now);
                return;
            };
            let node = self.programs[program].node;
            let outcome = &mut self.outcome.streams[program];
            let due = match action {
                Action::ThinkNs(think_ns) => {
                    outcome.think_ns += think_ns;
                    self.resume_at(now.saturating_add(think_ns), program);
                    return;
                }
                Action::Barrier => {
                    self.waiting.push((program, now));
                    self.open_barrier(now);
                    return;
                }
                Action::Touch { file, offset, length, how } => {
                    outcome.requested_bytes += length;
                    let client = &mut self.nodes[node].client;
                    let bytes = self.files.get(file as usize).copied().unwrap_or(u64::MAX);
                    let opens = &mut self.programs[program].opens;
                    let open = *opens.entry(file).or_insert_with(|| client.open(FileId(file), bytes));
                    let access = client.access(open, offset, length, how);
                    self.programs[program].access = Some((FileId(file), access));
                    continue;
                }
                Action::Write { file, offset, length } => {
                    self.transfer(now, node, FileId(file), Range { offset, length }, Kind::Write)
                }
                Action::Metadata => self.model.metadata(now, self.nodes[node].id),
            };
            self.outcome.streams[program].wait_ns += due - now;
            self.resume_at(due, program);
            return;
        }
    }

    /// One step of an access: sends what is to be sent; answers until when to wait, nothing when the access is done.
    fn proceed(
        &mut self,
        now: ModelTime,
        program: usize,
        file: FileId,
        access: &mut Access,
    ) -> Option<ModelTime> {
        let node = self.programs[program].node;
        let mut fetches = std::mem::take(&mut self.fetches);
        let needed = self.nodes[node].client.proceed(access, &mut fetches);
        self.nodes[node].in_flight.retain(|arrival| arrival.due > now);
        for &range in &fetches {
            self.transfer(now, node, file, range, Kind::Read);
            let outcome = &mut self.outcome.streams[program];
            outcome.read_bytes += range.length;
            outcome.reads += 1;
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

    /// Lets everybody go on once all that still run have come.
    fn open_barrier(&mut self, now: ModelTime) {
        if self.waiting.len() < self.running {
            return;
        }
        for (program, since) in std::mem::take(&mut self.waiting) {
            self.outcome.streams[program].barrier_ns += now - since;
            self.resume_at(now, program);
        }
    }

    fn transfer(&mut self, now: ModelTime, node: usize, file: FileId, range: Range, kind: Kind) -> ModelTime {
        let id = self.nodes[node].id;
        let due = self.model.transfer(now, id, file, range.offset, range.length, kind, &mut self.pieces);
        for piece in &self.pieces {
            let server = &mut self.outcome.servers[piece.server.0 as usize];
            server.pieces += 1;
            server.bytes += piece.bytes;
            server.seeks += u64::from(piece.seek);
            server.busy_ns += piece.end - piece.start;
            server.queue_ns += piece.queue_ns;
        }
        due
    }
}
