//! The order `opportunistic`: some units of the dataset are resident on nodes, the others are
//! streamed from the source, and each step has its share of both.
//!
//! How it works, in order:
//! 1. The ranks of node v take n samples in an epoch: its sequence. R of them are those of the
//!    units that are resident there, so the node streams n − R. A unit that would make R exceed n
//!    is streamed.
//! 2. The streamed units of all nodes form one stream. A permutation keyed by (seed, epoch) lays
//!    them end to end. Each node has a slice of n − R samples, in the order of the nodes' numbers.
//!    A unit may be cut between two nodes. So no resident sample ever moves, and every rank has
//!    exactly its number of samples, however unequal the shares are.
//! 3. A node goes through its slice in sections and turns (`stream_sections`): a window of w units
//!    moves on by a section after each turn. Each section is shuffled by a permutation keyed by
//!    (seed, epoch, node, section); each of its turns takes the next part of it. What a turn takes
//!    of its sections is shuffled by one keyed by (seed, epoch, node, turn). All resident samples
//!    of the node are shuffled by one keyed by (seed, epoch, node).
//! 4. Position p of the node's sequence is streamed where ⌊p·c/n⌋ rises after it, c = n − R. It has
//!    entry ⌊p·c/n⌋ of the turns, else entry p − ⌊p·c/n⌋ of the resident samples. So each run of
//!    positions has the same share of both, to one sample.
//! 5. A step takes the next positions, and its ranks share them in their order on the node. What
//!    `fill` repeats comes from the start of the sequence.
//!
//! With `drop`, the end of the stream is left out, in each epoch another part.
//!
//! Any position is found without those before it. Kept are a few words per unit.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use forebay_types::{Rank, SampleId};

use crate::nodes::shares::NodeShares;
use crate::permutation::{Key, Permutation, Purpose};
use crate::stream::sections::{Sections, TurnRule};

/// Which samples each node holds, and which it streams.
#[derive(Debug)]
pub(crate) struct Opportunistic {
    seed: u64,
    /// w.
    window: u64,
    rule: TurnRule,
    shares: Arc<NodeShares>,
    nodes: Box<[NodePart]>,
    /// Streamed units, ascending.
    streamed: Box<[usize]>,
    /// Samples of streamed units.
    streamed_samples: u64,
    digest: u64,
    /// The stream that was asked for last: laying it costs 20 ms with 70,000 units.
    last: Mutex<Option<Arc<Stream>>>,
}

/// What a node takes in an epoch.
#[derive(Clone, Debug)]
pub(crate) struct NodePart {
    /// Its ranks.
    pub(crate) ranks: u64,
    /// n.
    pub(crate) samples: u64,
    /// R.
    pub(crate) resident: u64,
    /// Its slice of the stream.
    slice: Range<u64>,
    /// Resident units, ascending.
    units: Box<[usize]>,
    /// Samples of these units and those before them.
    ends: Box<[u64]>,
}

/// Position of a node's sequence, by class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SequenceEntry {
    /// Entry of the shuffled resident samples.
    Resident(u64),
    /// Entry of the turns.
    Streamed(u64),
}

impl NodePart {
    /// c, samples that the node streams in an epoch.
    pub(crate) fn streamed(&self) -> u64 {
        self.samples - self.resident
    }

    /// Resident units, ascending.
    pub(crate) fn units(&self) -> &[usize] {
        &self.units
    }

    /// What stands at a position below n.
    pub(crate) fn entry(&self, position: u64) -> SequenceEntry {
        let before = streamed_before(self.streamed(), self.samples, position);
        if streamed_before(self.streamed(), self.samples, position + 1) > before {
            SequenceEntry::Streamed(before)
        } else {
            SequenceEntry::Resident(position - before)
        }
    }

    /// Entries of the turns at positions before `position`.
    pub(crate) fn streamed_before(&self, position: u64) -> u64 {
        streamed_before(self.streamed(), self.samples, position)
    }

    /// The position of an entry of the turns.
    pub(crate) fn position_of(&self, entry: u64) -> u64 {
        let end = (u128::from(entry) + 1) * u128::from(self.samples);
        (end.div_ceil(u128::from(self.streamed())) - 1) as u64
    }
}

/// ⌊`position`·c/n⌋ of c = `streamed` and n = `samples`.
pub(crate) fn streamed_before(streamed: u64, samples: u64, position: u64) -> u64 {
    (u128::from(position) * u128::from(streamed) / u128::from(samples.max(1))) as u64
}

/// The streamed units of an epoch, laid end to end.
#[derive(Clone, Debug)]
pub(crate) struct Stream {
    epoch: u64,
    /// Places of units in the list of streamed units.
    units: Permutation,
    /// Where each starts, and the end of the last.
    starts: Box<[u64]>,
}

impl Stream {
    /// Its epoch.
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The place of the unit that holds a position of the stream.
    fn place(&self, position: u64) -> usize {
        self.starts.partition_point(|start| *start <= position) - 1
    }
}

impl Opportunistic {
    /// Where node v holds the units of `shares` that `resident` says, and a rank takes `batch`
    /// samples per step, and as many in an epoch as `taken` says, nothing twice.
    pub(crate) fn new(
        seed: u64,
        window: u64,
        batch: u64,
        shares: Arc<NodeShares>,
        resident: impl Fn(usize) -> bool,
        taken: impl Fn(Rank) -> u64,
    ) -> Self {
        let part = |ranks: &[Rank]| NodePart {
            ranks: ranks.len() as u64,
            samples: ranks.iter().map(|rank| taken(*rank)).sum(),
            resident: 0,
            slice: 0..0,
            units: Box::default(),
            ends: Box::default(),
        };
        let mut nodes: Box<[NodePart]> = shares.nodes().map(part).collect();
        let mut units = vec![Vec::new(); nodes.len()];
        let mut ends = vec![Vec::new(); nodes.len()];
        let mut streamed = Vec::new();
        let mut streamed_samples = 0;
        let mut digest = Key::new(shares.digest(), Purpose::ResidentSamples);
        for unit in 0..shares.units() {
            let node = shares.holder(unit);
            let samples = shares.unit_samples(unit);
            let length = samples.end - samples.start;
            let part = &mut nodes[node];
            if resident(unit) && part.resident + length <= part.samples {
                part.resident += length;
                units[node].push(unit);
                ends[node].push(part.resident);
                digest = digest.with(unit as u64);
            } else {
                streamed_samples += length;
                streamed.push(unit);
            }
        }
        let mut end = 0;
        for (part, (units, ends)) in nodes.iter_mut().zip(units.into_iter().zip(ends)) {
            let start = end;
            end += part.streamed();
            part.slice = start..end;
            (part.units, part.ends) = (units.into(), ends.into());
        }
        debug_assert!(end <= streamed_samples, "what is not resident is streamed once at most");
        let digest = digest.word();
        let (streamed, last) = (streamed.into(), Mutex::default());
        let rule = TurnRule::new(&shares, batch);
        Self { seed, window, rule, shares, nodes, streamed, streamed_samples, digest, last }
    }

    /// What each node holds.
    pub(crate) fn shares(&self) -> &NodeShares {
        &self.shares
    }

    /// What each node takes in an epoch.
    pub(crate) fn nodes(&self) -> &[NodePart] {
        &self.nodes
    }

    /// Streamed units, ascending.
    pub(crate) fn streamed_units(&self) -> &[usize] {
        &self.streamed
    }

    /// w.
    pub(crate) fn window(&self) -> u64 {
        self.window
    }

    /// Mean samples of a streamed unit; 0 without any.
    pub(crate) fn mean_unit(&self) -> f64 {
        self.streamed_samples as f64 / self.streamed.len().max(1) as f64
    }

    /// P, for windows of `window` units.
    pub(crate) fn turns(&self, window: u64) -> u64 {
        self.rule.turns(window)
    }

    /// Most steps that a section of a node is held for, and most samples of a window, at `batch`
    /// samples per rank and step.
    pub(crate) fn longest_window(&self, batch: u64) -> (u64, u64) {
        let length = |unit: &usize| {
            let samples = self.shares.unit_samples(*unit);
            samples.end - samples.start
        };
        let longest = self.streamed.iter().map(length).max().unwrap_or(0);
        let turns = self.turns(self.window);
        let of_node = |part: &NodePart| {
            let samples = longest.saturating_mul(self.window + 1).min(part.streamed());
            if samples == 0 {
                return (1, 0);
            }
            // At the ends of an epoch, a turn takes up to twice the part of a section.
            let drawn = samples.saturating_mul(2).saturating_add(turns * turns).min(part.streamed());
            let positions = u128::from(drawn) * u128::from(part.samples) / u128::from(part.streamed());
            // A turn begins and ends inside a step.
            (positions as u64 / (batch * part.ranks) + 2, samples)
        };
        let longer = |one: (u64, u64), other: (u64, u64)| (one.0.max(other.0), one.1.max(other.1));
        self.nodes.iter().map(of_node).fold((1, 0), longer)
    }

    /// Identifies what the nodes hold: a hash of all that decides it.
    pub(crate) fn digest(&self) -> u64 {
        self.digest
    }

    /// The stream of an epoch.
    pub(crate) fn stream(&self, epoch: u64) -> Arc<Stream> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        match &*last {
            Some(stream) if stream.epoch == epoch => Arc::clone(stream),
            _ => Arc::clone(last.insert(Arc::new(self.lay(epoch)))),
        }
    }

    fn lay(&self, epoch: u64) -> Stream {
        let key = Key::new(self.seed, Purpose::StreamedUnits).with(epoch);
        let units = Permutation::new(key, self.streamed.len() as u64);
        let mut end = 0;
        let mut starts = Vec::with_capacity(self.streamed.len() + 1);
        starts.push(0);
        for place in 0..self.streamed.len() as u64 {
            let samples = self.shares.unit_samples(self.streamed[units.at(place) as usize]);
            end += samples.end - samples.start;
            starts.push(end);
        }
        Stream { epoch, units, starts: starts.into() }
    }

    /// How a node goes through its slice.
    pub(crate) fn slice<'a>(&'a self, stream: &'a Stream, node: usize) -> Slice<'a> {
        let range = &self.nodes[node].slice;
        let first = stream.place(range.start) as u64;
        let units = if range.is_empty() { 0 } else { stream.place(range.end - 1) as u64 + 1 - first };
        let sections = Sections::new(units, self.window, self.turns(self.window));
        Slice { stream, range, first, sections }
    }

    /// The permutation of a section's samples.
    fn section_shuffle(&self, stream: &Stream, node: usize, section: u64, length: u64) -> Permutation {
        let key = Key::new(self.seed, Purpose::StreamSection).with(stream.epoch).with(node as u64);
        Permutation::new(key.with(section), length)
    }

    /// The permutation of what a turn takes of its sections, laid end to end.
    fn turn_shuffle(&self, stream: &Stream, node: usize, turn: u64, length: u64) -> Permutation {
        let key = Key::new(self.seed, Purpose::StreamTurn).with(stream.epoch).with(node as u64);
        Permutation::new(key.with(turn), length)
    }

    /// The streamed sample of a node at `entry` of its slice, before anything is shuffled.
    pub(crate) fn streamed_sample(&self, stream: &Stream, node: usize, entry: u64) -> SampleId {
        let position = self.nodes[node].slice.start + entry;
        let place = stream.place(position);
        let unit = self.streamed[stream.units.at(place as u64) as usize];
        SampleId(self.shares.unit_samples(unit).start + position - stream.starts[place])
    }

    /// The permutation of a node's resident samples.
    pub(crate) fn resident_shuffle(&self, epoch: u64, node: usize) -> Permutation {
        let key = Key::new(self.seed, Purpose::ResidentSamples).with(epoch).with(node as u64);
        Permutation::new(key, self.nodes[node].resident)
    }

    /// A resident sample of a node, in the order of their numbers.
    pub(crate) fn resident_sample(&self, node: usize, number: u64) -> SampleId {
        let part = &self.nodes[node];
        let place = part.ends.partition_point(|end| *end <= number);
        let samples = self.shares.unit_samples(part.units[place]);
        SampleId(samples.end - (part.ends[place] - number))
    }
}

/// The slice of a node in an epoch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slice<'a> {
    stream: &'a Stream,
    range: &'a Range<u64>,
    /// Place of its first unit.
    first: u64,
    pub(crate) sections: Sections,
}

impl Slice<'_> {
    /// The first entry of a section, counted from the start of the slice; its end if there is no
    /// such section.
    pub(crate) fn section_start(&self, section: u64) -> u64 {
        let place = self.first + self.sections.first_unit(section);
        let start = self.stream.starts[place.min(self.stream.starts.len() as u64 - 1) as usize];
        start.clamp(self.range.start, self.range.end) - self.range.start
    }

    /// The first entry of a turn; all of them if there is no such turn.
    pub(crate) fn turn_start(&self, turn: u64) -> u64 {
        if turn >= self.sections.count() {
            return self.range.end - self.range.start;
        }
        self.sections.turn_start(turn, |section| self.section_start(section))
    }

    /// The turn that has an entry.
    pub(crate) fn turn_at(&self, entry: u64) -> u64 {
        let (mut low, mut high) = (0, self.sections.count());
        // The last turn that starts at or before the entry: one that starts with it may be empty.
        while low + 1 < high {
            let middle = low + (high - low) / 2;
            if self.turn_start(middle) <= entry { low = middle } else { high = middle }
        }
        low
    }
}

/// A section that a finder draws from.
#[derive(Clone, Debug)]
struct Section {
    number: u64,
    /// Its first entry.
    start: u64,
    length: u64,
    shuffle: Permutation,
}

/// The turn that a finder is in.
#[derive(Clone, Debug)]
pub(crate) struct Turn {
    entries: Range<u64>,
    shuffle: Permutation,
    sections: Vec<Section>,
    /// For each section, what is drawn of it before this turn, and the end of what this turn takes
    /// of it and of those before it.
    parts: Vec<(u64, u64)>,
}

/// Finds the samples of one node in one epoch; keeps the turn of the last one.
#[derive(Clone, Debug)]
pub(crate) struct Finder<'a> {
    order: &'a Opportunistic,
    stream: &'a Stream,
    node: usize,
    slice: Slice<'a>,
    residents: Permutation,
    turn: Option<Turn>,
}

impl<'a> Finder<'a> {
    pub(crate) fn new(order: &'a Opportunistic, stream: &'a Stream, node: usize) -> Self {
        let residents = order.resident_shuffle(stream.epoch, node);
        Self { order, stream, node, slice: order.slice(stream, node), residents, turn: None }
    }

    /// The same, after a turn that another finder of the node was in during the epoch.
    pub(crate) fn after(self, turn: Option<Turn>) -> Self {
        Self { turn, ..self }
    }

    /// The turn of the last sample.
    pub(crate) fn into_turn(self) -> Option<Turn> {
        self.turn
    }

    /// The sample at a position of the node's sequence, which starts again at its end.
    pub(crate) fn sample(&mut self, position: u64) -> SampleId {
        let part = &self.order.nodes[self.node];
        match part.entry(position % part.samples) {
            SequenceEntry::Resident(entry) => self.order.resident_sample(self.node, self.residents.at(entry)),
            SequenceEntry::Streamed(entry) => self.streamed(entry).1,
        }
    }

    /// The sample at an entry of the node's turns, and the section that it is from.
    pub(crate) fn streamed(&mut self, entry: u64) -> (u64, SampleId) {
        let turn = match self.turn.take() {
            Some(known) if known.entries.contains(&entry) => known,
            before => self.begin(entry, before.map_or_else(Vec::new, |turn| turn.sections)),
        };
        let drawn = turn.shuffle.at(entry - turn.entries.start);
        let number = turn.parts.partition_point(|(_, end)| *end <= drawn);
        let start = if number == 0 { 0 } else { turn.parts[number - 1].1 };
        let section = &turn.sections[number];
        let place = section.start + section.shuffle.at(turn.parts[number].0 + drawn - start);
        let found = (section.number, self.order.streamed_sample(self.stream, self.node, place));
        self.turn = Some(turn);
        found
    }

    /// Begins the turn of an entry, after a turn of `known` sections.
    fn begin(&self, entry: u64, mut known: Vec<Section>) -> Turn {
        let Self { order, stream, node, slice, .. } = self;
        let number = slice.turn_at(entry);
        let entries = slice.turn_start(number)..slice.turn_start(number + 1);
        let shuffle = order.turn_shuffle(stream, *node, number, entries.end - entries.start);
        let drawn = slice.sections.drawn_in(number);
        known.retain(|section| drawn.contains(&section.number));
        let mut sections = Vec::with_capacity((drawn.end - drawn.start) as usize);
        let mut before = known.into_iter().peekable();
        for section in drawn {
            let section = before.next_if(|known| known.number == section).unwrap_or_else(|| {
                let start = slice.section_start(section);
                let length = slice.section_start(section + 1) - start;
                let shuffle = order.section_shuffle(stream, *node, section, length);
                Section { number: section, start, length, shuffle }
            });
            sections.push(section);
        }
        let mut end = 0;
        let parts = sections.iter().map(|section| {
            let drawn = |turn| slice.sections.drawn_before(section.number, section.length, turn);
            end += drawn(number + 1) - drawn(number);
            (drawn(number), end)
        });
        let parts = parts.collect();
        Turn { entries, shuffle, sections, parts }
    }
}
