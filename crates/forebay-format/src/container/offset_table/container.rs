//! Shards with a table of offsets as files of a dataset.

use super::OffsetTable;
use crate::Error;
use crate::container::{Column, Container, ScanSummary};
use crate::file::Input;
use crate::index::sidecar::{IndexEntry, ShardState, Writer};

impl Container for OffsetTable {
    fn input(&self) -> &Input {
        &self.input
    }

    fn state(&self) -> ShardState {
        self.state.clone()
    }

    fn columns(&self) -> Result<Vec<Column>, Error> {
        Ok(self.columns())
    }

    fn entries(&self) -> Option<u64> {
        Some(self.samples())
    }

    fn add_to(
        &self,
        writer: &mut Writer,
        _threads: usize,
        progress: &dyn Fn(u64) -> bool,
    ) -> Result<ScanSummary, Error> {
        self.walk(progress, &mut |places| {
            let plain =
                |(start, length): &(u64, u64)| IndexEntry::Plain { class: 0, start: *start, length: *length };
            writer.push(places.iter().map(plain));
            Ok(())
        })?;
        Ok(ScanSummary::default())
    }

    fn check_sums(&self, progress: &dyn Fn(u64) -> bool) -> Result<(), Error> {
        self.check_lengths(progress)
    }
}
