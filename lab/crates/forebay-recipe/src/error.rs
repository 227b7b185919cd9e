//! Failure of a recipe.

use std::path::PathBuf;

/// Failure of deriving, declaring or using a recipe.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The recipe predicts another file.
    #[error("{}: the recipe does not lead to this file: {what}: expected {expected}, found {found}", path.display())]
    Mismatch {
        /// The data file.
        path: PathBuf,
        /// Which fact differs.
        what: String,
        /// What follows from the recipe.
        expected: String,
        /// What the file has.
        found: String,
    },
    /// The dataset, or a file of recipes, cannot be read.
    #[error(transparent)]
    Format(#[from] forebay_format::Error),
}

impl Error {
    /// Advice that goes below the message, if there is any.
    #[must_use]
    pub fn hint(&self) -> Option<&str> {
        match self {
            Self::Mismatch { .. } => Some("the ordinary index serves instead: build it with `forebay index`"),
            Self::Format(error) => error.hint(),
        }
    }
}
