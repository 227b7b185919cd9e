//! A job of one rank with its dataset, for tests of loaders and of their phases.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay_format::lmdb::Dialect;
use forebay_format::{OpenOptions, SchemaChoice, SidecarLocation};
use serde_json::Value;
use tempfile::TempDir;

use crate::config::options::Options;
use crate::config::strategies::Strategies;
use crate::dataset::IndexedDataset;
use crate::error::Error;
use crate::host::NoHost;
use crate::loader::agreed::{Agreed, Making};
use crate::loader::creation::Creation;
use crate::loader::decided::Decided;
use crate::loader::opened::Opened;

#[path = "../../../forebay-format/tests/support/lmdb_writer.rs"]
#[allow(clippy::pedantic, reason = "the tests of forebay-format share it")]
mod lmdb_writer;
#[path = "../../../forebay-format/tests/support/record_writer.rs"]
#[allow(clippy::pedantic, reason = "the tests of forebay-format share it")]
mod record_writer;

/// What holds the samples of the dataset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Container {
    /// One array of 32-bit numbers: each sample is its own.
    Npy,
    /// Records of different lengths, raw.
    TfRecord,
    /// The same; some lie in overflow pages.
    Lmdb,
}

impl Container {
    pub(crate) const ALL: [Self; 3] = [Self::Npy, Self::TfRecord, Self::Lmdb];

    /// The bytes of a sample, which begin with its number.
    pub(crate) fn sample(self, number: u64) -> Vec<u8> {
        let mut bytes = (number as u32).to_le_bytes().to_vec();
        if self != Self::Npy {
            let length = if number % 10 == 3 { 9000 } else { 5 + number * 37 % 300 };
            bytes.extend((0..length).map(|at| (at * 7 + number) as u8));
        }
        bytes
    }

    /// A file with these samples, and where the bytes of each begin; of LMDB that is left out.
    fn file(self, samples: &[Vec<u8>]) -> (Vec<u8>, Vec<usize>) {
        match self {
            Self::Npy => {
                let shape = samples.len();
                let header = format!("{{'descr': '<u4', 'fortran_order': False, 'shape': ({shape},), }}");
                let mut bytes = b"\x93NUMPY\x01\x00\x76\x00".to_vec();
                bytes.extend(format!("{header:<117}\n").as_bytes());
                let starts = (0..shape).map(|number| bytes.len() + 4 * number).collect();
                bytes.extend(samples.concat());
                (bytes, starts)
            }
            Self::TfRecord => {
                let (bytes, headers) = record_writer::tfrecords(samples);
                (bytes, headers.iter().map(|header| header + 12).collect())
            }
            Self::Lmdb => {
                let key = |number: usize| format!("{number:06}").into_bytes();
                let records: lmdb_writer::Records =
                    samples.iter().enumerate().map(|(number, value)| (key(number), value.clone())).collect();
                (lmdb_writer::Spec::new(Dialect::ALL[0], 4096).build(&records).bytes, Vec::new())
            }
        }
    }
}

/// See the module header.
pub(crate) struct OneRank {
    source: Arc<IndexedDataset>,
    options: Options,
    directory: TempDir,
    path: PathBuf,
    starts: Vec<usize>,
}

impl OneRank {
    /// Samples of the dataset.
    pub(crate) const SAMPLES: u64 = 100;

    /// With batches of 8 in the order `sequential`; `change` changes the options.
    pub(crate) fn new(change: impl FnOnce(&mut Value)) -> Self {
        Self::of(Container::Npy, change)
    }

    /// The same with another container.
    pub(crate) fn of(container: Container, change: impl FnOnce(&mut Value)) -> Self {
        Self::damaged(container, None, change)
    }

    /// The same, with one bit changed in a sample.
    pub(crate) fn damaged(
        container: Container,
        sample: Option<usize>,
        change: impl FnOnce(&mut Value),
    ) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("samples");
        let samples: Vec<_> = (0..Self::SAMPLES).map(|number| container.sample(number)).collect();
        let (mut bytes, starts) = container.file(&samples);
        if let Some(sample) = sample {
            bytes[starts[sample]] ^= 1;
        }
        std::fs::write(&path, bytes).unwrap();
        let raw = OpenOptions { schema: SchemaChoice::Raw, ..OpenOptions::default() };
        let options = if container == Container::Npy { OpenOptions::default() } else { raw };
        let source = IndexedDataset::open(std::slice::from_ref(&path), &options).unwrap();
        // Beside the file, where it is found: the user's cache stays as it is.
        source.build(Some(SidecarLocation::Beside), &NoHost).unwrap();
        let name = directory.path().display().to_string();
        let mut values = serde_json::json!({
            "name": name, "job": "j", "node": "n", "rank": 0, "size": 1, "local_rank": 0, "local_ranks": [0],
            "batch_size": 8, "order": {"kind": "sequential"}, "seed": 0, "last_batch": "fill", "timeout_s": 60,
        });
        change(&mut values);
        let options = Options::of_json(values).unwrap();
        Self { source: Arc::new(source), options, directory, path, starts }
    }

    /// The file of the dataset.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Where the bytes of a sample begin in the file.
    pub(crate) fn start_of(&self, sample: usize) -> u64 {
        self.starts[sample] as u64
    }

    /// Calls a phase.
    pub(crate) fn with<T>(&self, phase: impl FnOnce(&Making<'_>) -> T) -> T {
        phase(&Making {
            source: &self.source,
            options: &self.options,
            strategies: &Strategies::default(),
            creation: &Creation::new(None),
            caller: &NoHost,
        })
    }

    pub(crate) fn agreed(&self) -> Result<Agreed, Error> {
        self.with(Agreed::reach)
    }

    /// As a follower, which parses the index that it was sent.
    pub(crate) fn decided(&self) -> Result<Decided, Error> {
        let Agreed { reply, fds, .. } = self.agreed()?;
        self.with(|making| Decided::of(reply, fds, None, making))
    }

    pub(crate) fn opened(&self) -> Result<Opened, Error> {
        let Agreed { reply, fds, mut own, .. } = self.agreed()?;
        let index = own.index.take();
        self.with(|making| Opened::open(making, &mut Decided::of(reply, fds, index, making)?, &mut own))
    }

    pub(crate) fn engine(self) -> Result<(super::Engine, TempDir), Error> {
        let engine = super::Engine::new(self.source, self.options, Strategies::default(), None, &NoHost)?;
        Ok((engine, self.directory))
    }
}
