//! HDF5: chunks and contiguous data in place, found by h5py and read without it.
//!
//! In order: [`Hdf5File::open`] reads the superblock, which shows whether this is an HDF5 file,
//! complete, and closed by its writer. h5py finds the locations of its datasets once, before an
//! index is built (`python/forebay/_formats/hdf5_structure.py`). [`Container::set_structure`] takes
//! that structure, as untrusted input ([`structure`]), and makes locations of it. Contiguous
//! datasets are plain columns; where a file has chunks, or strings that need a codec, the column is
//! tiled. Filters are reversed after the read ([`filters`], [`crate::codec`]).
//!
//! Elements of variable length lie in the file's global heap, where h5py's part finds each of them.
//!
//! Refused: datasets that are virtual or external, and filters without a codec.
//! libhdf5 is not used when samples are read. Layout and refusals: `docs/formats/hdf5.md`.

mod filters;
mod structure;
mod superblock;

use std::path::Path;
use std::sync::{Arc, OnceLock};

pub use filters::{Filter, chain};
pub(crate) use superblock::signature;

use self::structure::{Chunks, DataLayout, Dataset, Structure};
use self::superblock::Superblock;
use crate::codec::Codec;
use crate::container::{ChunkShape, Column, Container, ScanSummary, header_digest};
use crate::file::{Input, ReadAt};
use crate::index::sidecar::{IndexEntry, Part, PartPiece, RecordClass, ShardState, Writer};
use crate::{Error, OpenOptions};

/// Chains of codecs that the chunks of one column may have, over all files: pipelines, and chunks
/// that skipped a filter.
const MAX_CHAINS: usize = 8;

/// Samples or chunks between two reports of progress.
const TELL_EVERY: u64 = 1 << 16;

/// An opened file.
#[derive(Debug)]
pub(crate) struct Hdf5File {
    input: Input,
    superblock: Superblock,
    structure: OnceLock<Structure>,
}

impl Hdf5File {
    /// Opens a file and reads its superblock.
    pub(crate) fn open(path: &Path, _options: &OpenOptions) -> Result<Self, Error> {
        Self::new(Input::open(path)?)
    }

    fn new(input: Input) -> Result<Self, Error> {
        let superblock = Superblock::read(&input)?;
        Ok(Self { input, superblock, structure: OnceLock::new() })
    }

    fn structure(&self) -> Result<&Structure, Error> {
        self.structure.get().ok_or_else(|| Error::Usage {
            message: format!("{}: the structure of this HDF5 file is unknown", self.input.path().display()),
            hint: "build its index from Python, where h5py finds it: forebay index".to_owned(),
        })
    }

    /// Adds the part of a tiled column that is in this file.
    fn add_chunks(&self, column: usize, dataset: &Dataset, writer: &mut Writer) -> Result<(), Error> {
        let samples = self.structure()?.samples;
        let DataLayout::Chunked(Chunks { shape, of_grid, chains, table }) = &dataset.layout else {
            // Among files with chunks: chunks of one sample each.
            let stored = self.class(column, &dataset.strings, writer)?;
            for sample in 0..samples {
                let entry = row(dataset, sample, stored, writer);
                writer.push_chunk(column, entry);
            }
            return Ok(());
        };
        let classes =
            chains.iter().map(|chain| self.class(column, chain, writer)).collect::<Result<Vec<u8>, _>>()?;
        let chunk_bytes = shape.iter().product::<u64>() * u64::from(dataset.item_bytes);
        let mut table = table.iter().peekable();
        for number in 0..*of_grid {
            let entry = match table.next_if(|chunk| chunk.number == number) {
                Some(chunk) => IndexEntry::Plain {
                    class: classes[chunk.chain as usize],
                    start: chunk.offset,
                    length: chunk.length,
                },
                None => missing(dataset, chunk_bytes, writer),
            };
            writer.push_chunk(column, entry);
        }
        Ok(())
    }

    /// The class of chunks with this chain in a tiled column.
    fn class(&self, column: usize, chain: &[Codec], writer: &mut Writer) -> Result<u8, Error> {
        writer.chunk_class(column, chain).ok_or_else(|| {
            let found = format!("more than {MAX_CHAINS} different ones in a column");
            let hint = "rewrite some of the files with the filters of the others";
            self.input.unsupported("filter pipelines", found, hint)
        })
    }
}

/// A unit that is described in full, of which all belongs to the record.
fn whole(pieces: Vec<PartPiece>, codecs: u16, bytes: u64) -> Part {
    Part { pieces, codecs, decoded_bytes: bytes, guard: 0, offset: 0, length: bytes }
}

/// The row of a dataset without chunks.
fn row(dataset: &Dataset, sample: u64, stored: u8, writer: &mut Writer) -> IndexEntry {
    let bytes = dataset.sample_bytes();
    match &dataset.layout {
        DataLayout::Contiguous { offset } => {
            IndexEntry::Plain { class: stored, start: offset + sample * bytes, length: bytes }
        }
        DataLayout::Compact(data) => {
            let first = (sample * bytes) as usize;
            let literal = PartPiece::Literal(data[first..first + bytes as usize].to_vec());
            IndexEntry::Exception(vec![whole(vec![literal], 0, bytes)])
        }
        DataLayout::Rows(rows) => {
            let (start, length) = rows[sample as usize];
            IndexEntry::Plain { class: stored, start, length }
        }
        DataLayout::Missing | DataLayout::Chunked(_) => missing(dataset, bytes, writer),
    }
}

/// Bytes that were never written.
fn missing(dataset: &Dataset, bytes: u64, writer: &mut Writer) -> IndexEntry {
    let fill = writer.chain(&[Codec::Fill { value: dataset.fill.clone() }]);
    IndexEntry::Exception(vec![whole(vec![], fill, bytes)])
}

impl Container for Hdf5File {
    fn input(&self) -> &Input {
        &self.input
    }

    fn state(&self) -> ShardState {
        let Superblock { offset, version: _, head } = &self.superblock;
        header_digest(&[&offset.to_le_bytes()[..], head].concat())
    }

    fn needs_structure(&self) -> bool {
        self.structure.get().is_none()
    }

    fn set_structure(&self, structure: &[u8]) -> Result<(), Error> {
        let found = structure::read(&self.input, structure)?;
        self.structure.get_or_init(|| found);
        Ok(())
    }

    fn columns(&self) -> Result<Vec<Column>, Error> {
        // As many classes as a tiled column may need; the scan assigns the chains.
        let classes = vec![RecordClass::tight("data"); MAX_CHAINS];
        let column = |dataset: &Dataset| Column { field: dataset.field.clone(), classes: classes.clone() };
        Ok(self.structure()?.datasets.iter().map(column).collect())
    }

    fn units(&self) -> Vec<Option<&str>> {
        let datasets = self.structure.get().map_or(&[][..], |structure| &structure.datasets);
        datasets.iter().map(|dataset| dataset.members.as_deref()).collect()
    }

    fn chunks(&self, column: usize) -> Option<ChunkShape> {
        let Dataset { item_bytes, sample, strings, layout, .. } =
            self.structure.get()?.datasets.get(column)?;
        let (shape, is_cut) = match layout {
            DataLayout::Rows(_) => return None,
            DataLayout::Chunked(chunks) => (chunks.shape.clone(), true),
            _ => ([1].iter().chain(sample).map(|extent| (*extent).max(1)).collect(), !strings.is_empty()),
        };
        Some(ChunkShape { item_bytes: *item_bytes, sample: sample.clone(), shape, is_cut })
    }

    fn add_to(
        &self,
        writer: &mut Writer,
        _threads: usize,
        progress: &dyn Fn(u64) -> bool,
    ) -> Result<ScanSummary, Error> {
        let Structure { samples, datasets } = self.structure()?;
        let is_tiled: Vec<bool> = (0..datasets.len()).map(|column| writer.is_tiled(column)).collect();
        for (column, dataset) in datasets.iter().enumerate().filter(|(column, _)| is_tiled[*column]) {
            self.add_chunks(column, dataset, writer)?;
            if !progress(0) {
                return Err(Error::Interrupted);
            }
        }
        if is_tiled.iter().all(|tiled| *tiled) {
            writer.push_samples(*samples);
            return Ok(ScanSummary::default());
        }
        for sample in 0..*samples {
            let mut entries = Vec::with_capacity(datasets.len());
            for (_, dataset) in datasets.iter().enumerate().filter(|(column, _)| !is_tiled[*column]) {
                entries.push(row(dataset, sample, 0, writer));
            }
            writer.push(entries);
            if sample % TELL_EVERY == 0 && !progress(0) {
                return Err(Error::Interrupted);
            }
        }
        Ok(ScanSummary::default())
    }

    fn describe(&self) -> serde_json::Map<String, serde_json::Value> {
        let mut description = serde_json::Map::new();
        description.insert("superblock_version".to_owned(), self.superblock.version.into());
        description.insert("user_block_bytes".to_owned(), self.superblock.offset.into());
        description
    }

    fn check_unchanged(&self) -> Result<(), Error> {
        self.input.check_unchanged()?;
        let now = Superblock::read(&self.input)?;
        if now == self.superblock {
            return Ok(());
        }
        let expected = "as when the file was opened".to_owned();
        Err(self.input.modified("superblock", expected, "another: a writer has changed the file".to_owned()))
    }
}

/// Takes any bytes as the structure of a file of any bytes, and opens and indexes or refuses it.
/// For fuzzing.
#[doc(hidden)]
pub fn index_of_bytes(file: Vec<u8>, structure: &[u8]) -> Result<Vec<u8>, Error> {
    let source: Arc<dyn ReadAt> = Arc::new(file);
    let file = Hdf5File::new(Input::from_source(Path::new("memory.h5"), source)?)?;
    file.set_structure(structure)?;
    crate::container::index_alone(crate::Format::Hdf5, &file)
}
