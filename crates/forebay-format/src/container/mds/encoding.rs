//! Encodings of the columns of MDS: which numbers or bytes the values of a column are.

use forebay_types::Dtype;

use crate::container::offset_table::{ArrayHeader, Elements, Value};

/// The values of a column with this encoding; `Err` has what is wrong with it.
///
/// Of encodings that are not numbers, such as `jpeg`, `json`, `str` and those that a program has
/// added, the bytes are delivered as they are.
pub(super) fn value(name: &str, encoding: &str, bytes: Option<u64>) -> Result<Value, String> {
    let found = match encoding.split_once(':').unwrap_or((encoding, "")) {
        ("ndarray", rest) => array(name, rest)?,
        ("int", "") => Value::fixed(name, Dtype::Int64, Vec::new()),
        (scalar, "") => dtype(scalar).and_then(|dtype| Value::fixed(name, dtype, Vec::new())),
        _ => None,
    };
    let Some(value) = found else { return Ok(Value::opaque(name, bytes)) };
    if value.bytes == bytes {
        return Ok(value);
    }
    let told =
        |bytes: Option<u64>| bytes.map_or("no fixed size".to_owned(), |bytes| format!("{bytes} bytes"));
    Err(format!("{encoding:?} with {} (expected {})", told(bytes), told(value.bytes)))
}

/// Arrays, with what stands after `ndarray:`.
fn array(name: &str, rest: &str) -> Result<Option<Value>, String> {
    let (type_name, shape) = rest.split_once(':').unwrap_or((rest, ""));
    let known = match type_name {
        "" => None,
        found => Some(dtype(found).ok_or_else(|| format!("arrays of {found:?}"))?),
    };
    if let (Some(dtype), false) = (known, shape.is_empty()) {
        let extents: Result<Vec<u64>, _> = shape.split(',').map(str::parse).collect();
        let extents = extents.map_err(|_| format!("the shape {shape:?}"))?;
        let is_sound = extents.iter().all(|extent| *extent > 0);
        let value = Value::fixed(name, dtype, extents).filter(|_| is_sound);
        return value.map(Some).ok_or_else(|| format!("the shape {shape:?}"));
    }
    if !shape.is_empty() {
        return Err(format!("the shape {shape:?} without a type"));
    }
    let elements = Elements::Headed(ArrayHeader::Mds(known));
    Ok(Some(Value { name: name.to_owned(), bytes: None, elements }))
}

/// The types of scalars and of the elements of arrays.
fn dtype(name: &str) -> Option<Dtype> {
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
    ALL.into_iter().find(|dtype| dtype.name() == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_a_type_and_all_else_is_bytes() {
        for (encoding, bytes, expected) in [
            ("int", Some(8), "Fixed(Int64, [])"),
            ("uint16", Some(2), "Fixed(Uint16, [])"),
            ("ndarray:float32:3,4", Some(48), "Fixed(Float32, [3, 4])"),
            ("ndarray:int32", None, "Headed(Mds(Some(Int32)))"),
            ("ndarray", None, "Headed(Mds(None))"),
            ("jpeg", None, "Varying(Uint8)"),
            ("str_int", None, "Varying(Uint8)"),
            ("list[pil]", None, "Varying(Uint8)"),
            ("of_a_program", Some(5), "Varying(Uint8)"),
        ] {
            let value = value("x", encoding, bytes).expect("sound");
            assert_eq!(
                (format!("{:?}", value.elements).as_str(), value.bytes),
                (expected, bytes),
                "{encoding}"
            );
        }
    }

    #[test]
    fn sizes_and_shapes_that_contradict_the_encoding_are_refused() {
        for (encoding, bytes) in [
            ("int", None),
            ("int", Some(4)),
            ("ndarray:float32:3", Some(13)),
            ("ndarray:float32:0", Some(0)),
            ("ndarray:float32:3,x", Some(12)),
            ("ndarray:float32:4294967296,4294967296", Some(0)),
            ("ndarray:complex64", None),
            ("ndarray::3", None),
            ("ndarray", Some(8)),
        ] {
            assert!(value("x", encoding, bytes).is_err(), "{encoding}");
        }
    }
}
