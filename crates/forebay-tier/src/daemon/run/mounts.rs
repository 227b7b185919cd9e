//! What is mounted below a source: its files have another device number.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Mount points below a directory, and the devices of what is mounted there.
pub(super) fn mounts_below(directory: &Path) -> Vec<(PathBuf, u64)> {
    let table = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
    let points = mount_points(&table).filter(|point| point != directory && point.starts_with(directory));
    points.filter_map(|point| Some((point.clone(), point.metadata().ok()?.dev()))).collect()
}

/// The mount points in a `/proc/PID/mountinfo` (proc(5)).
fn mount_points(table: &[u8]) -> impl Iterator<Item = PathBuf> {
    const MOUNT_POINT: usize = 4;
    let lines = table.split(|byte| *byte == b'\n');
    let points = lines.filter_map(|line| line.split(|byte| *byte == b' ').nth(MOUNT_POINT));
    points.map(|point| PathBuf::from(OsString::from_vec(unescaped(point))))
}

/// Replaces `\040` and its kin by the bytes that they stand for.
fn unescaped(text: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((first, others)) = rest.split_first() {
        let escape = others.first_chunk::<3>().filter(|_| *first == b'\\');
        let value = escape.and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
        bytes.push(value.unwrap_or(*first));
        rest = if value.is_some() { &others[3..] } else { others };
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_points_are_read_with_their_spaces() {
        let table =
            b"22 1 0:20 / / rw - proc proc rw\n23 22 8:1 /x /a\\040b\\134c rw shared:1 - ext4 /dev/x rw\n";
        let found: Vec<PathBuf> = mount_points(table).collect();
        assert_eq!(found, [Path::new("/"), Path::new("/a b\\c")]);
    }

    #[test]
    fn what_is_mounted_below_a_directory_is_found() {
        let found = mounts_below(Path::new("/"));
        assert!(found.iter().any(|(point, device)| point == Path::new("/proc") && *device != 0));
        assert!(mounts_below(Path::new("/proc/self")).is_empty());
    }
}
