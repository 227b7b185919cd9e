//! The schema of a Parquet file: its columns, each a field of a sample or what is not read.
//!
//! Structures become fields with dotted names; a list of numbers is a ragged field, or an array
//! where the Arrow schema that writers keep in the footer says that all lists have one length.

use std::collections::BTreeMap;

use forebay_types::{Dtype, Field, Layout};
use parquet::basic::{ConvertedType, LogicalType, Repetition, TimeUnit, Type as Physical};
use parquet::schema::types::{ColumnDescriptor, SchemaDescriptor, Type};

use crate::codec::ParquetNulls;
use crate::container::arrow::ArrowFields;
use crate::container::columns::mask_name;

/// Deepest nesting of groups.
const MAX_DEPTH: usize = 64;

/// A column that is read.
#[derive(Clone, Debug)]
pub(super) struct ParquetField {
    /// Its number among the columns of the file.
    pub(super) number: usize,
    pub(super) field: Field,
    pub(super) physical: Physical,
    /// Bytes of a value that are kept, 0 for byte strings \[bytes\].
    pub(super) item_bytes: u32,
    pub(super) definition: i16,
    pub(super) repetition: i16,
    /// Definition level of a row whose list is there, empty or not.
    pub(super) list_definition: i16,
    /// Lengths of the lists around a value, from the outermost; empty where they vary, or without
    /// lists.
    pub(super) lists: Vec<u64>,
    pub(super) nulls: ParquetNulls,
}

impl ParquetField {
    /// The column that tells which rows have a value, if it may have nulls.
    fn mask(&self) -> Option<Self> {
        let there = if self.repetition == 0 { self.definition } else { self.list_definition };
        let is_masked = there > 0 && self.lists.is_empty();
        is_masked.then(|| Self {
            field: Field::new(mask_name(&self.field.name), Dtype::Bool, Layout::Dense(Vec::new())),
            nulls: ParquetNulls::Mask(there),
            ..self.clone()
        })
    }
}

/// The fields, and after each that may have nulls that of its mask.
pub(super) fn with_masks(candidates: Vec<Candidate>) -> Vec<Candidate> {
    let mut found = Vec::with_capacity(2 * candidates.len());
    for (name, is_default, column) in candidates {
        match column.as_ref().ok().and_then(ParquetField::mask) {
            None => found.push((name, is_default, column)),
            Some(mask) => {
                let column = column.map(|column| ParquetField { nulls: ParquetNulls::Zeros, ..column });
                found.push((name, is_default, column));
                found.push((mask.field.name.clone(), is_default, Ok(mask)));
            }
        }
    }
    found
}

/// A field that the file offers: name, whether it is a default, and the column or what is not read.
pub(super) type Candidate = (String, bool, Result<ParquetField, String>);

/// All fields of a file. `arrow` has those of the Arrow schema in its footer, `refused` the columns
/// that are not read.
pub(super) fn candidates(
    schema: &SchemaDescriptor,
    arrow: &ArrowFields,
    refused: &BTreeMap<usize, String>,
) -> Vec<Candidate> {
    let mut walk = Walk { schema, arrow, refused, next: 0, found: Vec::new() };
    for field in schema.root_schema().get_fields() {
        let above = Above {
            name: field.name().to_owned(),
            is_default: true,
            lists: 0,
            refused: None,
            definition: 0,
            depth: 0,
        };
        walk.visit(field, above);
    }
    walk.found
}

/// What surrounds a field.
#[derive(Clone)]
struct Above {
    name: String,
    is_default: bool,
    lists: usize,
    refused: Option<String>,
    /// Definition level of the innermost list, if it is there.
    definition: i16,
    depth: usize,
}

struct Walk<'a> {
    schema: &'a SchemaDescriptor,
    arrow: &'a ArrowFields,
    /// Why columns are not read, by their number.
    refused: &'a BTreeMap<usize, String>,
    /// Number of the next column.
    next: usize,
    found: Vec<Candidate>,
}

impl Walk<'_> {
    fn visit(&mut self, field: &Type, mut above: Above) {
        above.depth += 1;
        let info = field.get_basic_info();
        let repetition = if info.has_repetition() { info.repetition() } else { Repetition::REQUIRED };
        if repetition == Repetition::REPEATED {
            // Without the annotation of a list, or in one of the two levels of old writers: a list
            // of what the field is.
            above.lists += 1;
        }
        if above.lists == 0 && repetition == Repetition::OPTIONAL {
            above.definition += 1;
        }
        if !field.is_group() {
            let number = self.next;
            self.next += 1;
            let column = match self.refused.get(&number).cloned().or(above.refused.take()) {
                Some(refused) => Err(refused),
                None => self.column(number, &above),
            };
            self.found.push((above.name, above.is_default, column));
            return;
        }
        if above.depth > MAX_DEPTH {
            above.refused = Some("deeply nested groups".to_owned());
        }
        let is = |logical: &LogicalType, converted| {
            info.logical_type_ref() == Some(logical) || info.converted_type() == converted
        };
        if is(&LogicalType::List, ConvertedType::LIST)
            && let [repeated] = field.get_fields()
            && repeated.get_basic_info().has_repetition()
            && repeated.get_basic_info().repetition() == Repetition::REPEATED
        {
            if !repeated.is_group() {
                return self.visit(repeated, above);
            }
            above.lists += 1;
            if let [element] = repeated.get_fields() {
                return self.visit(element, above);
            }
            above.refused.get_or_insert("lists of structures".to_owned());
        } else if is(&LogicalType::Map, ConvertedType::MAP)
            || info.converted_type() == ConvertedType::MAP_KEY_VALUE
        {
            above.refused.get_or_insert("type map".to_owned());
        } else if above.lists > 0 {
            above.refused.get_or_insert("lists of structures".to_owned());
        }
        let is_file = is_encoded_file(field);
        for child in field.get_fields() {
            let is_bytes = is_file && child.name() == "bytes";
            let name = if is_bytes { above.name.clone() } else { format!("{}.{}", above.name, child.name()) };
            let is_default = above.is_default && (is_bytes || !is_file);
            self.visit(child, Above { name, is_default, ..above.clone() });
        }
    }

    fn column(&self, number: usize, above: &Above) -> Result<ParquetField, String> {
        let Above { name, lists, definition: list_definition, .. } = above;
        let column = self.schema.column(number);
        let (physical, info) = (column.physical_type(), column.self_type().get_basic_info());
        let (dtype, numpy, item_bytes) =
            value(physical, info.logical_type_ref(), info.converted_type(), column.type_length())?;
        let (mut shape, mut lengths, mut numpy) = (Vec::new(), Vec::new(), numpy);
        let arrow = self.arrow.fields.get(name);
        if let (Some(found), Physical::INT64) = (arrow.and_then(|field| field.numpy.as_ref()), physical)
            && found.starts_with("<m8")
            && dtype == Some(Dtype::Int64)
        {
            numpy = Some(found.clone());
        }
        if let Some(found) = self.arrow.lists.get(name).filter(|_| *lists > 0) {
            let dense = arrow
                .and_then(|field| if let Layout::Dense(shape) = &field.layout { Some(shape) } else { None });
            if let Some(dense) = dense.filter(|_| found.len() == *lists) {
                let axes = dense.len() - usize::from(arrow.is_some_and(|field| field.numpy.is_some()));
                (shape, lengths) = (dense[..axes].to_vec(), found.clone());
            }
        }
        let is_ragged = *lists > 0 && lengths.is_empty();
        let field = match (item_bytes, dtype, numpy) {
            (0, ..) if *lists > 0 => return Err("lists of strings".to_owned()),
            (0, ..) => Field::new(name, Dtype::Uint8, Layout::Ragged),
            _ if is_ragged && *lists > 1 => return Err("lists of lists of any length".to_owned()),
            (_, _, Some(numpy)) if is_ragged => return Err(format!("lists of {numpy}")),
            (_, _, Some(numpy)) => {
                shape.push(u64::from(item_bytes));
                Field { numpy: Some(numpy), ..Field::new(name, Dtype::Uint8, Layout::Dense(shape)) }
            }
            (_, Some(dtype), None) if is_ragged => Field::new(name, dtype, Layout::Ragged),
            (_, Some(dtype), None) => Field::new(name, dtype, Layout::Dense(shape)),
            (_, None, None) => return Err(format!("type {physical}")),
        };
        Ok(ParquetField {
            number,
            field,
            physical,
            item_bytes,
            definition: column.max_def_level(),
            repetition: column.max_rep_level(),
            list_definition: *list_definition,
            lists: lengths,
            nulls: ParquetNulls::None,
        })
    }
}

/// Whether a group is an image or audio of Hugging Face: the bytes of a file, and its path.
fn is_encoded_file(group: &Type) -> bool {
    let [first, second] = group.get_fields() else { return false };
    let is_binary = |field: &Type| !field.is_group() && field.get_physical_type() == Physical::BYTE_ARRAY;
    let named = |name: &str| [first, second].into_iter().find(|field| field.name() == name);
    // Where no row has a path, its type may be that of nulls.
    let is_null = |field: &Type| field.get_basic_info().logical_type_ref() == Some(&LogicalType::Unknown);
    named("bytes").is_some_and(|field| is_binary(field))
        && named("path").is_some_and(|field| is_binary(field) || is_null(field))
}

/// What the integers of a column count, where their type does not say: days, or a unit of time.
pub(super) fn unit(column: &ColumnDescriptor) -> Option<&'static str> {
    match (column.logical_type_ref(), column.converted_type()) {
        (Some(LogicalType::Date), _) | (None, ConvertedType::DATE) => Some("days"),
        (Some(LogicalType::Time(time)), _) => Some(match time.unit {
            TimeUnit::MILLIS => "ms",
            TimeUnit::MICROS => "us",
            TimeUnit::NANOS => "ns",
        }),
        (None, ConvertedType::TIME_MILLIS) => Some("ms"),
        (None, ConvertedType::TIME_MICROS) => Some("us"),
        _ => None,
    }
}

/// Type, numpy's name for it, and length of a value [bytes]; 0 for byte strings.
fn value(
    physical: Physical,
    logical: Option<&LogicalType>,
    converted: ConvertedType,
    length: i32,
) -> Result<(Option<Dtype>, Option<String>, u32), String> {
    let own = |dtype: Dtype| Ok((Some(dtype), None, dtype.item_bytes() as u32));
    let decimal = || Err("type decimal".to_owned());
    if matches!(logical, Some(LogicalType::Decimal(_))) || converted == ConvertedType::DECIMAL {
        return decimal();
    }
    if matches!(logical, Some(LogicalType::Unknown)) {
        return Err("type null".to_owned());
    }
    match physical {
        Physical::BOOLEAN => own(Dtype::Bool),
        Physical::INT32 => match (logical, converted) {
            (_, ConvertedType::INT_8) => own(Dtype::Int8),
            (_, ConvertedType::INT_16) => own(Dtype::Int16),
            (_, ConvertedType::UINT_8) => own(Dtype::Uint8),
            (_, ConvertedType::UINT_16) => own(Dtype::Uint16),
            (_, ConvertedType::UINT_32) => own(Dtype::Uint32),
            (Some(LogicalType::Integer(int)), _) => match (int.bit_width, int.is_signed) {
                (8, true) => own(Dtype::Int8),
                (16, true) => own(Dtype::Int16),
                (8, false) => own(Dtype::Uint8),
                (16, false) => own(Dtype::Uint16),
                (32, false) => own(Dtype::Uint32),
                _ => own(Dtype::Int32),
            },
            _ => own(Dtype::Int32),
        },
        Physical::INT64 => {
            let times = |unit| Ok((None, Some(format!("<M8[{unit}]")), 8));
            match (logical, converted) {
                (Some(LogicalType::Timestamp(timestamp)), _) => match timestamp.unit {
                    TimeUnit::MILLIS => times("ms"),
                    TimeUnit::MICROS => times("us"),
                    TimeUnit::NANOS => times("ns"),
                },
                (_, ConvertedType::TIMESTAMP_MILLIS) => times("ms"),
                (_, ConvertedType::TIMESTAMP_MICROS) => times("us"),
                (_, ConvertedType::UINT_64) => own(Dtype::Uint64),
                (Some(LogicalType::Integer(int)), _) if !int.is_signed => own(Dtype::Uint64),
                _ => own(Dtype::Int64),
            }
        }
        Physical::INT96 => Err("type INT96".to_owned()),
        Physical::FLOAT => own(Dtype::Float32),
        Physical::DOUBLE => own(Dtype::Float64),
        Physical::BYTE_ARRAY => Ok((Some(Dtype::Uint8), None, 0)),
        Physical::FIXED_LEN_BYTE_ARRAY if converted == ConvertedType::INTERVAL => {
            Err("type interval".to_owned())
        }
        Physical::FIXED_LEN_BYTE_ARRAY if logical == Some(&LogicalType::Float16) && length == 2 => {
            own(Dtype::Float16)
        }
        Physical::FIXED_LEN_BYTE_ARRAY => match u32::try_from(length) {
            Ok(length) if length > 0 => Ok((None, Some(format!("|V{length}")), length)),
            _ => Err(format!("byte arrays of length {length}")),
        },
    }
}
