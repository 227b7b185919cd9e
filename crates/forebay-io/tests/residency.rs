//! Residency: a "yes" is true, and files that shrink are left alone.

#![allow(clippy::disallowed_methods, reason = "a test may panic where there are no threads")]

use std::sync::Arc;
use std::time::Duration;

use crate::support::{Shards, drop_from_cache};
use forebay_io::{Mappings, ShardFiles};
use forebay_types::ShardId;

const SHARD: ShardId = ShardId(0);
const BYTES: usize = (5 << 20) + 123;
/// Longer than any answer is believed.
const FORGET: Duration = Duration::from_millis(1200);

fn mappings(files: &Arc<ShardFiles>) -> Mappings {
    Mappings::open(files).expect("mapped")
}

/// A file none of whose pages are cached; `None`, with the reason printed, where that cannot be
/// had.
fn cold() -> Option<(Shards, Arc<ShardFiles>)> {
    let shards = Shards::new(&[BYTES]);
    let files = shards.open(false);
    if !files.is_local() {
        eprintln!("skipped: {} is not local", files.file_system_name());
        return None;
    }
    drop_from_cache(&shards.paths[0]);
    let fresh = mappings(&files);
    if (0..BYTES as u64).step_by(4096).any(|offset| fresh.resident(SHARD, offset, 1)) {
        eprintln!("skipped: {} does not drop pages when advised to", files.file_system_name());
        return None;
    }
    Some((shards, files))
}

#[test]
fn what_was_read_is_resident_and_what_was_dropped_is_not() {
    let Some((shards, files)) = cold() else { return };
    let kept = mappings(&files);
    assert!(!kept.resident(SHARD, 0, BYTES as u64));
    // Several tries: somebody else may empty the page cache of the whole machine in between.
    let read = || std::fs::read(&shards.paths[0]).expect("read");
    let seen = (0..5).any(|_| {
        read();
        mappings(&files).resident(SHARD, 0, BYTES as u64)
    });
    assert!(seen, "what was read is resident");
    let asked_again = (0..5).any(|_| {
        read();
        std::thread::sleep(FORGET);
        kept.resident(SHARD, 0, BYTES as u64)
    });
    assert!(asked_again, "answers are asked for again");
    drop_from_cache(&shards.paths[0]);
    std::thread::sleep(FORGET);
    assert!(!kept.resident(SHARD, 0, BYTES as u64));
}

#[test]
fn a_part_that_was_read_is_told_from_the_rest_page_by_page() {
    let Some((shards, files)) = cold() else { return };
    let file = std::fs::File::open(&shards.paths[0]).expect("opens");
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::Random).expect("no read-ahead");
    let page = rustix::param::page_size() as u64;
    // Pages on both sides of the boundary of two chunks, and a lonely one.
    let (from, end) = ((2 << 20) - 3 * page, (2 << 20) + 2 * page);
    for offset in (from..end).step_by(page as usize).chain([64 * page]) {
        rustix::io::pread(&file, &mut [0; 1], offset).expect("read");
    }
    let mappings = mappings(&files);
    let is_resident = |page_offset: u64| mappings.resident(SHARD, page_offset, page);
    let around: Vec<bool> = (from - page..end + page).step_by(page as usize).map(is_resident).collect();
    if around[0] || around[around.len() - 1] || is_resident(63 * page) {
        eprintln!("skipped: {} reads more than it is asked for", files.file_system_name());
        return;
    }
    assert_eq!(around, [false, true, true, true, true, true, false]);
    assert!(mappings.resident(SHARD, from, end - from) && mappings.resident(SHARD, from + 1, end - from - 1));
    assert!(!mappings.resident(SHARD, from - 1, 2) && !mappings.resident(SHARD, from, end - from + 1));
    assert!(is_resident(64 * page) && !is_resident(65 * page));
}

#[test]
fn a_range_that_is_not_needed_is_dropped_and_its_neighbours_stay() {
    let Some((shards, files)) = cold() else { return };
    let page = rustix::param::page_size() as u64;
    let (from, end) = (2 << 20, 3 << 20);
    // Several tries: somebody else may empty the page cache of the whole machine in between.
    let seen = (0..5).any(|_| {
        std::fs::read(&shards.paths[0]).expect("read");
        files.wont_need(SHARD, from, 0);
        files.wont_need(SHARD, from, end - from);
        let mappings = mappings(&files);
        mappings.resident(SHARD, 0, from) && mappings.resident(SHARD, end, BYTES as u64 - end)
    });
    assert!(seen, "what lies on both sides stays");
    let mappings = mappings(&files);
    assert!(!(from..end).step_by(page as usize).any(|offset| mappings.resident(SHARD, offset, page)));
}

#[test]
fn ranges_outside_the_file_are_never_resident_and_have_no_bytes() {
    let shards = Shards::new(&[10_000]);
    let files = shards.open(false);
    let mappings = mappings(&files);
    for (shard, offset, length) in
        [(0, 0, 10_001), (0, 9_999, 2), (0, u64::MAX, 2), (0, u64::MAX, 0), (1, 0, 1)]
    {
        assert!(!mappings.resident(ShardId(shard), offset, length), "{shard} {offset} {length}");
        assert_eq!(mappings.bytes(ShardId(shard), offset, length), None, "{shard} {offset} {length}");
    }
    assert_eq!(mappings.bytes(SHARD, 10_000, 0), Some(&[][..]));
}

#[test]
fn a_file_that_shrank_is_never_resident_again_and_gives_no_bytes() {
    let shards = Shards::new(&[BYTES]);
    let files = shards.open(false);
    let mappings = mappings(&files);
    let truncate = |bytes| {
        let file = std::fs::OpenOptions::new().write(true).open(&shards.paths[0]).expect("writable");
        file.set_len(bytes).expect("sized");
    };
    truncate(4096);
    std::thread::sleep(FORGET);
    assert!(!mappings.resident(SHARD, 0, 100));
    assert_eq!(mappings.bytes(SHARD, 0, 100), None);
    truncate(BYTES as u64);
    std::thread::sleep(FORGET);
    assert!(!mappings.resident(SHARD, 0, 100));
}

/// Since Linux 5.2 mincore calls everything resident for whoever neither owns a file nor may write
/// it.
#[test]
fn a_process_that_may_only_read_a_file_is_not_fooled() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root can take another user's place");
        return;
    }
    let Some((_shards, files)) = cold() else { return };
    let resident = std::thread::spawn(move || {
        // SAFETY: plain system call; without the C library's wrapper it changes this thread only.
        let status = unsafe { libc::syscall(libc::SYS_setresuid, -1, 65_534, -1) };
        assert_eq!(status, 0, "another user");
        mappings(&files).resident(SHARD, 0, BYTES as u64)
    })
    .join()
    .expect("no panic");
    assert!(!resident, "nothing of the file is cached");
}
