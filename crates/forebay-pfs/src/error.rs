//! What can be wrong with a question to the model.

/// Wrong use by the caller, or a specification that makes no sense.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No preset has this name.
    #[error("no preset is called {name:?}\nhint: the presets are {}", known.join(", "))]
    UnknownPreset {
        /// What was asked for.
        name: String,
        /// What there is.
        known: &'static [&'static str],
    },
    /// The text is no TOML, or not that of a specification.
    #[error("file system specification {path}: {}", source.to_string().trim_end())]
    Toml {
        /// Where the text came from.
        path: String,
        /// What the parser found.
        #[source]
        source: Box<toml::de::Error>,
    },
    /// The overrides are no JSON, or not that of fields of a specification.
    #[error("overrides of file system specification {name:?}: {source}")]
    Overrides {
        /// The specification that was to be changed.
        name: String,
        /// What the parser found.
        #[source]
        source: serde_json::Error,
    },
    /// A field has a value that no file system can have.
    #[error("file system specification {name:?}: {field} = {found}: expected {expected}")]
    Field {
        /// The specification.
        name: String,
        /// Its field.
        field: String,
        /// What it must be.
        expected: String,
        /// What it is.
        found: String,
    },
    /// There is no such server.
    #[error("file system {name:?} has no server {server}: its servers are 0 to {last}")]
    NoServer {
        /// The specification.
        name: String,
        /// What was asked for.
        server: u32,
        /// The last one there is.
        last: u32,
    },
    /// A server cannot be slowed down by this.
    #[error(
        "server {server} of file system {name:?}: slow factor {factor}: expected a finite number above 0, 1 is normal"
    )]
    SlowFactor {
        /// The specification.
        name: String,
        /// The server.
        server: u32,
        /// What was asked for.
        factor: f64,
    },
}
