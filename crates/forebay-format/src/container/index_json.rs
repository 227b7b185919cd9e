//! `index.json`, which names the shards of a directory: of MDS, or of `LitData`.
//!
//! Both formats use this name. The keys tell them apart.

use std::path::{Component, Path, PathBuf};

use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};

use crate::file::{Input, read_json};
use crate::{Error, Format};

/// The name of the file.
pub(crate) const NAME: &str = "index.json";

/// Keys that tell the formats apart.
#[derive(Deserialize)]
struct Keys {
    shards: Option<IgnoredAny>,
    chunks: Option<IgnoredAny>,
}

/// Whether a directory has such a file.
pub(crate) fn is_in(directory: &Path) -> bool {
    directory.join(NAME).is_file()
}

/// The format of the directory's shards; `None` if it is neither of the two.
pub(crate) fn format(directory: &Path) -> Result<Option<Format>, Error> {
    let Keys { shards, chunks } = read(directory)?.0;
    Ok(match (shards, chunks) {
        (Some(_), None) => Some(Format::Mds),
        (None, Some(_)) => Some(Format::LitData),
        _ => None,
    })
}

/// Reads the file of a directory.
pub(crate) fn read<T: DeserializeOwned>(directory: &Path) -> Result<(T, Input), Error> {
    let input = Input::open(&directory.join(NAME))?;
    let contents = read_json(&input, 0..input.bytes(), "list of shards")?;
    Ok((contents, input))
}

/// The path of a shard of this name; a name that leads out of the directory is refused.
pub(crate) fn shard_path(input: &Input, name: &str) -> Result<PathBuf, Error> {
    let path = Path::new(name);
    let is_within = path.components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
    if name.is_empty() || name.contains('\0') || !is_within {
        return Err(input.corrupt(0, "name of a shard", "a path below the directory", format!("{name:?}")));
    }
    let directory = input.path().parent().unwrap_or(Path::new(""));
    Ok(directory.join(path))
}

/// Refuses a shard that is not what the list says; `what` has a number in both.
pub(crate) fn check(list: &Input, shard: &Path, what: &str, listed: u64, found: u64) -> Result<(), Error> {
    if listed == found {
        return Ok(());
    }
    let expected = format!("{listed} in {}, as {} says", shard.display(), NAME);
    Err(list.corrupt(0, what, expected, found))
}
