//! Which source a copy is of.

use std::fmt;

/// Digest of what identifies a source across mounts and restarts: its canonical path, size, times
/// of its last change, inode, and what its format knows of it. The device number is not in it:
/// those of FUSE, NFS and Lustre change with every mount.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SourceKey(pub [u8; 16]);

impl fmt::Debug for SourceKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "SourceKey({self})")
    }
}

impl fmt::Display for SourceKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(formatter, "{byte:02x}"))
    }
}
