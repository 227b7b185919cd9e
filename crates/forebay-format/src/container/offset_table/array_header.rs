//! Types and shapes that some writers put before the elements of each array.

use forebay_types::Dtype;

use crate::Error;
use crate::file::HeaderScan;

/// Most axes that an array may have; numpy has the same bound.
const MAX_AXES: u64 = 64;

/// How the type and the shape of an array stand before its elements.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ArrayHeader {
    /// MDS: a byte for the type, unless the column has one for all samples; then a byte with the
    /// number of axes, times four, plus the logarithm of the bytes of an extent; the extents.
    Mds(Option<Dtype>),
    /// `LitData`: type, number of axes and extents, each in four bytes.
    LitData {
        /// The types by number.
        dtype: fn(u64) -> Option<Dtype>,
        /// Whether the most significant byte comes first.
        is_big_endian: bool,
    },
}

/// An array as its header describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StoredArray {
    pub(crate) dtype: Dtype,
    pub(crate) shape: Vec<u64>,
    /// Bytes before the elements.
    pub(crate) header_bytes: u64,
}

impl StoredArray {
    /// Bytes of the elements; `None` on overflow.
    pub(crate) fn bytes(&self) -> Option<u64> {
        let item_bytes = self.dtype.item_bytes() as u64;
        self.shape.iter().try_fold(item_bytes, |bytes, extent| bytes.checked_mul(*extent))
    }
}

impl ArrayHeader {
    /// Reads the header of the value at `start`, which has `length` bytes.
    pub(crate) fn read(
        self,
        scan: &mut HeaderScan<'_>,
        start: u64,
        length: u64,
        name: &str,
    ) -> Result<StoredArray, Error> {
        let mut cursor = Cursor { scan, at: start, end: start + length, name };
        let (dtype, axes, extent_bytes, is_big_endian) = match self {
            Self::Mds(known) => {
                let dtype = match known {
                    Some(dtype) => dtype,
                    None => cursor.dtype(1, false, mds_dtype)?,
                };
                let axes = cursor.number(1, false)?;
                (dtype, axes >> 2, 1 << (axes & 3), false)
            }
            Self::LitData { dtype, is_big_endian } => {
                (cursor.dtype(4, is_big_endian, dtype)?, cursor.number(4, is_big_endian)?, 4, is_big_endian)
            }
        };
        if axes > MAX_AXES {
            return Err(cursor.wrong("number of axes", format!("at most {MAX_AXES}"), axes.to_string()));
        }
        let shape =
            (0..axes).map(|_| cursor.number(extent_bytes, is_big_endian)).collect::<Result<_, _>>()?;
        let array = StoredArray { dtype, shape, header_bytes: cursor.at - start };
        let found = length - array.header_bytes;
        if array.bytes() == Some(found) {
            return Ok(array);
        }
        let expected = format!("elements of {} of shape {:?}", array.dtype.name(), array.shape);
        Err(cursor.wrong("length", expected, format!("{found} bytes")))
    }
}

/// Reads the numbers of a header.
struct Cursor<'a, 'b> {
    scan: &'a mut HeaderScan<'b>,
    at: u64,
    end: u64,
    name: &'a str,
}

impl Cursor<'_, '_> {
    fn number(&mut self, bytes: u64, is_big_endian: bool) -> Result<u64, Error> {
        if self.end - self.at < bytes {
            let found = format!("the end of the value after {}", self.end - self.at);
            return Err(self.wrong("header", format!("{bytes} bytes"), found));
        }
        let stored = self.scan.bytes(self.at, bytes as usize, self.name)?;
        let shift = |all: u64, byte: &u8| all << 8 | u64::from(*byte);
        let number =
            if is_big_endian { stored.iter().fold(0, shift) } else { stored.iter().rev().fold(0, shift) };
        self.at += bytes;
        Ok(number)
    }

    fn dtype(
        &mut self,
        bytes: u64,
        is_big_endian: bool,
        dtype: impl Fn(u64) -> Option<Dtype>,
    ) -> Result<Dtype, Error> {
        let code = self.number(bytes, is_big_endian)?;
        dtype(code).ok_or_else(|| {
            self.at -= bytes;
            self.wrong("type of the elements", "the number of a type of numpy".to_owned(), code.to_string())
        })
    }

    fn wrong(&self, what: &str, expected: String, found: String) -> Error {
        let what = format!("array {:?}: {what}", self.name);
        self.scan.input().corrupt(self.at, what, expected, found)
    }
}

/// The type of a code of MDS.
fn mds_dtype(code: u64) -> Option<Dtype> {
    Some(match code {
        8 => Dtype::Uint8,
        9 => Dtype::Int8,
        16 => Dtype::Uint16,
        17 => Dtype::Int16,
        18 => Dtype::Float16,
        32 => Dtype::Uint32,
        33 => Dtype::Int32,
        34 => Dtype::Float32,
        64 => Dtype::Uint64,
        65 => Dtype::Int64,
        66 => Dtype::Float64,
        _ => return None,
    })
}
