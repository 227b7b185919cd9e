//! Why a server refuses a connection or a request: the status numbers of the protocol.

use std::fmt;

/// Reason of a server to refuse a connection or a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refusal {
    /// The server speaks another version of the protocol.
    Version,
    /// The peer does not know the secret of the job.
    Secret,
    /// The address belongs to another node.
    Node,
    /// The node exports no share of this store.
    Store,
    /// The share was made from another dataset.
    Dataset,
    /// The server has its maximum number of connections.
    Connections,
    /// The hello asks for something that this version does not know.
    Option,
    /// A request has no entries, or too many.
    Count,
    /// The entries of a request cannot be parsed.
    Malformed,
    /// The entries of a request are not sorted, or overlap.
    Order,
    /// An entry is outside the share.
    Outside,
    /// The answer would be too large.
    Bytes,
}

impl Refusal {
    /// All of them, in the order of their numbers, which begin with 1.
    const ALL: [Self; 12] = [
        Self::Version,
        Self::Secret,
        Self::Node,
        Self::Store,
        Self::Dataset,
        Self::Connections,
        Self::Option,
        Self::Count,
        Self::Malformed,
        Self::Order,
        Self::Outside,
        Self::Bytes,
    ];

    /// Its number in messages; 0 is success.
    pub(crate) fn status(self) -> u32 {
        self as u32 + 1
    }

    /// The refusal of a status that is not 0, if this version knows it.
    pub(crate) fn from_status(status: u32) -> Option<Self> {
        Self::ALL.get((status as usize).checked_sub(1)?).copied()
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Version => "it speaks another version of the protocol",
            Self::Secret => "this process does not know the secret of its job",
            Self::Node => "another node of the job listens at this address",
            Self::Store => "it exports no share of this store",
            Self::Dataset => "its share was made from another dataset",
            Self::Connections => "it has its maximum number of connections",
            Self::Option => "it does not know an option of this connection",
            Self::Count => "the number of entries is 0 or too large",
            Self::Malformed => "the entries cannot be parsed",
            Self::Order => "the entry overlaps the one before it, or they are not sorted",
            Self::Outside => "the entry is outside the share",
            Self::Bytes => "the answer would be too large",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_read_back_and_others_are_unknown() {
        for refusal in Refusal::ALL {
            assert_eq!(Refusal::from_status(refusal.status()), Some(refusal));
        }
        assert_eq!(Refusal::from_status(0), None);
        assert_eq!(Refusal::from_status(13), None);
    }
}
