//! A job of one rank with its data set, for tests of the phases of a loader.

use std::io::Write;
use std::sync::Arc;

use forebay_format::{OpenOptions, SidecarLocation};
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

/// See the module header.
pub(crate) struct OneRank {
    source: Arc<IndexedDataset>,
    options: Options,
    directory: TempDir,
}

impl OneRank {
    /// Samples of the data set: each is its number, as 32 bits.
    pub(crate) const SAMPLES: u64 = 100;

    /// With batches of 8 in the order `sequential`; `change` changes the options.
    pub(crate) fn new(change: impl FnOnce(&mut Value)) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("numbers.npy");
        let samples = Self::SAMPLES;
        let header = format!("{{'descr': '<u4', 'fortran_order': False, 'shape': ({samples},), }}");
        let mut file = std::fs::File::create(&path).unwrap();
        file.write_all(b"\x93NUMPY\x01\x00\x76\x00").unwrap();
        file.write_all(format!("{header:<117}\n").as_bytes()).unwrap();
        (0..samples as u32).for_each(|number| file.write_all(&number.to_le_bytes()).unwrap());
        let source = IndexedDataset::open(&[path], &OpenOptions::default()).unwrap();
        // Beside the file, where it is found: the user's cache stays as it is.
        source.build(Some(SidecarLocation::Beside), &NoHost).unwrap();
        let name = directory.path().display().to_string();
        let mut values = serde_json::json!({
            "name": name, "job": "j", "node": "n", "rank": 0, "size": 1, "local_rank": 0, "local_ranks": [0],
            "batch_size": 8, "order": {"kind": "sequential"}, "seed": 0, "last_batch": "fill", "timeout_s": 60,
        });
        change(&mut values);
        let options = Options::of_json(values).unwrap();
        Self { source: Arc::new(source), options, directory }
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
