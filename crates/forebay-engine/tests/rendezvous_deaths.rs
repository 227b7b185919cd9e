//! Ranks of a node die by SIGKILL at every stage: all waiting ranks name the dead one, and nothing
//! stays behind.
#![cfg(not(loom))]

mod rendezvous_support;

use std::path::Path;
use std::process::Command;

use forebay_engine::rendezvous::Peer;
use rendezvous_support::{
    Lead, Rank, Script, directory, kill_orphan, left_in, pidfds_of, socket_in, sockets_of, start_all, until,
};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, connect, send, socket};

#[test]
fn child_process() {
    rendezvous_support::child_process();
}

fn expect_lost(rank: &mut Rank, local_rank: u32, pid: i32) {
    let failure = rank.expect_failure();
    assert_eq!((failure.kind.as_str(), failure.about), ("PeerLost", Some(local_rank)), "{}", failure.message);
    let start = format!("rank {} (local rank {local_rank}, process {pid}) died", 100 + 3 * local_rank);
    assert!(failure.message.starts_with(&start), "{}", failure.message);
}

/// Waits until nothing is left in the directory: the rank that saw the death may report it before
/// it removes the socket.
fn until_empty(directory: &Path) {
    until("an empty directory", || left_in(directory).is_empty());
}

#[test]
fn a_leader_killed_at_its_work_is_named_by_all_followers() {
    let (_outer, directory) = directory();
    let mut ranks = start_all(&directory, 4, |script| script.lead = Lead::Wait);
    ranks[0].expect("leading");
    assert!(left_in(&directory).is_empty(), "the socket is gone before the work begins");
    let pid = ranks[0].pid();
    ranks[0].kill();
    for rank in &mut ranks[1..] {
        expect_lost(rank, 0, pid);
    }
}

#[test]
fn a_leader_killed_while_it_gathers_is_named_and_its_socket_removed() {
    let (_outer, directory) = directory();
    let mut ranks: Vec<Rank> =
        [0, 1, 2].map(|local_rank| Rank::start(&directory, &Script::new(local_rank, 4))).into();
    until("both hellos", || pidfds_of(&ranks[0]) == 3);
    let pid = ranks[0].pid();
    ranks[0].kill();
    for rank in &mut ranks[1..] {
        expect_lost(rank, 0, pid);
    }
    until_empty(&directory);
}

#[test]
fn a_follower_killed_after_its_hello_is_named_by_all() {
    let (_outer, directory) = directory();
    let mut ranks: Vec<Rank> =
        [0, 1, 2].map(|local_rank| Rank::start(&directory, &Script::new(local_rank, 4))).into();
    until("both hellos", || pidfds_of(&ranks[0]) == 3);
    let pid = ranks[2].pid();
    ranks[2].kill();
    for rank in &mut ranks[..2] {
        expect_lost(rank, 2, pid);
    }
    until_empty(&directory);
}

#[test]
fn connections_that_close_without_a_hello_are_ignored() {
    let (_outer, directory) = directory();
    let mut leader = Rank::start(&directory, &Script::new(0, 2));
    until("the socket", || socket_in(&directory).is_some());
    let address = SocketAddrUnix::new(socket_in(&directory).unwrap()).unwrap();
    for _ in 0..5 {
        let client = socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
        // Bound but not listening yet is possible for a moment.
        until("a connection", || connect(&client, &address).is_ok());
    }
    let mut follower = Rank::start(&directory, &Script::new(1, 2));
    leader.expect("joined");
    follower.expect("joined");
}

#[test]
fn foreign_packets_are_reported_as_malformed() {
    let (_outer, directory) = directory();
    let mut leader = Rank::start(&directory, &Script::new(0, 2));
    until("the socket", || socket_in(&directory).is_some());
    let client = socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
    let address = SocketAddrUnix::new(socket_in(&directory).unwrap()).unwrap();
    until("a connection", || connect(&client, &address).is_ok());
    send(&client, b"GET / HTTP/1.1", rustix::net::SendFlags::empty()).unwrap();
    let failure = leader.expect_failure();
    assert!(
        failure.message.contains("malformed message from a process of this node: a packet of 14 bytes"),
        "{}",
        failure.message
    );
    until_empty(&directory);
}

#[test]
fn a_follower_killed_while_the_leader_works_is_named_at_once_by_all_waiting_ranks() {
    let (_outer, directory) = directory();
    let mut ranks = start_all(&directory, 4, |script| script.lead = Lead::Wait);
    ranks[0].expect("leading");
    let pid = ranks[2].pid();
    ranks[2].kill();
    expect_lost(&mut ranks[1], 2, pid);
    expect_lost(&mut ranks[3], 2, pid);
    ranks[0].send_line("done");
    expect_lost(&mut ranks[0], 2, pid);
}

#[test]
fn a_dead_leader_is_noticed_though_its_forked_child_keeps_every_socket_open() {
    let (_outer, directory) = directory();
    let mut ranks = start_all(&directory, 3, |script| script.lead = Lead::ForkAndWait);
    let child = ranks[0].expect("leading");
    let pid = ranks[0].pid();
    ranks[0].kill();
    expect_lost(&mut ranks[1], 0, pid);
    expect_lost(&mut ranks[2], 0, pid);
    kill_orphan(&child);
}

#[test]
fn a_socket_that_a_forked_child_of_a_dead_leader_keeps_open_is_stale() {
    let (outer, directory) = directory();
    let fork = outer.path().join("fork");
    std::fs::write(&fork, "").unwrap();
    let mut dead = Rank::start(&directory, &Script { fork: Some(fork), ..Script::new(0, 2) });
    let child = dead.expect("forked");
    until("the socket", || socket_in(&directory).is_some());
    dead.kill();
    // This one connects to a socket at which no leader will answer.
    let mut follower = Rank::start(&directory, &Script::new(1, 2));
    follower.expect("started");
    until("its socket", || sockets_of(&follower) == 1);
    let mut leader = Rank::start(&directory, &Script::new(0, 2));
    leader.expect("joined");
    follower.expect("joined");
    assert!(left_in(&directory).is_empty());
    kill_orphan(&child);
}

#[test]
fn the_socket_of_a_leader_that_died_alone_is_replaced() {
    let (_outer, directory) = directory();
    let mut dead = Rank::start(&directory, &Script::new(0, 2));
    until("the socket", || left_in(&directory).len() == 2);
    dead.kill();
    assert_eq!(left_in(&directory).len(), 2, "no leader was left to remove it");
    for rank in &mut start_all(&directory, 2, |_| ()) {
        rank.expect("joined");
    }
    assert!(left_in(&directory).is_empty());
}

#[test]
fn a_leader_of_another_name_sweeps_up_what_the_dead_left() {
    let (_outer, directory) = directory();
    let mut dead = Rank::start(&directory, &Script { job: "old".into(), ..Script::new(0, 2) });
    until("the socket", || left_in(&directory).len() == 2);
    dead.kill();
    for rank in &mut start_all(&directory, 2, |_| ()) {
        rank.expect("joined");
    }
    assert!(left_in(&directory).is_empty());
}

#[test]
fn a_follower_that_gives_up_removes_what_a_dead_leader_left() {
    let (_outer, directory) = directory();
    let mut dead = Rank::start(&directory, &Script::new(0, 2));
    until("the socket", || left_in(&directory).len() == 2);
    dead.kill();
    let mut follower = Rank::start(&directory, &Script { deadline_ms: 300, ..Script::new(1, 2) });
    assert_eq!(follower.expect_failure().kind, "NoLeader");
    assert!(left_in(&directory).is_empty());
}

/// Whether any process has memory of this name mapped or open.
fn is_held(name: &str) -> bool {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let processes = processes.filter(|entry| entry.file_name().to_string_lossy().parse::<u32>().is_ok());
    processes.map(|entry| entry.path()).any(|process| {
        let maps = std::fs::read_to_string(process.join("maps")).unwrap_or_default();
        let fds = std::fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
        let mut links = fds.filter_map(|fd| std::fs::read_link(fd.path()).ok());
        maps.contains(name) || links.any(|link| link.to_string_lossy().contains(name))
    })
}

#[test]
fn after_a_death_the_living_name_it_and_after_all_deaths_nothing_is_left() {
    let (_outer, directory) = directory();
    let job = format!("unique-{}", std::process::id());
    let mut ranks = start_all(&directory, 4, |script| script.job.clone_from(&job));
    for rank in &mut ranks {
        rank.expect("joined");
        rank.send_line("dead");
        assert_eq!(rank.expect("dead"), "null");
    }
    assert!(is_held(&job));
    for (killed, alive) in [(2, &[0, 1, 3][..]), (0, &[1, 3]), (1, &[3])] {
        let pid = ranks[killed].pid();
        ranks[killed].kill();
        for number in alive {
            let rank = &mut ranks[*number];
            rank.send_line("await-death");
            let dead: Peer = serde_json::from_str(&rank.expect("dead")).unwrap();
            assert_eq!((dead.local_rank as usize, dead.pid), (killed, pid));
            rank.send_line(&format!("forget {killed}"));
            rank.send_line("dead");
            assert_eq!(rank.expect("dead"), "null", "a rank that was forgotten is no news");
        }
    }
    assert!(is_held(&job), "one is still alive");
    ranks[3].kill();
    assert!(!is_held(&job));
    assert!(left_in(&directory).is_empty());
}

#[test]
fn a_rank_in_another_pid_namespace_is_watched_like_any_other() {
    let (_outer, directory) = directory();
    let possible = Command::new("unshare").args(["--pid", "--fork", "true"]).output();
    if !possible.is_ok_and(|output| output.status.success()) {
        eprintln!("skipped: this user may not make pid namespaces (unshare --pid)");
        return;
    }
    let mut leader = Rank::start(&directory, &Script::new(0, 2));
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", "--kill-child"]).arg(std::env::current_exe().unwrap());
    let mut follower = Rank::start_by(command, &directory, &Script::new(1, 2));
    let peers: Vec<Peer> = serde_json::from_str(&follower.expect("joined")).unwrap();
    leader.expect("joined");
    assert!(peers.iter().all(|peer| peer.pid > 0), "{peers:?}");
    follower.kill();
    leader.send_line("await-death");
    let dead: Peer = serde_json::from_str(&leader.expect("dead")).unwrap();
    assert_eq!(dead, peers[1]);
    // And the other way round: a follower sees the end of a leader that has no number in its
    // namespace.
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", "--kill-child"]).arg(std::env::current_exe().unwrap());
    let mut follower = Rank::start_by(command, &directory, &Script::new(1, 2));
    let mut leader = Rank::start(&directory, &Script::new(0, 2));
    for rank in [&mut leader, &mut follower] {
        rank.expect("joined");
    }
    leader.kill();
    follower.send_line("await-death");
    assert_eq!(serde_json::from_str::<Peer>(&follower.expect("dead")).unwrap().local_rank, 0);
}
