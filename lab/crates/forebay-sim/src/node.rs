//! What the threads of a node share: plans, positions, counters. The engine keeps the same in
//! shared memory and in `plan_queue`.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use forebay_model::{Condition, Kernel, ModelTime, NodeId, OpenFile, Processors};
use forebay_plan::{BufferUse, next_block_of_reader, segments_ahead};
use forebay_types::Extent;

use crate::gate::Gate;
use crate::mailbox::Mailbox;
use crate::planned_segment::{PlannedBlock, PlannedSegment};
use crate::result::LevelBytes;

/// What a node has done.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counters {
    /// Requests of readers.
    pub(crate) reads: u64,
    /// Bytes of them \[B\].
    pub(crate) read_bytes: u64,
    /// Bytes that were read into its memory before the loader began \[B\].
    pub(crate) loaded_bytes: u64,
    /// Time to the first batch \[ns\].
    pub(crate) startup_ns: u64,
    /// Time that the script waited for later batches \[ns\].
    pub(crate) wait_ns: u64,
    /// Time that it computed \[ns\].
    pub(crate) compute_ns: u64,
    /// Time that it waited for other nodes \[ns\].
    pub(crate) skew_ns: u64,
}

/// See the module header.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) id: NodeId,
    /// When its ranks make their loaders.
    pub(crate) start: ModelTime,
    /// When its loaders begin to read.
    pub(crate) begin: ModelTime,
    pub(crate) processors: Processors,
    pub(crate) ranks: u32,
    /// A block was filled or announced, or a segment was planned.
    pub(crate) filled: Condition,
    /// A step was gathered, or a segment was planned.
    pub(crate) gathered: Condition,
    /// Planning may go on.
    pub(crate) planning: Condition,
    /// A batch buffer may be claimed.
    pub(crate) room: Condition,
    /// Files that its readers have open.
    pub(crate) opens: BTreeMap<u32, OpenFile>,
    /// Files that its ranks have mapped, by local rank.
    pub(crate) mapped: BTreeMap<(usize, u32), OpenFile>,
    /// Where nodes read in turns.
    pub(crate) gate: Option<Gate>,
    /// Cursors that other roots hand on.
    pub(crate) cursors: Mailbox,
    /// Messages about read tokens.
    pub(crate) tokens: Mailbox,
    segments: VecDeque<PlannedSegment>,
    /// All needs of steps before this one are planned.
    pub(crate) covered: u64,
    /// Steps before this one have been taken from the roots.
    pub(crate) planned: u64,
    /// For each root, the step that it locates next.
    pub(crate) located: Vec<u64>,
    /// Blocks that are not filled, by step.
    missing: BTreeMap<u64, u32>,
    /// What ranks read themselves, by step: local rank, bytes.
    in_place: BTreeMap<u64, Vec<(u32, Extent)>>,
    /// The first block that no reader has begun.
    pub(crate) begun: u64,
    /// Blocks before this one are announced.
    pub(crate) announced: u64,
    /// Whether a reader announces.
    pub(crate) is_announcing: bool,
    buffers: usize,
    /// The step that is claimed next.
    pub(crate) next_claim: u64,
    /// Steps that are being filled, or are filled and not taken.
    in_work: usize,
    /// Batches that the script holds.
    held: usize,
    /// Whether the script waits for a batch.
    pub(crate) is_starving: bool,
    /// All steps before this one are gathered.
    pub(crate) position: u64,
    done: BTreeSet<u64>,
    pub(crate) counters: Counters,
    /// Bytes that it has read for each epoch.
    pub(crate) levels: BTreeMap<u64, LevelBytes>,
}

impl Counters {
    /// Forgets all but the start-up.
    pub(crate) fn begin_window(&mut self) {
        *self = Counters { startup_ns: self.startup_ns, ..Counters::default() };
    }
}

impl Node {
    pub(crate) fn new(
        kernel: &mut Kernel,
        id: NodeId,
        processors: Processors,
        ranks: u32,
        start: ModelTime,
        buffers: usize,
    ) -> Node {
        Node {
            id,
            start,
            begin: start,
            processors,
            ranks,
            filled: kernel.condition(),
            gathered: kernel.condition(),
            planning: kernel.condition(),
            room: kernel.condition(),
            opens: BTreeMap::new(),
            mapped: BTreeMap::new(),
            gate: None,
            cursors: Mailbox::new(kernel),
            tokens: Mailbox::new(kernel),
            segments: VecDeque::new(),
            covered: 0,
            planned: 0,
            located: Vec::new(),
            missing: BTreeMap::new(),
            in_place: BTreeMap::new(),
            begun: 0,
            announced: 0,
            is_announcing: false,
            buffers,
            next_claim: 0,
            in_work: 0,
            held: 0,
            is_starving: false,
            position: 0,
            done: BTreeSet::new(),
            counters: Counters::default(),
            levels: BTreeMap::new(),
        }
    }

    /// Books work that each rank does, and returns when the last one is done.
    pub(crate) fn work_of_ranks(&self, kernel: &mut Kernel, duration: u64) -> ModelTime {
        (0..self.ranks).map(|_| kernel.work(self.processors, duration)).max().unwrap_or(kernel.now())
    }

    /// Adds a segment, which is the next one.
    pub(crate) fn push(&mut self, mut segment: PlannedSegment) {
        for (step, rank, extent) in segment.in_place.drain(..) {
            self.in_place.entry(step).or_default().push((rank, extent));
        }
        for step in segment.blocks.iter().flat_map(|block| &block.steps) {
            *self.missing.entry(*step).or_default() += 1;
        }
        self.segments.push_back(segment);
    }

    /// Segments ahead of the readers.
    pub(crate) fn segments_ahead(&self) -> usize {
        let planned = self.segments.iter().rev().map(|planned| {
            let last = (planned.first_block + planned.blocks.len() as u64).checked_sub(1);
            (planned.first_step, last.filter(|_| !planned.blocks.is_empty()))
        });
        segments_ahead(planned, self.begun, Some(self.next_claim))
    }

    /// Drops segments that no thread needs any more.
    pub(crate) fn forget_done(&mut self) {
        while self.segments.front().is_some_and(|front| {
            front.last_step < self.position && front.blocks.iter().rev().all(|block| block.is_filled)
        }) {
            self.segments.pop_front();
        }
    }

    /// The sequence of the first block at or behind `sequence` that belongs to `reader` of
    /// `readers`, and its place in its segment.
    pub(crate) fn next_block(&self, sequence: u64, reader: u64, readers: u64) -> Option<(u64, usize)> {
        for planned in &self.segments {
            let wanted = next_block_of_reader(sequence.max(planned.first_block), reader, readers);
            let place = (wanted - planned.first_block) as usize;
            if place < planned.blocks.len() {
                return Some((wanted, place));
            }
        }
        None
    }

    /// A block that is planned and not forgotten.
    ///
    /// # Panics
    ///
    /// If there is none.
    pub(crate) fn block(&self, sequence: u64) -> &PlannedBlock {
        let planned = &self.segments[self.segment_of(sequence)];
        &planned.blocks[(sequence - planned.first_block) as usize]
    }

    /// First step and first block of the segment of a block.
    pub(crate) fn segment_start(&self, sequence: u64) -> (u64, u64) {
        let planned = &self.segments[self.segment_of(sequence)];
        (planned.first_step, planned.first_block)
    }

    fn segment_of(&self, sequence: u64) -> usize {
        let behind = self.segments.partition_point(|planned| planned.first_block <= sequence);
        behind.checked_sub(1).expect("the block is planned")
    }

    /// Records that a block is filled.
    pub(crate) fn fill(&mut self, sequence: u64) {
        let place = self.segment_of(sequence);
        let planned = &mut self.segments[place];
        let block = &mut planned.blocks[(sequence - planned.first_block) as usize];
        block.is_filled = true;
        for step in &block.steps {
            let left = self.missing.get_mut(step).expect("a block that is not filled is missing");
            *left -= 1;
            if *left == 0 {
                self.missing.remove(step);
            }
        }
    }

    /// Whether all that a step needs is planned and filled.
    pub(crate) fn is_filled(&self, step: u64) -> bool {
        self.covered > step && !self.missing.contains_key(&step)
    }

    /// What the ranks have to read themselves for a step: local rank, bytes.
    pub(crate) fn take_in_place(&mut self, step: u64) -> Vec<(u32, Extent)> {
        self.in_place.remove(&step).unwrap_or_default()
    }

    /// The batch buffers of each rank.
    pub(crate) fn buffer_use(&self) -> BufferUse {
        BufferUse {
            buffers: self.buffers,
            free: self.buffers.saturating_sub(self.in_work + self.held),
            in_work: self.in_work,
            keeps_all: false,
            starving: self.is_starving,
            fills_in_caller: false,
        }
    }

    /// Claims the next step, if a buffer is available.
    pub(crate) fn claim(&mut self) -> Option<u64> {
        self.buffer_use().may_fill().then(|| {
            self.in_work += 1;
            self.next_claim += 1;
            self.next_claim - 1
        })
    }

    /// Records that a step is gathered.
    pub(crate) fn finish(&mut self, step: u64) {
        self.done.insert(step);
        while self.done.remove(&self.position) {
            self.position += 1;
        }
    }

    /// Takes the batch of a step, if it is gathered; the batch before is dropped.
    pub(crate) fn take(&mut self, step: u64) -> bool {
        let is_there = self.position > step || self.done.contains(&step);
        if is_there {
            self.in_work -= 1;
            self.held = 1;
        }
        is_there
    }
}
