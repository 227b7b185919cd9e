//! A recipe as a user declares it: TOML, without the facts that the file itself holds.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use forebay_format::Error;
use forebay_format::lmdb::{Identity, NOT_SAMPLES};
use serde::Deserialize;

use crate::facts::{KeyPattern, NamedDatabase, Recipe, SplitClass, Transactions};
use crate::lengths::{Lengths, MAX_RUNS};

/// Largest file of a user that is read \[bytes\]: 100 million lengths in decimal.
const MAX_FILE_BYTES: u64 = 1 << 30;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Declared {
    keys: DeclaredLengths,
    values: DeclaredLengths,
    #[serde(default)]
    key_start: u64,
    records: Option<u64>,
    #[serde(default)]
    append: bool,
    commit_every: Option<u64>,
    #[serde(default)]
    first_commits: Vec<DeclaredCommits>,
    #[serde(default = "yes")]
    database_own_transaction: bool,
    library: Option<String>,
    page_bytes: Option<u32>,
    #[serde(default)]
    not_samples: BTreeMap<String, u64>,
}

fn yes() -> bool {
    true
}

#[derive(Debug, Deserialize)]
#[serde(
    untagged,
    expecting = "expected a length from 0 to 4294967295, [[length, count], ...], {lengths = \"a file with a length per line\"}, \
                 or, of keys, a pattern such as \"%08d\""
)]
enum DeclaredLengths {
    Constant(u32),
    Pattern(String),
    Runs(Vec<(u32, u64)>),
    Listed { lengths: PathBuf },
}

#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "expected the records of a commit, or [records, how many such commits]")]
enum DeclaredCommits {
    One(u64),
    Times(u64, u64),
}

impl Recipe {
    /// Reads a recipe that a user states for the file of this identity. Lists lie beside the
    /// recipe.
    pub(crate) fn from_toml(path: &Path, identity: &Identity) -> Result<Self, Error> {
        let usage = |what: String| Error::Usage {
            message: format!("{}: not a recipe: {what}", path.display()),
            hint: "docs/provenance.md has an example of each key".to_owned(),
        };
        let text = read_text(path)?;
        let declared: Declared = toml::from_str(&text).map_err(|error| usage(error.to_string()))?;
        let directory = path.parent().unwrap_or(Path::new(""));
        let records = declared.records.unwrap_or(identity.tree.entries);
        let (keys, key_pattern) = match declared.keys {
            DeclaredLengths::Pattern(text) => {
                let pattern = KeyPattern::parse(&text, declared.key_start).map_err(usage)?;
                let bytes = pattern.key_bytes(records).ok_or_else(|| {
                    usage(format!(
                        "keys {text:?} have too few digits for {records} records in the order of their keys"
                    ))
                })?;
                (Lengths::Constant(bytes), Some(pattern))
            }
            other => (other.lengths(directory)?, None),
        };
        let values = match declared.values {
            DeclaredLengths::Pattern(text) => return Err(usage(format!("values is {text:?}, not a length"))),
            other => other.lengths(directory)?,
        };
        let split_class = match declared.library.as_deref() {
            None | Some("0.9" | "0.9.11" | "1.0") => SplitClass::Modern,
            Some("0.9.9") => SplitClass::V0_9_9,
            Some(other) => {
                return Err(usage(format!("library {other:?}, not \"0.9\", \"0.9.9\" or \"1.0\"")));
            }
        };
        let mut excluded = Vec::new();
        for (name, record) in &declared.not_samples {
            let Some(number) = NOT_SAMPLES.iter().position(|known| known == name) else {
                let known = NOT_SAMPLES.join(", ");
                return Err(usage(format!("not_samples has {name:?}; the index leaves out {known}")));
            };
            excluded.push((number as u8, *record));
        }
        excluded.sort_unstable_by_key(|(_, record)| *record);
        let first = declared.first_commits.iter().map(|commits| match commits {
            DeclaredCommits::One(records) => (*records, 1),
            DeclaredCommits::Times(records, times) => (*records, *times),
        });
        let recipe = Self {
            dialect: identity.dialect,
            page_bytes: declared.page_bytes.unwrap_or(identity.page_bytes),
            checksum_bytes: identity.checksum_bytes,
            split_class,
            append: declared.append,
            database: identity
                .database
                .clone()
                .map(|name| NamedDatabase { name, own_transaction: declared.database_own_transaction }),
            records,
            keys,
            key_pattern,
            values,
            transactions: Transactions { first: first.collect(), then: declared.commit_every },
            excluded,
        };
        recipe.check().map_err(usage)?;
        Ok(recipe)
    }
}

impl DeclaredLengths {
    fn lengths(self, directory: &Path) -> Result<Lengths, Error> {
        match self {
            Self::Constant(bytes) => Ok(Lengths::Constant(bytes)),
            Self::Runs(runs) if runs.len() <= MAX_RUNS => Ok(Lengths::Runs(runs)),
            Self::Runs(runs) => {
                let repeat = |(bytes, count)| std::iter::repeat_n(bytes, count as usize);
                Ok(runs.into_iter().flat_map(repeat).collect())
            }
            Self::Listed { lengths } => read_lengths(&directory.join(lengths)),
            Self::Pattern(_) => unreachable!("patterns are handled by the caller"),
        }
    }
}

/// Reads one length per line.
fn read_lengths(path: &Path) -> Result<Lengths, Error> {
    let mut lengths = Vec::new();
    for (number, line) in read_text(path)?.lines().enumerate() {
        let length: u32 = line.trim().parse().map_err(|_| Error::Usage {
            message: format!(
                "{}: line {}: expected a length in bytes, found {line:?}",
                path.display(),
                number + 1
            ),
            hint: String::new(),
        })?;
        lengths.push(length);
    }
    Ok(lengths.into_iter().collect())
}

fn read_text(path: &Path) -> Result<String, Error> {
    let failed = |source| Error::Io {
        action: "read the recipe".to_owned(),
        path: path.to_owned(),
        offset: None,
        source,
    };
    let found = fs::metadata(path).map_err(failed)?;
    if !found.is_file() {
        return Err(Error::Usage {
            message: format!("{}: expected a regular file, found something else", path.display()),
            hint: "name a text file".to_owned(),
        });
    }
    let bytes = found.len();
    if bytes > MAX_FILE_BYTES {
        return Err(Error::Usage {
            message: format!("{}: {bytes} bytes are too many for a recipe", path.display()),
            hint: String::new(),
        });
    }
    fs::read_to_string(path).map_err(failed)
}

impl KeyPattern {
    /// Reads a pattern of `printf` with one `%0Nd`.
    pub(crate) fn parse(text: &str, start: u64) -> Result<Self, String> {
        let wrong = || format!("keys {text:?}: expected one %0Nd with N from 1 to 20, for example \"%08d\"");
        let (prefix, rest) = text.split_once('%').ok_or_else(wrong)?;
        let (digits, suffix) = rest.split_once('d').ok_or_else(wrong)?;
        let digits = digits.strip_prefix('0').and_then(|digits| digits.parse().ok()).ok_or_else(wrong)?;
        if !(1..=20).contains(&digits) || suffix.contains('%') {
            return Err(wrong());
        }
        Ok(Self { prefix: prefix.into(), digits, suffix: suffix.into(), start })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_those_of_printf() {
        let pattern = KeyPattern::parse("a%08d.jpg", 3).expect("a pattern");
        assert_eq!(pattern.key(9), b"a00000012.jpg");
        for wrong in ["", "%d", "%8d", "%0d", "%021d", "%08d%04d", "%08x"] {
            assert!(KeyPattern::parse(wrong, 0).is_err(), "{wrong}");
        }
    }
}
