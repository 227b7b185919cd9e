//! Results of `stat`: the identity that they show, and that of the source in its place.

use forebay_table::{CopyIdentity, Identity, SourceFile};

const NS_PER_S: i64 = 1_000_000_000;

/// What `statx` must have filled before it is translated.
const NEEDED: u32 =
    libc::STATX_TYPE | libc::STATX_INO | libc::STATX_SIZE | libc::STATX_MTIME | libc::STATX_CTIME;

/// Whether a mode is that of a regular file.
pub fn is_regular(mode: u32) -> bool {
    mode & libc::S_IFMT == libc::S_IFREG
}

/// Nanoseconds since 1970.
fn nanoseconds(seconds: i64, nanoseconds: i64) -> i64 {
    seconds.wrapping_mul(NS_PER_S).wrapping_add(nanoseconds)
}

/// The identity of the file.
pub fn identity(found: &libc::stat) -> Identity {
    Identity {
        device: found.st_dev,
        inode: found.st_ino,
        bytes: found.st_size as u64,
        modified_ns: nanoseconds(found.st_mtime, found.st_mtime_nsec),
        changed_ns: nanoseconds(found.st_ctime, found.st_ctime_nsec),
    }
}

/// The identity of the regular file in a result of `statx`, if that has all of it.
pub fn identity_of_statx(found: &libc::statx) -> Option<Identity> {
    let complete = found.stx_mask & NEEDED == NEEDED && is_regular(found.stx_mode.into());
    complete.then(|| Identity {
        device: libc::makedev(found.stx_dev_major, found.stx_dev_minor),
        inode: found.stx_ino,
        bytes: found.stx_size,
        modified_ns: nanoseconds(found.stx_mtime.tv_sec, found.stx_mtime.tv_nsec.into()),
        changed_ns: nanoseconds(found.stx_ctime.tv_sec, found.stx_ctime.tv_nsec.into()),
    })
}

/// What identifies the file as a copy.
pub fn as_copy(identity: &Identity) -> CopyIdentity {
    CopyIdentity {
        device: identity.device,
        inode: identity.inode,
        modified_ns: identity.modified_ns,
        changed_ns: identity.changed_ns,
    }
}

/// Shows the source; the time of the last access stays.
pub fn show(source: &SourceFile, found: &mut libc::stat) {
    let identity = &source.identity;
    found.st_dev = identity.device;
    found.st_ino = identity.inode;
    found.st_mode = source.mode;
    found.st_nlink = source.links.into();
    found.st_uid = source.user;
    found.st_gid = source.group;
    found.st_size = identity.bytes as i64;
    found.st_blksize = source.block_bytes as libc::blksize_t;
    found.st_blocks = source.blocks as i64;
    (found.st_mtime, found.st_mtime_nsec) = seconds(identity.modified_ns);
    (found.st_ctime, found.st_ctime_nsec) = seconds(identity.changed_ns);
}

/// Shows the source in a result of `statx`; the time of the last access, attributes and the number
/// of the mount stay.
pub fn show_in_statx(source: &SourceFile, found: &mut libc::statx) {
    let identity = &source.identity;
    found.stx_dev_major = libc::major(identity.device);
    found.stx_dev_minor = libc::minor(identity.device);
    found.stx_ino = identity.inode;
    found.stx_mode = source.mode as u16;
    found.stx_nlink = source.links;
    found.stx_uid = source.user;
    found.stx_gid = source.group;
    found.stx_size = identity.bytes;
    found.stx_blksize = source.block_bytes as u32;
    found.stx_blocks = source.blocks;
    set_time(&mut found.stx_mtime, identity.modified_ns);
    set_time(&mut found.stx_ctime, identity.changed_ns);
    if let Some(born_ns) = source.born_ns {
        set_time(&mut found.stx_btime, born_ns);
    } else {
        set_time(&mut found.stx_btime, 0);
        found.stx_mask &= !libc::STATX_BTIME;
    }
}

fn seconds(time_ns: i64) -> (i64, i64) {
    (time_ns.div_euclid(NS_PER_S), time_ns.rem_euclid(NS_PER_S))
}

fn set_time(time: &mut libc::statx_timestamp, time_ns: i64) {
    let (whole, rest) = seconds(time_ns);
    (time.tv_sec, time.tv_nsec) = (whole, rest as u32);
}
