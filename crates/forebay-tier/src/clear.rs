//! Deletes the copies of tiers: asks the daemon that has them, or without one does it itself.

use std::path::PathBuf;

use crate::client::Connection;
use crate::daemon::{Cache, StoredTier, boot_id, locked};
use crate::directory::TierDirectory;
use crate::error::TierError;
use crate::spec::TierSpec;

/// Deletes what no loader uses from tiers; returns the space that was given back \[bytes\].
/// `progress` gets the space given back until then, and says whether to go on.
///
/// # Errors
/// A tier that cannot be used, or that another daemon uses.
pub fn clear(
    tiers: &[PathBuf],
    daemon: Option<&Connection>,
    progress: &mut dyn FnMut(u64) -> bool,
) -> Result<u64, TierError> {
    let mut freed = 0;
    for path in tiers {
        // What is not there must not be made.
        let Some(stored) = StoredTier::open(path)? else { continue };
        if let Some(daemon) = daemon
            && let Some(bytes) = daemon.clear(stored.identity(), &mut |bytes| progress(freed + bytes))?
        {
            freed += bytes;
            continue;
        }
        // Slabs that the log does not name go when the level is opened.
        let before = stored.usage()?.taken_bytes;
        let already = freed;
        // The quota does not matter, and a network file system was permitted when it was filled.
        let spec = TierSpec { path: path.clone(), bytes: 0, keep: true, force: true };
        let (parts, _lock) = locked(&spec, TierDirectory::open(&spec)?)?;
        let mut cache = Cache::new(boot_id());
        let level = cache.add_level(parts, &[])?;
        while progress(freed)
            && let Some(bytes) = cache.clear_one(level)
        {
            freed += bytes;
        }
        let left =
            StoredTier::open(path)?.map_or(Ok(0), |left| left.usage().map(|usage| usage.taken_bytes))?;
        freed = already + before.saturating_sub(left);
    }
    Ok(freed)
}
