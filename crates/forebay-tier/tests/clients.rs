//! What clients and the daemon say to each other.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use forebay_host::{PacketSocket, Received, SocketPath};
use forebay_plan::options::TierSpec;
use forebay_tier::daemon::Server;
use forebay_tier::{ChunkEntry, Copied, DaemonAddress, PieceSum, SlotId, Source, SourceKey, TierClient};
use forebay_types::{ChunkId, Pieces};

/// A daemon in a thread, until it is dropped.
struct Daemon {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    address: DaemonAddress,
}

impl Daemon {
    fn start(directory: &Path) -> Self {
        let socket = SocketPath::new(directory, &["tiers"]).unwrap();
        let server = Server::start(&socket, Duration::from_secs(60)).unwrap().unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::Builder::new().spawn(move || server.run(&stopped)).unwrap();
        let address = DaemonAddress { socket: socket.socket().to_owned(), command: vec!["false".into()] };
        Self { stop, thread: Some(thread), address }
    }

    fn client(&self, tier: &Path, chunks: u64, keep: bool) -> Arc<TierClient> {
        let spec = TierSpec { path: tier.to_owned(), bytes: chunks << 20, keep, force: false };
        let source = Source { key: SourceKey([7; 16]), path: "/data/a".into(), chunks, bytes: chunks << 20 };
        TierClient::attach(vec![spec], vec![source], self.address.clone()).unwrap()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // It looks at `stop` when something happens, too.
        drop(forebay_tier::TierConnection::existing(&self.address.socket));
        self.thread.take().unwrap().join().unwrap();
    }
}

#[test]
fn slots_of_clients_that_died_are_given_to_the_same_chunks_again() {
    const CHUNKS: u64 = 16;
    let directory = tempfile::tempdir().unwrap();
    let tier = directory.path().join("tier");
    std::fs::create_dir(&tier).unwrap();
    // The tier has room for the data and no more; other chunks come first each time.
    let place = |daemon: &Daemon, first: u64| {
        let client = daemon.client(&tier, CHUNKS, false);
        let wanted: Vec<_> = (0..CHUNKS).map(|number| (ChunkId((first + number) % CHUNKS), 0)).collect();
        let mut slots = client.place(&wanted).unwrap();
        slots.rotate_right(first as usize);
        slots
    };
    let daemon = Daemon::start(directory.path());
    let slots = place(&daemon, 0);
    assert!(slots.iter().all(Option::is_some));
    assert_eq!(place(&daemon, 5), slots);
    drop(daemon);
    let daemon = Daemon::start(directory.path());
    assert_eq!(place(&daemon, 11), slots);
}

#[test]
fn copies_in_memory_stay_if_the_client_that_came_last_keeps_them() {
    let tier = tempfile::tempdir_in("/dev/shm").unwrap();
    let directory = tempfile::tempdir().unwrap();
    for keeps in [vec![false, true], vec![true, false]] {
        let daemon = Daemon::start(directory.path());
        for keep in &keeps {
            let client = daemon.client(tier.path(), 8, *keep);
            assert!(client.place(&[(ChunkId(0), 0)]).unwrap()[0].is_some());
        }
        drop(daemon);
        let slabs =
            |entry: std::fs::DirEntry| std::fs::read_dir(entry.path().join("v1/slabs")).unwrap().count();
        let left: usize = std::fs::read_dir(tier.path()).unwrap().map(|entry| slabs(entry.unwrap())).sum();
        assert_eq!(left, usize::from(keeps == [false, true]));
    }
}

#[test]
fn clients_that_order_tiers_differently_use_the_same_slots() {
    let directory = tempfile::tempdir().unwrap();
    let tier = |name: &str| {
        let path = directory.path().join(name);
        std::fs::create_dir_all(&path).unwrap();
        TierSpec { path, bytes: 8 << 20, keep: false, force: false }
    };
    let socket = SocketPath::new(directory.path(), &["tiers"]).unwrap();
    let server = Server::start(&socket, Duration::from_secs(60)).unwrap().unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = Arc::clone(&stop);
    let daemon = std::thread::Builder::new().spawn(move || server.run(&stopped)).unwrap();
    let source = || Source { key: SourceKey([7; 16]), path: "/data/a".into(), chunks: 4, bytes: 4 << 20 };
    let client = |tiers| {
        let address = DaemonAddress { socket: socket.socket().to_owned(), command: vec!["false".into()] };
        TierClient::attach(tiers, vec![source()], address).unwrap()
    };
    let clients = [client(vec![tier("a"), tier("b")]), client(vec![tier("b"), tier("a")])];
    for (number, client) in clients.iter().enumerate() {
        let chunk = ChunkId(number as u64);
        let at = client.place(&[(chunk, 0)]).unwrap()[0].unwrap();
        assert_eq!(at.level, 0);
        client.attached().storages[0].write(at.slab, u64::from(at.slot) << 20, &[number as u8; 10]).unwrap();
        let sums = vec![PieceSum { piece: 0, start: 0, bytes: 10, crc: 5 }];
        client.publish(&[Copied { chunk, at, sums }]).unwrap();
        // The other client has this tier at its second place, and finds the bytes there.
        let other = &clients[1 - number];
        assert_eq!(other.place(&[(chunk, 0)]).unwrap(), [Some(SlotId { level: 1, ..at })]);
        let attached = other.attached();
        let ChunkEntry::Present { at, pieces } = attached.table.get(chunk) else {
            panic!("it was published")
        };
        assert_eq!((attached.place_of(at.level), pieces), (Some(1), Pieces(1)));
        let mut found = [0; 10];
        attached.storages[1].read(at.slab, u64::from(at.slot) << 20, &mut found).unwrap();
        assert_eq!(found, [number as u8; 10]);
    }
    // A client that does not have the tier gets a slot of its own.
    let one = client(vec![tier("b")]);
    assert_eq!(one.attached().table.get(ChunkId(0)), ChunkEntry::Absent);
    assert_eq!(one.place(&[(ChunkId(0), 0)]).unwrap()[0].map(|at| at.level), Some(0));
    drop((clients, one));
    stop.store(true, Ordering::Relaxed);
    daemon.join().unwrap();
}

#[test]
fn a_client_sees_the_copies_of_all_its_sources_on_the_nearest_tier() {
    let directory = tempfile::tempdir().unwrap();
    let socket = SocketPath::new(directory.path(), &["tiers"]).unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let tier = |name: &str| {
        let path = directory.path().join(name);
        std::fs::create_dir_all(&path).unwrap();
        TierSpec { path, bytes: 8 << 20, keep: false, force: false }
    };
    let daemon = || {
        let server = Server::start(&socket, Duration::from_secs(60)).unwrap().unwrap();
        let stopped = Arc::clone(&stop);
        std::thread::Builder::new().spawn(move || server.run(&stopped)).unwrap()
    };
    let source =
        |key| Source { key: SourceKey([key; 16]), path: format!("/{key}"), chunks: 2, bytes: 2 << 20 };
    let client = |tiers: &[&str], sources: &[u8]| {
        let address = DaemonAddress { socket: socket.socket().to_owned(), command: vec!["false".into()] };
        let tiers = tiers.iter().map(|name| tier(name)).collect();
        TierClient::attach(tiers, sources.iter().map(|key| source(*key)).collect(), address).unwrap()
    };
    let copy = |client: &TierClient, chunk| {
        let at = client.place(&[(ChunkId(chunk), 0)]).unwrap()[0].unwrap();
        let sums = vec![PieceSum { piece: 0, start: 0, bytes: 10, crc: 5 }];
        client.publish(&[Copied { chunk: ChunkId(chunk), at, sums }]).unwrap();
    };
    let seen = |tiers: &[&str], sources: &[u8]| {
        let attached = client(tiers, sources).attached();
        let place = |chunk| match attached.table.get(ChunkId(chunk)) {
            ChunkEntry::Present { at, .. } | ChunkEntry::Unverified { at, .. } => attached.place_of(at.level),
            ChunkEntry::Absent => None,
        };
        let places: Vec<_> = (0..attached.table.chunks()).map(place).collect();
        assert_eq!(attached.copied_chunks as usize, places.iter().flatten().count());
        places
    };
    let running = daemon();
    let (a, b) = (client(&["a"], &[1, 2]), client(&["b"], &[1, 2]));
    copy(&a, 0);
    copy(&b, 0);
    copy(&b, 3);
    drop((a, b));
    // While it runs, and when it has read its log.
    let check = || {
        assert_eq!(seen(&["a", "b"], &[1, 2]), [Some(0), None, None, Some(1)]);
        assert_eq!(seen(&["b", "a"], &[1, 2]), [Some(0), None, None, Some(0)]);
        // A source may be in a dataset twice.
        assert_eq!(seen(&["a"], &[2, 1, 1]), [None, None, Some(0), None, Some(0), None]);
    };
    check();
    stop.store(true, Ordering::Relaxed);
    running.join().unwrap();
    stop.store(false, Ordering::Relaxed);
    let running = daemon();
    check();
    stop.store(true, Ordering::Relaxed);
    running.join().unwrap();
}

#[test]
fn copies_on_disk_are_compared_again_once_nobody_uses_their_source() {
    let directory = tempfile::tempdir().unwrap();
    let tier = directory.path().join("tier");
    std::fs::create_dir(&tier).unwrap();
    let daemon = Daemon::start(directory.path());
    let chunk = ChunkId(1);
    let entry = |client: &TierClient| client.attached().table.get(chunk);
    let first = daemon.client(&tier, 8, false);
    let at = first.place(&[(chunk, 0)]).unwrap()[0].unwrap();
    let sums = vec![PieceSum { piece: 0, start: 0, bytes: 10, crc: 5 }];
    first.publish(&[Copied { chunk, at, sums }]).unwrap();
    let pieces = Pieces(1);
    // A client beside the one that has written it trusts it.
    let second = daemon.client(&tier, 8, false);
    assert_eq!(entry(&second), ChunkEntry::Present { at, pieces });
    drop((first, second));
    let later = daemon.client(&tier, 8, false);
    assert_eq!(entry(&later), ChunkEntry::Unverified { at, pieces });
    later.verified(&[(chunk, pieces)]).unwrap();
    assert_eq!(entry(&later), ChunkEntry::Present { at, pieces });
    // Also those that an earlier daemon has published.
    drop(later);
    drop(daemon);
    let daemon = Daemon::start(directory.path());
    let last = daemon.client(&tier, 8, false);
    assert_eq!(entry(&last), ChunkEntry::Unverified { at, pieces });
    // One that is wrong is forgotten, and its slot stays that of its chunk.
    last.source_differs(0).unwrap();
    assert_eq!((entry(&last), last.place(&[(chunk, 0)]).unwrap()), (ChunkEntry::Absent, vec![Some(at)]));
}

#[test]
fn a_client_that_meets_a_daemon_that_ends_goes_to_the_next_one() {
    let directory = tempfile::tempdir().unwrap();
    let spec = TierSpec { path: directory.path().join("tier"), bytes: 8 << 20, keep: false, force: false };
    std::fs::create_dir(&spec.path).unwrap();
    let socket = SocketPath::new(directory.path(), &["tiers"]).unwrap();
    let address = DaemonAddress { socket: socket.socket().to_owned(), command: vec!["true".into()] };
    let ending = socket.try_lock().unwrap().unwrap();
    let listener = ending.listen(4).unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = Arc::clone(&stop);
    let daemons = std::thread::Builder::new()
        .spawn(move || {
            while listener.accept().unwrap().is_none() {
                std::thread::sleep(Duration::from_millis(1));
            }
            drop((listener, ending));
            Server::start(&socket, Duration::from_secs(60)).unwrap().unwrap().run(&stopped);
        })
        .unwrap();
    let source = Source { key: SourceKey([7; 16]), path: "/data/a".into(), chunks: 4, bytes: 4 << 20 };
    let client = TierClient::attach(vec![spec], vec![source], address).unwrap();
    assert_eq!(client.attached().table.chunks(), 4);
    drop(client);
    stop.store(true, Ordering::Relaxed);
    daemons.join().unwrap();
}

#[test]
fn half_of_a_request_is_refused_and_neither_it_nor_idle_clients_disturb_others() {
    let directory = tempfile::tempdir().unwrap();
    let tier = directory.path().join("tier");
    std::fs::create_dir(&tier).unwrap();
    let daemon = Daemon::start(directory.path());
    let client = daemon.client(&tier, 4, false);
    let connect = || PacketSocket::connect(&daemon.address.socket).unwrap();
    let idle: Vec<_> = (0..40).map(|_| connect()).collect();
    let half = connect().unwrap();
    half.try_send(br#"{"request": "stop"#, b"", &[]).unwrap();
    let answer = loop {
        match half.try_receive().unwrap() {
            Received::Packet(packet) => break String::from_utf8(packet.bytes).unwrap(),
            Received::Closed => panic!("cut off"),
            Received::Nothing => std::thread::sleep(Duration::from_millis(1)),
        }
    };
    assert!(answer.contains("refused"), "{answer}");
    drop((half, idle));
    assert!(client.place(&[(ChunkId(0), 0)]).unwrap()[0].is_some());
}

#[test]
fn a_client_joins_the_dataset_of_another_and_outlives_its_daemon() {
    let directory = tempfile::tempdir().unwrap();
    let tier = directory.path().join("tier");
    std::fs::create_dir(&tier).unwrap();
    let daemon = Daemon::start(directory.path());
    let leader = daemon.client(&tier, 4, true);
    let at = leader.place(&[(ChunkId(2), 0)]).unwrap()[0].unwrap();
    // The number alone says which dataset it is; the rest is for another daemon.
    let join = |daemon: &Daemon, tier: &Path| {
        let spec = TierSpec { path: tier.to_owned(), bytes: 4 << 20, keep: true, force: false };
        let source = Source { key: SourceKey([7; 16]), path: "/data/a".into(), chunks: 4, bytes: 4 << 20 };
        TierClient::join(leader.dataset(), vec![spec], vec![source], daemon.address.clone())
    };
    let follower = join(&daemon, Path::new("/not/looked/at")).unwrap();
    assert_eq!(follower.dataset(), leader.dataset());
    assert_eq!(follower.attached().levels, leader.attached().levels);
    let pieces = Pieces(0b1);
    follower
        .publish(&[Copied {
            chunk: ChunkId(2),
            at,
            sums: vec![PieceSum { piece: 0, start: 0, bytes: 10, crc: 5 }],
        }])
        .unwrap();
    assert_eq!(leader.attached().table.get(ChunkId(2)), ChunkEntry::Present { at, pieces });
    // It stays while one of them uses it, and the next daemon does not know it.
    drop(daemon);
    let daemon = Daemon::start(directory.path());
    let later = join(&daemon, &tier).unwrap();
    assert_ne!(later.dataset(), leader.dataset());
    assert_eq!(later.attached().table.get(ChunkId(2)), ChunkEntry::Unverified { at, pieces });
}
