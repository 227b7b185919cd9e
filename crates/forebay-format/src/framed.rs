//! Files of framed records as shards of a dataset: `TFRecord` and `RecordIO`.
//!
//! Records stand one behind the other, each with a header that tells where the next one is; a record is a sample, and its
//! bytes are nobody's business here. What the headers look like is a [`Framing`].

use std::fmt::Debug;
use std::marker::PhantomData;
use std::path::Path;

use crate::container::{Column, Container, Look, Walked, state_of};
use crate::file::Input;
use crate::headers::Headers;
use crate::schema::find::{Wanted, find};
use crate::sidecar::{Class, Entry, ShardState};
use crate::{Error, OpenOptions, Schema, SchemaChoice};

/// How records are told from each other.
pub(crate) trait Framing: Debug + Send + Sync {
    /// What the records of most files hold.
    const USUAL: SchemaChoice;

    /// How a record lies in its unit.
    fn class() -> Class;

    /// Reads and checks the first header of a file.
    fn check_first(headers: &mut Headers<'_>) -> Result<(), Error>;

    /// Goes over the records as [`Container::walk`] does.
    fn walk(
        input: &Input,
        progress: &dyn Fn(u64) -> bool,
        take: &mut dyn FnMut(&[Entry]) -> Result<(), Error>,
    ) -> Result<Walked, Error>;
}

/// An opened file.
#[derive(Debug)]
pub(crate) struct FramedFile<F> {
    input: Input,
    state: ShardState,
    fields: Vec<String>,
    framing: PhantomData<F>,
}

impl<F: Framing> FramedFile<F> {
    /// Opens a file and checks its first header.
    pub(crate) fn open(path: &Path, options: &OpenOptions) -> Result<Self, Error> {
        let input = Input::open(path)?;
        let mut headers = Headers::new(&input, &|_| true);
        if input.bytes() > 0 {
            F::check_first(&mut headers)?;
        }
        let state = state_of(headers.block());
        Ok(Self { input, state, fields: options.fields.clone(), framing: PhantomData })
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

    fn schema(
        &self,
        choice: SchemaChoice,
        columns: &[Column],
        samples: u64,
        look: &mut Look<'_>,
    ) -> Result<Schema, Error> {
        let wanted = Wanted { choice, usual: F::USUAL, fields: &self.fields };
        find(&self.input, wanted, columns, samples, look)
    }

    fn walk(
        &self,
        progress: &dyn Fn(u64) -> bool,
        take: &mut dyn FnMut(&[Entry]) -> Result<(), Error>,
    ) -> Result<Walked, Error> {
        F::walk(&self.input, progress, take)
    }
}
