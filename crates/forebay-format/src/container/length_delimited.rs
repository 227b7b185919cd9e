//! Files of framed records as shards of a dataset: `TFRecord` and `RecordIO`.
//!
//! Records lie back to back, each with a header that holds its length. Record payloads are opaque
//! at this layer. A [`Framing`] knows the headers.

use std::fmt::Debug;
use std::marker::PhantomData;
use std::path::Path;

use crate::container::{Column, Container, ScanSummary, header_digest};
use crate::file::HeaderScan;
use crate::file::Input;
use crate::index::sidecar::{IndexEntry, RecordClass, ShardState, Writer};
use crate::{Error, SchemaChoice};

/// The headers of records.
pub(crate) trait Framing: Debug + Send + Sync + 'static {
    /// The schema that records of most files have.
    const USUAL: SchemaChoice;

    /// How a record lies in its unit.
    fn class() -> RecordClass;

    /// Reads and checks the first header of a file.
    fn check_first(headers: &mut HeaderScan<'_>) -> Result<(), Error>;

    /// Visits the places of all records, in order; `progress` as in [`Container::add_to`].
    fn scan(
        input: &Input,
        progress: &dyn Fn(u64) -> bool,
        visit: &mut dyn FnMut(IndexEntry) -> Result<(), Error>,
    ) -> Result<ScanSummary, Error>;
}

/// An opened file.
#[derive(Debug)]
pub(crate) struct FramedFile<F> {
    input: Input,
    state: ShardState,
    framing: PhantomData<F>,
}

impl<F: Framing> FramedFile<F> {
    /// Opens a file and checks its first header.
    pub(crate) fn open(path: &Path) -> Result<Self, Error> {
        let input = Input::open(path)?;
        let mut headers = HeaderScan::new(&input, &|_| true);
        if input.bytes() > 0 {
            F::check_first(&mut headers)?;
        }
        let state = header_digest(headers.block());
        Ok(Self { input, state, framing: PhantomData })
    }
}

impl<F: Framing> Container for FramedFile<F> {
    fn input(&self) -> &Input {
        &self.input
    }

    fn state(&self) -> ShardState {
        self.state.clone()
    }

    fn columns(&self) -> Result<Vec<Column>, Error> {
        Ok(vec![Column::opaque(vec![F::class()])])
    }

    fn usual_schema(&self) -> Option<SchemaChoice> {
        Some(F::USUAL)
    }

    fn add_to(
        &self,
        writer: &mut Writer,
        _threads: usize,
        progress: &dyn Fn(u64) -> bool,
    ) -> Result<ScanSummary, Error> {
        F::scan(&self.input, progress, &mut |entry| {
            writer.push([entry]);
            Ok(())
        })
    }
}
