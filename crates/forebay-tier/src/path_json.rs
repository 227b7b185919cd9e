//! Paths in messages: text where they are UTF-8, else a list of their bytes.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Written {
    Text(String),
    Bytes(Vec<u8>),
}

impl From<&Path> for Written {
    fn from(path: &Path) -> Self {
        match path.to_str() {
            Some(text) => Self::Text(text.to_owned()),
            None => Self::Bytes(path.as_os_str().as_bytes().to_vec()),
        }
    }
}

impl From<Written> for PathBuf {
    fn from(written: Written) -> Self {
        match written {
            Written::Text(text) => text.into(),
            Written::Bytes(bytes) => OsString::from_vec(bytes).into(),
        }
    }
}

pub(crate) fn serialize<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    Written::from(path).serialize(serializer)
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<PathBuf, D::Error> {
    Written::deserialize(deserializer).map(PathBuf::from)
}

/// The same for several paths.
pub(crate) mod list {
    use super::{Deserialize, Deserializer, PathBuf, Serializer, Written};

    pub(crate) fn serialize<S: Serializer>(paths: &[PathBuf], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(paths.iter().map(|path| Written::from(path.as_path())))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<PathBuf>, D::Error> {
        let paths: Vec<Written> = Vec::deserialize(deserializer)?;
        Ok(paths.into_iter().map(PathBuf::from).collect())
    }
}

/// The same for a path that may be left out.
pub(crate) mod optional {
    use super::{Deserialize, Deserializer, PathBuf, Serialize, Serializer, Written};

    #[expect(clippy::ref_option, reason = "serde hands over a reference to the field")]
    pub(crate) fn serialize<S: Serializer>(path: &Option<PathBuf>, serializer: S) -> Result<S::Ok, S::Error> {
        path.as_deref().map(Written::from).serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<PathBuf>, D::Error> {
        Ok(Option::<Written>::deserialize(deserializer)?.map(PathBuf::from))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::run_options::RunOptions;

    #[test]
    fn a_path_that_is_not_utf_8_arrives_as_it_is() {
        let sources = vec![PathBuf::from("/data"), OsString::from_vec(b"/d\xff".to_vec()).into()];
        let text = serde_json::json!({ "sources": ["/data", [47, 100, 255]] });
        let options: RunOptions = serde_json::from_value(text).unwrap();
        assert_eq!(options.sources, sources);
        let again: RunOptions = serde_json::from_slice(&serde_json::to_vec(&options).unwrap()).unwrap();
        assert_eq!(again, options);
    }
}
