//! Classes of records, and how the place of the next record of a class is guessed.
//!
//! Containers lay records back to back, or (on LMDB's leaf pages) from the end of the page
//! downwards, each rounded up to a step. A [`Predictor`] predicts the start of the next record by
//! that rule; the sidecar keeps only the differences. Writer and reader run the same predictor, so
//! a wrong prediction costs bytes but is never wrong.

use serde::{Deserialize, Serialize};

use crate::varint::{unzigzag, zigzag};

/// Largest bytes around a record that a class may claim \[bytes\].
const MAX_MARGIN_BYTES: u32 = 1 << 16;

/// How records of one kind lie in their file, one extent each, stored without a codec.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordClass {
    /// Name, for people.
    pub name: String,
    /// Bytes before the record that are read with it (a header to check) \[bytes\].
    pub head_bytes: u32,
    /// Bytes after the record that are read with it (a checksum) \[bytes\].
    pub tail_bytes: u32,
    /// Extents start at multiples of this, a power of two \[bytes\].
    pub align_bytes: u32,
    /// A record and what belongs to it take a multiple of this, a power of two \[bytes\].
    pub step_bytes: u32,
    /// Records are packed into pages of this size, a power of two, from their ends downwards; 0: no
    /// pages \[bytes\].
    pub page_bytes: u32,
    /// Bytes at the end of each page that hold no records \[bytes\].
    pub page_tail_bytes: u32,
    /// Whether a unit's guard is its start divided by `align_bytes` (LMDB: the page number), else
    /// 0.
    pub guard: bool,
    /// Meaning of the start of a record.
    #[serde(default, rename = "home", skip_serializing_if = "StoredIn::is_shard")]
    pub stored_in: StoredIn,
}

/// Where the bytes of a record are stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StoredIn {
    /// In the shard, from the start on.
    #[default]
    Shard,
    /// In a file that holds only this record and whose number is that of the sample. Starts count
    /// the bytes of all earlier files.
    File,
    /// Nowhere: they are the start itself, as a number of 8 bytes, little-endian.
    Number,
    /// In the decoded bytes of the column's [shared units](super::SharedUnits), back to back.
    Unit,
}

impl StoredIn {
    #[allow(clippy::trivially_copy_pass_by_ref, reason = "serde hands out references")]
    fn is_shard(&self) -> bool {
        *self == Self::Shard
    }
}

/// Length of a record that is a number \[bytes\].
pub(crate) const NUMBER_BYTES: u64 = 8;

impl RecordClass {
    /// Records that lie back to back and are read without other bytes.
    pub(crate) fn tight(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            head_bytes: 0,
            tail_bytes: 0,
            align_bytes: 1,
            step_bytes: 1,
            page_bytes: 0,
            page_tail_bytes: 0,
            guard: false,
            stored_in: StoredIn::Shard,
        }
    }

    /// Files of their own, one for each sample.
    pub(crate) fn files(name: &str) -> Self {
        Self { stored_in: StoredIn::File, ..Self::tight(name) }
    }

    /// Numbers that are not in any file.
    pub(crate) fn numbers(name: &str) -> Self {
        Self { stored_in: StoredIn::Number, ..Self::tight(name) }
    }

    /// Ranges of shared units.
    pub(crate) fn in_units(name: &str) -> Self {
        Self { stored_in: StoredIn::Unit, ..Self::tight(name) }
    }

    /// Checks a class that a file claims.
    pub(crate) fn check(&self) -> Result<(), String> {
        let powers = self.align_bytes.is_power_of_two()
            && self.step_bytes.is_power_of_two()
            && (self.page_bytes == 0 || self.page_bytes.is_power_of_two());
        let margins = self.head_bytes.max(self.tail_bytes) <= MAX_MARGIN_BYTES;
        let steps = self.step_bytes >= self.align_bytes;
        let pages = self.page_bytes == 0 || (self.align_bytes == 1 && self.page_tail_bytes < self.page_bytes);
        let plain =
            Self { name: String::new(), stored_in: StoredIn::Shard, ..self.clone() } == Self::tight("");
        let stored = self.stored_in == StoredIn::Shard || plain;
        if powers && margins && steps && pages && stored { Ok(()) } else { Err(format!("class {self:?}")) }
    }

    /// Bytes that are read with a record \[bytes\].
    pub(crate) fn margin_bytes(&self) -> u64 {
        u64::from(self.head_bytes) + u64::from(self.tail_bytes)
    }
}

/// Guesses where the next record of a class starts.
///
/// All arithmetic wraps: the caller checks results of hostile input against the shard.
#[derive(Clone, Debug)]
pub(crate) struct Predictor {
    align_shift: u32,
    step_mask: u64,
    page_shift: u32,
    page_end: u64,
    descending: bool,
    overhead: u64,
    /// Whether the next record is expected to be the same number.
    repeats: bool,
    previous: Option<(u64, u64)>,
}

impl Predictor {
    /// A predictor for records of `class` that take `overhead` bytes besides their own.
    pub(crate) fn new(class: &RecordClass, descending: bool, overhead: u64) -> Self {
        Self {
            align_shift: class.align_bytes.trailing_zeros(),
            step_mask: u64::from(class.step_bytes) - 1,
            page_shift: if class.page_bytes == 0 { 63 } else { class.page_bytes.trailing_zeros() },
            page_end: u64::from(class.page_bytes).wrapping_sub(u64::from(class.page_tail_bytes)),
            descending,
            overhead,
            repeats: class.stored_in == StoredIn::Number,
            previous: None,
        }
    }

    /// Bytes that a record of `length` takes.
    fn footprint(&self, length: u64) -> u64 {
        if self.repeats {
            return 0;
        }
        self.overhead.wrapping_add(length).wrapping_add(self.step_mask) & !self.step_mask
    }

    /// The start, if records tile.
    fn tile(&self, length: u64) -> u64 {
        match self.previous {
            None => 0,
            Some((start, _)) if self.descending => start.wrapping_sub(self.footprint(length)),
            Some((start, previous_length)) => start.wrapping_add(self.footprint(previous_length)),
        }
    }

    /// The start of a record that is the first one (from the end) of a page.
    fn first_of_page(&self, page: u64, length: u64) -> u64 {
        (page << self.page_shift)
            .wrapping_add(self.page_end)
            .wrapping_sub(self.footprint(length))
            .wrapping_add(self.overhead)
    }

    /// The page after that of the previous record.
    fn next_page(&self) -> u64 {
        self.previous.map_or(0, |(start, _)| (start >> self.page_shift).wrapping_add(1))
    }

    /// Distance from one record of `length` to the next of the same length, as a number that wraps.
    pub(crate) fn stride(&self, length: u64) -> u64 {
        let footprint = self.footprint(length);
        if self.descending { footprint.wrapping_neg() } else { footprint }
    }

    /// Records the location of a record that has successors.
    pub(crate) fn skip_to(&mut self, start: u64, length: u64) {
        self.previous = Some((start, length));
    }

    fn has_pages(&self) -> bool {
        self.page_shift < 63
    }

    /// The difference from the prediction: 0 where it is right; odd where the record is the first
    /// of a page other than the next; even for any other location.
    pub(crate) fn code(&mut self, start: u64, length: u64) -> u64 {
        let tile = self.tile(length);
        let page = start >> self.page_shift;
        let code = if start == tile {
            0
        } else if self.has_pages() && start == self.first_of_page(page, length) {
            zigzag(page.wrapping_sub(self.next_page()) as i64) << 1 | 1
        } else {
            zigzag((start.wrapping_sub(tile) as i64) >> self.align_shift) << 1
        };
        self.previous = Some((start, length));
        code
    }

    /// The inverse of [`Predictor::code`].
    pub(crate) fn start(&mut self, code: u64, length: u64) -> u64 {
        let start = if code & 1 == 0 {
            let residual = unzigzag(code >> 1) << self.align_shift;
            self.tile(length).wrapping_add(residual as u64)
        } else if self.has_pages() {
            let page = self.next_page().wrapping_add(unzigzag(code >> 1) as u64);
            self.first_of_page(page, length)
        } else {
            u64::MAX
        };
        self.previous = Some((start, length));
        start
    }
}

/// A class for tests: values that lie close together in pages.
#[cfg(test)]
pub(super) fn inline() -> RecordClass {
    RecordClass {
        name: "inline".into(),
        head_bytes: 0,
        tail_bytes: 0,
        align_bytes: 1,
        step_bytes: 2,
        page_bytes: 4096,
        page_tail_bytes: 0,
        guard: false,
        stored_in: StoredIn::Shard,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leaf_pages_filled_from_their_end_cost_one_code_per_page() {
        // Keys of 8 bytes and values of 201: nodes of 218 bytes, values 16 bytes after the start of
        // their node.
        let starts = [5, 6].map(|page: u64| (1..=18).map(move |node| (page + 1) * 4096 - node * 218 + 16));
        let (mut writer, mut reader) =
            (Predictor::new(&inline(), true, 16), Predictor::new(&inline(), true, 16));
        let mut codes = Vec::new();
        for start in starts.into_iter().flatten() {
            let code = writer.code(start, 201);
            assert_eq!(reader.start(code, 201), start);
            codes.push(code);
        }
        assert_eq!(codes.iter().filter(|code| **code != 0).count(), 2);
        assert_eq!(codes[18], 1, "the next page costs the smallest code");
    }

    #[test]
    fn any_place_comes_back() {
        let aligned = RecordClass { align_bytes: 512, step_bytes: 1024, page_bytes: 0, ..inline() };
        for (class, scale) in [(inline(), 1), (aligned, 512)] {
            for descending in [false, true] {
                let mut writer = Predictor::new(&class, descending, 40);
                let mut reader = writer.clone();
                for (start, length) in [(7, 0), (1 << 40, 3), (0, 1 << 32), (9, 9), (9, 9), (4096, 5)] {
                    let code = writer.code(start * scale, length);
                    assert_eq!(reader.start(code, length), start * scale);
                }
            }
        }
    }

    #[test]
    fn files_one_behind_the_other_and_numbers_that_repeat_cost_nothing() {
        let lengths = [3, 70, 0, 9];
        let mut files = Predictor::new(&RecordClass::files("file"), false, 0);
        let starts = lengths.iter().scan(0, |end, length| Some(std::mem::replace(end, *end + length)));
        assert!(starts.zip(lengths).all(|(start, length)| files.code(start, length) == 0));
        let mut numbers = Predictor::new(&RecordClass::numbers("label"), false, 0);
        let codes: Vec<u64> = [0, 0, 1, 1, 1, 2].into_iter().map(|label| numbers.code(label, 8)).collect();
        assert_eq!(codes.iter().filter(|code| **code != 0).count(), 2);
    }

    #[test]
    fn impossible_classes_are_refused() {
        assert!(inline().check().is_ok());
        for class in [
            RecordClass { align_bytes: 0, ..inline() },
            RecordClass { step_bytes: 3, ..inline() },
            RecordClass { page_bytes: 5000, ..inline() },
            RecordClass { page_tail_bytes: 4096, ..inline() },
            RecordClass { head_bytes: 1 << 20, ..inline() },
            RecordClass { align_bytes: 4096, page_bytes: 0, ..inline() },
            RecordClass { stored_in: StoredIn::File, ..inline() },
            RecordClass { tail_bytes: 4, ..RecordClass::numbers("label") },
            RecordClass { head_bytes: 4, ..RecordClass::in_units("values") },
        ] {
            assert!(class.check().is_err(), "{class:?}");
        }
    }
}
