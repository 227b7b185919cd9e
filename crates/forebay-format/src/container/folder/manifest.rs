//! A folder whose samples a file lists: the files of a column of paths, in that order, with the
//! values of the other columns as fields.
//!
//! Another library reads that file once, before an index is built
//! (`python/forebay/_formats/manifest.py`). [`Container::set_structure`] takes what it found, as
//! untrusted input. The index holds names, sizes, numbers and strings; only the files of samples
//! are read later.
//!
//! What it found is the length of a header (`u64`), the header in JSON ([`ManifestHeader`]), and
//! columns back to back: line numbers, paths, and a column for each label. Numbers have 8 bytes.
//! Strings are the ends of all (`u64` each) and their bytes. All integers are little-endian.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, OnceLock};

use forebay_io::Links;
use forebay_types::{Dtype, Field, Layout};
use rustix::fs::{CWD, FileType, Mode, OFlags};
use rustix::io::Errno;
use serde::Deserialize;
use serde_json::json;

use super::list::{call_all, file_kind};
use super::{DATA, FILES_AT_ONCE, failed};
use crate::container::{Column, Container, ScanSummary, header_digest};
use crate::file::{Input, parse_json};
use crate::index::sidecar::block::OFFSET_LIMIT;
use crate::index::sidecar::names::Directory;
use crate::index::sidecar::{
    IndexEntry, NUMBER_BYTES, NameTableWriter, Part, PartPiece, RecordClass, ShardState, Writer,
};
use crate::{Error, OpenOptions};

/// Bytes at both ends of a manifest that show, with its size and its last change, that it is
/// another \[bytes\].
const DIGESTED_BYTES: u64 = 64 << 10;

/// Longest string that the sidecar holds \[bytes\]: a block of them stays within the limits of its
/// readers.
const MAX_TEXT_BYTES: usize = 512;

/// Numbers that the place of a record can be.
const PLACES: std::ops::Range<i64> = 0..1 << 56;

/// Longest name of a file or directory \[bytes\], as of every file system of Linux.
const MAX_NAME_BYTES: usize = 255;

/// A folder and its manifest.
#[derive(Debug)]
pub(crate) struct ManifestFolder {
    /// The folder, which has no bytes of its own.
    input: Input,
    manifest: Input,
    root: OwnedFd,
    links: Links,
    state: ShardState,
    found: OnceLock<Listed>,
}

/// What a manifest says of its columns.
#[derive(Debug, Deserialize)]
struct ManifestHeader {
    rows: u64,
    /// Number of the field of the bytes of the files, if it is one.
    data: Option<usize>,
    columns: Vec<LabelColumn>,
    /// Warnings for the user.
    warnings: Vec<String>,
}

/// A column of labels.
#[derive(Debug, Deserialize)]
struct LabelColumn {
    name: String,
    kind: ColumnKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum ColumnKind {
    Integer,
    Float,
    Text,
}

/// The rows of a manifest.
#[derive(Debug)]
struct Listed {
    header: ManifestHeader,
    lines: Vec<u8>,
    paths: Texts,
    values: Vec<Values>,
}

#[derive(Debug)]
enum Values {
    /// 8 bytes each.
    Numbers(Vec<u8>),
    Texts(Texts),
}

#[derive(Debug)]
struct Texts {
    ends: Vec<u8>,
    bytes: Vec<u8>,
}

impl Texts {
    fn get(&self, row: usize) -> &[u8] {
        let end = |row: usize| number(&self.ends, row) as usize;
        let start = row.checked_sub(1).map_or(0, end);
        &self.bytes[start..end(row)]
    }
}

/// The number of a row in a column of them.
fn number(column: &[u8], row: usize) -> u64 {
    u64::from_le_bytes(*column[8 * row..].first_chunk().expect("8 bytes, as was checked"))
}

impl ManifestFolder {
    /// Opens a folder and its manifest.
    pub(crate) fn open(path: &Path, options: &OpenOptions) -> Result<Self, Error> {
        let Some(manifest) = &options.manifest else {
            let message = format!("{}: no manifest is named", path.display());
            return Err(Error::Usage { message, hint: String::new() });
        };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::openat(CWD, path, flags, Mode::empty())
            .map_err(|errno| failed("open the folder", path, errno))?;
        let input = Input::from_source(path, Arc::new(Vec::<u8>::new()))?;
        let manifest = Input::open(&manifest.path)?;
        let state = state(&manifest)?;
        let links = if options.follow_symlinks { Links::Followed } else { Links::Refused };
        Ok(Self { input, manifest, root, links, state, found: OnceLock::new() })
    }

    fn found(&self) -> Result<&Listed, Error> {
        self.found.get().ok_or_else(|| Error::Usage {
            message: format!("{}: what the manifest lists is unknown", self.manifest.path().display()),
            hint: "open it from Python, which reads it: forebay.manifest".to_owned(),
        })
    }

    /// The name of a row's file, which leads to something below the folder.
    fn name(&self, listed: &Listed, row: usize) -> Result<PathBuf, Error> {
        let bytes = listed.paths.get(row);
        let path = Path::new(OsStr::from_bytes(bytes));
        let is_name = |part: Component<'_>| match part {
            Component::Normal(name) => name.len() <= MAX_NAME_BYTES,
            _ => false,
        };
        if bytes.is_empty() || bytes.contains(&0) || !path.components().all(is_name) {
            let what = format!("name of a file, in line {},", number(&listed.lines, row));
            let found = format!("\"{}\"", bytes.escape_ascii());
            return Err(self.manifest.corrupt(0, what, "a path below the folder", found));
        }
        Ok(path.components().collect())
    }

    /// Sizes of the files of some rows.
    fn sizes(&self, listed: &Listed, first: usize, names: &[PathBuf]) -> Result<Vec<u64>, Error> {
        let ask = |row: usize| file_kind(&self.root, names[row].as_os_str().as_bytes(), self.links);
        let answers = call_all(names.len(), &ask);
        let missing = answers.iter().filter(|answer| matches!(answer, Err(Errno::NOENT))).count();
        let mut sizes = Vec::with_capacity(names.len());
        for (row, answer) in answers.into_iter().enumerate() {
            let path = self.input.path().join(&names[row]);
            let line = number(&listed.lines, first + row);
            match answer {
                Ok((FileType::RegularFile, bytes)) => sizes.push(bytes),
                Ok((kind, _)) => {
                    let hint = match kind {
                        FileType::Symlink => "follow_symlinks=True follows links, wherever they lead",
                        _ => "correct the line, or remove it",
                    };
                    let what = format!("what line {line} of {} names", self.manifest.path().display());
                    let found = format!("expected a regular file, found {kind:?}");
                    return Err(Error::Unsupported { path, what, found, hint: hint.to_owned() });
                }
                Err(errno) => {
                    let others = match missing {
                        0 | 1 => String::new(),
                        more => format!("; so name {} other lines", more - 1),
                    };
                    let manifest = self.manifest.path().display();
                    let action = format!("find what line {line} of {manifest} names{others}");
                    return Err(failed(&action, &path, errno));
                }
            }
        }
        Ok(sizes)
    }
}

/// The state of a manifest.
fn state(manifest: &Input) -> Result<ShardState, Error> {
    let bytes = manifest.bytes();
    let mut text = bytes.to_le_bytes().to_vec();
    for start in [0, bytes.saturating_sub(DIGESTED_BYTES)] {
        let mut read = vec![0; DIGESTED_BYTES.min(bytes - start) as usize];
        manifest.read(start, &mut read, "manifest")?;
        text.extend(read);
    }
    Ok(header_digest(&text))
}

/// Reads what another library found.
fn read(manifest: &Input, structure: &[u8]) -> Result<Listed, Error> {
    let mut parts = Parts { manifest, rest: structure };
    let length = number(parts.take(Some(8), "length of the header")?, 0);
    let text = parts.take(Some(length), "header")?;
    let header: ManifestHeader = parse_json(manifest, 0, text, "columns of a manifest")?;
    let lines = parts.numbers(header.rows, "line numbers")?;
    let paths = parts.texts(header.rows, "paths")?;
    let mut values = Vec::with_capacity(header.columns.len());
    for column in &header.columns {
        values.push(match column.kind {
            ColumnKind::Text => Values::Texts(parts.texts(header.rows, &column.name)?),
            ColumnKind::Integer | ColumnKind::Float => {
                Values::Numbers(parts.numbers(header.rows, &column.name)?)
            }
        });
    }
    if !parts.rest.is_empty() {
        return Err(parts.wrong("columns", format!("{} bytes more", parts.rest.len())));
    }
    Ok(Listed { header, lines, paths, values })
}

/// The columns that are not read yet.
struct Parts<'a> {
    manifest: &'a Input,
    rest: &'a [u8],
}

impl<'a> Parts<'a> {
    fn wrong(&self, what: &str, found: String) -> Error {
        self.manifest.corrupt(0, what, "columns of as many rows", found)
    }

    fn take(&mut self, bytes: Option<u64>, what: &str) -> Result<&'a [u8], Error> {
        let taken = bytes.and_then(|bytes| self.rest.split_at_checked(usize::try_from(bytes).ok()?));
        let Some((taken, rest)) = taken else {
            return Err(self.wrong(what, format!("{} bytes", self.rest.len())));
        };
        self.rest = rest;
        Ok(taken)
    }

    fn numbers(&mut self, rows: u64, what: &str) -> Result<Vec<u8>, Error> {
        Ok(self.take(rows.checked_mul(8), what)?.to_vec())
    }

    fn texts(&mut self, rows: u64, what: &str) -> Result<Texts, Error> {
        let ends = self.numbers(rows, what)?;
        let mut before = 0;
        for row in 0..rows as usize {
            let end = number(&ends, row);
            if end < before {
                return Err(self.wrong(what, format!("a string that ends at {end}, behind one at {before}")));
            }
            before = end;
        }
        let bytes = self.take(Some(before), what)?.to_vec();
        Ok(Texts { ends, bytes })
    }
}

/// What there is for each column of labels, and for the files at their place.
fn with_files<T>(mut labels: Vec<T>, place: Option<usize>, files: T) -> Vec<T> {
    if let Some(place) = place {
        labels.insert(place.min(labels.len()), files);
    }
    labels
}

/// A record whose bytes the index holds.
fn literal(bytes: &[u8]) -> IndexEntry {
    let length = bytes.len() as u64;
    let pieces = if bytes.is_empty() { vec![] } else { vec![PartPiece::Literal(bytes.to_vec())] };
    IndexEntry::Exception(vec![Part {
        pieces,
        codecs: 0,
        decoded_bytes: length,
        guard: 0,
        offset: 0,
        length,
    }])
}

impl Listed {
    /// The records of a row's labels.
    fn labels(&self, manifest: &Input, row: usize) -> Result<Vec<IndexEntry>, Error> {
        let columns = self.header.columns.iter().zip(&self.values);
        let label = |(column, values): (&LabelColumn, &Values)| match (column.kind, values) {
            (_, Values::Texts(texts)) => {
                let text = texts.get(row);
                if text.len() > MAX_TEXT_BYTES {
                    let line = number(&self.lines, row);
                    let what = format!("a string of more than {MAX_TEXT_BYTES} bytes in a manifest");
                    let found = format!("{} bytes of {:?} in line {line}", text.len(), column.name);
                    return Err(manifest.unsupported(what, found, "choose other columns with fields="));
                }
                Ok(literal(text))
            }
            (kind, Values::Numbers(numbers)) => {
                let value = number(numbers, row);
                let is_place = kind == ColumnKind::Integer && PLACES.contains(&value.cast_signed());
                Ok(if is_place {
                    IndexEntry::Plain { class: 0, start: value, length: NUMBER_BYTES }
                } else {
                    literal(&value.to_le_bytes())
                })
            }
        };
        columns.map(label).collect()
    }
}

impl Container for ManifestFolder {
    fn input(&self) -> &Input {
        &self.input
    }

    fn state(&self) -> ShardState {
        self.state.clone()
    }

    fn explain_empty(&self, _: &ScanSummary, _: &[&str]) -> (String, String) {
        (format!("no row in the manifest {}", self.manifest.path().display()), String::new())
    }

    fn changes_with(&self) -> &Path {
        self.manifest.path()
    }

    fn needs_structure(&self) -> bool {
        self.found.get().is_none()
    }

    fn set_structure(&self, structure: &[u8]) -> Result<(), Error> {
        let found = read(&self.manifest, structure)?;
        self.found.get_or_init(|| found);
        Ok(())
    }

    fn columns(&self) -> Result<Vec<Column>, Error> {
        let ManifestHeader { data, columns, .. } = &self.found()?.header;
        let files = Column {
            field: Field::new(DATA, Dtype::Uint8, Layout::Ragged),
            classes: vec![RecordClass::files("file")],
        };
        let labels = columns.iter().map(|LabelColumn { name, kind }| match kind {
            ColumnKind::Integer => Column {
                field: Field::new(name, Dtype::Int64, Layout::Dense(Vec::new())),
                classes: vec![RecordClass::numbers("label")],
            },
            ColumnKind::Float => Column {
                field: Field::new(name, Dtype::Float64, Layout::Dense(Vec::new())),
                classes: vec![RecordClass::tight("label")],
            },
            ColumnKind::Text => Column {
                field: Field::new(name, Dtype::Uint8, Layout::Ragged),
                classes: vec![RecordClass::tight("label")],
            },
        });
        Ok(with_files(labels.collect(), *data, files))
    }

    fn add_to(
        &self,
        writer: &mut Writer,
        _threads: usize,
        progress: &dyn Fn(u64) -> bool,
    ) -> Result<ScanSummary, Error> {
        let listed = self.found()?;
        let rows = listed.header.rows as usize;
        let mut names = NameTableWriter::default();
        let mut directories = Directories::new(&mut names);
        let mut total = 0_u64;
        for first in (0..rows).step_by(FILES_AT_ONCE) {
            let count = FILES_AT_ONCE.min(rows - first);
            let paths = (first..first + count).map(|row| self.name(listed, row));
            let paths = paths.collect::<Result<Vec<_>, _>>()?;
            let sizes = self.sizes(listed, first, &paths)?;
            for (row, (path, length)) in (first..).zip(paths.iter().zip(sizes)) {
                let start = total;
                total = start.checked_add(length).filter(|end| *end <= OFFSET_LIMIT).ok_or_else(|| {
                    let what = format!("a folder of more than {OFFSET_LIMIT} bytes");
                    self.manifest.unsupported(what, format!("line {}", number(&listed.lines, row)), "")
                })?;
                let file = IndexEntry::Plain { class: 0, start, length };
                writer.push(with_files(listed.labels(&self.manifest, row)?, listed.header.data, file));
                let directory = directories.of(path, &mut names);
                let name = path.file_name().expect("a name, as was checked");
                names.file(directory, name.as_bytes().to_vec());
            }
            if !progress((first + count) as u64) {
                return Err(Error::Interrupted);
            }
        }
        Ok(ScanSummary {
            warnings: listed.header.warnings.clone(),
            bytes: Some(total),
            names: listed.header.data.is_some().then(|| names.finish()),
            ..ScanSummary::default()
        })
    }

    fn progress_unit(&self) -> (&'static str, Option<u64>) {
        ("files", self.found.get().map(|listed| listed.header.rows))
    }

    fn describe(&self) -> serde_json::Map<String, serde_json::Value> {
        let mut facts = serde_json::Map::new();
        facts.insert("manifest".to_owned(), json!(self.manifest.path()));
        facts
    }

    fn check_unchanged(&self) -> Result<(), Error> {
        self.manifest.check_unchanged()?;
        let now = state(&self.manifest)?;
        if now == self.state {
            return Ok(());
        }
        Err(self.manifest.modified("contents", format!("{:?}", self.state), format!("{now:?}")))
    }
}

/// The directories of the files, numbered as they come, each after the one that it is in.
struct Directories(BTreeMap<PathBuf, u32>);

impl Directories {
    fn new(names: &mut NameTableWriter) -> Self {
        let root = names.directory(Directory { parent: 0, name: Vec::new(), modified_ns: 0 });
        Self(BTreeMap::from([(PathBuf::new(), root)]))
    }

    /// The number of the directory of a file.
    fn of(&mut self, file: &Path, names: &mut NameTableWriter) -> u32 {
        let directory = file.parent().unwrap_or(Path::new(""));
        if let Some(number) = self.0.get(directory) {
            return *number;
        }
        let parent = self.of(directory, names);
        let name = directory.file_name().expect("the folder itself is known").as_bytes().to_vec();
        let number = names.directory(Directory { parent, name, modified_ns: 0 });
        self.0.insert(directory.to_owned(), number);
        number
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest() -> Input {
        Input::from_source(Path::new("x.csv"), Arc::new(Vec::<u8>::new())).expect("memory")
    }

    /// Two rows: files `a/b` and `c`, numbers 7 and 8, strings "x" and "".
    fn structure() -> Vec<u8> {
        let header = br#"{"rows": 2, "data": 0, "warnings": [], "columns": [{"name": "n", "kind": "integer"},
            {"name": "t", "kind": "text"}]}"#;
        let numbers =
            |numbers: [u64; 2]| numbers.iter().flat_map(|one| one.to_le_bytes()).collect::<Vec<u8>>();
        let length = (header.len() as u64).to_le_bytes();
        let parts: [&[u8]; 8] = [
            &length,
            header,
            &numbers([2, 3]),
            &numbers([3, 4]),
            b"a/bc",
            &numbers([7, 8]),
            &numbers([1, 1]),
            b"x",
        ];
        parts.concat()
    }

    #[test]
    fn rows_are_what_was_found() {
        let listed = read(&manifest(), &structure()).expect("a structure");
        assert_eq!((listed.paths.get(0), listed.paths.get(1)), (&b"a/b"[..], &b"c"[..]));
        assert_eq!(number(&listed.lines, 1), 3);
        let labels = listed.labels(&manifest(), 1).expect("labels");
        assert_eq!(labels, [IndexEntry::Plain { class: 0, start: 8, length: 8 }, literal(b"")]);
    }

    #[test]
    fn what_is_cut_or_damaged_is_refused_or_read_within_its_bytes() {
        let sound = structure();
        for length in 0..sound.len() {
            assert!(read(&manifest(), &sound[..length]).is_err(), "{length} bytes");
        }
        for at in 0..sound.len() {
            for flipped in [0x01, 0x80, 0xff] {
                let mut damaged = sound.clone();
                damaged[at] ^= flipped;
                let Ok(listed) = read(&manifest(), &damaged) else { continue };
                for row in 0..listed.header.rows as usize {
                    let _ = (listed.paths.get(row), listed.labels(&manifest(), row));
                }
            }
        }
    }
}
