//! Datasets in a directory of their own, for tests.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay_format::lmdb::Dialect;
use forebay_format::{BuiltIndex, CachePolicy, Dataset, Index, OpenOptions, SchemaChoice};

use super::lmdb_writer::{Records, Spec};

/// A directory that goes away with the test.
pub struct Scratch(tempfile::TempDir);

impl Scratch {
    pub fn new() -> Self {
        Self(tempfile::tempdir().expect("a directory for temporary files"))
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub fn cache(&self) -> CachePolicy {
        CachePolicy::at(self.path("cache"))
    }

    /// A data file with these records, written by a 64-bit little-endian LMDB 0.9.
    pub fn lmdb(&self, name: &str, records: &Records) -> PathBuf {
        self.write(name, &Spec::new(Dialect::ALL[0], 4096).build(records).bytes)
    }

    pub fn write(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.path(name);
        fs::write(&path, bytes).expect("written");
        path
    }
}

/// Opens files with defaults.
pub fn open(paths: &[&Path]) -> Dataset {
    open_as(paths, SchemaChoice::Auto)
}

/// Opens files with a schema.
pub fn open_as(paths: &[&Path], schema: SchemaChoice) -> Dataset {
    let paths: Vec<PathBuf> = paths.iter().map(|path| path.to_path_buf()).collect();
    Dataset::open(&paths, &OpenOptions { schema, ..OpenOptions::default() }).expect("a sound dataset")
}

/// Builds an index.
pub fn build(dataset: &Dataset) -> BuiltIndex {
    dataset.build_index(1, &|_| true).expect("a sound dataset")
}

/// Builds an index and opens it.
pub fn index(dataset: &Dataset) -> Index {
    dataset.index(Arc::new(build(dataset).bytes)).expect("an index just built")
}
