//! Finds the schema of records that other programs' libraries wrote, by a look at some of them.

use super::Dataset;
use super::build::{IndexReport, Probe};
use crate::Error;
use crate::file::Input;
use crate::schema::{Misfit, Schema, example, image_record};

impl Dataset {
    /// The schema of `tf.train.Example` messages, of the features that are `wanted` or of all.
    ///
    /// Unless it is `forced`, `None` where a record is no such message, has other features than the rest, or holds
    /// what is no field.
    pub(super) fn find_example(
        &self,
        probes: &[Probe],
        wanted: &[String],
        forced: bool,
        report: &mut IndexReport,
    ) -> Result<Option<Schema>, Error> {
        let mut survey = example::Survey::default();
        let looked = self.look_at(probes, report, |bytes, read| survey.look(bytes, read))?;
        if let Some((error, is_extended)) = looked {
            return if forced || is_extended { Err(error) } else { Ok(None) };
        }
        if !forced && wanted.is_empty() && !survey.is_uniform() {
            return Ok(None);
        }
        match survey.schema(wanted) {
            Ok(schema) => Ok(Some(Schema::TfExample(schema))),
            Err(_) if !forced && wanted.is_empty() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The schema of image records. Unless it is `forced`, `None` where a record is none.
    pub(super) fn find_image_record(
        &self,
        probes: &[Probe],
        forced: bool,
        report: &mut IndexReport,
    ) -> Result<Option<Schema>, Error> {
        let mut survey = image_record::Survey::default();
        let looked = self.look_at(probes, report, |bytes, read| survey.look(bytes, !forced, read))?;
        match looked {
            Some((error, is_extended)) if forced || is_extended => Err(error),
            Some(_) => Ok(None),
            None => Ok(survey.schema().map(Schema::ImageRecord)),
        }
    }

    /// Calls `look` with the length of each record and what reads it, until one does not fit: why,
    /// where it is, and whether it holds more than the schema.
    fn look_at(
        &self,
        probes: &[Probe],
        report: &mut IndexReport,
        mut look: impl FnMut(u64, crate::schema::ReadRecord<'_>) -> Result<Result<(), Misfit>, Error>,
    ) -> Result<Option<(Error, bool)>, Error> {
        for probe in probes {
            let input = Input::open(&self.shards[probe.shard].path)?;
            let mut read = |at: u64, into: &mut [u8]| {
                report.reads += 1;
                report.read_bytes += into.len() as u64;
                input.read(probe.offset + at, into, "record")
            };
            if let Err(misfit) = look(probe.length, &mut read)? {
                let is_extended = matches!(misfit, Misfit::Extended(_));
                return Ok(Some((self.misfit(probe, misfit.into_error()), is_extended)));
            }
        }
        Ok(None)
    }
}
