//! Which directories are refused as tiers, and which sizes are worth a warning.
//!
//! A refusal is an error that the user must mend; it says what was expected and found.

use std::collections::{HashMap, HashSet};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use forebay_io::FileSystem;
use forebay_plan::options::TierSpec;
use rustix::fs::{FileType, Stat};
use rustix::io::Errno;

use crate::error::TierError;
use crate::level::storage::LevelStorage;

/// A copy on a network file system is no nearer than the source. FUSE and unknown kinds may be
/// local.
pub(crate) fn check_file_system(spec: &TierSpec, found: &FileSystem) -> Result<(), TierError> {
    if spec.force || !found.is_network() {
        return Ok(());
    }
    let problem = format!("expected storage of this node, found the network file system {}", found.name);
    Err(TierError::of_tier(
        spec,
        problem,
        "take a local disk or /dev/shm; PATH:SIZE:force uses it all the same",
    ))
}

/// Only the user may read, change or replace what is in a tier.
pub(crate) fn check_private(spec: &TierSpec, path: &Path, stat: &Stat) -> Result<(), TierError> {
    let user = rustix::process::geteuid().as_raw();
    let wrong = |expected: String, found: String, hint: &str| {
        Err(TierError::of_tier(spec, format!("{}: expected {expected}, found {found}", path.display()), hint))
    };
    let kind = FileType::from_raw_mode(stat.st_mode);
    if kind != FileType::Directory {
        let found = if kind == FileType::Symlink { "a symbolic link" } else { "a file" };
        return wrong("a directory".into(), found.into(), "remove it; Forebay makes the directory");
    }
    if stat.st_uid != user {
        let found = format!("one of user {}", stat.st_uid);
        return wrong(format!("a directory of user {user}"), found, "take another directory as the tier");
    }
    let mode = stat.st_mode & 0o777;
    if mode & 0o077 != 0 {
        let hint = format!("chmod 700 {}", path.display());
        return wrong("mode 0700".into(), format!("{mode:04o}"), &hint);
    }
    Ok(())
}

/// The error for a tier that cannot be opened.
pub(crate) fn unopened(spec: &TierSpec, errno: Errno) -> TierError {
    let (found, hint) = match errno {
        Errno::NOENT => ("nothing".into(), format!("make it first: mkdir -p {}", spec.path.display())),
        Errno::NOTDIR => ("a file".into(), String::new()),
        Errno::LOOP => ("a loop of symbolic links".into(), String::new()),
        other => (io::Error::from(other).to_string(), String::new()),
    };
    TierError::of_tier(spec, format!("expected a directory, found {found}"), &hint)
}

/// The error for a directory within a tier that cannot be made.
pub(crate) fn unmade(spec: &TierSpec, path: &Path, errno: Errno) -> TierError {
    let found = match errno {
        Errno::ACCESS | Errno::PERM => "no permission",
        Errno::ROFS => "a read-only file system without copies",
        other => return TierError::io(path, "make the directory")(other),
    };
    let problem = format!("expected a directory that can be written to, found {found}");
    TierError::of_tier(spec, problem, "take a directory of your own")
}

/// Refuses a tier inside a source, and a source inside a tier: copies would be part of the data, or
/// lie beside them on the same storage. Directories are compared by device and inode, so that links
/// and bind mounts hide nothing.
///
/// # Errors
/// Of the first such tier.
pub fn check_sources<'a>(
    tiers: &[TierSpec],
    sources: impl Iterator<Item = &'a Path>,
) -> Result<(), TierError> {
    // A tier that is not there is refused where it is opened.
    let tiers: Vec<(&TierSpec, Vec<Directory>)> = tiers
        .iter()
        .filter_map(|spec| Some((spec, ancestors(&spec.path.canonicalize().ok()?).ok()?)))
        .collect();
    let mut above: HashMap<PathBuf, HashSet<Directory>> = HashMap::new();
    for source in sources {
        let path = source.canonicalize().map_err(TierError::io(source, "find the real path"))?;
        let found = path.metadata().map_err(TierError::io(source, "inspect"))?;
        let Some(parent) = path.parent() else { continue };
        if !above.contains_key(parent) {
            let found = ancestors(parent).map_err(TierError::io(parent, "inspect"))?;
            above.insert(parent.to_owned(), found.into_iter().collect());
        }
        for (spec, around) in &tiers {
            let relation = if found.is_dir() && around.contains(&(found.dev(), found.ino())) {
                "outside of the data"
            } else if above[parent].contains(&around[0]) {
                "without the data"
            } else {
                continue;
            };
            let problem = format!("expected a directory {relation}, found {}", path.display());
            return Err(TierError::of_tier(
                spec,
                problem,
                "make a directory for the tier alone, or pass tiers=[]",
            ));
        }
    }
    Ok(())
}

/// Device and inode.
type Directory = (u64, u64);

/// A directory and those above it.
fn ancestors(path: &Path) -> io::Result<Vec<Directory>> {
    path.ancestors().map(|path| path.metadata().map(|found| (found.dev(), found.ino()))).collect()
}

/// A warning where a tier may take more than its storage has.
pub(crate) fn size_warning(spec: &TierSpec, storage: &dyn LevelStorage) -> io::Result<Option<String>> {
    let mut taken_bytes = 0;
    for slab in storage.slabs()? {
        taken_bytes += storage.taken_bytes(slab)?;
    }
    let mut free = vec![("free space", storage.free_bytes()?)];
    if storage.is_memory() {
        free.push(("free memory", forebay_host::available_bytes()));
    }
    Ok(too_large(spec, taken_bytes, &free))
}

/// `taken_bytes` is what the tier has already.
fn too_large(spec: &TierSpec, taken_bytes: u64, free: &[(&str, u64)]) -> Option<String> {
    let (what, bytes) = free.iter().min_by_key(|(_, bytes)| bytes)?;
    let room = taken_bytes.saturating_add(*bytes);
    (spec.bytes > room).then(|| {
        format!(
            "tier {}: its size is more than there is room for (expected at most {room} bytes of {what}, found {})",
            spec.path.display(),
            spec.bytes
        )
    })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::level::own_mounts::{bind, with_own_mounts};
    use crate::level::slab_files::SlabFiles;
    use forebay_types::CHUNK_BYTES;

    fn tier(path: &Path, bytes: u64) -> TierSpec {
        TierSpec { path: path.to_owned(), bytes, keep: false, force: false }
    }

    fn is_refused(tier: &Path, source: &Path) -> bool {
        let spec = self::tier(tier, CHUNK_BYTES);
        match check_sources(&[spec], [source].into_iter()) {
            Ok(()) => false,
            Err(TierError::Tier { .. }) => true,
            Err(other) => panic!("{other}"),
        }
    }

    fn directories<const N: usize>(place: &Path, names: [&str; N]) -> [PathBuf; N] {
        names.map(|name| {
            let path = place.join(name);
            fs::create_dir_all(&path).unwrap();
            path
        })
    }

    #[test]
    fn network_file_systems_are_refused_without_force() {
        let spec = tier(Path::new("/scratch"), CHUNK_BYTES);
        for (magic, is_fine) in [(0x6969, false), (0x0BD0_0BD0, false), (0xEF53, true), (0x6573_5546, true)] {
            let found = FileSystem::from_magic(magic);
            assert_eq!(check_file_system(&spec, &found).is_ok(), is_fine, "{}", found.name);
            check_file_system(&TierSpec { force: true, ..spec.clone() }, &found).unwrap();
        }
    }

    #[test]
    fn a_tier_and_a_source_lie_apart() {
        let place = tempfile::tempdir().unwrap();
        let [data, inside, tier, beneath] =
            directories(place.path(), ["data", "data/a/tier", "tier", "tier/b/c"]);
        let (file, lost) = (data.join("x.lmdb"), beneath.join("x.lmdb"));
        fs::write(&file, "").unwrap();
        fs::write(&lost, "").unwrap();
        let link = place.path().join("link");
        symlink(&data, &link).unwrap();
        for (tier, source, expected) in [
            (&tier, &data, false),
            (&tier, &file, false),
            // Files of a folder are not the folder.
            (&inside, &file, false),
            (&data, &data, true),
            (&inside, &data, true),
            (&inside, &link, true),
            (&link.join("a/tier"), &data, true),
            (&tier, &beneath, true),
            (&tier, &lost, true),
            (&data, &file, true),
            (&place.path().join("missing"), &file, false),
        ] {
            assert_eq!(is_refused(tier, source), expected, "{} {}", tier.display(), source.display());
        }
    }

    #[test]
    fn a_bind_mount_hides_neither_tier_nor_source() {
        with_own_mounts(|| {
            let place = tempfile::tempdir().unwrap();
            let [data, inside, tier, beneath, mounted] =
                directories(place.path(), ["data", "data/a/tier", "tier", "tier/b/c", "mounted"]);
            assert!(!is_refused(&mounted, &data) && !is_refused(&tier, &mounted));
            bind(&data, &mounted);
            assert!(is_refused(&mounted.join("a/tier"), &data));
            assert!(is_refused(&inside, &mounted));
            bind(&tier, &mounted);
            assert!(is_refused(&tier, &mounted.join("b/c")));
            assert!(is_refused(&mounted, &beneath));
        });
    }

    #[test]
    fn a_size_beyond_what_is_free_and_taken_is_a_warning() {
        let path = Path::new("/scratch");
        for (bytes, taken, free, expected) in [
            (10, 0, vec![("disk", 10)], false),
            (11, 0, vec![("disk", 10)], true),
            (11, 1, vec![("disk", 10)], false),
            (10, 0, vec![("disk", 10), ("memory", 9)], true),
            (10, u64::MAX, vec![("disk", 10)], false),
        ] {
            assert_eq!(
                too_large(&tier(path, bytes), taken, &free).is_some(),
                expected,
                "{bytes} {taken} {free:?}"
            );
        }
        let place = tempfile::tempdir().unwrap();
        let storage = SlabFiles::new(fs::File::open(place.path()).unwrap().into()).unwrap();
        assert!(size_warning(&tier(path, CHUNK_BYTES), &storage).unwrap().is_none());
        assert!(size_warning(&tier(path, u64::MAX), &storage).unwrap().is_some());
    }
}
