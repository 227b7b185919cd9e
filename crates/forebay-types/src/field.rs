//! Fields: the named parts of a decoded sample.

use serde::{Deserialize, Serialize};

/// Type of one element, with numpy's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs)]
pub enum Dtype {
    Bool,
    Int8,
    Int16,
    Int32,
    Int64,
    Uint8,
    Uint16,
    Uint32,
    Uint64,
    Float16,
    Float32,
    Float64,
}

impl Dtype {
    /// Size of one element \[bytes\].
    #[must_use]
    pub const fn item_bytes(self) -> usize {
        match self {
            Self::Bool | Self::Int8 | Self::Uint8 => 1,
            Self::Int16 | Self::Uint16 | Self::Float16 => 2,
            Self::Int32 | Self::Uint32 | Self::Float32 => 4,
            Self::Int64 | Self::Uint64 | Self::Float64 => 8,
        }
    }

    /// The numpy name, for example `float32`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bool => "bool",
            Self::Int8 => "int8",
            Self::Int16 => "int16",
            Self::Int32 => "int32",
            Self::Int64 => "int64",
            Self::Uint8 => "uint8",
            Self::Uint16 => "uint16",
            Self::Uint32 => "uint32",
            Self::Uint64 => "uint64",
            Self::Float16 => "float16",
            Self::Float32 => "float32",
            Self::Float64 => "float64",
        }
    }
}

/// How the values of a field lie in a batch.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Layout {
    /// Every sample has this shape; a batch is one array of shape (batch, *shape).
    Dense(Vec<u64>),
    /// Samples differ in length; a batch is a list of one-dimensional views.
    Ragged,
}

/// A named part of a sample.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Field {
    /// Name, the key in a batch.
    pub name: String,
    /// Type of one element.
    pub dtype: Dtype,
    /// Dense with a shape, or ragged.
    pub layout: Layout,
    /// Type of an element for numpy if [`Dtype`] has none: a string of
    /// `numpy.lib.format.dtype_to_descr`, such as `>f4`. Then the dtype is `Uint8`, and the last
    /// axis of a dense layout counts the bytes of an element.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub numpy: Option<String>,
}

impl Field {
    /// A field of a [`Dtype`].
    #[must_use]
    pub fn new(name: impl Into<String>, dtype: Dtype, layout: Layout) -> Self {
        Self { name: name.into(), dtype, layout, numpy: None }
    }

    /// Size of one sample of a dense field \[bytes\]; `None` for a ragged field, or on overflow.
    #[must_use]
    pub fn sample_bytes(&self) -> Option<u64> {
        match &self.layout {
            Layout::Dense(shape) => shape
                .iter()
                .try_fold(self.dtype.item_bytes() as u64, |bytes, extent| bytes.checked_mul(*extent)),
            Layout::Ragged => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sample_bytes_multiplies_the_shape_and_refuses_overflow() {
        let field = |layout| Field::new("image", Dtype::Float32, layout);
        assert_eq!(field(Layout::Dense(vec![3, 32, 32])).sample_bytes(), Some(3 * 32 * 32 * 4));
        assert_eq!(field(Layout::Dense(vec![])).sample_bytes(), Some(4));
        assert_eq!(field(Layout::Dense(vec![u64::MAX, 2])).sample_bytes(), None);
        assert_eq!(field(Layout::Ragged).sample_bytes(), None);
    }
}
