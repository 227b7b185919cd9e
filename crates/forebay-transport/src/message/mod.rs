//! The protocol to the byte.
//!
//! - `handshake`: how both sides prove that they know the secret of the job; `auth`: its messages.
//! - `request` and `answer`; `refusal`: why a server refuses. `untrusted` parses any bytes,
//!   for fuzzing.

pub(crate) mod answer;
pub(crate) mod auth;
pub mod handshake;
pub(crate) mod refusal;
pub(crate) mod request;
#[doc(hidden)]
pub mod untrusted;
