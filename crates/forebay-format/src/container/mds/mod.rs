//! MDS, the format of `MosaicML` Streaming: a directory whose `index.json` names the shards.
//!
//! A shard is a [table of offsets](super::offset_table), a description of the columns in JSON, and
//! the samples. It describes itself, so a shard can be opened without the directory. A compressed
//! shard is read where its decompressed file lies beside it. The layout to the byte is
//! `docs/formats/mds.md`.

mod encoding;

use std::path::Path;

use serde::Deserialize;

use super::index_json;
use super::offset_table::{Head, OffsetTable, Value};
use crate::container::Container;
use crate::file::{Input, allow_open_shards, parse_json};
use crate::{Error, OpenOptions};

/// The name of the format in messages.
const WHAT: &str = "MDS";

/// The version that is read.
const VERSION: u64 = 2;

/// How the description within a shard begins: keys are sorted.
const CONFIG_BEGIN: &[u8] = b"{\"column_";

/// Longest description within a shard \[bytes\].
const MAX_CONFIG_BYTES: u64 = 1 << 20;

/// The columns, as each shard describes them.
#[derive(Deserialize)]
struct Config {
    version: u64,
    format: String,
    column_names: Vec<String>,
    column_encodings: Vec<String>,
    column_sizes: Vec<Option<u64>>,
}

/// The list of shards.
#[derive(Deserialize)]
struct List {
    shards: Vec<Listed>,
}

/// What the list says of a shard.
#[derive(Deserialize)]
struct Listed {
    format: String,
    compression: Option<String>,
    samples: u64,
    raw_data: FileFacts,
    zip_data: Option<FileFacts>,
}

#[derive(Deserialize)]
struct FileFacts {
    basename: String,
    bytes: u64,
}

/// Opens a shard, or all shards of a directory.
pub(crate) fn open(path: &Path, options: &OpenOptions) -> Result<Vec<OffsetTable>, Error> {
    if !path.is_dir() {
        return Ok(vec![read(Input::open(path)?, options)?]);
    }
    let (List { shards }, input) = index_json::read(path)?;
    allow_open_shards(shards.len());
    shards.iter().map(|listed| open_listed(&input, listed, options)).collect()
}

fn open_listed(list: &Input, listed: &Listed, options: &OpenOptions) -> Result<OffsetTable, Error> {
    if listed.format != "mds" {
        let hint = "write the samples with streaming.MDSWriter";
        return Err(list.unsupported("a shard of another format", format!("{:?}", listed.format), hint));
    }
    let path = index_json::shard_path(list, &listed.raw_data.basename)?;
    if let (Some(compression), Some(zip)) = (&listed.compression, &listed.zip_data)
        && !path.exists()
    {
        let zipped = index_json::shard_path(list, &zip.basename)?;
        return Err(compressed(list, compression, &zipped, &path));
    }
    let shard = read(Input::open(&path)?, options)?;
    index_json::check(list, &path, "size of a shard", listed.raw_data.bytes, shard.input().bytes())?;
    index_json::check(list, &path, "samples of a shard", listed.samples, shard.samples())?;
    Ok(shard)
}

/// The error of a shard of which only the compressed file is there.
fn compressed(list: &Input, compression: &str, zipped: &Path, path: &Path) -> Error {
    let (from, to) = (zipped.display(), path.display());
    let command = match compression.split(':').next().unwrap_or_default() {
        "zstd" => format!("zstd -d {from} -o {to}"),
        "gz" => format!("gzip -dc {from} > {to}"),
        "bz2" => format!("bzip2 -dc {from} > {to}"),
        "br" => format!("brotli -dc {from} > {to}"),
        _ => format!("{from} to {to}"),
    };
    let hint = format!("decompress every shard: {command}; both files may stay");
    list.unsupported(
        "a compressed shard",
        format!("{compression}; samples have no offsets in {}", zipped.display()),
        hint,
    )
}

/// Reads the head of a shard.
pub fn read(input: Input, options: &OpenOptions) -> Result<OffsetTable, Error> {
    let head = Head::read(&input, WHAT)?;
    let (at, length) = (head.table_end(), head.start - head.table_end());
    if length > MAX_CONFIG_BYTES {
        let what = format!("a description of the columns of more than {MAX_CONFIG_BYTES} bytes");
        return Err(input.unsupported(what, format!("{length} bytes at offset {at}"), ""));
    }
    let mut text = vec![0; length as usize];
    input.read(at, &mut text, WHAT)?;
    let config: Config = parse_json(&input, at, &text, "MDS: description of the columns")?;
    if config.version != VERSION || config.format != "mds" {
        let found = format!("version {} of {:?} at offset {at}", config.version, config.format);
        let hint = "write the samples with streaming.MDSWriter";
        return Err(input.unsupported("another version of MDS", found, hint));
    }
    let values = values(&input, at, &config)?;
    OffsetTable::new(input, WHAT, head, values, options, &text)
}

/// The values of a sample, by the columns.
fn values(input: &Input, at: u64, config: &Config) -> Result<Vec<Value>, Error> {
    let Config { column_names, column_encodings, column_sizes, .. } = config;
    let columns = column_names.len();
    if columns == 0 || column_encodings.len() != columns || column_sizes.len() != columns {
        let found =
            format!("{columns} names, {} encodings, {} sizes", column_encodings.len(), column_sizes.len());
        return Err(input.corrupt(at, "MDS: columns", "a name, an encoding and a size for each one", found));
    }
    let columns = column_names.iter().zip(column_encodings).zip(column_sizes);
    columns
        .map(|((name, encoding), bytes)| {
            // The library takes a size of 0 for none.
            let bytes = bytes.filter(|bytes| *bytes > 0);
            if bytes.is_some_and(|bytes| bytes > u64::from(u32::MAX)) {
                let what = format!("MDS: size of column {name:?}");
                return Err(input.corrupt(at, what, "at most 4294967295 bytes", bytes.unwrap_or_default()));
            }
            encoding::value(name, encoding, bytes).map_err(|found| {
                let what = format!("MDS: encoding of column {name:?}");
                input.corrupt(at, what, "an encoding of streaming.MDSWriter", found)
            })
        })
        .collect()
}

/// Whether a file begins like a shard.
pub(crate) fn is_shard(input: &Input) -> bool {
    let Ok(head) = Head::read(input, WHAT) else { return false };
    let mut begin = [0; CONFIG_BEGIN.len()];
    let count = input.read_most(head.table_end(), &mut begin).unwrap_or_default();
    count == begin.len() && begin == CONFIG_BEGIN
}
