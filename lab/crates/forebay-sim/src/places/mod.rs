//! Where the samples of a dataset lie: computed without the dataset, or from its index.

mod indexed;
mod lmdb;
mod uniform;

use std::convert::Infallible;
use std::sync::Arc;

use forebay_format::Index;
use forebay_types::{Located, SampleId, SamplePlaces};
use serde::{Deserialize, Serialize};

use self::indexed::Indexed;
pub(crate) use self::lmdb::Leaf;
pub use self::lmdb::Lmdb;
use self::lmdb::LmdbPlaces;
pub use self::uniform::Uniform;
use crate::error::Error;

/// A dataset, as a few numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Dataset {
    /// Records of one length at regular places.
    Uniform(Uniform),
    /// An LMDB file.
    Lmdb(Lmdb),
}

/// The places of all samples of a dataset.
#[derive(Clone, Debug)]
pub struct Places(Kind);

#[derive(Clone, Debug)]
enum Kind {
    Uniform(Uniform),
    Lmdb(LmdbPlaces),
    Indexed(Indexed),
}

impl Places {
    /// Computes the places.
    ///
    /// # Errors
    ///
    /// Numbers that no dataset has.
    pub fn of(dataset: &Dataset) -> Result<Places, Error> {
        Ok(Places(match dataset {
            Dataset::Uniform(uniform) => {
                uniform.check()?;
                Kind::Uniform(*uniform)
            }
            Dataset::Lmdb(lmdb) => Kind::Lmdb(LmdbPlaces::of(lmdb)?),
        }))
    }

    /// The places that an index has, all of which are looked at once.
    ///
    /// # Errors
    ///
    /// A damaged index, and one of values that have to be decoded.
    pub fn of_index(index: Arc<Index>) -> Result<Places, Error> {
        Indexed::of(index).map(|indexed| Places(Kind::Indexed(indexed)))
    }

    /// Number of samples.
    pub fn samples(&self) -> u64 {
        match &self.0 {
            Kind::Uniform(uniform) => uniform.samples(),
            Kind::Lmdb(lmdb) => lmdb.samples(),
            Kind::Indexed(indexed) => indexed.samples(),
        }
    }

    /// Bytes of a sample, the mean where they differ \[B\].
    pub fn sample_bytes(&self) -> u64 {
        match &self.0 {
            Kind::Uniform(uniform) => uniform.sample_bytes,
            Kind::Lmdb(lmdb) => lmdb.sample_bytes(),
            Kind::Indexed(indexed) => indexed.record_bytes().div_ceil(indexed.samples()),
        }
    }

    /// Bytes of all samples \[B\].
    pub fn record_bytes(&self) -> u64 {
        match &self.0 {
            Kind::Indexed(indexed) => indexed.record_bytes(),
            Kind::Uniform(_) | Kind::Lmdb(_) => self.samples() * self.sample_bytes(),
        }
    }

    /// Bytes of all files \[B\].
    pub fn file_bytes(&self) -> u64 {
        match &self.0 {
            Kind::Uniform(uniform) => uniform.file_bytes(),
            Kind::Lmdb(lmdb) => lmdb.file_bytes(),
            Kind::Indexed(indexed) => indexed.file_bytes(),
        }
    }

    /// Whether each sample is a file.
    pub fn has_sample_files(&self) -> bool {
        match &self.0 {
            Kind::Uniform(uniform) => uniform.has_sample_files(),
            Kind::Lmdb(_) => false,
            Kind::Indexed(indexed) => indexed.has_sample_files(),
        }
    }

    /// Number of files.
    pub(crate) fn files(&self) -> u32 {
        let files = if self.has_sample_files() { self.samples() } else { self.shard_bytes().len() as u64 };
        files.min(u32::MAX.into()) as u32
    }

    /// Length of a file \[B\].
    pub(crate) fn bytes_of_file(&self, file: u64) -> u64 {
        match &self.0 {
            Kind::Uniform(uniform) => uniform.bytes_of_file(file),
            Kind::Lmdb(lmdb) => lmdb.file_bytes(),
            Kind::Indexed(indexed) => indexed.bytes_of_file(file),
        }
    }

    /// The leaves of the tree through which a cursor walks; none but of LMDB.
    pub(crate) fn leaves(&self) -> &[Leaf] {
        match &self.0 {
            Kind::Uniform(_) | Kind::Indexed(_) => &[],
            Kind::Lmdb(lmdb) => lmdb.leaves(),
        }
    }

    /// Size of a cursor in that tree, as one root hands it to another \[B\].
    pub(crate) fn cursor_bytes(&self) -> usize {
        match &self.0 {
            Kind::Uniform(_) | Kind::Indexed(_) => 0,
            Kind::Lmdb(lmdb) => lmdb.cursor_bytes(),
        }
    }

    /// Leaves below a branch of that tree.
    pub(crate) fn leaves_of_branch(&self) -> usize {
        match &self.0 {
            Kind::Uniform(_) | Kind::Indexed(_) => 0,
            Kind::Lmdb(lmdb) => lmdb.leaves_of_branch(),
        }
    }
}

impl SamplePlaces for Places {
    type Error = Infallible;

    fn samples(&self) -> u64 {
        Places::samples(self)
    }

    fn shard_bytes(&self) -> Vec<u64> {
        match &self.0 {
            Kind::Uniform(uniform) => uniform.shard_bytes(),
            Kind::Lmdb(lmdb) => lmdb.shard_bytes(),
            Kind::Indexed(indexed) => indexed.shard_bytes(),
        }
    }

    fn locate(&self, ids: &[SampleId], out: &mut Located) -> Result<(), Infallible> {
        match &self.0 {
            Kind::Uniform(uniform) => uniform.locate(ids, out),
            Kind::Lmdb(lmdb) => lmdb.locate(ids, out),
            Kind::Indexed(indexed) => {
                indexed.locate(ids, out);
                Ok(())
            }
        }
    }
}
