//! `RecordIO` files as shards of a dataset.

use std::path::Path;

use super::{IndexFile, class, part_at, walk};
use crate::container::{Column, Container, Look, Walked, state_of};
use crate::file::Input;
use crate::headers::Headers;
use crate::schema::find::{Wanted, find};
use crate::sidecar::{Entry, ShardState};
use crate::{Error, OpenOptions, Schema, SchemaChoice};

/// An opened file.
#[derive(Debug)]
pub(crate) struct RecordIoFile {
    input: Input,
    state: ShardState,
    fields: Vec<String>,
}

impl RecordIoFile {
    /// Opens a file and checks its first header.
    pub(crate) fn open(path: &Path, options: &OpenOptions) -> Result<Self, Error> {
        let input = Input::open(path)?;
        let mut headers = Headers::new(&input, &|_| true);
        if input.bytes() > 0 {
            part_at(&mut headers, 0)?;
        }
        let state = state_of(headers.block());
        Ok(Self { input, state, fields: options.fields.clone() })
    }
}

impl Container for RecordIoFile {
    fn input(&self) -> &Input {
        &self.input
    }

    fn state(&self) -> ShardState {
        self.state.clone()
    }

    fn columns(&self) -> Result<Vec<Column>, Error> {
        Ok(vec![Column::opaque(vec![class()])])
    }

    fn schema(
        &self,
        choice: SchemaChoice,
        columns: &[Column],
        samples: u64,
        look: &mut Look<'_>,
    ) -> Result<Schema, Error> {
        let wanted = Wanted { choice, usual: SchemaChoice::ImageRecord, fields: &self.fields };
        find(&self.input, wanted, columns, samples, look)
    }

    /// Goes over the records, and holds the index file beside against them, if there is one.
    fn walk(
        &self,
        progress: &dyn Fn(u64) -> bool,
        take: &mut dyn FnMut(&[Entry]) -> Result<(), Error>,
    ) -> Result<Walked, Error> {
        let mut index = IndexFile::beside(self.input.path())?;
        let mut records = 0_u64;
        walk(&self.input, progress, &mut |start, entry| {
            records += 1;
            index.as_mut().map_or(Ok(()), |index| index.see(start))?;
            take(&[entry])
        })?;
        let mut walked = Walked::default();
        if let Some(index) = index {
            index.finish()?;
            if index.records() < records {
                walked.warnings.push(format!(
                    "{} lists {} of {records} records; all of them are read",
                    index.path().display(),
                    index.records()
                ));
            }
        }
        Ok(walked)
    }
}
