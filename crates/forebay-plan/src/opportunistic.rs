//! The order `opportunistic`: some units of the data set are resident on nodes, the others are
//! streamed from the source, and each step has its share of both.
//!
//! How it works, in order:
//! 1. The ranks of node v take n samples in an epoch: its sequence. R of them are those of the
//!    units that are resident there, so the node streams n − R. A unit that would make R exceed n is
//!    streamed.
//! 2. The streamed units of all nodes form one stream. A permutation keyed by (seed, epoch) lays
//!    them end to end. Each node has a slice of n − R samples, in the order of the nodes' numbers.
//!    A unit may be cut between two nodes. So no resident sample ever moves, and every rank has
//!    exactly its number of samples, however unequal the shares are.
//! 3. In its slice, a node shuffles windows of w units by a permutation keyed by (seed, epoch,
//!    node, window). It shuffles all its resident samples by one keyed by (seed, epoch, node).
//! 4. Position p of the node's sequence is streamed where ⌊p·c/n⌋ rises after it, c = n − R. It has
//!    entry ⌊p·c/n⌋ of the windows, else entry p − ⌊p·c/n⌋ of the resident samples. So each run of
//!    positions has the same share of both, to one sample.
//! 5. A step takes the next positions, and its ranks share them in their order on the node. What
//!    `wrap` repeats comes from the start of the sequence.
//!
//! With `drop`, the end of the stream is left out, in each epoch another part.
//!
//! Any position is found without those before it. Kept are a few words per unit.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use forebay_types::{Rank, SampleId};

use crate::node_shares::NodeShares;
use crate::permutation::{Key, Permutation, Purpose};

/// Which samples each node holds, and which it streams.
#[derive(Debug)]
pub(crate) struct Opportunistic {
    seed: u64,
    /// w.
    window: u64,
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
pub(crate) enum Entry {
    /// Entry of the shuffled resident samples.
    Resident(u64),
    /// Entry of the windows.
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
    pub(crate) fn entry(&self, position: u64) -> Entry {
        let before = streamed_before(self.streamed(), self.samples, position);
        if streamed_before(self.streamed(), self.samples, position + 1) > before {
            Entry::Streamed(before)
        } else {
            Entry::Resident(position - before)
        }
    }

    /// Entries of the windows at positions before `position`.
    pub(crate) fn streamed_before(&self, position: u64) -> u64 {
        streamed_before(self.streamed(), self.samples, position)
    }

    /// The position of an entry of the windows.
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

/// A window of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Window {
    number: u64,
    /// Its entries, counted from the first of the node's slice.
    pub(crate) entries: Range<u64>,
}

impl Opportunistic {
    /// Where node v holds the units of `shares` that `resident` says, and a rank takes as many
    /// samples in an epoch as `taken` says, nothing twice.
    pub(crate) fn new(
        seed: u64,
        window: u64,
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
        Self { seed, window, shares, nodes, streamed, streamed_samples, digest, last }
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

    /// Most steps that a window of a node is held for, and most samples of one, at `batch` samples
    /// per rank and step.
    pub(crate) fn longest_window(&self, batch: u64) -> (u64, u64) {
        let length = |unit: &usize| {
            let samples = self.shares.unit_samples(*unit);
            samples.end - samples.start
        };
        let longest = self.streamed.iter().map(length).max().unwrap_or(0);
        let of_node = |part: &NodePart| {
            let samples = longest.saturating_mul(self.window).min(part.streamed());
            if samples == 0 {
                return (1, 0);
            }
            let positions = u128::from(samples) * u128::from(part.samples) / u128::from(part.streamed());
            // A window begins and ends inside a step.
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

    /// The window of a node that holds an entry.
    pub(crate) fn window_at(&self, stream: &Stream, node: usize, entry: u64) -> Window {
        let slice = &self.nodes[node].slice;
        let first = stream.place(slice.start);
        let number = (stream.place(slice.start + entry) - first) as u64 / self.window;
        let edge = |number: u64| {
            let place = number.saturating_mul(self.window).saturating_add(first as u64);
            let start = stream.starts[place.min(stream.starts.len() as u64 - 1) as usize];
            start.clamp(slice.start, slice.end) - slice.start
        };
        Window { number, entries: edge(number)..edge(number + 1) }
    }

    /// The permutation of a window's entries.
    pub(crate) fn window_shuffle(&self, stream: &Stream, node: usize, window: &Window) -> Permutation {
        let key = Key::new(self.seed, Purpose::StreamWindow).with(stream.epoch);
        let length = window.entries.end - window.entries.start;
        Permutation::new(key.with(node as u64).with(window.number), length)
    }

    /// The streamed sample of a node at `entry` of its slice, before windows are shuffled.
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

/// Finds the samples of one node in one epoch; keeps the window of the last one.
#[derive(Clone, Debug)]
pub(crate) struct Finder<'a> {
    order: &'a Opportunistic,
    stream: &'a Stream,
    node: usize,
    residents: Permutation,
    window: Option<(Window, Permutation)>,
}

impl<'a> Finder<'a> {
    pub(crate) fn new(order: &'a Opportunistic, stream: &'a Stream, node: usize) -> Self {
        let residents = order.resident_shuffle(stream.epoch, node);
        Self { order, stream, node, residents, window: None }
    }

    /// The sample at a position of the node's sequence, which starts again at its end.
    pub(crate) fn sample(&mut self, position: u64) -> SampleId {
        let part = &self.order.nodes[self.node];
        match part.entry(position % part.samples) {
            Entry::Resident(entry) => self.order.resident_sample(self.node, self.residents.at(entry)),
            Entry::Streamed(entry) => self.streamed(entry),
        }
    }

    /// The sample at an entry of the node's windows.
    pub(crate) fn streamed(&mut self, entry: u64) -> SampleId {
        let (window, shuffle) = match self.window.take() {
            Some(known) if known.0.entries.contains(&entry) => known,
            _ => {
                let window = self.order.window_at(self.stream, self.node, entry);
                let shuffle = self.order.window_shuffle(self.stream, self.node, &window);
                (window, shuffle)
            }
        };
        let place = window.entries.start + shuffle.at(entry - window.entries.start);
        self.window = Some((window, shuffle));
        self.order.streamed_sample(self.stream, self.node, place)
    }
}
