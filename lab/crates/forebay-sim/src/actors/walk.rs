//! A walk from record to record through a mapping, as LMDB's cursors do: it touches the leaf of
//! every record that it passes, and the records that it is for.

use std::collections::VecDeque;
use std::ops::Range;

use forebay_model::spec::PAGE_BYTES;
use forebay_model::{AccessMethod, ByteRange, ClientAccess, Kernel, ModelTime};
use forebay_plan::PermutationCache;
use forebay_types::{Located, Piece, Rank, SampleId, SamplePlaces};

use crate::actors::program_files::ProgramFile;
use crate::costs::nanoseconds;
use crate::world::World;

/// A cursor, and what it has to reach for a step.
pub(crate) struct Walk {
    node: usize,
    /// Those of the job whose samples it looks for.
    ranks: Range<u32>,
    /// Its process has the file open for itself.
    open: Option<ProgramFile>,
    epoch: u64,
    /// The leaf that it is in; `None` before the first.
    leaf: Option<usize>,
    /// It has touched that leaf.
    has_entered: bool,
    /// The record that it comes to next.
    next: u64,
    how: AccessMethod,
    /// It goes back by beginning again, as the engine does; a program asks the tree.
    begins_again: bool,
    /// Whether it touches records later, and those that it has not touched.
    defers: bool,
    deferred: VecDeque<ByteRange>,
    /// Records to reach, in order: first, and behind the last.
    runs: Vec<(u64, u64)>,
    access: Option<ClientAccess>,
    /// Pages that were touched since [`Walk::take_touched_ns`].
    touched_pages: u64,
    ids: Vec<SampleId>,
    kept: PermutationCache,
    located: Located,
}

impl Walk {
    /// A cursor on a node, at the beginning of the file.
    pub(crate) fn new(node: usize, ranks: Range<u32>, how: AccessMethod) -> Walk {
        Walk {
            node,
            ranks,
            open: None,
            epoch: 0,
            leaf: None,
            has_entered: true,
            next: 0,
            how,
            begins_again: false,
            defers: false,
            deferred: VecDeque::new(),
            runs: Vec::new(),
            access: None,
            touched_pages: 0,
            ids: Vec::new(),
            kept: PermutationCache::default(),
            located: Located::default(),
        }
    }

    /// The same, as the engine's cursors walk: they find records before them by beginning again.
    pub(crate) fn of_engine(node: usize, ranks: Range<u32>) -> Walk {
        Walk { begins_again: true, ..Walk::new(node, ranks, AccessMethod::Mmap) }
    }

    /// Touches records not when it reaches them, but in [`Walk::touch_deferred`].
    pub(crate) fn deferring(self) -> Walk {
        Walk { defers: true, ..self }
    }

    /// The record that it comes to next.
    pub(crate) fn next_record(&self) -> u64 {
        self.next
    }

    /// Goes on from where another cursor has come to, which comes to `next` next.
    pub(crate) fn go_on_from(&mut self, world: &World<'_>, next: u64) {
        let leaves = world.places.leaves();
        let leaf = next.checked_sub(1).map(|last| leaves.partition_point(|leaf| leaf.first <= last) - 1);
        (self.leaf, self.has_entered, self.next) = (leaf, leaf.is_none(), next);
    }

    /// The samples of the step that it has set out for, rank by rank.
    pub(crate) fn samples(&self) -> &[SampleId] {
        &self.ids
    }

    /// Sets out for the samples of its ranks at a step.
    pub(crate) fn begin(&mut self, world: &World<'_>, step: u64) {
        self.epoch = step / world.order.steps_per_epoch();
        world.order.batches_of_ranks(step, self.ranks.clone().map(Rank), &mut self.kept, &mut self.ids);
        self.runs.clear();
        for id in &self.ids {
            match self.runs.last_mut() {
                Some((_, end)) if *end == id.0 => *end += 1,
                _ => self.runs.push((id.0, id.0 + 1)),
            }
        }
        // The next one is the last of the list.
        self.runs.reverse();
    }

    /// The first record that it has set out for.
    pub(crate) fn first(&self) -> u64 {
        self.runs.last().map_or(0, |run| run.0)
    }

    /// Reaches these records as well: those before its own come first, the others take their place.
    pub(crate) fn reach(&mut self, records: Range<u64>) {
        self.runs.retain(|(first, _)| !records.contains(first));
        self.runs.push((records.start, records.end));
    }

    /// Goes on; returns when it continues, or `None` once it has reached all.
    pub(crate) fn advance(&mut self, kernel: &mut Kernel, world: &mut World<'_>) -> Option<ModelTime> {
        self.touch_all(kernel, world, Walk::next_touch)
    }

    /// Touches the records that it has deferred; returns as [`Walk::advance`].
    pub(crate) fn touch_deferred(&mut self, kernel: &mut Kernel, world: &mut World<'_>) -> Option<ModelTime> {
        self.touch_all(kernel, world, |walk, _| walk.deferred.pop_front())
    }

    fn touch_all(
        &mut self,
        kernel: &mut Kernel,
        world: &mut World<'_>,
        next: impl Fn(&mut Walk, &World<'_>) -> Option<ByteRange>,
    ) -> Option<ModelTime> {
        let now = kernel.now();
        loop {
            if let (Some(access), Some(file)) = (&mut self.access, &self.open) {
                if let Some(due) = world.advance_program_access(now, self.node, file, access) {
                    return Some(due);
                }
                self.access = None;
            }
            let range = next(self, world)?;
            self.touched_pages += range.length.div_ceil(PAGE_BYTES);
            let file = *self.open.get_or_insert_with(|| world.open_of_program(kernel, self.node, 0));
            let range = (range.offset, range.length);
            self.access = world.begin_program_access(self.node, &file, range, self.how, self.epoch);
        }
    }

    /// Time of page faults that found their page, since the last call \[ns\].
    pub(crate) fn take_touched_ns(&mut self, world: &World<'_>) -> u64 {
        nanoseconds(std::mem::take(&mut self.touched_pages) as f64 * world.job.costs.fault_ns)
    }

    /// The next bytes on its way; `None` once it has reached all records.
    fn next_touch(&mut self, world: &World<'_>) -> Option<ByteRange> {
        let leaves = world.places.leaves();
        loop {
            let (first, end) = *self.runs.last()?;
            let next_leaf = match self.leaf {
                None => 0,
                Some(leaf) if !self.has_entered => leaf,
                Some(_) if self.begins_again && first < self.next => 0,
                // The tree leads back to records that it has passed.
                Some(leaf) if first < leaves[leaf].first => {
                    leaves.partition_point(|leaf| leaf.first <= first) - 1
                }
                Some(leaf) if leaves.get(leaf + 1).is_some_and(|next| next.first <= first) => leaf + 1,
                Some(_) if first == end => {
                    self.runs.pop();
                    continue;
                }
                // It is in the leaf of the first record.
                Some(leaf) => {
                    let behind = leaves.get(leaf + 1).map_or(end, |next| next.first.min(end));
                    self.next = behind;
                    if behind == end {
                        self.runs.pop();
                    } else if let Some(run) = self.runs.last_mut() {
                        run.0 = behind;
                    }
                    match self.records(world, first, behind) {
                        Some(range) if self.defers => self.deferred.push_back(range),
                        Some(range) => return Some(range),
                        None => {}
                    }
                    continue;
                }
            };
            if self.has_entered {
                self.next = leaves[next_leaf].first;
            }
            (self.leaf, self.has_entered) = (Some(next_leaf), true);
            return Some(ByteRange { offset: leaves[next_leaf].offset, length: PAGE_BYTES });
        }
    }

    /// Where records of one leaf lie, if they have pages of their own.
    fn records(&mut self, world: &World<'_>, first: u64, end: u64) -> Option<ByteRange> {
        let Ok(()) = world.places.locate(&[SampleId(first), SampleId(end - 1)], &mut self.located);
        let [Piece::Extent(first), Piece::Extent(last)] = self.located.pieces() else { return None };
        // Records of a leaf lie in it, behind each other from its end.
        (first.offset % PAGE_BYTES == 0 && first.offset <= last.offset)
            .then(|| ByteRange { offset: first.offset, length: last.end() - first.offset })
    }
}
