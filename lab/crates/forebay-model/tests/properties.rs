//! Properties of every file system and every sequence of requests.
use std::collections::HashMap;

use forebay_model::{Direction, FileId, Layout, Model, NodeId, Piece, ServerId, Spec};
use proptest::prelude::*;

const KIB: u64 = 1024;

fn any_spec() -> impl Strategy<Value = Spec> {
    let disks = (1u32..6, 1u32..6, 1e6..1e10, 0.0..2000.0, prop_oneof![Just(0.0), 100.0..9000.0]);
    let requests = (1u64..64, 1u64..512, 1u32..10, prop_oneof![Just(None), (1e6..1e10).prop_map(Some)]);
    let rest =
        (prop_oneof![Just(0.0), 0.0..2.0], 1u32..9, prop_oneof![Just(None), (10.0..1e6).prop_map(Some)]);
    let costs = (
        prop_oneof![Just(0.0), 1.0..500.0],
        prop_oneof![Just(0.0), 1.0..500.0],
        prop_oneof![Just(None), (1e6..1e10).prop_map(Some)],
    );
    (disks, requests, rest, costs).prop_map(|(disks, requests, rest, costs)| {
        let (request_us, lock_us, stream_bytes_per_second) = costs;
        let (targets, stripe_count, target_bytes_per_second, latency_us, seek_us) = disks;
        let (stripe, request, request_depth, link_bytes_per_second) = requests;
        let (jitter, data_disks, metadata_operations_per_second) = rest;
        Spec {
            name: "any".to_owned(),
            targets,
            stripe_count: stripe_count.min(targets),
            target_bytes_per_second,
            latency_us,
            seek_us,
            stripe_bytes: stripe * 64 * KIB,
            request_bytes: request * 4 * KIB,
            request_depth,
            link_bytes_per_second,
            request_us,
            lock_us,
            stream_bytes_per_second,
            small_request_bytes: 128 * KIB,
            data_disks,
            metadata_us: 100.0,
            metadata_operations_per_second,
            jitter,
            ..Spec::free()
        }
    })
}

#[derive(Clone, Debug)]
struct Asked {
    gap_ns: u64,
    node: u32,
    file: u64,
    offset: u64,
    length: u64,
    write: bool,
}

fn any_requests() -> impl Strategy<Value = Vec<Asked>> {
    // Often at the same time, often near each other, often sequential.
    let gap = prop_oneof![3 => Just(0u64), 2 => 0u64..3_000_000, 1 => 0u64..1_000_000_000];
    let one = (
        gap,
        0u32..3,
        0u64..4,
        (0u64..64).prop_map(|k| k * 64 * KIB),
        1u64..3_000_000,
        prop::bool::weighted(0.2),
    );
    let one = one.prop_map(|(gap_ns, node, file, offset, length, write)| Asked {
        gap_ns,
        node,
        file,
        offset,
        length,
        write,
    });
    prop::collection::vec(one, 1..40)
}

struct Answer {
    now: u64,
    asked: Asked,
    due: u64,
    pieces: Vec<Piece>,
}

fn answers(spec: &Spec, requests: &[Asked], seed: u64) -> Vec<Answer> {
    let mut model = Model::new(spec.clone(), seed).unwrap();
    let nodes: Vec<NodeId> = (0..3).map(|_| model.add_node()).collect();
    let mut now = 0;
    requests
        .iter()
        .map(|asked| {
            now += asked.gap_ns;
            let kind = if asked.write { Direction::Write } else { Direction::Read };
            let mut pieces = Vec::new();
            let node = nodes[asked.node as usize];
            let due =
                model.transfer(now, node, FileId(asked.file), asked.offset, asked.length, kind, &mut pieces);
            Answer { now, asked: asked.clone(), due, pieces }
        })
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]

    #[test]
    fn pieces_tile_the_range_and_objects_have_no_holes(
        spec in any_spec(), file in 0u64..9, offset in 0u64..1 << 50, length in 1u64..8_000_000,
    ) {
        let layout = Layout::of(&spec, FileId(file));
        let mut at = offset;
        let mut ends: HashMap<ServerId, u64> = HashMap::new();
        for stretch in layout.split(offset, length, spec.request_bytes) {
            prop_assert_eq!(stretch.offset, at);
            prop_assert!((1..=spec.request_bytes.min(spec.stripe_bytes)).contains(&stretch.bytes));
            prop_assert!(stretch.server.0 < spec.targets);
            prop_assert_eq!(layout.locate(at), (stretch.server, stretch.object_offset));
            let last = stretch.offset + stretch.bytes - 1;
            prop_assert_eq!(layout.locate(last), (stretch.server, stretch.object_offset + stretch.bytes - 1));
            if let Some(end) = ends.insert(stretch.server, stretch.object_offset + stretch.bytes) {
                prop_assert_eq!(end, stretch.object_offset);
            }
            at += stretch.bytes;
        }
        prop_assert_eq!(at, offset + length);
        prop_assert!(ends.len() <= spec.stripe_count as usize);
    }

    #[test]
    fn nothing_is_due_before_latency_disk_link_and_stream_allow(
        spec in any_spec(), requests in any_requests(), seed: u64,
    ) {
        let latency_ns = spec.latency_us * 1e3;
        for answer in answers(&spec, &requests, seed) {
            let bytes = answer.asked.length as f64;
            prop_assert_eq!(answer.pieces.iter().map(|piece| piece.bytes).sum::<u64>(), answer.asked.length);
            prop_assert_eq!(answer.pieces.iter().map(|piece| piece.due).max(), Some(answer.due));
            let took = (answer.due - answer.now) as f64;
            // Each piece is rounded to the nanosecond, twice.
            let slack = 2.0 * answer.pieces.len() as f64;
            let disks = bytes / (spec.target_bytes_per_second * f64::from(spec.stripe_count));
            prop_assert!(took + slack >= latency_ns + disks * 1e9);
            if let Some(rate) = spec.link_bytes_per_second {
                prop_assert!(took + slack >= latency_ns + bytes / rate * 1e9);
            }
            if let Some(rate) = spec.stream_bytes_per_second
                && !answer.asked.write
            {
                prop_assert!(took + slack >= latency_ns + bytes / rate * 1e9);
            }
            for piece in &answer.pieces {
                prop_assert!(piece.start >= answer.now);
                prop_assert_eq!(piece.queue_ns, piece.start - answer.now);
                let service = spec.request_us * 1e3 + piece.bytes as f64 / spec.target_bytes_per_second * 1e9;
                prop_assert!((piece.due - answer.now) as f64 + 2.0 >= latency_ns + service);
                prop_assert!(spec.seek_us > 0.0 || !piece.seek);
            }
        }
    }

    #[test]
    fn a_server_does_one_thing_at_a_time_and_a_node_keeps_to_its_depth(
        spec in any_spec(), requests in any_requests(), seed: u64,
    ) {
        let mut busy: HashMap<ServerId, Vec<(u64, u64)>> = HashMap::new();
        let mut under_way: HashMap<(ServerId, u32), Vec<(u64, i32)>> = HashMap::new();
        let mut end = 0;
        for answer in answers(&spec, &requests, seed) {
            for piece in &answer.pieces {
                busy.entry(piece.server).or_default().push((piece.start, piece.end));
                let changes = under_way.entry((piece.server, answer.asked.node)).or_default();
                changes.extend([(piece.start, 1), (piece.due, -1)]);
            }
            end = end.max(answer.due);
        }
        for times in busy.values_mut() {
            times.sort_unstable();
            prop_assert!(times.windows(2).all(|pair| pair[0].1 <= pair[1].0));
            prop_assert!(times.iter().map(|(start, end)| end - start).sum::<u64>() <= end);
        }
        for changes in under_way.values_mut() {
            // At the same moment an answer arrives before the next request goes out.
            changes.sort_unstable();
            let mut now = 0;
            for (_, change) in changes {
                now += *change;
                prop_assert!(now <= spec.request_depth as i32);
            }
        }
    }

    #[test]
    fn the_same_calls_have_the_same_answers(spec in any_spec(), requests in any_requests(), seed: u64) {
        let once = answers(&spec, &requests, seed);
        let again = answers(&spec, &requests, seed);
        for (one, other) in once.iter().zip(&again) {
            prop_assert_eq!((one.due, &one.pieces), (other.due, &other.pieces));
        }
    }

    #[test]
    fn who_comes_first_is_served_first_and_no_server_rests_while_somebody_waits(
        spec in any_spec(), requests in any_requests(),
    ) {
        // Neither depth nor a lock delays a request before it reaches its server.
        let spec = Spec { request_depth: u32::MAX, lock_us: 0.0, ..spec };
        let mut ends: HashMap<ServerId, u64> = HashMap::new();
        for answer in answers(&spec, &requests, 0) {
            for piece in &answer.pieces {
                let free = ends.insert(piece.server, piece.end).unwrap_or(0);
                prop_assert_eq!(piece.start, answer.now.max(free));
            }
        }
    }
}
