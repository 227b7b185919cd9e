//! Hashes of identities and paths.

use xxhash_rust::xxh3::xxh3_128;

/// The hash of a file's (device, inode), for the indexes.
pub fn file_hash(device: u64, inode: u64) -> u64 {
    // The finaliser of SplitMix64, over both numbers.
    let mut hash = device.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ inode;
    hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^ (hash >> 31)
}

/// The hash of an absolute path, exactly as it is written. No path has the hash 0.
#[must_use]
pub fn path_hash(path: &[u8]) -> u128 {
    xxh3_128(path).max(1)
}
