//! Reads through a mount return the bytes of the backing directory, and writes reach it.

#![allow(clippy::disallowed_methods, reason = "a test may panic where there are no threads")]

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};

use crate::emulator_support::{Aligned, Dice, KIB, MIB, direct, errno, latency, pattern, room};
use forebay_model::Spec;
use memmap2::Mmap;

#[test]
fn random_reads_of_every_kind_equal_the_backing_file() {
    let Some(room) = room() else { return };
    let data = room.write("file", 9 * MIB + 1234);
    let emulator = room.start(1, latency(100.0));
    let path = room.on(0, "file");
    let (buffered, unbuffered) = (File::open(&path).unwrap(), direct(&path));
    // SAFETY: the file does not change while it is mapped.
    let mapped = unsafe { Mmap::map(&buffered).unwrap() };
    let mut dice = Dice::new(1);
    let mut room_for_reads = Aligned::new(3 * MIB);
    for turn in 0..300 {
        let offset = dice.below(data.len() as u64 + 8192);
        let limit = [100, 5000, 300 * KIB as u64, 3 * MIB as u64][dice.below(4) as usize];
        let wanted = dice.below(limit) as usize + 1;
        let buffer = room_for_reads.bytes(wanted);
        let end = data.len().min(offset as usize + wanted);
        let expected = data.get(offset as usize..end).unwrap_or(&[]);
        let file = if turn % 3 == 1 { &unbuffered } else { &buffered };
        if turn % 3 == 2 && !expected.is_empty() {
            assert!(mapped[offset as usize..end] == *expected, "mapping differs at {offset}");
            continue;
        }
        let mut count = 0;
        while count < wanted {
            match file.read_at(&mut buffer[count..], offset + count as u64).unwrap() {
                0 => break,
                more => count += more,
            }
        }
        assert_eq!(count, expected.len(), "length at {offset} + {wanted}");
        assert!(buffer[..count] == *expected, "bytes differ at {offset} + {wanted}");
        if turn % 50 == 49 {
            emulator.drop_caches(&room.at("0")).unwrap();
        }
    }
}

#[test]
fn concurrent_readers_on_two_mounts_get_the_same_bytes() {
    let Some(room) = room() else { return };
    let data = room.write("file", 4 * MIB);
    let _emulator = room.start(2, latency(200.0));
    std::thread::scope(|scope| {
        for reader in 0..8 {
            let (room, data) = (&room, &data);
            scope.spawn(move || {
                let path = room.on(reader % 2, "file");
                let file = if reader < 4 { File::open(path).unwrap() } else { direct(&path) };
                let mut dice = Dice::new(u64::from(reader));
                let mut buffer = Aligned::new(64 * KIB);
                for _ in 0..60 {
                    let offset = dice.below(data.len() as u64 - 64 * KIB as u64);
                    let wanted = buffer.bytes(dice.below(64 * KIB as u64) as usize + 1);
                    file.read_exact_at(wanted, offset).unwrap();
                    assert!(*wanted == data[offset as usize..offset as usize + wanted.len()]);
                }
            });
        }
    });
}

#[test]
fn truncating_and_growing_through_a_mount_keep_both_sides_equal() {
    let Some(room) = room() else { return };
    let mut data = room.write("file", MIB);
    let _emulator = room.start(1, Spec::free());
    let file = OpenOptions::new().read(true).write(true).open(room.on(0, "file")).unwrap();
    let mut dice = Dice::new(7);
    for turn in 0..60 {
        match turn % 3 {
            0 => {
                let length = dice.below(2 * MIB as u64);
                file.set_len(length).unwrap();
                data.resize(length as usize, 0);
            }
            1 => {
                let offset = dice.below(data.len() as u64 + 1) as usize;
                let piece = pattern(dice.below(200_000) as usize);
                file.write_all_at(&piece, offset as u64).unwrap();
                data.resize(data.len().max(offset + piece.len()), 0);
                data[offset..offset + piece.len()].copy_from_slice(&piece);
            }
            _ => {
                assert_eq!(file.metadata().unwrap().len(), data.len() as u64);
                assert!(fs::read(room.on(0, "file")).unwrap() == data, "the mount differs in turn {turn}");
                assert!(
                    fs::read(room.backing("file")).unwrap() == data,
                    "the backing file differs in turn {turn}"
                );
            }
        }
    }
}

#[test]
fn a_file_that_shrank_behind_the_mount_reads_short_and_is_seen_whole_after_opening_it_again() {
    let Some(room) = room() else { return };
    let data = room.write("file", MIB);
    let _emulator = room.start(1, Spec::free());
    let path = room.on(0, "file");
    assert!(fs::read(&path).unwrap() == data);
    File::options().write(true).open(room.backing("file")).unwrap().set_len(1000).unwrap();
    let mut buffer = Aligned::new(64 * KIB); // The kernel keeps the old size until the next open; bytes beyond the end are not invented.
    let read = direct(&path).read_at(buffer.bytes(64 * KIB), 0).unwrap();
    assert_eq!(read, 1000);
    // New contents of the same size, not through the mount: the next open drops the old pages.
    fs::write(room.backing("file"), vec![7; 1000]).unwrap();
    let mut file = File::open(&path).unwrap();
    let mut found = Vec::new();
    std::io::Read::read_to_end(&mut file, &mut found).unwrap();
    assert!(found == vec![7; 1000], "{} bytes", found.len());
}

#[test]
fn names_links_modes_and_directories_go_through() {
    let Some(room) = room() else { return };
    let _emulator = room.start(2, Spec::free());
    let on = |name: &str| room.on(0, name);
    fs::create_dir(on("directory")).unwrap();
    fs::write(on("directory/file"), "one").unwrap();
    symlink("file", on("directory/link")).unwrap();
    fs::hard_link(on("directory/file"), on("second")).unwrap();
    assert_eq!(fs::read_link(on("directory/link")).unwrap().to_str(), Some("file"));
    assert_eq!(fs::read_to_string(on("directory/link")).unwrap(), "one");
    assert_eq!(fs::metadata(on("second")).unwrap().nlink(), 2);
    assert_eq!(fs::metadata(on("second")).unwrap().ino(), fs::metadata(on("directory/file")).unwrap().ino());
    fs::rename(on("directory"), on("moved")).unwrap();
    assert_eq!(fs::read_to_string(on("moved/file")).unwrap(), "one");
    assert_eq!(fs::read_to_string(room.backing("moved/file")).unwrap(), "one");
    fs::set_permissions(on("second"), fs::Permissions::from_mode(0o640)).unwrap();
    assert_eq!(fs::metadata(room.backing("second")).unwrap().permissions().mode() & 0o777, 0o640);
    let mut file = OpenOptions::new().append(true).open(on("second")).unwrap();
    file.write_all(b" two").unwrap();
    file.sync_all().unwrap();
    assert_eq!(fs::read_to_string(room.backing("moved/file")).unwrap(), "one two");
    // The second mount has cached none of this.
    let mut names: Vec<_> =
        fs::read_dir(room.at("1")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["moved", "second"]);
    assert_eq!(fs::read_to_string(room.on(1, "moved/link")).unwrap(), "one two");
    fs::remove_file(on("moved/link")).unwrap();
    fs::remove_file(on("moved/file")).unwrap();
    fs::remove_dir(on("moved")).unwrap();
    assert_eq!(fs::metadata(on("moved")).unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(fs::read_to_string(on("second")).unwrap(), "one two");
    assert_eq!(errno(fs::read(on("missing"))), Some(libc::ENOENT));
    assert_eq!(errno(fs::create_dir(on("second"))), Some(libc::EEXIST));
    assert_eq!(errno(fs::remove_dir(on("second"))), Some(libc::ENOTDIR));
}

#[test]
fn a_large_directory_is_listed_whole() {
    let Some(room) = room() else { return };
    let count = 3000;
    for number in 0..count {
        fs::write(room.backing(&format!("a file with a rather long name, number {number:05}")), "").unwrap();
    }
    let _emulator = room.start(1, Spec::free());
    let mut names: Vec<_> =
        fs::read_dir(room.at("0")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), count);
}

#[test]
fn a_link_out_of_the_backing_directory_is_only_a_link() {
    let Some(room) = room() else { return };
    fs::write(room.at("secret"), "outside").unwrap();
    symlink("../secret", room.backing("relative")).unwrap();
    symlink(room.at("backing"), room.backing("around")).unwrap();
    let _emulator = room.start(1, Spec::free()); // The kernel resolves a link from the mount, not the emulator from the backing directory.
    assert_eq!(fs::read_to_string(room.on(0, "relative")).unwrap(), "outside");
    assert!(fs::symlink_metadata(room.on(0, "around")).unwrap().file_type().is_symlink());
}

#[test]
fn what_one_mount_writes_another_one_that_has_it_cached_reads() {
    let Some(room) = room() else { return };
    room.write("file", MIB);
    let _emulator = room.start(2, Spec::free());
    let other = File::open(room.on(1, "file")).unwrap();
    let mut buffer = vec![0; MIB];
    other.read_exact_at(&mut buffer, 0).unwrap();
    let writer = OpenOptions::new().write(true).open(room.on(0, "file")).unwrap();
    writer.write_all_at(&[0xee; 5000], 300_000).unwrap();
    // Invalidated a moment later; a watchdog, not a measurement.
    let begun = std::time::Instant::now();
    while begun.elapsed().as_secs() < 240 {
        other.read_exact_at(&mut buffer, 0).unwrap();
        if buffer[300_000..305_000].iter().all(|&byte| byte == 0xee) {
            assert!(fs::read(room.backing("file")).unwrap() == buffer);
            return;
        }
    }
    panic!("the other mount still reads old bytes");
}

#[test]
fn operations_that_no_dataset_needs_are_refused_and_holes_read_as_zeros() {
    use rustix::fs::{CWD, FallocateFlags, FileType, Mode, RenameFlags, SeekFrom};
    use rustix::io::Errno;

    let Some(room) = room() else { return };
    room.write("file", 4096);
    room.write("other", 10);
    let _emulator = room.start(1, Spec::free());
    let file = OpenOptions::new().read(true).write(true).open(room.on(0, "file")).unwrap();
    file.set_len(MIB as u64).unwrap();
    assert_eq!(rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, 8192), Err(Errno::OPNOTSUPP));
    // The kernel reports one extent of data up to the end.
    assert_eq!(rustix::fs::seek(&file, SeekFrom::Hole(0)), Ok(MIB as u64));
    assert!(fs::read(room.on(0, "file")).unwrap()[4096..].iter().all(|&byte| byte == 0));
    let fifo = rustix::fs::mknodat(CWD, room.on(0, "fifo"), FileType::Fifo, Mode::RUSR, 0);
    assert_eq!(fifo, Err(Errno::NOSYS));
    let rename = |flags| rustix::fs::renameat_with(CWD, room.on(0, "file"), CWD, room.on(0, "other"), flags);
    assert_eq!(rename(RenameFlags::EXCHANGE), Err(Errno::INVAL));
    assert_eq!(rename(RenameFlags::NOREPLACE), Err(Errno::EXIST));
    rename(RenameFlags::empty()).unwrap();
    assert_eq!(fs::metadata(room.on(0, "other")).unwrap().len(), MIB as u64);
}
