//! A lost process of the job and the cause, encoded as one word that fits into shared memory.

use std::fmt;

use serde::{Deserialize, Serialize};

/// How a loss was detected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[repr(u8)]
pub enum Cause {
    /// The process ended without a shutdown.
    Died = 1,
    /// Its node does not answer any more: it is switched off or cut off.
    Silent = 2,
    /// It gave up while the loader was created.
    GaveUp = 3,
    /// It sent malformed messages.
    Broken = 4,
}

impl Cause {
    /// The verb of a message.
    #[must_use]
    pub fn verb(self) -> &'static str {
        match self {
            Self::Died => "died",
            Self::Silent => "does not answer any more: its node is switched off or cut off",
            Self::GaveUp => "could not make the loader",
            Self::Broken => "sent malformed messages",
        }
    }
}

/// A process that is lost to its job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerFailure {
    /// How the loss was detected.
    pub cause: Cause,
    /// Its rank in the job.
    pub rank: u32,
    /// Its process id, as its own node sees it; for messages only.
    pub pid: i32,
}

/// Bits of the word that hold the process id; Linux gives 22 at most.
const PID_BITS: u32 = 28;

impl PeerFailure {
    /// One word that is never 0.
    #[must_use]
    pub fn to_word(self) -> u64 {
        let pid = u64::from(self.pid.cast_unsigned()) & ((1 << PID_BITS) - 1);
        (self.cause as u64) << 60 | pid << 32 | u64::from(self.rank)
    }

    /// Decodes what [`PeerFailure::to_word`] returned.
    #[must_use]
    pub fn from_word(word: u64) -> Option<Self> {
        let cause = [Cause::Died, Cause::Silent, Cause::GaveUp, Cause::Broken]
            .into_iter()
            .find(|cause| *cause as u64 == word >> 60)?;
        let pid = (word >> 32 & ((1 << PID_BITS) - 1)) as i32;
        Some(Self { cause, rank: (word & 0xffff_ffff) as u32, pid })
    }
}

impl fmt::Display for PeerFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} (process {}) {}", self.rank, self.pid, self.cause.verb())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loss_survives_its_encoding() {
        for cause in [Cause::Died, Cause::Silent, Cause::GaveUp, Cause::Broken] {
            for (rank, pid) in [(0, 1), (u32::MAX, 4_194_304), (7, 0)] {
                let loss = PeerFailure { cause, rank, pid };
                assert_eq!(PeerFailure::from_word(loss.to_word()), Some(loss));
            }
        }
        assert_eq!(PeerFailure::from_word(0), None);
        assert_eq!(PeerFailure::from_word(u64::MAX), None);
    }
}
