//! Finding samples without an index: by walking the containers from record to record.
//!
//! This is what programs do that use the container's own library: to come to its next sample, a
//! reader passes over all records in between. Samples behind the present place are found by going
//! on, those before it by beginning again.

use forebay_types::{SampleId, SampleLocation, ShardId};

use super::build::IndexBuilder;
use super::{BuiltIndex, Dataset, Progress};
use crate::container::ScanSummary;
use crate::container::lmdb;
use crate::{Error, Index};

/// Hands out bytes of a shard, (shard, offset, length) \[bytes\]; `None` where it has none.
pub type ShardBytes<'a> = dyn Fn(ShardId, u64, u64) -> Option<&'a [u8]> + 'a;

/// Records between two reports of progress.
const TELL_EVERY: u64 = 1024;

/// A place between two samples of a dataset.
#[derive(Clone, Debug, Default)]
pub struct SampleCursor {
    shard: usize,
    cursor: lmdb::Cursor,
    /// The sample that comes next.
    next: u64,
}

impl SampleCursor {
    /// The sample that comes next.
    #[must_use]
    pub fn next_sample(&self) -> u64 {
        self.next
    }
}

impl Dataset {
    /// Walks on from where `cursor` stands over the sample `id`, and tells where it lies.
    pub fn find_by_cursor(
        &self,
        cursor: &mut SampleCursor,
        index: &Index,
        id: SampleId,
        bytes: &ShardBytes<'_>,
    ) -> Result<SampleLocation, Error> {
        let (shard, first) = index.shard_of_record(id)?;
        if shard != cursor.shard || id.0 < cursor.next {
            *cursor = SampleCursor { shard, cursor: lmdb::Cursor::default(), next: first };
        }
        let database = self.database(shard, "walking with a cursor")?;
        let pages = |offset, length| bytes(ShardId(shard as u32), offset, length);
        loop {
            let Some((key, value)) = cursor.cursor.next(database, &pages)? else {
                return Err(Error::Modified {
                    path: self.shards[shard].path.clone(),
                    what: "number of samples".to_owned(),
                    expected: format!("sample {}", id.0),
                    found: format!("{} samples up to here", cursor.next),
                });
            };
            if lmdb::excluded(key).is_some() {
                continue;
            }
            cursor.next += 1;
            if cursor.next > id.0 {
                let (extent, head_bytes, guard) = value.unit(database, ShardId(shard as u32));
                return Ok(SampleLocation { extent, head_bytes, guard });
            }
        }
    }
}

impl Dataset {
    /// A cursor as another process can be told it: shard (4 bytes), next sample (8), the place in
    /// the shard ([`lmdb::PortableCursor`]).
    #[must_use]
    pub fn export_cursor(&self, cursor: &SampleCursor) -> Vec<u8> {
        let mut bytes = (cursor.shard as u32).to_le_bytes().to_vec();
        bytes.extend(cursor.next.to_le_bytes());
        let database = self.database(cursor.shard, "a cursor").expect("a cursor of this dataset");
        bytes.extend(cursor.cursor.portable(database).encode());
        bytes
    }

    /// The cursor that another process told.
    ///
    /// # Errors
    /// What is no cursor in this state of these files.
    pub fn import_cursor(
        &self,
        index: &Index,
        portable: &[u8],
        bytes: &ShardBytes<'_>,
    ) -> Result<SampleCursor, Error> {
        self.need_lmdb("a cursor")?;
        let refuse = |what: &str, expected: String, found: String| Error::Modified {
            path: self.shards[0].path.clone(),
            what: format!("cursor of another process: {what}"),
            expected,
            found,
        };
        let parts = portable.split_first_chunk().and_then(|(shard, rest)| {
            let (next, rest) = rest.split_first_chunk()?;
            let portable = lmdb::PortableCursor::decode(rest)?;
            Some((u32::from_le_bytes(*shard), u64::from_le_bytes(*next), portable))
        });
        let Some((shard, next, portable)) = parts else {
            return Err(refuse(
                "length",
                "that of its levels".to_owned(),
                format!("{} bytes", portable.len()),
            ));
        };
        let number = shard as usize;
        let Some(shard_info) = index.shards().get(number) else {
            return Err(refuse("shard", format!("below {}", index.shards().len()), shard.to_string()));
        };
        let first: u64 = index.shards()[..number].iter().map(|shard| shard.samples).sum();
        if next < first || next > first + shard_info.samples {
            let expected = format!("{first} to {}", first + shard_info.samples);
            return Err(refuse("next sample", expected, next.to_string()));
        }
        let pages = |offset, length| bytes(ShardId(shard), offset, length);
        let cursor =
            lmdb::Cursor::restore(self.database(number, "a cursor")?, &portable, next - first, &pages)?;
        Ok(SampleCursor { shard: number, cursor, next })
    }

    /// Makes an index by going over all records, one after the other, as [`Dataset::build_index`]
    /// makes one level by level.
    ///
    /// `announce` is told (shard, offset, length) of the leaves that a branch page names when the
    /// scan comes to it. `progress` is called often; `false` ends the scan with
    /// [`Error::Interrupted`].
    pub fn scan_index(
        &self,
        bytes: &ShardBytes<'_>,
        announce: &dyn Fn(ShardId, u64, u64),
        progress: &(dyn Fn(Progress) -> bool + Sync),
    ) -> Result<BuiltIndex, Error> {
        let databases = self.databases("a scan with a cursor")?;
        let mut builder = IndexBuilder::new(self)?;
        let total = databases.iter().map(|database| database.entries()).sum();
        let mut done = 0;
        for (number, database) in databases.into_iter().enumerate() {
            let writer = builder.begin_shard(number);
            let shard = ShardId(number as u32);
            let pages = |offset, length| bytes(shard, offset, length);
            let mut cursor = lmdb::Cursor::default();
            let mut branch = None;
            while let Some((key, value)) = cursor.next(database, &pages)? {
                if let Some((page, leaves)) =
                    cursor.leaves_ahead(database).filter(|one| Some(one.0) != branch)
                {
                    branch = Some(page);
                    for (offset, length) in leaves {
                        announce(shard, offset, length);
                    }
                }
                database.add_record(writer, value, lmdb::excluded(key));
                done += 1;
                if done % TELL_EVERY == 0 && !progress(Progress { what: "records", done, total }) {
                    return Err(Error::Interrupted);
                }
            }
            builder.end_shard(number, ScanSummary::default());
        }
        self.check_unchanged()?;
        builder.finish()
    }
}
