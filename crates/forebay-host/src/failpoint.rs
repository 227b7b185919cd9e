//! Failpoints: faults at exact places, for tests of failures on real processes.
//!
//! The environment variable `FOREBAY_FAILPOINT` sets one; each process reads it once:
//!
//! - `stop:PLACE` or `stop:PLACE:N` stops the process, as SIGSTOP does, at a [`StopPoint`]
//!   for the N-th time. The test then continues the process or kills it.
//! - `guess:wrong` makes each page prefetch of a root that waits for a cursor miss the pages that
//!   it needs.
//! - `share:lose:N` makes the leader of a node withdraw its share of an in-memory store after its
//!   N-th batch.
//! - `ucx:any` lets the store use UCX over any transport; `ucx:load` lets it look for RDMA without
//!   a device.
//!
//! Without the variable a failpoint costs one load. An invalid value is an error when a loader is
//! created.

use std::str::FromStr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

const VARIABLE: &str = "FOREBAY_FAILPOINT";

/// Where a process can be stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopPoint {
    /// A root has taken the cursor that was handed to it, and no other root has it (`cursor`).
    Cursor,
    /// A node has been given a token (`token`).
    Token,
    /// The scan visits a page (`scan`).
    Scan,
    /// The scanned index has reached one more node, but not all (`broadcast`).
    Broadcast,
}

/// What the store accepts of UCX.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForcedUcx {
    /// Any transport.
    AnyTransport,
    /// No device, but RDMA.
    AnyDevice,
}

#[derive(Debug)]
enum Failpoint {
    Stop { point: StopPoint, left: AtomicU64 },
    WrongGuesses,
    LoseShare { left: AtomicU64 },
    Ucx(ForcedUcx),
}

impl FromStr for Failpoint {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let expected = || {
            format!(
                "{VARIABLE}: expected guess:wrong, share:lose:N, ucx:any, ucx:load, or stop:PLACE[:N] with PLACE cursor, token, scan or broadcast; \
                 found {text:?}"
            )
        };
        let parts: Vec<&str> = text.split(':').collect();
        let (name, count) = match parts[..] {
            ["ucx", "any"] => return Ok(Self::Ucx(ForcedUcx::AnyTransport)),
            ["ucx", "load"] => return Ok(Self::Ucx(ForcedUcx::AnyDevice)),
            ["guess", "wrong"] => return Ok(Self::WrongGuesses),
            ["share", "lose", count] => {
                let left = count.parse().ok().filter(|count| *count > 0).ok_or_else(expected)?;
                return Ok(Self::LoseShare { left: AtomicU64::new(left) });
            }
            ["stop", name] => (name, Some(1)),
            ["stop", name, count] => (name, count.parse().ok().filter(|count| *count > 0)),
            _ => return Err(expected()),
        };
        let point = match name {
            "cursor" => StopPoint::Cursor,
            "token" => StopPoint::Token,
            "scan" => StopPoint::Scan,
            "broadcast" => StopPoint::Broadcast,
            _ => return Err(expected()),
        };
        Ok(Self::Stop { point, left: AtomicU64::new(count.ok_or_else(expected)?) })
    }
}

fn wanted() -> &'static Result<Option<Failpoint>, String> {
    static WANTED: OnceLock<Result<Option<Failpoint>, String>> = OnceLock::new();
    WANTED.get_or_init(|| match std::env::var(VARIABLE) {
        Ok(text) if !text.is_empty() => text.parse().map(Some),
        _ => Ok(None),
    })
}

/// Checks the variable.
///
/// # Errors
/// What was expected, where its value is invalid.
pub fn check() -> Result<(), String> {
    wanted().as_ref().map(|_| ()).map_err(Clone::clone)
}

/// Stops the process if the failpoint names this point.
pub fn at(here: StopPoint) {
    if let Ok(Some(Failpoint::Stop { point, left })) = wanted()
        && *point == here
        && left.load(Ordering::Relaxed) > 0
        && left.fetch_sub(1, Ordering::Relaxed) == 1
    {
        eprintln!("forebay: {VARIABLE}: process {} stops at {here:?}", std::process::id());
        // To this thread: another thread of the process could take the signal while this one runs.
        // SAFETY: raise(3) has no preconditions.
        unsafe { libc::raise(libc::SIGSTOP) };
    }
}

/// Whether guesses are to be wrong.
#[must_use]
pub fn spoils_guesses() -> bool {
    matches!(wanted(), Ok(Some(Failpoint::WrongGuesses)))
}

/// What the store accepts of UCX, beyond RDMA.
#[must_use]
pub fn forces_ucx() -> Option<ForcedUcx> {
    match wanted() {
        Ok(Some(Failpoint::Ucx(forced))) => Some(*forced),
        _ => None,
    }
}

/// Whether the share of this node is to be withdrawn now; called once for each batch.
#[must_use]
pub fn loses_share() -> bool {
    let Ok(Some(Failpoint::LoseShare { left })) = wanted() else { return false };
    left.load(Ordering::Relaxed) > 0 && left.fetch_sub(1, Ordering::Relaxed) == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failpoint_is_parsed_or_refused() {
        let stop = |text: &str| match text.parse() {
            Ok(Failpoint::Stop { point, left }) => Some((point, left.into_inner())),
            _ => None,
        };
        assert_eq!(stop("stop:cursor"), Some((StopPoint::Cursor, 1)));
        assert_eq!(stop("stop:scan:20"), Some((StopPoint::Scan, 20)));
        assert!(matches!("guess:wrong".parse(), Ok(Failpoint::WrongGuesses)));
        assert!(matches!("ucx:any".parse(), Ok(Failpoint::Ucx(ForcedUcx::AnyTransport))));
        assert!(matches!("ucx:load".parse(), Ok(Failpoint::Ucx(ForcedUcx::AnyDevice))));
        assert!(matches!("share:lose:3".parse(), Ok(Failpoint::LoseShare { .. })));
        for wrong in [
            "stop",
            "stop:",
            "stop:nowhere",
            "stop:token:0",
            "stop:token:x",
            "stop:token:1:2",
            "guess",
            "x",
            "share:lose",
            "share:lose:0",
        ] {
            let refused = wrong.parse::<Failpoint>().unwrap_err();
            assert!(refused.contains("stop:PLACE[:N]") && refused.contains(wrong), "{refused}");
        }
    }
}
