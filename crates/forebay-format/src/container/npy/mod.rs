//! Arrays of numpy: npy, one array, and npz, several in a zip archive.
//!
//! The first axis of an array counts the samples, so a sample is a row of bytes whose place is
//! arithmetic; or each file is one sample ([`SampleAxis`]). An npy file has one field, an npz
//! archive one for each member; members are stored, not compressed, and have the same first extent.
//! Read are the headers, nothing else. The layouts to the byte, and what is refused:
//! `docs/formats/npy.md`.

mod header;
mod item;
mod literal;
mod zip;

use forebay_types::{Dtype, Field, Layout};

pub use header::Array;
pub(crate) use header::MAGIC;
pub use item::{Item, ItemKind};

use crate::container::{Column, Container, ScanSummary, header_digest};
use crate::file::Input;
use crate::index::sidecar::{IndexEntry, MAX_COLUMNS, RecordClass, ShardState, Writer};
use crate::{Error, SampleAxis};
use zip::Member;

/// Name of the field of an npy file.
const DATA: &str = "data";

/// Samples between two reports of progress.
const TELL_EVERY: u64 = 1 << 16;

/// Arrays of equal first extent: the fields of samples.
#[derive(Debug)]
pub struct Arrays {
    input: Input,
    archive: bool,
    axis: SampleAxis,
    found: ParsedArrays,
}

/// Contents of the headers of a file.
#[derive(Debug)]
struct ParsedArrays {
    fields: Vec<(String, Array)>,
    /// Members of an archive that the fields are.
    members: Vec<Member>,
    state: ShardState,
    warnings: Vec<String>,
}

impl Arrays {
    /// Reads the header of an npy file; its field is called as the only one of `fields`, or `data`.
    pub fn npy(input: Input, fields: &[String], axis: SampleAxis) -> Result<Self, Error> {
        let found = ParsedArrays::npy(&input, fields, axis)?;
        Ok(Self { input, archive: false, axis, found })
    }

    /// Reads the headers of the members `fields` of an npz archive; none: all.
    pub fn npz(input: Input, fields: &[String], axis: SampleAxis) -> Result<Self, Error> {
        let found = ParsedArrays::npz(&input, fields, axis)?;
        Ok(Self { input, archive: true, axis, found })
    }

    /// The arrays and their names.
    pub fn fields(&self) -> &[(String, Array)] {
        &self.found.fields
    }

    /// Number of samples.
    pub fn samples(&self) -> u64 {
        self.found.fields.first().map_or(0, |(_, array)| array.samples())
    }

    /// Members that were skipped.
    pub fn warnings(&self) -> &[String] {
        &self.found.warnings
    }

    /// Hash of all headers that were read.
    pub fn state(&self) -> &ShardState {
        &self.found.state
    }

    /// Where a sample's field starts [bytes from the start of the file].
    pub fn start(&self, sample: u64, field: usize) -> u64 {
        let array = &self.found.fields[field].1;
        array.start + sample * array.sample_bytes
    }

    /// [`Error::Modified`] if size or headers differ from those that were opened.
    pub fn check_unchanged(&self) -> Result<(), Error> {
        self.input.check_unchanged()?;
        let names: Vec<_> = self.found.fields.iter().map(|(name, _)| name.clone()).collect();
        let now = if self.archive {
            ParsedArrays::npz(&self.input, &names, self.axis)
        } else {
            ParsedArrays::npy(&self.input, &names, self.axis)
        };
        let found = match now {
            Ok(now) if now.state == self.found.state => return Ok(()),
            Ok(now) => format!("{:?}", now.state),
            Err(error @ (Error::Read(_) | Error::Io { .. })) => return Err(error),
            Err(error) => error.to_string(),
        };
        Err(self.input.modified("headers", format!("{:?}", self.found.state), found))
    }
}

impl ParsedArrays {
    fn npy(input: &Input, fields: &[String], axis: SampleAxis) -> Result<Self, Error> {
        let name = match fields {
            [] => DATA,
            [name] => name,
            names => {
                let (path, count) = (input.path().display(), names.len());
                return Err(Error::Usage {
                    message: format!("{path}: {count} fields are asked for: {}", names.join(", ")),
                    hint: "an npy file has one; give it one name, or none".to_owned(),
                });
            }
        };
        let (array, header) = Array::read(input, 0..input.bytes(), "npy", axis)?;
        let behind = input.bytes() - array.start - array.bytes();
        let warnings = match behind {
            0 => Vec::new(),
            behind => {
                vec![format!("{}: {behind} bytes follow the array and are not read", input.path().display())]
            }
        };
        Ok(Self {
            fields: vec![(name.to_owned(), array)],
            members: Vec::new(),
            state: header_digest(&header),
            warnings,
        })
    }

    fn npz(input: &Input, fields: &[String], axis: SampleAxis) -> Result<Self, Error> {
        let (members, mut headers) = zip::members(input)?;
        let (arrays, others): (Vec<_>, Vec<_>) =
            members.into_iter().partition(|member| member.name.strip_suffix(".npy").is_some());
        let mut found = Vec::new();
        // An archive of nothing has no samples; one of other files is no npz.
        let is_empty = arrays.is_empty() && others.is_empty();
        let chosen = if is_empty { Vec::new() } else { choose(input, arrays, fields)? };
        for member in &chosen {
            refuse_coded(input, member)?;
            let (array, header) = Array::read(input, member.place.clone(), &member.name, axis)?;
            headers.extend(header);
            found.push((field_name(member).to_owned(), array));
        }
        check_equal(input, &found)?;
        let path = input.path().display();
        let warnings = others
            .iter()
            .filter(|member| !member.name.ends_with('/'))
            .map(|member| format!("{path}: member {:?} is no npy file and is not read", member.name))
            .collect();
        Ok(Self { fields: found, members: chosen, state: header_digest(&headers), warnings })
    }
}

impl Container for Arrays {
    fn input(&self) -> &Input {
        &self.input
    }

    fn state(&self) -> ShardState {
        self.found.state.clone()
    }

    fn is_empty(&self) -> bool {
        self.samples() == 0
    }

    fn columns(&self) -> Result<Vec<Column>, Error> {
        let column = |(name, array): &(String, Array)| Column {
            field: array.field(name),
            classes: vec![RecordClass::tight("row")],
        };
        Ok(self.found.fields.iter().map(column).collect())
    }

    fn add_to(
        &self,
        writer: &mut Writer,
        _threads: usize,
        progress: &dyn Fn(u64) -> bool,
    ) -> Result<ScanSummary, Error> {
        let row_bytes: u64 = self.found.fields.iter().map(|(_, array)| array.sample_bytes).sum();
        for sample in 0..self.samples() {
            writer.push(self.found.fields.iter().map(|(_, array)| IndexEntry::Plain {
                class: 0,
                start: array.start + sample * array.sample_bytes,
                length: array.sample_bytes,
            }));
            if sample % TELL_EVERY == 0 && !progress(sample * row_bytes) {
                return Err(Error::Interrupted);
            }
        }
        Ok(ScanSummary { warnings: self.found.warnings.clone(), ..ScanSummary::default() })
    }

    fn check_sums(&self, progress: &dyn Fn(u64) -> bool) -> Result<(), Error> {
        let mut before = 0;
        for member in &self.found.members {
            member.check_sum(&self.input, &|done| progress(before + done))?;
            before += member.place.end - member.place.start;
        }
        Ok(())
    }

    fn check_unchanged(&self) -> Result<(), Error> {
        Self::check_unchanged(self)
    }
}

impl Array {
    /// The field that its rows are.
    fn field(&self, name: &str) -> Field {
        let mut shape = self.shape[1..].to_vec();
        match &self.item.kind {
            ItemKind::Number(dtype) => Field::new(name, *dtype, Layout::Dense(shape)),
            ItemKind::Described(text) => {
                shape.push(self.item.bytes);
                let field = Field::new(name, Dtype::Uint8, Layout::Dense(shape));
                Field { numpy: Some(text.clone()), ..field }
            }
        }
    }
}

/// The field that a member becomes.
fn field_name(member: &Member) -> &str {
    member.name.strip_suffix(".npy").unwrap_or(&member.name)
}

/// Finds the requested members, in that order; without a request all, in the order of their
/// offsets.
fn choose(input: &Input, members: Vec<Member>, fields: &[String]) -> Result<Vec<Member>, Error> {
    if members.is_empty() {
        let found = "a zip archive whose members are no npy files";
        return Err(input.unsupported(
            "an archive without arrays",
            found,
            "write the arrays with numpy.savez",
        ));
    }
    if fields.is_empty() {
        if members.len() > MAX_COLUMNS {
            let what = format!("an archive of more than {MAX_COLUMNS} arrays");
            return Err(input.unsupported(what, members.len().to_string(), "choose some with fields="));
        }
        return Ok(members);
    }
    if let Some((_, field)) =
        fields.iter().enumerate().find(|(number, field)| fields[..*number].contains(field))
    {
        return Err(Error::Usage {
            message: format!("{}: field {field:?} is asked for twice", input.path().display()),
            hint: "name each field once".to_owned(),
        });
    }
    let member_of = |field: &String| {
        members.iter().find(|member| field_name(member) == field).cloned().ok_or_else(|| {
            let names: Vec<_> = members.iter().map(field_name).take(50).collect();
            Error::Usage {
                message: format!("{}: no array is called {field:?}", input.path().display()),
                hint: format!("the archive holds: {}", names.join(", ")),
            }
        })
    };
    fields.iter().map(member_of).collect()
}

/// Refuses members whose bytes are not the array's.
fn refuse_coded(input: &Input, member: &Member) -> Result<(), Error> {
    let (found, hint) = match (member.encrypted, member.method) {
        (true, _) => ("it is encrypted".to_owned(), "write the arrays with numpy.savez"),
        (false, 0) => return Ok(()),
        (false, 8) => (
            "it is deflated, as a whole".to_owned(),
            "`forebay convert` stores it without compression, as numpy.savez does",
        ),
        (false, method) => {
            (format!("it is compressed by method {method}"), "write the arrays with numpy.savez")
        }
    };
    Err(input.unsupported(format!("member {:?} that is not stored as it is", member.name), found, hint))
}

/// Checks that all arrays have the same number of samples.
fn check_equal(input: &Input, arrays: &[(String, Array)]) -> Result<(), Error> {
    let samples = arrays.first().map(|(_, array)| array.samples());
    if arrays.iter().all(|(_, array)| Some(array.samples()) == samples) {
        return Ok(());
    }
    let found: Vec<_> =
        arrays.iter().take(50).map(|(name, array)| format!("{name} {:?}", array.shape)).collect();
    let hint = "choose those that belong together: fields=[\"x\", \"y\"]; if each file is one sample: sample_axis=None";
    Err(input.unsupported(
        "arrays of different first extents as fields of one sample",
        found.join(", "),
        hint,
    ))
}
