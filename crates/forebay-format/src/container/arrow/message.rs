//! Messages: how Arrow data lie in a file or stream (`Message.fbs`, `File.fbs`).
//!
//! A message is `ff ff ff ff`, the length of its metadata (i32), the metadata, and a body; before
//! version 0.15 of Arrow, it begins with the length. A stream begins with the schema; dictionaries
//! and batches of rows follow, up to a length of 0 or the end of the file. A file is `ARROW1`,
//! padding, such a stream, and a footer that lists its blocks, followed by the footer's length
//! (i32) and `ARROW1`.

use super::flatbuffer::{Malformed, Table};
use super::schema::{self, BIG_ENDIAN, SchemaField, VERSION_4};
use crate::Error;
use crate::codec::Codec;
use crate::file::Input;

/// Key of the codec of a batch in the metadata of its message, where Arrow 0.17 keeps it.
const EXPERIMENTAL_COMPRESSION: &str = "ARROW:experimental_compression";

/// First and last bytes of a file.
pub(super) const MAGIC: [u8; 6] = *b"ARROW1";

/// First bytes of a message, unless it has only a length before its metadata.
const CONTINUATION: [u8; 4] = [0xff; 4];

/// Bytes of the length before the metadata.
const LENGTH_BYTES: usize = 4;

/// Longest metadata by which a stream is recognized \[bytes\].
const MAX_RECOGNIZED_BYTES: usize = 1 << 20;

/// Length of the metadata that most messages have \[bytes\]: read with their prefix.
const FIRST_READ_BYTES: usize = 4096;

/// Advice for what other readers read.
const REWRITE_HINT: &str =
    "rewrite the file: read it with pyarrow.ipc, and write it again on a little-endian machine";

/// Metadata of Arrow before version 0.8.
const OLD_METADATA: Malformed = Malformed("metadata of a version before 4, of Arrow before 0.8");

/// Longest metadata \[bytes\]. Those of a thousand columns take less than 1 MiB.
const MAX_METADATA_BYTES: usize = 1 << 28;

/// A message, its body not read.
#[derive(Debug)]
pub(super) struct Message {
    /// First byte [bytes from the start of the file].
    pub(super) at: u64,
    metadata: Vec<u8>,
    /// Where the body begins, and its length.
    pub(super) body: (u64, u64),
}

/// The kind of a message, and its table.
pub(super) enum Content<'a> {
    Schema(Table<'a>),
    Dictionary(Table<'a>),
    Batch(Table<'a>),
    /// Tensors, which are no rows.
    Other,
}

/// The error of metadata.
pub(super) fn broken(input: &Input, at: u64) -> impl Fn(Malformed) -> Error {
    move |error| match error {
        OLD_METADATA | BIG_ENDIAN => {
            input.unsupported("this kind of Arrow data", error.0.to_owned(), REWRITE_HINT)
        }
        Malformed(found) => input.corrupt(at, "Arrow metadata", "valid ones", found),
    }
}

/// Bytes before the metadata of a message that begins with these bytes, and length of the metadata.
fn prefix(head: &[u8]) -> Option<(usize, i32)> {
    let before = if head.starts_with(&CONTINUATION) { CONTINUATION.len() } else { 0 };
    let length = head.get(before..)?.first_chunk::<LENGTH_BYTES>()?;
    Some((before + LENGTH_BYTES, i32::from_le_bytes(*length)))
}

impl Message {
    /// Reads the message at `at`; `None` at the end of the stream.
    pub(super) fn read(input: &Input, at: u64) -> Result<Option<Self>, Error> {
        let mut metadata = vec![0; FIRST_READ_BYTES];
        let count = input.read_most(at, &mut metadata)?;
        metadata.truncate(count);
        if metadata.is_empty() {
            return Ok(None);
        }
        let Some((prefix_bytes, length)) = prefix(&metadata) else {
            let found = crate::error::hex(&metadata);
            return Err(input.corrupt(at, "Arrow message", "ff ff ff ff and a length", found));
        };
        if length == 0 {
            return Ok(None);
        }
        let start = at + prefix_bytes as u64;
        let length = usize::try_from(length)
            .ok()
            .filter(|length| {
                *length <= MAX_METADATA_BYTES && *length as u64 <= input.bytes().saturating_sub(start)
            })
            .ok_or_else(|| {
                let offset = start - LENGTH_BYTES as u64;
                input.corrupt(offset, "length of Arrow metadata", "one within the file", length)
            })?;
        let have = metadata.len().min(prefix_bytes + length);
        metadata.resize(prefix_bytes + length, 0);
        input.read(at + have as u64, &mut metadata[have..], "Arrow metadata")?;
        metadata.drain(..prefix_bytes);
        let mut message = Self { at, metadata, body: (start + length as u64, 0) };
        let claimed = message.table().and_then(|table| table.i64(3, 0)).map_err(broken(input, at))?;
        let left = input.bytes() - message.body.0;
        message.body.1 = u64::try_from(claimed).ok().filter(|bytes| *bytes <= left).ok_or_else(|| {
            input.corrupt(at, "length of an Arrow message", format!("at most {left}"), claimed)
        })?;
        Ok(Some(message))
    }

    fn table(&self) -> Result<Table<'_>, Malformed> {
        Table::root(&self.metadata)
    }

    /// Where the next message begins.
    pub(super) fn end(&self) -> u64 {
        self.body.0 + self.body.1
    }

    /// What the message says.
    pub(super) fn content(&self) -> Result<Content<'_>, Malformed> {
        let table = self.table()?;
        let header = || table.table(2)?.ok_or(Malformed("a message without a header"));
        Ok(match table.u8(1, 0)? {
            1 => Content::Schema(header()?),
            2 => Content::Dictionary(header()?),
            3 => Content::Batch(header()?),
            _ => Content::Other,
        })
    }

    /// What the buffers are compressed with, where the metadata of the message say that; the batch
    /// itself says it from version 5 on.
    pub(super) fn experimental_compression(&self) -> Result<Option<Codec>, Malformed> {
        let table = self.table()?;
        if table.i16(0, 0)? > VERSION_4 {
            return Ok(None);
        }
        for entry in table.tables(4)? {
            let entry = entry?;
            if entry.text(0)? == EXPERIMENTAL_COMPRESSION {
                return match &entry.text(1)?.to_ascii_lowercase()[..] {
                    "uncompressed" => Ok(None),
                    "lz4" | "lz4_frame" => Ok(Some(Codec::Lz4Frame)),
                    "zstd" => Ok(Some(Codec::Zstd)),
                    _ => Err(Malformed("an unknown compression")),
                };
            }
        }
        Ok(None)
    }

    /// Version of the format, as its metadata count: 3 is version 4.
    fn version(&self) -> Result<i16, Malformed> {
        supported(self.table()?.i16(0, 0)?)
    }
}

fn supported(version: i16) -> Result<i16, Malformed> {
    if version < VERSION_4 { Err(OLD_METADATA) } else { Ok(version) }
}

/// The fields of a schema message.
pub(super) fn schema_of(message: &[u8]) -> Result<Vec<SchemaField>, Malformed> {
    let metadata = message.strip_prefix(&CONTINUATION).and_then(|rest| rest.get(4..));
    let table = Table::root(metadata.ok_or(Malformed("no message"))?)?;
    let header = table.table(2)?.filter(|_| table.u8(1, 0) == Ok(1)).ok_or(Malformed("no schema"))?;
    schema::read(&header, supported(table.i16(0, 0)?)?)
}

/// Whether a file that begins with these bytes is a stream: its first message is a schema.
pub(crate) fn is_stream(head: &[u8]) -> bool {
    let Some(metadata) = head.strip_prefix(&CONTINUATION).and_then(|rest| rest.get(4..)) else {
        return false;
    };
    let is_schema = |table: Table<'_>| -> Result<bool, Malformed> {
        Ok(table.u8(1, 0)? == 1 && (VERSION_4..=VERSION_4 + 1).contains(&table.i16(0, 0)?))
    };
    Table::root(metadata).and_then(is_schema).unwrap_or(false)
}

/// Whether a file is a stream, by the whole metadata of its first message: writers put tables
/// anywhere in them.
pub(crate) fn is_stream_of_any_layout(input: &Input) -> Result<bool, Error> {
    let mut head = [0; CONTINUATION.len() + LENGTH_BYTES];
    let count = input.read_most(0, &mut head)?;
    let place = prefix(&head[..count]).and_then(|(at, length)| Some((at, usize::try_from(length).ok()?)));
    let Some((at, length)) = place.filter(|(_, length)| *length <= MAX_RECOGNIZED_BYTES) else {
        return Ok(false);
    };
    let mut metadata = vec![0; length];
    if input.read_most(at as u64, &mut metadata)? < length {
        return Ok(false);
    }
    let is_schema = |table: Table<'_>| -> Result<bool, Malformed> {
        let header = table.table(2)?.filter(|_| table.u8(1, 0) == Ok(1));
        let Some(header) = header else { return Ok(false) };
        header.tables(1)?.try_for_each(|field| field?.text(0).map(drop))?;
        Ok((0..=VERSION_4 + 1).contains(&table.i16(0, 0)?))
    };
    Ok(Table::root(&metadata).and_then(is_schema).unwrap_or(false))
}

/// What opening reads: the schema, and where messages are.
#[derive(Debug)]
pub(super) struct Opening {
    pub(super) fields: Vec<SchemaField>,
    /// Metadata of schema and footer, to detect changes.
    pub(super) digested: Vec<u8>,
    pub(super) messages: Messages,
}

/// Where the dictionaries and batches are.
#[derive(Debug)]
pub(super) enum Messages {
    /// From there on, one after the other.
    Stream { at: u64 },
    /// There, dictionaries first.
    Blocks(Vec<u64>),
}

/// Reads the schema of a stream, or the footer of a file.
pub(super) fn open(input: &Input) -> Result<Opening, Error> {
    let mut head = [0; MAGIC.len()];
    let count = input.read_most(0, &mut head)?;
    if head[..count] == MAGIC { open_file(input) } else { open_stream(input) }
}

fn open_stream(input: &Input) -> Result<Opening, Error> {
    let nothing = || input.corrupt(0, "Arrow stream", "a schema", "its end");
    let message = Message::read(input, 0)?.ok_or_else(nothing)?;
    let error = broken(input, 0);
    let version = message.version().map_err(&error)?;
    let Content::Schema(table) = message.content().map_err(&error)? else {
        return Err(input.corrupt(0, "first Arrow message", "a schema", "another message"));
    };
    let fields = schema::read(&table, version).map_err(&error)?;
    let messages = Messages::Stream { at: message.end() };
    Ok(Opening { fields, digested: digested(message.metadata.clone(), version), messages })
}

fn open_file(input: &Input) -> Result<Opening, Error> {
    let mut tail = [0; 4 + MAGIC.len()];
    let tail_bytes = tail.len() as u64;
    let at = input.bytes().saturating_sub(tail_bytes);
    input.read(at, &mut tail, "end of the Arrow file")?;
    if tail[4..] != MAGIC {
        let found = crate::error::hex(&tail[4..]);
        return Err(input.corrupt(at + 4, "end of the Arrow file", "ARROW1", found));
    }
    let length = i32::from_le_bytes([tail[0], tail[1], tail[2], tail[3]]);
    let start = u64::try_from(length)
        .ok()
        .filter(|length| *length <= MAX_METADATA_BYTES as u64)
        .and_then(|length| at.checked_sub(length))
        .ok_or_else(|| input.corrupt(at, "length of the footer", "one within the file", length))?;
    let mut footer = vec![0; (at - start) as usize];
    input.read(start, &mut footer, "footer of the Arrow file")?;
    let error = broken(input, start);
    let table = Table::root(&footer).map_err(&error)?;
    let read = || -> Result<_, Malformed> {
        let version = supported(table.i16(0, 0)?)?;
        let schema = table.table(1)?.ok_or(Malformed("a footer without a schema"))?;
        let fields = schema::read(&schema, version)?;
        let blocks = table.structures::<24>(2)?.iter().chain(table.structures::<24>(3)?);
        let offset = |block: &[u8; 24]| {
            u64::try_from(i64::from_le_bytes(std::array::from_fn(|byte| block[byte])))
                .map_err(|_| Malformed("a block before the file"))
        };
        Ok((fields, blocks.map(offset).collect::<Result<Vec<_>, _>>()?, version))
    };
    let (fields, blocks, version) = read().map_err(&error)?;
    Ok(Opening { fields, digested: digested(footer, version), messages: Messages::Blocks(blocks) })
}

/// What detects changes of a file with this metadata. Sidecars of version 4 that took compressed
/// buffers for values do not fit.
fn digested(mut metadata: Vec<u8>, version: i16) -> Vec<u8> {
    if version <= VERSION_4 {
        metadata.extend_from_slice(EXPERIMENTAL_COMPRESSION.as_bytes());
    }
    metadata
}
