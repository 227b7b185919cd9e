//! tar files as `WebDataset` uses them: neighbours with the same base name are one sample, their
//! extensions its fields.
//!
//! [`members`] goes from [`header`] to header, with the values of [`pax`] and GNU's long names
//! before them, through a [`window`] that reads data only where that is cheaper than skipping them.
//! [`group`] decides which members belong together. The rules are those of tarfile and webdataset;
//! where these lose data silently, this is an error. The layout to the byte is in
//! `docs/formats/tar.md`.
//!
//! All input is untrusted: sizes are checked against that of the file before use, and every step
//! goes forward.

mod group;
mod header;
mod members;
mod pax;
mod window;

use std::collections::BTreeMap;
use std::path::Path;

use forebay_types::{Dtype, Field, Layout};

use crate::container::{Column, Container, ScanSummary, header_digest};
use crate::file::Compression;
use crate::file::Input;
use crate::index::sidecar::{IndexEntry, MAX_COLUMNS, Part, PartPiece, RecordClass, ShardState, Writer};
use crate::{Error, OpenOptions};
use group::{is_about_the_archive, key_and_extension};
use header::{BLOCK_BYTES, TarHeader};
use members::{Member, Members, Next};

/// The field that is the base name of a sample's members; it is delivered where it is asked for.
const KEY: &str = "__key__";

/// Longest key that the sidecar holds \[bytes\]: a block of them stays within the limits of its
/// readers.
const MAX_KEY_BYTES: usize = 512;

/// Longest archive without members \[bytes\]: the largest record of GNU tar's manual is 1 MiB.
const MAX_EMPTY_BYTES: u64 = 1 << 20;

/// Names that `WebDataset` keeps for itself.
const RESERVED: [&str; 3] = [KEY, "__url__", "__local_path__"];

/// Visits the place of each field of a sample: a plain entry of class 0, or the bytes of a key that
/// is not in one piece in the file.
pub type Visit<'a> = dyn FnMut(&[IndexEntry]) -> Result<(), Error> + 'a;

/// A tar file, open for reading.
#[derive(Debug)]
pub struct TarFile {
    input: Input,
    /// The fields of all samples.
    fields: Vec<String>,
    /// Whether the caller chose fields, so that others do not matter.
    has_selection: bool,
    is_empty: bool,
    state: ShardState,
}

/// What is excluded, in the words of `forebay inspect`.
const OTHER: &str = "directories, links and devices";
const ABOUT: &str = "about the archive (__name__)";
const UNGROUPED: &str = "without an extension";
const UNWANTED: &str = "of fields that are not asked for";

impl TarFile {
    /// Opens a tar file; reads the headers of its first sample, or as far as needed to find the
    /// options' fields.
    pub(crate) fn open(path: &Path, options: &OpenOptions) -> Result<Self, Error> {
        Self::read(Input::open(path)?, &options.fields)
    }

    /// The same, of anything that can be read; `fields` selects some; empty: all.
    pub fn read(input: Input, fields: &[String]) -> Result<Self, Error> {
        refuse_compressed(&input)?;
        let mut members = Members::new(&input);
        let mut seen: Vec<u8> = Vec::new();
        let mut first: Option<(Vec<u8>, Vec<String>)> = None;
        loop {
            let member = match members.next()? {
                Next::Member(member) if !is_about_the_archive(&member.name) => member,
                Next::Member(_) | Next::Other => continue,
                Next::End => break,
            };
            let Some((key, extension)) = part_of_sample(&input, &member)? else { continue };
            let (first_key, names) = first.get_or_insert_with(|| (key.to_vec(), Vec::new()));
            if first_key != key {
                break;
            }
            seen.extend_from_slice(&member.name);
            seen.extend(member.start.to_le_bytes());
            seen.extend(member.length.to_le_bytes());
            if names.len() == MAX_COLUMNS {
                let found = format!("sample {:?} has more", String::from_utf8_lossy(key));
                let what = format!("a tar file with more than {MAX_COLUMNS} members per sample");
                return Err(input.unsupported(what, found, "write one sample per base name"));
            }
            names.push(extension);
        }
        let is_empty = first.is_none();
        let first = first.map(|(_, names)| names).unwrap_or_default();
        let is_missing = |field: &&String| !is_empty && *field != KEY && !first.contains(field);
        if let Some(missing) = fields.iter().find(is_missing) {
            return Err(Error::Usage {
                message: format!("{}: the first sample has no field {missing:?}", input.path().display()),
                hint: format!("its fields: {}", first.join(", ")),
            });
        }
        let has_selection = !fields.is_empty();
        let mut fields = if has_selection { fields.to_vec() } else { first };
        if !has_selection {
            // Members may come in any order: files whose samples have the same fields must compare
            // equal.
            fields.sort_unstable();
            fields.dedup();
        }
        let state = header_digest(&seen);
        Ok(Self { input, fields, has_selection, is_empty, state })
    }

    /// The fields of all samples.
    pub fn fields(&self) -> &[String] {
        &self.fields
    }

    /// Visits all samples; `visit` gets the place of each field.
    ///
    /// `progress` gets the offset \[bytes\].
    pub fn samples(
        &self,
        progress: &dyn Fn(u64) -> bool,
        visit: &mut Visit<'_>,
    ) -> Result<(BTreeMap<String, u64>, Vec<String>), Error> {
        let mut members = Members::new(&self.input);
        let mut excluded: BTreeMap<String, u64> = BTreeMap::new();
        let mut exclude = |name: &str| *excluded.entry(name.to_owned()).or_default() += 1;
        let mut sample = Sample::new(self);
        for step in 0_u64.. {
            if step.is_multiple_of(1024) && !progress(members.at()) {
                return Err(Error::Interrupted);
            }
            let member = match members.next()? {
                Next::Member(member) => member,
                Next::Other => {
                    exclude(OTHER);
                    continue;
                }
                Next::End => break,
            };
            if is_about_the_archive(&member.name) {
                exclude(ABOUT);
                continue;
            }
            let Some((key, extension)) = part_of_sample(&self.input, &member)? else {
                exclude(UNGROUPED);
                continue;
            };
            if sample.begins(key) {
                sample.end(visit)?;
                sample.begin(&member, key)?;
            }
            if !sample.add(&member, &extension)? {
                exclude(UNWANTED);
            }
        }
        sample.end(visit)?;
        Ok((excluded, members.trailing_bytes()?.into_iter().collect()))
    }
}

/// A sample in the making.
struct Sample<'a> {
    file: &'a TarFile,
    /// Base name of the members; `None` before the first sample.
    key: Option<Vec<u8>>,
    /// For each field where its data are.
    places: Vec<Option<IndexEntry>>,
    whole: Vec<IndexEntry>,
    /// The number of the field that is the key.
    key_field: Option<usize>,
    /// Offset of the header of the first member.
    header: u64,
}

impl<'a> Sample<'a> {
    fn new(file: &'a TarFile) -> Self {
        let key_field = file.fields.iter().position(|field| field == KEY);
        let places = vec![None; file.fields.len()];
        Self { file, key: None, places, whole: Vec::new(), key_field, header: 0 }
    }

    fn begins(&self, key: &[u8]) -> bool {
        self.key.as_deref() != Some(key)
    }

    fn begin(&mut self, member: &Member, key: &[u8]) -> Result<(), Error> {
        self.key = Some(key.to_vec());
        self.header = member.header;
        if let Some(field) = self.key_field {
            self.places[field] = Some(key_place(&self.file.input, member, key)?);
        }
        Ok(())
    }

    /// Adds a member; false if its field was not requested.
    fn add(&mut self, member: &Member, extension: &str) -> Result<bool, Error> {
        let file = self.file;
        let name = || String::from_utf8_lossy(&member.name).into_owned();
        let Some(field) = file.fields.iter().position(|field| field == extension) else {
            if file.has_selection {
                return Ok(false);
            }
            let fields = file.fields.join(", ");
            return Err(file.input.unsupported(
                "a tar file whose samples differ in their fields",
                format!(
                    "member {:?} at offset {} is of a field {extension:?} that the first sample does not have ({fields})",
                    name(),
                    member.header
                ),
                "name the fields that all samples have with fields=",
            ));
        };
        if self.places[field].is_some() {
            return Err(file.input.unsupported(
                format!("a tar file with two members of the field {extension:?} in a sample"),
                format!("member {:?} at offset {} is the second one", name(), member.header),
                "write one member per extension and base name",
            ));
        }
        self.places[field] = Some(IndexEntry::Plain { class: 0, start: member.start, length: member.length });
        Ok(true)
    }

    /// Passes on a sample that is complete.
    fn end(&mut self, visit: &mut Visit<'_>) -> Result<(), Error> {
        let Some(key) = &self.key else { return Ok(()) };
        self.whole.clear();
        for (place, field) in self.places.iter_mut().zip(&self.file.fields) {
            let Some(place) = place.take() else {
                let key = String::from_utf8_lossy(key);
                return Err(self.file.input.unsupported(
                    "a tar file whose samples differ in their fields",
                    format!("sample {key:?} at offset {} has no {field:?}", self.header),
                    "name the fields that all samples have with fields=; members of a sample must be neighbours",
                ));
            };
            self.whole.push(place);
        }
        visit(&self.whole)
    }
}

/// Where the key of a sample is that begins with this member: the begin of its header, or, where
/// the name is in two places or in a header before, in no file.
fn key_place(input: &Input, member: &Member, key: &[u8]) -> Result<IndexEntry, Error> {
    let length = key.len() as u64;
    if member.is_name_in_header {
        return Ok(IndexEntry::Plain { class: 0, start: member.header, length });
    }
    if key.len() > MAX_KEY_BYTES {
        let found = format!("{length} bytes in headers before the member at offset {}", member.header);
        let what = format!("a key of more than {MAX_KEY_BYTES} bytes");
        return Err(input.unsupported(what, found, format!("leave {KEY} out of fields=")));
    }
    let pieces = vec![PartPiece::Literal(key.to_vec())];
    let part = Part { pieces, codecs: 0, decoded_bytes: length, guard: 0, offset: 0, length };
    Ok(IndexEntry::Exception(vec![part]))
}

/// The key and the field of a member; `None` if it belongs to no sample.
fn part_of_sample<'a>(input: &Input, member: &'a Member) -> Result<Option<(&'a [u8], String)>, Error> {
    let Some((key, extension)) = key_and_extension(&member.name) else { return Ok(None) };
    let text = std::str::from_utf8(extension).map(str::to_lowercase);
    match text {
        Ok(text) if !RESERVED.contains(&text.as_str()) => Ok(Some((key, text))),
        _ => {
            let name = member.name.escape_ascii();
            Err(input.unsupported(
                "an extension that cannot be the name of a field",
                format!("member \"{name}\" at offset {}", member.header),
                "rename the members",
            ))
        }
    }
}

/// Whether a file is an archive without members: blocks of zeros, as many as writers put to its
/// end.
pub(crate) fn is_archive_of_nothing(input: &Input) -> Result<bool, Error> {
    if input.bytes() > MAX_EMPTY_BYTES || !input.bytes().is_multiple_of(BLOCK_BYTES) {
        return Ok(false);
    }
    let mut bytes = vec![0; input.bytes() as usize];
    input.read(0, &mut bytes, "tar")?;
    Ok(bytes.len() >= 2 * BLOCK_BYTES as usize && bytes.iter().all(|byte| *byte == 0))
}

/// Whether a file that begins with these bytes begins with a tar header; files older than POSIX
/// have no other mark.
pub(crate) fn is_header(head: &[u8]) -> bool {
    head.first_chunk().is_some_and(|block| matches!(TarHeader::parse(block), Ok(Some(_))))
}

/// Names the compression of a file, and what undoes it.
fn refuse_compressed(input: &Input) -> Result<(), Error> {
    let mut head = [0; 6];
    let count = input.read_most(0, &mut head)?;
    let Some(compression) = Compression::of(&head[..count]) else { return Ok(()) };
    Err(input.unsupported(
        "a compressed tar file",
        format!("{}, whose members have no offsets in the file", compression.name),
        compression.hint(input.path()),
    ))
}

impl Container for TarFile {
    fn input(&self) -> &Input {
        &self.input
    }

    fn state(&self) -> ShardState {
        self.state.clone()
    }

    fn is_empty(&self) -> bool {
        self.is_empty
    }

    fn columns(&self) -> Result<Vec<Column>, Error> {
        let block_bytes = BLOCK_BYTES as u32;
        let class =
            RecordClass { align_bytes: block_bytes, step_bytes: block_bytes, ..RecordClass::tight("member") };
        let column = |name: &String| Column {
            field: Field::new(name, Dtype::Uint8, Layout::Ragged),
            classes: vec![class.clone()],
        };
        Ok(self.fields.iter().map(column).collect())
    }

    fn add_to(
        &self,
        writer: &mut Writer,
        _threads: usize,
        progress: &dyn Fn(u64) -> bool,
    ) -> Result<ScanSummary, Error> {
        let (excluded, warnings) = self.samples(progress, &mut |places| {
            writer.push(places.iter().cloned());
            Ok(())
        })?;
        Ok(ScanSummary { excluded, warnings, ..ScanSummary::default() })
    }

    fn check_sums(&self, progress: &dyn Fn(u64) -> bool) -> Result<(), Error> {
        self.samples(progress, &mut |_| Ok(())).map(drop)
    }
}
