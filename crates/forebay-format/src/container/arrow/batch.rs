//! Batches of rows: from the buffers of a column to the place of each row's value.
//!
//! A batch has a node for each array (its length and number of nulls) and the buffers of all nodes,
//! as ranges of its body. Values of one width, and strings after their offsets, are read in place.
//! Compressed buffers, and booleans, are units that all rows of the batch share.

use std::collections::HashMap;

use super::buffers::{Buffers, Stored};
use super::flatbuffer::{Malformed, Table};
use super::leaf::{Leaf, LeafNulls, NestingKind, NestingLevel};
use super::message::{Message, broken};
use super::schema::DictionaryIndex;
use crate::Error;
use crate::codec::Codec;
use crate::container::columns::null_error;
use crate::file::Input;
use crate::index::sidecar::{IndexEntry, Writer};

/// Classes of records: bytes of the file, and ranges of decoded units.
pub(super) const IN_FILE: u8 = 0;
pub(super) const IN_UNIT: u8 = 1;

/// Places of the entries of dictionaries, by column and id: class, start and length.
pub(super) type Dictionaries = HashMap<(usize, i64), Vec<(u8, u64, u64)>>;

/// A batch, described.
pub(super) struct Batch<'a> {
    buffers: Buffers<'a>,
    /// First row in the file, for errors.
    first_row: u64,
    pub(super) rows: u64,
    nodes: Vec<FieldNode>,
}

#[derive(Clone, Copy)]
struct FieldNode {
    length: u64,
    nulls: u64,
    first_buffer: usize,
}

/// Items of an array that belong to each row.
enum Span {
    /// As many for each row, from an item on.
    Even { first: u64, per: u64 },
    /// Between neighbouring numbers.
    Ranges(Vec<u64>),
}

/// Where the values of a column's rows are \[bytes\].
pub(super) enum Places {
    Even { class: u8, start: u64, length: u64 },
    Ranges { class: u8, start: u64, item_bytes: u64, ranges: Vec<u64> },
    Each(Vec<(u8, u64, u64)>),
}

impl Places {
    /// Class, start and length of a row's value.
    fn get(&self, row: usize) -> (u8, u64, u64) {
        match self {
            Self::Even { class, start, length } => (*class, start + row as u64 * length, *length),
            Self::Ranges { class, start, item_bytes, ranges } => {
                let (from, to) = (ranges[row], ranges[row + 1]);
                (*class, start + from * item_bytes, (to - from) * item_bytes)
            }
            Self::Each(places) => places[row],
        }
    }

    pub(super) fn entry(&self, row: usize) -> IndexEntry {
        let (class, start, length) = self.get(row);
        IndexEntry::Plain { class, start, length }
    }

    /// All of them.
    pub(super) fn list(&self, rows: u64) -> Vec<(u8, u64, u64)> {
        (0..rows as usize).map(|row| self.get(row)).collect()
    }
}

impl<'a> Batch<'a> {
    /// Reads a `RecordBatch` table. `counts` has the number of buffers of each node.
    pub(super) fn new(
        input: &'a Input,
        message: &Message,
        first_row: u64,
        table: &Table<'_>,
        counts: &[(u32, bool)],
    ) -> Result<Self, Error> {
        let Message { at, body, .. } = *message;
        let read = || -> Result<_, Malformed> {
            let rows = u64::try_from(table.i64(0, 0)?).map_err(|_| Malformed("a negative number of rows"))?;
            let pair = |bytes: &[u8; 16]| {
                let number = |from: usize| i64::from_le_bytes(std::array::from_fn(|byte| bytes[from + byte]));
                u64::try_from(number(0)).ok().zip(u64::try_from(number(8)).ok())
            };
            let negative = Malformed("a negative number");
            let found: Vec<_> = table.structures::<16>(1)?.iter().map(pair).collect();
            let buffers: Vec<_> = table.structures::<16>(2)?.iter().map(pair).collect();
            let compression = match table.table(3)? {
                None => message.experimental_compression()?,
                // Of the methods there is one: each buffer by itself.
                Some(compression) => match (compression.u8(0, 0)?, compression.u8(1, 0)?) {
                    (0, 0) => Some(Codec::Lz4Frame),
                    (1, 0) => Some(Codec::Zstd),
                    _ => return Err(Malformed("an unknown compression")),
                },
            };
            let variadic = table.structures::<8>(4)?;
            let mut variadic = variadic.iter().map(|count| i64::from_le_bytes(*count));
            if found.len() != counts.len() {
                return Err(Malformed("another number of nodes than the schema has"));
            }
            let (mut nodes, mut first_buffer) = (Vec::with_capacity(counts.len()), 0_usize);
            for (node, (count, has_variadic)) in found.into_iter().zip(counts) {
                let (length, nulls) = node.ok_or(negative)?;
                nodes.push(FieldNode { length, nulls, first_buffer });
                let more = if *has_variadic {
                    variadic.next().and_then(|count| usize::try_from(count).ok())
                } else {
                    Some(0)
                };
                first_buffer = more
                    .and_then(|more| first_buffer.checked_add(*count as usize)?.checked_add(more))
                    .ok_or(Malformed("no number of variadic buffers"))?;
            }
            if first_buffer != buffers.len() {
                return Err(Malformed("another number of buffers than the schema has"));
            }
            let inside = |(offset, length): (u64, u64)| {
                offset
                    .checked_add(length)
                    .is_some_and(|end| end <= body.1)
                    .then_some((body.0 + offset, length))
            };
            let buffers =
                buffers.into_iter().map(|buffer| buffer.and_then(inside)).collect::<Option<Vec<_>>>();
            let buffers = buffers.ok_or(Malformed("a buffer outside of its message"))?;
            Ok((rows, nodes, buffers, compression))
        };
        let (rows, nodes, buffers, compression) = read().map_err(broken(input, at))?;
        Ok(Self { buffers: Buffers { input, at, places: buffers, compression }, first_row, rows, nodes })
    }

    /// Where the values of a column are. Compressed ones become units of `column`.
    pub(super) fn places(
        &self,
        leaf: &Leaf,
        column: usize,
        writer: &mut Writer,
        dictionaries: &Dictionaries,
    ) -> Result<Places, Error> {
        match leaf.nulls {
            LeafNulls::Refused => self.stored_places(leaf, None, (column, writer), dictionaries),
            LeafNulls::Mask => self.mask(leaf, (column, writer)),
            LeafNulls::Masked => {
                let Some(valid) = self.valid(leaf)? else {
                    return self.stored_places(leaf, None, (column, writer), dictionaries);
                };
                let mut places =
                    self.stored_places(leaf, Some(&valid), (column, writer), dictionaries)?.list(self.rows);
                // The file may have anything in the place of a null.
                let null = match leaf.field.sample_bytes() {
                    None => (IN_FILE, 0, 0),
                    Some(bytes) => (IN_UNIT, repeated(0, bytes, self.rows, (column, writer)), bytes),
                };
                let nulls = places.iter_mut().zip(&valid).filter(|(_, is_valid)| !**is_valid);
                nulls.for_each(|(place, _)| *place = null);
                Ok(Places::Each(places))
            }
        }
    }

    /// Where the values are that the file holds. With `valid` nulls of the rows are no error.
    fn stored_places(
        &self,
        leaf: &Leaf,
        valid: Option<&[bool]>,
        (column, writer): (usize, &mut Writer),
        dictionaries: &Dictionaries,
    ) -> Result<Places, Error> {
        let name = &leaf.field.name;
        let mut span = Span::Even { first: 0, per: 1 };
        // Whether nulls are those of rows, for which a mask is there or may be asked for.
        let mut is_row = leaf.may_be_masked();
        for NestingLevel { node, kind } in &leaf.levels {
            let node = &self.nodes[*node];
            self.check_length(name, node, &span)?;
            if valid.is_none() || !is_row {
                self.refuse_nulls(name, node, &span, is_row)?;
            }
            is_row &= *kind == NestingKind::Struct;
            span = match (kind, span) {
                (NestingKind::Struct, span) => span,
                (NestingKind::FixedList { length }, Span::Even { first, per }) => {
                    let product = |number: u64| number.checked_mul(*length);
                    let (first, per) = product(first).zip(product(per)).ok_or_else(|| {
                        self.buffers.wrong(name, "items", "fewer", "a number that overflows")
                    })?;
                    Span::Even { first, per }
                }
                (NestingKind::List { is_large, length }, Span::Even { first, per }) => {
                    let items = self.items(first, per, name)?;
                    let offsets =
                        self.buffers.offsets(name, node.first_buffer + 1, *is_large, first, items)?;
                    match length {
                        None => Span::Ranges(offsets),
                        Some(length) => {
                            if let Some(odd) =
                                offsets.windows(2).position(|pair| pair[1] - pair[0] != *length)
                            {
                                let found = format!(
                                    "{} in row {}",
                                    offsets[odd + 1] - offsets[odd],
                                    self.first_row + odd as u64 / per.max(1)
                                );
                                return Err(self.buffers.wrong(
                                    name,
                                    "length of lists",
                                    format!("{length} each"),
                                    found,
                                ));
                            }
                            let product = per.checked_mul(*length);
                            let per = product.ok_or_else(|| {
                                self.buffers.wrong(name, "items", "fewer", "a number that overflows")
                            })?;
                            Span::Even { first: offsets[0], per }
                        }
                    }
                }
                (NestingKind::Fixed { item_bytes }, span) => {
                    return self.values(
                        name,
                        node.first_buffer + 1,
                        (*item_bytes, None),
                        span,
                        (column, writer),
                    );
                }
                (NestingKind::Bool, span) => {
                    let bits = (1, Some(&Codec::Bits));
                    return self.values(name, node.first_buffer + 1, bits, span, (column, writer));
                }
                (NestingKind::Binary { is_large }, Span::Even { first, per: 1 }) => {
                    let offsets =
                        self.buffers.offsets(name, node.first_buffer + 1, *is_large, first, self.rows)?;
                    let strings = Span::Ranges(offsets);
                    return self.values(name, node.first_buffer + 2, (1, None), strings, (column, writer));
                }
                (NestingKind::Dictionary { index, .. }, Span::Even { first, per: 1 }) => {
                    let entries = dictionaries.get(&(column, index.id)).map_or(&[][..], |entries| entries);
                    return self.indices(name, node.first_buffer + 1, (*index, first), entries, valid);
                }
                (kind, _) => unreachable!("a column of {kind:?} in lists is refused when it is opened"),
            };
        }
        unreachable!("the last level of a column is that of its values")
    }

    /// The nodes that may say of a row that it is null: its own, and those of structures around it.
    fn nodes_of_rows(&self, leaf: &Leaf) -> Result<Vec<&FieldNode>, Error> {
        let structures = leaf.levels.iter().take_while(|level| level.kind == NestingKind::Struct).count();
        let mut nodes = Vec::new();
        for NestingLevel { node, .. } in &leaf.levels[..=structures] {
            let node = &self.nodes[*node];
            self.check_length(&leaf.field.name, node, &Span::Even { first: 0, per: 1 })?;
            if node.nulls > 0 && self.rows > 0 {
                nodes.push(node);
            }
        }
        Ok(nodes)
    }

    /// Which rows have a value, if some may have none.
    fn valid(&self, leaf: &Leaf) -> Result<Option<Vec<bool>>, Error> {
        let of_node =
            |node: &FieldNode| self.buffers.bytes(&leaf.field.name, node.first_buffer, self.rows.div_ceil(8));
        let all = self.nodes_of_rows(leaf)?.into_iter().map(of_node).collect::<Result<Vec<_>, _>>()?;
        let is_valid = |row: usize| all.iter().all(|bits| bits[row / 8] >> (row % 8) & 1 == 1);
        Ok(if all.is_empty() { None } else { Some((0..self.rows as usize).map(is_valid).collect()) })
    }

    /// Refuses nulls among the entries of a dictionary: by their mask rows of them have a value.
    pub(super) fn refuse_null_entries(&self, values: &Leaf) -> Result<(), Error> {
        let valid = self.valid(values)?.unwrap_or_default();
        let Some(entry) = valid.iter().position(|is_valid| !is_valid) else { return Ok(()) };
        let what = format!("a null in the dictionary of column {:?}", values.field.name);
        let hint = "leave the column out with fields=, or rewrite it (pyarrow: dictionary_decode, then dictionary_encode)";
        Err(self.buffers.input.unsupported(what, format!("it is entry {entry}"), hint))
    }

    /// The mask of a column: of each row whether it has a value.
    fn mask(&self, leaf: &Leaf, (column, writer): (usize, &mut Writer)) -> Result<Places, Error> {
        match self.nodes_of_rows(leaf)?[..] {
            [] => {
                self.check_rows(leaf)?;
                let start = repeated(1, self.rows, self.rows, (column, writer));
                Ok(Places::Even { class: IN_UNIT, start, length: 1 })
            }
            [node] => {
                let bits = (1, Some(&Codec::Bits));
                let rows = Span::Even { first: 0, per: 1 };
                self.values(&leaf.field.name, node.first_buffer, bits, rows, (column, writer))
            }
            // A null is one of a structure or of its member: no bits of the file say both.
            _ => {
                let valid = self.valid(leaf)?.unwrap_or_default();
                let starts = [0, 1].map(|value| repeated(value, self.rows, self.rows, (column, writer)));
                let place = |(row, is_valid)| (IN_UNIT, starts[usize::from(is_valid)] + row, 1);
                Ok(Places::Each((0..).zip(valid).map(place).collect()))
            }
        }
    }

    /// Refuses more rows than the buffer of a column's values, offsets or indices holds.
    fn check_rows(&self, leaf: &Leaf) -> Result<(), Error> {
        let name = &leaf.field.name;
        let is_value = |level: &&NestingLevel| level.kind != NestingKind::Struct;
        let NestingLevel { node, kind } = leaf.levels.iter().find(is_value).expect("a level of values");
        let row_bits = match kind {
            NestingKind::Bool => 1,
            NestingKind::Fixed { item_bytes } => 8 * item_bytes,
            NestingKind::Dictionary { index, .. } => 8 * u64::from(index.bytes),
            NestingKind::List { is_large, .. } | NestingKind::Binary { is_large } => {
                32 << u32::from(*is_large)
            }
            NestingKind::Struct | NestingKind::FixedList { .. } => unreachable!("{kind:?} has no mask"),
        };
        let held = self.buffers.stored(name, self.nodes[*node].first_buffer + 1)?.decoded_bytes;
        let rows = held.saturating_mul(8) / row_bits;
        if self.rows > rows {
            return Err(self.buffers.wrong(name, "rows", format!("at most {rows}"), self.rows));
        }
        Ok(())
    }

    /// Refuses arrays that are shorter than their rows need.
    fn check_length(&self, name: &str, node: &FieldNode, span: &Span) -> Result<(), Error> {
        let needed = match span {
            Span::Even { first, per } => first + self.items(*first, *per, name)?,
            Span::Ranges(ranges) => ranges.last().copied().unwrap_or(0),
        };
        if node.length < needed {
            return Err(self.buffers.wrong(name, "length", format!("{needed} items"), node.length));
        }
        Ok(())
    }

    /// Refuses nulls, of rows or of items in them.
    fn refuse_nulls(&self, name: &str, node: &FieldNode, span: &Span, is_row: bool) -> Result<(), Error> {
        if node.nulls == 0 {
            return Ok(());
        }
        let validity = self.buffers.bytes(name, node.first_buffer, node.length.div_ceil(8))?;
        let is_null = |item: &u64| validity[(item / 8) as usize] >> (item % 8) & 1 == 0;
        let Some(item) = (0..node.length).find(is_null) else { return Ok(()) };
        let row = match span {
            Span::Even { first, per } => item.saturating_sub(*first) / (*per).max(1),
            Span::Ranges(ranges) => ranges.partition_point(|start| *start <= item).saturating_sub(1) as u64,
        };
        Err(null_error(self.buffers.input, name, self.first_row + row, is_row))
    }

    /// Number of items of all rows, `per` for each, after item `first`.
    fn items(&self, first: u64, per: u64, name: &str) -> Result<u64, Error> {
        let items = self.rows.checked_mul(per).filter(|items| first.checked_add(*items).is_some());
        items.ok_or_else(|| self.buffers.wrong(name, "items", "fewer", "a number that overflows"))
    }

    /// Where values of one width, or the bytes of strings, are; `undo` follows the decompression.
    fn values(
        &self,
        name: &str,
        buffer: usize,
        (item_bytes, undo): (u64, Option<&Codec>),
        span: Span,
        (column, writer): (usize, &mut Writer),
    ) -> Result<Places, Error> {
        let items = match &span {
            Span::Even { first, per } => first + self.items(*first, *per, name)?,
            Span::Ranges(ranges) => ranges.last().copied().unwrap_or(0),
        };
        let (class, start) = self.unit(name, buffer, (items, item_bytes), undo, (column, writer))?;
        Ok(match span {
            Span::Even { first, per } => {
                Places::Even { class, start: start + first * item_bytes, length: per * item_bytes }
            }
            Span::Ranges(ranges) => Places::Ranges { class, start, item_bytes, ranges },
        })
    }

    /// Class and start of the values of a buffer, which holds at least this many items.
    fn unit(
        &self,
        name: &str,
        buffer: usize,
        (items, item_bytes): (u64, u64),
        undo: Option<&Codec>,
        (column, writer): (usize, &mut Writer),
    ) -> Result<(u8, u64), Error> {
        let wanted = if undo.is_some() { Some(items.div_ceil(8)) } else { items.checked_mul(item_bytes) };
        let wanted = wanted.ok_or_else(|| self.buffers.wrong(name, "items", "fewer", items))?;
        if wanted == 0 {
            return Ok((IN_FILE, 0));
        }
        let Stored { place, codec, decoded_bytes: stored_bytes } = self.buffers.stored(name, buffer)?;
        if stored_bytes < wanted {
            return Err(self.buffers.wrong(
                name,
                "length of the values",
                format!("{wanted} bytes"),
                stored_bytes,
            ));
        }
        let chain: Vec<Codec> = codec.iter().chain(undo).cloned().collect();
        if chain.is_empty() {
            return Ok((IN_FILE, place.0));
        }
        // Of stored bits only those of the rows.
        let (length, stored_bytes) = if codec.is_none() { (wanted, wanted) } else { (place.1, stored_bytes) };
        let decoded_bytes = if undo.is_some() { stored_bytes.saturating_mul(8) } else { stored_bytes };
        let start = writer.push_unit(column, (place.0, length), &chain, decoded_bytes, self.rows);
        Ok((IN_UNIT, start))
    }

    /// The places of the entries of a dictionary that rows refer to.
    fn indices(
        &self,
        name: &str,
        buffer: usize,
        (DictionaryIndex { bytes: width, is_signed, .. }, first): (DictionaryIndex, u64),
        entries: &[(u8, u64, u64)],
        valid: Option<&[bool]>,
    ) -> Result<Places, Error> {
        let width = u64::from(width);
        let needed = (first + self.rows).checked_mul(width);
        let needed = needed.ok_or_else(|| self.buffers.wrong(name, "indices", "fewer", self.rows))?;
        let bytes = self.buffers.bytes(name, buffer, needed)?;
        let mut places = Vec::with_capacity(self.rows as usize);
        for (row, number) in
            bytes[(first * width) as usize..needed as usize].chunks_exact(width as usize).enumerate()
        {
            // Of a null the number of its entry may be any.
            if valid.is_some_and(|valid| !valid[row]) {
                places.push((IN_FILE, 0, 0));
                continue;
            }
            let mut wide = [0; 8];
            wide[..number.len()].copy_from_slice(number);
            let index = u64::from_le_bytes(wide);
            let is_negative = is_signed && number.last().is_some_and(|byte| byte >> 7 == 1);
            let entry =
                usize::try_from(index).ok().filter(|_| !is_negative).and_then(|index| entries.get(index));
            let row = self.first_row + row as u64;
            let expected = || format!("below {}", entries.len());
            places.push(*entry.ok_or_else(|| {
                self.buffers.wrong(name, &format!("entry of row {row}"), expected(), index)
            })?);
        }
        Ok(Places::Each(places))
    }
}

/// Start of a unit of `column` that repeats a byte `bytes` times, for this many rows.
fn repeated(value: u8, bytes: u64, rows: u64, (column, writer): (usize, &mut Writer)) -> u64 {
    if bytes == 0 {
        return 0;
    }
    writer.push_unit(column, (0, 0), &[Codec::Fill { value: vec![value] }], bytes, rows)
}
