//! Programs in virtual time: cases computed by hand, and invariants.
use forebay_model::virtual_time::{Action, Scenario, SimulationResult, Stream, run};
use forebay_model::{AccessMethod, ReadAheadRules, Spec};
use proptest::prelude::*;

const LATENCY: u64 = 100_000;
const PAGE: u64 = 4096;

/// 1 ns per byte, 100,000 ns latency, one target.
fn spec() -> Spec {
    let free = Spec::free();
    Spec { target_bytes_per_second: 1e9, latency_us: 100.0, metadata_us: 50.0, ..free }
}

fn direct(offset: u64, length: u64) -> Action {
    Action::Touch { file: 0, offset, length, how: AccessMethod::Direct }
}

fn of(streams: Vec<(u32, Vec<Action>)>) -> Scenario {
    let streams = streams.into_iter().map(|(node, actions)| Stream { node, actions }).collect();
    Scenario { streams, ..Scenario::default() }
}

fn ends(result: &SimulationResult) -> Vec<u64> {
    result.streams.iter().map(|stream| stream.end_ns).collect()
}

#[test]
fn a_program_does_one_thing_after_the_other() {
    let actions = vec![Action::Metadata, direct(0, 4096), Action::ThinkNs(1000), direct(0, 8192)];
    let result = run(&spec(), &of(vec![(0, actions)])).unwrap();
    let wait_ns = 50_000 + 4096 + LATENCY + 8192 + LATENCY;
    assert_eq!(result.end_ns, wait_ns + 1000);
    let stream = &result.streams[0];
    assert_eq!((stream.wait_ns, stream.think_ns, stream.barrier_ns), (wait_ns, 1000, 0));
    assert_eq!((stream.requested_bytes, stream.read_bytes, stream.reads), (12_288, 12_288, 2));
    let server = &result.servers[0];
    assert_eq!((server.pieces, server.bytes, server.busy_ns, server.queue_ns), (2, 12_288, 12_288, 0));
}

#[test]
fn what_happens_at_the_same_time_happens_in_the_order_of_the_programs() {
    let result = run(&spec(), &of((0..3).map(|node| (node, vec![direct(0, 1000)])).collect())).unwrap();
    assert_eq!(ends(&result), [1000 + LATENCY, 2000 + LATENCY, 3000 + LATENCY]);
    assert_eq!(result.servers[0].queue_ns, 1000 + 2000);
}

#[test]
fn a_barrier_waits_for_all_that_have_not_ended() {
    let wait_and_read = |think_ns| vec![Action::ThinkNs(think_ns), Action::Barrier, Action::ThinkNs(10)];
    let scenario =
        of(vec![(0, wait_and_read(500)), (1, wait_and_read(700)), (2, vec![Action::ThinkNs(600)])]);
    let result = run(&spec(), &scenario).unwrap();
    assert_eq!(ends(&result), [710, 710, 600]);
    let waits: Vec<_> = result.streams.iter().map(|stream| stream.barrier_ns).collect();
    assert_eq!(waits, [200, 0, 0]);
    // The last program to end also opens the barrier.
    let scenario = of(vec![(0, vec![Action::Barrier]), (1, vec![Action::ThinkNs(900)])]);
    assert_eq!(ends(&run(&spec(), &scenario).unwrap()), [900, 900]);
}

#[test]
fn who_comes_second_on_a_node_waits_for_the_same_request() {
    let touch = |offset, length| Action::Touch { file: 0, offset, length, how: AccessMethod::Read };
    let late = vec![Action::ThinkNs(50_000), touch(0, PAGE)];
    let result = run(&spec(), &of(vec![(0, vec![touch(0, PAGE)]), (0, late.clone())])).unwrap();
    assert_eq!(ends(&result), [PAGE + LATENCY, PAGE + LATENCY]);
    assert_eq!((result.streams[1].reads, result.streams[1].wait_ns), (0, PAGE + LATENCY - 50_000));
    // On its own node it sends its own request.
    let result = run(&spec(), &of(vec![(0, vec![touch(0, PAGE)]), (1, late)])).unwrap();
    assert_eq!(ends(&result), [PAGE + LATENCY, 50_000 + PAGE + LATENCY]);
    assert_eq!(result.streams[1].reads, 1);
}

#[test]
fn page_faults_wait_one_after_the_other() {
    let touch = Action::Touch { file: 0, offset: 0, length: 3 * PAGE, how: AccessMethod::MmapRandom };
    let result = run(&spec(), &of(vec![(0, vec![touch])])).unwrap();
    assert_eq!(result.end_ns, 3 * (PAGE + LATENCY));
    let touch = Action::Touch { file: 0, offset: 0, length: 3 * PAGE, how: AccessMethod::Read };
    assert_eq!(run(&spec(), &of(vec![(0, vec![touch])])).unwrap().end_ns, 3 * PAGE + LATENCY);
}

#[test]
fn read_ahead_goes_on_while_the_program_computes() {
    // Linux, 128 KiB: the first read fetches 16 KiB; its marker, the second page, fetches the next
    // 32.
    let read = |page| Action::Touch { file: 0, offset: page * PAGE, length: PAGE, how: AccessMethod::Read };
    let think = Action::ThinkNs(1_000_000);
    let actions = vec![read(0), think, read(1), think, read(2), think, read(3), think, read(4)];
    let rules = ReadAheadRules::Linux { read_ahead_bytes: 131_072 };
    let result = run(&spec(), &Scenario { rules, ..of(vec![(0, actions)]) }).unwrap();
    assert_eq!(result.streams[0].wait_ns, 4 * PAGE + LATENCY);
    // The 32 KiB, and the window after them, whose marker is page 4.
    assert_eq!((result.streams[0].reads, result.streams[0].read_bytes), (3, (4 + 8 + 16) * PAGE));
}

#[test]
fn a_write_waits_for_the_servers() {
    let write = Action::Write { file: 0, offset: 0, length: 1 << 20 };
    let result = run(&spec(), &of(vec![(0, vec![write]), (1, vec![direct(0, 4096)])])).unwrap();
    assert_eq!(ends(&result), [(1 << 20) + LATENCY, (1 << 20) + 4096 + LATENCY]);
    assert_eq!(result.streams[0].read_bytes, 0);
}

#[test]
fn a_scenario_is_plain_json() {
    let text = r#"{
        "rules": {"linux": {"read_ahead_bytes": 131072}}, "files": [8192],
        "streams": [{"node": 1, "actions": [
            {"think_ns": 5}, {"touch": {"offset": 0, "length": 100000, "how": "mmap_random"}}, "metadata", "barrier"]}]
    }"#;
    let scenario: Scenario = serde_json::from_str(text).unwrap();
    assert_eq!(
        serde_json::from_str::<Scenario>(&serde_json::to_string(&scenario).unwrap()).unwrap(),
        scenario
    );
    let result = run(&spec(), &scenario).unwrap();
    assert_eq!(result.end_ns, 5 + 2 * (PAGE + LATENCY) + 50_000);
    assert_eq!(result.streams[0].read_bytes, 8192);
    assert!(serde_json::from_str::<Scenario>(r#"{"streams": [], "nodes": 3}"#).is_err());
}

#[test]
fn nobody_and_nothing_take_no_time() {
    assert_eq!(run(&spec(), &of(vec![])).unwrap().end_ns, 0);
    assert_eq!(run(&spec(), &of(vec![(3, vec![])])).unwrap().end_ns, 0);
}

fn any_action() -> impl Strategy<Value = Action> {
    let how = prop::sample::select(vec![
        AccessMethod::Read,
        AccessMethod::Mmap,
        AccessMethod::MmapRandom,
        AccessMethod::Direct,
    ]);
    let place = (0u64..2, 0u64..4_000_000, 0u64..400_000);
    prop_oneof![
        5 => (place.clone(), how).prop_map(|((file, offset, length), how)| Action::Touch {
            file, offset, length, how
        }),
        2 => (0u64..2_000_000).prop_map(Action::ThinkNs),
        1 => Just(Action::Barrier),
        1 => Just(Action::Metadata),
        1 => place.prop_map(|(file, offset, length)| Action::Write { file, offset, length }),
    ]
}

fn any_scenario() -> impl Strategy<Value = Scenario> {
    let stream = (0u32..3, prop::collection::vec(any_action(), 0..12))
        .prop_map(|(node, actions)| Stream { node, actions });
    let rules = prop_oneof![
        Just(ReadAheadRules::Lustre),
        (0u64..2_000_000).prop_map(|read_ahead_bytes| ReadAheadRules::Linux { read_ahead_bytes }),
    ];
    (rules, any::<u64>(), prop::collection::vec(stream, 0..6)).prop_map(|(rules, seed, streams)| Scenario {
        rules,
        seed,
        files: vec![3_000_001],
        streams,
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn times_add_up_bytes_add_up_and_it_happens_again(
        name in prop::sample::select(Spec::preset_names()), small in any::<bool>(), scenario in any_scenario(),
    ) {
        let spec = Spec { jitter: 0.3, ..Spec::preset(name).unwrap() };
        let spec = if small { Spec { cache_bytes: Some(300_000), ..spec } } else { spec };
        let result = run(&spec, &scenario).unwrap();
        prop_assert_eq!(&run(&spec, &scenario).unwrap(), &result);
        let mut moved_bytes = 0;
        for (stream, asked) in result.streams.iter().zip(&scenario.streams) {
            prop_assert_eq!(stream.wait_ns + stream.think_ns + stream.barrier_ns, stream.end_ns);
            let written = |action: &Action| if let Action::Write { length, .. } = action { *length } else { 0 };
            moved_bytes += stream.read_bytes + asked.actions.iter().map(written).sum::<u64>();
        }
        prop_assert_eq!(result.servers.iter().map(|server| server.bytes).sum::<u64>(), moved_bytes);
        for server in &result.servers {
            // Read-ahead and writes of others may outlast a program, but end by a deadline.
            prop_assert!(server.seeks <= server.pieces);
            prop_assert!(spec.seek_us > 0.0 || server.seeks == 0);
        }
    }

    #[test]
    fn the_file_system_never_makes_it_faster_to_ask_the_servers_than_to_have_none(scenario in any_scenario()) {
        let spec = Spec::preset("fefs").unwrap();
        let free = run(&Spec { cache_bytes: spec.cache_bytes, ..Spec::free() }, &scenario).unwrap();
        prop_assert!(run(&spec, &scenario).unwrap().end_ns >= free.end_ns);
        let think = |stream: &Stream| {
            stream.actions.iter().map(|action| if let Action::ThinkNs(ns) = action { *ns } else { 0 }).sum::<u64>()
        };
        prop_assert!(free.streams.iter().zip(&scenario.streams).all(|(one, stream)| one.think_ns == think(stream)));
        prop_assert!(free.streams.iter().all(|stream| stream.wait_ns == 0));
    }
}
