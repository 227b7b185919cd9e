//! The sizes that decide where LMDB puts things: of pages, of nodes, of values on pages of their
//! own.
//!
//! Source: `docs/formats/lmdb.md`; the limits were checked one byte either side against real
//! libraries.

use forebay_format::lmdb::{Dialect, Version};

use crate::facts::SplitClass;

/// Length of a node's header \[bytes\].
const NODE_HEADER_BYTES: u64 = 8;

/// Length of a pointer to a node \[bytes\].
const POINTER_BYTES: u64 = 2;

/// What one library does on pages of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PageRules {
    /// Length of a page \[bytes\].
    pub(crate) page_bytes: u64,
    /// Length of a page header \[bytes\].
    pub(crate) header_bytes: u64,
    /// First byte after the nodes of a page \[bytes\].
    pub(crate) end: u64,
    /// Length of a page number \[bytes\].
    pub(crate) word_bytes: u64,
    /// Largest node whose value stays on the leaf \[bytes\].
    inline_limit_bytes: u64,
    /// Length of the reference to a value that has pages of its own \[bytes\].
    big_payload_bytes: u64,
    /// Whether values start at even offsets.
    pads_keys: bool,
}

/// A node of a leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LeafNode {
    /// Length without its pointer \[bytes\].
    pub(crate) bytes: u64,
    /// Space that the library requires for it and its pointer before it is put on a leaf \[bytes\].
    pub(crate) wanted_bytes: u64,
    /// From the start of the node to its value, or to the reference to it \[bytes\].
    pub(crate) value_at: u64,
    /// Pages of the value's own; 0 for a value on the leaf.
    pub(crate) overflow_pages: u64,
}

impl PageRules {
    /// The rules, or why there are none.
    pub(crate) fn new(
        dialect: Dialect,
        page_bytes: u32,
        checksum_bytes: u32,
        split_class: SplitClass,
    ) -> Result<Self, String> {
        if !page_bytes.is_power_of_two() || !(256..=dialect.largest_page_bytes()).contains(&page_bytes) {
            return Err(format!("pages of {page_bytes} bytes"));
        }
        if checksum_bytes > page_bytes / 4 || (checksum_bytes > 0 && dialect.version == Version::V0_9) {
            return Err(format!("checksums of {checksum_bytes} bytes"));
        }
        if dialect.version == Version::V1_0 && split_class != SplitClass::Modern {
            return Err("LMDB 1.0 with the rules of LMDB 0.9.9".to_owned());
        }
        let (page_bytes, header_bytes) = (u64::from(page_bytes), u64::from(dialect.header_bytes()));
        let end = page_bytes - u64::from(checksum_bytes);
        let half = (end - header_bytes) / 2;
        let inline_limit_bytes = match split_class {
            SplitClass::Modern => (half & !1) - 2,
            // It compares with "less than half a page".
            SplitClass::V0_9_9 => half - 1,
        };
        Ok(Self {
            page_bytes,
            header_bytes,
            end,
            word_bytes: dialect.word_bytes() as u64,
            inline_limit_bytes,
            big_payload_bytes: dialect.big_payload_bytes() as u64,
            pads_keys: dialect.version == Version::V1_0,
        })
    }

    /// The node of a record.
    pub(crate) fn leaf_node(&self, key_bytes: u64, value_bytes: u64) -> LeafNode {
        let value_at = NODE_HEADER_BYTES + if self.pads_keys { even(key_bytes) } else { key_bytes };
        if value_at + value_bytes <= self.inline_limit_bytes {
            let bytes = even(value_at + value_bytes);
            return LeafNode { bytes, wanted_bytes: bytes + POINTER_BYTES, value_at, overflow_pages: 0 };
        }
        let overflow_pages =
            (self.header_bytes - 1 + (self.page_bytes - self.end) + value_bytes) / self.page_bytes + 1;
        let bytes = even(value_at + self.big_payload_bytes);
        // LMDB 1.0 rounds the length of the value up, which is not on the leaf at all.
        let excess_bytes = if self.pads_keys { 2 * (value_bytes & 1) } else { 0 };
        LeafNode { bytes, wanted_bytes: bytes + POINTER_BYTES + excess_bytes, value_at, overflow_pages }
    }

    /// Longest key that is accepted: two nodes fit on a page, whatever they hold \[bytes\].
    pub(crate) fn longest_key_bytes(&self) -> u64 {
        // The record of a database is the largest thing that must stay on a leaf.
        let record_bytes = 8 + 5 * self.word_bytes;
        self.inline_limit_bytes.saturating_sub(NODE_HEADER_BYTES + 1 + record_bytes).min(u64::from(u16::MAX))
    }

    /// Length of a branch node with its pointer \[bytes\].
    #[allow(clippy::unused_self, reason = "it stands beside leaf_node, which needs them")]
    pub(crate) fn branch_node_bytes(&self, key_bytes: u64) -> u64 {
        even(NODE_HEADER_BYTES + key_bytes) + POINTER_BYTES
    }

    /// Room for nodes and their pointers on an empty page \[bytes\].
    pub(crate) fn space_bytes(&self) -> u64 {
        self.end - self.header_bytes
    }

    /// Space left between `count` pointers and `floor`, where the last node starts \[bytes\].
    pub(crate) fn room_bytes(&self, floor: u64, count: usize) -> u64 {
        floor - self.header_bytes - POINTER_BYTES * count as u64
    }
}

fn even(length: u64) -> u64 {
    length + (length & 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_format::lmdb::{ByteOrder, Word};

    const OLD: Dialect =
        Dialect { version: Version::V0_9, word: Word::Bits64, byte_order: ByteOrder::Little };
    const NEW: Dialect = Dialect { version: Version::V1_0, ..OLD };

    #[test]
    fn values_leave_the_leaf_at_the_limits_of_the_library() {
        // (dialect, page, largest value on the leaf, largest value on one page) with keys of 8
        // bytes.
        for (dialect, page_bytes, inline, one_page) in [
            (OLD, 512, 230, 496),
            (OLD, 4096, 2022, 4080),
            (OLD, 32768, 16358, 32752),
            (NEW, 512, 226, 488),
            (NEW, 4096, 2018, 4072),
            (NEW, 65536, 32738, 65512),
        ] {
            let rules = PageRules::new(dialect, page_bytes, 0, SplitClass::Modern).expect("known sizes");
            let pages = |value| rules.leaf_node(8, value).overflow_pages;
            assert_eq!([inline, inline + 1, one_page, one_page + 1].map(pages), [0, 1, 1, 2], "{page_bytes}");
        }
        let old = PageRules::new(OLD, 4096, 0, SplitClass::V0_9_9).expect("known sizes");
        assert_eq!([2023, 2024].map(|value| old.leaf_node(8, value).overflow_pages), [0, 1]);
    }

    #[test]
    fn a_leaf_takes_as_many_big_values_as_the_library_puts_there() {
        let rules = PageRules::new(OLD, 4096, 0, SplitClass::Modern).expect("known sizes");
        let node = rules.leaf_node(8, 3073);
        assert_eq!(rules.space_bytes() / node.wanted_bytes, 156);
        assert_eq!((rules.space_bytes() - 10) / rules.branch_node_bytes(8), 226);
    }

    #[test]
    fn lmdb_1_0_wants_more_room_for_a_big_value_of_odd_length_than_it_takes() {
        let rules = |dialect| PageRules::new(dialect, 4096, 0, SplitClass::Modern).expect("known sizes");
        let node = |dialect, value| {
            let node = rules(dialect).leaf_node(9, value);
            (node.bytes, node.wanted_bytes)
        };
        assert_eq!([3073, 3074].map(|value| node(NEW, value)), [(42, 46), (42, 44)]);
        assert_eq!([3073, 3074].map(|value| node(OLD, value)), [(26, 28), (26, 28)]);
    }

    #[test]
    fn impossible_sizes_are_refused() {
        for (dialect, page, checksum, class) in [
            (OLD, 4095, 0, SplitClass::Modern),
            (OLD, 65536, 0, SplitClass::Modern),
            (OLD, 128, 0, SplitClass::Modern),
            (OLD, 4096, 8, SplitClass::Modern),
            (NEW, 4096, 2048, SplitClass::Modern),
            (NEW, 4096, 0, SplitClass::V0_9_9),
        ] {
            assert!(PageRules::new(dialect, page, checksum, class).is_err(), "{dialect:?} {page} {checksum}");
        }
    }
}
