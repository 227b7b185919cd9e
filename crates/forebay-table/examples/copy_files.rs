//! Stands in for the daemon in tests: copies files to a level and makes their file table.
//!
//!     copy_files make TABLE LEVEL SOURCE [OPTION]...
//!     copy_files show TABLE
//!     copy_files replace TABLE NEW
//!
//! `make` copies all regular files below SOURCE to LEVEL/files; wrong copies hold zeros. `show`
//! prints counters, one a line, and the paths of wishes. `replace` puts a new table in the place of
//! another one, which it retires. None of them leaves a process behind.
//!
//! Options: `--frozen`; `--wrong`; `--without NAME`, a file of which the table knows nothing;
//! `--refuse NAME`, one that is not copied; `--fill NUMBER`, so many further records.

use std::error::Error;
use std::fs::{self, OpenOptions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::slice;
use std::sync::atomic::{AtomicU64, Ordering};

use forebay_table::{
    CopyFile, CopyIdentity, Flags, Identity, Layout, MAX_LEVELS, Next, RecordState, Settings, SharedPart,
    SourceFile, SourcePrefix, Table, TableCounter, TableWriter, WORD_BYTES,
};
use memmap2::MmapRaw;

const NS_PER_S: i64 = 1_000_000_000;
/// Records beyond those of the files.
const SPARE_RECORDS: u32 = 100;
const WISHES: u32 = 256;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn identity(found: &fs::Metadata) -> Identity {
    Identity {
        device: found.dev(),
        inode: found.ino(),
        bytes: found.size(),
        modified_ns: found.mtime() * NS_PER_S + found.mtime_nsec(),
        changed_ns: found.ctime() * NS_PER_S + found.ctime_nsec(),
    }
}

fn source_file(found: &fs::Metadata) -> SourceFile {
    let born = found.created().ok().and_then(|time| time.duration_since(std::time::UNIX_EPOCH).ok());
    SourceFile {
        identity: identity(found),
        born_ns: born.map(|time| time.as_nanos() as i64),
        mode: found.mode(),
        user: found.uid(),
        group: found.gid(),
        links: found.nlink() as u32,
        blocks: found.blocks(),
        block_bytes: found.blksize(),
    }
}

fn files_below(directory: &Path, into: &mut Vec<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(directory)? {
        let (entry, path) = {
            let entry = entry?;
            (entry.file_type()?, entry.path())
        };
        if entry.is_dir() {
            files_below(&path, into)?;
        } else if entry.is_file() {
            into.push(path);
        }
    }
    Ok(())
}

/// The words of a mapping.
fn words(map: &MmapRaw) -> &[AtomicU64] {
    // SAFETY: the mapping is that long, aligned to pages, and everybody writes atomic words.
    unsafe { slice::from_raw_parts(map.as_mut_ptr().cast(), map.len() / WORD_BYTES) }
}

fn make(table: &Path, level: &Path, source: &Path, options: &[String]) -> Result<()> {
    let named = |option: &str, path: &Path| {
        options.windows(2).any(|pair| pair[0] == option && path.ends_with(&pair[1]))
    };
    let wrong = options.iter().any(|option| option == "--wrong");
    let source = source.canonicalize()?;
    fs::create_dir_all(level.join("files"))?;
    let level = level.canonicalize()?;
    let mut files = Vec::new();
    files_below(&source, &mut files)?;
    files.sort();
    // Further records make look-ups as slow as in a large table.
    let filling =
        options.windows(2).find(|pair| pair[0] == "--fill").map_or(Ok(0), |pair| pair[1].parse())?;
    let layout = Layout::new(files.len() as u32 + SPARE_RECORDS + filling, WISHES)?;
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(table)?;
    file.set_len(layout.bytes() as u64)?;
    let map = MmapRaw::map_raw(&file)?;
    let settings = Settings {
        flags: Flags { frozen: options.iter().any(|option| option == "--frozen"), check: false },
        generation: 1,
        levels: &[level.as_os_str().as_bytes()],
        prefixes: &[SourcePrefix { device: source.metadata()?.dev(), path: source.as_os_str().as_bytes() }],
    };
    let mut writer = TableWriter::create(words(&map), layout, &settings)?;
    for (number, path) in files.iter().enumerate() {
        if named("--without", path) {
            continue;
        }
        let record = writer.add(&source_file(&path.metadata()?), Some(path.as_os_str().as_bytes()))?;
        if named("--refuse", path) {
            writer.advance(record, RecordState::Refused);
            continue;
        }
        let copy = level.join("files").join(format!("{number:016x}"));
        let bytes = if wrong { vec![0; path.metadata()?.len() as usize] } else { fs::read(path)? };
        fs::write(&copy, bytes)?;
        fs::set_permissions(&copy, fs::Permissions::from_mode(0o400))?;
        let Identity { device, inode, modified_ns, changed_ns, .. } = identity(&copy.metadata()?);
        let identity = CopyIdentity { device, inode, modified_ns, changed_ns };
        writer.publish(record, &CopyFile { level: 0, number: number as u64, identity })?;
    }
    for inode in 0..u64::from(filling) {
        let identity = Identity { device: u64::MAX, inode, ..Identity::default() };
        let record = writer.add(&SourceFile { identity, ..SourceFile::default() }, None)?;
        let identity = CopyIdentity { device: u64::MAX - 1, inode, ..CopyIdentity::default() };
        writer.publish(record, &CopyFile { level: 0, number: u64::from(u32::MAX) + inode, identity })?;
    }
    Ok(())
}

fn show(table: &Path) -> Result<()> {
    let file = OpenOptions::new().read(true).write(true).open(table)?;
    let map = MmapRaw::map_raw(&file)?;
    let table = Table::open(words(&map))?;
    let shared = SharedPart::new(words(&map), table.layout()).ok_or("the second part is missing")?;
    let levels = 0..MAX_LEVELS as u8;
    println!("opened {}", levels.clone().map(|level| shared.total(TableCounter::Opened(level))).sum::<u64>());
    println!(
        "opened_bytes {}",
        levels.map(|level| shared.total(TableCounter::OpenedBytes(level))).sum::<u64>()
    );
    for (counter, name) in TableCounter::NAMED {
        println!("{name} {}", shared.total(counter));
    }
    let mut ticket = 0;
    loop {
        match shared.wishes().read(ticket) {
            Next::Wish(wish) => println!("wish {}", String::from_utf8_lossy(wish.path())),
            Next::Lost(next) => {
                ticket = next;
                continue;
            }
            Next::Unfinished => {}
            Next::Empty => return Ok(()),
        }
        ticket += 1;
    }
}

fn replace(table: &Path, new: &Path) -> Result<()> {
    const GENERATION_WORD: usize = 3;
    let old = OpenOptions::new().read(true).write(true).open(table)?;
    fs::rename(new, table)?;
    words(&MmapRaw::map_raw(&old)?)[GENERATION_WORD].store(u64::MAX, Ordering::Release);
    Ok(())
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["make", table, level, source, ..] => {
            make(Path::new(table), Path::new(level), Path::new(source), &arguments[4..])
        }
        ["show", table] => show(Path::new(table)),
        ["replace", table, new] => replace(Path::new(table), Path::new(new)),
        _ => Err("expected: make TABLE LEVEL SOURCE [OPTION]..., show TABLE or replace TABLE NEW".into()),
    }
}
