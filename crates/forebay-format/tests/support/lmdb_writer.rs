//! Lays out LMDB files in every dialect, for tests.
//!
//! No single machine has a library that writes all dialects (32-bit and big-endian hosts, page
//! lengths other than the system's), so the tests make such files themselves: a sound tree from
//! sorted records, bottom up, with the places of every field kept so that tests can damage them one
//! by one. It is no LMDB: there is no free list, no transaction, no update. Files of real libraries
//! are compared elsewhere, through the Python package.
//!
//! Everything LMDB leaves undefined (holes in pages, padding, the rest of an overflow run) is
//! filled with noise.
#![allow(dead_code, reason = "each test binary uses a part of it")]

use forebay_format::lmdb::{ByteOrder, Dialect, Version, Word};

/// Records sorted by key.
pub type Records = Vec<(Vec<u8>, Vec<u8>)>;

/// Random numbers that depend on the seed alone (splitmix64).
#[derive(Clone)]
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    pub fn bytes(&mut self, length: usize) -> Vec<u8> {
        (0..length).map(|_| self.next() as u8).collect()
    }

    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for index in (1..items.len()).rev() {
            items.swap(index, self.below(index as u64 + 1) as usize);
        }
    }
}

/// How a file is to be written.
#[derive(Clone, Copy, Debug)]
pub struct Spec {
    pub dialect: Dialect,
    pub page_bytes: u32,
    /// Room for a checksum at the end of each page (1.0 only).
    pub checksum_bytes: u32,
    /// Pages in random order, with free ones between them, instead of children before parents.
    pub scatter: Option<u64>,
    /// Flags of the tree that holds the records.
    pub flags: u16,
    /// Number of the last transaction.
    pub transaction: u64,
}

/// Kind of a stretch of pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Branch,
    Leaf,
    Overflow,
}

/// Where a field stands in the file, and its length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FieldPlace {
    pub name: &'static str,
    pub offset: usize,
    pub bytes: usize,
}

/// One page, or run of overflow pages, of a file.
#[derive(Clone, Debug)]
pub struct Unit {
    pub kind: Kind,
    pub page: u64,
    pub pages: u64,
    /// Fields of the page header, the pointers and the nodes.
    pub places: Vec<FieldPlace>,
}

impl Unit {
    /// The `index`th place of that name.
    pub fn place(&self, name: &str, index: usize) -> FieldPlace {
        *self.places.iter().filter(|place| place.name == name).nth(index).expect("a place of that name")
    }
}

/// A file.
#[derive(Clone, Debug)]
pub struct Image {
    pub spec: Spec,
    pub bytes: Vec<u8>,
    pub units: Vec<Unit>,
    /// Fields of the meta page of the last transaction, then of the one before.
    pub metas: [Vec<FieldPlace>; 2],
    pub root: u64,
}

impl Image {
    pub fn get(&self, place: FieldPlace) -> u64 {
        get(self.spec.dialect, &self.bytes, place)
    }

    pub fn set(&mut self, place: FieldPlace, value: u64) {
        put(self.spec.dialect, &mut self.bytes, place.offset, place.bytes, value);
    }

    pub fn meta(&self, name: &str) -> FieldPlace {
        *self.metas[0].iter().find(|place| place.name == name).expect("a place of that name")
    }

    pub fn unit(&self, kind: Kind, index: usize) -> &Unit {
        self.units.iter().filter(|unit| unit.kind == kind).nth(index).expect("a unit of that kind")
    }
}

pub fn get(dialect: Dialect, bytes: &[u8], place: FieldPlace) -> u64 {
    let raw = &bytes[place.offset..place.offset + place.bytes];
    let fold = |value: u64, byte: &u8| (value << 8) | u64::from(*byte);
    match dialect.byte_order {
        ByteOrder::Little => raw.iter().rev().fold(0, fold),
        ByteOrder::Big => raw.iter().fold(0, fold),
    }
}

pub fn put(dialect: Dialect, bytes: &mut [u8], offset: usize, length: usize, value: u64) {
    for index in 0..length {
        let shift = match dialect.byte_order {
            ByteOrder::Little => 8 * index,
            ByteOrder::Big => 8 * (length - 1 - index),
        };
        bytes[offset + index] = value.checked_shr(shift as u32).unwrap_or(0) as u8;
    }
}

fn even(length: usize) -> usize {
    length + length % 2
}

/// What a leaf node holds.
enum Payload {
    Inline(Vec<u8>),
    Big { unit: usize, length: usize },
    Tree(Tree),
}

enum Content {
    Branch(Vec<(Vec<u8>, usize)>),
    Leaf(Vec<(Vec<u8>, Payload)>),
    Overflow(Vec<u8>),
}

#[derive(Clone, Copy, Default)]
struct Tree {
    flags: u16,
    depth: u16,
    branch_pages: u64,
    leaf_pages: u64,
    overflow_pages: u64,
    entries: u64,
    root_unit: Option<usize>,
}

impl Spec {
    pub fn new(dialect: Dialect, page_bytes: u32) -> Self {
        Self { dialect, page_bytes, checksum_bytes: 0, scatter: None, flags: 0, transaction: 4 }
    }

    fn header(&self) -> usize {
        self.dialect.header_bytes() as usize
    }

    fn word(&self) -> usize {
        if self.dialect.word == Word::Bits64 { 8 } else { 4 }
    }

    fn is_new(&self) -> bool {
        self.dialect.version == Version::V1_0
    }

    fn base(&self) -> usize {
        if self.is_new() { self.header() } else { 0 }
    }

    fn end(&self) -> usize {
        (self.page_bytes - self.checksum_bytes) as usize
    }

    fn tree_bytes(&self) -> usize {
        8 + 5 * self.word()
    }

    /// Longest node on a page \[bytes\].
    fn node_limit(&self) -> usize {
        ((self.end() - self.header()) / 2 / 2 * 2) - 2
    }

    /// Longest key that this writer can place \[bytes\].
    pub fn longest_key(&self) -> usize {
        (self.node_limit() - 8 - 24 - 2).min(511)
    }

    pub fn overflow_pages(&self, length: usize) -> usize {
        (self.header() - 1 + length + self.checksum_bytes as usize) / self.page_bytes as usize + 1
    }

    fn leaf_node_bytes(&self, key: &[u8], payload: &Payload) -> usize {
        let payload_bytes = match payload {
            Payload::Inline(value) => value.len(),
            Payload::Big { .. } if self.is_new() => 3 * self.word(),
            Payload::Big { .. } => self.word(),
            Payload::Tree(_) => self.tree_bytes(),
        };
        let key_bytes = if self.is_new() { even(key.len()) } else { key.len() };
        even(8 + key_bytes + payload_bytes)
    }

    /// A file with these records in its main database.
    pub fn build(&self, records: &[(Vec<u8>, Vec<u8>)]) -> Image {
        self.build_with(records, &[])
    }

    /// A file with these records in its main database, and named databases.
    pub fn build_with(&self, records: &[(Vec<u8>, Vec<u8>)], named: &[(&str, Records)]) -> Image {
        let mut contents = Vec::new();
        let mut main_records: Vec<(Vec<u8>, Payload)> = Vec::new();
        let mut main = Tree { flags: if named.is_empty() { self.flags } else { 0 }, ..Tree::default() };
        for (name, records) in named {
            let mut tree = Tree { flags: self.flags, ..Tree::default() };
            let payloads = self.payloads(records, &mut contents, &mut tree);
            self.plant(payloads, &mut contents, &mut tree);
            let mut key = name.as_bytes().to_vec();
            if self.is_new() {
                key.push(0);
            }
            main_records.push((key, Payload::Tree(tree)));
        }
        main_records.extend(self.payloads(records, &mut contents, &mut main));
        if !named.is_empty() {
            main_records.sort_by(|left, right| left.0.cmp(&right.0));
        }
        self.plant(main_records, &mut contents, &mut main);
        self.emit(&contents, main)
    }

    /// Puts big values on overflow pages.
    fn payloads(
        &self,
        records: &[(Vec<u8>, Vec<u8>)],
        contents: &mut Vec<Content>,
        tree: &mut Tree,
    ) -> Vec<(Vec<u8>, Payload)> {
        let place = |(key, value): &(Vec<u8>, Vec<u8>)| {
            assert!(!key.is_empty() && key.len() <= self.longest_key(), "key of {} bytes", key.len());
            let key_bytes = if self.is_new() { even(key.len()) } else { key.len() };
            if 8 + key_bytes + value.len() <= self.node_limit() {
                return (key.clone(), Payload::Inline(value.clone()));
            }
            tree.overflow_pages += self.overflow_pages(value.len()) as u64;
            contents.push(Content::Overflow(value.clone()));
            (key.clone(), Payload::Big { unit: contents.len() - 1, length: value.len() })
        };
        records.iter().map(place).collect()
    }

    /// Makes the leaves and the branches above them.
    fn plant(&self, records: Vec<(Vec<u8>, Payload)>, contents: &mut Vec<Content>, tree: &mut Tree) {
        tree.entries = records.len() as u64;
        if records.is_empty() {
            return;
        }
        let room = self.end() - self.header();
        let mut level: Vec<(Vec<u8>, usize)> = Vec::new();
        let (mut page, mut used) = (Vec::new(), 0);
        let mut close = |page: Vec<(Vec<u8>, Payload)>, level: &mut Vec<(Vec<u8>, usize)>| {
            let first: Vec<u8> = page[0].0.clone();
            contents.push(Content::Leaf(page));
            level.push((first, contents.len() - 1));
        };
        for (key, payload) in records {
            let bytes = 2 + self.leaf_node_bytes(&key, &payload);
            if used + bytes > room {
                close(std::mem::take(&mut page), &mut level);
                used = 0;
            }
            used += bytes;
            page.push((key, payload));
        }
        close(page, &mut level);
        tree.leaf_pages = level.len() as u64;
        tree.depth = 1;
        while level.len() > 1 {
            let mut above: Vec<(Vec<u8>, usize)> = Vec::new();
            let mut rest = level.into_iter().peekable();
            while rest.peek().is_some() {
                let (mut page, mut used): (Vec<(Vec<u8>, usize)>, usize) = (Vec::new(), 0);
                while let Some((key, _)) = rest.peek() {
                    let bytes = 2 + if page.is_empty() { 8 } else { even(8 + key.len()) };
                    if used + bytes > room {
                        break;
                    }
                    used += bytes;
                    page.extend(rest.next());
                }
                let first = page[0].0.clone();
                page[0].0.clear();
                contents.push(Content::Branch(page));
                above.push((first, contents.len() - 1));
                tree.branch_pages += 1;
            }
            level = above;
            tree.depth += 1;
        }
        tree.root_unit = Some(level[0].1);
    }

    /// Gives page numbers and writes everything.
    fn emit(&self, contents: &[Content], main: Tree) -> Image {
        let page_bytes = self.page_bytes as usize;
        let mut random = Random(self.scatter.unwrap_or(0));
        let mut order: Vec<usize> = (0..contents.len()).collect();
        if self.scatter.is_some() {
            random.shuffle(&mut order);
        }
        let pages = |content: &Content| match content {
            Content::Overflow(value) => self.overflow_pages(value.len()) as u64,
            _ => 1,
        };
        let mut numbers = vec![0; contents.len()];
        let mut next = 2;
        for unit in order {
            if self.scatter.is_some() && random.below(8) == 0 {
                next += random.below(3);
            }
            numbers[unit] = next;
            next += pages(&contents[unit]);
        }
        // Free pages at the end may be missing from the file.
        let last_page = next - 1 + if self.scatter.is_some() { 3 } else { 0 };
        let mut noise = Random(7);
        let mut bytes: Vec<u8> = (0..next as usize * page_bytes).map(|_| noise.next() as u8).collect();
        let mut units = Vec::new();
        for (unit, content) in contents.iter().enumerate() {
            let page = numbers[unit];
            let start = page as usize * page_bytes;
            let mut places = Vec::new();
            let mut writer = Writer { spec: self, bytes: &mut bytes, places: &mut places };
            writer.word("number", start, page);
            if self.is_new() {
                writer.word("transaction", start + self.word(), self.transaction);
            }
            let at = start + self.header();
            let kind = match content {
                Content::Overflow(value) => {
                    writer.field("type", at - 6, 2, 4);
                    writer.field("pages", at - 4, 4, pages(content));
                    writer.bytes[at..at + value.len()].copy_from_slice(value);
                    Kind::Overflow
                }
                Content::Branch(children) => {
                    let slots = self.slots(start, children.len(), &mut random);
                    let sizes: Vec<usize> = children.iter().map(|(key, _)| even(8 + key.len())).collect();
                    let ats = writer.page(start, 1, &sizes, &slots);
                    for ((key, child), at) in children.iter().zip(ats) {
                        let child = numbers[*child];
                        writer.field("child", at, 4, child & 0xffff_ffff);
                        writer.field("child high", at + 4, 2, child >> 32);
                        writer.field("branch key length", at + 6, 2, key.len() as u64);
                        writer.bytes[at + 8..at + 8 + key.len()].copy_from_slice(key);
                        writer.places.push(FieldPlace {
                            name: "branch key",
                            offset: at + 8,
                            bytes: key.len(),
                        });
                    }
                    Kind::Branch
                }
                Content::Leaf(records) => {
                    let slots = self.slots(start, records.len(), &mut random);
                    let sizes: Vec<usize> =
                        records.iter().map(|(key, payload)| self.leaf_node_bytes(key, payload)).collect();
                    let ats = writer.page(start, 2, &sizes, &slots);
                    for ((key, payload), at) in records.iter().zip(ats) {
                        let (flags, length) = match payload {
                            Payload::Inline(value) => (0, value.len()),
                            Payload::Big { length, .. } => (1, *length),
                            Payload::Tree(_) => (2, self.tree_bytes()),
                        };
                        writer.field("value length", at, 4, length as u64);
                        writer.field("flags", at + 4, 2, flags);
                        writer.field("key length", at + 6, 2, key.len() as u64);
                        writer.bytes[at + 8..at + 8 + key.len()].copy_from_slice(key);
                        writer.places.push(FieldPlace { name: "key", offset: at + 8, bytes: key.len() });
                        let at = at + 8 + if self.is_new() { even(key.len()) } else { key.len() };
                        match payload {
                            Payload::Inline(value) => {
                                writer.bytes[at..at + value.len()].copy_from_slice(value);
                            }
                            Payload::Big { unit, length } => {
                                writer.word("overflow page", at, numbers[*unit]);
                                if self.is_new() {
                                    let pages = self.overflow_pages(*length) as u64;
                                    writer.word("overflow transaction", at + self.word(), self.transaction);
                                    writer.word("overflow pages", at + 2 * self.word(), pages);
                                }
                            }
                            Payload::Tree(tree) => {
                                let root = tree.root_unit.map_or(u64::MAX, |unit| numbers[unit]);
                                writer.tree(at, 0, tree, root);
                            }
                        }
                    }
                    Kind::Leaf
                }
            };
            units.push(Unit { kind, page, pages: pages(content), places });
        }
        let root = main.root_unit.map_or(u64::MAX, |unit| numbers[unit]);
        let chosen = self.meta(&mut bytes, self.transaction, last_page, &main, root);
        let other = self.transaction.saturating_sub(1);
        let older = self.meta(&mut bytes, other, 1, &Tree { flags: main.flags, ..Tree::default() }, u64::MAX);
        Image { spec: *self, bytes, units, metas: [chosen, older], root }
    }

    /// Order of the nodes on a page: as inserted in key order, or random.
    fn slots(&self, _start: usize, count: usize, random: &mut Random) -> Vec<usize> {
        let mut slots: Vec<usize> = (0..count).collect();
        if self.scatter.is_some() && random.below(2) == 0 {
            random.shuffle(&mut slots);
        }
        slots
    }

    fn meta(
        &self,
        bytes: &mut [u8],
        transaction: u64,
        last_page: u64,
        main: &Tree,
        root: u64,
    ) -> Vec<FieldPlace> {
        let number = transaction & 1;
        let start = number as usize * self.page_bytes as usize;
        let (word, header) = (self.word(), self.header());
        let mut places = Vec::new();
        let mut writer = Writer { spec: self, bytes, places: &mut places };
        writer.word("number", start, number);
        if self.is_new() {
            writer.word("page transaction", start + word, 0);
        }
        let at = start + header;
        writer.field("type", at - 6, 2, 8);
        writer.field("magic", at, 4, 0xBEEF_C0DE);
        writer.field("version", at + 4, 4, if self.is_new() { 3 } else { 1 });
        writer.word("address", at + 8, 0);
        writer.word("map length", at + 8 + word, 1 << 30);
        let at = at + 8 + 2 * word;
        writer.tree(at, u64::from(self.page_bytes), &Tree { flags: 8, ..Tree::default() }, u64::MAX);
        for place in writer.places.iter_mut().filter(|place| place.offset >= at) {
            place.name = match place.name {
                "pad" => "page length",
                "flags" => "environment flags",
                _ => "free tree",
            };
        }
        writer.tree(at + self.tree_bytes(), 0, main, root);
        let at = at + 2 * self.tree_bytes();
        writer.word("last page", at, last_page);
        writer.word("transaction number", at + word, transaction);
        if number == 0 && self.is_new() {
            writer.field("checksum length", self.page_bytes as usize - 2, 2, u64::from(self.checksum_bytes));
        }
        places
    }
}

struct Writer<'a> {
    spec: &'a Spec,
    bytes: &'a mut [u8],
    places: &'a mut Vec<FieldPlace>,
}

impl Writer<'_> {
    fn field(&mut self, name: &'static str, offset: usize, length: usize, value: u64) {
        put(self.spec.dialect, self.bytes, offset, length, value);
        self.places.push(FieldPlace { name, offset, bytes: length });
    }

    fn word(&mut self, name: &'static str, offset: usize, value: u64) {
        self.field(name, offset, self.spec.word(), value);
    }

    fn tree(&mut self, at: usize, pad: u64, tree: &Tree, root: u64) {
        let word = self.spec.word();
        self.field("pad", at, 4, pad);
        self.field("flags", at + 4, 2, u64::from(tree.flags));
        self.field("depth", at + 6, 2, u64::from(tree.depth));
        self.word("branch pages", at + 8, tree.branch_pages);
        self.word("leaf pages", at + 8 + word, tree.leaf_pages);
        self.word("overflow page count", at + 8 + 2 * word, tree.overflow_pages);
        self.word("entries", at + 8 + 3 * word, tree.entries);
        self.word("root", at + 8 + 4 * word, root);
    }

    /// Header and pointers of a page with nodes of these sizes, placed from its end down in the
    /// order of `slots`. Returns where the nodes are [bytes from the start of the file].
    fn page(&mut self, start: usize, flags: u64, sizes: &[usize], slots: &[usize]) -> Vec<usize> {
        let (header, base) = (self.spec.header(), self.spec.base());
        let at = start + header;
        let mut upper = self.spec.end();
        let mut ats = vec![0; sizes.len()];
        for &slot in slots {
            upper -= sizes[slot];
            ats[slot] = upper;
        }
        self.field("type", at - 6, 2, flags);
        self.field("lower", at - 4, 2, (header + 2 * sizes.len() - base) as u64);
        self.field("upper", at - 2, 2, (upper - base) as u64);
        for (index, node) in ats.iter().enumerate() {
            self.field("pointer", at + 2 * index, 2, (node - base) as u64);
        }
        ats.iter().map(|node| start + node).collect()
    }
}

/// Ascending keys and values of `sizes`, in the order of these numbers.
pub fn records(seed: u64, count: usize, mut size: impl FnMut(&mut Random) -> usize) -> Records {
    let mut random = Random(seed);
    (0..count)
        .map(|index| {
            let length = size(&mut random);
            (format!("{index:06}").into_bytes(), random.bytes(length))
        })
        .collect()
}
