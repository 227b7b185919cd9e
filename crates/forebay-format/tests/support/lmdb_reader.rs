//! Reads whole databases out of memory, values included, for tests.

use std::path::Path;
use std::sync::Arc;

use forebay_format::Error;
use forebay_format::lmdb::{Cursor, Database, ReadAt, Value, WalkOptions, check_overflow_header};

use super::lmdb_writer::Records;

/// Name of files in memory.
pub const PATH: &str = "memory.mdb";

/// Opens, walks, and reads every value with the check of its overflow header.
pub fn read(bytes: &[u8], database: Option<&str>, threads: usize) -> Result<Records, Error> {
    read_batched(bytes, database, &WalkOptions { threads, ..WalkOptions::default() })
}

/// As [`read`], with any options.
pub fn read_batched(bytes: &[u8], database: Option<&str>, options: &WalkOptions) -> Result<Records, Error> {
    let source: Arc<dyn ReadAt> = Arc::new(bytes.to_vec());
    let database = Database::from_source(source, Path::new(PATH), database)?;
    let header = u64::from(database.header_bytes());
    let mut records = Records::new();
    let identity = database.identity();
    database.walk(options, &|_, _| true, &mut |record| {
        let value = match record.value {
            Value::Inline { offset, length } => {
                let value = &bytes[offset as usize..(offset + length) as usize];
                assert_eq!(record.inline, Some(value));
                value
            }
            Value::Big { page, length } => {
                let start = page * u64::from(database.page_bytes());
                let unit = &bytes[start as usize..(start + header + length) as usize];
                check_overflow_header(identity, page, length, unit)
                    .map_err(|fault| fault.at(Path::new(PATH)))?;
                &unit[header as usize..]
            }
        };
        records.push((record.key.to_vec(), value.to_vec()));
        Ok(())
    })?;
    Ok(records)
}

/// Reads all records by going from one to the next with a cursor, from a file in memory.
pub fn read_by_cursor(bytes: &[u8], database: Option<&str>) -> Result<Records, Error> {
    let opened = Database::from_source(Arc::new(bytes.to_vec()), Path::new("memory.mdb"), database)?;
    let pages = |offset: u64, length: u64| {
        usize::try_from(offset).ok().and_then(|start| bytes.get(start..start.checked_add(length as usize)?))
    };
    let mut cursor = Cursor::default();
    let mut records = Vec::new();
    while let Some((key, value)) = cursor.next(&opened, &pages)? {
        let (offset, length) = match value {
            Value::Inline { offset, length } => (offset, length),
            Value::Big { page, length } => {
                (page * u64::from(opened.page_bytes()) + u64::from(opened.header_bytes()), length)
            }
        };
        let value = &bytes[offset as usize..(offset + length) as usize];
        records.push((key.to_vec(), value.to_vec()));
        assert!(records.len() as u64 <= opened.entries(), "a cursor ends");
    }
    Ok(records)
}
