//! The strategies of the LMDBIO paper: walking from record to record, and reading by turns.
//!
//! - `lookup` answers a planner from what the roots of the node found; a damaged page is looked up in the index.
//! - `root` is the thread that walks ahead of the planners, `walk` goes from record to record; with `handoff` one root
//!   of the job walks at a time.
//! - `scan` builds an index by such a walk when the loader is made.
//! - `read_token` is a reader's turn; `token_client` asks rank 0's node for it.

pub(crate) mod handoff;
pub(crate) mod lookup;
pub(crate) mod read_token;
pub(crate) mod root;
pub(crate) mod scan;
pub(crate) mod token_client;
pub(crate) mod walk;
