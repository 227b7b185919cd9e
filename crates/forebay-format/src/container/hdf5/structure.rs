//! The structure of a file: what h5py has found, as bytes, and checked like any other input.
//!
//! It begins with the length of a description (4 bytes, little-endian) and the description as JSON
//! ([`Description`]). Then follow, dataset by dataset, the data themselves of compact datasets, or
//! the table of chunks: 28 bytes for each existing chunk, [`CHUNK_BYTES`], ordered by number. Of
//! datasets whose rows vary in length, it is a table of rows, [`ROW_BYTES`].

use forebay_types::{Dtype, Field, Layout};
use serde::Deserialize;

use super::filters::{Filter, chain};
use crate::Error;
use crate::codec::{self, Codec};
use crate::file::Input;
use crate::index::sidecar::tiles::{Grid, MAX_RUNS};

/// An entry of the table of chunks: number in C order of the grid, offset and length in the file
/// [bytes], u64 each, and a mask of the filters that were skipped, u32, all little-endian.
const CHUNK_BYTES: usize = 28;

/// An entry of the table of rows: offset and length in the file [bytes], u64 each, little-endian.
const ROW_BYTES: usize = 16;

/// Most chunks, or rows, that were never written: they take no space in the file, so nothing else
/// bounds them.
const MAX_MISSING: u64 = 1 << 24;

/// Most dimensions of a dataset.
const MAX_DIMENSIONS: usize = 32;

/// h5py's description of a file.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum Description {
    /// Its datasets.
    Datasets(Vec<DatasetDescription>),
    /// It is of a kind that is not read.
    Unsupported { what: String, found: String, hint: String },
    /// It contradicts itself.
    Corrupt { what: String, offset: u64, expected: String, found: String },
    /// The request of the caller cannot be met.
    Usage { message: String, hint: String },
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct DatasetDescription {
    /// Path in the file, without the first slash.
    name: String,
    /// Type of an element, if it is one that Forebay has, else `None`.
    dtype: Option<Dtype>,
    /// The type as numpy describes it, where `dtype` is `None`.
    numpy: Option<String>,
    /// Length of an element \[bytes\].
    item_bytes: u32,
    /// Shape of the dataset.
    shape: Vec<u64>,
    /// Value of elements that were never written.
    fill: Vec<u8>,
    /// Strings of an element that end at their first NUL: offset and length \[bytes\].
    #[serde(default)]
    strings: Vec<(u32, u32)>,
    /// What the integers of an enumeration stand for.
    #[serde(default)]
    members: Option<String>,
    layout: LayoutDescription,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum LayoutDescription {
    /// From there on in the file \[bytes\].
    Contiguous { offset: u64 },
    /// Among the tables.
    Compact,
    /// Never written.
    Missing,
    /// Rows of varying length, at places of their own: among the tables.
    Rows,
    /// In chunks of this shape, and the number of existing ones.
    Chunked { shape: Vec<u64>, filters: Vec<Filter>, chunks: u64 },
}

/// A dataset of a file: a column of its samples.
#[derive(Debug)]
pub(crate) struct Dataset {
    /// The field that it is.
    pub(crate) field: Field,
    /// Length of an element \[bytes\].
    pub(crate) item_bytes: u32,
    /// Shape of a sample, in elements.
    pub(crate) sample: Vec<u64>,
    /// Value of elements that were never written, as long as one.
    pub(crate) fill: Vec<u8>,
    /// What is undone after the filters.
    pub(crate) strings: Vec<Codec>,
    /// What the integers of an enumeration stand for, to compare files.
    pub(crate) members: Option<String>,
    pub(crate) layout: DataLayout,
}

/// Where the data of a dataset are.
#[derive(Debug)]
pub(crate) enum DataLayout {
    Contiguous {
        offset: u64,
    },
    Compact(Vec<u8>),
    Missing,
    /// Offset in the file and length of each row \[bytes\].
    Rows(Vec<(u64, u64)>),
    Chunked(Chunks),
}

/// The chunks of a dataset.
#[derive(Debug)]
pub(crate) struct Chunks {
    /// Shape of a chunk: rows, then as samples.
    pub(crate) shape: Vec<u64>,
    /// Chunks of the whole grid.
    pub(crate) of_grid: u64,
    /// Chains of codecs.
    pub(crate) chains: Vec<Vec<Codec>>,
    /// Chunks that are there, ordered by number.
    pub(crate) table: Vec<Chunk>,
}

/// A chunk that is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Chunk {
    /// Number in C order of the grid.
    pub(crate) number: u64,
    /// First byte [bytes from the start of the file].
    pub(crate) offset: u64,
    /// Length \[bytes\].
    pub(crate) length: u64,
    /// Number of its chain among those of the dataset.
    pub(crate) chain: u32,
}

/// The datasets of a file.
#[derive(Debug)]
pub(crate) struct Structure {
    /// First dimension of all datasets.
    pub(crate) samples: u64,
    pub(crate) datasets: Vec<Dataset>,
}

impl Dataset {
    /// Length of a sample \[bytes\]; 0 where it varies.
    pub(crate) fn sample_bytes(&self) -> u64 {
        self.field.sample_bytes().unwrap_or(0)
    }
}

/// Reads a structure of the file `input`.
pub(crate) fn read(input: &Input, bytes: &[u8]) -> Result<Structure, Error> {
    let broken = |found: String| input.corrupt(0, "structure that was found", "a valid one", found);
    let (length, rest) = bytes.split_first_chunk().ok_or_else(|| broken("no length".to_owned()))?;
    let (json, mut tables) = rest
        .split_at_checked(u32::from_le_bytes(*length) as usize)
        .ok_or_else(|| broken("a description that is cut".to_owned()))?;
    let found = match serde_json::from_slice(json).map_err(|error| broken(error.to_string()))? {
        Description::Datasets(datasets) => datasets,
        Description::Unsupported { what, found, hint } => return Err(input.unsupported(what, found, hint)),
        Description::Corrupt { what, offset, expected, found } => {
            return Err(input.corrupt(offset, what, expected, found));
        }
        Description::Usage { message, hint } => {
            return Err(Error::Usage { message: format!("{}: {message}", input.path().display()), hint });
        }
    };
    let samples = found.first().and_then(|dataset| dataset.shape.first()).copied();
    let samples = samples.ok_or_else(|| broken("no dataset with a first dimension".to_owned()))?;
    let mut datasets = Vec::with_capacity(found.len());
    for dataset in found {
        if dataset.shape.first() != Some(&samples) || dataset.shape.len() > MAX_DIMENSIONS {
            return Err(broken(format!("dataset {:?} of shape {:?}", dataset.name, dataset.shape)));
        }
        datasets.push(read_dataset(input, dataset, samples, &mut tables)?);
    }
    if tables.is_empty() {
        Ok(Structure { samples, datasets })
    } else {
        Err(broken(format!("{} bytes after the tables", tables.len())))
    }
}

fn read_dataset(
    input: &Input,
    dataset: DatasetDescription,
    samples: u64,
    tables: &mut &[u8],
) -> Result<Dataset, Error> {
    let DatasetDescription { name, dtype, numpy, item_bytes, shape, fill, strings, members, layout } =
        dataset;
    let broken = |found: String| {
        input.corrupt(0, format!("structure that was found of dataset {name:?}"), "a valid one", found)
    };
    let sample = shape[1..].to_vec();
    if let (LayoutDescription::Rows, Some(dtype), None) = (&layout, dtype, &numpy) {
        let is_sound = sample.is_empty() && dtype.item_bytes() == item_bytes as usize && strings.is_empty();
        let bytes = samples.checked_mul(ROW_BYTES as u64).filter(|_| is_sound);
        let (table, rest) = bytes
            .and_then(|bytes| tables.split_at_checked(bytes as usize))
            .ok_or_else(|| broken(format!("rows of shape {shape:?}")))?;
        *tables = rest;
        let rows = read_rows(input, &name, item_bytes, table)?;
        let field = Field::new(&name, dtype, Layout::Ragged);
        return Ok(Dataset {
            field,
            item_bytes,
            sample,
            fill,
            strings: vec![],
            members,
            layout: DataLayout::Rows(rows),
        });
    }
    let field = match (dtype, numpy) {
        (Some(dtype), None) if dtype.item_bytes() == item_bytes as usize => {
            Field::new(&name, dtype, Layout::Dense(sample.clone()))
        }
        (None, Some(numpy)) if item_bytes > 0 => {
            let rows = sample.iter().copied().chain([u64::from(item_bytes)]).collect();
            Field { numpy: Some(numpy), ..Field::new(&name, Dtype::Uint8, Layout::Dense(rows)) }
        }
        (dtype, numpy) => {
            return Err(broken(format!("type {dtype:?} or {numpy:?} of {item_bytes} bytes")));
        }
    };
    let sizes = field.sample_bytes().and_then(|bytes| Some((bytes, bytes.checked_mul(samples)?)));
    let Some((sample_bytes, total)) = sizes else { return Err(broken(format!("shape {shape:?}"))) };
    if sample_bytes == 0 {
        let found = format!("shape {shape:?}");
        let hint = "leave the dataset out with fields=";
        return Err(input.unsupported(format!("dataset {name:?}, whose samples are empty,"), found, hint));
    }
    let refuse_missing = |missing: u64, what: &str| {
        if missing <= MAX_MISSING {
            return Ok(());
        }
        let found = format!("{missing} of them, more than {MAX_MISSING}");
        let hint = "leave the dataset out with fields=, or write it";
        Err(input.unsupported(format!("dataset {name:?} with {what} that were never written"), found, hint))
    };
    if fill.len() != item_bytes as usize {
        return Err(broken(format!("a fill value of {} bytes", fill.len())));
    }
    let strings = Some(strings).filter(|strings| !strings.is_empty());
    let strings = Vec::from_iter(strings.map(|strings| Codec::NulTerminated { item_bytes, strings }));
    codec::check_chain(&strings).map_err(broken)?;
    let inside =
        |offset: u64, length: u64| offset.checked_add(length).is_some_and(|end| end <= input.bytes());
    let layout = match layout {
        LayoutDescription::Contiguous { offset } if inside(offset, total) => {
            DataLayout::Contiguous { offset }
        }
        LayoutDescription::Contiguous { offset } => {
            let expected = format!("{total} bytes within {}", input.bytes());
            let what = format!("data of dataset {name:?}");
            return Err(input.corrupt(offset, what, expected, "the end of the file"));
        }
        LayoutDescription::Compact => {
            let (data, rest) =
                tables.split_at_checked(total as usize).ok_or_else(|| broken("too few bytes".to_owned()))?;
            *tables = rest;
            DataLayout::Compact(data.to_vec())
        }
        LayoutDescription::Rows => return Err(broken("rows of a type without a name".to_owned())),
        LayoutDescription::Missing => {
            refuse_missing(samples, "rows")?;
            DataLayout::Missing
        }
        LayoutDescription::Chunked { shape, filters, chunks } => {
            let grid = Grid::new(item_bytes, &sample, &shape, MAX_RUNS).map_err(|found| {
                let hint = "rewrite the dataset with chunks whose last axes are whole (h5repack -l CHUNK=…), or without chunks (-l CONTI)";
                input.unsupported(format!("the chunks of dataset {name:?}"), found, hint)
            })?;
            let grid_chunks = grid
                .chunks(samples)
                .filter(|all| chunks <= *all)
                .ok_or_else(|| broken(format!("{chunks} chunks")))?;
            refuse_missing(grid_chunks - chunks, "chunks")?;
            let table_bytes = chunks.checked_mul(CHUNK_BYTES as u64);
            let (table, rest) = table_bytes
                .and_then(|bytes| tables.split_at_checked(bytes as usize))
                .ok_or_else(|| broken("a table that is cut".to_owned()))?;
            *tables = rest;
            let mut reader = ChunkReader {
                input,
                name: &name,
                filters: &filters,
                strings: &strings,
                grid: &grid,
                grid_chunks,
                masks: Vec::new(),
                chains: Vec::new(),
            };
            let table = reader.read(table)?;
            DataLayout::Chunked(Chunks { shape, of_grid: grid_chunks, chains: reader.chains, table })
        }
    };
    Ok(Dataset { field, item_bytes, sample, fill, strings, members, layout })
}

/// Reads and checks a table of rows.
fn read_rows(input: &Input, name: &str, item_bytes: u32, table: &[u8]) -> Result<Vec<(u64, u64)>, Error> {
    let rows = table.as_chunks::<ROW_BYTES>().0.iter().enumerate();
    rows.map(|(row, entry)| {
        let number = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| entry[at + byte]));
        let (offset, length) = (number(0), number(8));
        let is_inside = offset.checked_add(length).is_some_and(|end| end <= input.bytes());
        if is_inside && length.is_multiple_of(u64::from(item_bytes)) {
            return Ok((offset, length));
        }
        let expected = format!("elements of {item_bytes} bytes within {}", input.bytes());
        let what = format!("row {row} of dataset {name:?}");
        Err(input.corrupt(offset, what, expected, format!("{length} bytes")))
    })
    .collect()
}

/// Reads and checks the table of a dataset's chunks.
struct ChunkReader<'a> {
    input: &'a Input,
    name: &'a str,
    filters: &'a [Filter],
    strings: &'a [Codec],
    grid: &'a Grid,
    grid_chunks: u64,
    /// Masks that were seen, and the chain of each.
    masks: Vec<u32>,
    chains: Vec<Vec<Codec>>,
}

impl ChunkReader<'_> {
    fn read(&mut self, table: &[u8]) -> Result<Vec<Chunk>, Error> {
        let mut chunks = Vec::with_capacity(table.len() / CHUNK_BYTES);
        let mut least = 0;
        for entry in table.as_chunks::<CHUNK_BYTES>().0 {
            let number = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| entry[at + byte]));
            let mask = u32::from_le_bytes(std::array::from_fn(|byte| entry[24 + byte]));
            let chain = self.chain(mask)?;
            let chunk = Chunk { number: number(0), offset: number(8), length: number(16), chain };
            if chunk.number < least || chunk.number >= self.grid_chunks {
                let expected = format!("numbers from {least} to {}, ascending", self.grid_chunks);
                return Err(self.corrupt(&chunk, expected, format!("number {}", chunk.number)));
            }
            least = chunk.number + 1;
            let end = chunk.offset.checked_add(chunk.length);
            if end.is_none_or(|end| end > self.input.bytes()) {
                let expected = format!("{} bytes within {}", chunk.length, self.input.bytes());
                return Err(self.corrupt(&chunk, expected, "the end of the file".to_owned()));
            }
            let chain = &self.chains[chunk.chain as usize];
            if !codec::is_plausible(chain, chunk.length, self.grid.chunk_bytes) {
                let expected = format!("what becomes {} bytes", self.grid.chunk_bytes);
                return Err(self.corrupt(&chunk, expected, format!("{} bytes", chunk.length)));
            }
            chunks.push(chunk);
        }
        Ok(chunks)
    }

    fn corrupt(&self, chunk: &Chunk, expected: String, found: String) -> Error {
        self.input.corrupt(
            chunk.offset,
            format!("chunk {} of dataset {:?}", chunk.number, self.name),
            expected,
            found,
        )
    }

    /// The number of the chain of chunks that skipped the filters of `mask`.
    fn chain(&mut self, mask: u32) -> Result<u32, Error> {
        // Bits without a filter mean nothing.
        let mask = if self.filters.len() < 32 { mask & ((1 << self.filters.len()) - 1) } else { mask };
        if let Some(known) = self.masks.iter().position(|known| *known == mask) {
            return Ok(known as u32);
        }
        let refused = |found| {
            let hint = "rewrite the dataset without it, for example with h5repack -f GZIP=1";
            self.input.unsupported(format!("a filter of dataset {:?}", self.name), found, hint)
        };
        let mut chain = chain(self.filters, mask).map_err(refused)?;
        chain.extend_from_slice(self.strings);
        codec::check_chain(&chain).map_err(refused)?;
        self.masks.push(mask);
        self.chains.push(chain);
        Ok(self.masks.len() as u32 - 1)
    }
}
