//! The real files: the backing directory, the kernel's inode numbers for it, and mappings.
pub(crate) mod backing;
pub(crate) mod inodes;
pub(crate) mod mapping;
