//! `ArrayRecord`, the format of Grain: records in chunks of the Riegeli format, and at the end of
//! the file where its index begins.
//!
//! [`walk`] goes from [`chunk`] to chunk up to that index, checks the hash of each header, and
//! reads the sizes of records; the index itself is not needed. Records that are not compressed are
//! read in place; headers of [`blocks`] cut them into extents. Those of a chunk compressed by zstd
//! are one unit. The layout to the byte is `docs/formats/arrayrecord.md`.
//!
//! All input is untrusted: each length is checked against the file, and every step goes forward.

mod blocks;
mod chunk;

use std::path::Path;

use crate::container::{Column, Container, ScanSummary, header_digest};
use crate::file::{HeaderScan, Input};
use crate::index::sidecar::{IndexEntry, Part, PartPiece, RecordClass, ShardState, Writer};
use crate::varint::Bytes;
use crate::{Codec, Error, SchemaChoice};
use blocks::BLOCK_BYTES;
pub use chunk::hash as header_hash;
use chunk::{Chunk, ChunkKind};

/// Begin of a Riegeli file: the header of its first block and of the signature.
const SIGNATURE_BYTES: u64 = 64;

/// The magic number in the last block.
const POSTSCRIPT_MAGIC: u64 = 0x7193_0e70_4fda_e05e;

/// Most extents of a record: about 4 MiB. The description of each record then stays below a
/// thousand bytes, as those of `RecordIO` do.
const MAX_EXTENTS: usize = 64;

/// Visits the location of each record, and the codec of its unit, if it has one.
pub type Visit<'a> = dyn FnMut(IndexEntry, Option<&Codec>) -> Result<(), Error> + 'a;

/// A file, open for reading.
#[derive(Debug)]
pub(crate) struct ArrayRecord {
    input: Input,
    /// Where its index begins [bytes from the start of the file].
    footer: u64,
    state: ShardState,
}

impl ArrayRecord {
    /// Opens a file; reads its end.
    pub(crate) fn open(path: &Path) -> Result<Self, Error> {
        let input = Input::open(path)?;
        let footer = footer(&input)?;
        let state = header_digest(&footer.to_le_bytes());
        Ok(Self { input, footer, state })
    }
}

/// Where the index of a file begins, which ends the records.
fn footer(input: &Input) -> Result<u64, Error> {
    let what = "ArrayRecord: end of the file";
    let hint_of = |found: String| {
        let hint = "check that the writer was closed; a Riegeli file without an index is not read";
        input.unsupported("a file without the index of ArrayRecord", found, hint)
    };
    let last = input.bytes().saturating_sub(1) / BLOCK_BYTES * BLOCK_BYTES;
    if last == 0 {
        return Err(hint_of(format!("{} bytes, of one block", input.bytes())));
    }
    let scan = &mut HeaderScan::new(input, &|_| true);
    let postscript = Chunk::read(scan, last, input.bytes()).map_err(|error| hint_of(error.to_string()))?;
    if postscript.kind != ChunkKind::Simple {
        return Err(hint_of(format!("no records at offset {last}")));
    }
    let records = postscript.records(scan)?;
    let Some(first) = records.lengths.first().filter(|_| records.codec.is_none()) else {
        return Err(hint_of(format!("{} records at offset {last}", records.lengths.len())));
    };
    let bytes = blocks::read(scan, records.start, *first, what)?;
    let footer =
        parse_postscript(&bytes).ok_or_else(|| hint_of(format!("other records at offset {last}")))?;
    if !(SIGNATURE_BYTES..=last).contains(&footer) {
        let expected = format!("{SIGNATURE_BYTES} to {last}");
        return Err(input.corrupt(last, "ArrayRecord: begin of the index", expected, footer));
    }
    Ok(footer)
}

/// The place of the index in a protocol buffer of two numbers: 1 is the place, 2 the magic number.
fn parse_postscript(bytes: &[u8]) -> Option<u64> {
    let mut bytes = Bytes::new(bytes);
    let (mut footer, mut magic) = (None, None);
    while bytes.left() > 0 {
        match bytes.varint()? {
            0x08 => footer = Some(bytes.varint()?),
            0x10 => magic = Some(bytes.varint()?),
            _ => return None,
        }
    }
    footer.filter(|_| magic == Some(POSTSCRIPT_MAGIC))
}

/// Goes from chunk to chunk of a file. `each` gets the location of every record: a plain entry of
/// class 0, or a unit of several extents; and the codec of the unit, if it has one.
pub fn walk(input: &Input, progress: &dyn Fn(u64) -> bool, each: &mut Visit<'_>) -> Result<(), Error> {
    chunks(input, footer(input)?, progress, &mut |scan, chunk| {
        if chunk.kind != ChunkKind::Simple {
            return Ok(());
        }
        let records = chunk.records(scan)?;
        let codec = records.codec.as_ref();
        let mut offset = 0;
        for length in records.lengths {
            let entry = match codec {
                None => stored(input, records.start, offset, length)?,
                Some(_) if length == 0 => IndexEntry::Plain { class: 0, start: records.start, length },
                Some(_) => IndexEntry::Exception(vec![Part {
                    pieces: pieces(input, records.start, records.stored_bytes)?,
                    codecs: 0,
                    decoded_bytes: records.decoded_bytes,
                    guard: 0,
                    offset,
                    length,
                }]),
            };
            each(entry, codec)?;
            offset += length;
        }
        Ok(())
    })
}

/// The location of a record that is not compressed.
fn stored(input: &Input, start: u64, offset: u64, length: u64) -> Result<IndexEntry, Error> {
    let start = blocks::end(start, offset).expect("within the chunk");
    let pieces = pieces(input, start, length)?;
    Ok(match pieces[..] {
        [] => IndexEntry::Plain { class: 0, start, length: 0 },
        [PartPiece::Extent { offset, length }] => IndexEntry::Plain { class: 0, start: offset, length },
        _ => IndexEntry::Exception(vec![Part {
            pieces,
            codecs: 0,
            decoded_bytes: length,
            guard: 0,
            offset: 0,
            length,
        }]),
    })
}

fn pieces(input: &Input, start: u64, length: u64) -> Result<Vec<PartPiece>, Error> {
    let pieces = blocks::pieces(start, length);
    if pieces.len() <= MAX_EXTENTS {
        return Ok(pieces);
    }
    let found = format!("{length} bytes at offset {start}, cut into {} extents", pieces.len());
    let hint = "write such records as TFRecord";
    Err(input.unsupported(format!("a record of more than {MAX_EXTENTS} extents"), found, hint))
}

/// Visits the chunks before the index.
fn chunks(
    input: &Input,
    footer: u64,
    progress: &dyn Fn(u64) -> bool,
    visit: &mut dyn FnMut(&mut HeaderScan<'_>, &Chunk) -> Result<(), Error>,
) -> Result<(), Error> {
    let mut scan = HeaderScan::new(input, progress);
    let mut at = 0;
    while at < footer {
        let chunk = Chunk::read(&mut scan, at, footer)?;
        visit(&mut scan, &chunk)?;
        at = chunk.end;
    }
    Ok(())
}

impl Container for ArrayRecord {
    fn input(&self) -> &Input {
        &self.input
    }

    fn state(&self) -> ShardState {
        self.state.clone()
    }

    fn columns(&self) -> Result<Vec<Column>, Error> {
        Ok(vec![Column::opaque(vec![RecordClass::tight("record")])])
    }

    fn usual_schema(&self) -> Option<SchemaChoice> {
        Some(SchemaChoice::TfExample)
    }

    fn add_to(
        &self,
        writer: &mut Writer,
        _threads: usize,
        progress: &dyn Fn(u64) -> bool,
    ) -> Result<ScanSummary, Error> {
        walk(&self.input, progress, &mut |mut entry, codec| {
            if let (IndexEntry::Exception(parts), Some(codec)) = (&mut entry, codec) {
                let chain = writer.chain(std::slice::from_ref(codec));
                for part in parts {
                    part.codecs = chain;
                }
            }
            writer.push([entry]);
            Ok(())
        })?;
        Ok(ScanSummary::default())
    }

    fn check_sums(&self, progress: &dyn Fn(u64) -> bool) -> Result<(), Error> {
        chunks(&self.input, self.footer, progress, &mut |scan, chunk| chunk.check_data(scan))
    }
}
