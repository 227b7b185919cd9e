//! The leaves of a sample of `LitData`: their names, by the tree that the sample was, and their
//! elements, by the serializers that wrote them.

use forebay_types::Dtype;
use serde::Deserialize;

use crate::container::offset_table::{ArrayHeader, Elements, Value};

/// Name of the field of samples that are one leaf.
const DATA: &str = "data";

/// Deepest tree that is read.
const MAX_DEPTH: usize = 64;

/// A node of the tree, as torch's pytree writes it.
#[derive(Deserialize)]
struct TreeSpec {
    #[serde(rename = "type")]
    kind: Option<String>,
    /// JSON within the JSON: the keys of a dict.
    context: Option<serde_json::Value>,
    children_spec: Vec<TreeSpec>,
}

/// The names of the leaves, in the order of their values; `Err` has what is wrong with the tree.
///
/// The keys of nested dicts, and the numbers of the elements of lists, are joined by dots.
pub(super) fn names(spec: &str) -> Result<Vec<String>, String> {
    let (protocol, root): (u64, TreeSpec) = serde_json::from_str(spec).map_err(|error| error.to_string())?;
    if protocol != 1 {
        return Err(format!("protocol {protocol} (expected 1)"));
    }
    let mut names = Vec::new();
    name_leaves(&root, "", 0, &mut names)?;
    if let [only] = &mut names[..]
        && only.is_empty()
    {
        DATA.clone_into(only);
    }
    Ok(names)
}

fn name_leaves(node: &TreeSpec, before: &str, depth: usize, names: &mut Vec<String>) -> Result<(), String> {
    let Some(kind) = &node.kind else {
        names.push(before.to_owned());
        return Ok(());
    };
    if depth == MAX_DEPTH {
        return Err(format!("more than {MAX_DEPTH} levels"));
    }
    let keys = if kind.ends_with("Dict") || kind.ends_with("dict") {
        keys(node)?
    } else if matches!(kind.as_str(), "builtins.list" | "builtins.tuple") {
        (0..node.children_spec.len()).map(|number| number.to_string()).collect()
    } else {
        return Err(format!("a node of type {kind:?} (expected dict, list or tuple)"));
    };
    if keys.len() != node.children_spec.len() {
        return Err(format!("{} children for {} keys", node.children_spec.len(), keys.len()));
    }
    for (key, child) in keys.iter().zip(&node.children_spec) {
        let name = if before.is_empty() { key.clone() } else { format!("{before}.{key}") };
        name_leaves(child, &name, depth + 1, names)?;
    }
    Ok(())
}

/// The keys of a dict.
fn keys(node: &TreeSpec) -> Result<Vec<String>, String> {
    let parsed = match &node.context {
        Some(serde_json::Value::String(text)) => serde_json::from_str(text).ok(),
        other => other.clone(),
    };
    let Some(serde_json::Value::Array(keys)) = parsed else { return Err("a dict without keys".to_owned()) };
    Ok(keys.iter().map(|key| key.as_str().map_or_else(|| key.to_string(), str::to_owned)).collect())
}

/// The value that a serializer wrote; all have their length before them. `Err` has what is wrong.
///
/// Of all that is no number, such as `jpeg`, `pil`, `json` and serializers of a program, the bytes
/// are delivered as they are.
pub(super) fn value(name: &str, serializer: &str) -> Result<Value, String> {
    let (kind, code) = serializer.split_once(':').unwrap_or((serializer, ""));
    let typed = |dtype: fn(u64) -> Option<Dtype>| {
        let known = code.parse().ok().and_then(dtype);
        known.map(Elements::Varying).ok_or_else(|| format!("elements of type {code:?}"))
    };
    let elements = match kind {
        "int" => Elements::Fixed(Dtype::Int64, Vec::new()),
        "float" => Elements::Fixed(Dtype::Float64, Vec::new()),
        "bool" => Elements::Fixed(Dtype::Bool, Vec::new()),
        "no_header_tensor" => typed(torch_dtype)?,
        "no_header_numpy" => typed(numpy_dtype)?,
        "tensor" => Elements::Headed(ArrayHeader::LitData { dtype: torch_dtype, is_big_endian: true }),
        "numpy" => Elements::Headed(ArrayHeader::LitData { dtype: numpy_dtype, is_big_endian: false }),
        _ => Elements::Varying(Dtype::Uint8),
    };
    Ok(Value { name: name.to_owned(), bytes: None, elements })
}

/// The type of the tokens of a file for `TokensLoader`.
pub(super) fn token_dtype(serializer: &str) -> Option<Dtype> {
    match value("", serializer).ok()?.elements {
        Elements::Varying(dtype) if serializer.starts_with("no_header_") => Some(dtype),
        _ => None,
    }
}

/// Torch's types by their numbers in `LitData`; complex and `bfloat16` have no type here.
fn torch_dtype(code: u64) -> Option<Dtype> {
    Some(match code {
        0 | 1 => Dtype::Float32,
        2 | 3 => Dtype::Float64,
        8 | 9 => Dtype::Float16,
        11 => Dtype::Uint8,
        12 => Dtype::Int8,
        13 | 14 => Dtype::Int16,
        15 | 16 => Dtype::Int32,
        17 | 18 => Dtype::Int64,
        19 => Dtype::Bool,
        20 => Dtype::Uint16,
        _ => return None,
    })
}

/// Numpy's types by their numbers in `LitData`.
fn numpy_dtype(code: u64) -> Option<Dtype> {
    const ALL: [Dtype; 11] = [
        Dtype::Int8,
        Dtype::Int16,
        Dtype::Int32,
        Dtype::Int64,
        Dtype::Uint8,
        Dtype::Uint16,
        Dtype::Uint32,
        Dtype::Uint64,
        Dtype::Float16,
        Dtype::Float32,
        Dtype::Float64,
    ];
    if code == 13 {
        return Some(Dtype::Bool);
    }
    ALL.get(usize::try_from(code).ok()?).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEAF: &str = r#"{"type": null, "context": null, "children_spec": []}"#;

    fn dict(keys: &str, children: &[&str]) -> String {
        let children = children.join(", ");
        format!(r#"{{"type": "builtins.dict", "context": "{keys}", "children_spec": [{children}]}}"#)
    }

    #[test]
    fn leaves_are_named_by_the_way_to_them() {
        let inner = dict(r#"[\"a\", 7]"#, &[LEAF, LEAF]);
        let list =
            format!(r#"{{"type": "builtins.list", "context": "null", "children_spec": [{LEAF}, {inner}]}}"#);
        let spec = dict(r#"[\"image\", \"meta\"]"#, &[LEAF, &list]);
        assert_eq!(
            names(&format!("[1, {spec}]")),
            Ok(["image", "meta.0", "meta.1.a", "meta.1.7"].map(str::to_owned).to_vec())
        );
        assert_eq!(names(&format!("[1, {LEAF}]")), Ok(vec!["data".to_owned()]));
    }

    #[test]
    fn trees_that_cannot_be_named_are_refused() {
        let node = r#"{"type": "mine.Node", "context": null, "children_spec": []}"#;
        let deep = (0..100).fold(LEAF.to_owned(), |inner, _| {
            format!(r#"{{"type": "builtins.list", "context": null, "children_spec": [{inner}]}}"#)
        });
        for spec in [
            format!("[2, {LEAF}]"),
            format!("[1, {node}]"),
            format!("[1, {}]", dict(r#"[\"a\"]"#, &[LEAF, LEAF])),
            format!("[1, {}]", dict("null", &[LEAF])),
            format!("[1, {deep}]"),
            "[1".to_owned(),
        ] {
            assert!(names(&spec).is_err(), "{spec}");
        }
    }

    #[test]
    fn types_that_numpy_lacks_are_refused() {
        for (serializer, expected) in [
            ("no_header_tensor:16", "Varying(Int32)"),
            ("no_header_numpy:6", "Varying(Uint32)"),
            ("int", "Fixed(Int64, [])"),
            ("jpeg", "Varying(Uint8)"),
            ("video:mp4", "Varying(Uint8)"),
        ] {
            assert_eq!(format!("{:?}", value("x", serializer).expect("sound").elements), expected);
        }
        for serializer in ["no_header_tensor:10", "no_header_tensor:", "no_header_numpy:14"] {
            assert!(value("x", serializer).is_err(), "{serializer}");
        }
        assert_eq!(token_dtype("no_header_tensor:20"), Some(Dtype::Uint16));
        assert_eq!(token_dtype("bytes"), None);
    }
}
