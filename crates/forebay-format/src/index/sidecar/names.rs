//! Names in a sidecar: the directories of a folder and the files in them, for samples that have
//! files of their own.
//!
//! Directories are numbered in the order of the scan; number 0 is the folder itself. Files are
//! those of the samples, in their order. A name is coded against the one before it, and in full
//! every [`RESTART`] names, so that one name is found without reading the others. The layout to the
//! byte is in `docs/formats/sidecar.md`, "Names".
//!
//! Decoding checks every number, and that no name leads anywhere but into its directory.

use super::block::BlockError;
use crate::varint::{Bytes, put, unzigzag, zigzag};

/// Names from one that is written in full to the next.
pub(crate) const RESTART: usize = 16;

/// Longest name of a file or directory \[bytes\], as of every file system of Linux.
const MAX_NAME_BYTES: usize = 255;

/// A directory of a folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Directory {
    /// The directory that it is in; the folder itself is in itself.
    pub(crate) parent: u32,
    /// Its name; empty for the folder itself.
    pub(crate) name: Vec<u8>,
    /// When an entry of it was last made or removed [ns since 1970].
    pub(crate) modified_ns: i64,
}

/// Codes the files of one block: the directory and the name of each.
pub(crate) fn encode_files(files: &[(u32, Vec<u8>)]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut before: (u32, &[u8]) = (0, &[]);
    for (index, (directory, name)) in files.iter().enumerate() {
        if index % RESTART == 0 {
            before = (0, &[]);
        }
        let shared = name.iter().zip(before.1).take_while(|(left, right)| left == right).count();
        put(&mut out, u64::from(directory.wrapping_sub(before.0)));
        put(&mut out, shared as u64);
        put(&mut out, (name.len() - shared) as u64);
        out.extend(&name[shared..]);
        before = (*directory, name);
    }
    out
}

/// Codes the directories of one block, the first of which has number `first`.
pub(crate) fn encode_directories(directories: &[Directory]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut before_ns = 0_i64;
    for Directory { parent, name, modified_ns } in directories {
        put(&mut out, u64::from(*parent));
        put(&mut out, zigzag(modified_ns.wrapping_sub(before_ns)));
        put(&mut out, name.len() as u64);
        out.extend(name);
        before_ns = *modified_ns;
    }
    out
}

/// The files of one block, as they are coded, once they were checked.
#[derive(Debug)]
pub(crate) struct FileNames {
    body: Vec<u8>,
    /// Where the names that are written in full begin.
    restarts: Vec<u32>,
}

impl FileNames {
    /// Checks a body of `records` files in `directories` directories.
    pub(crate) fn decode(body: Vec<u8>, records: usize, directories: u64) -> Result<Self, BlockError> {
        let mut restarts = Vec::with_capacity(records.div_ceil(RESTART));
        let mut bytes = Bytes::new(&body);
        let (mut directory, mut name) = (0, Vec::new());
        for index in 0..records {
            if index % RESTART == 0 {
                restarts.push((body.len() - bytes.left()) as u32);
                (directory, name) = (0, Vec::new());
            }
            next_name(&mut bytes, &mut directory, &mut name)?;
            if u64::from(directory) >= directories {
                return Err(BlockError::new(
                    "directory of a file",
                    format!("below {directories}"),
                    directory,
                ));
            }
            check_name(&name)?;
        }
        if bytes.left() > 0 {
            return Err(BlockError::new("names", "their end", format!("{} bytes more", bytes.left())));
        }
        Ok(Self { body, restarts })
    }

    /// Memory that they take \[bytes\].
    pub(crate) fn bytes(&self) -> u64 {
        (size_of::<Self>() + self.body.len() + size_of_val(self.restarts.as_slice())) as u64
    }

    /// Directory and name of the `index`-th file; it must be one of the block's.
    pub(crate) fn get(&self, index: usize) -> (u32, Vec<u8>) {
        let mut bytes = Bytes::new(&self.body[self.restarts[index / RESTART] as usize..]);
        let (mut directory, mut name) = (0, Vec::new());
        for _ in 0..=index % RESTART {
            next_name(&mut bytes, &mut directory, &mut name).expect("names that were checked");
        }
        (directory, name)
    }
}

/// Reads the next name over the one before it.
fn next_name(bytes: &mut Bytes<'_>, directory: &mut u32, name: &mut Vec<u8>) -> Result<(), BlockError> {
    let short = || BlockError::new("names", "more bytes", "their end");
    let [step, shared, rest] = [bytes.varint(), bytes.varint(), bytes.varint()];
    let (step, shared, rest) = (step.ok_or_else(short)?, shared.ok_or_else(short)?, rest.ok_or_else(short)?);
    if shared > name.len() as u64 {
        return Err(BlockError::new(
            "shared part of a name",
            format!("at most {} bytes", name.len()),
            shared,
        ));
    }
    name.truncate(shared as usize);
    let rest = usize::try_from(rest).ok().and_then(|rest| bytes.take(rest)).ok_or_else(short)?;
    name.extend_from_slice(rest);
    *directory = directory.wrapping_add(step as u32);
    Ok(())
}

/// Refuses names that do not lead to an entry of their directory.
fn check_name(name: &[u8]) -> Result<(), BlockError> {
    let plain = !name.is_empty() && name.len() <= MAX_NAME_BYTES && name != b"." && name != b"..";
    if plain && !name.contains(&b'/') && !name.contains(&0) {
        return Ok(());
    }
    let found = name[..name.len().min(64)].escape_ascii().to_string();
    Err(BlockError::new("name", "1 to 255 bytes, none of them / or 0, and not . or ..", found))
}

/// Adds the directories of a block of `count`, the first of which gets the number `known.len()`.
pub(crate) fn decode_directories(
    body: &[u8],
    count: usize,
    known: &mut Vec<Directory>,
) -> Result<(), BlockError> {
    let short = || BlockError::new("directories", "more bytes", "their end");
    let mut bytes = Bytes::new(body);
    let mut modified_ns = 0_i64;
    for _ in 0..count {
        let number = known.len() as u64;
        let parent = bytes.varint().ok_or_else(short)?;
        modified_ns = modified_ns.wrapping_add(unzigzag(bytes.varint().ok_or_else(short)?));
        let length = bytes.varint().ok_or_else(short)?;
        let name = usize::try_from(length).ok().and_then(|length| bytes.take(length)).ok_or_else(short)?;
        if number == 0 && (parent, name) != (0, b"") {
            return Err(BlockError::new("first directory", "the folder itself", name.escape_ascii()));
        }
        if number > 0 {
            check_name(name)?;
            if parent >= number {
                return Err(BlockError::new("parent of a directory", format!("below {number}"), parent));
            }
        }
        known.push(Directory { parent: parent as u32, name: name.to_vec(), modified_ns });
    }
    if bytes.left() > 0 {
        return Err(BlockError::new("directories", "their end", format!("{} bytes more", bytes.left())));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_back_one_by_one() {
        let files: Vec<(u32, Vec<u8>)> = (0..100)
            .map(|index| (index / 7, format!("image-{:05}.jpg", index * index).into_bytes()))
            .collect();
        let body = encode_files(&files);
        assert!(body.len() < files.iter().map(|(_, name)| name.len()).sum());
        let names = FileNames::decode(body.clone(), 100, 15).expect("sound");
        for (index, file) in files.iter().enumerate().rev() {
            assert_eq!(names.get(index), *file);
        }
        assert_eq!(
            FileNames::decode(body.clone(), 100, 14).expect_err("refused").what,
            "directory of a file"
        );
        assert!(FileNames::decode(body.clone(), 99, 15).is_err());
        assert!(FileNames::decode(body[..body.len() - 1].to_vec(), 100, 15).is_err());
    }

    #[test]
    fn names_that_lead_elsewhere_are_refused() {
        let long = [b'a'; 256];
        for name in [&b""[..], b".", b"..", b"a/b", b"/etc/passwd", b"a\0", &long] {
            let body = encode_files(&[(0, name.to_vec())]);
            assert_eq!(FileNames::decode(body, 1, 1).expect_err("refused").what, "name");
        }
    }

    #[test]
    fn directories_come_back_and_are_below_one_another() {
        let directory =
            |parent, name: &[u8], modified_ns| Directory { parent, name: name.to_vec(), modified_ns };
        let all = [directory(0, b"", 7), directory(0, b"a", i64::MAX), directory(1, b"\xff", -3)];
        let mut known = Vec::new();
        decode_directories(&encode_directories(&all[..2]), 2, &mut known).expect("sound");
        decode_directories(&encode_directories(&all[2..]), 1, &mut known).expect("sound");
        assert_eq!(known, all);
        for wrong in [directory(1, b"", 0), directory(0, b"x", 0)] {
            assert!(decode_directories(&encode_directories(&[wrong]), 1, &mut Vec::new()).is_err());
        }
        for wrong in [directory(3, b"x", 0), directory(0, b"..", 0)] {
            assert!(decode_directories(&encode_directories(&[wrong]), 1, &mut known.clone()).is_err());
        }
    }
}
