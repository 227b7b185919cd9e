//! `TFRecord` as a framing of records.

use super::{class, record_at, walk};
use crate::container::ScanSummary;
use crate::container::length_delimited::Framing;
use crate::file::HeaderScan;
use crate::file::Input;
use crate::index::sidecar::{IndexEntry, RecordClass};
use crate::{Error, SchemaChoice};

/// `TensorFlow`'s records.
#[derive(Debug)]
pub(crate) struct TfRecord;

impl Framing for TfRecord {
    const USUAL: SchemaChoice = SchemaChoice::TfExample;

    fn class() -> RecordClass {
        class()
    }

    fn check_first(headers: &mut HeaderScan<'_>) -> Result<(), Error> {
        record_at(headers, 0).map(drop)
    }

    fn scan(
        input: &Input,
        progress: &dyn Fn(u64) -> bool,
        visit: &mut dyn FnMut(IndexEntry) -> Result<(), Error>,
    ) -> Result<ScanSummary, Error> {
        walk(input, progress, visit)?;
        Ok(ScanSummary::default())
    }
}
