//! Branch and leaf pages: header, pointers, nodes.
//!
//! [`decode`] checks a page before any of it is used: its own number, its type, its bounds, each
//! node, and that the nodes tile the node area exactly. LMDB guarantees the tiling and does not
//! check it; this check catches pointers that alias, nodes that overlap and nearly every damaged
//! length.

use std::cmp::Ordering;
use std::fmt;

use super::meta::{Layout, TREE_INTEGER_KEYS, TREE_REVERSE_KEYS};
use crate::unit_check::lmdb_dialect::{ByteOrder, Dialect, Version, Word};
use crate::unit_check::lmdb_page_error::{PageError, hex16};

/// Page type bits.
const PAGE_IS_BRANCH: u16 = 1;
const PAGE_IS_LEAF: u16 = 2;

/// Leaf node flag: the value lies on overflow pages.
const NODE_IS_BIG: u16 = 1;
/// Leaf node flag: the value is the record of a tree.
const NODE_IS_TREE: u16 = 2;

/// Length of a node's header \[bytes\].
const NODE_HEADER_BYTES: u32 = 8;

/// Type that a page has to be, by its level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Branch,
    Leaf,
}

/// One node of a page; offsets are within the page.
#[derive(Clone, Copy, Debug)]
pub(super) struct PageNode {
    /// First byte of the node \[bytes\].
    pub(super) at: u32,
    /// Length of the key \[bytes\].
    key_bytes: u16,
    /// Its contents.
    pub(super) payload: Payload,
}

/// Contents of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Payload {
    /// A page one level down.
    Child(u64),
    /// A value on the page: first byte and length \[bytes\].
    Inline { at: u32, length: u32 },
    /// A value on overflow pages: first page, length \[bytes\], length of the run if the node
    /// stores it \[pages\].
    Big { page: u64, length: u32, pages: Option<u64> },
    /// A named database: where its record is.
    Tree { at: u32 },
}

impl PageNode {
    /// The key.
    pub(super) fn key<'a>(&self, page: &'a [u8]) -> &'a [u8] {
        let at = (self.at + NODE_HEADER_BYTES) as usize;
        &page[at..at + usize::from(self.key_bytes)]
    }
}

/// Checks page `number` and writes its nodes, in key order, to `nodes`. `bytes` is one whole page.
pub(super) fn decode(
    layout: &Layout,
    number: u64,
    role: Role,
    bytes: &[u8],
    nodes: &mut Vec<PageNode>,
) -> Result<(), PageError> {
    let dialect = layout.dialect;
    let header = dialect.header_bytes();
    let end = layout.end();
    let error = |at: u32, what: &str, expected: &dyn fmt::Display, found: &dyn fmt::Display| {
        let what = format!("LMDB page {number}: {what}");
        Err(PageError::new(layout.offset(number) + u64::from(at), what, expected, found))
    };
    nodes.clear();

    let stored = dialect.word(bytes, 0);
    if stored != number {
        return error(0, "page number", &number, &stored);
    }
    let flags = dialect.u16(bytes, header as usize - 6);
    let wanted = match role {
        Role::Branch => PAGE_IS_BRANCH,
        Role::Leaf => PAGE_IS_LEAF,
    };
    if flags != wanted {
        let expected = format!("{} ({role:?})", hex16(wanted));
        return error(header - 6, "page type", &expected, &hex16(flags));
    }
    let base = dialect.pointer_base();
    let lower = u32::from(dialect.u16(bytes, header as usize - 4)) + base;
    let upper = u32::from(dialect.u16(bytes, header as usize - 2)) + base;
    if lower <= header || lower > upper || upper >= end || !(lower - header).is_multiple_of(2) {
        let expected = format!("{header} < lower < upper < {end}, lower even");
        return error(header - 4, "bounds", &expected, &format!("lower {lower}, upper {upper}"));
    }

    // In the order of insertion each node starts where the previous one ends, from the end of the
    // page downwards.
    let mut floor = end;
    let mut tiled = true;
    for index in 0..(lower - header) / 2 {
        let pointer_at = header + 2 * index;
        let at = u32::from(dialect.u16(bytes, pointer_at as usize)) + base;
        if at < upper || at > end - NODE_HEADER_BYTES || !(end - at).is_multiple_of(2) {
            let expected = format!("an even offset from {upper} to {}", end - NODE_HEADER_BYTES);
            return error(pointer_at, &format!("pointer {index}"), &expected, &at);
        }
        let (node, length) = match decode_node(dialect, role, bytes, at, end) {
            Ok(decoded) => decoded,
            Err(Defect { at, what, expected, found }) => {
                return error(at, &format!("node {index}: {what}"), &expected, &found);
            }
        };
        tiled &= at + length == floor;
        floor = at;
        nodes.push(node);
    }
    if !tiled {
        let mut spans: Vec<_> =
            nodes.iter().map(|node| (node.at, node.at + span(dialect, bytes, node))).collect();
        spans.sort_unstable();
        floor = spans[0].0;
        for pair in spans.windows(2) {
            if pair[0].1 != pair[1].0 {
                return error(pair[0].0, "nodes", &format!("the next one at {}", pair[0].1), &pair[1].0);
            }
        }
        let last = spans[spans.len() - 1];
        if last.1 != end {
            return error(last.0, "nodes", &format!("the last one to end at {end}"), &last.1);
        }
    }
    if floor != upper {
        return error(header - 2, "nodes", &format!("the first one at {upper}"), &floor);
    }
    Ok(())
}

/// What is wrong with a node; the offset is within the page.
struct Defect {
    at: u32,
    what: &'static str,
    expected: String,
    found: String,
}

/// Decodes the node at `at`, of which at least the header lies before `end`. Returns it and its
/// length on the page.
fn decode_node(
    dialect: Dialect,
    role: Role,
    bytes: &[u8],
    at: u32,
    end: u32,
) -> Result<(PageNode, u32), Defect> {
    let start = at as usize;
    let low = dialect.u32(bytes, start);
    let flags = dialect.u16(bytes, start + 4);
    let key_bytes = dialect.u16(bytes, start + 6);
    let room = end - at - NODE_HEADER_BYTES;
    let key_room = padded_key(dialect, role, key_bytes);
    if key_room > room {
        let expected = format!("at most {room} bytes");
        return Err(Defect { at: at + 6, what: "key length", expected, found: key_bytes.to_string() });
    }
    if role == Role::Branch {
        let high = match dialect.word {
            Word::Bits32 => 0,
            Word::Bits64 => u64::from(flags) << 32,
        };
        let node = PageNode { at, key_bytes, payload: Payload::Child(u64::from(low) | high) };
        return Ok((node, even(NODE_HEADER_BYTES + key_room)));
    }
    if key_bytes == 0 {
        return Err(Defect {
            at: at + 6,
            what: "key length",
            expected: "at least 1".to_owned(),
            found: "0".to_owned(),
        });
    }
    let payload_at = at + NODE_HEADER_BYTES + key_room;
    let payload_room = room - key_room;
    let payload_bytes = match flags {
        NODE_IS_BIG => dialect.big_payload_bytes() as u32,
        _ => low,
    };
    if payload_bytes > payload_room {
        let (expected, found) = (format!("at most {payload_room} bytes"), payload_bytes.to_string());
        return Err(Defect { at, what: "value length", expected, found });
    }
    let first = payload_at as usize;
    let payload = match flags {
        0 => Payload::Inline { at: payload_at, length: low },
        NODE_IS_BIG => {
            let page = dialect.word(bytes, first);
            let pages = match dialect.version {
                Version::V0_9 => None,
                Version::V1_0 => Some(dialect.word(bytes, first + 2 * dialect.word_bytes())),
            };
            Payload::Big { page, length: low, pages }
        }
        NODE_IS_TREE if payload_bytes as usize == dialect.tree_record_bytes() => {
            Payload::Tree { at: payload_at }
        }
        NODE_IS_TREE => {
            let expected = format!("a tree record of {} bytes", dialect.tree_record_bytes());
            return Err(Defect { at, what: "value length", expected, found: payload_bytes.to_string() });
        }
        _ => {
            let expected = "0 (value), 1 (big value) or 2 (named database)".to_owned();
            return Err(Defect { at: at + 4, what: "flags", expected, found: hex16(flags) });
        }
    };
    let length = even(NODE_HEADER_BYTES + key_room + payload_bytes);
    if length > end - at {
        let (expected, found) = (format!("at most {} bytes", end - at), length.to_string());
        return Err(Defect { at, what: "length", expected, found });
    }
    Ok((PageNode { at, key_bytes, payload }, length))
}

/// Length of a decoded node on its page \[bytes\].
fn span(dialect: Dialect, bytes: &[u8], node: &PageNode) -> u32 {
    let role = if matches!(node.payload, Payload::Child(_)) { Role::Branch } else { Role::Leaf };
    let payload_bytes = match node.payload {
        Payload::Child(_) => 0,
        Payload::Inline { length, .. } => length,
        Payload::Big { .. } => dialect.big_payload_bytes() as u32,
        Payload::Tree { .. } => dialect.u32(bytes, node.at as usize),
    };
    even(NODE_HEADER_BYTES + padded_key(dialect, role, node.key_bytes) + payload_bytes)
}

/// Bytes between the header and the payload of a node: LMDB 1.0 starts values at even offsets.
fn padded_key(dialect: Dialect, role: Role, key_bytes: u16) -> u32 {
    match (dialect.version, role) {
        (Version::V1_0, Role::Leaf) => even(u32::from(key_bytes)),
        _ => u32::from(key_bytes),
    }
}

fn even(length: u32) -> u32 {
    length + (length & 1)
}

/// Order of two keys in a tree with these flags; `None` where LMDB defines none.
pub(super) fn compare_keys(dialect: Dialect, tree_flags: u16, left: &[u8], right: &[u8]) -> Option<Ordering> {
    let reversed = || left.iter().rev().cmp(right.iter().rev());
    if tree_flags & TREE_INTEGER_KEYS != 0 {
        return match dialect.byte_order {
            _ if left.len() != right.len() => None,
            ByteOrder::Little => Some(reversed()),
            ByteOrder::Big => Some(left.cmp(right)),
        };
    }
    if tree_flags & TREE_REVERSE_KEYS != 0 {
        return Some(reversed());
    }
    Some(left.cmp(right))
}
