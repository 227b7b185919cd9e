//! An LMDB file whose records have one length, as its writer would have laid it out.

use std::convert::Infallible;

use forebay_format::lmdb::{Dialect, PortableCursor};
use forebay_model::spec::PAGE_BYTES;
use forebay_recipe::{Lengths, Recipe, SplitClass, Transactions};
use forebay_types::{Extent, Located, SampleId, SamplePlaces, ShardId, Slice};
use serde::{Deserialize, Serialize};

use crate::error::Error;

/// Header of a page, and of a node of a branch with its place in the index of the page \[B\].
const PAGE_HEADER_BYTES: u64 = 16;
const BRANCH_NODE_BYTES: u64 = 10;

/// An LMDB file: records that were put in the order of their keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Lmdb {
    /// Records.
    pub samples: u64,
    /// Length of a value \[B\].
    pub sample_bytes: u64,
    /// Length of a key \[B\].
    #[serde(default = "eight")]
    pub key_bytes: u64,
    /// Records of a transaction.
    #[serde(default = "thousand")]
    pub transaction_samples: u64,
}

fn eight() -> u64 {
    8
}

fn thousand() -> u64 {
    1000
}

/// A leaf of the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Leaf {
    /// Number of its first record.
    pub(crate) first: u64,
    /// Where its page begins in the file \[B\].
    pub(crate) offset: u64,
}

/// Records at regular places.
#[derive(Clone, Copy, Debug)]
struct Run {
    /// Number of the first record.
    first: u64,
    /// Where its extent begins in the file \[B\].
    offset: u64,
}

/// The places of the records of an LMDB file.
#[derive(Clone, Debug)]
pub(crate) struct LmdbPlaces {
    description: Lmdb,
    file_bytes: u64,
    /// Bytes of an extent before its value \[B\].
    head_bytes: u64,
    /// From a record of a run to the next; those in leaves lie from the end of the page to its
    /// beginning \[B\].
    stride: i64,
    runs: Vec<Run>,
    leaves: Vec<Leaf>,
}

impl LmdbPlaces {
    pub(crate) fn of(description: &Lmdb) -> Result<LmdbPlaces, Error> {
        let within = |what, value: u64, most: u64| {
            let holds = (1..=most).contains(&value);
            if holds { Ok(value) } else { Err(Error::job(what, format!("1 to {most}"), &value)) }
        };
        let records = within("dataset.samples", description.samples, 1 << 36)?;
        let value_bytes = within("dataset.sample_bytes", description.sample_bytes, 1 << 31)? as u32;
        let key_bytes = within("dataset.key_bytes", description.key_bytes, 511)? as u32;
        let every = within("dataset.transaction_samples", description.transaction_samples, 1 << 40)?;
        let recipe = Recipe {
            dialect: Dialect::ALL[0],
            page_bytes: PAGE_BYTES as u32,
            checksum_bytes: 0,
            split_class: SplitClass::Modern,
            append: true,
            database: None,
            records,
            keys: Lengths::Constant(key_bytes),
            key_pattern: None,
            values: Lengths::Constant(value_bytes),
            transactions: Transactions::every(every),
            excluded: Vec::new(),
        };
        let (mut runs, mut leaves): (Vec<Run>, Vec<Leaf>) = (Vec::new(), Vec::new());
        let (mut record, mut big, mut stride, mut next) = (0, false, 0_i64, None);
        let leaf_pages = std::cell::RefCell::new(Vec::new());
        let pages = recipe
            .places_by_leaf(
                |page| leaf_pages.borrow_mut().push(page),
                |offset, _, is_big| {
                    for page in leaf_pages.borrow_mut().drain(..) {
                        leaves.push(Leaf { first: record, offset: page * PAGE_BYTES });
                    }
                    if record == 1 {
                        stride = offset as i64 - runs[0].offset as i64;
                    }
                    if record != 1 && next != Some(offset) {
                        runs.push(Run { first: record, offset });
                    }
                    big = is_big;
                    next = offset.checked_add_signed(stride);
                    record += 1;
                },
            )
            .map_err(|reason| Error::job("dataset", "a file that LMDB can write", &reason))?;
        let head_bytes = if big { u64::from(recipe.dialect.header_bytes()) } else { 0 };
        for run in &mut runs {
            run.offset -= head_bytes;
        }
        let file_bytes = pages * PAGE_BYTES;
        Ok(LmdbPlaces { description: *description, file_bytes, head_bytes, stride, runs, leaves })
    }

    pub(crate) fn sample_bytes(&self) -> u64 {
        self.description.sample_bytes
    }

    pub(crate) fn file_bytes(&self) -> u64 {
        self.file_bytes
    }

    pub(crate) fn leaves(&self) -> &[Leaf] {
        &self.leaves
    }

    /// Size of a cursor \[B\]: shard, record that comes next, and a page per level.
    pub(crate) fn cursor_bytes(&self) -> usize {
        let (mut pages, mut levels) = (self.leaves.len(), vec![(0, 0)]);
        while pages > 1 {
            pages = pages.div_ceil(self.leaves_of_branch());
            levels.push((0, 0));
        }
        4 + 8 + PortableCursor { levels, ..PortableCursor::default() }.encode().len()
    }

    /// Leaves below a full branch.
    pub(crate) fn leaves_of_branch(&self) -> usize {
        let node_bytes = BRANCH_NODE_BYTES + self.description.key_bytes;
        ((PAGE_BYTES - PAGE_HEADER_BYTES) / node_bytes) as usize
    }
}

impl SamplePlaces for LmdbPlaces {
    type Error = Infallible;

    fn samples(&self) -> u64 {
        self.description.samples
    }

    fn shard_bytes(&self) -> Vec<u64> {
        vec![self.file_bytes]
    }

    fn locate(&self, ids: &[SampleId], out: &mut Located) -> Result<(), Infallible> {
        out.clear(1);
        let length = self.head_bytes + self.description.sample_bytes;
        let mut place = 0;
        for id in ids {
            // Neighbours are mostly in one run, or in neighbouring ones.
            let is_in = |place: usize| {
                self.runs.get(place).is_some_and(|run| run.first <= id.0)
                    && self.runs.get(place + 1).is_none_or(|run| id.0 < run.first)
            };
            if !is_in(place) {
                place = if is_in(place + 1) {
                    place + 1
                } else {
                    self.runs.partition_point(|run| run.first <= id.0) - 1
                };
            }
            let run = self.runs[place];
            let offset = run.offset.wrapping_add_signed((id.0 - run.first) as i64 * self.stride);
            let extent = Extent { shard: ShardId(0), offset, length };
            let unit = out.push_stored_unit(extent, 0);
            out.push_slice(Slice { unit, offset: self.head_bytes, length: length - self.head_bytes });
            out.end_column();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use forebay_types::Piece;

    use super::*;

    fn offsets(places: &LmdbPlaces, ids: impl Iterator<Item = u64>) -> Vec<u64> {
        let ids: Vec<SampleId> = ids.map(SampleId).collect();
        let mut located = Located::default();
        places.locate(&ids, &mut located).unwrap();
        let offset = |piece: &Piece| match piece {
            Piece::Extent(extent) => extent.offset + places.head_bytes,
            Piece::Literal { .. } => unreachable!("records have extents only"),
        };
        located.pieces().iter().map(offset).collect()
    }

    #[test]
    fn each_record_lies_where_the_recipe_puts_it() {
        for (samples, sample_bytes, transaction_samples) in
            [(5000, 3083, 1000), (5000, 100, 1000), (3000, 9000, 7), (1, 10, 1000), (2, 5000, 1)]
        {
            let description = Lmdb { samples, sample_bytes, key_bytes: 8, transaction_samples };
            let places = LmdbPlaces::of(&description).unwrap();
            let mut expected = Vec::new();
            let recipe = Recipe {
                dialect: Dialect::ALL[0],
                page_bytes: 4096,
                checksum_bytes: 0,
                split_class: SplitClass::Modern,
                append: true,
                database: None,
                records: samples,
                keys: Lengths::Constant(8),
                key_pattern: None,
                values: Lengths::Constant(sample_bytes as u32),
                transactions: Transactions::every(transaction_samples),
                excluded: Vec::new(),
            };
            let pages = recipe.places(|offset, _, _| expected.push(offset)).unwrap();
            assert_eq!(places.file_bytes(), pages * 4096);
            assert_eq!(offsets(&places, 0..samples), expected);
            let backwards: Vec<u64> = expected.iter().rev().copied().collect();
            assert_eq!(offsets(&places, (0..samples).rev()), backwards);
            // A value on a leaf lies in the page of its leaf; others lie in no leaf.
            let leaves = places.leaves();
            assert_eq!(leaves[0].first, 0);
            for (record, offset) in (0..).zip(&expected) {
                let leaf = leaves[leaves.partition_point(|leaf| leaf.first <= record) - 1];
                let is_in = (leaf.offset..leaf.offset + 4096).contains(offset);
                assert_eq!(is_in, places.head_bytes == 0, "record {record}");
            }
        }
    }

    #[test]
    fn numbers_that_no_file_has_are_named() {
        let fine = Lmdb { samples: 1, sample_bytes: 1, key_bytes: 8, transaction_samples: 1 };
        for (wrong, what) in [
            (Lmdb { samples: 0, ..fine }, "dataset.samples: "),
            (Lmdb { sample_bytes: 0, ..fine }, "dataset.sample_bytes: "),
            (Lmdb { key_bytes: 512, ..fine }, "dataset.key_bytes: expected 1 to 511, found 512"),
            (Lmdb { transaction_samples: 0, ..fine }, "dataset.transaction_samples: "),
        ] {
            let error = LmdbPlaces::of(&wrong).unwrap_err().to_string();
            assert!(error.starts_with(what), "{error}");
        }
    }
}
