//! Finding samples without an index: by walking the containers from record to record.
//!
//! This is what programs do that use the container's own library: to come to its next sample, a reader passes over all
//! records in between. Samples behind the present place are found by going on, those before it by beginning again.

use forebay_types::{Extent, Located, SampleId, ShardId, Slice};

use super::Dataset;
use super::build::{is_sample, place_of};
use crate::lmdb;
use crate::{Error, Index};

/// Hands out bytes of a shard, (shard, offset, length) \[bytes\]; `None` where it has none.
pub type ShardBytes<'a> = dyn Fn(ShardId, u64, u64) -> Option<&'a [u8]> + 'a;

/// A place between two samples of a data set.
#[derive(Debug, Default)]
pub struct SampleCursor {
    shard: usize,
    cursor: lmdb::Cursor,
    /// The sample that comes next.
    next: u64,
}

impl Dataset {
    /// Like [`Index::locate`], by walking on from where `cursor` stands. The index is asked for the number of samples of
    /// each shard alone.
    pub fn locate_by_cursor(
        &self,
        cursor: &mut SampleCursor,
        index: &Index,
        ids: &[SampleId],
        bytes: &ShardBytes<'_>,
        out: &mut Located,
    ) -> Result<(), Error> {
        out.clear(1);
        for id in ids {
            let (shard, first) = shard_of(index, id.0)?;
            if shard != cursor.shard || id.0 < cursor.next {
                *cursor = SampleCursor { shard, cursor: lmdb::Cursor::default(), next: first };
            }
            let database = &self.databases[shard];
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
                    let (offset, length) = place_of(value, database);
                    push(value, database, ShardId(shard as u32), offset, length, out);
                    break;
                }
            }
        }
        Ok(())
    }
}

/// The shard that holds a sample, and the first sample of that shard.
fn shard_of(index: &Index, sample: u64) -> Result<(usize, u64), Error> {
    let mut first = 0;
    for (number, shard) in index.shards().iter().enumerate() {
        if sample < first + shard.samples {
            return Ok((number, first));
        }
        first += shard.samples;
    }
    Err(Error::Usage {
        message: format!("there is no sample {sample}: the data set has {first}"),
        hint: String::new(),
    })
}

fn push(
    value: lmdb::Value,
    database: &lmdb::Database,
    shard: ShardId,
    offset: u64,
    length: u64,
    out: &mut Located,
) {
    let (head, guard) = match value {
        lmdb::Value::Inline { .. } => (0, 0),
        lmdb::Value::Big { page, .. } => (u64::from(database.header_bytes()), page),
    };
    let unit = out.push_stored_unit(Extent { shard, offset: offset - head, length: length + head }, guard);
    out.push_slice(Slice { unit, offset: head, length });
    out.end_column();
}
