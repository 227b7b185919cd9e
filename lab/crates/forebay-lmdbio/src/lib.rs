//! The strategies of the LMDBIO paper (Pumma et al.), plugged into a loader through the traits of
//! `forebay-plan`.
//!
//! - LMDB, LMM: with [`CursorWalks`] each rank, or each root of a node for all its ranks, finds
//!   samples by walking from record to record.
//! - LMM-DM: with [`HandoffWalks`] one root of the job walks at a time, and its cursor goes from
//!   node to node.
//! - LMM-DIO: with [`CursorScan`] one process makes an index by such a walk when the loader is
//!   made.
//!
//! Two parts of LMM-DM are pure, and public: [`Handoff`] decides when a cursor goes where,
//! [`PageGuess`] which pages a root asks for meanwhile.
//!
//! Nothing here starts a thread, maps a file or opens a connection: the host traits do that. Only
//! LMDB files are walked.
#![forbid(unsafe_code)]

mod cursor_walk;
mod handoff;
mod handoff_host;
mod handoff_walk;
mod page_guess;
mod scan;

pub use cursor_walk::CursorWalks;
pub use handoff::{Handoff, Inbox, NextRoot, Wait, WaitFacts};
pub use handoff_walk::HandoffWalks;
pub use page_guess::{GuessOutcome, PageGuess};
pub use scan::CursorScan;
