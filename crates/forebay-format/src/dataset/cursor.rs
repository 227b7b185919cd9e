//! Finding samples without an index: by walking the containers from record to record.
//!
//! This is what programs do that use the container's own library: to come to its next sample, a reader passes over all
//! records in between. Samples behind the present place are found by going on, those before it by beginning again.

use forebay_types::{Extent, Located, SampleId, ShardId, Slice};

use super::build::{Assembly, NOT_SAMPLES, is_sample, place_of};
use super::{BuiltIndex, Dataset, Progress};
use crate::lmdb;
use crate::{Error, Index};

/// Hands out bytes of a shard, (shard, offset, length) \[bytes\]; `None` where it has none.
pub type ShardBytes<'a> = dyn Fn(ShardId, u64, u64) -> Option<&'a [u8]> + 'a;

/// Records between two reports of progress.
const TELL_EVERY: u64 = 1024;

/// A place between two samples of a data set.
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

/// Where a sample of one piece lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SamplePlace {
    /// The header in front of the value, and the value.
    pub extent: Extent,
    /// Length of that header \[bytes\].
    pub head_bytes: u32,
    /// What the header is checked against, or 0.
    pub guard: u64,
}

impl Dataset {
    /// Walks on from where `cursor` stands over the sample `id`, and tells where it lies.
    pub fn find_by_cursor(
        &self,
        cursor: &mut SampleCursor,
        index: &Index,
        id: SampleId,
        bytes: &ShardBytes<'_>,
    ) -> Result<SamplePlace, Error> {
        self.need_lmdb("walking with a cursor")?;
        let (shard, first) = index.shard_of_sample(id)?;
        if shard != cursor.shard || id.0 < cursor.next {
            *cursor = SampleCursor { shard, cursor: lmdb::Cursor::default(), next: first };
        }
        let database = &self.databases()[shard];
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
            if !is_sample(key) {
                continue;
            }
            cursor.next += 1;
            if cursor.next > id.0 {
                return Ok(SamplePlace::new(value, database, ShardId(shard as u32)));
            }
        }
    }
}

impl Dataset {
    /// A cursor as another process can be told it: shard (4 bytes), next sample (8), the place in the shard
    /// ([`lmdb::PortableCursor`]).
    #[must_use]
    pub fn tell_cursor(&self, cursor: &SampleCursor) -> Vec<u8> {
        let mut bytes = (cursor.shard as u32).to_le_bytes().to_vec();
        bytes.extend(cursor.next.to_le_bytes());
        bytes.extend(cursor.cursor.portable(&self.databases()[cursor.shard]).encode());
        bytes
    }

    /// The cursor that another process told.
    ///
    /// # Errors
    /// What is no cursor in this state of these files.
    pub fn take_cursor(
        &self,
        index: &Index,
        told: &[u8],
        bytes: &ShardBytes<'_>,
    ) -> Result<SampleCursor, Error> {
        self.need_lmdb("a cursor")?;
        let refuse = |what: &str, expected: String, found: String| Error::Modified {
            path: self.shards[0].path.clone(),
            what: format!("cursor that another process told: {what}"),
            expected,
            found,
        };
        let parts = told.split_first_chunk().and_then(|(shard, rest)| {
            let (next, rest) = rest.split_first_chunk()?;
            let portable = lmdb::PortableCursor::decode(rest)?;
            Some((u32::from_le_bytes(*shard), u64::from_le_bytes(*next), portable))
        });
        let Some((shard, next, portable)) = parts else {
            return Err(refuse("length", "that of its levels".to_owned(), format!("{} bytes", told.len())));
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
        let cursor = lmdb::Cursor::restore(&self.databases()[number], &portable, next - first, &pages)?;
        Ok(SampleCursor { shard: number, cursor, next })
    }

    /// Makes an index by going over all records, one after the other, as [`Dataset::build_index`] makes one level by level.
    ///
    /// `announce` is told (shard, offset, length) of the leaves that a branch page names when the scan comes to it. `progress` is
    /// called often; `false` ends the scan with [`Error::Interrupted`].
    pub fn scan_index(
        &self,
        bytes: &ShardBytes<'_>,
        announce: &dyn Fn(ShardId, u64, u64),
        progress: &(dyn Fn(Progress) -> bool + Sync),
    ) -> Result<BuiltIndex, Error> {
        self.need_lmdb("a scan with a cursor")?;
        let mut assembly = Assembly::new(self)?;
        let total = self.databases().iter().map(lmdb::Database::entries).sum();
        let mut done = 0;
        for (number, database) in self.databases().iter().enumerate() {
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
                let excluded = NOT_SAMPLES.iter().position(|name| name.as_bytes() == key);
                assembly.push(number, value, excluded.map(|name| name as u8));
                done += 1;
                if done % TELL_EVERY == 0 && !progress(Progress { what: "records", done, total }) {
                    return Err(Error::Interrupted);
                }
            }
            assembly.end_shard(number);
        }
        self.check_unchanged()?;
        assembly.finish()
    }
}

impl SamplePlace {
    fn new(value: lmdb::Value, database: &lmdb::Database, shard: ShardId) -> Self {
        let (offset, length) = place_of(value, database);
        let (head_bytes, guard) = match value {
            lmdb::Value::Inline { .. } => (0, 0),
            lmdb::Value::Big { page, .. } => (database.header_bytes(), page),
        };
        let head = u64::from(head_bytes);
        Self { extent: Extent { shard, offset: offset - head, length: length + head }, head_bytes, guard }
    }

    /// Adds the sample to those that were located.
    pub fn push(&self, out: &mut Located) {
        let unit = out.push_stored_unit(self.extent, self.guard);
        let head = u64::from(self.head_bytes);
        out.push_slice(Slice { unit, offset: head, length: self.extent.length - head });
        out.end_column();
    }
}
