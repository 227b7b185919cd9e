//! What kind of file system a file lies on: whether a missing page costs microseconds or a round
//! trip to a server.
//!
//! Source: statfs(2) and `linux/magic.h`; the numbers of Lustre, GPFS and `BeeGFS` are in their own
//! sources.

use std::borrow::Cow;

/// A kind of file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileSystem {
    /// `f_type` of statfs(2).
    pub magic: u64,
    /// Name, for people.
    pub name: Cow<'static, str>,
    /// Whether its data lie on this node. Unknown kinds count as remote.
    pub local: bool,
}

/// `f_type` of FUSE.
pub(crate) const FUSE: u64 = 0x6573_5546;

/// Magic number, name, whether local.
const KINDS: &[(u64, &str, bool)] = &[
    (0xEF53, "ext4", true), // ext2 and ext3 share the number
    (0x5846_5342, "xfs", true),
    (0x9123_683E, "btrfs", true),
    (0x0102_1994, "tmpfs", true),
    (0x8584_58F6, "ramfs", true),
    (0x9584_58F6, "hugetlbfs", true),
    (0x794C_7630, "overlay", true),
    (0x2FC1_2FC1, "zfs", true),
    (0xF2F5_2010, "f2fs", true),
    (0xCA45_1A4E, "bcachefs", true),
    (0x7371_7368, "squashfs", true),
    (0xE0F5_E1E2, "erofs", true),
    (0x9660, "iso9660", true),
    (0x4D44, "vfat", true),
    (0x2011_BAB0, "exfat", true),
    (0x5346_544E, "ntfs", true),
    (0x3153_464A, "jfs", true),
    (0x5265_4973, "reiserfs", true),
    (0x6969, "nfs", false),
    (0x0BD0_0BD0, "lustre", false),
    (0x4750_4653, "gpfs", false),
    (0x1983_0326, "beegfs", false),
    (0x00C3_6400, "ceph", false),
    (FUSE, "fuse", false), // also virtiofs
    (0xFF53_4D42, "cifs", false),
    (0xFE53_4D42, "smb2", false),
    (0x517B, "smb", false),
    (0x0102_1997, "9p", false),
    (0x5346_414F, "afs", false),
    (0x6B41_4653, "afs", false),
    (0x7375_7245, "coda", false),
    (0x2003_0528, "orangefs", false),
    (0x0116_1970, "gfs2", false),
    (0x7461_636F, "ocfs2", false),
    (0xAAD7_AAEA, "panfs", false),
    (0x7473_0D6D, "wekafs", false),
    (0x0131_11A8, "ibrix", false),
    (0xBACB_ACBC, "vmhgfs", false),
    (0x786F_4256, "vboxsf", false),
];

impl FileSystem {
    /// The kind that a magic number stands for.
    #[must_use]
    pub fn from_magic(magic: u64) -> Self {
        KINDS.iter().find(|(known, _, _)| *known == magic).map_or_else(
            || Self { magic, name: format!("unknown (0x{magic:08X})").into(), local: false },
            |(_, name, local)| Self { magic, name: Cow::Borrowed(name), local: *local },
        )
    }

    /// Whether its data are known to lie elsewhere. FUSE and unknown kinds may be local.
    #[must_use]
    pub fn is_network(&self) -> bool {
        !self.local && self.magic != FUSE && KINDS.iter().any(|(known, _, _)| *known == self.magic)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parallel_file_systems_are_remote_and_unknown_ones_too() {
        assert_eq!(FileSystem::from_magic(0x0BD0_0BD0).name, "lustre");
        assert!(!FileSystem::from_magic(0x0BD0_0BD0).local);
        assert!(FileSystem::from_magic(0xEF53).local);
        let unknown = FileSystem::from_magic(0x1234);
        assert_eq!((unknown.name.as_ref(), unknown.local), ("unknown (0x00001234)", false));
        let is_network = |magic| FileSystem::from_magic(magic).is_network();
        assert!(is_network(0x6969) && is_network(0x0BD0_0BD0));
        assert!(!is_network(0xEF53) && !is_network(FUSE) && !is_network(0x1234));
    }

    #[test]
    fn no_magic_number_is_listed_twice() {
        let mut numbers: Vec<u64> = KINDS.iter().map(|(magic, _, _)| *magic).collect();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), KINDS.len());
    }
}
