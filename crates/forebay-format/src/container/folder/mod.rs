//! A folder of files: every file is a sample, and the top-level directory that holds it is its
//! class.
//!
//! Opening a folder lists it and reads the times of the directories in it. The index lists
//! everything once, depth first, names in the order of their bytes, and requests the sizes of many
//! files at a time. It keeps names, sizes and the times of all directories. A directory with
//! another time makes it stale: files were added or removed. The layout and the skipped entries are
//! in `docs/formats/folder.md`.
//!
//! Memory depends on the largest directory, not on the number of files. Symbolic links are not
//! followed, unless the caller asks for that; then a link to a directory above itself is an error.
//!
//! A [`manifest`] lists the files instead.

pub(crate) mod foreign;
mod list;
pub(crate) mod manifest;

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use forebay_io::{Links, open_beneath};
use forebay_types::{Dtype, Field, Layout, ShardId};
use rustix::fs::{CWD, Mode, OFlags};
use serde_json::json;

use crate::container::{Column, Container, ScanSummary, header_digest};
use crate::file::Input;
use crate::index::sidecar::block::OFFSET_LIMIT;
use crate::index::sidecar::names::Directory;
use crate::index::sidecar::{IndexEntry, NUMBER_BYTES, NameTableWriter, RecordClass, ShardState, Writer};
use crate::{Error, Index, OpenOptions, SidecarError};
use foreign::Promise;
use list::{Names, call_all, entries, file_bytes, identity, modified_ns};

/// Files whose sizes are requested at once.
const FILES_AT_ONCE: usize = 1 << 16;

/// Directories that are kept open for that.
const DIRECTORIES_AT_ONCE: usize = 64;

/// Most files whose sizes are compared with those of a sidecar: on a file system of other nodes,
/// where a request takes half a millisecond, [`call_all`] needs a third of a second for them.
const MAX_COMPARED_FILES: u64 = 10_000;

/// Field of the bytes of a file.
const DATA: &str = "data";
/// Field of the number of the class.
const LABEL: &str = "label";

/// Name of the symbolic links among the entries that are no samples.
pub(crate) const SYMBOLIC_LINKS: &str = "symbolic links";

/// Files with a telling ending that hold something else: from then on it tells nothing.
const MAX_MISTAKEN: u32 = 4;

/// Version of the rules what is a sample and which classes there are: sidecars of others are stale.
const RULES: u8 = 2;

/// A folder, open for reading.
#[derive(Debug)]
pub struct Folder {
    input: Input,
    root: OwnedFd,
    /// Whether files of many samples are refused: not where the caller stated the format.
    refuses_foreign: bool,
    links: Links,
    is_empty: bool,
    /// Names of the classes, sorted; empty if the files lie in the folder itself.
    classes: Vec<Vec<u8>>,
    /// Those of all folders of the dataset, where others have others.
    numbered: OnceLock<Vec<Vec<u8>>>,
    fields: Vec<&'static str>,
    state: ShardState,
}

impl Folder {
    /// Opens a folder.
    pub(crate) fn open(path: &Path, options: &OpenOptions) -> Result<Self, Error> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::openat(CWD, path, flags, Mode::empty())
            .map_err(|errno| failed("open the folder", path, errno))?;
        let links = if options.follow_symlinks { Links::Followed } else { Links::Refused };
        let found = entries(&root, links).map_err(|errno| failed("list", path, errno))?;
        let is_empty = found.files.len() + found.directories.len() == 0;
        let classes: Vec<Vec<u8>> = found.directories.iter().map(<[u8]>::to_vec).collect();
        let known = if classes.is_empty() { vec![DATA] } else { vec![DATA, LABEL] };
        let mut fields = Vec::new();
        for name in &options.fields {
            let Some(field) = known.iter().find(|field| *field == name) else {
                return Err(Error::Usage {
                    message: format!("{}: a folder has no field {name:?}", path.display()),
                    hint: format!("its fields: {}", known.join(", ")),
                });
            };
            fields.push(*field);
        }
        if fields.is_empty() {
            fields = known;
        }
        let state = state(&root, path, &classes, links)?;
        // A folder has no bytes of its own: the index knows those of its files.
        let input = Input::from_source(path, Arc::new(Vec::<u8>::new()))?;
        let refuses_foreign = options.format.is_none();
        let numbered = OnceLock::new();
        Ok(Self { input, root, refuses_foreign, links, is_empty, classes, numbered, fields, state })
    }

    /// Names of the classes in the order of their labels.
    fn numbered(&self) -> &[Vec<u8>] {
        self.numbered.get().unwrap_or(&self.classes)
    }

    /// The directory of this name, which is empty for the folder itself.
    fn directory(&self, name: &Path) -> Result<OwnedFd, Error> {
        let name_or_self = if name.as_os_str().is_empty() { Path::new(".") } else { name };
        open_beneath(&self.root, name_or_self, OFlags::DIRECTORY, self.links)
            .map_err(|errno| failed("open the directory", &self.input.path().join(name), errno))
    }
}

/// The state of a folder, to detect changes: the times of the folder and of the directories in it.
fn state(root: &OwnedFd, path: &Path, classes: &[Vec<u8>], links: Links) -> Result<ShardState, Error> {
    let own_ns = modified_ns(root).map_err(|errno| failed("inspect", path, errno))?;
    let mut text = [&[RULES][..], &own_ns.to_le_bytes()].concat();
    let times = call_all(classes.len(), &|class| {
        let name = Path::new(OsStr::from_bytes(&classes[class]));
        open_beneath(root, name, OFlags::DIRECTORY, links).and_then(modified_ns)
    });
    for (name, time) in classes.iter().zip(times) {
        let path = || path.join(OsStr::from_bytes(name));
        let time = time.map_err(|errno| failed("inspect", &path(), errno))?;
        text.extend(name);
        text.push(0);
        text.extend(time.to_le_bytes());
    }
    Ok(header_digest(&text))
}

/// The system refused something about a path.
pub(crate) fn failed(action: &str, path: &Path, errno: rustix::io::Errno) -> Error {
    Error::Io { action: action.to_owned(), path: path.to_owned(), offset: None, source: errno.into() }
}

/// A directory that was listed, whose files' sizes are still unknown.
struct Listed {
    /// Its number.
    number: u32,
    name: PathBuf,
    fd: OwnedFd,
    modified_ns: i64,
    label: u64,
    files: Names,
}

/// A scan under way.
struct Scan<'a> {
    folder: &'a Folder,
    progress: &'a dyn Fn(u64) -> bool,
    writer: &'a mut Writer,
    names: NameTableWriter,
    summary: ScanSummary,
    /// Directories whose files are not taken yet, and their number.
    listed: Vec<Listed>,
    waiting: usize,
    files: u64,
    bytes: u64,
    /// How many files with such a name held something else.
    mistaken: BTreeMap<Promise, u32>,
    /// Where links are followed: device and number of each directory, and the number of its parent.
    above: Vec<((u64, u64), Option<u32>)>,
}

impl Scan<'_> {
    /// Lists a directory and hands the names of those in it to `deeper`, last one first.
    fn list(
        &mut self,
        name: PathBuf,
        parent: u32,
        label: u64,
        deeper: &mut Vec<(PathBuf, u32)>,
    ) -> Result<u32, Error> {
        let path = || self.folder.input.path().join(&name);
        let fd = self.folder.directory(&name)?;
        let modified_ns = modified_ns(&fd).map_err(|errno| failed("inspect", &path(), errno))?;
        self.refuse_circle(&fd, number_of_parent(parent, &name), &path())?;
        let found = entries(&fd, self.folder.links).map_err(|errno| failed("list", &path(), errno))?;
        let own = name.file_name().map_or_else(Vec::new, |name| name.as_bytes().to_vec());
        let number = self.names.directory(Directory { parent, name: own, modified_ns });
        let is_top = name.as_os_str().is_empty();
        for directory in found.directories.iter().collect::<Vec<_>>().into_iter().rev() {
            deeper.push((name.join(OsStr::from_bytes(directory)), number));
        }
        let beside = if is_top && !self.folder.classes.is_empty() { found.files.len() as u64 } else { 0 };
        let excluded = [
            ("hidden files and directories", found.hidden),
            ("left behind by systems and writers (Thumbs.db, _SUCCESS)", found.leftovers),
            (SYMBOLIC_LINKS, found.links),
            ("devices, pipes and sockets", found.special),
            ("files beside the class directories", beside),
        ];
        for (what, count) in excluded.into_iter().filter(|(_, count)| *count > 0) {
            *self.summary.excluded.entry(what.to_owned()).or_default() += count;
        }
        let files = if beside > 0 { Names::default() } else { found.files };
        self.refuse_foreign(&name, &files)?;
        self.waiting += files.len();
        self.listed.push(Listed { number, name, fd, modified_ns, label, files });
        if self.waiting >= FILES_AT_ONCE || self.listed.len() >= DIRECTORIES_AT_ONCE {
            self.flush()?;
        }
        Ok(number)
    }

    /// Refuses a directory that is also one of those above it, through a link; `parent` is `None`
    /// for the folder itself.
    fn refuse_circle(&mut self, fd: &OwnedFd, parent: Option<u32>, path: &Path) -> Result<(), Error> {
        if self.folder.links == Links::Refused {
            return Ok(());
        }
        let own = identity(fd).map_err(|errno| failed("inspect", path, errno))?;
        let mut above = parent;
        while let Some(number) = above {
            let (other, next) = self.above[number as usize];
            if other == own {
                return Err(self.folder.input.unsupported(
                    "a symbolic link to a directory above it",
                    path.display().to_string(),
                    "remove it, or leave follow_symlinks= out",
                ));
            }
            above = next;
        }
        self.above.push((own, parent));
        Ok(())
    }

    /// Refuses files that are no samples; looks at one for each promise of names in a directory.
    fn refuse_foreign(&mut self, directory: &Path, files: &Names) -> Result<(), Error> {
        if !self.folder.refuses_foreign {
            return Ok(());
        }
        let mut seen = Vec::new();
        for (name, promise) in foreign::suspects(files.iter()) {
            let mistaken = self.mistaken.entry(promise).or_default();
            if seen.contains(&promise) || *mistaken >= MAX_MISTAKEN {
                continue;
            }
            seen.push(promise);
            let name = directory.join(OsStr::from_bytes(name));
            match promise.kept(&self.folder.input.path().join(&name)) {
                Some(found) => return Err(foreign::refuse(self.folder.input.path(), &name, found)),
                None => *mistaken += 1,
            }
        }
        Ok(())
    }

    /// Takes the files of the directories that were listed.
    fn flush(&mut self) -> Result<(), Error> {
        for listed in std::mem::take(&mut self.listed) {
            self.take_files(&listed)?;
        }
        self.waiting = 0;
        Ok(())
    }

    fn take_files(&mut self, listed: &Listed) -> Result<(), Error> {
        let path = self.folder.input.path().join(&listed.name);
        for first in (0..listed.files.len()).step_by(FILES_AT_ONCE) {
            let count = FILES_AT_ONCE.min(listed.files.len() - first);
            let sizes = call_all(count, &|index| {
                file_bytes(&listed.fd, listed.files.get(first + index), self.folder.links)
            });
            for (index, size) in sizes.into_iter().enumerate() {
                let name = listed.files.get(first + index);
                let file = || path.join(OsStr::from_bytes(name));
                let length = size.map_err(|source| Error::Io {
                    action: "inspect".to_owned(),
                    path: file(),
                    offset: None,
                    source,
                })?;
                let Some(length) = length else {
                    return Err(changed(file(), "a regular file", "none any more"));
                };
                self.take_file(listed, name, length)?;
            }
            if !(self.progress)(self.files) {
                return Err(Error::Interrupted);
            }
        }
        let now_ns = modified_ns(&listed.fd).map_err(|errno| failed("inspect", &path, errno))?;
        if now_ns != listed.modified_ns {
            return Err(changed(path, &describe(listed.modified_ns), &describe(now_ns)));
        }
        Ok(())
    }

    fn take_file(&mut self, listed: &Listed, name: &[u8], length: u64) -> Result<(), Error> {
        let start = self.bytes;
        self.bytes = start.checked_add(length).filter(|end| *end <= OFFSET_LIMIT).ok_or_else(|| {
            let found = format!(
                "{length} bytes in {} make more in all",
                Path::new(OsStr::from_bytes(name)).display()
            );
            self.folder.input.unsupported(format!("a folder of more than {OFFSET_LIMIT} bytes"), found, "")
        })?;
        let mut row =
            [IndexEntry::Plain { class: 0, start, length }, IndexEntry::Plain { class: 0, start, length }];
        let fields = &self.folder.fields;
        for (entry, field) in row.iter_mut().zip(fields) {
            if *field == LABEL {
                *entry = IndexEntry::Plain { class: 0, start: listed.label, length: NUMBER_BYTES };
            }
        }
        self.writer.push(row.into_iter().take(fields.len()));
        self.names.file(listed.number, name.to_vec());
        self.files += 1;
        Ok(())
    }
}

/// The number of the parent of a directory; the folder itself has none.
fn number_of_parent(parent: u32, name: &Path) -> Option<u32> {
    (!name.as_os_str().is_empty()).then_some(parent)
}

/// Compares the sizes of the files with those that an index of these folders has.
///
/// Of more than [`MAX_COMPARED_FILES`] files that would take as long as a new index.
pub(crate) fn check_sizes(index: &Index, folders: &[&Path], follow_links: bool) -> Result<(), SidecarError> {
    if index.directories(0).next().is_none() || index.records() > MAX_COMPARED_FILES {
        return Ok(());
    }
    let found = call_all(index.records() as usize, &|number| {
        let file = index.sample_file(ShardId(number as u32)).ok()?;
        let path = folders[file.shard].join(&file.name);
        let status = if follow_links { path.metadata() } else { path.symlink_metadata() };
        let found = match status {
            Ok(status) if status.is_file() && status.len() == file.bytes => return None,
            Ok(status) => format!("{} bytes", status.len()),
            Err(error) => error.to_string(),
        };
        Some((path, file.bytes, found))
    });
    let Some((path, expected, found)) = found.into_iter().flatten().next() else { return Ok(()) };
    let what = format!("file {:?}", path.display().to_string());
    Err(SidecarError::Outdated { what, expected: format!("{expected} bytes"), found })
}

fn describe(modified_ns: i64) -> String {
    format!("last change {modified_ns} ns since 1970")
}

fn changed(path: PathBuf, expected: &str, found: &str) -> Error {
    let (expected, found) = (expected.to_owned(), found.to_owned());
    Error::Modified { path, what: "while the folder was listed".to_owned(), expected, found }
}

impl Container for Folder {
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
        let column = |field: &&str| match *field {
            DATA => Column {
                field: Field::new(DATA, Dtype::Uint8, Layout::Ragged),
                classes: vec![RecordClass::files("file")],
            },
            _ => Column {
                field: Field::new(LABEL, Dtype::Int64, Layout::Dense(Vec::new())),
                classes: vec![RecordClass::numbers("label")],
            },
        };
        Ok(self.fields.iter().map(column).collect())
    }

    fn add_to(
        &self,
        writer: &mut Writer,
        _threads: usize,
        progress: &dyn Fn(u64) -> bool,
    ) -> Result<ScanSummary, Error> {
        let mut scan = Scan {
            folder: self,
            progress,
            writer,
            names: NameTableWriter::default(),
            summary: ScanSummary::default(),
            listed: Vec::new(),
            waiting: 0,
            files: 0,
            bytes: 0,
            mistaken: BTreeMap::new(),
            above: Vec::new(),
        };
        // The last one is listed next; classes are numbered by the order of their names.
        let mut waiting = Vec::new();
        scan.list(PathBuf::new(), 0, 0, &mut waiting)?;
        let classes: BTreeMap<&[u8], u64> =
            (0..).zip(self.numbered()).map(|(label, name)| (name.as_slice(), label)).collect();
        while let Some((name, parent)) = waiting.pop() {
            let class = name.components().next().map_or(&[][..], |first| first.as_os_str().as_bytes());
            let Some(label) = classes.get(class) else {
                let path = self.input.path().join(&name);
                return Err(changed(path, "no such directory", "one that is new"));
            };
            let label = *label;
            scan.list(name, parent, label, &mut waiting)?;
        }
        scan.flush()?;
        let Scan { names, mut summary, bytes, .. } = scan;
        summary.bytes = Some(bytes);
        summary.names = self.fields.contains(&DATA).then(|| names.finish());
        Ok(summary)
    }

    fn progress_unit(&self) -> (&'static str, Option<u64>) {
        ("files", None)
    }

    fn explain_empty(&self, _: &ScanSummary, excluded: &[&str]) -> (String, String) {
        let found = match excluded {
            [] => "no file in it".to_owned(),
            names => format!("only what is not a sample: {}", names.join(", ")),
        };
        let has_links = excluded.contains(&SYMBOLIC_LINKS);
        let hint = if has_links { "follow_symlinks=True follows links, wherever they lead" } else { "" };
        (found, hint.to_owned())
    }

    fn describe(&self) -> serde_json::Map<String, serde_json::Value> {
        let names = self.numbered().iter().map(|name| String::from_utf8_lossy(name));
        serde_json::Map::from_iter([("classes".to_owned(), json!(names.collect::<Vec<_>>()))])
    }

    fn class_names(&self) -> &[Vec<u8>] {
        &self.classes
    }

    fn number_classes(&self, names: &[Vec<u8>]) {
        self.numbered.get_or_init(|| names.to_vec());
    }

    fn check_unchanged(&self) -> Result<(), Error> {
        let found = state(&self.root, self.input.path(), &self.classes, self.links)?;
        if found == self.state {
            return Ok(());
        }
        Err(changed(self.input.path().to_owned(), "the same times of directories", "others"))
    }

    fn check_index(&self, index: &Index, shard: usize) -> Result<(), SidecarError> {
        let directories: Vec<(PathBuf, i64)> = index.directories(shard).collect();
        let times = call_all(directories.len(), &|number| {
            self.directory(&directories[number].0).and_then(|fd| {
                modified_ns(&fd).map_err(|errno| failed("inspect", &directories[number].0, errno))
            })
        });
        for ((name, kept_ns), found) in directories.into_iter().zip(times) {
            let found = match found {
                Ok(found_ns) if found_ns == kept_ns => continue,
                Ok(found_ns) => describe(found_ns),
                Err(error) => error.to_string(),
            };
            let what = format!("directory {:?}", name.display().to_string());
            return Err(SidecarError::Outdated { what, expected: describe(kept_ns), found });
        }
        Ok(())
    }
}
