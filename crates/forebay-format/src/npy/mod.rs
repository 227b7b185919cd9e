//! Arrays of numpy: npy, one array, and npz, several in a zip archive.
//!
//! The first axis of an array counts the samples, so a sample is a row of bytes whose place is arithmetic. An npy file
//! has one field, an npz archive one for each member; members are stored, not compressed, and have the same first
//! extent. Read are the headers, nothing else. The layouts to the byte, and what is refused: `docs/formats/npy.md`.

mod header;
mod item;
mod literal;
mod zip;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use xxhash_rust::xxh3::xxh3_128;

pub use header::Array;
pub use item::{Item, ItemKind};

use crate::Error;
use crate::lmdb::Source;
use zip::Member;

/// Name of the field of an npy file.
const DATA: &str = "data";

/// Most fields of a sample.
const MOST_FIELDS: usize = 1024;

/// Arrays of equal first extent: the fields of samples.
#[derive(Clone)]
pub struct Arrays {
    path: PathBuf,
    source: Arc<dyn Source>,
    archive: bool,
    bytes: u64,
    fields: Vec<(String, Array)>,
    digest: u128,
    warnings: Vec<String>,
}

impl fmt::Debug for Arrays {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Arrays")
            .field("path", &self.path)
            .field("fields", &self.fields)
            .finish_non_exhaustive()
    }
}

impl Arrays {
    /// Reads the header of an npy file; its field is called as the only one of `fields`, or `data`.
    pub fn npy(source: Arc<dyn Source>, path: &Path, fields: Option<&[String]>) -> Result<Self, Error> {
        let name = match fields {
            None => DATA,
            Some([name]) => name,
            Some(names) => {
                return Err(Error::Usage {
                    message: format!(
                        "{}: {} fields are asked for: {}",
                        path.display(),
                        names.len(),
                        names.join(", ")
                    ),
                    hint: "an npy file has one; give it one name, or none".to_owned(),
                });
            }
        };
        let bytes = size(&*source, path)?;
        let (array, header) = Array::read(&*source, path, 0..bytes, "npy")?;
        let behind = bytes - array.start - array.bytes();
        let warnings = match behind {
            0 => Vec::new(),
            behind => vec![format!("{}: {behind} bytes follow the array and are not read", path.display())],
        };
        let arrays = vec![(name.to_owned(), array)];
        Ok(Self {
            path: path.to_owned(),
            source,
            archive: false,
            bytes,
            fields: arrays,
            digest: xxh3_128(&header),
            warnings,
        })
    }

    /// Reads the headers of the members `fields` of an npz archive, or of all.
    pub fn npz(source: Arc<dyn Source>, path: &Path, fields: Option<&[String]>) -> Result<Self, Error> {
        let bytes = size(&*source, path)?;
        let (members, mut looked_at) = zip::members(&*source, path, bytes)?;
        let (named, others): (Vec<_>, Vec<_>) =
            members.into_iter().partition(|member| is_array(&member.name));
        let chosen = choose(path, named, fields)?;
        let mut arrays = Vec::new();
        for member in chosen {
            let name = field_name(&member.name).to_owned();
            refuse_coded(path, &member)?;
            let (array, header) = Array::read(&*source, path, member.place, &member.name)?;
            looked_at.extend(header);
            arrays.push((name, array));
        }
        check_equal(path, &arrays)?;
        let warnings = others
            .iter()
            .filter(|member| !member.name.ends_with('/'))
            .map(|member| {
                format!("{}: member {:?} is no npy file and is not read", path.display(), member.name)
            })
            .collect();
        Ok(Self {
            path: path.to_owned(),
            source,
            archive: true,
            bytes,
            fields: arrays,
            digest: xxh3_128(&looked_at),
            warnings,
        })
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its size when it was opened \[bytes\].
    pub fn file_bytes(&self) -> u64 {
        self.bytes
    }

    /// The arrays and their names, in the order of their places.
    pub fn fields(&self) -> &[(String, Array)] {
        &self.fields
    }

    /// Number of samples.
    pub fn samples(&self) -> u64 {
        self.fields[0].1.samples()
    }

    /// Hash of the headers that were read.
    pub fn digest(&self) -> u128 {
        self.digest
    }

    /// What was passed over.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Whether the file is still what was opened.
    pub fn check_unchanged(&self) -> Result<(), Error> {
        let modified = |what: &str, expected: String, found: String| {
            Err(Error::Modified { path: self.path.clone(), what: what.to_owned(), expected, found })
        };
        let bytes = size(&*self.source, &self.path)?;
        if bytes != self.bytes {
            return modified("size", format!("{} bytes", self.bytes), format!("{bytes} bytes"));
        }
        let names: Vec<_> = self.fields.iter().map(|(name, _)| name.clone()).collect();
        let open = if self.archive { Self::npz } else { Self::npy };
        match open(Arc::clone(&self.source), &self.path, Some(&names)) {
            Ok(now) if now.digest == self.digest => Ok(()),
            Ok(now) => {
                modified("headers", format!("hash {:032x}", self.digest), format!("{:032x}", now.digest))
            }
            Err(error @ Error::Io { .. }) => Err(error),
            Err(error) => modified("headers", "those that were opened".to_owned(), error.to_string()),
        }
    }

    /// Where a sample's field starts [bytes from the start of the file].
    pub fn start(&self, sample: u64, field: usize) -> u64 {
        let array = &self.fields[field].1;
        array.start + sample * array.sample_bytes
    }
}

fn size(source: &dyn Source, path: &Path) -> Result<u64, Error> {
    source.bytes().map_err(|source| Error::Io {
        action: "inspect".to_owned(),
        path: path.to_owned(),
        offset: None,
        source,
    })
}

/// Whether a member of an archive is an array, as numpy sees it.
fn is_array(member: &str) -> bool {
    member.strip_suffix(".npy").is_some()
}

/// The field that a member becomes.
fn field_name(member: &str) -> &str {
    member.strip_suffix(".npy").unwrap_or(member)
}

/// Finds the members that are asked for, in that order; all, in the order of their places, where none are.
fn choose(path: &Path, members: Vec<Member>, fields: Option<&[String]>) -> Result<Vec<Member>, Error> {
    let unsupported = |what: &str, found: String, hint: String| Error::Unsupported {
        path: path.to_owned(),
        what: what.to_owned(),
        found,
        hint,
    };
    if members.is_empty() {
        let found = "a zip archive whose members are no npy files".to_owned();
        return Err(unsupported(
            "an archive without arrays",
            found,
            "write the arrays with numpy.savez".to_owned(),
        ));
    }
    let Some(fields) = fields else {
        if members.len() > MOST_FIELDS {
            let (found, hint) = (members.len().to_string(), "choose some with fields=".to_owned());
            return Err(unsupported(&format!("an archive of more than {MOST_FIELDS} arrays"), found, hint));
        }
        return Ok(members);
    };
    let member_of = |field: &String| {
        members.iter().find(|member| field_name(&member.name) == field).cloned().ok_or_else(|| {
            let names: Vec<_> = members.iter().map(|member| field_name(&member.name)).take(50).collect();
            Error::Usage {
                message: format!("{}: no array is called {field:?}", path.display()),
                hint: format!("the archive holds: {}", names.join(", ")),
            }
        })
    };
    let twice = fields.iter().enumerate().find(|(number, field)| fields[..*number].contains(field));
    if fields.is_empty() || twice.is_some() {
        return Err(Error::Usage {
            message: twice.map_or_else(
                || format!("{}: no field is asked for", path.display()),
                |(_, field)| format!("{}: field {field:?} is asked for twice", path.display()),
            ),
            hint: "name each field once".to_owned(),
        });
    }
    fields.iter().map(member_of).collect()
}

/// Refuses members whose bytes are not the array's.
fn refuse_coded(path: &Path, member: &Member) -> Result<(), Error> {
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
    let what = format!("member {:?} that is not stored as it is", member.name);
    Err(Error::Unsupported { path: path.to_owned(), what, found, hint: hint.to_owned() })
}

/// Checks that all arrays have the same number of samples.
fn check_equal(path: &Path, arrays: &[(String, Array)]) -> Result<(), Error> {
    let samples = arrays.first().map(|(_, array)| array.samples());
    if arrays.iter().all(|(_, array)| Some(array.samples()) == samples) {
        return Ok(());
    }
    let found: Vec<_> =
        arrays.iter().take(50).map(|(name, array)| format!("{name} {:?}", array.shape)).collect();
    Err(Error::Unsupported {
        path: path.to_owned(),
        what: "arrays of different first extents as fields of one sample".to_owned(),
        found: found.join(", "),
        hint: "choose those that belong together: fields=[\"x\", \"y\"]".to_owned(),
    })
}
