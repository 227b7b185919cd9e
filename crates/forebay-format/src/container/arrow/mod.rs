//! Arrow: files and streams of record batches, read in place.
//!
//! [`message`] finds the schema and the messages, with [`flatbuffer`] for their metadata, and
//! [`mod@schema`] the types. [`leaf`] makes columns of the fields. Of the [`buffers`] of a batch,
//! [`mod@batch`] makes the places of values. Read are metadata, offsets of strings and lists,
//! indices of dictionaries, and maps of nulls; no other values. The layout, types and what is
//! refused: `docs/formats/arrow.md`.
//!
//! All input is untrusted: every offset is checked before use, and every step goes forward.

mod batch;
mod buffers;
mod embedded;
mod flatbuffer;
mod leaf;
mod message;
mod schema;

use std::path::Path;

use self::batch::{Batch, Dictionaries, Places};
use self::leaf::{Candidate, Leaf, LeafNulls, NestingKind};
use self::message::{Content, Message, Messages, Opening, broken};
use crate::container::columns::{choose, with_masks};
use crate::container::{Column, Container, ScanSummary, check_state, header_digest};
use crate::file::Input;
use crate::index::sidecar::{RecordClass, ShardState, Writer};
use crate::{Error, Nulls, OpenOptions};

pub(crate) use self::embedded::ArrowFields;
pub(crate) use self::message::{is_stream, is_stream_of_any_layout};

/// An opened file or stream.
#[derive(Debug)]
pub(crate) struct ArrowFile {
    input: Input,
    messages: Messages,
    leaves: Vec<Leaf>,
    /// Number of buffers of each node of a batch.
    buffers: Vec<(u32, bool)>,
    is_stream: bool,
    state: ShardState,
}

impl ArrowFile {
    /// Opens a file and reads its schema.
    pub(crate) fn open(path: &Path, options: &OpenOptions) -> Result<Self, Error> {
        Self::new(Input::open(path)?, &options.fields, options.nulls)
    }

    fn new(input: Input, fields: &[String], nulls: Nulls) -> Result<Self, Error> {
        let Opening { fields: schema, digested, messages } = message::open(&input)?;
        let (mut candidates, buffers) = leaf::candidates(&schema);
        let mut fields = fields.to_vec();
        if nulls == Nulls::Mask {
            candidates = leaf::with_masks(candidates);
            fields = with_masks(&fields, |name| candidates.iter().any(|offered| offered.name == name));
        }
        let offered =
            candidates.into_iter().map(|Candidate { name, is_default, leaf, .. }| (name, is_default, leaf));
        let leaves = choose(&input, offered.collect(), &fields)?;
        let is_stream = matches!(messages, Messages::Stream { .. });
        Ok(Self { input, messages, leaves, buffers, is_stream, state: header_digest(&digested) })
    }

    /// Visits the messages in order.
    fn visit(&self, each: &mut dyn FnMut(&Message) -> Result<(), Error>) -> Result<(), Error> {
        match &self.messages {
            Messages::Stream { at } => {
                let mut at = *at;
                while let Some(message) = Message::read(&self.input, at)? {
                    at = message.end();
                    each(&message)?;
                }
            }
            Messages::Blocks(blocks) => {
                let mut left = self.input.bytes();
                for at in blocks {
                    let message = Message::read(&self.input, *at)?;
                    let ended =
                        || self.input.corrupt(*at, "Arrow message", "a batch", "the end of the stream");
                    let message = message.ok_or_else(ended)?;
                    // A footer that lists a block many times could claim any number of rows.
                    let length = message.end() - message.at;
                    left = left.checked_sub(length).ok_or_else(|| {
                        let expected = format!("at most {left} bytes after the blocks before it");
                        self.input.corrupt(*at, "length of an Arrow message", expected, length)
                    })?;
                    each(&message)?;
                }
            }
        }
        Ok(())
    }

    /// Takes the entries of a dictionary for the columns that refer to it.
    fn add_dictionary(
        &self,
        message: &Message,
        table: &flatbuffer::Table<'_>,
        writer: &mut Writer,
        dictionaries: &mut Dictionaries,
    ) -> Result<(), Error> {
        let error = broken(&self.input, message.at);
        let read = || Ok((table.i64(0, 0)?, table.table(1)?, table.u8(2, 0)? != 0));
        let (id, data, is_delta) = read().map_err(&error)?;
        let data = data.ok_or_else(|| error(flatbuffer::Malformed("a dictionary without data")))?;
        for (column, leaf) in self.leaves.iter().enumerate() {
            let Some(NestingKind::Dictionary { index, values, buffers }) =
                leaf.levels.last().map(|level| &level.kind)
            else {
                continue;
            };
            if index.id != id || leaf.nulls == LeafNulls::Mask {
                continue;
            }
            let batch = Batch::new(&self.input, message, 0, &data, buffers)?;
            batch.refuse_null_entries(values)?;
            let found = batch.places(values, column, writer, dictionaries)?.list(batch.rows);
            let entries = dictionaries.entry((column, id)).or_default();
            if !is_delta {
                entries.clear();
            }
            entries.extend(found);
        }
        Ok(())
    }
}

impl Container for ArrowFile {
    fn input(&self) -> &Input {
        &self.input
    }

    fn state(&self) -> ShardState {
        self.state.clone()
    }

    fn columns(&self) -> Result<Vec<Column>, Error> {
        // In the order of `batch::IN_FILE` and `batch::IN_UNIT`.
        let classes = vec![RecordClass::tight("values"), RecordClass::in_units("units")];
        let column = |leaf: &Leaf| Column { field: leaf.field.clone(), classes: classes.clone() };
        Ok(self.leaves.iter().map(column).collect())
    }

    fn units(&self) -> Vec<Option<&str>> {
        self.leaves.iter().map(|leaf| leaf.unit).collect()
    }

    fn add_to(
        &self,
        writer: &mut Writer,
        _threads: usize,
        progress: &dyn Fn(u64) -> bool,
    ) -> Result<ScanSummary, Error> {
        let mut dictionaries = Dictionaries::new();
        let mut rows = 0;
        self.visit(&mut |message| {
            if !progress(message.at) {
                return Err(Error::Interrupted);
            }
            match message.content().map_err(broken(&self.input, message.at))? {
                Content::Dictionary(table) => self.add_dictionary(message, &table, writer, &mut dictionaries),
                Content::Batch(table) => {
                    let batch = Batch::new(&self.input, message, rows, &table, &self.buffers)?;
                    let places = self
                        .leaves
                        .iter()
                        .enumerate()
                        .map(|(column, leaf)| batch.places(leaf, column, writer, &dictionaries))
                        .collect::<Result<Vec<Places>, _>>()?;
                    for row in 0..batch.rows as usize {
                        writer.push(places.iter().map(|places| places.entry(row)));
                    }
                    rows += batch.rows;
                    Ok(())
                }
                Content::Schema(_) | Content::Other => Err(self.input.corrupt(
                    message.at,
                    "Arrow message",
                    "a batch or a dictionary",
                    "another kind",
                )),
            }
        })?;
        Ok(ScanSummary::default())
    }

    fn describe(&self) -> serde_json::Map<String, serde_json::Value> {
        let mut description = serde_json::Map::new();
        let layout = if self.is_stream { "stream" } else { "file" };
        description.insert("layout".to_owned(), layout.into());
        description
    }

    fn check_unchanged(&self) -> Result<(), Error> {
        self.input.check_unchanged()?;
        check_state(&self.input, "schema", &self.state, &header_digest(&message::open(&self.input)?.digested))
    }
}

/// Takes any bytes as a file or stream, and opens and indexes or refuses it. For fuzzing.
#[doc(hidden)]
pub fn index_of_bytes(file: Vec<u8>) -> Result<Vec<u8>, Error> {
    let source: std::sync::Arc<dyn crate::file::ReadAt> = std::sync::Arc::new(file);
    let file = ArrowFile::new(Input::from_source(Path::new("memory.arrow"), source)?, &[], Nulls::Raise)?;
    crate::container::index_alone(crate::Format::Arrow, &file)
}
