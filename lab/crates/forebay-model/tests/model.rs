//! The model against cases computed by hand.
//!
//! A target moves 1 byte per ns, the latency is 100,000 ns, stripes are 1 MiB on two targets: the
//! expected times can be read off.
use forebay_model::{Direction, Error, FileId, Model, NodeId, Piece, ServerId, Spec};

const MIB: u64 = 1 << 20;
const LATENCY: u64 = 100_000;
const FILE: FileId = FileId(0);

fn spec() -> Spec {
    let text = r#"
        name = "by hand"
        targets = 2
        target_bytes_per_second = 1e9
        latency_us = 100.0
        stripe_bytes = 1_048_576
        stripe_count = 2
        request_bytes = 1_048_576
        request_depth = 1_000_000
        metadata_us = 1000.0
    "#;
    Spec::from_toml(text, "by hand").unwrap()
}

fn with(fields: &str) -> Spec {
    spec().overridden(fields).unwrap()
}

/// A model with nodes, and a buffer for pieces.
struct Bed {
    model: Model,
    nodes: Vec<NodeId>,
    pieces: Vec<Piece>,
}

impl Bed {
    fn new(spec: Spec) -> Bed {
        let mut model = Model::new(spec, 0).unwrap();
        let nodes = (0..2).map(|_| model.add_node()).collect();
        Bed { model, nodes, pieces: Vec::new() }
    }

    fn read(&mut self, now: u64, node: usize, file: FileId, offset: u64, length: u64) -> u64 {
        self.model.transfer(now, self.nodes[node], file, offset, length, Direction::Read, &mut self.pieces)
    }

    fn seeks(&self) -> Vec<bool> {
        self.pieces.iter().map(|piece| piece.seek).collect()
    }
}

#[test]
fn a_single_read_takes_its_bytes_and_the_latency() {
    let mut bed = Bed::new(spec());
    assert_eq!(bed.read(7, 0, FILE, 8192, 4096), 7 + 4096 + LATENCY);
    let piece = Piece {
        server: ServerId(0),
        offset: 8192,
        bytes: 4096,
        start: 7,
        end: 7 + 4096,
        due: 7 + 4096 + LATENCY,
        queue_ns: 0,
        seek: false,
    };
    assert_eq!(bed.pieces, [piece]);
}

#[test]
fn a_read_over_a_stripe_edge_is_served_by_both_servers_at_once() {
    let mut bed = Bed::new(spec());
    assert_eq!(bed.read(0, 0, FILE, MIB - 4096, 12_288), 8192 + LATENCY);
    let pieces: Vec<_> = bed.pieces.iter().map(|piece| (piece.server.0, piece.offset, piece.bytes)).collect();
    assert_eq!(pieces, [(0, MIB - 4096, 4096), (1, MIB, 8192)]);
}

#[test]
fn a_request_is_cut_at_the_request_size_and_served_piece_by_piece() {
    let mut bed = Bed::new(with(r#"{"request_bytes": 262144}"#));
    assert_eq!(bed.read(0, 0, FILE, 0, MIB), MIB + LATENCY);
    let starts: Vec<_> = bed.pieces.iter().map(|piece| (piece.start, piece.bytes)).collect();
    assert_eq!(starts, [(0, MIB / 4), (MIB / 4, MIB / 4), (MIB / 2, MIB / 4), (3 * MIB / 4, MIB / 4)]);
    assert_eq!(bed.pieces[0].due, MIB / 4 + LATENCY);
}

#[test]
fn files_numbered_one_after_the_other_begin_on_servers_one_after_the_other() {
    let mut bed = Bed::new(spec());
    for (file, server) in [(0, 0), (1, 1), (2, 0), (3, 1)] {
        bed.read(0, 0, FileId(file), 0, 1);
        assert_eq!(bed.pieces[0].server, ServerId(server));
    }
}

#[test]
fn two_nodes_queue_at_one_server_and_not_at_two() {
    let mut bed = Bed::new(spec());
    assert_eq!(bed.read(0, 0, FILE, 0, MIB), MIB + LATENCY);
    assert_eq!(bed.read(1000, 1, FILE, 0, MIB), 2 * MIB + LATENCY);
    assert_eq!(bed.pieces[0].queue_ns, MIB - 1000);
    assert_eq!(bed.read(1000, 1, FILE, MIB, MIB), 1000 + MIB + LATENCY);
}

#[test]
fn only_what_does_not_follow_on_an_object_costs_a_seek() {
    const SEEK: u64 = 5_000_000;
    let mut bed = Bed::new(with(r#"{"seek_us": 5000.0}"#));
    // The first access to an object costs a seek; both servers hold one.
    assert_eq!(bed.read(0, 0, FILE, 0, 2 * MIB), SEEK + MIB + LATENCY);
    assert_eq!(bed.seeks(), [true, true]);
    let idle = 100_000_000;
    // Stripe 2 follows stripe 0 in the object of server 0, for any node.
    assert_eq!(bed.read(idle, 1, FILE, 2 * MIB, 4096), idle + 4096 + LATENCY);
    // The same bytes again, and bytes further on, do not continue the last piece.
    assert_eq!(bed.read(2 * idle, 0, FILE, 2 * MIB, 4096), 2 * idle + SEEK + 4096 + LATENCY);
    assert_eq!(bed.read(3 * idle, 0, FILE, 2 * MIB + 8192, 4096), 3 * idle + SEEK + 4096 + LATENCY);
    // Another object between two adjacent reads costs its own seek only.
    bed.read(4 * idle, 0, FileId(2), 0, 4096);
    assert_eq!(bed.seeks(), [true]);
    bed.read(5 * idle, 0, FILE, 2 * MIB + 12_288, 4096);
    assert_eq!(bed.seeks(), [false]);
}

#[test]
fn flash_never_seeks() {
    let mut bed = Bed::new(spec());
    for offset in [0, 40_960, 8192] {
        bed.read(0, 0, FILE, offset, 4096);
        assert_eq!(bed.seeks(), [false]);
    }
}

#[test]
fn the_disks_of_an_array_share_out_small_seeks() {
    let mut bed = Bed::new(with(r#"{"seek_us": 5000.0, "small_request_bytes": 131072, "data_disks": 8}"#));
    assert_eq!(bed.read(0, 0, FILE, 0, 131_071), 5_000_000 / 8 + 131_071 + LATENCY);
    assert_eq!(bed.read(0, 0, FILE, MIB, 131_072), 5_000_000 + 131_072 + LATENCY);
}

#[test]
fn requests_beyond_the_depth_wait_for_an_answer_and_others_use_the_gap() {
    let mut bed = Bed::new(with(r#"{"request_depth": 2}"#));
    let due: Vec<_> = (0..4).map(|k| bed.read(0, 0, FILE, k * 4096, 4096)).collect();
    let first_answer = 4096 + LATENCY;
    let second_answer = 8192 + LATENCY;
    assert_eq!(
        due,
        [first_answer, second_answer, first_answer + 4096 + LATENCY, second_answer + 4096 + LATENCY]
    );
    assert_eq!(bed.pieces[0].queue_ns, second_answer);
    // The server is idle from 8192 until the first arrival; the other node has its own depth.
    assert_eq!(bed.read(0, 1, FILE, 0, 4096), 8192 + 4096 + LATENCY);
    // Work that does not fit into the gap is booked at the end.
    assert_eq!(bed.read(0, 1, FILE, 0, MIB), second_answer + 4096 + MIB + LATENCY);
    // After arrivals there are free slots again.
    assert_eq!(bed.read(10_000_000, 0, FILE, 0, 4096), 10_000_000 + 4096 + LATENCY);
}

#[test]
fn the_link_of_a_node_carries_what_the_servers_deliver() {
    let mut bed = Bed::new(with(r#"{"link_bytes_per_second": 0.5e9}"#));
    // Both servers deliver at once, the link takes 2 ns per byte.
    assert_eq!(bed.read(0, 0, FILE, 0, 2 * MIB), 4 * MIB + LATENCY);
    assert_eq!(bed.pieces[0].due, 2 * MIB + LATENCY);
    // The other node has its own link, and the other direction is free.
    let mut pieces = Vec::new();
    let write = bed.model.transfer(0, bed.nodes[0], FileId(1), 0, 4096, Direction::Write, &mut pieces);
    assert_eq!(write, MIB + 2 * 4096 + LATENCY);
    assert_eq!(bed.read(0, 1, FILE, MIB, 4096), MIB + 4096 + 2 * 4096 + LATENCY);
}

#[test]
fn a_fast_link_adds_nothing_to_a_slow_server() {
    let mut bed = Bed::new(with(r#"{"link_bytes_per_second": 12.5e9}"#));
    assert_eq!(bed.read(0, 0, FILE, 0, MIB), MIB + LATENCY);
}

#[test]
fn each_request_is_work_for_its_server_whatever_its_size() {
    const WORK: u64 = 70_000;
    let mut bed = Bed::new(with(r#"{"request_us": 70.0, "request_bytes": 262144}"#));
    assert_eq!(bed.read(0, 0, FILE, 0, MIB), 4 * WORK + MIB + LATENCY);
    // A node that comes later waits for it.
    assert_eq!(bed.read(0, 1, FILE, 0, 1), 5 * WORK + MIB + 1 + LATENCY);
}

#[test]
fn a_node_reads_a_file_no_faster_than_one_stream() {
    let mut bed = Bed::new(with(r#"{"stream_bytes_per_second": 0.25e9}"#));
    assert_eq!(bed.read(0, 0, FILE, 0, 2 * MIB), 8 * MIB + LATENCY);
    assert_eq!(bed.read(0, 0, FILE, 2 * MIB, 4096), 8 * MIB + 4 * 4096 + LATENCY);
    // Another file and another node have streams of their own, behind the same servers.
    assert_eq!(bed.read(0, 0, FileId(2), 0, 4096), MIB + 4096 + 4 * 4096 + LATENCY);
    assert_eq!(bed.read(0, 1, FILE, MIB, 4096), MIB + 4 * 4096 + LATENCY);
    // An idle stream is free, and writes have none.
    assert_eq!(bed.read(1 << 30, 0, FILE, 0, 4096), (1 << 30) + 4 * 4096 + LATENCY);
    let mut pieces = Vec::new();
    let write = bed.model.transfer(1 << 31, bed.nodes[0], FILE, 0, 4096, Direction::Write, &mut pieces);
    assert_eq!(write, (1 << 31) + 4096 + LATENCY);
}

#[test]
fn the_first_request_of_a_node_to_an_object_waits_for_its_lock() {
    const LOCK: u64 = 300_000;
    let mut bed = Bed::new(with(r#"{"lock_us": 300.0}"#));
    // Both objects of the file are locked at once.
    assert_eq!(bed.read(0, 0, FILE, 0, 2 * MIB), LOCK + MIB + LATENCY);
    let later = 1 << 30;
    assert_eq!(bed.read(later, 0, FILE, 0, 2 * MIB), later + MIB + LATENCY);
    assert_eq!(bed.read(2 * later, 1, FILE, 0, 4096), 2 * later + LOCK + 4096 + LATENCY);
    bed.model.reset();
    assert_eq!(bed.read(3 * later, 0, FILE, 0, 4096), 3 * later + LOCK + 4096 + LATENCY);
}

#[test]
fn writes_and_reads_share_the_server() {
    let mut bed = Bed::new(spec());
    let mut pieces = Vec::new();
    bed.model.transfer(0, bed.nodes[0], FILE, 0, MIB, Direction::Write, &mut pieces);
    assert_eq!(bed.read(0, 1, FILE, 0, 4096), MIB + 4096 + LATENCY);
}

#[test]
fn a_program_waits_only_for_writes_that_the_page_cache_does_not_hold() {
    let mut bed = Bed::new(with(r#"{"write_back_bytes": 1048576}"#));
    let mut write = |now| {
        let due = bed.model.transfer(now, bed.nodes[0], FILE, 0, MIB, Direction::Write, &mut bed.pieces);
        bed.model.written(now, bed.nodes[0], MIB, due)
    };
    let first = MIB + LATENCY;
    assert_eq!([write(0), write(0)], [0, first]);
    assert_eq!(bed.model.synchronized(bed.nodes[0]), MIB + first);
    assert_eq!(bed.model.synchronized(bed.nodes[1]), 0);
    // Without a page cache for writes each waits for its servers.
    assert_eq!(Bed::new(spec()).model.written(5, bed.nodes[0], MIB, first), first);
}

#[test]
fn the_metadata_server_queues_where_it_has_a_rate() {
    let mut bed = Bed::new(with(r#"{"metadata_operations_per_second": 2000}"#));
    let node = bed.nodes[0];
    assert_eq!(bed.model.metadata(0, node), 1_000_000);
    assert_eq!(bed.model.metadata(0, bed.nodes[1]), 1_500_000);
    assert_eq!(bed.model.metadata(400_000, node), 2_000_000);
    // Data does not wait for metadata.
    assert_eq!(bed.read(400_000, 0, FILE, 0, 4096), 400_000 + 4096 + LATENCY);

    let mut bed = Bed::new(spec());
    let node = bed.nodes[0];
    assert_eq!((bed.model.metadata(0, node), bed.model.metadata(0, node)), (1_000_000, 1_000_000));
    // A rate so low that one operation takes longer than `metadata_us` says.
    let mut bed = Bed::new(with(r#"{"metadata_operations_per_second": 100}"#));
    assert_eq!(bed.model.metadata(0, bed.nodes[0]), 10_000_000);
}

#[test]
fn a_stalled_server_begins_nothing_new_until_then() {
    let mut bed = Bed::new(spec());
    let until = 50_000_000;
    let before = bed.read(0, 0, FILE, 0, 4096);
    bed.model.stall(ServerId(0), until).unwrap();
    assert_eq!(before, 4096 + LATENCY);
    assert_eq!(bed.read(0, 0, FILE, 0, 4096), until + 4096 + LATENCY);
    assert_eq!(bed.pieces[0].queue_ns, until);
    assert_eq!(bed.read(0, 0, FILE, MIB, 4096), 4096 + LATENCY);
    assert_eq!(bed.read(until + 4096, 0, FILE, 0, 4096), until + 8192 + LATENCY);
    bed.model.stall(ServerId(0), 0).unwrap();
    assert_eq!(bed.read(2 * until, 0, FILE, 0, 4096), 2 * until + 4096 + LATENCY);
}

#[test]
fn a_slow_server_takes_its_factor_and_the_others_do_not() {
    let mut bed = Bed::new(with(r#"{"seek_us": 1000.0}"#));
    bed.model.slow(ServerId(1), 4.0).unwrap();
    assert_eq!(bed.read(0, 0, FILE, MIB, 4096), 4 * (1_000_000 + 4096) + LATENCY);
    assert_eq!(bed.read(0, 0, FILE, 0, 4096), 1_000_000 + 4096 + LATENCY);
    bed.model.slow(ServerId(1), 1.0).unwrap();
    let idle = 100_000_000;
    assert_eq!(bed.read(idle, 0, FILE, MIB + 4096, 4096), idle + 4096 + LATENCY);
}

#[test]
fn faults_of_servers_that_do_not_exist_or_make_no_sense_are_refused() {
    let mut bed = Bed::new(spec());
    assert!(matches!(bed.model.stall(ServerId(2), 1), Err(Error::NoServer { server: 2, last: 1, .. })));
    assert!(matches!(bed.model.slow(ServerId(9), 2.0), Err(Error::NoServer { server: 9, last: 1, .. })));
    for factor in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        assert!(matches!(bed.model.slow(ServerId(0), factor), Err(Error::SlowFactor { .. })));
    }
    assert_eq!(bed.read(0, 0, FILE, 0, 4096), 4096 + LATENCY);
}

#[test]
fn jitter_repeats_with_its_seed_and_only_lengthens() {
    let spec = with(r#"{"jitter": 0.5}"#);
    let dues = |spec: &Spec, seed| {
        let mut model = Model::new(spec.clone(), seed).unwrap();
        let node = model.add_node();
        let mut pieces = Vec::new();
        (0..100)
            .map(|k| {
                let now = k * 1_000_000;
                model.transfer(now, node, FILE, 0, 4096, Direction::Read, &mut pieces) - now - 4096
            })
            .collect::<Vec<_>>()
    };
    let latencies = dues(&spec, 1);
    assert_eq!(latencies, dues(&spec, 1));
    assert_ne!(latencies, dues(&spec, 2));
    assert!(latencies.iter().all(|latency| (LATENCY..=LATENCY + LATENCY / 2).contains(latency)));
    let mean = latencies.iter().sum::<u64>() / 100;
    assert!((LATENCY + LATENCY / 5..=LATENCY + 3 * LATENCY / 10).contains(&mean), "{mean}");
    let without = with(r#"{"jitter": 0.0}"#);
    assert_eq!(dues(&without, 1), dues(&without, 2));
}

#[test]
fn reset_empties_queues_and_keeps_nodes_and_faults() {
    let mut bed = Bed::new(with(r#"{"seek_us": 1000.0, "link_bytes_per_second": 1e9, "request_depth": 1}"#));
    bed.read(0, 0, FILE, 0, 64 * MIB);
    bed.model.slow(ServerId(1), 2.0).unwrap();
    bed.model.reset();
    assert_eq!(bed.read(0, 0, FILE, 0, 4096), 1_000_000 + 4096 + LATENCY);
    assert_eq!(bed.seeks(), [true]);
    assert_eq!(bed.read(0, 1, FILE, MIB, 4096), 2 * (1_000_000 + 4096) + LATENCY);
}

#[test]
fn a_call_from_the_past_is_taken_as_coming_now() {
    let mut bed = Bed::new(spec());
    bed.read(1_000_000, 0, FILE, 0, 4096);
    assert_eq!(bed.read(0, 0, FILE, MIB, 4096), 1_000_000 + 4096 + LATENCY);
}

#[test]
fn a_transfer_of_nothing_costs_the_latency() {
    let mut bed = Bed::new(spec());
    assert_eq!(bed.read(5, 0, FILE, 0, 0), 5 + LATENCY);
    assert!(bed.pieces.is_empty());
}

#[test]
fn a_single_byte_takes_a_nanosecond_at_least() {
    let mut bed = Bed::new(with(r#"{"target_bytes_per_second": 1e10, "link_bytes_per_second": 1e10}"#));
    assert_eq!(bed.read(0, 0, FILE, 0, 1), 1 + LATENCY);
    // It keeps its place in the queue of the server.
    assert_eq!(bed.read(0, 0, FILE, 0, 1), 2 + LATENCY);
}

#[test]
fn what_is_free_is_due_at_once_whatever_its_size() {
    let mut bed = Bed::new(Spec::free());
    for length in [1, 4096, 1 << 30] {
        assert_eq!(bed.read(3, 0, FILE, 0, length), 3);
    }
    assert_eq!(bed.model.metadata(3, bed.nodes[0]), 3);
}

#[test]
fn large_sequential_reads_reach_the_limit_that_the_model_states() {
    for fields in
        ["{}", r#"{"link_bytes_per_second": 1.5e9}"#, r#"{"request_depth": 1}"#, r#"{"stripe_count": 1}"#]
    {
        let mut bed = Bed::new(with(fields));
        let bytes = 1 << 30;
        let due = bed.read(0, 0, FILE, 0, bytes);
        let rate = bytes as f64 / (due as f64 / 1e9);
        let limit = bed.model.spec().limit_bytes_per_second(1);
        assert!((0.99..=1.000_001).contains(&(rate / limit)), "{fields}: {rate} of {limit}");
    }
}

#[test]
fn large_random_reads_reach_the_limit_that_the_model_states() {
    for (fields, read_bytes) in [
        (r#"{"seek_us": 1000.0}"#, 8 * MIB),
        (r#"{"seek_us": 1000.0}"#, MIB / 2),
        (r#"{"seek_us": 8000.0, "stripe_count": 1}"#, 4 * MIB),
        (r#"{"seek_us": 8000.0, "small_request_bytes": 131072, "data_disks": 8}"#, 64 * 1024),
    ] {
        let mut bed = Bed::new(with(fields));
        let count = 400;
        // Backwards with gaps, so no read continues another; an odd stride of stripes uses both
        // targets.
        let stripes = (read_bytes / MIB).max(1) + 3 - (read_bytes / MIB).max(1) % 2;
        let due =
            (0..count).rev().map(|k| bed.read(0, 0, FILE, k * stripes * MIB, read_bytes)).max().unwrap();
        let rate = (count * read_bytes) as f64 / (due as f64 / 1e9);
        let limit = bed.model.spec().limit_of_random_reads(1, read_bytes);
        assert!((0.98..=1.000_001).contains(&(rate / limit)), "{fields}: {rate} of {limit}");
    }
}
