//! The columns of a schema: each field of a sample, with the levels of lists and structures around
//! its values.
//!
//! Structures become fields with dotted names. Lists of one length become axes of a shape; a list
//! of numbers of any length is a ragged field. A structure of `bytes` and `path`, which Hugging
//! Face makes of images and audio, becomes one field with the bytes.

use forebay_types::{Dtype, Field, Layout};
use serde::Deserialize;

use crate::container::columns::mask_name;

use super::schema::{DictionaryIndex, FieldKind, SchemaField};

/// What becomes of the nulls of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LeafNulls {
    /// They are errors.
    Refused,
    /// Zeros or an empty value, which the mask tells from values.
    Masked,
    /// The column is the mask: of each row whether it has a value.
    Mask,
}

/// A field of samples.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Leaf {
    pub(super) field: Field,
    /// From the outermost to the values.
    pub(super) levels: Vec<NestingLevel>,
    /// What its integers count, where their type does not say.
    pub(super) unit: Option<&'static str>,
    pub(super) nulls: LeafNulls,
}

impl Leaf {
    /// Whether a mask can tell the rows that are null. Of arrays, lists of one length, none does.
    pub(super) fn may_be_masked(&self) -> bool {
        let is_axis = |level: &NestingLevel| {
            matches!(level.kind, NestingKind::FixedList { .. } | NestingKind::List { length: Some(_), .. })
        };
        !self.levels.iter().any(is_axis)
    }
}

/// One of the nested arrays of a column.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct NestingLevel {
    /// Number of its node in a batch.
    pub(super) node: usize,
    pub(super) kind: NestingKind,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum NestingKind {
    Struct,
    FixedList {
        length: u64,
    },
    /// Lists that all have this length, or any.
    List {
        is_large: bool,
        length: Option<u64>,
    },
    Fixed {
        item_bytes: u64,
    },
    Bool,
    Binary {
        is_large: bool,
    },
    /// Numbers of entries of a dictionary, whose values are such a column.
    Dictionary {
        index: DictionaryIndex,
        values: Box<Leaf>,
        buffers: Vec<(u32, bool)>,
    },
}

/// A field that a file offers.
#[derive(Clone, Debug)]
pub(super) struct Candidate {
    pub(super) name: String,
    /// Whether it is delivered without being named.
    pub(super) is_default: bool,
    /// Whether it, or a structure around it, may be null.
    is_nullable: bool,
    /// The column, or what is not read.
    pub(super) leaf: Result<Leaf, String>,
}

/// A field and the number of its node.
struct Numbered<'a> {
    field: &'a SchemaField,
    node: usize,
    children: Vec<Numbered<'a>>,
}

/// Numbers nodes as batches do: parents before children. `buffers` gets the number of buffers of
/// each.
fn number<'a>(fields: &'a [SchemaField], buffers: &mut Vec<(u32, bool)>) -> Vec<Numbered<'a>> {
    let one = |field: &'a SchemaField| {
        let node = buffers.len();
        if field.dictionary.is_some() {
            buffers.push((2, false));
            return Numbered { field, node, children: Vec::new() };
        }
        buffers.push(field.kind.buffers());
        Numbered { field, node, children: number(&field.children, buffers) }
    };
    fields.iter().map(one).collect()
}

/// All fields of a schema, and the number of buffers of each node.
pub(super) fn candidates(fields: &[SchemaField]) -> (Vec<Candidate>, Vec<(u32, bool)>) {
    let mut buffers = Vec::new();
    let numbered = number(fields, &mut buffers);
    let mut found = Vec::new();
    for field in &numbered {
        find(field, field.field.name.clone(), (&[], false), true, &mut found);
    }
    (found, buffers)
}

/// The fields, and after each that may have nulls that of its mask. Arrays have none.
pub(super) fn with_masks(candidates: Vec<Candidate>) -> Vec<Candidate> {
    let mut found = Vec::with_capacity(2 * candidates.len());
    for mut candidate in candidates {
        let masked =
            candidate.leaf.as_mut().ok().filter(|leaf| candidate.is_nullable && leaf.may_be_masked());
        let mask = masked.map(|leaf| {
            leaf.nulls = LeafNulls::Masked;
            let name = mask_name(&leaf.field.name);
            let field = Field::new(&name, Dtype::Bool, Layout::Dense(Vec::new()));
            Leaf { field, unit: None, nulls: LeafNulls::Mask, ..leaf.clone() }
        });
        let Candidate { is_default, is_nullable, .. } = candidate;
        found.push(candidate);
        found.extend(mask.map(|mask| Candidate {
            name: mask.field.name.clone(),
            is_default,
            is_nullable,
            leaf: Ok(mask),
        }));
    }
    found
}

fn find(
    field: &Numbered<'_>,
    name: String,
    (above, is_nullable): (&[NestingLevel], bool),
    is_default: bool,
    found: &mut Vec<Candidate>,
) {
    let is_nullable = is_nullable || field.field.is_nullable;
    let is_struct = field.field.kind == FieldKind::Struct && field.field.dictionary.is_none();
    if !is_struct {
        let leaf = column(field, &name, above);
        found.push(Candidate { name, is_default, is_nullable, leaf });
        return;
    }
    let mut levels = above.to_vec();
    levels.push(NestingLevel { node: field.node, kind: NestingKind::Struct });
    let is_file = is_encoded_file(field.field);
    for child in &field.children {
        let child_name = &child.field.name;
        if is_file && child_name == "bytes" {
            find(child, name.clone(), (&levels, is_nullable), is_default, found);
        } else {
            let name = format!("{name}.{child_name}");
            find(child, name, (&levels, is_nullable), is_default && !is_file, found);
        }
    }
}

/// Whether a structure is an image or audio of Hugging Face: the bytes of a file, and its path.
fn is_encoded_file(field: &SchemaField) -> bool {
    let [first, second] = &field.children[..] else { return false };
    let is_binary = |field: &SchemaField| matches!(field.kind, FieldKind::Binary { .. });
    let named = |name: &str| [first, second].into_iter().find(|field| field.name == name);
    // Where no row has a path, its type may be that of nulls.
    let is_path =
        |field: &SchemaField| is_binary(field) || matches!(field.kind, FieldKind::Other { name: "null", .. });
    named("bytes").is_some_and(is_binary) && named("path").is_some_and(is_path)
}

/// The column of a field without structures, or what is not read.
fn column(field: &Numbered<'_>, name: &str, above: &[NestingLevel]) -> Result<Leaf, String> {
    let mut levels = above.to_vec();
    let mut shape = declared_shape(field.field)?;
    let (is_declared, mut axes, mut is_ragged) = (shape.is_some(), Vec::new(), false);
    let mut next = field;
    let values = loop {
        let SchemaField { kind, dictionary, children, .. } = next.field;
        let mut push = |kind| levels.push(NestingLevel { node: next.node, kind });
        if let Some(index) = dictionary {
            let plain = SchemaField { dictionary: None, ..next.field.clone() };
            let mut buffers = Vec::new();
            let numbered = number(std::slice::from_ref(&plain), &mut buffers);
            if !children.is_empty() || !axes.is_empty() || is_ragged {
                return Err("a dictionary in lists, or of lists or structures".to_owned());
            }
            let values = Box::new(column(&numbered[0], name, &[])?);
            let (field, unit) = (values.field.clone(), values.unit);
            push(NestingKind::Dictionary { index: *index, values, buffers });
            return Ok(Leaf { field, levels, unit, nulls: LeafNulls::Refused });
        }
        match kind {
            FieldKind::FixedList { length } => {
                axes.push(*length);
                push(NestingKind::FixedList { length: *length });
                next = &next.children[0];
            }
            FieldKind::List { is_large } => {
                let length = shape.as_ref().and_then(|shape| shape.get(axes.len()).copied());
                if is_ragged || !is_declared && !axes.is_empty() {
                    return Err("lists of lists of any length".to_owned());
                }
                match length {
                    Some(length) => axes.push(length),
                    None => is_ragged = true,
                }
                push(NestingKind::List { is_large: *is_large, length });
                next = &next.children[0];
            }
            FieldKind::Struct => return Err("lists of structures".to_owned()),
            FieldKind::Other { name, .. } => return Err(format!("type {name}")),
            FieldKind::Fixed { dtype, numpy, item_bytes, unit } => {
                push(NestingKind::Fixed { item_bytes: u64::from(*item_bytes) });
                break Some((*dtype, numpy.clone(), u64::from(*item_bytes), *unit));
            }
            FieldKind::Bool => {
                push(NestingKind::Bool);
                break Some((Some(Dtype::Bool), None, 1, None));
            }
            FieldKind::Binary { is_large } => {
                push(NestingKind::Binary { is_large: *is_large });
                break None;
            }
        }
    };
    if is_ragged && !axes.is_empty() {
        return Err("lists of arrays".to_owned());
    }
    let Some((dtype, numpy, item_bytes, unit)) = values else {
        let is_plain = !is_ragged && axes.is_empty();
        let field = Field::new(name, Dtype::Uint8, Layout::Ragged);
        return if is_plain {
            Ok(Leaf { field, levels, unit: None, nulls: LeafNulls::Refused })
        } else {
            Err("lists of strings".to_owned())
        };
    };
    if let Some(shape) = shape.take() {
        if shape.iter().product::<u64>() != axes.iter().product::<u64>() {
            return Err(format!("shape {shape:?} of lists {axes:?}"));
        }
        axes = shape;
    }
    if axes.contains(&0) {
        return Err(format!("samples of no bytes, shape {axes:?}"));
    }
    let field = match (dtype, numpy, is_ragged) {
        (Some(dtype), None, true) => Field::new(name, dtype, Layout::Ragged),
        (Some(dtype), None, false) => Field::new(name, dtype, Layout::Dense(axes)),
        (_, Some(numpy), false) => {
            axes.push(item_bytes);
            Field { numpy: Some(numpy), ..Field::new(name, Dtype::Uint8, Layout::Dense(axes)) }
        }
        (_, numpy, _) => return Err(format!("lists of {}", numpy.unwrap_or_default())),
    };
    let is_small =
        field.layout == Layout::Ragged || field.sample_bytes().is_some_and(|bytes| bytes < 1 << 40);
    if is_small {
        Ok(Leaf { field, levels, unit, nulls: LeafNulls::Refused })
    } else {
        Err(format!("shape of {:?}", field.layout))
    }
}

/// The shape that an extension type declares for nested lists.
fn declared_shape(field: &SchemaField) -> Result<Option<Vec<u64>>, String> {
    #[derive(Deserialize)]
    struct Tensor {
        shape: Vec<u64>,
        #[serde(default)]
        permutation: Option<Vec<u64>>,
    }
    let (name, text) = (&field.extension.0[..], &field.extension.1[..]);
    if name == "arrow.fixed_shape_tensor" {
        let tensor: Tensor = serde_json::from_str(text).map_err(|_| format!("a tensor of type {text}"))?;
        let is_plain = tensor.permutation.is_none_or(|order| order.is_sorted());
        return if is_plain { Ok(Some(tensor.shape)) } else { Err(format!("a permuted tensor {text}")) };
    }
    let is_array = |digit| name == format!("datasets.features.features.Array{digit}DExtensionType");
    if !(2..=5).any(is_array) {
        return Ok(None);
    }
    let (shape, _): (Vec<Option<u64>>, String) =
        serde_json::from_str(text).map_err(|_| format!("an array of type {text}"))?;
    let fixed: Option<Vec<u64>> = shape.into_iter().collect();
    fixed.map(Some).ok_or_else(|| format!("an array without a fixed shape, {text}"))
}
