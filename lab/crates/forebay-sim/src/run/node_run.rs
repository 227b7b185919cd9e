//! What the daemon of a node knows of its run. The engine keeps the same in
//! `forebay-tier/src/daemon/run/worker/`.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use forebay_model::{
    ByteRange, Condition, Direction, FileId, FileSystem, Kernel, ModelTime, NodeId, OpenFile,
};
use forebay_plan::{
    CopyBlocks, CopyStep, block_extent, copy_step, file_room_bytes, first_with_room, is_flush_due,
    is_patient, may_stage,
};

use crate::error::Error;
use crate::job::Job;
use crate::run::{CopyJob, Copying, Wanted};
use crate::run_options::RunOptions;
use crate::tier::Tier;

/// A tier of a node, and the copies on it: a copy is the file with the number of its source.
#[derive(Debug)]
pub(crate) struct RunLevel {
    /// None: memory, which takes no time but that of copying.
    pub(crate) storage: Option<(FileSystem, NodeId)>,
    /// What it may hold \[B\].
    quota_bytes: u64,
    /// What copies take, also those under way \[B\].
    taken_bytes: u64,
}

/// See the module header.
#[derive(Debug)]
pub(crate) struct NodeRun {
    pub(crate) options: RunOptions,
    pub(crate) levels: Vec<RunLevel>,
    /// Files that programs get copies of, and the level of each.
    served: BTreeMap<u32, u8>,
    /// Files that are not copied, since there is no room.
    refused: BTreeSet<u32>,
    /// Files that programs opened since the daemon has last looked.
    wishes: VecDeque<u32>,
    /// Files that are to be copied, in order.
    waiting: VecDeque<Wanted>,
    /// Those in `waiting`.
    wanted: BTreeSet<u32>,
    /// Files that are staged when there is time.
    staged: VecDeque<u32>,
    pub(crate) copying: BTreeMap<u32, Copying>,
    /// The copies under way in the order in which they were begun.
    pub(crate) order: VecDeque<u32>,
    /// Copies that are written, on their way to their devices.
    flushing: VecDeque<(u32, Copying)>,
    /// What threads are to copy.
    pub(crate) jobs: VecDeque<CopyJob>,
    /// Files whose jobs are done.
    pub(crate) done: VecDeque<u32>,
    /// A program opened a file without a copy.
    pub(crate) wished: Condition,
    /// A thread has something to do.
    pub(crate) given: Condition,
    /// A thread has done its job.
    pub(crate) ended: Condition,
    /// Bytes of copies that programs get \[B\].
    pub(crate) copied_bytes: u64,
    /// Sizes of the files that programs opened and that were to be copied \[B\].
    requested_bytes: u64,
    /// Sizes of the copies that programs opened \[B\].
    opened_bytes: u64,
    /// What threads read, or are to read \[B\].
    fetched_bytes: u64,
}

impl NodeRun {
    /// A run with empty tiers; `files` are those of the source.
    pub(crate) fn new(job: &Job, files: u32, kernel: &mut Kernel, seed: u64) -> Result<NodeRun, Error> {
        let level = |tier: &Tier| {
            let storage = tier.file_system(&job.machine, seed)?;
            Ok::<_, Error>(RunLevel { storage, quota_bytes: tier.bytes, taken_bytes: 0 })
        };
        Ok(NodeRun {
            options: job.run,
            levels: job.tiers.iter().map(level).collect::<Result<_, _>>()?,
            served: BTreeMap::new(),
            refused: BTreeSet::new(),
            wishes: VecDeque::new(),
            waiting: VecDeque::new(),
            wanted: BTreeSet::new(),
            staged: if job.run.stage { (0..files).collect() } else { VecDeque::new() },
            copying: BTreeMap::new(),
            order: VecDeque::new(),
            flushing: VecDeque::new(),
            jobs: VecDeque::new(),
            done: VecDeque::new(),
            wished: kernel.condition(),
            given: kernel.condition(),
            ended: kernel.condition(),
            copied_bytes: 0,
            requested_bytes: 0,
            opened_bytes: 0,
            fetched_bytes: 0,
        })
    }

    /// A program opens a file: the level of its copy, if it has one. Else the daemon gets to know.
    pub(crate) fn open(&mut self, shard: u32, bytes: u64, kernel: &mut Kernel) -> Option<u8> {
        let level = self.served.get(&shard).copied();
        match level {
            Some(_) => self.opened_bytes += bytes,
            None if self.refused.contains(&shard) => {}
            None => {
                self.wishes.push_back(shard);
                kernel.notify(self.wished);
            }
        }
        level
    }

    /// Whether nothing is to be done until a program opens a file.
    pub(crate) fn is_idle(&self) -> bool {
        let is_empty = self.wishes.is_empty() && self.waiting.is_empty() && self.staged.is_empty();
        is_empty && self.copying.is_empty() && self.flushing.is_empty() && self.done.is_empty()
    }

    /// Takes what programs wish for, and some of what is staged; whether there was any.
    pub(crate) fn take_wishes(&mut self) -> bool {
        let mut acts = !self.wishes.is_empty() || !self.staged.is_empty();
        while let Some(shard) = self.wishes.pop_front() {
            self.want(Wanted { shard, is_staged: false });
        }
        while may_stage(self.waiting.len(), self.copying.len())
            && let Some(shard) = self.staged.pop_front()
        {
            self.want(Wanted { shard, is_staged: true });
            acts = true;
        }
        acts
    }

    fn want(&mut self, wanted: Wanted) {
        let is_known = self.copying.contains_key(&wanted.shard)
            || self.flushing.iter().any(|(other, _)| *other == wanted.shard);
        if !is_known && self.wanted.insert(wanted.shard) {
            self.waiting.push_back(wanted);
        }
    }

    /// The next file that is to be copied, and has no copy.
    pub(crate) fn next_wanted(&mut self) -> Option<Wanted> {
        let wanted = self.waiting.pop_front()?;
        self.wanted.remove(&wanted.shard);
        Some(wanted)
    }

    /// Whether a file has a copy, or is not copied.
    pub(crate) fn is_known(&self, shard: u32) -> bool {
        self.served.contains_key(&shard) || self.refused.contains(&shard)
    }

    /// Begins a copy, unless no tier has room.
    pub(crate) fn begin_copy(&mut self, now: ModelTime, wanted: Wanted, source: OpenFile, bytes: u64) {
        let quotas: Vec<(usize, u64)> =
            self.levels.iter().enumerate().map(|(number, level)| (number, level.quota_bytes)).collect();
        let placed = first_with_room(bytes, quotas, |number| {
            let level = &mut self.levels[number];
            let taken_bytes = level.taken_bytes + file_room_bytes(bytes);
            (taken_bytes <= level.quota_bytes).then(|| {
                level.taken_bytes = taken_bytes;
                number as u8
            })
        });
        let Ok(level) = placed else {
            self.refused.insert(wanted.shard);
            return;
        };
        if !wanted.is_staged {
            self.requested_bytes += bytes;
        }
        let copying = Copying {
            level,
            source,
            blocks: CopyBlocks::new(bytes),
            progressed: now,
            flushed: now,
            is_handed: false,
        };
        self.copying.insert(wanted.shard, copying);
        self.order.push_back(wanted.shard);
    }

    /// Lets threads read the rest of a file.
    pub(crate) fn hand(&mut self, kernel: &mut Kernel, shard: u32, wake_ns: u64) {
        let Some(copying) = self.copying.get_mut(&shard) else { return };
        copying.is_handed = true;
        self.fetched_bytes += copying.blocks.missing_bytes();
        self.jobs.push_back(CopyJob { shard, source: copying.source, bytes: copying.blocks.bytes() });
        kernel.notify_after(self.given, wake_ns);
    }

    /// The blocks that a thread has to read for a copy.
    pub(crate) fn blocks_of(&self, shard: u32) -> VecDeque<u32> {
        self.copying.get(&shard).map_or_else(VecDeque::new, |copying| copying.blocks.missing().collect())
    }

    /// Takes what threads have copied; whether there was any.
    pub(crate) fn take_done(&mut self, now: ModelTime) -> bool {
        let acts = !self.done.is_empty();
        while let Some(shard) = self.done.pop_front() {
            for block in self.blocks_of(shard) {
                self.followed(now, shard, block);
            }
            self.written(now, shard);
        }
        acts
    }

    /// Records that a block was written.
    pub(crate) fn followed(&mut self, now: ModelTime, shard: u32, block: u32) {
        if let Some(copying) = self.copying.get_mut(&shard) {
            copying.blocks.written(block);
            copying.progressed = now;
        }
    }

    /// Decides about a copy after a look at its file.
    pub(crate) fn step(&self, now: ModelTime, shard: u32) -> Option<CopyStep> {
        let copying = self.copying.get(&shard)?;
        let is_patient = is_patient(since(now, copying.progressed), true, false);
        let requested_bytes = self.requested_bytes + self.opened_bytes;
        Some(copy_step(copying.blocks.missing_bytes(), is_patient, |bytes| {
            self.options.fetch.may_read(bytes, self.fetched_bytes, requested_bytes)
        }))
    }

    /// Gives a copy up; the next open of the file begins another one.
    pub(crate) fn abandon(&mut self, shard: u32) {
        let Some(copying) = self.copying.remove(&shard) else { return };
        self.order.retain(|other| *other != shard);
        self.levels[usize::from(copying.level)].taken_bytes -= file_room_bytes(copying.blocks.bytes());
    }

    /// All of a file is written: it goes to its device.
    pub(crate) fn written(&mut self, now: ModelTime, shard: u32) {
        let Some(mut copying) = self.copying.remove(&shard) else { return };
        self.order.retain(|other| *other != shard);
        copying.progressed = now;
        self.flushing.push_back((shard, copying));
    }

    /// Until when to wait for the oldest copy on its way to its device, if that is to be done now.
    pub(crate) fn flush_due(&self, now: ModelTime) -> Option<ModelTime> {
        let (_, copying) = self.flushing.front()?;
        is_flush_due(self.flushing.len(), since(now, copying.progressed)).then_some(copying.flushed)
    }

    /// That copy is whole, and on its device: programs get it from now on.
    pub(crate) fn publish(&mut self) {
        let Some((shard, copying)) = self.flushing.pop_front() else { return };
        debug_assert!(copying.blocks.is_whole());
        self.copied_bytes += copying.blocks.bytes();
        self.served.insert(shard, copying.level);
    }

    /// Writes a block of a copy, and returns when the thread that does goes on.
    pub(crate) fn write(&mut self, now: ModelTime, shard: u32, block: u32) -> ModelTime {
        let Some(copying) = self.copying.get_mut(&shard) else { return now };
        let level = &mut self.levels[usize::from(copying.level)];
        let Some((files, node)) = &mut level.storage else { return now };
        let (offset, length) = block_extent(block, copying.blocks.bytes());
        let range = ByteRange { offset, length: length as u64 };
        let (_, due) = files.transfer(now, *node, FileId(shard.into()), range, Direction::Write);
        copying.flushed = copying.flushed.max(due);
        files.model().written(now, *node, range.length, due)
    }
}

fn since(now: ModelTime, begin: ModelTime) -> Duration {
    Duration::from_nanos(now - begin)
}
