//! Forecast: how many bytes each epoch reads from the source and from each storage level, how
//! evenly over the steps, and how much time that can save.
//!
//! Letters: D data bytes, W nodes. For one node t and u are the shares of the chunks and of the
//! pieces that it touches in an epoch, and g is the share of a piece that its first run covers (see
//! `node_reads`). For one of its levels, as shares of the chunks: q slots, and p that the placement
//! keeps there (q/t, at most all; see `placement`). At the start of an epoch h have a slot, and v
//! of the pieces are present.
//!
//! 1. n = min(p − h, (q − h)/t) further chunks are wanted, and each gets a slot once the node
//!    touches it: t·n, as many as there are slots.
//! 2. Of the h − v missing pieces of chunks with a slot, and of the n wanted chunks, the node reads
//!    each piece that it touches, whole: u·(h − v + n).
//! 3. It reads its samples in other chunks as they are, f bytes for each (see `node_reads`):
//!    (1 − h − n)·f/W.
//! 4. Source = W·D·\[u·(h − v + n) + (1 − h − n)·f/W\], with h, v and n summed over the levels.
//! 5. A level delivers v·f/W, and of the pieces that become present all but what their first run
//!    covers: (h − v + n)·(f/W − g).
//! 6. The next epoch starts with h + t·n and v + u·(h − v + n).
//!
//! In `local-shuffle` a share m of the samples is of other nodes' shares and comes from the source.
//! So instead of f/W, a level saves and delivers (1 − m)·f/W.
//!
//! This is for orders that give a node other samples in each epoch. Where a node reads the same
//! again, and on one node, h, v and q are shares of what the node touches (divided by t, u and t).
//! It touches all of that in each epoch, so t = u = 1 in 1 and in 6. Pieces that fewer runs touch
//! become present later, so u, g and v are kept apart for the two numbers of runs that touch a
//! piece, and summed.
//!
//! Checks, where f = 1: one node reads (1 − q) + q = 1 dataset in epoch 1, and 1 − q in each later
//! one. Small samples in `shuffle` (t = u = 1, g = 0) read W·q + (1 − q) in epoch 1 and 1 − q
//! later, against 1 without copies: that pays from W + 1 epochs on. Groups of whole chunks (t = u =
//! g = 1/W) read nothing twice in epoch 1.
//!
//! Left out, beside what `node_reads` leaves out: copies skipped for want of buffers, and samples
//! of one step that share a piece.

use serde::{Deserialize, Serialize};

use crate::tier::node_reads::NodeReads;

/// A storage level of one node, for a forecast.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TierLevel {
    /// Chunks that it has room for.
    pub slots: u64,
    /// Chunks of the dataset that have a slot when the first epoch starts.
    pub held_chunks: u64,
    /// Bytes present in them.
    pub held_bytes: u64,
}

/// A dataset in the storage tiers of each of its nodes.
#[derive(Clone, Copy, Debug)]
pub struct TierForecast<'a> {
    /// What a node reads.
    pub reads: NodeReads,
    /// D, bytes of the dataset.
    pub data_bytes: u64,
    /// Its chunks; more than D over the bytes of a chunk where sources end inside one.
    pub chunks: u64,
    /// Bytes of a chunk: the unit of slots.
    pub chunk_bytes: u64,
    /// Bytes of a piece: the unit of copies.
    pub piece_bytes: u64,
    /// The levels of each node, in the order of the tiers.
    pub levels: &'a [TierLevel],
    /// Whether what is read is copied.
    pub copies: bool,
}

/// What an epoch reads, summed over the nodes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EpochBytes {
    /// Bytes read from the source, with what is read only to be copied.
    pub source: f64,
    /// Bytes that each level delivers.
    pub levels: Vec<f64>,
}

/// How fast a job can read and compute, for [`TierForecast::saved_share`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReadRates {
    /// Rate of the source for all nodes together \[bytes/s\].
    pub source: f64,
    /// Rate of each level of one node \[bytes/s\].
    pub levels: Vec<f64>,
    /// Computing time of an epoch, which overlaps reading \[s\]; 0 where reading is all.
    pub compute_s: f64,
}

/// What an epoch of a run without tiers has measured, over all nodes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct MeasuredEpoch {
    /// Bytes read from the source.
    pub source_bytes: f64,
    /// Duration \[s\].
    pub seconds: f64,
    /// Part of it that ranks waited for data \[s\].
    pub exposed_s: f64,
}

/// What tiers would save in an epoch.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SavedByTiers {
    /// Bytes not read from the source.
    pub source_bytes: f64,
    /// Bound of the time saved \[s\].
    pub seconds: f64,
}

/// A level during the epochs; letters as in the module header.
struct Filling {
    /// p.
    placed: f64,
    /// q.
    slots: f64,
    /// h.
    held: f64,
    /// v, for each of the two kinds of pieces: its share of that kind.
    present: [f64; 2],
}

impl TierForecast<'_> {
    /// What each epoch reads, from the first one on; without end.
    pub fn epochs(self) -> impl Iterator<Item = EpochBytes> {
        let mut levels = self.filling();
        std::iter::repeat_with(move || self.epoch(&mut levels))
    }

    /// Share of the chunks that a node touches in an epoch, to be given to the placement.
    #[must_use]
    pub fn read_share(&self) -> f64 {
        self.reads.touched(self.chunk_bytes)
    }

    fn filling(&self) -> Vec<Filling> {
        let chunks = self.chunks.max(1) as f64;
        let touched = self.read_share();
        let (of_chunks, of_pieces) =
            if self.reads.repeats { (touched, self.reads.touched(self.piece_bytes)) } else { (1.0, 1.0) };
        let (mut end, mut total) = (0.0, 0.0);
        let filling = |level: &TierLevel| {
            let start = end;
            total += level.slots as f64 / chunks;
            end = f64::min(total / touched, 1.0);
            let held = (level.held_chunks as f64 / chunks / of_chunks).min(1.0);
            let present = level.held_bytes as f64 / self.data_bytes.max(1) as f64 / of_pieces;
            Filling {
                // An earlier job may have copied under another quota, which is held nonetheless.
                placed: (end - start).max(held),
                slots: level.slots as f64 / chunks / of_chunks,
                held,
                present: [present.min(held); 2],
            }
        };
        self.levels.iter().map(filling).collect()
    }

    /// The bytes of one epoch, after which `levels` hold what it has copied.
    fn epoch(&self, levels: &mut [Filling]) -> EpochBytes {
        let share = self.reads.fetched / self.reads.nodes as f64;
        let growth = |touched| if self.reads.repeats { 1.0 } else { touched };
        let chunk_growth = growth(self.read_share());
        let bytes = self.data_bytes as f64 * self.reads.nodes as f64;
        let own = share * (1.0 - self.reads.moved);
        let mut source = share;
        let mut delivered = Vec::with_capacity(levels.len());
        for Filling { placed, slots, held, present } in levels {
            let mut new = (*placed - *held).min((*slots - *held) / chunk_growth).max(0.0);
            if !self.copies {
                new = 0.0;
            }
            let mut served = 0.0;
            for (units, present) in self.reads.units(self.piece_bytes).iter().zip(present) {
                let missing = if self.copies { *held - *present + new } else { 0.0 };
                source += units.share * (missing * units.touched - (*present + missing) * own);
                served += units.share * (*present * own + missing * (own - units.covered_at_first).max(0.0));
                *present += missing * growth(units.touched);
            }
            *held += new * chunk_growth;
            delivered.push(served * bytes);
        }
        EpochBytes { source: source.max(0.0) * bytes, levels: delivered }
    }

    /// The fewest epochs over which further copies save more source bytes than they cost, by a
    /// hundredth of what they hold at least; `None` where they do not within `most` epochs. Where
    /// there is no room for further ones, they cost nothing.
    #[must_use]
    pub fn pays_from(&self, most: u64) -> Option<u64> {
        /// Small samples in `shuffle` break even after W epochs; rounding must not decide there.
        const LEAST_GAIN: f64 = 0.01;
        /// Rounding errors of a gain, in datasets.
        const ROUNDING: f64 = 1e-9;
        let data = self.data_bytes.max(1) as f64;
        let slots = self.levels.iter().map(|level| level.slots as f64).sum::<f64>();
        let held = self.levels.iter().map(|level| level.held_bytes as f64).sum::<f64>();
        let room = ((slots / self.chunks.max(1) as f64).min(1.0) - held / data).max(0.0);
        let copying = Self { copies: true, ..*self }.epochs();
        let resting = Self { copies: false, ..*self }.epochs();
        let mut gain = 0.0;
        (1..=most).zip(resting.zip(copying)).find_map(|(epochs, (resting, copying))| {
            gain += (resting.source - copying.source) / data;
            (gain + ROUNDING >= LEAST_GAIN * room).then_some(epochs)
        })
    }

    /// Standard deviation of the source bytes of one node's step, once a share `present` of the
    /// chunks is in its levels, for a step that reads `step_bytes`.
    ///
    /// A binomial over the chunks that a step touches. The step reads n = step/r runs of r bytes at
    /// chance places among K chunks of b bytes; c of its bytes lie in some chunk. Exactly h·K
    /// chunks, chosen by a permutation, are in a level (h is `present`). So the variance is
    /// h·(1 − h)·K/(K − 1)·(Σc² − step²/K), summed over all chunks, and the mean of Σc² is
    /// n·s + n·(n − 1)·r²/K:
    /// - s is the sum for one run, the number of pairs of its bytes that share a chunk. Bytes at
    ///   distance d do so with probability 1 − d/b, so s = 2·∫(r − d)·(1 − d/b) over d from 0 to
    ///   min(r, b): r² − r³/(3b) for r ≤ b, and r·b − b²/3 above.
    /// - Two runs have r²/K such pairs.
    #[must_use]
    pub fn source_step_deviation(&self, step_bytes: f64, present: f64) -> f64 {
        let chunk = self.chunk_bytes as f64;
        let chunks = self.chunks as f64;
        let run = self.reads.run_bytes.min(step_bytes);
        if chunks <= 1.0 || run <= 0.0 {
            return 0.0;
        }
        let of_run = if run <= chunk {
            run * run * (1.0 - run / (3.0 * chunk))
        } else {
            run * chunk - chunk * chunk / 3.0
        };
        let runs = step_bytes / run;
        let squares = runs * of_run + runs * (runs - 1.0) * run * run / chunks;
        let spread = (squares - step_bytes * step_bytes / chunks).max(0.0);
        (present * (1.0 - present) * chunks / (chunks - 1.0) * spread).sqrt()
    }

    /// Bound of the share of time that the tiers save over `epochs` epochs, against the same epochs
    /// read from the source.
    ///
    /// The source, the levels and computing work side by side, so an epoch takes no less than the
    /// slowest of source bytes/rate, level bytes/(W·rate) and the computing time; without tiers no
    /// less than the slower of D/rate and the computing time. Where reading is all, one node's tier
    /// is fast and fits a share q, this is 1 − (1 + (E − 1)·(1 − q))/E.
    #[must_use]
    pub fn saved_share(&self, epochs: u64, rates: &ReadRates) -> f64 {
        let plain =
            (self.data_bytes as f64 * self.reads.fetched / rates.source).max(rates.compute_s) * epochs as f64;
        let tiered: f64 =
            (0..epochs).zip(self.epochs()).map(|(_, bytes)| self.least_seconds(&bytes, rates)).sum();
        if plain > 0.0 { 1.0 - tiered / plain } else { 0.0 }
    }

    /// What the tiers would save in epoch `epoch` (0 is the first) of a run that was `measured`
    /// without tiers, with levels of `level_rates` per node \[bytes/s\].
    ///
    /// An epoch that waits for data is bound by the source all along. With tiers the source takes
    /// its share of that time, but the epoch no less than its computing, and than a level takes for
    /// its bytes. An epoch that does not wait saves bytes only.
    #[must_use]
    pub fn saved_in_epoch(
        &self,
        epoch: usize,
        measured: &MeasuredEpoch,
        level_rates: &[f64],
    ) -> SavedByTiers {
        let bytes = self.epochs().nth(epoch).expect("the iterator has no end");
        let scale = measured.source_bytes / self.data_bytes.max(1) as f64;
        let computing = measured.seconds - measured.exposed_s;
        let rates = ReadRates {
            source: measured.source_bytes / measured.seconds,
            levels: level_rates.to_vec(),
            compute_s: computing,
        };
        let scaled = EpochBytes {
            source: bytes.source * scale,
            levels: bytes.levels.iter().map(|bytes| bytes * scale).collect(),
        };
        SavedByTiers {
            source_bytes: measured.source_bytes - scaled.source,
            seconds: (measured.seconds - self.least_seconds(&scaled, &rates)).max(0.0),
        }
    }

    /// The time that an epoch takes at least.
    fn least_seconds(&self, bytes: &EpochBytes, rates: &ReadRates) -> f64 {
        let levels = bytes.levels.iter().zip(&rates.levels);
        let levels = levels.map(|(bytes, rate)| bytes / (rate * self.reads.nodes as f64));
        levels.fold((bytes.source / rates.source).max(rates.compute_s), f64::max)
    }
}
