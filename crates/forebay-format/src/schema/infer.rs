//! Schema inference: finds how opaque records become fields, by probing some of them.
//!
//! Every container of opaque records infers with the same sample ([`PROBE_RECORDS`]), so that equal
//! records get equal schemas in all of them.

use std::path::Path;

use forebay_types::Field;

use super::{Misfit, ReadRecord, Schema, datum, example, image_record, opaque_field};
use crate::{Error, Format, SchemaChoice, SchemaError};

/// Most records that are probed, spread evenly over all.
///
/// A property that is equal in this many records is equal in all, or so nearly that an exception is
/// worth an error.
const PROBE_RECORDS: u64 = 64;

/// Most bytes that are probed \[bytes\], estimated from the length of the first record; at least
/// two records are probed.
const PROBE_BYTES: u64 = 64 << 20;

/// A record to probe.
pub(crate) struct ProbedRecord<'a> {
    /// Its length \[bytes\].
    pub(crate) bytes: u64,
    /// Reads some of it.
    pub(crate) read: Box<ReadBytes<'a>>,
}

/// Fills a buffer from a byte of the record on.
type ReadBytes<'a> = dyn FnMut(u64, &mut [u8]) -> Result<(), Error> + 'a;

impl ProbedRecord<'_> {
    /// A record that was read as a whole.
    pub(crate) fn whole(record: Vec<u8>) -> Self {
        let bytes = record.len() as u64;
        let read = move |at: u64, into: &mut [u8]| {
            into.copy_from_slice(&record[at as usize..at as usize + into.len()]);
            Ok(())
        };
        Self { bytes, read: Box::new(read) }
    }
}

/// Returns the record of a sample.
pub(crate) type RecordProbe<'a> = dyn FnMut(u64) -> Result<ProbedRecord<'a>, Error> + 'a;

/// What is known before any record is probed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SchemaInference<'a> {
    /// The file that messages name.
    pub(crate) path: &'a Path,
    /// The schema that the caller chose.
    pub(crate) choice: SchemaChoice,
    /// The schema that records in such a container usually have.
    pub(crate) usual: SchemaChoice,
    /// The fields to read, in this order; empty: all.
    pub(crate) fields: &'a [String],
}

impl SchemaInference<'_> {
    /// Finds the schema of `samples` records.
    ///
    /// If the caller chose no schema, records without the usual one are raw. Records that have it
    /// and hold more are refused, since additional content of one record must not turn a whole
    /// dataset into bytes.
    pub(crate) fn infer(&self, samples: u64, probe: &mut RecordProbe<'_>) -> Result<Schema, Error> {
        let forced = self.choice != SchemaChoice::Auto;
        let found = match if forced { self.choice } else { self.usual } {
            SchemaChoice::TfExample => self.tf_example(forced, samples, probe)?,
            SchemaChoice::ImageRecord => self.image_record(forced, samples, probe)?,
            SchemaChoice::CaffeDatum => self.caffe_datum(forced, samples, probe)?,
            SchemaChoice::Auto | SchemaChoice::Raw => None,
        };
        let schema = found.unwrap_or(Schema::Raw);
        if self.fields.is_empty() || matches!(schema, Schema::TfExample(_)) {
            return Ok(schema);
        }
        Err(Error::Usage {
            message: format!(
                "{}: fields= picks features of tf.train.Example; records here are {:?}",
                self.path.display(),
                schema.name()
            ),
            hint: "leave out fields=".to_owned(),
        })
    }

    fn tf_example(
        &self,
        forced: bool,
        samples: u64,
        probe: &mut RecordProbe<'_>,
    ) -> Result<Option<Schema>, Error> {
        // A caller who names fields knows that they exist.
        let strict = forced || !self.fields.is_empty();
        let mut inference = example::Inference::default();
        let fits =
            self.probe_records(strict, samples, probe, |_, bytes, read| inference.probe(bytes, read))?;
        if !fits || !strict && !inference.is_uniform() {
            return Ok(None);
        }
        match inference.schema(self.fields) {
            Ok(schema) => Ok(Some(Schema::TfExample(schema))),
            Err(error) if strict => Err(error),
            Err(_) => Ok(None),
        }
    }

    fn image_record(
        &self,
        forced: bool,
        samples: u64,
        probe: &mut RecordProbe<'_>,
    ) -> Result<Option<Schema>, Error> {
        let mut inference = image_record::Inference::default();
        let each = |_, bytes, read: ReadRecord<'_>| inference.probe(bytes, !forced, read);
        let fits = self.probe_records(forced, samples, probe, each)?;
        Ok(inference.schema().filter(|_| fits).map(Schema::ImageRecord))
    }

    fn caffe_datum(
        &self,
        forced: bool,
        samples: u64,
        probe: &mut RecordProbe<'_>,
    ) -> Result<Option<Schema>, Error> {
        let (mut found, mut unlike) = (None, None);
        let fits = self.probe_records(forced, samples, probe, |sample, bytes, read| {
            Ok(match (datum::probe(bytes, read)?, found) {
                (Ok(schema), None) => {
                    found = Some(schema);
                    Ok(())
                }
                (Ok(schema), Some(first)) if schema == first => Ok(()),
                (Ok(schema), Some(first)) => Err(Misfit::Other(datum::difference(&first, &schema))),
                // It may be damaged: reading it will report that. It counts where no record fits.
                (Err(misfit), _) if forced => {
                    unlike.get_or_insert_with(|| self.misfit(sample, misfit.into_error()));
                    Ok(())
                }
                (Err(misfit), _) => Err(misfit),
            })
        })?;
        match (found, unlike) {
            (None, Some(error)) => Err(error),
            (found, _) => Ok(found.filter(|_| fits).map(Schema::CaffeDatum)),
        }
    }

    /// Calls `each` with the number and the length of some records and what reads them, until one
    /// does not fit; returns whether all fit.
    ///
    /// A misfit is an error if the inference is `strict` or if the record holds more than the
    /// schema. Damaged records are skipped, unless all are damaged.
    fn probe_records(
        &self,
        strict: bool,
        samples: u64,
        probe: &mut RecordProbe<'_>,
        mut each: impl FnMut(u64, u64, ReadRecord<'_>) -> Result<Result<(), Misfit>, Error>,
    ) -> Result<bool, Error> {
        let (mut probes, mut number) = (samples.min(PROBE_RECORDS), 0);
        let (mut readable, mut damage) = (0, None);
        while number < probes {
            let sample = (u128::from(number) * u128::from(samples - 1)).checked_div(u128::from(probes - 1));
            let sample = sample.unwrap_or(0) as u64;
            number += 1;
            let mut record = match probe(sample) {
                Ok(record) => record,
                // A record with a wrong checksum is no evidence about the others.
                Err(error @ Error::Corrupt { .. }) => {
                    damage.get_or_insert(error);
                    continue;
                }
                Err(error) => return Err(error),
            };
            if let Err(misfit) = each(sample, record.bytes, &mut record.read)? {
                return match misfit {
                    Misfit::Other(_) if !strict => Ok(false),
                    misfit => Err(self.misfit(sample, misfit.into_error())),
                };
            }
            if readable == 0 {
                probes = probes.min((PROBE_BYTES / record.bytes.max(1)).max(2));
            }
            readable += 1;
        }
        match damage {
            Some(damage) if readable == 0 => Err(damage),
            _ => Ok(true),
        }
    }

    /// The error of a record; only an index knows its file and offset.
    fn misfit(&self, sample: u64, source: SchemaError) -> Error {
        Error::Schema { path: self.path.to_owned(), sample, offset: 0, source: Box::new(source) }
    }
}

/// The schema of columns that are these fields; of one opaque column without a name in the file,
/// raw records.
pub(crate) fn of_fields(
    path: &Path,
    format: Format,
    choice: SchemaChoice,
    fields: Vec<Field>,
) -> Result<Schema, Error> {
    if !matches!(choice, SchemaChoice::Auto | SchemaChoice::Raw) {
        return Err(Error::Usage {
            message: format!("{}: schema {:?} does not fit this format", path.display(), choice.name()),
            hint: "leave out schema=".to_owned(),
        });
    }
    let are_records = fields == [opaque_field()] && !format.names_fields();
    if are_records { Ok(Schema::Raw) } else { Ok(Schema::Fields(fields)) }
}
