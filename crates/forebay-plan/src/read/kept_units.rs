//! Decides how many decoded units are kept, and computes how often samples make them be decoded.
//!
//! Of a format that encodes many samples together, such as Parquet or HDF5 with compression, the
//! samples of a unit are decoded together. Where the order does not take them together, the unit is
//! decoded again, unless it is kept.

use crate::order::OrderKind;

/// Part of the default memory of a loader that a dataset keeps for reads by id: workers of other
/// loaders have a dataset each.
const BY_ID_PART: u64 = 4;

/// Most that it keeps \[bytes\].
const BY_ID_BYTES: u64 = 512 << 20;

/// Part of a loader's unused memory that it keeps units in; further loaders of the job get the
/// rest.
const LOADER_PART: u64 = 2;

/// Part of the units that has to fit, for keeping them to be worth copying them.
const WORTH_KEEPING: f64 = 1.0 / 16.0;

/// Units of a segment above which a forward walk decodes few of them twice: keeping them would cost
/// a copy of each.
const SEGMENT_UNITS: f64 = 4.0;

/// Units of a forward walk that are kept: the one at hand, and the next, which begins before the
/// last rank has left it.
const WALK_UNITS: u64 = 2;

/// Decoded rows for each delivered one from which on a loader warns. Below, decoding in the readers
/// mostly keeps up with training.
const WARN_AMPLIFICATION: f64 = 4.0;

/// Decoded bytes of an epoch below which there is no warning: tests and examples. They take
/// seconds.
const WARN_BYTES: f64 = (1_u64 << 30) as f64;

/// Bytes of decoded units that a dataset keeps for reads by id, where a loader has
/// `default_bytes` of memory by default.
#[must_use]
pub fn kept_by_id_bytes(default_bytes: u64) -> u64 {
    (default_bytes / BY_ID_PART).min(BY_ID_BYTES)
}

/// What the units that a loader keeps follow from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct UnitFacts {
    /// Samples of an epoch.
    pub samples: u64,
    /// Mean length of a sample, decoded \[bytes\].
    pub sample_bytes: f64,
    /// Samples of the largest unit; 1 where samples are decoded alone.
    pub unit_samples: u64,
    /// Bytes that are read, and decoded, together.
    pub segment_bytes: u64,
    /// Ranks of the node.
    pub ranks: u64,
    /// Memory of the loader that its region leaves \[bytes\].
    pub left_bytes: u64,
}

impl UnitFacts {
    /// Bytes of decoded units that each process of a node keeps in this order.
    #[must_use]
    pub fn kept_bytes(&self, kind: OrderKind) -> u64 {
        let unit_bytes = self.unit_samples as f64 * self.sample_bytes;
        let units = self.samples.div_ceil(self.unit_samples.max(1));
        let wanted = match kind {
            _ if self.unit_samples <= 1 => 0,
            OrderKind::Sequential | OrderKind::Contiguous
                if unit_bytes * SEGMENT_UNITS < self.segment_bytes as f64 =>
            {
                0
            }
            OrderKind::Sequential => WALK_UNITS,
            OrderKind::Contiguous => WALK_UNITS * self.ranks,
            // Groups are whole units, and a window of them is read together. Streamed units are
            // read once.
            OrderKind::Group { samples, .. } if samples >= self.unit_samples => 0,
            OrderKind::Opportunistic { .. } => 0,
            OrderKind::Group { .. }
            | OrderKind::Shuffle
            | OrderKind::LocalShuffle { .. }
            | OrderKind::Given { .. } => units,
        };
        let wanted_bytes = wanted.min(units) as f64 * unit_bytes;
        let room_bytes = self.left_bytes / LOADER_PART / self.ranks.max(1);
        if room_bytes as f64 >= wanted_bytes * WORTH_KEEPING {
            room_bytes.min(wanted_bytes.ceil() as u64)
        } else {
            0
        }
    }

    /// Rows that are decoded for each delivered one in an order that takes samples from anywhere,
    /// if a process keeps `kept_bytes` of units, and readers decode those of `segment_samples`
    /// samples together, of which `staging_bytes` have room.
    #[must_use]
    pub fn amplification(&self, kept_bytes: u64, segment_samples: u64, staging_bytes: u64) -> f64 {
        let all_bytes = (self.samples as f64 * self.sample_bytes).max(1.0);
        let missed = 1.0 - (kept_bytes as f64 / all_bytes).min(1.0);
        let unit = self.unit_samples.min(self.samples).max(1) as f64;
        let segment = segment_samples.max(1) as f64;
        // Rows that are decoded for a segment, each unit once.
        let rows = (segment * unit).min(self.samples as f64);
        let staged = (staging_bytes as f64 / (rows * self.sample_bytes).max(1.0)).min(1.0);
        let each = staged * (rows / segment).max(1.0) + (1.0 - staged) * unit;
        (missed * each).max(1.0)
    }
}

/// Whether a loader warns of this many decoded rows for each delivered one, of samples that take
/// `record_bytes` together.
#[must_use]
pub fn warns_of_amplification(amplification: f64, record_bytes: u64) -> bool {
    amplification >= WARN_AMPLIFICATION && amplification * record_bytes as f64 >= WARN_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// A million rows of 1 KiB in units of 14,000 rows.
    const ROWS: UnitFacts = UnitFacts {
        samples: 1_000_000,
        sample_bytes: 1024.0,
        unit_samples: 14_000,
        segment_bytes: 4 * MIB,
        ranks: 1,
        left_bytes: 4096 * MIB,
    };

    #[test]
    fn reads_by_id_keep_a_part_of_the_memory() {
        for (default_mib, expected_mib) in [(0, 0), (100, 25), (2048, 512), (100_000, 512)] {
            assert_eq!(kept_by_id_bytes(default_mib * MIB), expected_mib * MIB);
        }
    }

    #[test]
    fn a_loader_keeps_the_units_that_its_order_comes_back_to() {
        let unit = 14_000 * 1024;
        let all = 72 * unit;
        let alone = UnitFacts { unit_samples: 1, ..ROWS };
        let four = UnitFacts { ranks: 4, ..ROWS };
        let little = UnitFacts { left_bytes: 100 * MIB, ..ROWS };
        let one_unit = UnitFacts { samples: 10_000, unit_samples: 10_000, ..ROWS };
        for (facts, kind, expected) in [
            (ROWS, OrderKind::Shuffle, all),
            (ROWS, OrderKind::LocalShuffle { steps: 1 }, all),
            (ROWS, OrderKind::Sequential, 2 * unit),
            (ROWS, OrderKind::Contiguous, 2 * unit),
            (UnitFacts { unit_samples: 1000, ..ROWS }, OrderKind::Sequential, 0),
            (UnitFacts { unit_samples: 2000, ..ROWS }, OrderKind::Sequential, 4000 * 1024),
            (four, OrderKind::Contiguous, 8 * unit),
            (ROWS, OrderKind::Group { samples: 14_000, window: 4 }, 0),
            (ROWS, OrderKind::Group { samples: 64, window: 4 }, all),
            (UnitFacts { left_bytes: 120 * MIB, ..ROWS }, OrderKind::Shuffle, 0),
            (alone, OrderKind::Shuffle, 0),
            (four, OrderKind::Shuffle, 512 * MIB),
            (UnitFacts { left_bytes: 130 * MIB, ..ROWS }, OrderKind::Shuffle, 65 * MIB),
            (little, OrderKind::Sequential, 2 * unit),
            (one_unit, OrderKind::Sequential, 10_000 * 1024),
        ] {
            assert_eq!(facts.kept_bytes(kind), expected, "{kind} of {facts:?}");
        }
    }

    #[test]
    fn amplification_is_what_a_segment_decodes_beyond_its_rows() {
        let all = 1_000_000 * 1024;
        for (kept, segment, staging, expected) in [
            // Everything is kept: each unit is decoded once.
            (all, 16_000, 64 * MIB, 1.0),
            // Half of the units are kept.
            (all / 2, 16_000, all, 31.25),
            // Each segment decodes every unit.
            (0, 16_000, all, 62.5),
            (0, 1_000_000, all, 1.0),
            // A segment of ten rows decodes ten units.
            (0, 10, all, 14_000.0),
            // No room for the units of a segment: each row decodes its own.
            (0, 16_000, 0, 14_000.0),
        ] {
            let found = ROWS.amplification(kept, segment, staging);
            assert!((found - expected).abs() < 1e-6 * expected, "{found} instead of {expected}");
        }
    }

    #[test]
    fn epochs_of_seconds_are_not_warned_of() {
        for (amplification, record_mib, expected) in
            [(31.25, 1000, true), (1.0, 1 << 20, false), (42.0, 8, false), (200.0, 8, true)]
        {
            assert_eq!(warns_of_amplification(amplification, record_mib * MIB), expected);
        }
    }
}
