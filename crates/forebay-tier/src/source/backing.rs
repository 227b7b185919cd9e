//! What file a mounted image is read from.
//!
//! Inodes, sizes and times of the files in an image are those of the image: another one that is
//! mounted at the same place may have the same. So the file that a loop device reads is part of
//! what identifies a source. Device numbers and mount ids are not: they change with each mount.

use std::path::{Path, PathBuf};

use rustix::fs::{major, minor};

use crate::source::identity::SourceState;

/// Devices below devices that are followed: a partition of a mapped loop device has three.
const MAX_DEPTH: usize = 8;

/// What identifies the files that the loop devices below a device read; nothing for others.
#[must_use]
pub fn backing_identity(device: u64) -> Vec<u8> {
    let mut identity = Vec::new();
    for path in backing_files(Path::new("/sys"), device) {
        identity.extend(path.as_os_str().as_encoded_bytes());
        identity.push(0);
        if let Ok(stat) = rustix::fs::stat(&path) {
            let SourceState { bytes, modified_ns, changed_ns } = SourceState::of(&stat);
            for number in [stat.st_ino, bytes, modified_ns as u64, changed_ns as u64] {
                identity.extend(number.to_le_bytes());
            }
        }
    }
    identity
}

/// The files that a device, or one below it, reads as a loop device.
fn backing_files(sys: &Path, device: u64) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let name = format!("{}:{}", major(device), minor(device));
    look(&sys.join("dev/block").join(name), MAX_DEPTH, &mut found);
    found.sort();
    found
}

fn look(device: &Path, depth: usize, found: &mut Vec<PathBuf>) {
    let Ok(device) = device.canonicalize() else { return };
    if depth == 0 {
        return;
    }
    // A partition is a directory of its device.
    if device.join("partition").exists() {
        return device.parent().into_iter().for_each(|whole| look(whole, depth - 1, found));
    }
    if let Ok(text) = std::fs::read(device.join("loop/backing_file")) {
        use std::os::unix::ffi::OsStrExt;
        let path = text.strip_suffix(b"\n").unwrap_or(&text);
        found.push(PathBuf::from(std::ffi::OsStr::from_bytes(path)));
    }
    for below in std::fs::read_dir(device.join("slaves")).into_iter().flatten().flatten() {
        look(&below.path(), depth - 1, found);
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{create_dir_all, write};
    use std::os::unix::fs::symlink;

    use rustix::fs::makedev;

    use super::*;

    #[test]
    fn the_files_below_loop_devices_are_found_through_partitions_and_mapped_devices() {
        let sys = tempfile::tempdir().unwrap();
        let devices = sys.path().join("devices");
        let made = |name: &str, number: &str| {
            let device = devices.join(name);
            create_dir_all(&device).unwrap();
            create_dir_all(sys.path().join("dev/block")).unwrap();
            symlink(&device, sys.path().join("dev/block").join(number)).unwrap();
            device
        };
        let looped = made("loop3", "7:3");
        create_dir_all(looped.join("loop")).unwrap();
        write(looped.join("loop/backing_file"), "/images/a b.sqfs\n").unwrap();
        let partition = made("loop3/loop3p1", "259:1");
        write(partition.join("partition"), "1\n").unwrap();
        let mapped = made("dm-0", "253:0");
        create_dir_all(mapped.join("slaves")).unwrap();
        symlink(&partition, mapped.join("slaves/loop3p1")).unwrap();
        made("vda", "254:0");
        let found = |one, other| backing_files(sys.path(), makedev(one, other));
        for (one, other) in [(7, 3), (259, 1), (253, 0)] {
            assert_eq!(found(one, other), [PathBuf::from("/images/a b.sqfs")]);
        }
        assert_eq!((found(254, 0), found(8, 1)), (vec![], vec![]));
    }
}
