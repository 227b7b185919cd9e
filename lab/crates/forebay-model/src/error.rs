//! Errors of specifications, and of calls to the model.

/// Wrong use by the caller, or an invalid specification.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No preset has this name.
    #[error("unknown preset {name:?}\nhint: the presets are {}", known.join(", "))]
    UnknownPreset {
        /// The name that was asked for.
        name: String,
        /// All names.
        known: &'static [&'static str],
    },
    /// The string is not TOML, or not a specification.
    #[error("file system specification {path}: {}", source.to_string().trim_end())]
    Toml {
        /// Where the string came from.
        path: String,
        /// The parser's error.
        #[source]
        source: Box<toml::de::Error>,
    },
    /// The overrides are not JSON, or not fields of a specification.
    #[error("overrides of file system specification {name:?}: {source}")]
    Overrides {
        /// The specification that was to be changed.
        name: String,
        /// The parser's error.
        #[source]
        source: serde_json::Error,
    },
    /// A field has a value that no file system can have.
    #[error("file system specification {name:?}: {field}: expected {expected}, found {found}")]
    Field {
        /// The specification.
        name: String,
        /// The field.
        field: String,
        /// The values that are allowed.
        expected: String,
        /// The value.
        found: String,
    },
    /// The server does not exist.
    #[error("file system {name:?}: server: expected 0 to {last}, found {server}")]
    NoServer {
        /// The specification.
        name: String,
        /// The server that was asked for.
        server: u32,
        /// The last server.
        last: u32,
    },
    /// A server cannot be slowed down by this factor.
    #[error(
        "file system {name:?}: slow factor of server {server}: \
         expected a finite number above 0 (1 is normal), found {factor}"
    )]
    SlowFactor {
        /// The specification.
        name: String,
        /// The server.
        server: u32,
        /// The factor.
        factor: f64,
    },
}
