//! Errors of a simulation.

/// A job that cannot be simulated.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The file system is invalid.
    #[error(transparent)]
    Model(#[from] forebay_model::Error),
    /// The options contradict a rule or each other.
    #[error("{0}")]
    Options(#[from] forebay_plan::options::OptionError),
    /// The index of the dataset is damaged.
    #[error(transparent)]
    Index(#[from] forebay_format::Error),
    /// A number of the job is not possible.
    #[error("{what}: expected {expected}, found {found}")]
    Job {
        /// The number.
        what: &'static str,
        /// What is possible.
        expected: String,
        /// What was given.
        found: String,
    },
    /// The loader needs more memory than it may use.
    #[error(
        "node_memory: expected at least {minimum_bytes} bytes (batch buffers {buffer_bytes}, \
         staging {staging_bytes}), found {found_bytes}"
    )]
    Memory {
        /// The least that works \[bytes\].
        minimum_bytes: u64,
        /// Of that, batch buffers \[bytes\].
        buffer_bytes: u64,
        /// Of that, the staging ring \[bytes\].
        staging_bytes: u64,
        /// What it may use \[bytes\].
        found_bytes: u64,
    },
    /// All threads of the job wait for each other: a fault of the simulator.
    #[error("the simulated job stands still after {steps} of {expected} steps")]
    Stuck {
        /// Steps that ended.
        steps: u64,
        /// Steps of the run.
        expected: u64,
    },
    /// The simulator has no model of it.
    #[error("not modelled: {0}")]
    NotModelled(String),
}

impl Error {
    /// Advice; may be empty.
    pub fn hint(&self) -> &str {
        match self {
            Error::Options(error) => &error.hint,
            _ => "",
        }
    }

    pub(crate) fn job(what: &'static str, expected: impl Into<String>, found: &impl ToString) -> Error {
        Error::Job { what, expected: expected.into(), found: found.to_string() }
    }
}
