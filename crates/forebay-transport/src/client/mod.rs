//! The fetching side of a rank.
//!
//! - `fetcher` is the seam, `tcp` implements it.
//! - `connect` makes a connection, `link` drives it, `receiver` puts answers where they belong.
//!   `turns`: one waiting thread at a time drives a link for all of them.

pub(crate) mod connect;
pub(crate) mod fetcher;
pub(crate) mod link;
pub(crate) mod receiver;
pub(crate) mod tcp;
#[doc(hidden)]
pub mod turns;
