//! Leaders as threads of one process, linked over loopback; a raw leader has no I/O thread.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock, Weak};

use super::auth::{ANSWER_BYTES, Hello};
use super::frames::Decoder;
use super::*;

const DEADLINE: Duration = Duration::from_secs(240);

/// Listeners and specifications of `nodes` leaders.
fn specs(nodes: usize) -> Vec<(Listener, LinksSpec)> {
    let listeners: Vec<Listener> = (0..nodes).map(|_| Listener::new(None).unwrap()).collect();
    let facts = |node: usize| NodeFacts {
        name: format!("n{node}"),
        ranks: vec![2 * node as u32, 2 * node as u32 + 1],
        pids: vec![1000 + 2 * node as i32, 1001 + 2 * node as i32],
    };
    let nodes = Nodes((0..nodes).map(facts).collect());
    let endpoints: Vec<Endpoint> = listeners.iter().map(|listener| listener.endpoint().clone()).collect();
    let secret = Secret::new([7; SECRET_BYTES]);
    let spec = |own_node| LinksSpec {
        own_node,
        nodes: nodes.clone(),
        endpoints: endpoints.clone(),
        secret: secret.clone(),
    };
    listeners.into_iter().enumerate().map(|(node, listener)| (listener, spec(node))).collect()
}

#[allow(clippy::needless_pass_by_value)] // the listening socket closes with the call
fn connect(listener: Listener, spec: &LinksSpec) -> Result<Links, LinkError> {
    Links::connect(&listener, spec, "job", "train", DEADLINE, &mut || true)
}

/// `nodes` leaders, all linked.
fn linked(nodes: usize) -> Vec<Links> {
    let threads: Vec<_> = specs(nodes)
        .into_iter()
        .map(|(listener, spec)| std::thread::spawn(move || connect(listener, &spec).unwrap()))
        .collect();
    threads.into_iter().map(|thread| thread.join().unwrap()).collect()
}

/// A leader, and the socket of another one (node 1) that sends only what the test writes.
fn with_raw_peer() -> (Links, TcpStream) {
    let mut specs = specs(2);
    let (listener, spec) = specs.remove(1);
    let (own_listener, own_spec) = specs.remove(0);
    let raw = std::thread::spawn(move || {
        let mesh = Mesh::new(1, spec.nodes.clone()).unwrap();
        connect::connect_all(&mesh, &listener, &spec, ("job", "train"), DEADLINE, &mut || true).unwrap();
        let (_, socket) = mesh.lock().adopted.pop().unwrap();
        socket.set_nonblocking(false).unwrap();
        socket
    });
    (connect(own_listener, &own_spec).unwrap(), raw.join().unwrap())
}

fn receive(links: &Links, channel: Channel, from: Option<usize>) -> Result<(usize, Vec<u8>), LinkError> {
    let begun = Instant::now();
    let found = links.receive(channel, from, &|| begun.elapsed() > DEADLINE)?;
    Ok(found.expect("a message within the deadline"))
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < DEADLINE, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn loss_of(error: &LinkError) -> PeerFailure {
    match error {
        LinkError::Lost { loss } => *loss,
        other => panic!("{other}"),
    }
}

#[test]
fn messages_arrive_in_order_by_channel_from_each_node() {
    let all = linked(3);
    for number in 0..1000_u32 {
        all[0].send(2, Channel::Token, &number.to_le_bytes()[..]).unwrap();
        all[1].send(2, Channel::Token, &(number + 5000).to_le_bytes()[..]).unwrap();
        all[1].send(2, Channel::Cursor, &[9; 47][..]).unwrap();
    }
    let mut next = [0, 5000];
    for _ in 0..2000 {
        let (from, bytes) = receive(&all[2], Channel::Token, None).unwrap();
        assert_eq!(u32::from_le_bytes(bytes.try_into().unwrap()), next[from]);
        next[from] += 1;
    }
    for _ in 0..1000 {
        assert_eq!(receive(&all[2], Channel::Cursor, Some(1)).unwrap(), (1, vec![9; 47]));
    }
    assert_eq!((all[0].messages(), all[1].messages(), all[2].messages()), (1000, 2000, 0));
    assert_eq!(all[2].received(), 3000);
    assert_eq!(all[0].message_bytes(), (4000, 0));
}

#[test]
fn a_large_message_goes_to_all_and_small_ones_overtake_it() {
    let all = linked(3);
    let blob: Vec<u8> = (0..20_000_000_u32).map(|number| (number % 251) as u8).collect();
    all[0].send_all(Channel::Index, &blob[..]).unwrap();
    all[0].send(1, Channel::Token, &b"now"[..]).unwrap();
    assert_eq!(receive(&all[1], Channel::Token, Some(0)).unwrap().1, b"now");
    for links in &all[1..] {
        assert!(receive(links, Channel::Index, Some(0)).unwrap().1 == blob);
    }
    assert_eq!(all[0].message_bytes().0, 40_000_003);
    assert!(matches!(
        all[0].send(1, Channel::Index, vec![0; MAX_MESSAGE_BYTES + 1]),
        Err(LinkError::TooLarge { bytes, max_bytes: MAX_MESSAGE_BYTES }) if bytes == MAX_MESSAGE_BYTES + 1
    ));
    assert!(matches!(all[0].send(0, Channel::Index, &b""[..]), Err(LinkError::Usage { .. })));
    assert!(matches!(all[0].send(3, Channel::Index, &b""[..]), Err(LinkError::Usage { .. })));
}

#[test]
fn an_empty_message_arrives_and_a_wait_can_be_stopped() {
    let all = linked(2);
    all[1].send(0, Channel::Settings, &b""[..]).unwrap();
    assert_eq!(receive(&all[0], Channel::Settings, Some(1)).unwrap(), (1, Vec::new()));
    assert_eq!(all[0].receive(Channel::Settings, None, &|| true).unwrap(), None);
}

#[test]
fn a_shutdown_comes_after_all_messages_and_is_no_loss() {
    let mut all = linked(3);
    let leaver = all.remove(1);
    let blob = vec![5; 3_000_000];
    leaver.send(0, Channel::Index, &blob[..]).unwrap();
    leaver.close();
    leaver.close();
    assert!(matches!(leaver.send(0, Channel::Token, &b""[..]), Err(LinkError::Closed)));
    assert_eq!(receive(&all[0], Channel::Index, Some(1)).unwrap().1, blob);
    let error = receive(&all[0], Channel::Index, Some(1)).unwrap_err();
    assert!(
        matches!(&error, LinkError::Gone { who } if who.contains("rank 2 (the leader of node n1")),
        "{error}"
    );
    until("both received the shutdown", || all[0].is_gone(1) && all[1].is_gone(1));
    assert!(matches!(all[0].send(1, Channel::Token, &b""[..]), Err(LinkError::Gone { .. })));
    // The others go on.
    all[0].send(1 + 1, Channel::Token, &b"on"[..]).unwrap();
    assert_eq!(receive(&all[1], Channel::Token, None).unwrap(), (0, b"on".to_vec()));
    assert!(all[0].failure().is_none());
}

#[test]
fn an_end_without_a_shutdown_is_a_death_for_all_waiting_threads() {
    let (links, raw) = with_raw_peer();
    let waiting = std::thread::scope(|scope| {
        let waits = scope.spawn(|| receive(&links, Channel::Cursor, None));
        std::thread::sleep(Duration::from_millis(50));
        drop(raw);
        waits.join().unwrap()
    });
    let loss = loss_of(&waiting.unwrap_err());
    assert_eq!(loss, PeerFailure { cause: Cause::Died, rank: 2, pid: 1002 });
    assert_eq!(loss_of(&links.send(1, Channel::Token, &b""[..]).unwrap_err()), loss);
}

#[test]
fn the_first_loss_reaches_all_nodes_and_all_name_it() {
    let all = linked(3);
    let loss = PeerFailure { cause: Cause::Died, rank: 3, pid: 1003 };
    all[1].report_loss(loss);
    // The reporter ends because of it, which is no other loss.
    all[1].report_loss(PeerFailure { cause: Cause::Died, rank: 2, pid: 1002 });
    for links in &all {
        assert_eq!(loss_of(&receive(links, Channel::Token, None).unwrap_err()), loss);
    }
}

#[derive(Default)]
struct RecordingSink {
    dead: AtomicBool,
    losses: Mutex<Vec<PeerFailure>>,
    conflicts: Mutex<Vec<Conflict>>,
}

fn with_sinks(all: &[Links]) -> Vec<Arc<RecordingSink>> {
    let sinks: Vec<_> = all.iter().map(|_| Arc::new(RecordingSink::default())).collect();
    for (links, sink) in all.iter().zip(&sinks) {
        links.attach(&(Arc::clone(sink) as Arc<dyn FailureSink>));
    }
    sinks
}

const DEAD: PeerFailure = PeerFailure { cause: Cause::Died, rank: 1, pid: 1001 };

impl FailureSink for RecordingSink {
    fn lost(&self) -> Option<PeerFailure> {
        self.dead.load(Ordering::Relaxed).then_some(DEAD)
    }

    fn record(&self, loss: PeerFailure) {
        self.losses.lock().unwrap().push(loss);
    }

    fn conflict(&self, conflict: Conflict) {
        self.conflicts.lock().unwrap().push(conflict);
    }

    fn count(&self, _sent: u64, _received: u64) {}
}

#[test]
fn a_death_on_one_node_is_recorded_on_all() {
    let all = linked(3);
    let sinks = with_sinks(&all);
    sinks[0].dead.store(true, Ordering::Relaxed);
    until("all recorded it once", || sinks.iter().all(|sink| *sink.losses.lock().unwrap() == [DEAD]));
}

#[test]
fn nodes_that_begin_at_different_steps_learn_of_each_other() {
    let all = linked(3);
    let sinks = with_sinks(&all);
    for links in &all {
        links.started(0);
    }
    all[0].started(50);
    all[2].started(50);
    all[1].started(60);
    let theirs = |node: usize| {
        let conflicts = sinks[node].conflicts.lock().unwrap();
        conflicts.iter().map(|conflict| (conflict.node, conflict.own, conflict.theirs)).collect::<Vec<_>>()
    };
    until("all know of it", || {
        theirs(0) == [(1, 50, 60)]
            && theirs(2) == [(1, 50, 60)]
            && theirs(1).iter().all(|one| one.1 == 60)
            && !theirs(1).is_empty()
    });
}

/// Sends to the lost node as soon as the loss is recorded.
#[derive(Default)]
struct Sends {
    links: OnceLock<Weak<Links>>,
    found: Mutex<Option<Result<(), LinkError>>>,
}

impl FailureSink for Sends {
    fn lost(&self) -> Option<PeerFailure> {
        None
    }

    fn record(&self, _loss: PeerFailure) {
        let links = self.links.get().and_then(Weak::upgrade).expect("the links are there");
        *self.found.lock().unwrap() = Some(links.send(1, Channel::Token, &b""[..]));
    }

    fn conflict(&self, _conflict: Conflict) {}

    fn count(&self, _sent: u64, _received: u64) {}
}

#[test]
fn a_rank_that_knows_of_a_loss_sends_nothing_to_the_lost_node() {
    let (links, raw) = with_raw_peer();
    let links = Arc::new(links);
    let sink = Arc::new(Sends::default());
    sink.links.set(Arc::downgrade(&links)).expect("set once");
    links.attach(&(Arc::clone(&sink) as Arc<dyn FailureSink>));
    drop(raw);
    until("the loss is recorded", || sink.found.lock().unwrap().is_some());
    let found = sink.found.lock().unwrap().take().unwrap();
    assert_eq!(loss_of(&found.unwrap_err()), PeerFailure { cause: Cause::Died, rank: 2, pid: 1002 });
}

#[test]
fn all_have_made_the_loader_or_none() {
    let all = linked(3);
    std::thread::scope(|scope| {
        for links in &all {
            scope.spawn(|| links.agree_made(&mut |_| true).unwrap());
        }
    });
    let all = linked(3);
    std::thread::scope(|scope| {
        let waiting: Vec<_> =
            all[..2].iter().map(|links| scope.spawn(|| links.agree_made(&mut |_| true))).collect();
        all[2].abandon("no such file", false);
        for wait in waiting {
            let error = wait.join().unwrap().unwrap_err();
            assert_eq!(error.to_string(), "rank 4 (the leader of node n2, process 1004): no such file");
        }
    });
    assert!(all[0].agree_made(&mut |_| false).unwrap_err().to_string().contains("no such file"));
}

#[test]
fn a_peer_that_reads_nothing_causes_a_warning_and_is_not_dead() {
    let (links, mut raw) = with_raw_peer();
    // More than any kernel keeps: without acknowledgements the window would be closed, and the link
    // taken for dead.
    let blob = vec![3; 30_000_000];
    links.send(1, Channel::Index, &blob[..]).unwrap();
    until("a warning", || !links.mesh.lock().warnings.is_empty());
    std::thread::sleep(Duration::from_millis(500));
    let warnings = links.take_warnings();
    assert_eq!(warnings.len(), 1);
    assert!(warnings[0].contains("rank 2 (the leader of node n1, process 1002)"), "{}", warnings[0]);
    assert!(links.failure().is_none());
    // It goes on.
    let (mut decoder, mut buffer, mut found) = (Decoder::default(), vec![0; 1 << 16], 0);
    while found < blob.len() {
        let bytes = raw.read(&mut buffer).unwrap();
        decoder.feed(&buffer[..bytes]);
        while let Some(frame) = decoder.next().unwrap() {
            if let Frame::Piece { body, .. } = frame {
                found += body.len();
                let mut answer = Vec::new();
                Frame::Acknowledge(body.len() as u32).put(&mut answer);
                raw.write_all(&answer).unwrap();
            }
        }
    }
    assert!(links.failure().is_none());
    drop(raw);
    until("the death", || links.failure().is_some());
}

#[test]
fn malformed_frames_end_the_link_with_a_loss() {
    let mut cases: Vec<Vec<u8>> = vec![vec![0; 8], vec![0xff; 64]];
    for frame in [Frame::Acknowledge(1), Frame::Lost(PeerFailure { cause: Cause::Died, rank: 99, pid: 1 })] {
        let mut bytes = Vec::new();
        frame.put(&mut bytes);
        cases.push(bytes);
    }
    let mut after_shutdown = Vec::new();
    Frame::Shutdown.put(&mut after_shutdown);
    Frame::Heartbeat.put(&mut after_shutdown);
    cases.push(after_shutdown);
    for bytes in cases {
        let (links, mut raw) = with_raw_peer();
        raw.write_all(&bytes).unwrap();
        let error = receive(&links, Channel::Index, None).unwrap_err();
        if !matches!(error, LinkError::Gone { .. }) {
            assert_eq!(loss_of(&error).cause, Cause::Broken, "{bytes:?}");
        }
        until("the loss", || matches!(links.failure(), Some(LinkError::Lost { .. })));
    }
}

#[test]
fn a_message_that_is_cut_off_is_never_handed_out() {
    let (links, mut raw) = with_raw_peer();
    let mut bytes = Vec::new();
    frames::put_piece(&mut bytes, Channel::Index, false, b"half");
    raw.write_all(&bytes).unwrap();
    raw.shutdown(Shutdown::Write).unwrap();
    assert_eq!(loss_of(&receive(&links, Channel::Index, Some(1)).unwrap_err()).cause, Cause::Died);
}

// --- unauthenticated peers ---

/// Two leaders that are linked while another peer connects to the first.
fn linked_despite(peer: impl FnOnce(SocketAddr) + Send) {
    let mut specs = specs(2);
    let (second, first) = (specs.remove(1), specs.remove(0));
    let address = second.1.endpoints[0].reached_from(second.0.endpoint())[0];
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| connect(first.0, &first.1).unwrap());
        peer(address);
        let links = connect(second.0, &second.1).unwrap();
        links.send(0, Channel::Token, &b"hello"[..]).unwrap();
        assert_eq!(receive(&waits.join().unwrap(), Channel::Token, Some(1)).unwrap().1, b"hello");
    });
}

/// What the other side sends before it closes, or within a second.
fn answer(mut socket: TcpStream) -> Vec<u8> {
    socket.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
    let mut bytes = vec![0; 1000];
    let count = socket.read(&mut bytes).unwrap_or(0);
    bytes.truncate(count);
    bytes
}

#[test]
fn unauthenticated_peers_are_dropped_without_a_reply() {
    linked_despite(|address| {
        for bytes in
            [&b"GET / HTTP/1.1\r\nHost: node\r\n\r\n     padding to the length of a hello"[..], &[0; 500][..]]
        {
            let mut socket = TcpStream::connect(address).unwrap();
            socket.write_all(bytes).unwrap();
            assert_eq!(answer(socket), b"");
        }
        // Cut off, and gone.
        TcpStream::connect(address).unwrap().write_all(b"FOREBAY\n").unwrap();
    });
}

#[test]
fn many_slow_peers_do_not_block_the_handshake() {
    let mut kept = Vec::new();
    linked_despite(|address| {
        for _ in 0..300 {
            let mut socket = TcpStream::connect(address).unwrap();
            socket.write_all(b"FORE").unwrap();
            kept.push(socket);
        }
    });
}

#[test]
fn a_wrong_secret_gets_no_link() {
    linked_despite(|address| {
        let mut socket = TcpStream::connect(address).unwrap();
        let sent = Hello { from: 1, to: 0, nonce: [1; 32] }.encode();
        socket.write_all(&sent).unwrap();
        let mut bytes = [0; ANSWER_BYTES];
        socket.read_exact(&mut bytes).unwrap();
        socket.write_all(&[2; 32]).unwrap();
        assert_eq!(answer(socket), b"", "no welcome");
    });
    let mut specs = specs(2);
    let (second, first) = (specs.remove(1), specs.remove(0));
    let short = Duration::from_secs(1);
    let other = LinksSpec { secret: Secret::new([8; SECRET_BYTES]), ..second.1 };
    std::thread::scope(|scope| {
        let one = scope
            .spawn(|| Links::connect(&first.0, &first.1, "job", "train", short, &mut || true).err().unwrap());
        let two = Links::connect(&second.0, &other, "job", "train", short, &mut || true).err().unwrap();
        for (error, who) in [(one.join().unwrap(), "node n1"), (two, "node n0")] {
            let text = error.to_string();
            assert!(text.contains(who), "{text}");
        }
    });
}

// --- during the connect phase ---

#[test]
fn a_leader_that_is_gone_before_it_connects_is_named_by_all_others() {
    for gone in [0, 1, 2] {
        let specs = specs(3);
        std::thread::scope(|scope| {
            let mut waits = Vec::new();
            for (node, (listener, spec)) in specs.into_iter().enumerate() {
                if node == gone {
                    drop(listener);
                } else {
                    waits.push(scope.spawn(move || connect(listener, &spec).err().unwrap()));
                }
            }
            for wait in waits {
                let text = wait.join().unwrap().to_string();
                assert!(text.contains(&format!("rank {} (the leader of node n{gone}", 2 * gone)), "{text}");
            }
        });
    }
}

#[test]
fn a_leader_that_does_not_come_is_named_and_a_caller_may_give_up() {
    let mut specs = specs(2);
    let (first, _second) = (specs.remove(0), specs.remove(0));
    let short = Duration::from_millis(300);
    let error = Links::connect(&first.0, &first.1, "job", "train", short, &mut || true).err().unwrap();
    assert!(matches!(&error, LinkError::Missing { who, .. } if who.contains("node n1")), "{error}");
    let listener = Listener::new(None).unwrap();
    let error = Links::connect(&listener, &first.1, "job", "train", DEADLINE, &mut || false).err().unwrap();
    assert!(matches!(error, LinkError::Interrupted), "{error}");
}

#[test]
fn more_nodes_than_can_be_linked_are_rejected() {
    let (listener, spec) = specs(1).remove(0);
    let many = LinksSpec {
        nodes: Nodes(vec![spec.nodes.0[0].clone(); MAX_NODES + 1]),
        endpoints: vec![spec.endpoints[0].clone(); MAX_NODES + 1],
        ..spec
    };
    assert!(matches!(connect(listener, &many), Err(LinkError::Usage { .. })));
}
