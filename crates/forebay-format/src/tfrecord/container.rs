//! `TFRecord` files as shards of a dataset.

use std::path::Path;

use super::{check_record, class, record_at, walk};
use crate::container::{Column, Container, Look, Walked, state_of};
use crate::file::Input;
use crate::headers::Headers;
use crate::schema::find::{Wanted, find};
use crate::sidecar::{Entry, ShardState};
use crate::{Error, OpenOptions, Schema, SchemaChoice};

/// An opened file.
#[derive(Debug)]
pub(crate) struct TfRecordFile {
    input: Input,
    state: ShardState,
    fields: Vec<String>,
}

impl TfRecordFile {
    /// Opens a file and checks its first header.
    pub(crate) fn open(path: &Path, options: &OpenOptions) -> Result<Self, Error> {
        let input = Input::open(path)?;
        let mut headers = Headers::new(&input, &|_| true);
        if input.bytes() > 0 {
            record_at(&mut headers, 0)?;
        }
        let state = state_of(headers.block());
        Ok(Self { input, state, fields: options.fields.clone() })
    }
}

impl Container for TfRecordFile {
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
        let wanted = Wanted { choice, usual: SchemaChoice::TfExample, fields: &self.fields };
        find(&self.input, wanted, columns, samples, look)
    }

    fn walk(
        &self,
        progress: &dyn Fn(u64) -> bool,
        take: &mut dyn FnMut(&[Entry]) -> Result<(), Error>,
    ) -> Result<Walked, Error> {
        walk(&self.input, progress, &mut |entry| take(&[entry]))?;
        Ok(Walked::default())
    }

    fn check_unit(&self, start: u64, unit: &[u8]) -> Result<(), Error> {
        check_record(unit, start, self.input.path())
    }
}
