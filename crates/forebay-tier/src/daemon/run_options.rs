//! A run of `forebay run`, as its user describes it.

use std::path::PathBuf;

use forebay_plan::Fetch;
use serde::{Deserialize, Serialize};

/// What a run is opened with. Runs with equal tiers and options share one table.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RunOptions {
    /// Directories, or files, that programs get copies of: absolute, as the user wrote them.
    #[serde(with = "forebay_types::path_json::list")]
    pub sources: Vec<PathBuf>,
    /// The sources do not change: programs look paths up before they ask the source.
    #[serde(default)]
    pub frozen: bool,
    /// Copies are compared with their sources before they are served.
    #[serde(default)]
    pub check: bool,
    /// What the daemon reads of the sources.
    #[serde(default)]
    pub fetch: Fetch,
    /// Copies stay when the run ends.
    #[serde(default = "yes")]
    pub keep: bool,
}

fn yes() -> bool {
    true
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;
    use std::os::unix::ffi::OsStringExt;

    use super::*;

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
