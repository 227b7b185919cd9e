//! What in a folder is no sample, by its name: what systems and writers leave behind, files that
//! hold many samples each, and directories that are splits instead of classes.
//!
//! Names cost nothing where a directory is listed. A file is refused for its first bytes alone, so
//! a name only says which files to look at.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use crate::container::signature::{self, Detected};
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

/// Endings of tables of text: of those with an object in each line, and of others, which may also
/// be one recording each.
const LINES: [&str; 2] = ["jsonl", "ndjson"];
const TABLES: [&str; 2] = ["csv", "tsv"];

/// Most tables in a directory of which each is taken for one of many samples.
const FEW_TABLES: usize = 4;

/// Endings of arrays.
const ARRAYS: [&str; 2] = ["npy", "npz"];

/// Endings of files that are compressed as a whole.
const COMPRESSED: [&str; 5] = ["gz", "zst", "xz", "bz2", "lz4"];

/// Names of splits, in small letters.
const SPLITS: [&str; 14] = [
    "train",
    "training",
    "trainval",
    "val",
    "valid",
    "validation",
    "test",
    "testing",
    "dev",
    "eval",
    "holdout",
    "extra",
    "unlabeled",
    "unlabelled",
];

/// Words in names of splits that are no splits alone.
const PARTS_OF_SPLITS: [&str; 2] = ["fold", "split"];

/// Whether an entry is left behind by a system or a writer: no sample, and no class.
pub(crate) fn is_leftover(name: &[u8]) -> bool {
    LEFTOVERS.iter().any(|leftover| name.eq_ignore_ascii_case(leftover))
        || LEFTOVER_BEGINS.iter().any(|begin| name.starts_with(begin))
}

/// The ending of a name that files of many samples have.
fn ending(name: &[u8]) -> Option<&'static str> {
    let stem = without_shard_number(name);
    with_ending(stem, &ENDINGS)
}

/// What the name of a file in a folder promises instead of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Promise {
    /// Many samples, by this ending.
    Many(&'static str),
    /// A table of text.
    Table,
    /// An array among files that are none.
    Array,
}

impl Promise {
    /// What the file is, if its first bytes keep the promise.
    pub(crate) fn kept(self, path: &Path) -> Option<Foreign> {
        // A file that cannot be read is named when it is.
        let name = match (self, signature::file(path).ok()?) {
            (Self::Many(_), Detected::Like(format)) if !may_be_sample(format) => format.name(),
            (Self::Many(ending), Detected::Empty) => ending,
            (Self::Table, Detected::Text(text)) => text.name(),
            (Self::Table, Detected::Compressed(compression)) => compression.name,
            (Self::Array, Detected::Like(format)) if may_be_sample(format) => format.name(),
            _ => return None,
        };
        Some(Foreign { name, promise: self })
    }
}

/// A file in a folder that is no sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Foreign {
    /// Name of its format.
    name: &'static str,
    promise: Promise,
}

impl Foreign {
    /// A file that holds many samples.
    pub(crate) fn of_many(format: Format) -> Self {
        Self { name: format.name(), promise: Promise::Many(format.name()) }
    }

    /// What the file is, for a message.
    fn described(self) -> String {
        match self.promise {
            Promise::Many(_) => format!("holds many, in the format {}", self.name),
            Promise::Table => format!("is a table ({})", self.name),
            Promise::Array => format!("is an array ({}) among other files", self.name),
        }
    }
}

/// The files of a directory whose names promise something else than a sample.
pub(crate) fn suspects<'a>(
    names: impl Iterator<Item = &'a [u8]> + Clone,
) -> impl Iterator<Item = (&'a [u8], Promise)> {
    let count = |endings: &'static [&'static str]| {
        names.clone().filter(|name| with_ending(name, endings).is_some()).count()
    };
    let has_few_tables = count(&TABLES) <= FEW_TABLES;
    let (arrays, files) = (count(&ARRAYS), names.clone().count());
    let has_few_arrays = arrays * 2 < files;
    names.filter_map(move |name| {
        let promise = if let Some(ending) = ending(name) {
            Promise::Many(ending)
        } else if is_table(name, &LINES) || has_few_tables && is_table(name, &TABLES) {
            Promise::Table
        } else if has_few_arrays && is_array(name) {
            Promise::Array
        } else {
            return None;
        };
        Some((name, promise))
    })
}

/// Whether a file is an array by its ending.
pub(crate) fn is_array(name: &[u8]) -> bool {
    with_ending(name, &ARRAYS).is_some()
}

/// Whether a file is a table by its ending, before that of a compression.
fn is_table(name: &[u8], endings: &'static [&'static str]) -> bool {
    let compression = with_ending(name, &COMPRESSED).map_or(0, |ending| ending.len() + 1);
    with_ending(&name[..name.len() - compression], endings).is_some()
}

/// The ending of a name, if it is one of these.
fn with_ending(name: &[u8], endings: &'static [&'static str]) -> Option<&'static str> {
    let at = name.iter().rposition(|byte| *byte == b'.')?;
    endings.iter().find(|ending| name[at + 1..].eq_ignore_ascii_case(ending.as_bytes())).copied()
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

/// The first word of a name that splits have, in small letters, and the name without it.
fn word_of_split(name: &[u8]) -> Option<(String, String)> {
    let name = String::from_utf8_lossy(name).to_lowercase();
    let is_word = |word: &&str| SPLITS.contains(word) || PARTS_OF_SPLITS.contains(word);
    let word = name.split(|letter: char| !letter.is_ascii_alphabetic()).find(is_word)?.to_owned();
    let rest = name.replacen(&word, "*", 1);
    Some((word, rest))
}

/// The directories that are splits: all of them, or two or more, since a train may be a class
/// beside others.
///
/// Names that only contain the word of a split (`training_set`, `fold_1`) count where all have one,
/// or where two differ by nothing else (`images_train`, `images_val`).
fn splits<'a>(directories: impl Iterator<Item = &'a [u8]> + Clone) -> Vec<&'a [u8]> {
    let count = directories.clone().count();
    let named: Vec<_> = directories.clone().filter(|name| is_split(name)).collect();
    if !named.is_empty() && (named.len() >= 2 || count == 1) {
        return named;
    }
    let words: Vec<_> =
        directories.filter_map(|name| word_of_split(name).map(|(word, rest)| (name, word, rest))).collect();
    let differ_by_word = |(_, word, rest): &(&[u8], String, String)| {
        words.iter().any(|(_, other, others_rest)| other != word && others_rest == rest)
    };
    if words.len() >= 2 && (words.len() == count || words.iter().any(differ_by_word)) {
        words.into_iter().map(|(name, ..)| name).collect()
    } else {
        Vec::new()
    }
}

/// The error of a directory whose directories are splits.
pub(crate) fn refuse_splits<'a>(
    path: &Path,
    directories: impl Iterator<Item = &'a [u8]> + Clone,
) -> Option<Error> {
    let splits: Vec<_> = splits(directories).into_iter().map(String::from_utf8_lossy).collect();
    let (shown, first) = (path.display(), splits.first()?);
    Some(Error::Usage {
        message: format!("{shown} holds splits, not classes: {}", splits.join(", ")),
        hint: format!(
            "open each separately: forebay.open({:?}, split={first:?}), or the path {}; format=\"folder\" \
             takes them as classes",
            shown.to_string(),
            path.join(&**first).display()
        ),
    })
}

/// The error of a folder in which a file or directory, named from the folder on, is no sample.
pub(crate) fn refuse(folder: &Path, name: &Path, found: Foreign) -> Error {
    let meant = meant(folder, name);
    let file = folder.join(name);
    let keys: Vec<&str> = name.components().filter_map(|part| partition(part).map(|(key, _)| key)).collect();
    let hint = if found.promise == Promise::Table {
        let file = file.display();
        format!(
            "forebay.manifest('{file}') opens the files that a table lists, forebay.open('{file}') says how to make \
             Parquet of its rows; format=\"folder\" takes each file as a sample"
        )
    } else if keys.is_empty() {
        format!("forebay.open({meant:?}) opens them; format=\"folder\" takes each file as a sample")
    } else {
        let (from, keys) = (folder.display(), keys.join(", "));
        format!(
            "forebay.open({meant:?}) opens them without {keys}, which only the names of directories hold; to keep it, \
             write one table once: python -c \"import pyarrow.dataset as d, pyarrow.parquet as p; \
             p.write_table(d.dataset('{from}', partitioning='hive').to_table(), '{from}.parquet')\""
        )
    };
    let (folder, file, found) = (folder.display(), file.display(), found.described());
    Error::Usage { message: format!("{folder} is no folder whose files are samples: {file} {found}"), hint }
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
    fn tables_and_arrays_are_suspects_where_they_are_few() {
        let of = |names: &[&str]| {
            let names: Vec<&[u8]> = names.iter().map(|name| name.as_bytes()).collect();
            suspects(names.into_iter()).map(|(_, promise)| promise).collect::<Vec<_>>()
        };
        assert_eq!(of(&["a.jsonl", "b.ndjson.gz", "c.JSONL.zst", "d.txt", "e.json"]), [Promise::Table; 3]);
        assert_eq!(of(&["a.csv", "b.tsv"]), [Promise::Table; 2]);
        assert_eq!(of(&["0.csv", "1.csv", "2.csv", "3.csv", "4.csv"]), []);
        assert_eq!(of(&["a.jpg", "b.jpg", "labels.npy"]), [Promise::Array]);
        assert_eq!(of(&["a.npy", "b.npz", "readme.txt"]), []);
        assert_eq!(of(&["a.npy"]), []);
        assert_eq!(of(&["gz", ".gz", "a.gz", "x.parquet"]), [Promise::Many("parquet")]);
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
            &["test_set", "training_set"],
            &["fold_1", "fold_2"],
            &["split0", "split1"],
            &["annotations", "images_train", "images_val"],
            &["Train", "train-extra"],
            &["train", "unlabeled"],
            &["train1", "train2"],
        ] {
            assert!(refused(names), "{names:?}");
        }
        for names in [
            &["car", "train"][..],
            &["ant", "bee"],
            &[],
            &["2017"],
            &["2012", "2013"],
            &["bullet_train", "car", "test_tube"],
            &["test_tube"],
            &["car", "extra"],
        ] {
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
