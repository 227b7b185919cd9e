//! The seam between what the store wants and how bytes get here.
//!
//! A caller claims memory, describes it as [`Destination`]s, and starts a request with
//! [`Fetcher::fetch`]. The implementation writes the bytes straight into that memory.
//! [`Fetcher::wait`] returns once they are there. Several requests to each peer can be in flight.
//!
//! [`TcpFetcher`](crate::TcpFetcher) is the implementation that is always there. Another one, by
//! remote reads of the network card for example, implements the same trait.

use std::fmt;
use std::ptr::NonNull;
use std::time::Instant;

use crate::error::TransportError;

/// Index of a peer in the list with which a fetcher was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Peer(pub usize);

/// Memory that the caller has claimed, into which the bytes of a piece are received.
#[derive(Clone, Copy)]
pub struct Destination {
    start: NonNull<u8>,
    length: usize,
}

// SAFETY: who made it promised that nothing else uses the memory; threads of the process share it.
unsafe impl Send for Destination {}
// SAFETY: a shared reference gives the address only.
unsafe impl Sync for Destination {}

impl Destination {
    /// Describes `length` bytes from `start`.
    ///
    /// # Safety
    /// From the call of [`Fetcher::fetch`] until the memory is released, all of it must be valid
    /// for writes, and nothing else may read or write it. It is released when
    /// - `fetch` returns an error,
    /// - [`Fetcher::wait`] for its ticket returns anything but [`TransportError::Deadline`],
    /// - the peer is connected again ([`Fetcher::reconnect`]), or
    /// - the fetcher is dropped.
    ///
    /// Destinations of one fetcher that are claimed at the same time must not overlap.
    #[must_use]
    pub unsafe fn new(start: NonNull<u8>, length: usize) -> Self {
        Self { start, length }
    }

    pub(crate) fn as_ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    pub(crate) fn len(&self) -> usize {
        self.length
    }
}

impl fmt::Debug for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Destination({} bytes)", self.length)
    }
}

/// A part of a peer's share, and where its bytes go.
#[derive(Clone, Copy, Debug)]
pub struct Piece {
    /// First byte \[bytes from the start of the peer's share\].
    pub offset: u64,
    /// Where the bytes go; its length is how many are fetched.
    pub into: Destination,
}

/// A request in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "the memory stays claimed until the ticket is waited for"]
pub struct Ticket {
    pub(crate) peer: Peer,
    /// Step of the request, for messages.
    pub(crate) step: u64,
    /// How often the peer's connection had been made when the request was sent.
    pub(crate) generation: u64,
    /// Number of the request on its connection.
    pub(crate) number: u64,
}

impl Ticket {
    /// A ticket of an implementation of [`Fetcher`] elsewhere; it gives the numbers their meaning.
    pub fn numbered(peer: Peer, step: u64, generation: u64, number: u64) -> Self {
        Self { peer, step, generation, number }
    }

    /// The peer that was asked.
    pub fn peer(self) -> Peer {
        self.peer
    }

    /// The step for which it was asked.
    pub fn step(self) -> u64 {
        self.step
    }
}

/// Fetches parts of shares of other nodes.
pub trait Fetcher: Send + Sync {
    /// Starts to fetch `pieces` from `peer` for `step`. They are sorted by offset and do not
    /// overlap.
    ///
    /// Does not wait for the network. What cannot be sent now is sent by [`Fetcher::wait`].
    fn fetch(&self, peer: Peer, step: u64, pieces: &[Piece]) -> Result<Ticket, TransportError>;

    /// Waits until all bytes of a request have arrived.
    ///
    /// [`TransportError::Deadline`] leaves the request in flight; wait again. Any other error is
    /// of the connection, and all its requests fail with it.
    fn wait(&self, ticket: Ticket, deadline: Instant) -> Result<(), TransportError>;

    /// Ends the connection to a peer, releases the memory of its requests, and begins to connect
    /// again. Its tickets become stale.
    fn reconnect(&self, peer: Peer) -> Result<(), TransportError>;
}
