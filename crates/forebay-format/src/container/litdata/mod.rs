//! `LitData`: a directory whose `index.json` names the chunks and describes the samples.
//!
//! A chunk is a [table of offsets](super::offset_table) and the samples, whose leaves all have
//! their length before them. Samples of numbers and strings alone are written as one Arrow table
//! instead, by newer versions; such chunks are refused, and so are compressed and encrypted ones. A
//! chunk of tokens is read by windows (`forebay.tokens`). The layout to the byte is
//! `docs/formats/litdata.md`.

mod leaves;

use std::ops::Range;
use std::path::{Path, PathBuf};

use forebay_types::Dtype;
use serde::Deserialize;

use super::index_json;
use super::offset_table::{Head, OffsetTable, Value};
use crate::file::{Input, allow_open_shards};
use crate::{Error, OpenOptions};

/// The name of the format in messages.
const WHAT: &str = "LitData";

/// The loader of samples that are trees of leaves, and that of tokens.
const TREES: &str = "PyTreeLoader";
const TOKENS: &str = "TokensLoader";

/// Begin of a chunk whose samples are compressed in frames.
const FRAMED_MAGIC: &[u8] = b"LDFZ01\0\0";

/// End of a chunk that holds an Arrow table.
const ARROW_MAGIC: &[u8] = b"LDARW01\0";

/// The list of chunks.
#[derive(Deserialize)]
struct List {
    chunks: Vec<Listed>,
    config: Config,
}

#[derive(Deserialize)]
struct Listed {
    filename: String,
    chunk_bytes: u64,
    chunk_size: u64,
}

/// What all chunks have in common.
#[derive(Deserialize)]
struct Config {
    compression: Option<String>,
    compression_level: Option<String>,
    encryption: Option<serde_json::Value>,
    data_format: Option<Vec<String>>,
    data_spec: Option<String>,
    item_loader: Option<String>,
}

/// Opens all chunks of a directory.
pub(crate) fn open(path: &Path, options: &OpenOptions) -> Result<Vec<OffsetTable>, Error> {
    let (list, input) = read_list(path)?;
    let loader = list.config.item_loader.as_deref().unwrap_or(TREES);
    if loader == TOKENS {
        let hint = format!("forebay.tokens(\"{}\", window=...) reads them by windows", path.display());
        return Err(input.unsupported("a chunk of tokens", loader, hint));
    }
    if loader != TREES {
        let hint = "Forebay reads what litdata.optimize writes by default";
        return Err(input.unsupported("a chunk of another loader", loader, hint));
    }
    if list.chunks.is_empty() {
        return Ok(Vec::new());
    }
    let values = values(&input, &list.config)?;
    allow_open_shards(list.chunks.len());
    list.chunks.iter().map(|listed| read_listed(&input, listed, &list.config, &values, options)).collect()
}

/// A chunk of tokens.
pub(crate) struct TokenChunk {
    pub(crate) input: Input,
    pub(crate) dtype: Dtype,
    /// Where the tokens are [bytes from the start of the file].
    pub(crate) place: Range<u64>,
}

/// The chunks of tokens of a directory.
pub(crate) fn token_chunks(path: &Path) -> Result<Vec<TokenChunk>, Error> {
    let (List { chunks, config }, input) = read_list(path)?;
    let found = config.item_loader.as_deref().unwrap_or(TREES);
    if found != TOKENS {
        let hint = "forebay.open reads them";
        return Err(input.unsupported("a chunk of samples, read by windows,", found, hint));
    }
    let dtype = match config.data_format.as_deref() {
        Some([serializer]) => leaves::token_dtype(serializer),
        _ => None,
    };
    let Some(dtype) = dtype else {
        let found = format!("{:?}", config.data_format.unwrap_or_default());
        return Err(input.corrupt(0, "LitData: data_format of tokens", "one array of integers", found));
    };
    allow_open_shards(chunks.len());
    chunks
        .iter()
        .map(|listed| {
            let (input, head) = open_chunk(&input, listed, &config)?;
            let place = head.start..input.bytes();
            Ok(TokenChunk { input, dtype, place })
        })
        .collect()
}

/// Reads the list; refuses encrypted chunks.
fn read_list(path: &Path) -> Result<(List, Input), Error> {
    let (list, input): (List, _) = index_json::read(path)?;
    if list.config.encryption.is_some() {
        let hint = "write the samples without encryption";
        return Err(input.unsupported("an encrypted chunk", "encryption in the config", hint));
    }
    Ok((list, input))
}

/// The values of a sample.
fn values(input: &Input, config: &Config) -> Result<Vec<Value>, Error> {
    let (Some(formats), Some(spec)) = (&config.data_format, &config.data_spec) else {
        let found = "no data_format or no data_spec";
        return Err(input.corrupt(0, "LitData: config", "the serializers and the tree of a sample", found));
    };
    let names = leaves::names(spec).map_err(|found| {
        input.corrupt(0, "LitData: data_spec", "a tree of dicts, lists and tuples", found)
    })?;
    if names.is_empty() || names.len() != formats.len() {
        let found = format!("{} leaves and {} serializers", names.len(), formats.len());
        return Err(input.corrupt(0, "LitData: config", "a serializer for each leaf", found));
    }
    let value = |(name, format): (&String, &String)| {
        leaves::value(name, format).map_err(|found| {
            let hint = "write the leaf with another type";
            input.unsupported(format!("leaf {name:?} of a type that numpy lacks"), found, hint)
        })
    };
    names.iter().zip(formats).map(value).collect()
}

fn read_listed(
    list: &Input,
    listed: &Listed,
    config: &Config,
    values: &[Value],
    options: &OpenOptions,
) -> Result<OffsetTable, Error> {
    let (chunk, head) = open_chunk(list, listed, config)?;
    refuse_arrow(&chunk, &head)?;
    let described: Vec<u8> =
        config.data_format.iter().flatten().flat_map(|name| name.bytes().chain([0])).collect();
    read(chunk, head, values.to_vec(), options, &described)
}

/// Takes a chunk whose samples have these values.
fn read(
    chunk: Input,
    head: Head,
    values: Vec<Value>,
    options: &OpenOptions,
    described: &[u8],
) -> Result<OffsetTable, Error> {
    OffsetTable::new(chunk, WHAT, head, values, options, described)
}

/// Reads the head of a chunk whose samples have leaves of these serializers, for fuzz targets and
/// tests.
pub fn read_chunk(chunk: Input, serializers: &[&str], options: &OpenOptions) -> Result<OffsetTable, Error> {
    let head = Head::read(&chunk, WHAT)?;
    let value = |(number, serializer): (usize, &&str)| {
        leaves::value(&number.to_string(), serializer)
            .map_err(|found| chunk.corrupt(0, "serializer", "one of LitData", found))
    };
    let values = serializers.iter().enumerate().map(value).collect::<Result<_, _>>()?;
    read(chunk, head, values, options, &[])
}

/// Opens a chunk and reads its head; refuses what is compressed.
fn open_chunk(list: &Input, listed: &Listed, config: &Config) -> Result<(Input, Head), Error> {
    let path = index_json::shard_path(list, &listed.filename)?;
    let path = match &config.compression {
        Some(compression) => decompressed(list, &path, compression, config.compression_level.as_deref())?,
        None => path,
    };
    let chunk = Input::open(&path)?;
    let mut magic = [0; FRAMED_MAGIC.len()];
    if chunk.read_most(0, &mut magic)? == magic.len() && magic == FRAMED_MAGIC {
        return Err(in_frames(&chunk, "frames of zstd at offset 0"));
    }
    let head = Head::read(&chunk, WHAT)?;
    index_json::check(list, &path, "samples of a chunk", listed.chunk_size, head.samples)?;
    if config.compression.is_none() {
        index_json::check(list, &path, "size of a chunk", listed.chunk_bytes, chunk.bytes())?;
    }
    Ok((chunk, head))
}

/// The decompressed file of a chunk that is compressed as a whole.
fn decompressed(list: &Input, path: &Path, compression: &str, level: Option<&str>) -> Result<PathBuf, Error> {
    if level.is_some_and(|level| level != "chunk") {
        return Err(in_frames(
            list,
            format!("compression {compression:?}, level {:?}", level.unwrap_or_default()),
        ));
    }
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let kind = compression.split(':').next().unwrap_or_default();
    let plain = path.with_file_name(name.replace(&format!(".{kind}"), ""));
    if plain != path && plain.exists() {
        return Ok(plain);
    }
    let (from, to) = (path.display(), plain.display());
    let hint = format!("decompress every chunk: {kind} -d {from} -o {to}; both files may stay");
    let found = format!("{compression}; samples have no offsets in {}", path.display());
    Err(list.unsupported("a compressed chunk", found, hint))
}

/// The error of samples that are compressed within their chunk.
fn in_frames(input: &Input, found: impl Into<String>) -> Error {
    let hint = "write the samples without compression: optimize(..., compression=None)";
    input.unsupported("a chunk whose samples are compressed in it", found, hint)
}

/// Refuses a chunk whose samples are one Arrow table: all its offsets are equal.
fn refuse_arrow(chunk: &Input, head: &Head) -> Result<(), Error> {
    let mut magic = [0; ARROW_MAGIC.len()];
    let at = chunk.bytes().saturating_sub(magic.len() as u64);
    let count = chunk.read_most(at, &mut magic)?;
    if count < magic.len() || magic != ARROW_MAGIC || head.samples == 0 {
        return Ok(());
    }
    if head.last_offset(chunk)? > head.start {
        // An older version wrote both.
        return Ok(());
    }
    let hint = "litdata writes an Arrow table where all leaves are strings, numbers, lists or dicts; \
                with one leaf of bytes or an array it writes samples that can be read in place";
    Err(chunk.unsupported(
        "a chunk whose samples are an Arrow table",
        format!("its mark at offset {at}"),
        hint,
    ))
}
