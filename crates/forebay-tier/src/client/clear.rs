//! Deletes copies of tiers: asks the daemon that has them, or without one does it itself.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use forebay_plan::options::TierSpec;

use crate::client::connection::TierConnection;
use crate::daemon::{Cache, StoredTier, boot_id, locked};
use crate::error::TierError;
use crate::level::directory::TierDirectory;
use crate::source::identity::SourceKey;

/// Deletes what no loader uses from tiers, or of it what is at or below one path; returns the space
/// that was given back \[bytes\]. `progress` gets the space given back until then, and says whether
/// to go on.
///
/// # Errors
/// A tier that cannot be used, or that another daemon uses.
pub fn clear(
    tiers: &[PathBuf],
    below: Option<&Path>,
    daemon: Option<&TierConnection>,
    progress: &mut dyn FnMut(u64) -> bool,
) -> Result<u64, TierError> {
    let mut freed = 0;
    for path in tiers {
        // What is not there must not be made.
        let Some(stored) = StoredTier::open(path)? else { continue };
        if let Some(daemon) = daemon
            && let Some(bytes) = match below {
                Some(source) => daemon.clear_source(stored.identity(), source)?,
                None => daemon.clear(stored.identity(), &mut |bytes| progress(freed + bytes))?,
            }
        {
            freed += bytes;
            continue;
        }
        // Slabs that the log does not name go when the level is opened.
        let before = stored.usage()?.taken_bytes;
        let already = freed;
        let (mut cache, level, _lock) = alone(path)?;
        if let Some(source) = below {
            cache.clear_source(level, source);
        } else {
            while progress(freed)
                && let Some(bytes) = cache.clear_one(level)
            {
                freed += bytes;
            }
        }
        let left =
            StoredTier::open(path)?.map_or(Ok(0), |left| left.usage().map(|usage| usage.taken_bytes))?;
        freed = already + before.saturating_sub(left);
    }
    Ok(freed)
}

/// Forgets copies of a tier that are wrong, also while loaders use them.
///
/// # Errors
/// A tier that cannot be used, or that another daemon uses.
pub fn drop_copies(
    tier: &Path,
    sources: &[SourceKey],
    files: &[u64],
    daemon: Option<&TierConnection>,
) -> Result<(), TierError> {
    let Some(stored) = StoredTier::open(tier)? else { return Ok(()) };
    if let Some(daemon) = daemon
        && daemon.drop_copies(stored.identity(), sources, files)?.is_some()
    {
        return Ok(());
    }
    let (mut cache, level, _lock) = alone(tier)?;
    for key in sources {
        cache.drop_copies(key, level);
    }
    cache.drop_files(level, files);
    Ok(())
}

/// What a tier that no daemon uses holds, its number there, and its lock.
fn alone(path: &Path) -> Result<(Cache, u8, OwnedFd), TierError> {
    // The quota does not matter, and a network file system was permitted when it was filled.
    let spec = TierSpec { path: path.to_owned(), bytes: 0, keep: true, force: true };
    let (parts, lock) = locked(&spec, TierDirectory::open(&spec)?)?;
    let mut cache = Cache::new(boot_id());
    let level = cache.add_level(parts, &[])?;
    Ok((cache, level, lock))
}
