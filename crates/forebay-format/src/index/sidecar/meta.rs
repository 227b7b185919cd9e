//! The meta part, as JSON: files, schema, classes of records, codec chains, sizes and counts.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::block::OFFSET_LIMIT;
use super::header::SidecarHeader;
use super::tiles::Grid;
use super::{NUMBER_BYTES, RecordClass, SharedUnits, StoredIn, Tiles};
use crate::Format;
use crate::Summary;
use crate::codec::{self, Codec};
use crate::schema::Schema;
use crate::unit_check::lmdb_identity::Identity;

/// Most classes per column.
pub(crate) const MAX_CLASSES: usize = 16;

/// Most codec chains: chunks of one dataset that skip different filters, for some thousand datasets
/// and files.
const MAX_CHAINS: usize = 1 << 14;

/// The meta part, as JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Meta {
    /// Container format.
    pub format: Format,
    /// How records become fields.
    pub schema: Schema,
    /// The files.
    pub shards: Vec<ShardInfo>,
    /// For each column its classes of records.
    pub columns: Vec<Vec<RecordClass>>,
    /// For each column the layout of its chunks, if its records are chunks of many samples; empty
    /// if no column has chunks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tiles: Vec<Option<Tiles>>,
    /// For each column its shared units, if its records are ranges of them; empty if no column has
    /// any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub units: Vec<Option<SharedUnits>>,
    /// Chains of codecs, each in the order of decoding; a unit names one by its number. Number 0 is
    /// the empty chain: stored.
    pub codec_chains: Vec<Vec<Codec>>,
    /// Sizes and counts.
    pub summary: Summary,
    /// If samples have files of their own: for each shard, which is a folder, the number of its
    /// directories.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub directories: Vec<u64>,
}

/// One file of a dataset.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardInfo {
    /// Name, for messages; what is read is the dataset's file of the same number.
    pub name: String,
    /// Size of the file \[bytes\].
    pub bytes: u64,
    /// Last change of the file [ns since 1970].
    pub modified_ns: i64,
    /// Number of samples.
    pub samples: u64,
    /// State of the file, to detect changes.
    pub state: ShardState,
}

/// State of a file, as described by its format.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ShardState {
    /// The snapshot that was indexed.
    Lmdb(Identity),
    /// The headers of a file of any other format.
    File {
        /// Their hash.
        digest: String,
    },
}

impl ShardState {
    /// The bytes that go into the fingerprint of the shard.
    pub(crate) fn fingerprint_bytes(&self) -> Vec<u8> {
        let json = match self {
            Self::Lmdb(identity) => serde_json::to_vec(identity),
            Self::File { .. } => serde_json::to_vec(self),
        };
        json.expect("numbers and text are JSON")
    }
}

impl ShardInfo {
    /// Where records may lie \[bytes\].
    pub(crate) fn data_range(&self) -> Range<u64> {
        let ShardState::Lmdb(identity) = &self.state else { return 0..self.bytes };
        let page_bytes = u64::from(identity.page_bytes);
        let end = identity.last_page.saturating_add(1).saturating_mul(page_bytes);
        2 * page_bytes..end.min(self.bytes)
    }
}

impl Meta {
    /// Checks the claims of the meta part against the header.
    pub(super) fn check(&self, header: &SidecarHeader) -> Result<(), String> {
        if self.columns.len() as u64 != u64::from(header.columns) {
            return Err(format!("{} columns", self.columns.len()));
        }
        for classes in &self.columns {
            if classes.len() > MAX_CLASSES {
                return Err(format!("{} classes", classes.len()));
            }
            classes.iter().try_for_each(RecordClass::check)?;
        }
        let folders = if self.column_of_files().is_some() { self.shards.len() } else { 0 };
        if self.directories.len() != folders || self.directories.contains(&0) {
            return Err(format!("directories {:?} of {folders} folders", self.directories));
        }
        if folders > 0 && self.format != Format::Folder {
            return Err(format!("samples with files of their own in {}", self.format.name()));
        }
        if folders > 0 && header.samples > u64::from(u32::MAX) {
            return Err(format!("{} samples with files of their own", header.samples));
        }
        if self.codec_chains.first().is_none_or(|chain| !chain.is_empty()) {
            return Err("no codec chain 0 that is empty".to_owned());
        }
        if self.codec_chains.len() > MAX_CHAINS {
            return Err(format!("{} codec chains", self.codec_chains.len()));
        }
        self.codec_chains.iter().try_for_each(|chain| codec::check_chain(chain))?;
        self.check_tiles()?;
        self.check_units()?;
        let samples = self.shards.iter().try_fold(0_u64, |sum, shard| sum.checked_add(shard.samples));
        if samples != Some(header.samples) {
            return Err(format!("shards of {samples:?} samples"));
        }
        let largest = self.shards.iter().map(|shard| shard.bytes).max().unwrap_or(0);
        if largest > OFFSET_LIMIT {
            return Err(format!("a shard of {largest} bytes"));
        }
        let longest = match self.format {
            // LMDB keeps lengths in 32 bits.
            Format::Lmdb => largest.min(u64::from(u32::MAX)),
            // Labels are in no file.
            Format::Folder => largest.max(NUMBER_BYTES),
            _ => largest,
        };
        let Summary { record_bytes, shortest_record_bytes, longest_record_bytes, .. } = self.summary;
        let records = u128::from(header.samples) * u128::from(header.columns);
        let least = records * u128::from(shortest_record_bytes);
        let most = records * u128::from(longest_record_bytes);
        // Decoded, a record may be longer than its file.
        let is_stored = self.codec_chains.len() == 1;
        if !(least..=most).contains(&u128::from(record_bytes)) || is_stored && longest_record_bytes > longest
        {
            return Err(format!(
                "{record_bytes} bytes in records of {shortest_record_bytes} to {longest_record_bytes}"
            ));
        }
        self.schema.check(&self.summary, header.columns as usize)
    }

    /// Checks the claims of the meta part about tiles, except their shapes.
    fn check_tiles(&self) -> Result<(), String> {
        if !self.tiles.is_empty() && self.tiles.len() != self.columns.len() {
            return Err(format!("tiles of {} columns", self.tiles.len()));
        }
        for (tiles, classes) in self.tiles.iter().zip(&self.columns) {
            let Some(Tiles { chains, shapes, shards, .. }) = tiles else { continue };
            let known = chains.iter().all(|chain| usize::from(*chain) < self.codec_chains.len())
                && shards.iter().all(|shape| (*shape as usize) < shapes.len());
            let margins = classes.iter().any(|class| class.margin_bytes() > 0 || class.guard);
            if !known || margins || chains.len() != classes.len() || shards.len() != self.shards.len() {
                return Err(format!("tiles of {} classes and {} shards", chains.len(), shards.len()));
            }
        }
        Ok(())
    }

    /// Checks the claims of the meta part about shared units.
    fn check_units(&self) -> Result<(), String> {
        if !self.units.is_empty() && self.units.len() != self.columns.len() {
            return Err(format!("shared units of {} columns", self.units.len()));
        }
        let file_bytes: Vec<u64> = self.shards.iter().map(|shard| shard.bytes).collect();
        for (column, classes) in self.columns.iter().enumerate() {
            let is_shared = classes.iter().any(|class| class.stored_in == StoredIn::Unit);
            match (self.shared_units(column), self.tiles(column)) {
                (Some(units), None) if is_shared => units.check(&self.codec_chains, &file_bytes)?,
                (None, _) if !is_shared => {}
                _ => return Err(format!("shared units of column {column}")),
            }
        }
        Ok(())
    }

    /// For each column the grids of its tiles; none where its records are samples.
    pub(super) fn grids(&self) -> Result<Vec<Vec<Grid>>, String> {
        (0..self.columns.len())
            .map(|column| self.tiles(column).map_or(Ok(Vec::new()), Tiles::grids))
            .collect()
    }

    /// Number of records of a shard in a column with these grids.
    pub(crate) fn column_records(&self, column: usize, shard: usize, grids: &[Grid]) -> u64 {
        let samples = self.shards[shard].samples;
        self.tiles(column).map_or(samples, |tiles| {
            // More than 2⁶⁴ are never there: the number of blocks will not be right.
            grids[tiles.shards[shard] as usize].chunks(samples).unwrap_or(u64::MAX)
        })
    }

    /// How the chunks of a column lie, if its records are chunks.
    pub fn tiles(&self, column: usize) -> Option<&Tiles> {
        self.tiles.get(column)?.as_ref()
    }

    /// The shared units of a column, if its records are ranges of them.
    pub fn shared_units(&self, column: usize) -> Option<&SharedUnits> {
        self.units.get(column)?.as_ref()
    }
}
