//! A sidecar, opened: header, meta part and directory, checked against each other, and the offset
//! of each block.

use std::ops::Range;

use super::Meta;
use super::block::BlockError;
use super::header::{DIRECTORY_ENTRY_BYTES, HEADER_BYTES, SidecarHeader};
use super::pack::unpack;
use super::tiles::Grid;
use crate::SidecarError;

/// Header, meta part and directory of a sidecar, checked; the blocks are not read.
pub(crate) struct Contents {
    pub(crate) header: SidecarHeader,
    pub(crate) meta: Meta,
    /// For each column the grids of its tiles; none where its records are samples.
    pub(crate) grids: Vec<Vec<Grid>>,
    /// For each column the number of its first block.
    pub(crate) first_blocks: Vec<u64>,
    /// Number of the first block of names: the blocks of all columns.
    first_name_block: u64,
    /// Number of blocks of names.
    pub(crate) name_blocks: u64,
    /// Start of each block, and the end of the last one \[bytes\].
    pub(crate) block_starts: Vec<u64>,
    pub(crate) block_checksums: Vec<u32>,
}

impl Contents {
    pub(crate) fn read(bytes: &[u8], fingerprint: u128) -> Result<Self, SidecarError> {
        let header = SidecarHeader::decode(bytes, bytes.len() as u64)?;
        if header.fingerprint != fingerprint {
            return Err(SidecarError::Stale { expected: fingerprint, found: header.fingerprint });
        }
        let part = |range: Range<usize>, what: &str, checksum: u32| {
            let part = bytes.get(range.clone()).ok_or_else(|| {
                SidecarError::damaged(
                    range.start,
                    what,
                    format!("{} bytes", range.len()),
                    "the end of the file",
                )
            })?;
            let found = crc32c::crc32c(part);
            if found == checksum {
                Ok(part)
            } else {
                let (expected, found) = (format!("{checksum:#010x}"), format!("{found:#010x}"));
                Err(SidecarError::damaged(range.start, format!("checksum of the {what}"), expected, found))
            }
        };
        let stored = part(header.meta_range(), "meta part", header.meta_checksum)?;
        let directory = part(header.directory_range(), "directory", header.directory_checksum)?;
        let bad_meta =
            |found: String| SidecarError::damaged(HEADER_BYTES, "meta part", "a valid description", found);
        let json = unpack(stored, header.meta_bytes as usize).map_err(bad_meta)?;
        let meta: Meta = serde_json::from_slice(&json).map_err(|error| bad_meta(error.to_string()))?;
        meta.check(&header).map_err(bad_meta)?;

        let grids = meta.grids().map_err(bad_meta)?;
        let block_records = u64::from(header.block_records);
        let mut blocks = 0_u64;
        let mut first_blocks = Vec::with_capacity(grids.len());
        for (column, grids) in grids.iter().enumerate() {
            first_blocks.push(blocks);
            let of_shards = (0..meta.shards.len())
                .map(|shard| meta.column_records(column, shard, grids).div_ceil(block_records));
            blocks = of_shards.fold(blocks, u64::saturating_add);
        }
        let first_name_block = blocks;
        // Names of samples' files are like another column; the directories follow them.
        let count = |records: &mut dyn Iterator<Item = u64>| {
            records.map(|records| records.div_ceil(block_records)).fold(0, u64::saturating_add)
        };
        let named = !meta.directories.is_empty();
        let name_blocks = if named { count(&mut meta.shards.iter().map(|shard| shard.samples)) } else { 0 };
        let directory_blocks = count(&mut meta.directories.iter().copied());
        let blocks = blocks.saturating_add(name_blocks).saturating_add(directory_blocks);
        if blocks != u64::from(header.blocks) {
            let expected = format!(
                "{blocks} blocks of {} columns, {name_blocks} of them of names, {directory_blocks} of directories",
                header.columns
            );
            return Err(SidecarError::damaged(52, "number of blocks", expected, header.blocks));
        }
        let mut start = header.directory_range().end as u64;
        let mut block_starts = Vec::with_capacity(header.blocks as usize + 1);
        let mut block_checksums = Vec::with_capacity(header.blocks as usize);
        block_starts.push(start);
        for entry in directory.chunks_exact(DIRECTORY_ENTRY_BYTES) {
            start += u64::from(u32::from_le_bytes([entry[0], entry[1], entry[2], entry[3]]));
            block_starts.push(start);
            block_checksums.push(u32::from_le_bytes([entry[4], entry[5], entry[6], entry[7]]));
        }
        if start != header.file_bytes {
            let offset = header.directory_range().start;
            return Err(SidecarError::damaged(offset, "end of the last block", header.file_bytes, start));
        }
        Ok(Self {
            header,
            meta,
            grids,
            first_blocks,
            first_name_block,
            name_blocks,
            block_starts,
            block_checksums,
        })
    }

    /// Number of the first block of names.
    pub(crate) fn first_name_block(&self) -> usize {
        self.first_name_block as usize
    }

    /// Number of the first block of directories.
    pub(crate) fn first_directory_block(&self) -> usize {
        (self.first_name_block + self.name_blocks) as usize
    }

    /// The bytes of a block in the sidecar, after a check of its checksum.
    pub(crate) fn stored_block<'a>(&self, bytes: &'a [u8], number: usize) -> Result<&'a [u8], SidecarError> {
        let (start, end) = (self.block_starts[number] as usize, self.block_starts[number + 1] as usize);
        // Other code owns the memory: check again, although the length was checked.
        let stored = bytes.get(start..end).ok_or_else(|| {
            SidecarError::damaged(
                start,
                format!("block {number}"),
                format!("{} bytes", end - start),
                "its end",
            )
        })?;
        let (expected, found) = (self.block_checksums[number], crc32c::crc32c(stored));
        if expected == found {
            Ok(stored)
        } else {
            let (expected, found) = (format!("{expected:#010x}"), format!("{found:#010x}"));
            Err(SidecarError::damaged(start, format!("block {number}: checksum"), expected, found))
        }
    }

    /// What is wrong with a block, as a error of the sidecar.
    pub(crate) fn block_error(&self, number: usize, error: BlockError) -> SidecarError {
        let BlockError { what, expected, found } = error;
        let offset = self.block_starts[number] as usize;
        SidecarError::damaged(offset, format!("block {number}: {what}"), expected, found)
    }
}
