//! Transfers over loopback: what arrives, from whom, and what happens when a peer is faulty.
//!
//! `Scene` starts a server; faulty servers and clients are threads that speak the protocol by hand,
//! with [`Handshake`] for its first part.

// A test may panic where there are no threads.
#![allow(clippy::disallowed_methods)]

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use forebay_transport::{
    DatasetDigest, Destination, Exporter, ExporterOptions, Fetcher, FetcherOptions, MAX_COUNT, Peer,
    PeerAddress, Piece, Refusal, Secret, Share, StoreId, TcpFetcher, Ticket, TransportError, VERSION,
};
use forebay_types::Rank;
use proptest::prelude::*;

const SECRET: [u8; 32] = [7; 32];
const STORE: StoreId = StoreId(3);
const DATASET: DatasetDigest = DatasetDigest([5; 32]);
const NODE: u32 = 1;
/// A watchdog against hangs: no test takes this long.
const LONG: Duration = Duration::from_secs(120);

fn soon() -> Instant {
    Instant::now() + LONG
}

fn bytes_of(length: usize, seed: usize) -> Vec<u8> {
    (0..length).map(|at| (at.wrapping_mul(31).wrapping_add(at >> 8).wrapping_add(seed)) as u8).collect()
}

fn exporter(threads: usize, max_connections: usize) -> Exporter {
    Exporter::start(&ExporterOptions {
        node: NODE,
        secret: Secret::new(SECRET),
        address: ([127, 0, 0, 1], 0).into(),
        threads,
        max_connections,
    })
    .unwrap()
}

fn serving(share: Vec<u8>) -> Exporter {
    let exporter = exporter(1, 64);
    exporter.export(STORE, Arc::new(share), DATASET).unwrap();
    exporter
}

fn options(address: SocketAddr) -> FetcherOptions {
    let peer = PeerAddress { name: "node1".into(), node: NODE, addresses: vec![address] };
    let mut options = FetcherOptions::new(Rank(4), Secret::new(SECRET), (STORE, DATASET), vec![peer]);
    options.connect_time = LONG;
    options
}

fn fetcher(exporter: &Exporter) -> TcpFetcher {
    TcpFetcher::new(options(exporter.address())).unwrap()
}

/// Memory for the answer to a request, and its pieces.
struct Buffer {
    bytes: Vec<u8>,
    pieces: Vec<Piece>,
}

impl Buffer {
    fn new(extents: &[(u64, usize)]) -> Self {
        let mut bytes = vec![0; extents.iter().map(|(_, length)| length).sum()];
        let mut rest = bytes.as_mut_slice();
        let mut pieces = Vec::new();
        for &(offset, length) in extents {
            let (part, after) = rest.split_at_mut(length);
            rest = after;
            let start = NonNull::new(part.as_mut_ptr()).unwrap();
            // SAFETY: the tests look at `bytes` only after the request was answered, or not at all,
            // and drop it after the fetcher.
            pieces.push(Piece { offset, into: unsafe { Destination::new(start, length) } });
        }
        Self { bytes, pieces }
    }
}

fn fetch(fetcher: &TcpFetcher, step: u64, extents: &[(u64, usize)]) -> Result<Vec<u8>, TransportError> {
    let buffer = Buffer::new(extents);
    let ticket = fetcher.fetch(Peer(0), step, &buffer.pieces)?;
    fetcher.wait(ticket, soon())?;
    Ok(buffer.bytes)
}

fn expected(share: &[u8], extents: &[(u64, usize)]) -> Vec<u8> {
    extents.iter().flat_map(|&(offset, length)| &share[offset as usize..][..length]).copied().collect()
}

/// The first error of connecting.
fn refusal(options: FetcherOptions) -> TransportError {
    let fetcher = TcpFetcher::new(options).unwrap();
    fetcher.ready(soon()).unwrap_err()
}

fn refused(options: FetcherOptions) -> Refusal {
    match refusal(options) {
        TransportError::Refused { refusal, node, .. } => {
            assert_eq!(node, "node1");
            refusal
        }
        error => panic!("{error}"),
    }
}

// --- what arrives ---

#[test]
fn answers_are_the_bytes_of_the_share_also_large_many_and_empty_ones() {
    let share = bytes_of(20 << 20, 1);
    let exporter = serving(share.clone());
    let fetcher = fetcher(&exporter);
    let many: Vec<_> = (0..MAX_COUNT as u64).map(|at| (at * 1200, (at % 1201) as usize)).collect();
    let cases = [
        vec![(0, 1)],
        vec![(0, 0)],
        vec![(5, 0), (5, 3), (8, 0), (8, 1), (share.len() as u64, 0)],
        vec![(0, share.len())],
        many,
        vec![(0, 0); 5000],
    ];
    for (step, extents) in cases.iter().enumerate() {
        assert_eq!(fetch(&fetcher, step as u64, extents).unwrap(), expected(&share, extents), "case {step}");
    }
    assert_eq!(fetcher.share_bytes(Peer(0), soon()).unwrap(), share.len() as u64);
}

#[test]
fn requests_can_be_queued_before_the_peer_is_connected_and_waited_for_in_any_order() {
    let share = bytes_of(1 << 20, 2);
    let exporter = serving(share.clone());
    let fetcher = fetcher(&exporter);
    let extents: Vec<_> = (0..16).map(|step| vec![(step * 1000, 50_000), (500_000 + step, 77)]).collect();
    let buffers: Vec<_> = extents.iter().map(|extents| Buffer::new(extents)).collect();
    let fetch = |step: usize| fetcher.fetch(Peer(0), step as u64, &buffers[step].pieces);
    let tickets: Vec<_> = (0..16).map(|step| fetch(step).unwrap()).collect();
    assert!(matches!(fetch(0), Err(TransportError::Usage { .. })), "more than max_in_flight");
    for step in [5, 15, 0, 5, 14, 13, 1, 2, 3, 4, 6, 7, 8, 9, 10, 11, 12] {
        fetcher.wait(tickets[step], soon()).unwrap();
        assert_eq!(buffers[step].bytes, expected(&share, &extents[step]));
    }
}

#[test]
fn threads_of_a_rank_share_its_connection() {
    let share = bytes_of(1 << 20, 3);
    let exporter = serving(share.clone());
    let mut options = options(exporter.address());
    options.max_in_flight = 4;
    let fetcher = TcpFetcher::new(options).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let (fetcher, share) = (&fetcher, &share);
            scope.spawn(move || {
                for step in 0..200 {
                    let extents = [(thread * 1000 + step, 3000), (600_000 + step * 1000, 20_000)];
                    assert_eq!(fetch(fetcher, step, &extents).unwrap(), expected(share, &extents));
                }
            });
        }
    });
    assert_eq!(exporter.connections(), 1);
    // The server counts an answer after it was sent.
    let deadline = soon();
    while exporter.sent_bytes() < 4 * 200 * 23_000 && Instant::now() < deadline {
        std::thread::yield_now();
    }
    assert_eq!(exporter.sent_bytes(), 4 * 200 * 23_000);
}

#[test]
fn many_clients_of_two_stores_get_their_own_bytes_from_two_threads() {
    let shares = [bytes_of(300_000, 4), bytes_of(200_000, 5)];
    let exporter = exporter(2, 64);
    for (store, share) in (0..).zip(&shares) {
        exporter.export(StoreId(store), Arc::new(share.clone()), DATASET).unwrap();
    }
    std::thread::scope(|scope| {
        for client in 0..24_usize {
            let (exporter, share) = (&exporter, &shares[client % 2]);
            scope.spawn(move || {
                let mut options = options(exporter.address());
                options.store = StoreId(client as u32 % 2);
                options.checksum = client % 3 > 0;
                let fetcher = TcpFetcher::new(options).unwrap();
                for step in 0..50 {
                    let extents = [(step * 7, client * 100), (50_000 + step * 10, 100_000)];
                    assert_eq!(fetch(&fetcher, step, &extents).unwrap(), expected(share, &extents));
                }
            });
        }
    });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn random_requests_equal_slices_of_the_share(
        requests in prop::collection::vec(prop::collection::vec((0_u64..3000, 0_usize..30_000), 1..60), 1..12),
        checksum: bool,
    ) {
        let share = bytes_of(60 * 33_000, 6);
        let exporter = serving(share.clone());
        let mut options = options(exporter.address());
        options.checksum = checksum;
        let fetcher = TcpFetcher::new(options).unwrap();
        let extents: Vec<Vec<_>> = requests.iter().map(|gaps| {
            let mut end = 0;
            gaps.iter().map(|&(gap, length)| {
                let offset = end + gap;
                end = offset + length as u64;
                (offset, length)
            }).collect()
        }).collect();
        let buffers: Vec<_> = extents.iter().map(|extents| Buffer::new(extents)).collect();
        let tickets: Vec<_> = buffers.iter().enumerate()
            .map(|(step, buffer)| fetcher.fetch(Peer(0), step as u64, &buffer.pieces).unwrap()).collect();
        for ((ticket, buffer), extents) in tickets.into_iter().zip(&buffers).zip(&extents) {
            fetcher.wait(ticket, soon()).unwrap();
            prop_assert_eq!(&buffer.bytes, &expected(&share, extents));
        }
    }
}

// --- who may connect ---

#[test]
fn a_client_with_another_secret_finds_out_and_the_server_does_not_let_it_in() {
    let exporter = serving(vec![1; 100]);
    let mut other = options(exporter.address());
    other.secret = Secret::new([8; 32]);
    assert!(matches!(refusal(other), TransportError::Stranger { .. }));
    // One that goes on all the same.
    let mut stranger = TcpStream::connect(exporter.address()).unwrap();
    stranger.write_all(&hello([9; 32])).unwrap();
    stranger.read_exact(&mut [0; 80]).unwrap();
    stranger.write_all(&[0; 32]).unwrap();
    assert_eq!(read_status(&mut stranger), 2, "Refusal::Secret");
    assert_eq!(exporter.connections(), 0);
}

#[test]
fn another_node_store_or_dataset_is_refused_by_name() {
    let exporter = serving(vec![1; 100]);
    let with = |change: &dyn Fn(&mut FetcherOptions)| {
        let mut options = options(exporter.address());
        change(&mut options);
        refused(options)
    };
    assert_eq!(with(&|options| options.peers[0].node = 0), Refusal::Node);
    assert_eq!(with(&|options| options.store = StoreId(9)), Refusal::Store);
    assert_eq!(with(&|options| options.dataset = DatasetDigest([0; 32])), Refusal::Dataset);
}

#[test]
fn connections_beyond_the_limit_are_refused_and_those_before_go_on() {
    let exporter = exporter(1, 1);
    exporter.export(STORE, Arc::new(vec![1; 100]), DATASET).unwrap();
    let first = fetcher(&exporter);
    first.ready(soon()).unwrap();
    assert_eq!(refused(options(exporter.address())), Refusal::Connections);
    assert_eq!(fetch(&first, 0, &[(0, 10)]).unwrap(), [1; 10]);
}

#[test]
fn a_recorded_handshake_is_refused() {
    let exporter = serving(vec![1; 100]);
    // Stands between client and server, and keeps what the client sends.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let fetcher = TcpFetcher::new(options(listener.local_addr().unwrap())).unwrap();
    let (mut client, _) = listener.accept().unwrap();
    let mut server = TcpStream::connect(exporter.address()).unwrap();
    let (mut hello, mut challenge, mut proof) = ([0; HELLO_BYTES], [0; 80], [0; 32]);
    client.read_exact(&mut hello).unwrap();
    server.write_all(&hello).unwrap();
    server.read_exact(&mut challenge).unwrap();
    client.write_all(&challenge).unwrap();
    client.read_exact(&mut proof).unwrap();
    server.write_all(&proof).unwrap();
    assert_eq!(read_status(&mut server), 0, "the original is let in");
    drop((client, server, fetcher));
    let mut replayed = TcpStream::connect(exporter.address()).unwrap();
    replayed.write_all(&hello).unwrap();
    replayed.read_exact(&mut [0; 80]).unwrap();
    replayed.write_all(&proof).unwrap();
    assert_eq!(read_status(&mut replayed), 2, "Refusal::Secret");
    // And a server that replays the challenge is not believed.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let replay = std::thread::spawn(move || {
        let (mut client, _) = listener.accept().unwrap();
        client.read_exact(&mut [0; HELLO_BYTES]).unwrap();
        client.write_all(&challenge).unwrap();
        client.read_to_end(&mut Vec::new()).unwrap();
    });
    assert!(matches!(refusal(options(address)), TransportError::Stranger { .. }));
    replay.join().unwrap();
}

#[test]
fn peers_of_another_version_and_strangers_are_recognized() {
    let exporter = serving(vec![1; 100]);
    let mut newer = hello([9; 32]);
    newer[8] = 2;
    let mut client = TcpStream::connect(exporter.address()).unwrap();
    client.write_all(&newer).unwrap();
    let mut start = [0; 16];
    client.read_exact(&mut start).unwrap();
    assert_eq!((start[8], start[12]), (VERSION as u8, 1), "version, Refusal::Version");
    let mut stranger = TcpStream::connect(exporter.address()).unwrap();
    stranger.write_all(&[b'G'; HELLO_BYTES]).unwrap();
    assert_eq!(stranger.read(&mut [0; 16]).unwrap_or(0), 0, "no answer");

    let answers = |bytes: Vec<u8>| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let server = std::thread::spawn(move || {
            let (mut client, _) = listener.accept().unwrap();
            client.read_exact(&mut [0; HELLO_BYTES]).unwrap();
            client.write_all(&bytes).unwrap();
            let _ = client.read_to_end(&mut Vec::new());
        });
        let error = refusal(options(address));
        server.join().unwrap();
        error
    };
    let mut other = [&b"FBSTORE\n"[..], &[9, 0, 0, 0]].concat();
    other.resize(80, 0);
    assert!(matches!(answers(other), TransportError::Version { found: 9, .. }));
    assert!(matches!(answers(vec![b'S'; 80]), TransportError::Stranger { .. }));
}

#[test]
fn a_peer_that_does_not_answer_is_not_connected_by_the_deadline_and_unreachable_in_the_end() {
    // Accepts connections and does nothing with them.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut options = options(listener.local_addr().unwrap());
    let patient = TcpFetcher::new(options.clone()).unwrap();
    assert!(matches!(patient.ready(Instant::now()), Err(TransportError::NotConnected { .. })));
    options.connect_time = Duration::from_millis(100);
    assert!(matches!(refusal(options), TransportError::Unreachable { .. }));
}

#[test]
fn a_port_where_nobody_listens_is_unreachable_at_once() {
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    assert!(matches!(refusal(options(address)), TransportError::Unreachable { .. }));
}

// --- bad requests ---

#[test]
fn a_client_refuses_bad_requests_before_it_sends_them() {
    let exporter = serving(vec![1; 100]);
    let fetcher = fetcher(&exporter);
    fetcher.ready(soon()).unwrap();
    let too_many: Vec<_> = (0..=MAX_COUNT as u64).map(|_| (0, 0)).collect();
    for extents in [
        vec![],
        vec![(50, 51)],
        vec![(101, 0)],
        vec![(u64::MAX, 1)],
        vec![(0, 10), (9, 1)],
        vec![(20, 1), (10, 1)],
        too_many,
    ] {
        assert!(matches!(fetch(&fetcher, 0, &extents), Err(TransportError::Usage { .. })));
    }
    let buffer = Buffer::new(&[(0, 1)]);
    assert!(matches!(fetcher.fetch(Peer(1), 0, &buffer.pieces), Err(TransportError::Usage { .. })));
    assert_eq!(fetch(&fetcher, 0, &[(99, 1)]).unwrap(), [1], "the connection is as good as before");
}

#[test]
fn a_request_that_is_known_to_be_bad_only_by_the_server_fails_with_its_entry_and_can_be_made_again() {
    let exporter = serving(vec![1; 100]);
    // Nobody has answered yet, so the client does not know the length of the share.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut options = options(listener.local_addr().unwrap());
    options.peers[0].addresses.insert(0, listener.local_addr().unwrap());
    options.peers[0].addresses.push(exporter.address());
    let fetcher = TcpFetcher::new(options).unwrap();
    let buffer = Buffer::new(&[(0, 10), (95, 10)]);
    let ticket = fetcher.fetch(Peer(0), 6, &buffer.pieces).unwrap();
    drop(listener);
    match fetcher.wait(ticket, soon()).unwrap_err() {
        TransportError::BadRequest { step, entry, refusal, node } => {
            assert_eq!((step, entry, refusal, &*node), (6, 1, Refusal::Outside, "node1"));
        }
        error => panic!("{error}"),
    }
    assert!(matches!(fetch(&fetcher, 7, &[(0, 1)]), Err(TransportError::BadRequest { .. })), "poisoned");
    fetcher.reconnect(Peer(0)).unwrap();
    assert_eq!(fetch(&fetcher, 7, &[(0, 1)]).unwrap(), [1]);
    assert!(matches!(fetcher.wait(ticket, soon()), Err(TransportError::Stale { step: 6, .. })));
}

#[test]
fn a_server_refuses_raw_requests_that_break_the_rules() {
    let exporter = serving(vec![1; 100]);
    let header = |count: u32, bytes: u32| {
        [&9_u64.to_le_bytes()[..], &count.to_le_bytes(), &bytes.to_le_bytes()].concat()
    };
    for (request, status, entry) in [
        (header(0, 0), 8, 0),
        (header(u32::MAX, u32::MAX), 8, 0),
        (header(1, u32::MAX), 9, 0),
        ([header(1, 2), vec![101, 0]].concat(), 11, 0),
        ([header(2, 4), vec![0, 10, 9, 1]].concat(), 10, 1),
        ([header(1, 3), vec![0, 1, 7]].concat(), 9, 1),
        ([header(1, 11), vec![0xff; 11]].concat(), 9, 0),
    ] {
        let mut client = raw_client(&exporter);
        client.write_all(&request).unwrap();
        let mut answer = Vec::new();
        client.shutdown(Shutdown::Write).unwrap();
        client.read_to_end(&mut answer).unwrap();
        let expected = [&9_u64.to_le_bytes()[..], &u64::to_le_bytes(entry), &u32::to_le_bytes(status)];
        assert_eq!(answer, expected.concat(), "{request:?}");
    }
    // A request that is cut off, and one that goes on byte by byte.
    let mut client = raw_client(&exporter);
    client.write_all(&header(1, 2)[..9]).unwrap();
    drop(client);
    let mut client = raw_client(&exporter);
    for byte in [header(1, 2), vec![0, 3]].concat() {
        client.write_all(&[byte]).unwrap();
    }
    let mut answer = [0; 20 + 3 + 4];
    client.read_exact(&mut answer).unwrap();
    assert_eq!(answer[20..23], [1, 1, 1]);
}

// --- faulty peers ---

const HELLO_BYTES: usize = 92;

/// A hello of rank 4, as the tests' options make it.
fn hello(nonce: [u8; 32]) -> Vec<u8> {
    let numbers = [VERSION, 0, 4, NODE, STORE.0].map(u32::to_le_bytes).concat();
    [&b"FBSTORE\n"[..], &numbers, &DATASET.0, &nonce].concat()
}

fn digest(side: u8, hello: &[u8], nonce: &[u8]) -> [u8; 32] {
    let key = blake3::derive_key("forebay 2026 transport of samples between nodes", &SECRET);
    *blake3::keyed_hash(&key, &[&[side], hello, nonce].concat()).as_bytes()
}

fn read_status(socket: &mut TcpStream) -> u32 {
    let mut verdict = [0; 12];
    socket.read_exact(&mut verdict).unwrap();
    u32::from_le_bytes(verdict[..4].try_into().unwrap())
}

/// An authenticated client that speaks the protocol by hand.
fn raw_client(exporter: &Exporter) -> TcpStream {
    let mut socket = TcpStream::connect(exporter.address()).unwrap();
    let hello = hello([9; 32]);
    socket.write_all(&hello).unwrap();
    let mut challenge = [0; 80];
    socket.read_exact(&mut challenge).unwrap();
    assert_eq!(challenge[48..], digest(1, &hello, &challenge[16..48]));
    socket.write_all(&digest(0, &hello, &challenge[16..48])).unwrap();
    assert_eq!(read_status(&mut socket), 0);
    socket
}

/// A server that authenticates one client, and then does what `serve` says.
fn raw_server(serve: impl FnOnce(TcpStream) + Send + 'static) -> (SocketAddr, std::thread::JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let thread = std::thread::spawn(move || {
        let (mut socket, _) = listener.accept().unwrap();
        let mut hello = [0; HELLO_BYTES];
        socket.read_exact(&mut hello).unwrap();
        let numbers = [VERSION, 0].map(u32::to_le_bytes).concat();
        let challenge = [&b"FBSTORE\n"[..], &numbers, &[6; 32], &digest(1, &hello, &[6; 32])].concat();
        socket.write_all(&challenge).unwrap();
        let mut proof = [0; 32];
        socket.read_exact(&mut proof).unwrap();
        assert_eq!(proof, digest(0, &hello, &[6; 32]));
        socket.write_all(&[&[0; 4][..], &1000_u64.to_le_bytes()].concat()).unwrap();
        serve(socket);
    });
    (address, thread)
}

/// An answer of 100 bytes to step 5.
fn good_answer() -> Vec<u8> {
    let payload = [3; 100];
    let header = [&5_u64.to_le_bytes()[..], &100_u64.to_le_bytes(), &[0; 4]].concat();
    [&header[..], &payload, &crc32c::crc32c(&payload).to_le_bytes()].concat()
}

/// What a client gets from a server that sends this and closes.
fn answered(bytes: Vec<u8>) -> Result<Vec<u8>, TransportError> {
    let (address, server) = raw_server(move |mut socket| {
        socket.read_exact(&mut [0; 20]).unwrap();
        let _ = socket.write_all(&bytes);
    });
    let found = fetch(&TcpFetcher::new(options(address)).unwrap(), 5, &[(0, 60), (200, 40)]);
    server.join().unwrap();
    found
}

#[test]
fn an_answer_with_any_flipped_bit_of_its_payload_or_checksum_is_corrupt() {
    assert_eq!(answered(good_answer()).unwrap(), [3; 100]);
    for byte in [20, 79, 80, 119, 120, 123] {
        let mut wrong = good_answer();
        wrong[byte] ^= 1;
        let error = answered(wrong).unwrap_err();
        assert!(matches!(error, TransportError::Corrupt { step: 5, .. }), "byte {byte}: {error}");
    }
}

#[test]
fn an_answer_that_arrives_byte_by_byte_is_complete() {
    let (address, server) = raw_server(move |mut socket| {
        socket.set_nodelay(true).unwrap();
        socket.read_exact(&mut [0; 20]).unwrap();
        for byte in good_answer() {
            socket.write_all(&[byte]).unwrap();
        }
        socket.read_to_end(&mut Vec::new()).unwrap();
    });
    let fetcher = TcpFetcher::new(options(address)).unwrap();
    assert_eq!(fetch(&fetcher, 5, &[(0, 60), (200, 40)]).unwrap(), [3; 100]);
    drop(fetcher);
    server.join().unwrap();
}

#[test]
fn signals_interrupt_no_transfer() {
    extern "C" fn ignore(_signal: libc::c_int) {}
    // SAFETY: the handler does nothing, and no other test uses this signal. Without SA_RESTART,
    // system calls end with EINTR.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = ignore as *const () as usize;
        assert_eq!(libc::sigaction(libc::SIGUSR1, &raw const action, std::ptr::null_mut()), 0);
    }
    let share = bytes_of(4 << 20, 9);
    let exporter = serving(share.clone());
    let fetcher = fetcher(&exporter);
    // SAFETY: returns the id of this thread, which outlives the scope below.
    let this = unsafe { libc::pthread_self() };
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(std::sync::atomic::Ordering::Relaxed) {
                // SAFETY: the thread runs until the scope has ended.
                unsafe { libc::pthread_kill(this, libc::SIGUSR1) };
                // Without a pause, the thread may do little else than handle signals, for minutes.
                std::thread::sleep(Duration::from_micros(20));
            }
        });
        let wrong = (0..100).find(|&step| {
            let extents = [(step, 3 << 20)];
            fetch(&fetcher, step, &extents).ok() != Some(expected(&share, &extents))
        });
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        assert_eq!(wrong, None);
    });
}

#[test]
fn an_answer_with_another_header_breaks_the_protocol() {
    for byte in [0, 8, 18] {
        let mut wrong = good_answer();
        wrong[byte] ^= 1;
        let error = answered(wrong).unwrap_err();
        assert!(matches!(error, TransportError::Protocol { step: 5, .. }), "byte {byte}: {error}");
    }
}

#[test]
fn a_server_that_ends_anywhere_in_an_answer_is_lost() {
    for length in [0, 1, 19, 20, 21, 80, 119, 120, 123] {
        let error = answered(good_answer()[..length].to_vec()).unwrap_err();
        match error {
            TransportError::Lost { step: 5, node, .. } => assert_eq!(node, "node1"),
            error => panic!("{length}: {error}"),
        }
    }
}

#[test]
fn a_deadline_that_passes_leaves_the_request_in_flight() {
    let (tell, told) = std::sync::mpsc::channel::<()>();
    let (address, server) = raw_server(move |mut socket| {
        socket.write_all(&good_answer()[..50]).unwrap();
        let _ = told.recv();
        socket.write_all(&good_answer()[50..]).unwrap();
        socket.read_to_end(&mut Vec::new()).unwrap();
    });
    let fetcher = TcpFetcher::new(options(address)).unwrap();
    let buffer = Buffer::new(&[(0, 100)]);
    let ticket = fetcher.fetch(Peer(0), 5, &buffer.pieces).unwrap();
    fetcher.ready(soon()).unwrap();
    for time in [0, 0, 20] {
        let early = fetcher.wait(ticket, Instant::now() + Duration::from_millis(time));
        assert!(matches!(early, Err(TransportError::Deadline { step: 5, .. })));
    }
    tell.send(()).unwrap();
    fetcher.wait(ticket, soon()).unwrap();
    assert_eq!(buffer.bytes, [3; 100]);
    drop(fetcher);
    server.join().unwrap();
}

/// Lets a socket drop all that arrives, before the kernel acknowledges it: as a cable that is cut.
fn cut(socket: &TcpStream) {
    let mut drop_all = libc::sock_filter { code: (libc::BPF_RET | libc::BPF_K) as u16, jt: 0, jf: 0, k: 0 };
    let program = libc::sock_fprog { len: 1, filter: &raw mut drop_all };
    // SAFETY: the program lives during the call, which copies it.
    let set = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_FILTER,
            (&raw const program).cast(),
            size_of_val(&program) as libc::socklen_t,
        )
    };
    assert_eq!(set, 0, "{}", std::io::Error::last_os_error());
}

/// Waits for step 5 in short steps until it fails, or is there.
fn wait_in_short_steps(fetcher: &TcpFetcher, ticket: Ticket) -> Result<(), TransportError> {
    loop {
        match fetcher.wait(ticket, Instant::now() + Duration::from_millis(10)) {
            Err(TransportError::Deadline { .. }) => {}
            outcome => return outcome,
        }
    }
}

/// A request to a server that is cut off fails; then lets the server end.
fn assert_is_cut_off(fetcher: &TcpFetcher, tell: Sender<()>, server: JoinHandle<()>) {
    let buffer = Buffer::new(&[(0, 100)]);
    let ticket = fetcher.fetch(Peer(0), 5, &buffer.pieces).unwrap();
    match wait_in_short_steps(fetcher, ticket).unwrap_err() {
        TransportError::Lost { step: 5, source, .. } => {
            assert_eq!(source.kind(), std::io::ErrorKind::TimedOut);
        }
        error => panic!("{error}"),
    }
    drop(tell);
    server.join().unwrap();
}

#[test]
fn a_host_that_acknowledges_no_request_is_lost_also_for_a_thread_that_waits_in_short_steps() {
    let (tell, told) = std::sync::mpsc::channel::<()>();
    let (ready, is_cut) = std::sync::mpsc::channel::<()>();
    let (address, server) = raw_server(move |socket| {
        cut(&socket);
        ready.send(()).unwrap();
        let _ = told.recv();
    });
    let mut options = options(address);
    options.silence = Duration::from_millis(300);
    let fetcher = TcpFetcher::new(options).unwrap();
    fetcher.ready(soon()).unwrap();
    is_cut.recv().unwrap();
    assert_is_cut_off(&fetcher, tell, server);
}

#[test]
fn a_host_that_is_cut_off_inside_an_answer_is_lost() {
    let (tell, told) = std::sync::mpsc::channel::<()>();
    let (address, server) = raw_server(move |mut socket| {
        // Step, number of entries, and a short entry.
        socket.read_exact(&mut [0; 8 + 4 + 2]).unwrap();
        socket.write_all(&good_answer()[..50]).unwrap();
        // Later, so that acknowledgements of the answer are not what is missing.
        std::thread::sleep(Duration::from_millis(100));
        cut(&socket);
        let _ = told.recv();
    });
    let fetcher = TcpFetcher::new(options(address)).unwrap();
    fetcher.ready(soon()).unwrap();
    assert_is_cut_off(&fetcher, tell, server);
}

#[test]
fn a_server_that_does_not_answer_is_waited_for_while_its_kernel_acknowledges() {
    let (tell, told) = std::sync::mpsc::channel::<()>();
    let (address, server) = raw_server(move |mut socket| {
        let _ = told.recv();
        socket.write_all(&good_answer()).unwrap();
        socket.read_to_end(&mut Vec::new()).unwrap();
    });
    let mut options = options(address);
    // Longer than an acknowledgement is delayed.
    options.silence = Duration::from_millis(200);
    let fetcher = TcpFetcher::new(options).unwrap();
    let buffer = Buffer::new(&[(0, 100)]);
    let ticket = fetcher.fetch(Peer(0), 5, &buffer.pieces).unwrap();
    fetcher.ready(soon()).unwrap();
    let late = fetcher.wait(ticket, Instant::now() + Duration::from_secs(1));
    assert!(matches!(late, Err(TransportError::Deadline { .. })), "{late:?}");
    tell.send(()).unwrap();
    wait_in_short_steps(&fetcher, ticket).unwrap();
    assert_eq!(buffer.bytes, [3; 100]);
    drop(fetcher);
    server.join().unwrap();
}

#[test]
fn a_server_that_goes_away_is_lost_for_all_who_wait() {
    let exporter = serving(bytes_of(1 << 20, 7));
    let fetcher = fetcher(&exporter);
    fetcher.ready(soon()).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..3 {
            let fetcher = &fetcher;
            scope.spawn(move || {
                let error = (0..).find_map(|step| fetch(fetcher, step, &[(thread, 1_000_000)]).err());
                assert!(matches!(error, Some(TransportError::Lost { .. })), "{error:?}");
            });
        }
        drop(exporter);
    });
}

#[test]
fn a_withdrawn_share_ends_its_connections_and_no_others() {
    let exporter = serving(vec![1; 100]);
    exporter.export(StoreId(8), Arc::new(vec![2; 100]), DATASET).unwrap();
    let twice = exporter.export(StoreId(8), Arc::new(vec![2; 100]), DATASET);
    assert!(matches!(twice, Err(TransportError::Usage { .. })));
    let ours = fetcher(&exporter);
    let mut options = options(exporter.address());
    options.store = StoreId(8);
    let other = TcpFetcher::new(options.clone()).unwrap();
    (ours.ready(soon()), other.ready(soon())).0.unwrap();
    assert!(exporter.withdraw(StoreId(8)) && !exporter.withdraw(StoreId(8)));
    let error = (0..).find_map(|step| fetch(&other, step, &[(0, 1)]).err()).unwrap();
    assert!(matches!(error, TransportError::Lost { .. }), "{error}");
    assert_eq!(fetch(&ours, 1, &[(0, 1)]).unwrap(), [1]);
    assert_eq!(refused(options), Refusal::Store);
}

#[test]
fn a_client_that_does_not_read_delays_no_other_and_gets_its_answer_later() {
    let share = bytes_of(64 << 20, 8);
    let exporter = serving(share.clone());
    let slow = fetcher(&exporter);
    let buffer = Buffer::new(&[(0, share.len())]);
    let ticket = slow.fetch(Peer(0), 0, &buffer.pieces).unwrap();
    slow.ready(soon()).unwrap();
    let fast = fetcher(&exporter);
    for step in 0..100 {
        assert_eq!(fetch(&fast, step, &[(step, 1000)]).unwrap(), expected(&share, &[(step, 1000)]));
    }
    slow.wait(ticket, soon()).unwrap();
    assert_eq!(buffer.bytes, share);
}

#[test]
fn a_peer_that_is_connected_again_while_a_thread_waits_gives_its_memory_back() {
    let (address, server) = raw_server(|mut socket| {
        socket.read_to_end(&mut Vec::new()).unwrap();
    });
    let fetcher = TcpFetcher::new(options(address)).unwrap();
    fetcher.ready(soon()).unwrap();
    let buffer = Buffer::new(&[(0, 100)]);
    let ticket = fetcher.fetch(Peer(0), 5, &buffer.pieces).unwrap();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| fetcher.wait(ticket, soon()));
        std::thread::sleep(Duration::from_millis(50));
        fetcher.reconnect(Peer(0)).unwrap();
        let error = waiting.join().unwrap().unwrap_err();
        assert!(matches!(error, TransportError::Stale { step: 5, .. }), "{error}");
    });
    server.join().unwrap();
}

#[test]
fn connections_that_are_made_again_meanwhile_mix_up_no_answers() {
    let share = bytes_of(1 << 20, 11);
    let exporter = serving(share.clone());
    let fetcher = fetcher(&exporter);
    fetcher.ready(soon()).unwrap();
    let done = std::sync::atomic::AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for thread in 0..3_u64 {
            let (fetcher, share, done) = (&fetcher, &share, &done);
            scope.spawn(move || {
                let mut answered = 0;
                let mut step = 0;
                while answered < 100 {
                    let extents = [(thread * 1000 + step % 997, 3000), (500_000 + step % 997 * 100, 20_000)];
                    match fetch(fetcher, step, &extents) {
                        Ok(found) => {
                            assert_eq!(found, expected(share, &extents), "thread {thread}, step {step}");
                            answered += 1;
                        }
                        Err(TransportError::Stale { .. }) => {}
                        Err(error) => panic!("{error}"),
                    }
                    step += 1;
                }
                done.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            });
        }
        while done.load(std::sync::atomic::Ordering::Relaxed) < 3 {
            fetcher.reconnect(Peer(0)).unwrap();
            fetcher.ready(soon()).unwrap();
            std::thread::sleep(Duration::from_millis(1));
        }
    });
    drop(fetcher);
    let deadline = soon();
    while exporter.connections() > 0 && Instant::now() < deadline {
        std::thread::yield_now();
    }
    assert_eq!((exporter.connections(), exporter.clients(STORE)), (0, 0));
}

/// Runs a test in a process of its own, as other tests open descriptors too; `true` in that
/// process.
fn runs_alone(name: &str) -> bool {
    let alone = std::env::var_os("FOREBAY_TEST_ALONE").is_some();
    if !alone {
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        let output = child.args(["--exact", name]).env("FOREBAY_TEST_ALONE", "1").output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains("1 passed"), "{text}");
    }
    alone
}

#[test]
fn a_forked_child_cannot_fetch_and_leaves_the_connections_of_its_parent_alone() {
    if !runs_alone("a_forked_child_cannot_fetch_and_leaves_the_connections_of_its_parent_alone") {
        return;
    }
    let exporter = serving(vec![1; 100]);
    let fetcher = fetcher(&exporter);
    assert_eq!(fetch(&fetcher, 0, &[(0, 1)]).unwrap(), [1]);
    // SAFETY: the child uses memory, atomics and system calls only; no other thread of this process
    // is inside of the allocator, as the server waits for its sockets.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let refused = matches!(fetch(&fetcher, 1, &[(0, 1)]), Err(TransportError::Usage { .. }));
        drop((fetcher, exporter));
        // SAFETY: ends the child without running what belongs to its parent.
        unsafe { libc::_exit((!refused).into()) };
    }
    let mut status = -1;
    // SAFETY: waits for the child that was just made.
    unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!(status, 0);
    assert_eq!(fetch(&fetcher, 1, &[(0, 1)]).unwrap(), [1]);
}

#[test]
fn nothing_is_left_behind() {
    let descriptors = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    if !runs_alone("nothing_is_left_behind") {
        return;
    }
    let before = descriptors();
    let share = Arc::new(vec![1_u8; 1000]);
    for _ in 0..3 {
        let exporter = exporter(2, 8);
        exporter.export(STORE, Arc::clone(&share) as Arc<dyn Share>, DATASET).unwrap();
        let fetchers = [(); 4].map(|()| fetcher(&exporter));
        for fetcher in &fetchers {
            fetch(fetcher, 0, &[(0, 1000)]).unwrap();
            fetcher.reconnect(Peer(0)).unwrap();
            fetch(fetcher, 0, &[(0, 1000)]).unwrap();
        }
        drop(TcpStream::connect(exporter.address()).unwrap());
    }
    assert_eq!(descriptors(), before);
    assert_eq!(Arc::strong_count(&share), 1);
    assert_eq!(std::fs::read_dir("/proc/self/task").unwrap().count(), 2, "the test and its main thread");
}
