//! Descriptions in JSON, as some formats keep them beside their files or within.

use std::ops::Range;

use serde::de::DeserializeOwned;

use super::Input;
use crate::Error;

/// Longest description that is read \[bytes\]: a million shards of 250 bytes each.
const MAX_BYTES: u64 = 256 << 20;

/// Reads the JSON in these bytes of a file; `what` names it in errors.
pub(crate) fn read_json<T: DeserializeOwned>(
    input: &Input,
    place: Range<u64>,
    what: &str,
) -> Result<T, Error> {
    let length = place.end.saturating_sub(place.start);
    if length > MAX_BYTES {
        let found = format!("{length} bytes at offset {}", place.start);
        return Err(input.unsupported(format!("{what} of more than {MAX_BYTES} bytes"), found, ""));
    }
    let mut text = vec![0; length as usize];
    input.read(place.start, &mut text, what)?;
    parse_json(input, place.start, &text, what)
}

/// The same of bytes that were read from `start` on.
pub(crate) fn parse_json<T: DeserializeOwned>(
    input: &Input,
    start: u64,
    text: &[u8],
    what: &str,
) -> Result<T, Error> {
    serde_json::from_slice(text).map_err(|error| {
        let offset = start + offset_of(text, error.line(), error.column());
        // The error ends with the place, which the offset says.
        let found = error.to_string();
        let found = found.split(" at line ").next().unwrap_or_default();
        input.corrupt(offset, what, "JSON of that kind", found)
    })
}

/// The offset of a line and a column, both counted from 1.
fn offset_of(text: &[u8], line: usize, column: usize) -> u64 {
    let before: usize =
        text.split_inclusive(|byte| *byte == b'\n').take(line.saturating_sub(1)).map(<[u8]>::len).sum();
    (before + column.saturating_sub(1)).min(text.len()) as u64
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use super::*;

    fn read(text: &str) -> Result<Vec<u8>, String> {
        let input =
            Input::from_source(Path::new("x"), Arc::new(text.as_bytes().to_vec())).expect("in memory");
        read_json(&input, 1..text.len() as u64, "list").map_err(|error| error.to_string())
    }

    #[test]
    fn errors_name_the_offset_in_the_file() {
        assert_eq!(read("-[1, 2]"), Ok(vec![1, 2]));
        let error = read("-[1,\n2,\n\"a\"]").expect_err("text");
        assert!(
            error.starts_with("x: list at offset 10: expected JSON of that kind, found invalid type"),
            "{error}"
        );
        let error = read("-[1, 300]").expect_err("too large");
        assert!(error.starts_with("x: list at offset 7: "), "{error}");
        let error = read("-[1").expect_err("cut");
        assert!(error.contains("EOF while parsing"), "{error}");
    }
}
