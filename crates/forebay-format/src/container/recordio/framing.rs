//! `RecordIO` as a framing of records.

use super::{IndexFile, class, part_at, walk};
use crate::container::ScanSummary;
use crate::container::length_delimited::Framing;
use crate::file::HeaderScan;
use crate::file::Input;
use crate::index::sidecar::{IndexEntry, RecordClass};
use crate::{Error, SchemaChoice};

/// `MXNet`'s records.
#[derive(Debug)]
pub(crate) struct RecordIo;

impl Framing for RecordIo {
    const USUAL: SchemaChoice = SchemaChoice::ImageRecord;

    fn class() -> RecordClass {
        class()
    }

    fn check_first(headers: &mut HeaderScan<'_>) -> Result<(), Error> {
        part_at(headers, 0).map(drop)
    }

    /// Visits the records, and compares them with the index file beside, if there is one.
    fn scan(
        input: &Input,
        progress: &dyn Fn(u64) -> bool,
        visit: &mut dyn FnMut(IndexEntry) -> Result<(), Error>,
    ) -> Result<ScanSummary, Error> {
        let mut index = IndexFile::beside(input.path())?;
        let mut records = 0_u64;
        walk(input, progress, &mut |start, entry| {
            records += 1;
            index.as_mut().map_or(Ok(()), |index| index.check_record(start))?;
            visit(entry)
        })?;
        let mut summary = ScanSummary::default();
        if let Some(index) = index {
            index.finish()?;
            if index.records() < records {
                summary.warnings.push(format!(
                    "{} lists {} of {records} records; all of them are read",
                    index.path().display(),
                    index.records()
                ));
            }
        }
        Ok(summary)
    }
}
