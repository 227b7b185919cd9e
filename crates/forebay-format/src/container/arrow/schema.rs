//! The schema of Arrow data: a tree of fields, each with a type (`Schema.fbs` of the format).

use forebay_types::Dtype;

use super::flatbuffer::{Malformed, Table};

/// Deepest nesting of fields.
const MAX_DEPTH: usize = 32;

/// Most fields, over all levels: a schema may refer to one table many times.
const MAX_FIELDS: usize = 1 << 16;

/// A field of the schema.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct SchemaField {
    pub(super) name: String,
    pub(super) kind: FieldKind,
    /// Whether it may have nulls.
    pub(super) is_nullable: bool,
    /// Where values are numbers of entries of a dictionary.
    pub(super) dictionary: Option<DictionaryIndex>,
    pub(super) children: Vec<SchemaField>,
    /// Name and description of an extension type; empty without one.
    pub(super) extension: (String, String),
}

/// How a column refers to its dictionary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DictionaryIndex {
    pub(super) id: i64,
    /// Length of a number \[bytes\].
    pub(super) bytes: u32,
    pub(super) is_signed: bool,
}

/// The type of a field, as its buffers show it.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum FieldKind {
    /// Numbers and times: a type of numpy.
    Fixed {
        dtype: Option<Dtype>,
        numpy: Option<String>,
        item_bytes: u32,
        /// What an integer counts, where its type does not say: days, or a unit of time.
        unit: Option<&'static str>,
    },
    Bool,
    /// Byte strings and text; `is_large`: offsets of 8 bytes, not 4.
    Binary {
        is_large: bool,
    },
    List {
        is_large: bool,
    },
    FixedList {
        length: u64,
    },
    Struct,
    /// A type that is not read, with the number of its buffers.
    Other {
        name: &'static str,
        buffers: u32,
        has_variadic: bool,
    },
}

impl FieldKind {
    /// Number of buffers of a field of this kind, and whether any number of others follow.
    pub(super) fn buffers(&self) -> (u32, bool) {
        match self {
            Self::Fixed { .. } | Self::Bool | Self::List { .. } => (2, false),
            Self::Binary { .. } => (3, false),
            Self::FixedList { .. } | Self::Struct => (1, false),
            Self::Other { buffers, has_variadic, .. } => (*buffers, *has_variadic),
        }
    }
}

/// Version 4 of the metadata, of Arrow 0.8 to 0.17; unions had one more buffer.
pub(super) const VERSION_4: i16 = 3;

/// Numbers of the other byte order.
pub(super) const BIG_ENDIAN: Malformed = Malformed("big-endian numbers");

/// Reads the fields of a `Schema` table.
pub(super) fn read(schema: &Table<'_>, version: i16) -> Result<Vec<SchemaField>, Malformed> {
    if schema.i16(0, 0)? != 0 {
        return Err(BIG_ENDIAN);
    }
    let mut left = MAX_FIELDS;
    schema.tables(1)?.map(|field| read_field(&field?, version, MAX_DEPTH, &mut left)).collect()
}

fn read_field(
    field: &Table<'_>,
    version: i16,
    depth: usize,
    left: &mut usize,
) -> Result<SchemaField, Malformed> {
    if depth == 0 || *left == 0 {
        return Err(Malformed("too many or too deeply nested fields"));
    }
    *left -= 1;
    let children = field
        .tables(5)?
        .map(|child| read_field(&child?, version, depth - 1, left))
        .collect::<Result<Vec<_>, _>>()?;
    let dictionary = field.table(4)?.map(|dictionary| read_index(&dictionary)).transpose()?;
    let mut extension = (String::new(), String::new());
    for entry in field.tables(6)? {
        let entry = entry?;
        match entry.text(0)? {
            "ARROW:extension:name" => entry.text(1)?.clone_into(&mut extension.0),
            "ARROW:extension:metadata" => entry.text(1)?.clone_into(&mut extension.1),
            _ => {}
        }
    }
    let kind = read_kind(field, version)?;
    let wanted = match kind {
        FieldKind::List { .. } | FieldKind::FixedList { .. } => Some(1),
        FieldKind::Fixed { .. } | FieldKind::Bool | FieldKind::Binary { .. } => Some(0),
        FieldKind::Struct | FieldKind::Other { .. } => None,
    };
    if wanted.is_some_and(|wanted| wanted != children.len()) {
        return Err(Malformed("a field with the wrong number of children"));
    }
    let is_nullable = field.u8(1, 0)? != 0;
    Ok(SchemaField { name: field.text(0)?.to_owned(), kind, is_nullable, dictionary, children, extension })
}

fn read_index(dictionary: &Table<'_>) -> Result<DictionaryIndex, Malformed> {
    // Without a type they are int32.
    let (bits, is_signed) = match dictionary.table(1)? {
        Some(index) => (index.i32(0, 0)?, index.u8(1, 0)? != 0),
        None => (32, true),
    };
    if !matches!(bits, 8 | 16 | 32 | 64) {
        return Err(Malformed("an index of a dictionary of odd width"));
    }
    Ok(DictionaryIndex { id: dictionary.i64(0, 0)?, bytes: bits as u32 / 8, is_signed })
}

/// Suffixes of numpy for Arrow's units of time.
const TIME_UNITS: [&str; 4] = ["s", "ms", "us", "ns"];

fn read_kind(field: &Table<'_>, version: i16) -> Result<FieldKind, Malformed> {
    let code = field.u8(2, 0)?;
    let details = field.table(3)?.ok_or(Malformed("a field without a type"))?;
    let unit = |default: i16| -> Result<&'static str, Malformed> {
        let unit = usize::try_from(details.i16(0, default)?).ok();
        unit.and_then(|unit| TIME_UNITS.get(unit)).copied().ok_or(Malformed("an unknown unit of time"))
    };
    let counts = |dtype: Dtype, unit| {
        let item_bytes = dtype.item_bytes() as u32;
        FieldKind::Fixed { dtype: Some(dtype), numpy: None, item_bytes, unit }
    };
    let own = |dtype: Dtype| counts(dtype, None);
    let numpy = |name: String, item_bytes| FieldKind::Fixed {
        dtype: None,
        numpy: Some(name),
        item_bytes,
        unit: None,
    };
    let other = |name, buffers| FieldKind::Other { name, buffers, has_variadic: false };
    let length = || u64::try_from(details.i32(0, 0)?).map_err(|_| Malformed("a negative length"));
    Ok(match code {
        1 => other("null", 0),
        2 => match (details.i32(0, 0)?, details.u8(1, 0)? != 0) {
            (8, true) => own(Dtype::Int8),
            (16, true) => own(Dtype::Int16),
            (32, true) => own(Dtype::Int32),
            (64, true) => own(Dtype::Int64),
            (8, false) => own(Dtype::Uint8),
            (16, false) => own(Dtype::Uint16),
            (32, false) => own(Dtype::Uint32),
            (64, false) => own(Dtype::Uint64),
            _ => return Err(Malformed("an integer of odd width")),
        },
        3 => match details.i16(0, 0)? {
            0 => own(Dtype::Float16),
            1 => own(Dtype::Float32),
            2 => own(Dtype::Float64),
            _ => return Err(Malformed("a float of odd width")),
        },
        4 | 5 => FieldKind::Binary { is_large: false },
        6 => FieldKind::Bool,
        7 => other("decimal", 2),
        // Days are int32: numpy counts them in 8 bytes.
        8 if details.i16(0, 1)? == 0 => counts(Dtype::Int32, Some("days")),
        8 => numpy("<M8[ms]".to_owned(), 8),
        9 => match details.i32(1, 32)? {
            32 => counts(Dtype::Int32, Some(unit(1)?)),
            64 => counts(Dtype::Int64, Some(unit(1)?)),
            _ => return Err(Malformed("a time of odd width")),
        },
        10 => numpy(format!("<M8[{}]", unit(0)?), 8),
        11 => other("interval", 2),
        12 => FieldKind::List { is_large: false },
        13 => FieldKind::Struct,
        // Sparse ones have type ids, dense ones offsets as well.
        14 => other("union", 1 + u32::from(details.i16(0, 0)? == 1) + u32::from(version <= VERSION_4)),
        15 => match u32::try_from(length()?).unwrap_or(0) {
            0 => other("fixed_size_binary(0)", 2),
            item_bytes => numpy(format!("|V{item_bytes}"), item_bytes),
        },
        16 => FieldKind::FixedList { length: length()? },
        17 => other("map", 2),
        18 => numpy(format!("<m8[{}]", unit(1)?), 8),
        19 | 20 => FieldKind::Binary { is_large: true },
        21 => FieldKind::List { is_large: true },
        22 => other("run_end_encoded", 0),
        23 | 24 => FieldKind::Other { name: "binary_view or string_view", buffers: 2, has_variadic: true },
        25 | 26 => other("list_view", 3),
        _ => return Err(Malformed("a type of a later version of the format")),
    })
}
