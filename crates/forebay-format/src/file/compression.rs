//! Files that are compressed as a whole. Their records have no offsets in the file, so they are
//! refused, with the command that decompresses them.

use std::path::Path;

/// How a file is compressed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Compression {
    /// Its name.
    pub(crate) name: &'static str,
    command: &'static str,
}

/// First bytes; of gzip with its only method, since two bytes may begin anything.
const KNOWN: [(&[u8], Compression); 5] = [
    (b"\x1f\x8b\x08", Compression { name: "gzip", command: "gunzip --keep" }),
    (b"\x28\xb5\x2f\xfd", Compression { name: "zstd", command: "unzstd --keep" }),
    (b"BZh", Compression { name: "bzip2", command: "bunzip2 --keep" }),
    (b"\x04\x22\x4d\x18", Compression { name: "lz4", command: "lz4 -d" }),
    (b"\xfd7zXZ\0", Compression { name: "xz", command: "unxz --keep" }),
];

impl Compression {
    /// That of a file which begins with these bytes.
    pub(crate) fn of(head: &[u8]) -> Option<&'static Self> {
        KNOWN.iter().find(|(magic, _)| head.starts_with(magic)).map(|(_, compression)| compression)
    }

    /// Advice to the user.
    pub(crate) fn hint(&self, path: &Path) -> String {
        format!("decompress it: {} {}", self.command, path.display())
    }
}
