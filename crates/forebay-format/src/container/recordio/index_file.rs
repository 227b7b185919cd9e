//! The list of offsets that `MXNet` writes beside a `RecordIO` file: `train.idx` for `train.rec`.
//!
//! A line per record: a key, a tab, and the offset of the record. It is redundant, but if a list
//! contradicts its file, one of them belongs to another dataset, or is cut.

use std::path::{Path, PathBuf};

use crate::Error;
use crate::file::Input;

/// An index file, and how far it was compared.
#[derive(Debug)]
pub struct IndexFile {
    path: PathBuf,
    /// Offsets of records, and of their lines in the list [both bytes], in the order of the file.
    listed: Vec<(u64, u64)>,
    next: usize,
}

impl IndexFile {
    /// Reads the index file beside the data file `data`; `None` where there is none.
    pub fn beside(data: &Path) -> Result<Option<Self>, Error> {
        let path = data.with_extension("idx");
        if path == data || !path.exists() {
            return Ok(None);
        }
        let input = Input::open(&path)?;
        let mut text = vec![0; input.bytes() as usize];
        input.read(0, &mut text, "RecordIO index")?;
        Self::parse(path, &text).map(Some)
    }

    /// Parses an index file.
    pub fn parse(path: PathBuf, text: &[u8]) -> Result<Self, Error> {
        let mut listed = Vec::new();
        let mut at = 0;
        for line in text.split_inclusive(|byte| *byte == b'\n') {
            let offset = std::str::from_utf8(line)
                .ok()
                .and_then(|line| line.trim_end_matches(['\n', '\r']).rsplit_once('\t'))
                .and_then(|(_, offset)| offset.parse().ok());
            let Some(offset) = offset else {
                let line = String::from_utf8_lossy(line);
                let found: String = line.trim_end().chars().take(40).collect();
                return Err(Error::Corrupt {
                    path,
                    offset: at,
                    what: "RecordIO index: line".to_owned(),
                    expected: "a key, a tab and an offset".to_owned(),
                    found: format!("{found:?}"),
                });
            };
            listed.push((offset, at));
            at += line.len() as u64;
        }
        listed.sort_unstable();
        Ok(Self { path, listed, next: 0 })
    }

    /// The index file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Number of records that are listed.
    pub fn records(&self) -> u64 {
        self.listed.len() as u64
    }

    /// Compares the list with a record of the file that starts at `start`; the records come in the
    /// order of the file.
    pub fn check_record(&mut self, start: u64) -> Result<(), Error> {
        while let Some((listed, line)) = self.listed.get(self.next) {
            if *listed > start {
                break;
            }
            if *listed < start {
                return Err(self.differs(*line, *listed));
            }
            self.next += 1;
        }
        Ok(())
    }

    /// Notes that the file has ended.
    pub fn finish(&self) -> Result<(), Error> {
        self.listed.get(self.next).map_or(Ok(()), |(listed, line)| Err(self.differs(*line, *listed)))
    }

    fn differs(&self, line: u64, listed: u64) -> Error {
        Error::Corrupt {
            path: self.path.clone(),
            offset: line,
            what: "RecordIO index: offset".to_owned(),
            expected: "the start of a record of the data file".to_owned(),
            found: listed.to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<IndexFile, String> {
        IndexFile::parse("x.idx".into(), text.as_bytes()).map_err(|error| error.to_string())
    }

    #[test]
    fn a_list_in_any_order_agrees_with_its_file() {
        for text in ["0\t0\n1\t16\n2\t40\n", "cat\t40\r\ndog\t0", "a\tb\t16\n", "", "7\t16\n8\t16\n"] {
            let mut index = parse(text).expect("sound");
            for start in [0, 16, 40] {
                index.check_record(start).expect("a record");
            }
            index.finish().expect("all seen");
        }
        assert_eq!(parse("0\t0\n1\t16\n").expect("sound").records(), 2);
    }

    #[test]
    fn an_offset_that_is_no_record_is_named_with_its_line() {
        for (text, found) in [("0\t0\n1\t17\n", "17"), ("0\t0\n1\t56\n", "56")] {
            let mut index = parse(text).expect("sound as such");
            let seen = [0, 16, 40]
                .iter()
                .try_for_each(|start| index.check_record(*start))
                .and_then(|()| index.finish());
            let error = seen.expect_err("another file").to_string();
            let wanted = "x.idx: RecordIO index: offset at offset 4: expected the start of a record of the data file, found ";
            assert_eq!(error, format!("{wanted}{found}"));
        }
    }

    #[test]
    fn lines_of_another_kind_are_refused() {
        for text in ["0\t0\n1 16\n", "0\t0\n1\t-16\n", "0\t0\n\n", "0\t0\n1\t18446744073709551616\n"] {
            let error = parse(text).expect_err("no index");
            assert!(
                error.starts_with("x.idx: RecordIO index: line at offset 4: expected a key, a tab"),
                "{error}"
            );
        }
        assert!(IndexFile::parse("x.idx".into(), b"\xff\t0\n").is_err(), "not text");
    }
}
