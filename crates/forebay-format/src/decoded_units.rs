//! Decoded units that are kept for further samples of them, within a bound of bytes.
//!
//! Where a unit holds many samples, such as a column chunk of Parquet or a chunk of HDF5, samples
//! in any order decode it once as long as it is kept. The units used longest ago go first.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use forebay_types::{CodecChain, Extent, Located, Piece};

/// What tells a coded unit from all others of a dataset: its first extent, and how it is decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct UnitKey {
    extent: Extent,
    codecs: CodecChain,
}

impl UnitKey {
    /// Of a unit; `None` for one that is not coded, or that is in no file.
    #[must_use]
    pub fn of(located: &Located, unit: u32) -> Option<Self> {
        let codecs = located.units()[unit as usize].codecs;
        match located.pieces()[located.unit_pieces(unit)].first()? {
            Piece::Extent(extent) if codecs != CodecChain::STORED => Some(Self { extent: *extent, codecs }),
            Piece::Extent(_) | Piece::Literal { .. } => None,
        }
    }
}

/// See the module header.
#[derive(Debug, Default)]
pub struct DecodedUnits {
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    /// The units, and the number of their last use.
    units: HashMap<UnitKey, (Arc<Vec<u8>>, u64)>,
    /// The units by their last use.
    used: BTreeMap<u64, UnitKey>,
    uses: u64,
    bytes: u64,
    most_bytes: u64,
}

impl DecodedUnits {
    /// Keeps at most this many bytes.
    #[must_use]
    pub fn new(most_bytes: u64) -> Self {
        Self { kept: Mutex::new(Kept { most_bytes, ..Kept::default() }) }
    }

    fn kept<T>(&self, call: impl FnOnce(&mut Kept) -> T) -> T {
        call(&mut self.kept.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// A unit of `bytes` bytes, if it is kept.
    pub fn get(&self, key: UnitKey, bytes: u64) -> Option<Arc<Vec<u8>>> {
        self.kept(|kept| {
            let (unit, used) = kept.units.get_mut(&key)?;
            kept.uses += 1;
            kept.used.remove(used);
            kept.used.insert(kept.uses, key);
            *used = kept.uses;
            (unit.len() as u64 == bytes).then(|| Arc::clone(unit))
        })
    }

    /// Whether a unit of this many bytes may be kept.
    pub fn would_keep(&self, bytes: u64) -> bool {
        self.kept(|kept| bytes > 0 && bytes <= kept.most_bytes)
    }

    /// Keeps a unit, in place of those used longest ago.
    pub fn keep(&self, key: UnitKey, unit: Arc<Vec<u8>>) {
        self.kept(|kept| {
            let bytes = unit.len() as u64;
            if bytes == 0 || bytes > kept.most_bytes {
                return;
            }
            kept.remove(&key);
            while kept.bytes + bytes > kept.most_bytes
                && let Some(oldest) = kept.used.first_key_value().map(|(_, key)| *key)
            {
                kept.remove(&oldest);
            }
            kept.uses += 1;
            kept.bytes += bytes;
            kept.used.insert(kept.uses, key);
            kept.units.insert(key, (unit, kept.uses));
        });
    }

    /// Keeps at least this many bytes from now on.
    pub(crate) fn at_least(&self, bytes: u64) {
        self.kept(|kept| kept.most_bytes = kept.most_bytes.max(bytes));
    }

    /// Forgets all of them.
    pub fn clear(&self) {
        self.kept(|kept| {
            let most_bytes = kept.most_bytes;
            *kept = Kept { most_bytes, ..Kept::default() };
        });
    }
}

impl Kept {
    fn remove(&mut self, key: &UnitKey) {
        if let Some((unit, used)) = self.units.remove(key) {
            self.used.remove(&used);
            self.bytes -= unit.len() as u64;
        }
    }
}

#[cfg(test)]
mod tests {
    use forebay_types::ShardId;

    use super::*;

    fn key(offset: u64) -> UnitKey {
        UnitKey { extent: Extent { shard: ShardId(0), offset, length: 1 }, codecs: CodecChain(1) }
    }

    fn unit(bytes: usize) -> Arc<Vec<u8>> {
        Arc::new(vec![7; bytes])
    }

    fn held(units: &DecodedUnits) -> Vec<u64> {
        let mut offsets: Vec<u64> =
            units.kept(|kept| kept.units.keys().map(|key| key.extent.offset).collect());
        offsets.sort_unstable();
        offsets
    }

    #[test]
    fn the_units_that_were_used_longest_ago_go_first() {
        let units = DecodedUnits::new(100);
        for offset in 0..3 {
            units.keep(key(offset), unit(30));
        }
        assert!(units.get(key(0), 30).is_some());
        units.keep(key(3), unit(30));
        assert_eq!(held(&units), [0, 2, 3]);
        units.keep(key(4), unit(65));
        assert_eq!(held(&units), [3, 4]);
        units.clear();
        assert_eq!((held(&units), units.kept(|kept| kept.bytes)), (vec![], 0));
    }

    #[test]
    fn a_unit_that_is_too_large_or_has_another_length_is_not_kept_or_found() {
        let units = DecodedUnits::new(100);
        units.keep(key(0), unit(101));
        units.keep(key(1), unit(0));
        assert_eq!((held(&units), units.would_keep(100), units.would_keep(101)), (vec![], true, false));
        units.keep(key(2), unit(10));
        assert!(units.get(key(2), 11).is_none() && units.get(key(2), 10).is_some());
        units.at_least(200);
        units.keep(key(0), unit(101));
        units.keep(key(0), unit(101));
        assert_eq!((held(&units), units.kept(|kept| kept.bytes)), (vec![0, 2], 111));
    }
}
