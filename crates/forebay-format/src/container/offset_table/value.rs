//! The values of a sample: their names, lengths and elements.

use std::collections::HashSet;

use forebay_types::{Dtype, Field, Layout};

use super::array_header::{ArrayHeader, StoredArray};
use crate::Error;
use crate::file::{HeaderScan, Input};
use crate::index::sidecar::MAX_COLUMNS;

/// What the bytes of a value are.
#[derive(Clone, Debug)]
pub(crate) enum Elements {
    /// Bytes, or numbers of one type, as many as there are.
    Varying(Dtype),
    /// Numbers in this shape.
    Fixed(Dtype, Vec<u64>),
    /// An array that has its type and shape before it.
    Headed(ArrayHeader),
    /// The same, once the first sample was read: of any length in one axis, or of this shape.
    Settled(ArrayHeader, Dtype, Option<Vec<u64>>),
}

/// A value that each sample has.
#[derive(Clone, Debug)]
pub(crate) struct Value {
    /// The name of the field.
    pub(crate) name: String,
    /// Its length, if that is the same in all samples \[bytes\].
    pub(crate) bytes: Option<u64>,
    pub(crate) elements: Elements,
}

impl Value {
    /// A value of bytes that are delivered as they are.
    pub(crate) fn opaque(name: &str, bytes: Option<u64>) -> Self {
        Self { name: name.to_owned(), bytes, elements: Elements::Varying(Dtype::Uint8) }
    }

    /// A value of numbers in this shape, all of them in a row; `None` on overflow.
    pub(crate) fn fixed(name: &str, dtype: Dtype, shape: Vec<u64>) -> Option<Self> {
        let bytes = Field::new(name, dtype, Layout::Dense(shape.clone())).sample_bytes()?;
        Some(Self { name: name.to_owned(), bytes: Some(bytes), elements: Elements::Fixed(dtype, shape) })
    }

    /// Whether the first sample has to be read to know the field.
    pub(super) fn is_open(&self) -> bool {
        matches!(self.elements, Elements::Headed(_))
    }

    /// Whether a header stands before the elements.
    pub(super) fn has_header(&self) -> bool {
        matches!(self.elements, Elements::Headed(_) | Elements::Settled(..))
    }

    /// Delivers the value as it is stored, header included.
    pub(super) fn keep_stored(&mut self) {
        if self.has_header() {
            self.elements = Elements::Varying(Dtype::Uint8);
        }
    }

    /// Takes type and shape of the first array for those of all: the shape, or, with one axis, any
    /// length.
    pub(super) fn settle(&mut self, first: StoredArray) {
        if let Elements::Headed(header) = self.elements {
            let shape = if first.shape.len() == 1 { None } else { Some(first.shape) };
            self.elements = Elements::Settled(header, first.dtype, shape);
        }
    }

    /// The field.
    pub(super) fn field(&self) -> Field {
        let (dtype, layout) = match &self.elements {
            Elements::Fixed(dtype, shape) | Elements::Settled(_, dtype, Some(shape)) => {
                (*dtype, Layout::Dense(shape.clone()))
            }
            Elements::Varying(dtype) | Elements::Settled(_, dtype, None) => (*dtype, Layout::Ragged),
            // Of a file without samples.
            Elements::Headed(_) => (Dtype::Uint8, Layout::Ragged),
        };
        Field::new(&self.name, dtype, layout)
    }

    /// Reads the header of the value of a sample.
    pub(super) fn read_header(
        &self,
        scan: &mut HeaderScan<'_>,
        start: u64,
        length: u64,
        sample: u64,
    ) -> Result<StoredArray, Error> {
        let (Elements::Headed(header) | Elements::Settled(header, ..)) = self.elements else {
            unreachable!("a value with a header")
        };
        let found = header.read(scan, start, length, &self.name)?;
        if found.shape.len() != 1 && found.bytes() == Some(0) {
            let described = format!("sample {sample} has shape {:?} at offset {start}", found.shape);
            return Err(self.unequal(scan.input(), "an array without elements", described));
        }
        Ok(found)
    }

    /// Where the elements of the value of a sample lie: start and length \[bytes\].
    pub(super) fn elements(
        &self,
        scan: &mut HeaderScan<'_>,
        start: u64,
        length: u64,
        sample: u64,
    ) -> Result<(u64, u64), Error> {
        match &self.elements {
            Elements::Settled(_, dtype, shape) => {
                let found = self.read_header(scan, start, length, sample)?;
                let fits = match shape {
                    Some(shape) => found.shape == *shape,
                    None => found.shape.len() == 1,
                };
                if !fits || found.dtype != *dtype {
                    let first = match shape {
                        Some(shape) => format!("{} of shape {shape:?}", dtype.name()),
                        None => format!("{} in one axis", dtype.name()),
                    };
                    let described = format!(
                        "sample {sample} at offset {start} has {} of shape {:?}, the first one has {first}",
                        found.dtype.name(),
                        found.shape
                    );
                    return Err(self.unequal(scan.input(), "an array of another type or shape", described));
                }
                Ok((start + found.header_bytes, length - found.header_bytes))
            }
            Elements::Varying(dtype) => {
                let item_bytes = dtype.item_bytes() as u64;
                let fits = length.is_multiple_of(item_bytes);
                let expected = || format!("a multiple of {item_bytes} bytes");
                self.check_length(scan.input(), start, length, sample, fits, expected)
            }
            Elements::Fixed(..) => {
                let bytes = self.field().sample_bytes();
                let expected = || format!("{} bytes", bytes.unwrap_or_default());
                self.check_length(scan.input(), start, length, sample, bytes == Some(length), expected)
            }
            Elements::Headed(_) => Ok((start, length)),
        }
    }

    fn check_length(
        &self,
        input: &Input,
        start: u64,
        length: u64,
        sample: u64,
        fits: bool,
        expected: impl FnOnce() -> String,
    ) -> Result<(u64, u64), Error> {
        if fits {
            return Ok((start, length));
        }
        let what = format!("length of {:?} of sample {sample}", self.name);
        Err(input.corrupt(start, what, expected(), format!("{length} bytes")))
    }

    fn unequal(&self, input: &Input, what: &str, found: String) -> Error {
        let hint = "schema=\"raw\" delivers such arrays as bytes, with type and shape before the elements; \
                    fields= leaves them out";
        input.unsupported(format!("{what} in field {:?}", self.name), found, hint)
    }
}

/// The numbers of the values that are asked for, in that order; without a request all.
pub(super) fn pick(input: &Input, values: &[Value], fields: &[String]) -> Result<Vec<usize>, Error> {
    let wrong = |message: String, hint: String| {
        Err(Error::Usage { message: format!("{}: {message}", input.path().display()), hint })
    };
    let mut seen = HashSet::new();
    if let Some(twice) = values.iter().find(|value| !seen.insert(&value.name)) {
        return Err(input.corrupt(
            0,
            "names of the values",
            "each one once",
            format!("{:?} twice", twice.name),
        ));
    }
    if let Some((_, twice)) =
        fields.iter().enumerate().find(|(number, name)| fields[..*number].contains(name))
    {
        return wrong(format!("field {twice:?} is asked for twice"), "name each field once".to_owned());
    }
    if fields.is_empty() {
        if values.len() > MAX_COLUMNS {
            let what = format!("samples of more than {MAX_COLUMNS} values");
            return Err(input.unsupported(what, values.len().to_string(), "choose some with fields="));
        }
        return Ok((0..values.len()).collect());
    }
    let mut chosen = Vec::with_capacity(fields.len());
    for field in fields {
        let Some(number) = values.iter().position(|value| value.name == *field) else {
            let names: Vec<&str> = values.iter().map(|value| value.name.as_str()).take(50).collect();
            return wrong(
                format!("samples have no field {field:?}"),
                format!("their fields: {}", names.join(", ")),
            );
        };
        chosen.push(number);
    }
    Ok(chosen)
}
