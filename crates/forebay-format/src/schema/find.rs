//! Finds the schema of a container whose records are nobody's business, by a look at some of them.

use super::{Misfit, ReadRecord, Schema, SchemaChoice, example, image_record};
use crate::Error;
use crate::container::{Column, Look, plain_schema};
use crate::file::Input;

/// Most records that are looked at, spread evenly over all.
///
/// What is equal in as many is equal in all, or so rarely not that a record that differs is worth an error.
const LOOKS: u64 = 64;

/// Most bytes that are looked at \[bytes\], as far as the first record tells; two records are looked at in any case.
const LOOK_BYTES: u64 = 64 << 20;

/// What the caller wants of a container.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted<'a> {
    /// The schema that was asked for.
    pub(crate) choice: SchemaChoice,
    /// The schema that records in such a container usually have.
    pub(crate) usual: SchemaChoice,
    /// The fields that are wanted, in this order; none: all.
    pub(crate) fields: &'a [String],
}

/// Finds the schema of `samples` records of one opaque column.
///
/// Where nothing was asked for, records that do not have the usual schema are raw; those that have
/// it and hold more are refused, since a dataset must not become bytes for what one of its records
/// has too much.
pub(crate) fn find(
    input: &Input,
    wanted: Wanted<'_>,
    columns: &[Column],
    samples: u64,
    look: &mut Look<'_>,
) -> Result<Schema, Error> {
    let Wanted { choice, usual, fields } = wanted;
    let forced = choice != SchemaChoice::Auto;
    let found = match if forced { choice } else { usual } {
        SchemaChoice::TfExample => {
            let mut survey = example::Survey::default();
            // Who names fields knows that they are there.
            let strict = forced || !fields.is_empty();
            let misfit = look_at(input, samples, look, |bytes, read| survey.look(bytes, read))?;
            match misfit {
                Some((error, is_extended)) if strict || is_extended => return Err(error),
                Some(_) => None,
                None if !strict && !survey.is_uniform() => None,
                None => match survey.schema(fields) {
                    Ok(schema) => Some(Schema::TfExample(schema)),
                    Err(error) if strict => return Err(error),
                    Err(_) => None,
                },
            }
        }
        SchemaChoice::ImageRecord => {
            let mut survey = image_record::Survey::default();
            let misfit = look_at(input, samples, look, |bytes, read| survey.look(bytes, !forced, read))?;
            match misfit {
                Some((error, is_extended)) if forced || is_extended => return Err(error),
                Some(_) => None,
                None => survey.schema().map(Schema::ImageRecord),
            }
        }
        _ => None,
    };
    let schema = match found {
        Some(schema) => schema,
        // Nothing was asked for and nothing fits, or what was asked for is none of these.
        None if forced => plain_schema(input, choice, columns)?,
        None => Schema::Raw,
    };
    if fields.is_empty() || matches!(schema, Schema::TfExample(_)) {
        return Ok(schema);
    }
    Err(Error::Usage {
        message: format!(
            "{}: fields= picks features of tf.train.Example; records here are {:?}",
            input.path().display(),
            schema.name()
        ),
        hint: "leave out fields=".to_owned(),
    })
}

/// Calls `each` with the length of some records and what reads them, until one does not fit: why,
/// and whether it holds more than the schema. Damaged records are passed over, unless all are.
fn look_at(
    input: &Input,
    samples: u64,
    look: &mut Look<'_>,
    mut each: impl FnMut(u64, ReadRecord<'_>) -> Result<Result<(), Misfit>, Error>,
) -> Result<Option<(Error, bool)>, Error> {
    let (mut looks, mut number) = (samples.min(LOOKS), 0);
    let (mut readable, mut damage) = (0, None);
    while number < looks {
        let sample = (u128::from(number) * u128::from(samples - 1)).checked_div(u128::from(looks - 1));
        let sample = sample.unwrap_or(0) as u64;
        number += 1;
        let record = match look(sample) {
            Ok(mut columns) => columns.swap_remove(0),
            // A record with a wrong checksum says nothing of the others: whoever reads it will see.
            Err(error @ Error::Corrupt { .. }) => {
                damage.get_or_insert(error);
                continue;
            }
            Err(error) => return Err(error),
        };
        let mut read = |at: u64, into: &mut [u8]| {
            into.copy_from_slice(&record[at as usize..at as usize + into.len()]);
            Ok(())
        };
        if let Err(misfit) = each(record.len() as u64, &mut read)? {
            let is_extended = matches!(misfit, Misfit::Extended(_));
            let (path, source) = (input.path().to_owned(), Box::new(misfit.into_error()));
            return Ok(Some((Error::Schema { path, sample, offset: 0, source }, is_extended)));
        }
        if readable == 0 {
            looks = looks.min((LOOK_BYTES / (record.len() as u64).max(1)).max(2));
        }
        readable += 1;
    }
    match damage {
        Some(damage) if readable == 0 => Err(damage),
        _ => Ok(None),
    }
}
