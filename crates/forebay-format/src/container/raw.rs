//! Records of one size, back to back: CIFAR's binary files, MNIST's after a header, dumps of arrays
//! of structs.
//!
//! Such a file does not describe itself: the caller does, with `format="raw"`, the size of a record
//! and its fields. The layout is in `docs/formats/raw.md`.

use std::path::Path;

use forebay_types::{Dtype, Field, Layout};

use crate::container::{Column, Container, ScanSummary, header_digest};
use crate::file::Input;
use crate::index::sidecar::{IndexEntry, RecordClass, ShardState, Writer};
use crate::{Error, OpenOptions, RawLayout};

/// Samples between two reports of progress.
const TELL_EVERY: u64 = 1 << 16;

/// An opened raw file.
#[derive(Debug)]
pub(crate) struct RawFile {
    input: Input,
    layout: RawLayout,
    samples: u64,
}

impl RawFile {
    /// Opens a file whose records have the layout of `options`.
    pub(crate) fn open(path: &Path, options: &OpenOptions) -> Result<Self, Error> {
        let Some(layout) = options.raw.clone() else {
            return Err(Error::Usage {
                message: format!("{}: the size of its records is not known", path.display()),
                hint: "pass record_bytes=, or fields= with types and shapes".to_owned(),
            });
        };
        check(&layout)?;
        let input = Input::open(path)?;
        let (header_bytes, record_bytes) = (layout.header_bytes, layout.record_bytes);
        let body = input.bytes().checked_sub(header_bytes).ok_or_else(|| {
            input.corrupt(0, "header", format!("{header_bytes} bytes"), format!("{} in all", input.bytes()))
        })?;
        if body % record_bytes != 0 {
            let whole = header_bytes + body / record_bytes * record_bytes;
            let found = format!("{} bytes up to the end of the file", body % record_bytes);
            return Err(input.corrupt(whole, "last record", format!("{record_bytes} bytes"), found));
        }
        Ok(Self { samples: body / record_bytes, input, layout })
    }

    /// The selected fields, and where each begins.
    fn fields(&self) -> Vec<(Field, u64)> {
        if !self.layout.fields.is_empty() {
            return self.layout.fields.clone();
        }
        vec![(Field::new("data", Dtype::Uint8, Layout::Dense(vec![self.layout.record_bytes])), 0)]
    }
}

/// Checks a layout.
fn check(layout: &RawLayout) -> Result<(), Error> {
    let wrong = |message: String| Err(Error::Usage { message, hint: String::new() });
    if layout.record_bytes == 0 {
        return wrong("record_bytes is 0".to_owned());
    }
    for (field, start) in &layout.fields {
        let end = field.sample_bytes().and_then(|bytes| bytes.checked_add(*start));
        if end.is_none_or(|end| end > layout.record_bytes) {
            let (name, record_bytes) = (&field.name, layout.record_bytes);
            return wrong(format!("field {name:?} ends after the record of {record_bytes} bytes"));
        }
    }
    Ok(())
}

impl Container for RawFile {
    fn input(&self) -> &Input {
        &self.input
    }

    fn state(&self) -> ShardState {
        header_digest(&[])
    }

    fn columns(&self) -> Result<Vec<Column>, Error> {
        let class = RecordClass::tight("record");
        Ok(self
            .fields()
            .into_iter()
            .map(|(field, _)| Column { field, classes: vec![class.clone()] })
            .collect())
    }

    fn add_to(
        &self,
        writer: &mut Writer,
        _threads: usize,
        progress: &dyn Fn(u64) -> bool,
    ) -> Result<ScanSummary, Error> {
        let places: Vec<(u64, u64)> = self
            .fields()
            .iter()
            .map(|(field, start)| {
                (self.layout.header_bytes + start, field.sample_bytes().unwrap_or_default())
            })
            .collect();
        for sample in 0..self.samples {
            let first = sample * self.layout.record_bytes;
            let entry = |(start, length): &(u64, u64)| IndexEntry::Plain {
                class: 0,
                start: first + start,
                length: *length,
            };
            writer.push(places.iter().map(entry));
            if sample % TELL_EVERY == 0 && !progress(first) {
                return Err(Error::Interrupted);
            }
        }
        Ok(ScanSummary::default())
    }
}
