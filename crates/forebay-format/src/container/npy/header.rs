//! The header of an array: magic, version, length, and a Python dictionary of three keys.
//!
//! Versions 1, 2 and 3 differ in the size of the length and in the encoding of the string. Source:
//! NEP 1 and numpy's `lib/format.py`; the layout to the byte is `docs/formats/npy.md`.

use std::ops::Range;

use super::item::{Item, ItemError};
use super::literal::{Literal, LiteralError};
use crate::file::Input;
use crate::{Error, SampleAxis};

/// First bytes of an array.
pub(crate) const MAGIC: [u8; 6] = *b"\x93NUMPY";

/// Magic, version and the shorter length \[bytes\].
const HEAD_BYTES: u64 = 10;

/// Longest header \[bytes\]: a structured type of 4,000 fields takes 92 KB.
const MAX_BYTES: u64 = 1 << 20;

/// Most axes, as numpy has them.
const MAX_AXES: usize = 64;

/// An array: where its elements are, and what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Array {
    /// Type of the elements.
    pub item: Item,
    /// Extents of the axes, of which the first counts the samples.
    pub shape: Vec<u64>,
    /// Where the first element is [bytes from the start of the file].
    pub start: u64,
    /// Size of one sample, of which the first axis counts \[bytes\].
    pub sample_bytes: u64,
}

impl Array {
    /// Number of samples: the extent of the first axis.
    #[must_use]
    pub fn samples(&self) -> u64 {
        self.shape[0]
    }

    /// Size of all elements \[bytes\]; it is known to lie within the file.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.samples() * self.sample_bytes
    }

    /// Reads the header of the array in the bytes `place` of a file, and checks it against them.
    /// Also returns the header's bytes.
    pub(crate) fn read(
        input: &Input,
        place: Range<u64>,
        subject: &str,
        axis: SampleAxis,
    ) -> Result<(Self, Vec<u8>), Error> {
        let header = NpyHeader { input, place, subject, axis };
        let bytes = header.bytes()?;
        Ok((header.parse(&bytes)?, bytes))
    }
}

/// A header on the way.
struct NpyHeader<'a> {
    input: &'a Input,
    place: Range<u64>,
    /// The owner of the header, for messages.
    subject: &'a str,
    axis: SampleAxis,
}

impl NpyHeader<'_> {
    fn corrupt(&self, at: u64, what: &str, expected: impl ToString, found: impl ToString) -> Error {
        self.input.corrupt(self.place.start + at, format!("{}: {what}", self.subject), expected, found)
    }

    fn unsupported(&self, what: &str, found: impl Into<String>, hint: impl Into<String>) -> Error {
        self.input.unsupported(format!("{}: {what}", self.subject), found, hint)
    }

    /// Reads all bytes up to the first element.
    fn bytes(&self) -> Result<Vec<u8>, Error> {
        let room = self.place.end.saturating_sub(self.place.start);
        if room < HEAD_BYTES {
            return Err(self.corrupt(0, "length", format!("{HEAD_BYTES} bytes or more"), room));
        }
        let mut bytes = vec![0; (HEAD_BYTES + 2).min(room) as usize];
        self.input.read(self.place.start, &mut bytes, self.subject)?;
        if bytes[..6] != MAGIC {
            return Err(self.corrupt(0, "magic", format!("{MAGIC:02x?}"), format!("{:02x?}", &bytes[..6])));
        }
        let (head_bytes, length) = match (bytes[6], bytes.get(8..12)) {
            (1, _) => (HEAD_BYTES, u64::from(u16::from_le_bytes([bytes[8], bytes[9]]))),
            (2 | 3, Some(length)) => {
                (12, u64::from(u32::from_le_bytes([length[0], length[1], length[2], length[3]])))
            }
            (2 | 3, None) => return Err(self.corrupt(8, "length of the header", "4 bytes", room - 8)),
            (version, _) => {
                let found = format!("version {version}.{}", bytes[7]);
                return Err(self.unsupported(
                    "a version other than 1, 2 or 3",
                    found,
                    "write it with numpy.save",
                ));
            }
        };
        if bytes[7] != 0 {
            return Err(self.corrupt(7, "minor version", 0, bytes[7]));
        }
        let most = MAX_BYTES.min(room - head_bytes);
        if length > most {
            return Err(self.corrupt(8, "length of the header", format!("{most} bytes at most"), length));
        }
        let known = bytes.len().min((head_bytes + length) as usize);
        bytes.resize((head_bytes + length) as usize, 0);
        self.input.read(self.place.start + known as u64, &mut bytes[known..], self.subject)?;
        Ok(bytes)
    }

    fn parse(&self, bytes: &[u8]) -> Result<Array, Error> {
        let version = bytes[6];
        let head_bytes = if version == 1 { HEAD_BYTES } else { HEAD_BYTES + 2 };
        let text = &bytes[head_bytes as usize..];
        let characters: Vec<(usize, char)> = if version == 3 {
            let text = std::str::from_utf8(text).map_err(|error| {
                self.corrupt(head_bytes + error.valid_up_to() as u64, "header", "UTF-8", "other bytes")
            })?;
            text.char_indices().collect()
        } else {
            text.iter().map(|byte| char::from(*byte)).enumerate().collect()
        };
        let literal = Literal::parse(&characters).map_err(|LiteralError { at, expected, found }| {
            self.corrupt(head_bytes + at as u64, "header", expected, found)
        })?;
        let (descr, fortran_order, shape) =
            three_keys(&literal).map_err(|found| self.corrupt(head_bytes, "header", KEYS, found))?;
        let item = Item::parse(descr).map_err(|error| self.no_item(error))?;
        let start = self.place.start + bytes.len() as u64;
        let shape = self.axis.shape(shape);
        let Some((samples, sample_shape)) = shape.split_first() else {
            return Err(self.unsupported(
                "an array without axes",
                "shape ()",
                "the first axis counts the samples: write it as an array of shape (1,), or pass sample_axis=None: each file is one sample",
            ));
        };
        if fortran_order && shape.iter().filter(|extent| **extent != 1).count() > 1 {
            return Err(self.unsupported(
                "an array in Fortran order",
                format!("shape {shape:?}, whose samples are not contiguous"),
                "`forebay convert` writes it in C order",
            ));
        }
        let sample_bytes =
            sample_shape.iter().try_fold(item.bytes, |bytes, extent| bytes.checked_mul(*extent));
        let room = self.place.end - start;
        let total = sample_bytes.and_then(|bytes| bytes.checked_mul(*samples));
        match (sample_bytes, total) {
            (Some(0), _) if *samples > 0 => Err(self.unsupported(
                "an array of samples without bytes",
                format!("shape {shape:?} of {} bytes per element", item.bytes),
                "the first axis counts the samples, which have at least one byte",
            )),
            (Some(sample_bytes), Some(total)) if total <= room => {
                Ok(Array { item, shape, start, sample_bytes })
            }
            (_, total) => {
                let total = total.map_or("more than 2^64".to_owned(), |total| total.to_string());
                let expected = format!("{total} bytes of shape {shape:?}, {} per element", item.bytes);
                Err(self.corrupt(
                    bytes.len() as u64,
                    "elements",
                    expected,
                    format!("{room} bytes after the header"),
                ))
            }
        }
    }

    fn no_item(&self, error: ItemError) -> Error {
        match error {
            ItemError::Object => self.unsupported(
                "an array of objects",
                "elements that are pickled Python objects",
                "unpickling runs code of the file: write numbers, strings of fixed length or a structured type",
            ),
            ItemError::Unknown(found) => self.unsupported(
                "the type of the elements",
                found,
                "supported: booleans, integers, floats, complex numbers, times, strings, bytes and structures of these",
            ),
        }
    }
}

const KEYS: &str = "a dictionary of 'descr', 'fortran_order' and 'shape'";

/// The values of the three keys, or what there is instead.
fn three_keys(literal: &Literal) -> Result<(&Literal, bool, Vec<u64>), String> {
    let Literal::Dictionary(items) = literal else { return Err("another literal".to_owned()) };
    let value = |wanted: &str| {
        let mut values = items.iter().filter(|(key, _)| matches!(key, Literal::Text(key) if key == wanted));
        match (values.next(), values.next()) {
            (Some((_, value)), None) => Ok(value),
            (None, _) => Err(format!("no '{wanted}'")),
            (Some(_), Some(_)) => Err(format!("'{wanted}' twice")),
        }
    };
    let (descr, fortran_order, shape) = (value("descr")?, value("fortran_order")?, value("shape")?);
    if items.len() != 3 {
        return Err(format!("{} keys", items.len()));
    }
    let Literal::Bool(fortran_order) = fortran_order else {
        return Err("a 'fortran_order' that is neither True nor False".to_owned());
    };
    let extents = match shape {
        Literal::Tuple(extents) if extents.len() <= MAX_AXES => extents,
        _ => return Err(format!("a 'shape' that is no tuple of up to {MAX_AXES} integers")),
    };
    let shape = extents.iter().map(|extent| match extent {
        Literal::Integer(extent) => Ok(*extent),
        _ => Err("an extent in 'shape' that is no integer from 0 on".to_owned()),
    });
    Ok((descr, *fortran_order, shape.collect::<Result<_, _>>()?))
}
