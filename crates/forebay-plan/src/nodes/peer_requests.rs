//! Requests of a rank for bytes in the shares of other nodes: where the bytes are, and how they are
//! divided into requests.
//!
//! There is one request to each node, or more where it would be too large. Two places for the same
//! bytes are in two requests, one after the other.

use forebay_types::{CHUNK_BYTES, ChunkPlaces, Extent};

use crate::nodes::store_layout::StoreLayout;

/// Requests in flight per node unless the user says: one for each of four steps.
const DEFAULT_REQUESTS: usize = 4;

/// Most bytes of one request unless the user says \[bytes\]: above what a step of a rank has, so
/// that there is one request per node and step.
const DEFAULT_BYTES: u64 = 64 << 20;

/// How a rank asks other nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestLimits {
    /// Most requests in flight per node.
    pub requests: usize,
    /// Most bytes of one request \[bytes\].
    pub bytes: u64,
}

impl RequestLimits {
    /// The limits that the user gave, else their defaults.
    #[must_use]
    pub fn new(requests: Option<u64>, bytes: Option<u64>) -> Self {
        Self {
            requests: requests.map_or(DEFAULT_REQUESTS, |requests| requests as usize),
            bytes: bytes.unwrap_or(DEFAULT_BYTES),
        }
    }
}

/// Bytes in the share of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharePart {
    /// The node.
    pub node: usize,
    /// First byte \[bytes from the start of the share\].
    pub offset: u64,
    /// Length \[bytes\].
    pub length: u64,
}

impl SharePart {
    /// The bytes of an extent from `done` on that are in one chunk; `None` if no share has it.
    #[must_use]
    pub fn at(layout: &StoreLayout, chunks: &dyn ChunkPlaces, extent: Extent, done: u64) -> Option<Self> {
        let place = chunks.chunk_at(extent.shard, extent.offset + done)?;
        let (node, slot) = layout.locate(place.chunk)?;
        let length = (place.chunk_bytes - place.offset).min(extent.length - done);
        Some(Self { node, offset: slot * CHUNK_BYTES + place.offset, length })
    }
}

/// Where the bytes of an extent are; `None` if a part of it is in no share that `is_usable`.
pub fn share_parts(
    layout: &StoreLayout,
    chunks: &dyn ChunkPlaces,
    extent: Extent,
    is_usable: impl Fn(usize) -> bool,
) -> Option<Vec<SharePart>> {
    let mut parts: Vec<SharePart> = Vec::new();
    let mut done = 0;
    while done < extent.length {
        let part = SharePart::at(layout, chunks, extent, done).filter(|part| is_usable(part.node))?;
        done += part.length;
        match parts.last_mut() {
            Some(last) if last.node == part.node && last.offset + last.length == part.offset => {
                last.length += part.length;
            }
            _ => parts.push(part),
        }
    }
    Some(parts)
}

/// A request to a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerRequest {
    /// The node.
    pub node: usize,
    /// What is asked for, in the order of the share.
    pub pieces: Vec<PeerPiece>,
}

/// A piece of a part that is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerPiece {
    /// Number of the part.
    pub part: usize,
    /// First byte \[bytes from the start of the part\].
    pub start: u64,
    /// Length \[bytes\].
    pub length: u64,
}

/// The requests for parts that are sorted by node and offset, of up to `request_bytes` and
/// `max_pieces` each; larger parts are cut. Also the numbers of the parts that overlap an earlier
/// one: they are asked for once these requests are answered.
#[must_use]
pub fn peer_requests(
    parts: &[SharePart],
    request_bytes: u64,
    max_pieces: usize,
) -> (Vec<PeerRequest>, Vec<usize>) {
    let (mut requests, mut later): (Vec<PeerRequest>, Vec<usize>) = (Vec::new(), Vec::new());
    let (mut end, mut bytes) = (0, 0_u64);
    for (number, part) in parts.iter().enumerate() {
        let is_same_node = requests.last().is_some_and(|request| request.node == part.node);
        if is_same_node && part.offset < end {
            later.push(number);
            continue;
        }
        end = part.offset + part.length;
        let mut done = 0;
        while done < part.length {
            let length = (part.length - done).min(request_bytes);
            let piece = PeerPiece { part: number, start: done, length };
            match requests.last_mut() {
                Some(last)
                    if last.node == part.node
                        && last.pieces.len() < max_pieces
                        && bytes.saturating_add(length) <= request_bytes =>
                {
                    last.pieces.push(piece);
                    bytes += length;
                }
                _ => {
                    requests.push(PeerRequest { node: part.node, pieces: vec![piece] });
                    bytes = length;
                }
            }
            done += length;
        }
    }
    (requests, later)
}

#[cfg(test)]
mod tests {
    use forebay_types::{ChunkPlace, ShardId};

    use super::*;

    /// A file of three chunks.
    struct Chunks;

    impl ChunkPlaces for Chunks {
        fn chunks(&self) -> u64 {
            3
        }

        fn chunk_at(&self, _: ShardId, offset: u64) -> Option<ChunkPlace> {
            let (chunk, offset) = (offset / CHUNK_BYTES, offset % CHUNK_BYTES);
            (chunk < 3).then_some(ChunkPlace { chunk, chunk_bytes: CHUNK_BYTES, offset })
        }
    }

    fn part(node: usize, offset: u64, length: u64) -> SharePart {
        SharePart { node, offset, length }
    }

    #[test]
    fn an_extent_is_found_in_the_shares_of_its_chunks() {
        let layout = StoreLayout::new(&[1, 1, 0], &[8, 8], 7);
        for (offset, length, lost, expected) in [
            (10, 100, None, Some(vec![part(1, 10, 100)])),
            // Two chunks that follow each other in a share, and one of another node.
            (CHUNK_BYTES - 10, 20, None, Some(vec![part(1, CHUNK_BYTES - 10, 20)])),
            (2 * CHUNK_BYTES - 10, 20, None, Some(vec![part(1, 2 * CHUNK_BYTES - 10, 10), part(0, 0, 10)])),
            (2 * CHUNK_BYTES - 10, 20, Some(0), None),
            (3 * CHUNK_BYTES - 10, 20, None, None),
        ] {
            let extent = Extent { shard: ShardId(0), offset, length };
            let found = share_parts(&layout, &Chunks, extent, |node| Some(node) != lost);
            assert_eq!(found, expected, "{extent:?}, {lost:?}");
        }
        let none = StoreLayout::new(&[1, 1, 0], &[8, 0], 7);
        let extent = Extent { shard: ShardId(0), offset: 10, length: 100 };
        assert_eq!(share_parts(&none, &Chunks, extent, |_| true), None);
    }

    #[test]
    fn there_is_one_request_to_each_node_or_more_where_it_would_be_too_large() {
        let piece = |part, start, length| PeerPiece { part, start, length };
        let request = |node, pieces: &[PeerPiece]| PeerRequest { node, pieces: pieces.to_vec() };
        for (parts, request_bytes, max_pieces, requests, later) in [
            (vec![], 100, 8, vec![], vec![]),
            (
                vec![part(0, 0, 10), part(0, 50, 10), part(2, 0, 10)],
                100,
                8,
                vec![request(0, &[piece(0, 0, 10), piece(1, 0, 10)]), request(2, &[piece(2, 0, 10)])],
                vec![],
            ),
            (
                vec![part(0, 0, 60), part(0, 60, 60)],
                100,
                8,
                vec![request(0, &[piece(0, 0, 60)]), request(0, &[piece(1, 0, 60)])],
                vec![],
            ),
            (
                vec![part(1, 0, 250)],
                100,
                8,
                vec![
                    request(1, &[piece(0, 0, 100)]),
                    request(1, &[piece(0, 100, 100)]),
                    request(1, &[piece(0, 200, 50)]),
                ],
                vec![],
            ),
            (
                vec![part(0, 0, 1), part(0, 1, 1), part(0, 2, 1)],
                100,
                2,
                vec![request(0, &[piece(0, 0, 1), piece(1, 0, 1)]), request(0, &[piece(2, 0, 1)])],
                vec![],
            ),
            // The same bytes twice, and those of another node behind them.
            (
                vec![part(0, 0, 10), part(0, 0, 10), part(0, 5, 10), part(1, 0, 10)],
                100,
                8,
                vec![request(0, &[piece(0, 0, 10)]), request(1, &[piece(3, 0, 10)])],
                vec![1, 2],
            ),
        ] {
            assert_eq!(peer_requests(&parts, request_bytes, max_pieces), (requests, later), "{parts:?}");
        }
    }

    #[test]
    fn limits_are_those_of_the_user_or_the_defaults() {
        let defaults = RequestLimits { requests: DEFAULT_REQUESTS, bytes: DEFAULT_BYTES };
        for (requests, bytes, expected) in [
            (None, None, defaults),
            (Some(9), Some(4096), RequestLimits { requests: 9, bytes: 4096 }),
            (Some(9), None, RequestLimits { requests: 9, ..defaults }),
        ] {
            assert_eq!(RequestLimits::new(requests, bytes), expected);
        }
    }
}
