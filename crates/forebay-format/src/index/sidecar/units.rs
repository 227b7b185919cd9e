//! Shared units: coded ranges of a shard that hold the records of many samples, of any lengths.
//!
//! The decoded bytes of a shard's units, back to back, are one range of bytes. A record of such a
//! column ([`StoredIn::Unit`](super::StoredIn::Unit)) is a range of them within one unit. Unlike
//! [tiles](super::tiles), units may differ in their numbers of samples, and samples in their
//! lengths.

use serde::{Deserialize, Serialize};

use super::block::OFFSET_LIMIT;
use crate::codec::{self, Codec};

/// The shared units of a column.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SharedUnits {
    /// Most samples that have records in one unit.
    pub samples: u64,
    /// For each shard its units, in the order of their decoded bytes.
    pub shards: Vec<Vec<SharedUnit>>,
}

/// A unit, as four numbers in JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "(u64, u64, u16, u64)", into = "(u64, u64, u16, u64)")]
pub struct SharedUnit {
    /// First byte [bytes from the start of the file].
    pub offset: u64,
    /// Length in the file \[bytes\].
    pub length: u64,
    /// Number of the codec chain.
    pub codecs: u16,
    /// Size after decoding \[bytes\].
    pub decoded_bytes: u64,
}

impl From<(u64, u64, u16, u64)> for SharedUnit {
    fn from((offset, length, codecs, decoded_bytes): (u64, u64, u16, u64)) -> Self {
        Self { offset, length, codecs, decoded_bytes }
    }
}

impl From<SharedUnit> for (u64, u64, u16, u64) {
    fn from(unit: SharedUnit) -> Self {
        (unit.offset, unit.length, unit.codecs, unit.decoded_bytes)
    }
}

impl SharedUnits {
    /// Checks units that a file claims; `file_bytes` has the size of each shard.
    pub(crate) fn check(&self, chains: &[Vec<Codec>], file_bytes: &[u64]) -> Result<(), String> {
        if self.shards.len() != file_bytes.len() {
            return Err(format!("shared units of {} shards", self.shards.len()));
        }
        for (units, file_bytes) in self.shards.iter().zip(file_bytes) {
            let mut total = 0_u64;
            for unit in units {
                let inside = unit.offset.checked_add(unit.length).is_some_and(|end| end <= *file_bytes);
                let plausible = chains
                    .get(usize::from(unit.codecs))
                    .is_some_and(|chain| codec::is_plausible(chain, unit.length, unit.decoded_bytes));
                total = total.saturating_add(unit.decoded_bytes);
                if !inside || !plausible || total >= OFFSET_LIMIT {
                    return Err(format!("{unit:?} of a shard of {file_bytes} bytes"));
                }
            }
        }
        Ok(())
    }

    /// For each shard where its units begin among its decoded bytes, and where the last one ends.
    pub(crate) fn starts(&self) -> Vec<Vec<u64>> {
        let of_shard = |units: &Vec<SharedUnit>| {
            let ends = units.iter().scan(0, |end, unit| {
                *end += unit.decoded_bytes;
                Some(*end)
            });
            std::iter::once(0).chain(ends).collect()
        };
        self.shards.iter().map(of_shard).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn units(unit: SharedUnit) -> SharedUnits {
        SharedUnits { samples: 3, shards: vec![vec![unit, unit]] }
    }

    #[test]
    fn units_outside_of_their_shard_or_of_impossible_sizes_are_refused() {
        let chains = [vec![], vec![Codec::Zstd]];
        let sound = SharedUnit { offset: 90, length: 10, codecs: 1, decoded_bytes: 70 };
        assert_eq!(units(sound).check(&chains, &[100]), Ok(()));
        assert_eq!(units(sound).starts(), [[0, 70, 140]]);
        assert!(units(sound).check(&chains, &[99]).is_err());
        assert!(units(sound).check(&chains, &[100, 100]).is_err());
        for unit in [
            SharedUnit { offset: u64::MAX, ..sound },
            SharedUnit { codecs: 2, ..sound },
            SharedUnit { codecs: 0, ..sound },
            SharedUnit { decoded_bytes: u64::MAX, ..sound },
            SharedUnit { decoded_bytes: 1 << 40, ..sound },
        ] {
            assert!(units(unit).check(&chains, &[100]).is_err(), "{unit:?}");
        }
    }

    #[test]
    fn a_unit_is_four_numbers() {
        let unit = SharedUnit { offset: 90, length: 10, codecs: 1, decoded_bytes: 70 };
        let text = serde_json::to_string(&unit).expect("numbers");
        assert_eq!(text, "[90,10,1,70]");
        assert_eq!(serde_json::from_str::<SharedUnit>(&text).expect("as written"), unit);
    }
}
