//! `forebay run`: programs whose files a daemon copies to tiers of the node, whole file by whole
//! file, as they read them.
//!
//! - `copying`: a copy under way ([`Copying`]).
//! - `node_run`: what the daemon of a node knows ([`NodeRun`]).

mod copying;
mod node_run;

pub(crate) use self::copying::{CopyJob, Copying, Wanted};
pub(crate) use self::node_run::NodeRun;
