//! What in a folder is no sample, by its name: what systems and writers leave behind, files that
//! hold many samples each, and directories that are splits instead of classes.
//!
//! Names cost nothing where a directory is listed. A file is refused for its first bytes alone, so
//! a name only says which files to look at.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use crate::{Error, Format};

/// Files and directories that systems, archivers and writers of tables leave behind, in small
/// letters.
const LEFTOVERS: [&[u8]; 12] = [
    b"thumbs.db",
    b"ehthumbs.db",
    b"desktop.ini",
    b"__macosx",
    b"lost+found",
    b"$recycle.bin",
    b"system volume information",
    b"@eadir",
    b"_success",
    b"_metadata",
    b"_common_metadata",
    b"_temporary",
];

/// How other files begin that writers of tables leave behind.
const LEFTOVER_BEGINS: [&[u8]; 2] = [b"_committed_", b"_started_"];

/// Endings of files that hold many samples each.
const ENDINGS: [&str; 16] = [
    "parquet",
    "pq",
    "arrow",
    "feather",
    "tfrecord",
    "tfrecords",
    "tfrec",
    "tar",
    "mdb",
    "lmdb",
    "rec",
    "array_record",
    "arrayrecord",
    "mds",
    "h5",
    "hdf5",
];

/// Names of splits, in small letters.
const SPLITS: [&str; 9] =
    ["train", "training", "val", "valid", "validation", "test", "testing", "dev", "eval"];

/// Whether an entry is left behind by a system or a writer: no sample, and no class.
pub(crate) fn is_leftover(name: &[u8]) -> bool {
    LEFTOVERS.iter().any(|leftover| name.eq_ignore_ascii_case(leftover))
        || LEFTOVER_BEGINS.iter().any(|begin| name.starts_with(begin))
}

/// The ending of a name that files of many samples have, so that its first bytes are to be looked
/// at.
pub(crate) fn ending(name: &[u8]) -> Option<&'static str> {
    let stem = without_shard_number(name);
    let ending = stem.rsplit(|byte| *byte == b'.').next().filter(|ending| ending.len() < stem.len())?;
    ENDINGS.into_iter().find(|known| ending.eq_ignore_ascii_case(known.as_bytes()))
}

/// A name without `-00000-of-00010` at its end.
fn without_shard_number(name: &[u8]) -> &[u8] {
    let digits_before = |name: &[u8]| name.iter().rev().take_while(|byte| byte.is_ascii_digit()).count();
    let number = |name: &[u8], mark: &[u8]| {
        let digits = digits_before(name);
        let stem = name[..name.len() - digits].strip_suffix(mark)?;
        (digits > 0).then_some(stem.len())
    };
    let Some(first) = number(name, b"-of-") else { return name };
    number(&name[..first], b"-").map_or(name, |stem| &name[..stem])
}

/// Whether files of this format hold one sample each where they lie in a directory for each class:
/// arrays do, and are decoded as such.
pub(crate) fn may_be_sample(format: Format) -> bool {
    matches!(format, Format::Npy | Format::Npz)
}

/// Whether a directory of this name is a split, also with the year of a benchmark: `val2017`.
fn is_split(name: &[u8]) -> bool {
    let stem = match name.len().checked_sub(4).map(|at| name.split_at(at)) {
        Some((stem, [b'2', b'0', rest @ ..])) if rest.iter().all(u8::is_ascii_digit) => stem,
        _ => name,
    };
    SPLITS.iter().any(|split| stem.eq_ignore_ascii_case(split.as_bytes()))
}

/// The error of a directory whose directories are splits: all of them, or two or more, since a
/// train may be a class beside others.
pub(crate) fn refuse_splits<'a>(
    path: &Path,
    directories: impl Iterator<Item = &'a [u8]> + Clone,
) -> Option<Error> {
    let splits: Vec<_> =
        directories.clone().filter(|name| is_split(name)).map(String::from_utf8_lossy).collect();
    if splits.is_empty() || (splits.len() < 2 && directories.count() > 1) {
        return None;
    }
    let (shown, first) = (path.display(), &splits[0]);
    Some(Error::Usage {
        message: format!("{shown} holds splits, not classes: {}", splits.join(", ")),
        hint: format!(
            "open each as a data set of its own: forebay.open({:?}, split={first:?}), or the path {}; format=\"folder\" \
             takes them as classes",
            shown.to_string(),
            path.join(&**first).display()
        ),
    })
}

/// The error of a folder in which a file or directory, named from the folder on, holds many samples
/// of this format.
pub(crate) fn refuse(folder: &Path, name: &Path, format: &str) -> Error {
    let meant = meant(folder, name);
    let keys: Vec<&str> = name.components().filter_map(|part| partition(part).map(|(key, _)| key)).collect();
    let hint = if keys.is_empty() {
        format!("forebay.open({meant:?}) opens them; format=\"folder\" takes each file as a sample")
    } else {
        let (from, keys) = (folder.display(), keys.join(", "));
        format!(
            "forebay.open({meant:?}) opens them without {keys}, which only the names of directories hold; to keep it, \
             write one table once: python -c \"import pyarrow.dataset as d, pyarrow.parquet as p; \
             p.write_table(d.dataset('{from}', partitioning='hive').to_table(), '{from}.parquet')\""
        )
    };
    let (folder, file) = (folder.display(), folder.join(name));
    Error::Usage {
        message: format!(
            "{folder} is no folder whose files are samples: {} holds many, in the format {format}",
            file.display()
        ),
        hint,
    }
}

/// The error of a folder in which a directory is something that is not read.
pub(crate) fn refuse_unread(directory: &Path, what: &str) -> Error {
    Error::Unsupported {
        path: directory.to_owned(),
        what: "this format".to_owned(),
        found: format!("it looks like {what}"),
        hint: "format=\"folder\" takes each file as a sample".to_owned(),
    }
}

/// The path or pattern that stands for what is like `name` in a folder.
pub(crate) fn meant(folder: &Path, name: &Path) -> String {
    let is_file = !folder.join(name).is_dir();
    let last = name.components().count().saturating_sub(1);
    let mut pattern = PathBuf::from(folder);
    for (place, part) in name.components().enumerate() {
        let text = part.as_os_str();
        match (partition(part), Path::new(text).extension()) {
            _ if is_split(text.as_bytes()) => pattern.push(text),
            (Some((key, _)), _) => pattern.push(format!("{key}=*")),
            (None, Some(ending)) if is_file && place == last => {
                pattern.push([OsStr::new("*."), ending].into_iter().collect::<OsString>());
            }
            _ => pattern.push("*"),
        }
    }
    pattern.display().to_string()
}

/// Key and value of a directory that is a partition, as Hive names them.
fn partition(part: Component<'_>) -> Option<(&str, &str)> {
    part.as_os_str().to_str()?.split_once('=').filter(|(key, _)| !key.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_files_with_many_samples_are_known_by_their_endings() {
        assert_eq!(ending(b"part-0.parquet"), Some("parquet"));
        assert_eq!(ending(b"x.TFRecord"), Some("tfrecord"));
        assert_eq!(ending(b"train.tfrecord-00000-of-00010"), Some("tfrecord"));
        assert_eq!(ending(b"train.array_record-3-of-10"), Some("array_record"));
        for name in
            [&b"parquet"[..], b"x.jpg", b"x.parquet.jpg", b"x-of-3", b"", b".", b"-1-of-2", b"x.tar.gz"]
        {
            assert_eq!(ending(name), None, "{}", name.escape_ascii());
        }
    }

    #[test]
    fn directories_are_splits_where_all_or_several_have_such_names() {
        let refused = |names: &[&str]| {
            let names: Vec<&[u8]> = names.iter().map(|name| name.as_bytes()).collect();
            refuse_splits(Path::new("d"), names.iter().copied()).is_some()
        };
        for names in [
            &["train", "val"][..],
            &["train"],
            &["Test", "cat", "dev"],
            &["annotations", "train2017", "val2017"],
        ] {
            assert!(refused(names), "{names:?}");
        }
        for names in
            [&["car", "train"][..], &["ant", "bee"], &[], &["train1", "train2"], &["2017"], &["2012", "2013"]]
        {
            assert!(!refused(names), "{names:?}");
        }
    }

    #[test]
    fn what_is_meant_keeps_splits_keys_and_endings() {
        let meant = |name| meant(Path::new("d"), Path::new(name));
        assert_eq!(meant("x/part-0.parquet"), "d/*/*.parquet");
        assert_eq!(meant("train/part-0.parquet"), "d/train/*.parquet");
        assert_eq!(meant("year=2024/day=1/part"), "d/year=*/day=*/*");
    }
}
