//! `TFRecord` as a framing of records.

use super::{class, record_at, walk};
use crate::container::Walked;
use crate::file::Input;
use crate::framed::Framing;
use crate::headers::Headers;
use crate::sidecar::{Class, Entry};
use crate::{Error, SchemaChoice};

/// `TensorFlow`'s records.
#[derive(Debug)]
pub(crate) struct TfRecord;

impl Framing for TfRecord {
    const USUAL: SchemaChoice = SchemaChoice::TfExample;

    fn class() -> Class {
        class()
    }

    fn check_first(headers: &mut Headers<'_>) -> Result<(), Error> {
        record_at(headers, 0).map(drop)
    }

    fn walk(
        input: &Input,
        progress: &dyn Fn(u64) -> bool,
        take: &mut dyn FnMut(&[Entry]) -> Result<(), Error>,
    ) -> Result<Walked, Error> {
        walk(input, progress, &mut |entry| take(&[entry]))?;
        Ok(Walked::default())
    }
}
