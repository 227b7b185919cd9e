//! Every row of the retry policy, for every access that makes requests.

#![allow(clippy::disallowed_methods, reason = "a test may panic where there are no threads")]

use std::sync::Arc;
use std::time::Duration;

use crate::support::{Aligned, Shards, reader, requesting, transfer};
use forebay_io::{Access, Failing, Fault, FaultyIo, ReadError, Refused};
use forebay_types::ShardId;

const BYTES: usize = 300_000;
const SPAN: std::ops::Range<usize> = 1234..201_234;

/// Reads one span under a script of faults, with each access; the read must succeed with the right
/// bytes.
fn read_under(script: &[Option<Fault>], check: impl Fn(&FaultyIo, Access)) {
    for access in requesting() {
        let shards = Shards::new(&[BYTES]);
        let io = Arc::new(FaultyIo::new(shards.open(false)).with_script(script.to_vec()));
        let mut reader = reader(&io, access, false);
        let mut into = vec![0; SPAN.len()];
        reader.fill(&mut [transfer(SPAN.start as u64, &mut into)]).expect("read in the end");
        assert!(into == shards.contents[0][SPAN], "{access:?} delivered other bytes");
        let counters = reader.counters();
        assert_eq!(counters.read_bytes, SPAN.len() as u64);
        assert_eq!(
            counters.reads + counters.retries,
            io.calls() + script.iter().filter(|fault| matches!(fault, Some(Fault::Short(_)))).count() as u64
        );
        check(&io, access);
    }
}

/// Reads one span under a script of faults, with each access; the read must fail.
fn fail_under(script: &[Option<Fault>], check: impl Fn(&FaultyIo, &Shards, ReadError)) {
    for access in requesting() {
        let shards = Shards::new(&[BYTES]);
        let io = Arc::new(FaultyIo::new(shards.open(false)).with_script(script.to_vec()));
        let mut reader = reader(&io, access, false);
        let mut into = vec![0; SPAN.len()];
        let error = reader.fill(&mut [transfer(SPAN.start as u64, &mut into)]).expect_err("must fail");
        check(&io, &shards, error);
    }
}

#[allow(clippy::unnecessary_wraps, reason = "the scripts are lists of options")]
fn errno(number: i32) -> Option<Fault> {
    Some(Fault::Errno(number))
}

#[test]
fn a_read_without_trouble_is_one_request() {
    read_under(&[], |io, _| assert_eq!(io.calls(), 1));
}

#[test]
fn short_reads_go_on_behind_what_came() {
    read_under(&[Some(Fault::Short(1)), Some(Fault::Short(4095)), None], |io, _| assert_eq!(io.calls(), 3));
}

#[test]
fn interrupted_reads_are_made_again_however_often() {
    read_under(&[errno(libc::EINTR); 50], |io, _| {
        assert_eq!(io.calls(), 51);
        assert!(io.pauses().is_empty());
    });
}

#[test]
fn an_input_error_is_tried_twice_again_after_a_pause() {
    read_under(&[errno(libc::EIO), errno(libc::EIO)], |io, _| {
        assert_eq!(io.pauses(), [Duration::from_millis(10), Duration::from_millis(100)]);
    });
}

#[test]
fn progress_makes_the_count_of_failures_start_again() {
    let script =
        [errno(libc::EIO), errno(libc::EIO), Some(Fault::Short(100)), errno(libc::EIO), errno(libc::EAGAIN)];
    read_under(&script, |io, _| assert_eq!(io.pauses().len(), 4));
}

#[test]
fn an_input_error_that_stays_is_reported_with_file_and_offset() {
    let script = [Some(Fault::Short(100)), errno(libc::EIO), errno(libc::EIO), errno(libc::EIO)];
    fail_under(&script, |io, shards, error| {
        assert_eq!(io.pauses().len(), 2);
        assert_eq!(
            error.to_string(),
            format!(
                "{}: cannot read 199900 bytes at offset 1334 (3 attempts): Input/output error (os error 5)",
                shards.paths[0].display()
            )
        );
        assert!(error.hint().is_some());
    });
}

#[test]
fn a_stale_file_is_opened_again_once() {
    read_under(&[errno(libc::ESTALE)], |io, _| assert_eq!(io.reopened(), 1));
    fail_under(&[errno(libc::ESTALE), errno(libc::ESTALE)], |io, _, error| {
        assert_eq!(io.reopened(), 1);
        assert!(
            matches!(&error, ReadError::Io { source, .. } if source.raw_os_error() == Some(libc::ESTALE))
        );
        assert!(error.hint().expect("advice").contains("removed"));
    });
}

#[test]
fn a_stale_file_that_was_replaced_is_an_error() {
    for access in requesting() {
        let shards = Shards::new(&[BYTES]);
        let io = Arc::new(FaultyIo::new(shards.open(true)).with_script([errno(libc::ESTALE)]));
        let other = shards.directory.path().join("other");
        std::fs::write(&other, [1; 77]).expect("written");
        std::fs::rename(&other, &shards.paths[0]).expect("replaced");
        let mut into = vec![0; 10];
        let error = reader(&io, access, false).fill(&mut [transfer(0, &mut into)]).expect_err("must fail");
        assert!(
            matches!(error, ReadError::Replaced { expected_bytes: 300_000, found_bytes: 77, .. }),
            "{error}"
        );
    }
}

#[test]
fn a_stale_file_that_is_gone_is_an_error() {
    for access in requesting() {
        let shards = Shards::new(&[BYTES]);
        let io = Arc::new(FaultyIo::new(shards.open(false)).with_script([errno(libc::ESTALE)]));
        std::fs::remove_file(&shards.paths[0]).expect("removed");
        let mut into = vec![0; 10];
        let error = reader(&io, access, false).fill(&mut [transfer(0, &mut into)]).expect_err("must fail");
        let path = shards.paths[0].display();
        assert_eq!(
            error.to_string(),
            format!("{path}: cannot open for reading: No such file or directory (os error 2)")
        );
    }
}

#[test]
fn reopening_under_load_leaves_no_reader_without_a_file() {
    let shards = Shards::new(&[BYTES]);
    let count = std::sync::atomic::AtomicU64::new(0);
    let rule = move |_, _| {
        let call = count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        call.is_multiple_of(3).then_some(Fault::Errno(libc::ESTALE))
    };
    let io = Arc::new(FaultyIo::new(shards.open(false)).with_rule(rule));
    let (io, contents) = (&io, &shards.contents[0]);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(move || {
                let mut into = vec![0; 1000];
                let mut done = 0;
                while done < 300 {
                    let offset = done * 997 % 290_000;
                    match Failing::default().read(io, false, (ShardId(0), offset as u64), &mut [], &mut into)
                    {
                        Ok(_) => assert!(into == contents[offset..offset + 1000]),
                        // Both calls of one transfer may be stale when the other thread takes the
                        // ones between.
                        Err(ReadError::Io { source, .. }) => {
                            assert_eq!(source.raw_os_error(), Some(libc::ESTALE));
                        }
                        Err(other) => panic!("{other}"),
                    }
                    done += 1;
                }
            });
        }
    });
    assert!(io.reopened() > 0);
}

#[test]
fn other_errors_are_reported_at_once() {
    fail_under(&[errno(libc::EACCES)], |io, _, error| {
        assert_eq!(io.calls(), 1);
        assert!(error.to_string().contains("(1 attempt): Permission denied"), "{error}");
    });
}

#[test]
fn the_end_of_the_file_before_its_time_is_a_truncated_file() {
    fail_under(&[Some(Fault::Short(1000)), Some(Fault::End)], |_, shards, error| {
        let path = shards.paths[0].display();
        assert_eq!(
            error.to_string(),
            format!(
                "{path}: read of 199000 bytes at offset 2234: the file is truncated: expected 300000 bytes, file has 300000"
            )
        );
    });
}

#[test]
fn a_file_truncated_under_way_is_an_error_of_every_access() {
    for access in requesting() {
        let shards = Shards::new(&[BYTES]);
        let path = shards.paths[0].clone();
        let rule = move |_, _| {
            let file = std::fs::OpenOptions::new().write(true).open(&path).expect("writable");
            file.set_len(5000).expect("truncated");
            None
        };
        let io = Arc::new(FaultyIo::new(shards.open(false)).with_script([None]).with_rule(rule));
        let mut reader = reader(&io, access, false);
        let mut into = vec![0; 10_000];
        reader.fill(&mut [transfer(0, &mut into)]).expect("whole before");
        let error = reader.fill(&mut [transfer(0, &mut into)]).expect_err("truncated");
        assert!(
            matches!(
                error,
                ReadError::Truncated { offset: 5000, length: 5000, expected: 300_000, found: 5000, .. }
            ),
            "{error}"
        );
        assert!(error.hint().is_some());
    }
}

#[test]
fn a_stalled_read_is_waited_for() {
    read_under(&[Some(Fault::Stall(Duration::from_secs(30)))], |io, _| {
        assert_eq!(io.pauses(), [Duration::from_secs(30)]);
    });
}

#[test]
fn one_failing_transfer_of_many_fails_them_and_leaves_nothing_under_way() {
    for access in requesting() {
        let shards = Shards::new(&[BYTES]);
        let rule = |at: forebay_io::At, _| (at.offset == 120_000).then_some(Fault::Errno(libc::EPERM));
        let io = Arc::new(FaultyIo::new(shards.open(false)).with_rule(rule));
        let mut reader = reader(&io, access, false);
        for _ in 0..20 {
            let mut memory = vec![0; BYTES];
            let mut transfers: Vec<_> = memory
                .chunks_mut(10_000)
                .enumerate()
                .map(|(place, into)| transfer(place as u64 * 10_000, into))
                .collect();
            let error = reader.fill(&mut transfers).expect_err("one fails");
            assert!(matches!(error, ReadError::Io { offset: 120_000, .. }), "{error}");
            drop(memory);
        }
        let mut into = vec![0; 1000];
        reader.fill(&mut [transfer(5, &mut into)]).expect("the reader goes on");
        assert!(into == shards.contents[0][5..1005]);
    }
}

#[test]
fn a_header_and_its_payload_come_with_one_call_and_survive_short_reads() {
    let shards = Shards::new(&[BYTES]);
    for (cut, calls) in [(usize::MAX, 1), (1, 2), (15, 2), (16, 2), (17, 2), (5000, 2)] {
        let io = FaultyIo::new(shards.open(false)).with_script([Some(Fault::Short(cut))]);
        let (mut head, mut into) = ([0; 16], vec![0; 10_000]);
        let counters =
            Failing::default().read(&io, false, (ShardId(0), 4096), &mut head, &mut into).expect("read");
        assert!(head == shards.contents[0][4096..4112] && into == shards.contents[0][4112..14_112]);
        assert_eq!((io.calls(), counters.reads, counters.read_bytes), (calls, calls, 10_016));
    }
}

#[test]
fn requests_that_fail_together_pause_together() {
    let shards = Shards::new(&[BYTES]);
    for access in requesting() {
        let io = Arc::new(FaultyIo::new(shards.open(false)).with_rule(|_, _| Some(Fault::Errno(libc::EIO))));
        let mut memory = vec![0; 80_000];
        let transfers = memory.chunks_mut(10_000).enumerate();
        let mut transfers: Vec<_> =
            transfers.map(|(place, into)| transfer(place as u64 * 10_000, into)).collect();
        reader(&io, access, false).fill(&mut transfers).expect_err("all fail");
        // Two each would be 16.
        assert!(io.pauses().len() <= 8, "{access:?}: {:?}", io.pauses());
    }
}

#[test]
fn of_many_samples_in_a_part_that_fails_one_is_retried_and_those_that_can_be_read_are() {
    const PART: u64 = 1 << 20;
    let shards = Shards::new(&[3 * PART as usize]);
    // The second mebibyte cannot be read, but for every tenth stretch of 4096 bytes.
    let is_bad = |offset: u64| offset / PART == 1 && !(offset / 4096).is_multiple_of(10);
    let rule = move |at: forebay_io::At, _| is_bad(at.offset).then_some(Fault::Errno(libc::EIO));
    let io = FaultyIo::new(shards.open(false)).with_rule(rule);
    let failing = Failing::default();
    let mut messages = Vec::new();
    for offset in (0..3 * PART).step_by(4096) {
        let (mut head, mut into) = ([0; 16], vec![0; 4000]);
        let read = failing.read(&io, false, (ShardId(0), offset), &mut head, &mut into);
        assert_eq!(read.is_err(), is_bad(offset), "{offset}");
        match read {
            Ok(_) => assert!(into == shards.contents[0][offset as usize + 16..offset as usize + 4016]),
            Err(error) => messages.push(error.to_string()),
        }
    }
    assert_eq!(io.pauses(), [Duration::from_millis(10), Duration::from_millis(100)]);
    assert_eq!(messages.len(), 230);
    assert!(messages[0].contains("(3 attempts): "), "{}", messages[0]);
    let told = |message: &String| message.contains("(1 attempt, as reads around it have failed): ");
    assert!(messages[1..].iter().all(told), "{}", messages[1]);
}

#[test]
fn a_sample_of_a_block_that_failed_is_tried_once() {
    let shards = Shards::new(&[BYTES]);
    let io = FaultyIo::new(shards.open(false)).with_script([errno(libc::EINTR), errno(libc::EIO)]);
    let failing = Failing::default();
    let mut into = vec![0; 1000];
    let error = failing.read(&io, true, (ShardId(0), 5000), &mut [], &mut into).expect_err("EIO");
    assert!(error.to_string().contains("(2 attempts, as reads around it have failed): "), "{error}");
    failing.read(&io, true, (ShardId(0), 5000), &mut [], &mut into).expect("now it can be read");
    assert!(into == shards.contents[0][5000..6000]);
    assert!(io.pauses().is_empty());
}

#[test]
fn a_range_outside_the_file_is_refused_before_anything_is_asked() {
    for access in requesting() {
        let shards = Shards::new(&[BYTES]);
        let io = Arc::new(FaultyIo::new(shards.open(false)));
        for offset in [BYTES as u64 - 9, BYTES as u64, u64::MAX - 3] {
            let mut into = [0; 10];
            let error =
                reader(&io, access, false).fill(&mut [transfer(offset, &mut into)]).expect_err("refused");
            assert!(matches!(error, ReadError::Beyond { length: 10, bytes: 300_000, .. }), "{error}");
        }
        assert_eq!(io.calls(), 0);
    }
}

#[test]
fn a_ring_that_is_refused_falls_back_to_pread_and_says_why() {
    for (number, reason) in [(libc::ENOSYS, "this kernel has none"), (libc::EPERM, "forbidden")] {
        let shards = Shards::new(&[BYTES]);
        let io = Arc::new(FaultyIo::new(shards.open(false)).without_ring(number));
        let mut reader = forebay_io::Reader::with_io(Arc::clone(&io) as _, Access::IoUring, false, 8);
        let refusals = reader.take_refusals();
        assert!(matches!(&refusals[..], [(Refused::IoUring, why)] if why.contains(reason)), "{refusals:?}");
        assert_eq!(reader.access(), Access::Pread);
        let mut into = vec![0; 1000];
        reader.fill(&mut [transfer(5, &mut into)]).expect("read");
        assert!(into == shards.contents[0][5..1005]);
    }
}

#[test]
fn a_refused_direct_read_goes_through_the_page_cache_from_then_on() {
    for access in requesting() {
        let shards = Shards::new(&[BYTES]);
        let files = shards.open(true);
        if !files.is_direct() {
            eprintln!("skipped: {}", files.direct_refused().unwrap_or("no reason"));
            return;
        }
        let rule = |at: forebay_io::At, _| at.direct.then_some(Fault::Errno(libc::EINVAL));
        let io = Arc::new(FaultyIo::new(files).with_rule(rule));
        let mut reader = reader(&io, access, true);
        let mut memory = Aligned::new(BYTES.next_multiple_of(4096));
        reader.fill(&mut [transfer(0, memory.bytes())]).expect("read");
        assert!(memory.bytes()[..BYTES] == shards.contents[0]);
        assert!(!reader.is_direct());
        assert!(matches!(reader.take_refusals()[..], [(Refused::Direct, _)]));
        let calls = io.calls();
        reader.fill(&mut [transfer(4096, &mut memory.bytes()[..4096])]).expect("read");
        assert_eq!(io.calls(), calls + 1);
    }
}

#[test]
fn short_direct_reads_go_on_at_an_aligned_offset() {
    for access in requesting() {
        let shards = Shards::new(&[BYTES]);
        let files = shards.open(true);
        if !files.is_direct() {
            eprintln!("skipped: {}", files.direct_refused().unwrap_or("no reason"));
            return;
        }
        // The kernel is asked for whole pages only; what is cut off here is as if it had come
        // short.
        let script = [Some(Fault::Short(8192)), Some(Fault::Short(4096)), None];
        let io = Arc::new(FaultyIo::new(files).with_script(script));
        let mut reader = reader(&io, access, true);
        let mut memory = Aligned::new(BYTES.next_multiple_of(4096));
        reader.fill(&mut [transfer(0, memory.bytes())]).expect("read");
        assert!(memory.bytes()[..BYTES] == shards.contents[0]);
        assert!(reader.is_direct(), "{:?}", reader.take_refusals());
    }
}
