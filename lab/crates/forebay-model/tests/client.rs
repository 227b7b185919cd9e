//! The requests of a node for the accesses of its programs.
//!
//! The rules of Linux are compared with the requests that a FUSE server on Linux 6.18 received, by
//! `read_ahead_kb`.
use forebay_model::{AccessMethod, ByteRange, Client, FileId, ReadAheadRules, Spec};

const KIB: u64 = 1024;
const MIB: u64 = 1 << 20;
const PAGE: u64 = 4096;
const FILE: FileId = FileId(3);

/// One program that has one file open.
struct Bed {
    client: Client,
    open: forebay_model::OpenFile,
}

impl Bed {
    fn new(rules: ReadAheadRules, spec: &Spec, file_bytes: u64) -> Bed {
        let mut client = Client::new(spec, rules);
        let open = client.open(FILE, file_bytes);
        Bed { client, open }
    }

    fn linux(read_ahead_kib: u64) -> Bed {
        let rules = ReadAheadRules::Linux { read_ahead_bytes: read_ahead_kib * KIB };
        Bed::new(rules, &Spec::preset("fefs").unwrap(), 1 << 40)
    }

    fn lustre() -> Bed {
        Bed::new(ReadAheadRules::Lustre, &Spec::preset("fefs").unwrap(), 1 << 40)
    }
    /// Requests of one access as (offset, length) in KiB; checks that it waits for the accessed
    /// bytes.
    fn touch(&mut self, offset: u64, length: u64, how: AccessMethod) -> Vec<(u64, u64)> {
        let mut access = self.client.access(self.open, offset, length, how);
        let (mut all, mut fetches, mut at) = (Vec::new(), Vec::new(), offset);
        while let Some(needed) = self.client.step(&mut access, &mut fetches) {
            assert_eq!(needed.offset, at);
            at += needed.length;
            all.extend(fetches.iter().map(|range| (range.offset / KIB, range.length / KIB)));
        }
        assert_eq!(at, offset + length);
        all
    }

    fn sizes(&mut self, offset: u64, length: u64, how: AccessMethod) -> Vec<u64> {
        self.touch(offset, length, how).into_iter().map(|(_, length)| length).collect()
    }
}

/// An offset far from all others, at a different position in its window.
fn far(k: u64) -> u64 {
    (k + 1) * 256 * MIB + k * 7 * PAGE
}

#[test]
fn linux_reads_mappings_in_windows() {
    for (read_ahead_kib, request_kib) in [(128, 128), (1024, 1024), (4096, 1024)] {
        let sizes = Bed::linux(read_ahead_kib).sizes(0, 16 * MIB, AccessMethod::Mmap);
        assert!(sizes.len() >= 15 && sizes.iter().all(|&kib| kib == request_kib), "{sizes:?}");
    }
}

#[test]
fn linux_reads_around_a_fault_and_gives_up_after_a_hundred_misses() {
    for (read_ahead_kib, sizes) in [(128, vec![128]), (1024, vec![1024]), (4096, vec![1024; 4])] {
        let mut bed = Bed::linux(read_ahead_kib);
        assert_eq!(bed.sizes(far(0), PAGE, AccessMethod::Mmap), sizes);
        for k in 1..100 {
            assert_eq!(bed.sizes(far(k), 1, AccessMethod::Mmap), sizes);
        }
        assert_eq!(bed.touch(far(100), PAGE, AccessMethod::Mmap), [(far(100) / KIB, 4)]);
    }
    assert_eq!(Bed::linux(128).touch(100 * MIB, 1, AccessMethod::Mmap), [(100 * KIB - 64, 128)]);
}

#[test]
fn what_is_found_pays_for_what_was_missed() {
    let mut bed = Bed::linux(128);
    for k in 0..1000 {
        assert!(bed.touch(far(k), 40 * PAGE, AccessMethod::Mmap).len() <= 4);
    }
    assert_eq!(bed.sizes(far(1000), PAGE, AccessMethod::Mmap), [128]);
}

#[test]
fn linux_without_read_ahead_reads_pages() {
    for k in 0..200 {
        assert_eq!(Bed::linux(4096).sizes(far(k), PAGE, AccessMethod::MmapRandom), [4]);
    }
    assert_eq!(Bed::linux(0).sizes(0, 4 * PAGE, AccessMethod::Mmap), [4; 4]);
    assert_eq!(Bed::linux(0).sizes(0, 4 * PAGE, AccessMethod::Read), [16]);
}

#[test]
fn linux_opens_its_window_for_small_sequential_reads() {
    for (read_ahead_kib, begin) in [
        (128, &[16, 32, 64, 128, 128, 128][..]),
        (1024, &[16, 64, 128, 256, 512, 1024, 1024]),
        (4096, &[16, 64, 256, 512, 1024, 1024, 1024]),
    ] {
        let mut bed = Bed::linux(read_ahead_kib);
        let sizes: Vec<_> = (0..2048).flat_map(|k| bed.sizes(k * PAGE, PAGE, AccessMethod::Read)).collect();
        assert_eq!(&sizes[..begin.len()], begin);
    }
}

#[test]
fn reads_without_read_ahead_fetch_what_they_ask_for_a_window_at_a_time() {
    for (read_ahead_kib, sizes) in
        [(128, vec![128, 128, 128, 128, 8]), (1024, vec![520]), (4096, vec![520]), (0, vec![520])]
    {
        let mut bed = Bed::linux(read_ahead_kib);
        bed.client.without_read_ahead(bed.open);
        for at in [far(0), far(0) + 520 * KIB, 0, far(1)] {
            assert_eq!(bed.sizes(at, 520 * KIB, AccessMethod::Read), sizes);
        }
        assert_eq!(bed.sizes(far(1), 520 * KIB, AccessMethod::Read), Vec::<u64>::new());
    }
    let mut bed = Bed::lustre();
    bed.client.without_read_ahead(bed.open);
    for k in 0..4 {
        assert_eq!(bed.sizes(k * 520 * KIB, 520 * KIB, AccessMethod::Read), [520]);
    }
}

#[test]
fn an_announcement_is_fetched_by_requests_of_a_window() {
    for (read_ahead_kib, sizes) in
        [(128, vec![128, 128, 44]), (0, vec![300]), (1024, vec![300]), (4096, vec![300])]
    {
        let mut bed = Bed::linux(read_ahead_kib);
        let (range, mut fetches) = (ByteRange { offset: far(0), length: 300 * KIB }, Vec::new());
        bed.client.will_need(bed.open, range, &mut fetches);
        assert_eq!(fetches.iter().map(|range| range.length / KIB).collect::<Vec<_>>(), sizes);
    }
}

#[test]
fn linux_leaves_random_reads_as_they_are_unless_they_exceed_the_window() {
    for (read_ahead_kib, length_kib, sizes) in [
        (128, 4, vec![4]),
        (1024, 4, vec![4]),
        (128, 256, vec![128; 3]),
        (1024, 256, vec![256]),
        (4096, 256, vec![256]),
        (128, 1024, vec![128; 9]),
        (1024, 1024, vec![1024]),
    ] {
        let mut bed = Bed::linux(read_ahead_kib);
        for k in 0..5 {
            assert_eq!(
                bed.sizes(far(k), length_kib * KIB, AccessMethod::Read),
                sizes,
                "{read_ahead_kib} {length_kib}"
            );
        }
    }
}

#[test]
fn direct_reads_are_sent_as_they_are_up_to_a_mebibyte_and_leave_no_pages() {
    let mut bed = Bed::linux(128);
    assert_eq!(bed.touch(8 * KIB, 256 * KIB, AccessMethod::Direct), [(8, 256)]);
    assert_eq!(bed.sizes(0, 4 * MIB, AccessMethod::Direct), [1024; 4]);
    assert_eq!(bed.sizes(0, 4 * MIB, AccessMethod::Direct), [1024; 4]);
    assert_eq!(bed.client.cached_bytes(), 0);
    assert_eq!(Bed::lustre().sizes(0, 4 * MIB, AccessMethod::Direct), [4096]);
}

#[test]
fn lustre_faults_page_by_page_and_from_the_fourth_on_to_the_end_of_the_mebibyte() {
    let mut bed = Bed::lustre();
    // A record of 49 pages that begins 100 pages into a MiB.
    let begin = 400;
    assert_eq!(
        bed.touch(begin * KIB, 49 * PAGE, AccessMethod::Mmap),
        [(begin, 4), (begin + 4, 4), (begin + 8, 4), (begin + 12, 1024 - begin - 12)]
    );
    // The rest of the MiB is cached, and the next one is fetched whole.
    assert_eq!(bed.touch(begin * KIB + 49 * PAGE, 156 * PAGE, AccessMethod::Mmap), [(1024, 1024)]);
    // Never more than that.
    assert_eq!(bed.sizes(305 * PAGE, MIB, AccessMethod::Mmap), [1024]);
    // A jump resets the state.
    assert_eq!(bed.sizes(64 * MIB, 3 * PAGE, AccessMethod::Mmap), [4, 4, 4]);
    assert_eq!(bed.sizes(128 * MIB, 3 * PAGE, AccessMethod::Mmap), [4, 4, 4]);
    // Close pages count as consecutive.
    assert_eq!(bed.sizes(128 * MIB + 8 * PAGE, PAGE, AccessMethod::Mmap), [1024 - 32]);
}

#[test]
fn lustre_grows_its_window_from_the_second_sequential_read_up_to_the_cap() {
    let mut bed = Bed::lustre();
    assert_eq!(bed.touch(0, 64 * KIB, AccessMethod::Read), [(0, 64)]);
    assert_eq!(bed.touch(64 * KIB, 64 * KIB, AccessMethod::Read), [(64, 64), (128, 1024 - 128)]);
    assert_eq!(bed.touch(128 * KIB, 64 * KIB, AccessMethod::Read), [(1024, 1024)]);
    let ahead = |bed: &Bed, at: u64| bed.client.cached_bytes() - at;
    for k in 3..200 {
        bed.touch(k * 64 * KIB, 64 * KIB, AccessMethod::Read);
    }
    let at = 200 * 64 * KIB;
    assert!((39 * MIB..=40 * MIB).contains(&ahead(&bed, at)), "{}", ahead(&bed, at));
    // Elsewhere: the requested pages only.
    assert_eq!(bed.touch(far(1), 256 * KIB, AccessMethod::Read), [(far(1) / KIB, 256)]);
    assert_eq!(bed.touch(far(2), PAGE, AccessMethod::Read), [(far(2) / KIB, 4)]);
}

#[test]
fn nothing_is_read_beyond_the_end_of_the_file_or_twice() {
    for rules in [ReadAheadRules::Lustre, ReadAheadRules::Linux { read_ahead_bytes: 128 * KIB }] {
        for how in [AccessMethod::Read, AccessMethod::Mmap, AccessMethod::MmapRandom] {
            let bytes = 3 * MIB + 1000;
            let mut bed = Bed::new(rules, &Spec::preset("fefs").unwrap(), bytes);
            let mut seen = 0;
            let mut fetches: Vec<ByteRange> = Vec::new();
            for offset in (0..4 * MIB).step_by(100_000) {
                let mut access = bed.client.access(bed.open, offset, 100_000, how);
                while bed.client.step(&mut access, &mut fetches).is_some() {
                    seen += fetches.iter().map(|range| range.length).sum::<u64>();
                }
            }
            assert_eq!(seen, bytes, "{rules:?} {how:?}");
            assert_eq!(bed.client.cached_bytes(), bytes.next_multiple_of(PAGE));
            let again = bed.client.access(bed.open, 0, bytes, how);
            assert!(bed.client.step(&mut { again }, &mut fetches).is_some() && fetches.is_empty());
        }
    }
}

#[test]
fn a_cold_node_reads_again_and_a_small_cache_forgets() {
    let mut bed = Bed::lustre();
    assert_eq!(bed.sizes(far(0), PAGE, AccessMethod::MmapRandom), [4]);
    assert!(bed.sizes(far(0), PAGE, AccessMethod::MmapRandom).is_empty());
    bed.client.drop_caches();
    assert_eq!(bed.sizes(far(0), PAGE, AccessMethod::MmapRandom), [4]);

    let spec = Spec::preset("fefs").unwrap().overridden(r#"{"cache_bytes": 1048576}"#).unwrap();
    let mut bed = Bed::new(ReadAheadRules::Lustre, &spec, 1 << 40);
    for k in 0..8 {
        assert_eq!(bed.sizes(far(k), 256 * KIB, AccessMethod::Read), [256]);
    }
    assert!(bed.client.cached_bytes() <= MIB);
    assert!(bed.sizes(far(7), 256 * KIB, AccessMethod::Read).is_empty());
    assert_eq!(bed.sizes(far(0), 256 * KIB, AccessMethod::Read), [256]);
}

#[test]
fn programs_of_a_node_share_pages_and_not_the_state_of_read_ahead() {
    let mut bed = Bed::lustre();
    let first = bed.open;
    let second = bed.client.open(FILE, 1 << 40);
    assert_eq!(bed.sizes(64 * MIB, 3 * PAGE, AccessMethod::Mmap), [4; 3]);
    bed.open = second;
    // The fourth page in a row, but the first of this program.
    assert_eq!(bed.sizes(64 * MIB + 3 * PAGE, PAGE, AccessMethod::Mmap), [4]);
    assert!(bed.sizes(64 * MIB, 2 * PAGE, AccessMethod::Mmap).is_empty());
    bed.open = first;
    assert_eq!(bed.sizes(64 * MIB + 4 * PAGE, PAGE, AccessMethod::Mmap), [1024 - 16]);
}

#[test]
fn announced_bytes_are_asked_for_once_and_are_asked_for_again_after_they_were_dropped() {
    let range = |offset, length| ByteRange { offset, length };
    for (mut bed, most) in [(Bed::linux(1024), MIB), (Bed::lustre(), u64::MAX)] {
        let mut fetches = Vec::new();
        bed.client.will_need(bed.open, range(PAGE + 1, 3 * MIB), &mut fetches);
        // Whole pages, in requests of the client's size.
        let whole = 3 * MIB + PAGE;
        assert_eq!(fetches.iter().map(|one| one.length).sum::<u64>(), whole);
        assert_eq!((fetches[0].offset, fetches[0].length), (PAGE, whole.min(most)));
        assert_eq!(bed.touch(2 * PAGE, MIB, AccessMethod::Read), []);
        bed.client.will_need(bed.open, range(PAGE, 3 * MIB), &mut fetches);
        assert_eq!(fetches, []);
        // Pages that lie in the range with a part only stay.
        bed.client.wont_need(bed.open, range(PAGE + 1, MIB));
        bed.client.will_need(bed.open, range(0, 3 * MIB), &mut fetches);
        assert_eq!(fetches, [range(0, PAGE), range(2 * PAGE, MIB - PAGE)]);
    }
}

#[test]
fn the_last_page_of_a_file_is_announced_and_dropped_though_it_is_not_full() {
    let mut bed = Bed::new(ReadAheadRules::Lustre, &Spec::free(), 10_000);
    let (whole, mut fetches) = (ByteRange { offset: 0, length: 1 << 20 }, Vec::new());
    for _ in 0..2 {
        bed.client.will_need(bed.open, whole, &mut fetches);
        assert_eq!(fetches, [ByteRange { offset: 0, length: 10_000 }]);
        assert_eq!(bed.client.cached_bytes(), 3 * PAGE);
        bed.client.wont_need(bed.open, whole);
        assert_eq!(bed.client.cached_bytes(), 0);
    }
}
