//! The rendezvous of a node: which ranks join, which fail, and what each has afterwards.
#![cfg(not(loom))]

mod rendezvous_support;

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use forebay_engine::rendezvous::{Dead, NodeSpec, Peer, RendezvousError, join};
use rendezvous_support::{Lead, Rank, Script, directory, left_in, pidfds_of, start_all, until};

#[test]
fn child_process() {
    rendezvous_support::child_process();
}

/// All of them join, and know each other.
fn all_join(ranks: &mut [Rank]) {
    let pids: Vec<i32> = ranks.iter().map(Rank::pid).collect();
    for rank in ranks.iter_mut() {
        let peers: Vec<Peer> = serde_json::from_str(&rank.expect("joined")).unwrap();
        assert_eq!(peers.iter().map(|peer| peer.pid).collect::<Vec<_>>(), pids);
        assert!(peers.iter().enumerate().all(|(at, peer)| peer.local_rank == at as u32));
        assert!(peers.iter().all(|peer| peer.rank == 100 + 3 * peer.local_rank));
    }
}

fn meet_and_part(local_size: u32, change: impl Fn(&mut Script)) {
    let (_outer, directory) = directory();
    let mut ranks = start_all(&directory, local_size, change);
    all_join(&mut ranks);
    assert!(left_in(&directory).is_empty(), "{:?}", left_in(&directory));
    ranks.into_iter().for_each(Rank::finish);
}

#[test]
fn two_ranks_meet_and_leave_nothing() {
    meet_and_part(2, |_| ());
}

#[test]
fn four_ranks_meet_and_leave_nothing() {
    meet_and_part(4, |_| ());
}

#[test]
fn sixteen_ranks_meet_and_leave_nothing() {
    meet_and_part(16, |_| ());
}

#[test]
fn more_ranks_than_one_message_can_introduce_meet() {
    meet_and_part(70, |_| ());
}

#[test]
fn long_hellos_replies_and_many_descriptors_arrive_whole() {
    meet_and_part(3, |script| {
        script.hello_bytes = 3 << 20;
        script.lead = Lead::Give { fds: 150, bytes: 9 << 20 };
    });
}

#[test]
fn empty_hellos_and_replies_work() {
    meet_and_part(2, |script| {
        script.hello_bytes = 0;
        script.lead = Lead::Give { fds: 0, bytes: 0 };
    });
}

fn alone() -> NodeSpec {
    NodeSpec {
        job: "job".into(),
        node: "node".into(),
        name: "train".into(),
        rank: 5,
        local_rank: 0,
        local_ranks: vec![5],
        launcher: None,
        deadline: std::time::Duration::from_secs(1),
    }
}

#[test]
fn a_rank_alone_needs_no_socket_and_no_file() {
    let lead = |hellos: &[Vec<u8>], _: Dead<'_>| Ok((hellos[0].clone(), vec![]));
    let membership = join(&alone(), b"hello", lead, &mut || panic!("nothing is waited for")).unwrap();
    assert_eq!(membership.reply, b"hello");
    assert_eq!((membership.dead(), membership.peers().len()), (None, 1));
    let error = join(&alone(), b"", |_, _| Err("no data".into()), &mut || true).unwrap_err();
    assert!(matches!(&error, RendezvousError::Rejected(message) if message == "no data"));
}

#[test]
fn a_description_that_contradicts_itself_is_rejected_at_once() {
    let refuse = |spec: NodeSpec| {
        let error = join(&spec, b"", |_, _| unreachable!(), &mut || true).unwrap_err();
        assert!(matches!(error, RendezvousError::Usage { .. }), "{error:?}");
        error.to_string()
    };
    assert_eq!(refuse(NodeSpec { local_rank: 1, ..alone() }), "local rank 1 is not below the local size 1");
    assert_eq!(
        refuse(NodeSpec { rank: 6, ..alone() }),
        "local rank 0 is rank 6 but the list of the node's ranks says 5"
    );
}

#[test]
fn a_name_can_be_used_again_and_again() {
    let (_outer, directory) = directory();
    let mut ranks = start_all(&directory, 3, |script| script.rounds = 100);
    for rank in &mut ranks {
        rank.expect("joined");
    }
    assert!(left_in(&directory).is_empty());
}

#[test]
fn jobs_and_loaders_meet_at_the_same_time_without_mixing() {
    let (_outer, directory) = directory();
    let mut groups: Vec<Vec<Rank>> = Vec::new();
    for job in ["one", "two"] {
        for name in ["train", "test"] {
            groups.push(start_all(&directory, 2, |script| {
                script.job = job.into();
                script.name = name.into();
            }));
        }
    }
    for ranks in &mut groups {
        all_join(ranks);
    }
    assert!(left_in(&directory).is_empty());
}

#[test]
fn a_rejection_reaches_every_rank_with_the_leaders_message() {
    let (_outer, directory) = directory();
    let message = format!("rank 3 has seed 1, rank 0 has seed 2 {}", "x".repeat(100_000));
    for rank in &mut start_all(&directory, 3, |script| script.lead = Lead::Reject(message.clone())) {
        let failure = rank.expect_failure();
        assert_eq!(failure.kind, "Rejected");
        assert!(failure.message == message);
    }
    assert!(left_in(&directory).is_empty());
}

/// Starts ranks whose rendezvous fails, and returns the failure of each.
fn all_fail(directory: &Path, scripts: &[Script]) -> Vec<rendezvous_support::Failure> {
    let mut ranks: Vec<Rank> = scripts.iter().map(|script| Rank::start(directory, script)).collect();
    let failures = ranks.iter_mut().map(Rank::expect_failure).collect();
    assert!(left_in(directory).is_empty(), "{:?}", left_in(directory));
    failures
}

#[test]
fn ranks_that_count_the_node_differently_fail() {
    let (_outer, directory) = directory();
    for failure in all_fail(&directory, &[Script::new(0, 2), Script::new(1, 3)]) {
        assert_eq!(failure.kind, "Mismatch");
        assert!(
            failure.message.contains("says the node has 2 ranks, rank 103 (local rank 1"),
            "{}",
            failure.message
        );
        assert!(failure.message.contains("says 3"), "{}", failure.message);
        assert!(failure.hint.unwrap().contains("World(job=)"));
    }
}

#[test]
fn ranks_that_list_the_node_differently_fail() {
    let (_outer, directory) = directory();
    let other = Script { local_ranks: vec![100, 7], rank: 7, ..Script::new(1, 2) };
    for failure in all_fail(&directory, &[Script::new(0, 2), other]) {
        assert!(failure.message.contains("has the ranks [100, 103], rank 7"), "{}", failure.message);
    }
}

#[test]
fn two_processes_cannot_be_the_same_rank() {
    let (_outer, directory) = directory();
    let scripts = [Script::new(0, 3), Script::new(1, 3), Script::new(1, 3)];
    for failure in all_fail(&directory, &scripts) {
        assert_eq!(failure.kind, "Mismatch");
        assert!(failure.message.contains("two processes say they are local rank 1"), "{}", failure.message);
    }
}

#[test]
fn a_second_leader_of_the_same_name_fails_and_the_first_goes_on() {
    let (_outer, directory) = directory();
    let mut first = Rank::start(&directory, &Script::new(0, 2));
    until("the socket", || left_in(&directory).len() == 2);
    let mut second = Rank::start(&directory, &Script::new(0, 2));
    let failure = second.expect_failure();
    assert_eq!(failure.kind, "Taken");
    assert!(failure.message.contains("job \"job\", node \"node\", loader \"train\""), "{}", failure.message);
    assert!(failure.hint.unwrap().contains("name="));
    let mut follower = Rank::start(&directory, &Script::new(1, 2));
    follower.expect("joined");
    first.expect("joined");
    assert!(left_in(&directory).is_empty());
}

#[test]
fn a_follower_without_a_leader_names_the_rank_it_waited_for() {
    let (_outer, directory) = directory();
    let script = Script { deadline_ms: 1000, ..Script::new(1, 2) };
    let failure = all_fail(&directory, &[script]).pop().unwrap();
    assert_eq!(
        failure.message,
        "local rank 1 waited 1 s for local rank 0 of job \"job\", node \"node\", loader \"train\": was every rank of \
         the node started?"
    );
    assert!(failure.hint.is_some());
}

#[test]
fn a_leader_names_all_missing_ranks_to_those_that_came() {
    // On a busy machine the follower may not come in time either, and then waits for no leader.
    for seconds in [1, 4, 16, 64] {
        let (_outer, directory) = directory();
        let mut follower = Rank::start(&directory, &Script::new(2, 4));
        follower.expect("started");
        let mut leader =
            Rank::start(&directory, &Script { deadline_ms: 1000 * seconds, ..Script::new(0, 4) });
        let failure = leader.expect_failure();
        assert_eq!(failure.kind, "Missing");
        if failure.message.starts_with("ranks 103, 106, 109 ") && seconds < 64 {
            continue;
        }
        for failure in [failure, follower.expect_failure()] {
            let expected =
                format!("ranks 103, 109 (local ranks 1, 3) of this node did not come within {seconds} s");
            assert!(failure.message.starts_with(&expected), "{}", failure.message);
            assert!(failure.hint.unwrap().contains("collective"));
        }
        assert!(left_in(&directory).is_empty(), "{:?}", left_in(&directory));
        return;
    }
}

#[test]
fn a_runtime_directory_open_to_others_is_rejected() {
    let (_outer, directory) = directory();
    std::fs::create_dir(&directory).unwrap();
    std::fs::set_permissions(&directory, std::fs::Permissions::from_mode(0o755)).unwrap();
    for rank in &mut start_all(&directory, 2, |_| ()) {
        let failure = rank.expect_failure();
        assert_eq!(failure.kind, "Directory");
        assert!(failure.message.ends_with("expected mode 0700, found 0755"), "{}", failure.message);
        assert!(failure.hint.unwrap().contains("chmod 700"));
    }
}

#[test]
fn an_interrupted_leader_lets_the_others_go() {
    let (outer, directory) = directory();
    let interrupt = outer.path().join("interrupt");
    let mut leader =
        Rank::start(&directory, &Script { interrupt: Some(interrupt.clone()), ..Script::new(0, 3) });
    let mut follower = Rank::start(&directory, &Script::new(1, 3));
    until("the follower's hello", || pidfds_of(&leader) == 2);
    std::fs::write(interrupt, "").unwrap();
    assert_eq!(leader.expect_failure().kind, "Interrupted");
    assert!(left_in(&directory).is_empty());
    let failure = follower.expect_failure();
    assert_eq!((failure.kind.as_str(), failure.about), ("PeerLeft", Some(0)), "{}", failure.message);
}

#[test]
fn an_interrupted_follower_lets_the_others_go() {
    let (outer, directory) = directory();
    let interrupt = outer.path().join("interrupt");
    let mut ranks = [
        Rank::start(&directory, &Script::new(0, 4)),
        Rank::start(&directory, &Script::new(1, 4)),
        Rank::start(&directory, &Script { interrupt: Some(interrupt.clone()), ..Script::new(2, 4) }),
    ];
    until("two hellos", || pidfds_of(&ranks[0]) == 3);
    std::fs::write(interrupt, "").unwrap();
    assert_eq!(ranks[2].expect_failure().kind, "Interrupted");
    for rank in &mut ranks[..2] {
        let failure = rank.expect_failure();
        assert_eq!((failure.kind.as_str(), failure.about), ("PeerLeft", Some(2)), "{}", failure.message);
    }
    assert!(left_in(&directory).is_empty());
}

#[test]
fn a_follower_can_be_interrupted_while_it_searches_its_leader() {
    let (outer, directory) = directory();
    let interrupt = outer.path().join("interrupt");
    let mut follower =
        Rank::start(&directory, &Script { interrupt: Some(interrupt.clone()), ..Script::new(1, 2) });
    follower.expect("started");
    std::fs::write(interrupt, "").unwrap();
    assert_eq!(follower.expect_failure().kind, "Interrupted");
    assert!(left_in(&directory).is_empty());
}

#[test]
fn followers_can_be_interrupted_while_the_leader_works() {
    let (outer, directory) = directory();
    let interrupt = outer.path().join("interrupt");
    let mut ranks = start_all(&directory, 3, |script| {
        script.lead = Lead::Wait;
        script.interrupt = (script.local_rank == 1).then(|| interrupt.clone());
    });
    ranks[0].expect("leading");
    std::fs::write(interrupt, "").unwrap();
    assert_eq!(ranks[1].expect_failure().kind, "Interrupted");
    ranks[0].send_line("done");
    for number in [0, 2] {
        let failure = ranks[number].expect_failure();
        assert_eq!((failure.kind.as_str(), failure.about), ("PeerLeft", Some(1)), "{}", failure.message);
    }
}

#[test]
fn a_leader_that_panics_at_its_work_lets_the_others_go() {
    let (_outer, directory) = directory();
    let mut ranks = start_all(&directory, 3, |script| script.lead = Lead::Panic);
    for rank in &mut ranks[1..] {
        let failure = rank.expect_failure();
        assert!(failure.kind == "PeerLeft" || failure.kind == "PeerLost", "{}", failure.kind);
        assert_eq!(failure.about, Some(0));
    }
    assert!(left_in(&directory).is_empty());
}
