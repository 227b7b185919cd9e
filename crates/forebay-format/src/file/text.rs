//! Files of text: tables, JSON, and anything else in lines. Their rows have no fixed place that
//! could be read alone, so they are refused, with the command that makes Parquet of them.

use std::path::Path;

/// What a text holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Text {
    /// An object or a list of JSON.
    Json,
    /// An object of JSON in each line.
    JsonLines,
    /// Rows of values with commas between them.
    Csv,
    /// Rows of values with tabulators between them.
    Tsv,
    /// Anything else.
    Plain,
}

/// Mark at the begin of some texts in UTF-8.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

impl Text {
    /// What a file that begins with these bytes holds; `None` where they are not text in UTF-8.
    pub(crate) fn of(head: &[u8]) -> Option<Self> {
        let head = head.strip_prefix(BYTE_ORDER_MARK).unwrap_or(head);
        let text = match std::str::from_utf8(head) {
            Ok(text) => text,
            // The last character may be cut.
            Err(error) if error.error_len().is_none() => {
                std::str::from_utf8(&head[..error.valid_up_to()]).ok()?
            }
            Err(_) => return None,
        };
        let is_letter = |letter: char| !letter.is_control() || matches!(letter, '\t' | '\n' | '\r' | '\x0c');
        if text.is_empty() || !text.chars().all(is_letter) {
            return None;
        }
        let mut lines = text.lines();
        let (first, second) = (lines.next().unwrap_or_default(), lines.next().unwrap_or_default());
        Some(match text.trim_start().chars().next() {
            Some('{') if first.trim_end().ends_with('}') || second.starts_with('{') => Self::JsonLines,
            Some('{' | '[') => Self::Json,
            _ if first.contains('\t') => Self::Tsv,
            _ if first.contains(',') && second.contains(',') => Self::Csv,
            _ => Self::Plain,
        })
    }

    /// Its name.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Json => "JSON",
            Self::JsonLines => "JSON in lines",
            Self::Csv => "a table of text (CSV)",
            Self::Tsv => "a table of text (TSV)",
            Self::Plain => "text",
        }
    }

    /// Advice to the user.
    pub(crate) fn hint(self, path: &Path) -> String {
        let to = path.with_extension("parquet");
        // A line may be longer than what is looked at.
        let is_lines = path.extension().is_some_and(|ending| ending == "jsonl" || ending == "ndjson");
        let (path, to) = (path.display(), to.display());
        let convert = |call: String| {
            format!(
                "make a Parquet file of it once: python -c \"import pandas; pandas.{call}.to_parquet('{to}')\""
            )
        };
        let of_files = format!("forebay.manifest('{path}') opens the files that it lists");
        match self {
            Self::Json if !is_lines => convert(format!("read_json('{path}')")),
            Self::Json | Self::JsonLines => format!("{}; {of_files}", convert(format!("read_json('{path}', lines=True)"))),
            Self::Csv => format!("{}; {of_files}", convert(format!("read_csv('{path}')"))),
            Self::Tsv => format!("{}; {of_files}", convert(format!("read_csv('{path}', sep='\\t')"))),
            Self::Plain => "a directory of texts is a dataset of one sample per file; of samples in lines make a Parquet \
                            file once, as pandas and datasets (load_dataset(\"text\")) do"
                .to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_told_apart_by_their_first_lines() {
        let of = |text: &str| Text::of(text.as_bytes());
        assert_eq!(of("id,label\n1,cat\n"), Some(Text::Csv));
        assert_eq!(of("\u{feff}id,label\r\n1,cat\r\n"), Some(Text::Csv));
        assert_eq!(of("id\tlabel\n1\tcat\n"), Some(Text::Tsv));
        assert_eq!(of("{\"id\": 1}\n{\"id\": 2}\n"), Some(Text::JsonLines));
        assert_eq!(of("{\"id\": 1}\n"), Some(Text::JsonLines));
        assert_eq!(of("{\"text\": \"a line that is longer than what is read"), Some(Text::Json));
        assert_eq!(of("{\n \"id\": 1\n}\n"), Some(Text::Json));
        assert_eq!(of(" [1, 2]"), Some(Text::Json));
        assert_eq!(of("It was a dark, stormy night.\nAnd then.\n"), Some(Text::Plain));
        assert_eq!(of("Übung"), Some(Text::Plain));
        assert_eq!(Text::of(&"Übung Ü".as_bytes()[..8]), Some(Text::Plain), "a character that is cut");
    }

    #[test]
    fn what_is_not_utf_8_or_has_control_characters_is_no_text() {
        for bytes in [&b""[..], b"\0\0", b"abc\0", b"\xffabc", b"a\xc3b", b"\x1b[1m"] {
            assert_eq!(Text::of(bytes), None, "{bytes:?}");
        }
    }
}
