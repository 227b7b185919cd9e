//! Measures transfers between two processes, side by side with bare ones.
//!
//! ```text
//! transfer serve address=10.77.0.1:7000            in the namespace of one node, until stdin ends
//! transfer compare address=10.77.0.1:7000 …        in that of another one
//! transfer compare …                               over loopback, with a server of its own
//! ```
//!
//! `compare` runs each mode for `seconds`, one after the other, in `rounds` rounds. It writes one
//! JSON line per run, of the batches that end after its first fifth and before its end. Then
//! follows the median over the rounds of each mode's rate in relation to that of `bare` in the same
//! round. The machine may be shared, so compare ratios only.
//!
//! | Mode | What each client does |
//! |---|---|
//! | `bare` | `readv` of what the server sends by `sendmsg`: the same memory, no requests |
//! | `sendfile` | the same, but the server sends each sample by `sendfile` from the sealed memory |
//! | `fetch` | one request per batch, `in_flight` of them |
//! | `unchecked` | the same without checksums |
//! | `get` | one request per sample, one in flight, as `DDStore` does |
//! | `pipelined` | one request per sample, `gets` of them in flight |
//!
//! Options (`name=value`): `clients` (1-16), `sample_bytes`, `batch` (samples), `in_flight`,
//! `gets`, `seconds`, `rounds`, `modes` (comma-separated), `threads` (of the server), `share_mib`.
//! Lists in `clients` and `sample_bytes` (comma-separated) are run in alternation, so that their
//! ratios hold too. The server listens at `address` and, for bare transfers and CPU times, at the
//! next port.
//!
//! Several addresses (comma-separated) are several peers: each client takes an equal part of each
//! batch from each, by a request, or a bare transfer, on a connection of its own. `cpu` is the
//! address whose server's time is reported: on nodes that all serve each other, that of the own
//! node [default: the first]. With `lockstep=yes` the program writes `next` before each run and
//! waits for a line on stdin, so that runs on several nodes start together. With `heavy=100`,
//! client 0 asks for 100 times as many samples per batch as the others, and with several peers or
//! not, each line has the rate of each client.

#![allow(clippy::print_stdout)]

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};
use std::process::{Command, Stdio};
use std::ptr::NonNull;
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use forebay_host::{Draft, Map};
use forebay_transport::{
    DatasetDigest, Destination, Exporter, ExporterOptions, Fetcher, FetcherOptions, Peer, PeerAddress, Piece,
    Secret, StoreId, TcpFetcher,
};
use forebay_types::Rank;

type Failure = Box<dyn std::error::Error + Send + Sync>;

const SECRET: [u8; 32] = [1; 32];
const STORE: (StoreId, DatasetDigest) = (StoreId(0), DatasetDigest([2; 32]));
/// First byte of a connection to the second port.
const ASK_CPU: u8 = 0;
const ASK_BARE: u8 = 1;
const ASK_SENDFILE: u8 = 2;

fn main() -> Result<(), Failure> {
    let mut words = std::env::args().skip(1);
    let command = words.next().unwrap_or_default();
    let options = Options::parse(words)?;
    match command.as_str() {
        "serve" => serve(&options),
        "compare" => compare(&options),
        _ => Err("usage: transfer serve|compare [name=value …]".into()),
    }
}

#[derive(Clone, Debug)]
struct Options {
    address: Vec<SocketAddr>,
    cpu: Option<SocketAddr>,
    lockstep: bool,
    heavy: usize,
    clients: Vec<usize>,
    sample_bytes: Vec<usize>,
    batch: usize,
    batch_bytes: usize,
    in_flight: usize,
    gets: usize,
    seconds: f64,
    rounds: usize,
    modes: Vec<String>,
    threads: usize,
    share_mib: usize,
}

impl Options {
    fn parse(words: impl Iterator<Item = String>) -> Result<Self, Failure> {
        let mut options = Self {
            address: Vec::new(),
            cpu: None,
            lockstep: false,
            heavy: 1,
            clients: vec![1],
            sample_bytes: vec![64 << 10],
            batch: 0,
            batch_bytes: 4 << 20,
            in_flight: 3,
            gets: 16,
            seconds: 0.5,
            rounds: 9,
            modes: ["bare", "fetch", "unchecked", "get", "pipelined"].map(String::from).to_vec(),
            threads: 2,
            share_mib: 512,
        };
        let list = |value: &str| value.split(',').map(str::parse).collect::<Result<Vec<_>, _>>();
        for word in words {
            let (name, value) = word.split_once('=').ok_or_else(|| format!("{word}: expected name=value"))?;
            match name {
                "address" => {
                    options.address = value.split(',').map(str::parse).collect::<Result<_, _>>()?;
                }
                "cpu" => options.cpu = Some(value.parse()?),
                "lockstep" => options.lockstep = value == "yes",
                "heavy" => options.heavy = value.parse()?,
                "clients" => options.clients = list(value)?,
                "sample_bytes" => options.sample_bytes = list(value)?,
                "batch" => options.batch = value.parse()?,
                "batch_bytes" => options.batch_bytes = value.parse()?,
                "in_flight" => options.in_flight = value.parse()?,
                "gets" => options.gets = value.parse()?,
                "seconds" => options.seconds = value.parse()?,
                "rounds" => options.rounds = value.parse()?,
                "modes" => options.modes = value.split(',').map(String::from).collect(),
                "threads" => options.threads = value.parse()?,
                "share_mib" => options.share_mib = value.parse()?,
                _ => return Err(format!("unknown option {name}").into()),
            }
        }
        Ok(options)
    }

    fn share_bytes(&self) -> usize {
        self.share_mib << 20
    }

    /// Samples per batch: `batch`, or what `batch_bytes` holds, at most 1,000 (one system call).
    fn samples(&self, sample_bytes: usize) -> usize {
        if self.batch > 0 { self.batch } else { (self.batch_bytes / sample_bytes).clamp(1, 1000) }
    }

    /// Samples per batch and peer of a client.
    fn samples_of(&self, client: usize, peers: usize, sample_bytes: usize) -> usize {
        let factor = if client == 0 { self.heavy } else { 1 };
        (self.samples(sample_bytes) / peers).max(1) * factor
    }
}

/// The samples of each batch: one from each of `count` equal parts of the share, at random.
struct Batches {
    state: u64,
    count: usize,
    sample_bytes: usize,
    share_bytes: usize,
}

impl Batches {
    fn next(&mut self) -> impl Iterator<Item = usize> {
        let per_part = (self.share_bytes / self.sample_bytes / self.count).max(1);
        (0..self.count).map(move |part| {
            self.state = self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (part * per_part + (self.state >> 33) as usize % per_part) * self.sample_bytes
        })
    }
}

// --- server ---

fn next_port(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip(), address.port() + 1)
}

fn serve(options: &Options) -> Result<(), Failure> {
    let address = *options.address.first().ok_or("serve needs address=")?;
    let draft = Draft::new("transfer", options.share_bytes() as u64)?;
    let mebibyte: Vec<u8> = (0..1_usize << 20).map(|at| ((at * 31) >> 3) as u8).collect();
    for at in 0..options.share_mib {
        draft.write((at << 20) as u64, &mebibyte)?;
    }
    let memory = Arc::new(draft.seal()?);
    let share = Arc::new(Map::read_only(&*memory)?);
    let exporter = Exporter::start(&ExporterOptions {
        node: 0,
        secret: Secret::new(SECRET),
        address,
        threads: options.threads,
        max_connections: 1024,
    })?;
    exporter.export(STORE.0, Arc::clone(&share) as _, STORE.1)?;
    let listener = TcpListener::bind(next_port(address))?;
    std::thread::Builder::new().spawn(move || {
        for socket in listener.incoming().flatten() {
            let (share, memory) = (Arc::clone(&share), Arc::clone(&memory));
            let _ = std::thread::Builder::new().spawn(move || answer(socket, &share, &memory));
        }
    })?;
    println!("ready");
    io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

fn answer(mut socket: TcpStream, share: &Map, memory: &OwnedFd) -> io::Result<()> {
    let mut kind = [0];
    socket.read_exact(&mut kind)?;
    if kind == [ASK_CPU] {
        return socket.write_all(&cpu_seconds().to_le_bytes());
    }
    let mut numbers = [0; 24];
    socket.read_exact(&mut numbers)?;
    let number = |at: usize| u64::from_le_bytes(numbers[at..at + 8].try_into().expect("eight bytes"));
    let (count, sample_bytes) = (number(0) as usize, number(8) as usize);
    let mut batches = Batches { state: number(16), count, sample_bytes, share_bytes: share.len() };
    loop {
        if kind == [ASK_SENDFILE] {
            for offset in batches.next() {
                let (mut at, end) = (offset as libc::off_t, offset + sample_bytes);
                while (at as usize) < end {
                    let left = end - at as usize;
                    // SAFETY: sendfile updates `at`, which lives during the call.
                    match unsafe { libc::sendfile(socket.as_raw_fd(), memory.as_raw_fd(), &raw mut at, left) }
                    {
                        1.. => {}
                        _ => return Err(io::Error::last_os_error()),
                    }
                }
            }
            continue;
        }
        let parts = batches.next().map(|offset| &share.bytes()[offset..][..sample_bytes]);
        let parts = parts.map(|part| iovec(part.as_ptr().cast_mut(), part.len())).collect::<Vec<_>>();
        // SAFETY: sendmsg reads parts of the share, which lives.
        transfer_all(parts, |parts| unsafe {
            let mut message: libc::msghdr = std::mem::zeroed();
            (message.msg_iov, message.msg_iovlen) = (parts.as_mut_ptr(), parts.len() as _);
            libc::sendmsg(socket.as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL)
        })?;
    }
}

fn iovec(start: *mut u8, length: usize) -> libc::iovec {
    libc::iovec { iov_base: start.cast(), iov_len: length }
}

/// Calls `transfer` until it has moved all parts.
fn transfer_all(
    mut parts: Vec<libc::iovec>,
    mut transfer: impl FnMut(&mut [libc::iovec]) -> isize,
) -> io::Result<()> {
    let mut parts = parts.as_mut_slice();
    while !parts.is_empty() {
        let most = parts.len().min(1024);
        let mut moved = match transfer(&mut parts[..most]) {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            moved @ 1.. => moved as usize,
            _ => return Err(io::Error::last_os_error()),
        };
        while let Some(part) = parts.first_mut().filter(|_| moved > 0) {
            let taken = part.iov_len.min(moved);
            moved -= taken;
            part.iov_len -= taken;
            part.iov_base = part.iov_base.wrapping_byte_add(taken);
            if part.iov_len == 0 {
                parts = &mut parts[1..];
            }
        }
    }
    Ok(())
}

// --- clients ---

/// A run of one mode.
#[derive(Clone, Copy)]
struct Run<'a> {
    options: &'a Options,
    addresses: &'a [SocketAddr],
    mode: &'a str,
    clients: usize,
    sample_bytes: usize,
}

/// Share of a run's time before bytes count for its rate: connections find their pace.
const WARM_UP: f64 = 0.2;

/// Payload that a client has received \[B\].
struct Received {
    deadline: Instant,
    warm: Instant,
    /// After the warm-up and before the deadline: batches that end there.
    timely: u64,
    all: u64,
}

impl Received {
    fn start(options: &Options) -> Self {
        let (now, time) = (Instant::now(), Duration::from_secs_f64(options.seconds));
        Self { deadline: now + time, warm: now + time.mul_f64(WARM_UP), timely: 0, all: 0 }
    }

    /// Counts bytes; returns whether the time is over.
    fn add(&mut self, bytes: usize) -> bool {
        let now = Instant::now();
        self.all += bytes as u64;
        if (self.warm..self.deadline).contains(&now) {
            self.timely += bytes as u64;
        }
        now >= self.deadline
    }
}

/// What a client does.
fn client(run: Run<'_>, number: usize, start: &Barrier) -> Result<Received, Failure> {
    let single = matches!(run.mode, "get" | "pipelined");
    let peers = run.addresses.len();
    let count = if single { 1 } else { run.options.samples_of(number, peers, run.sample_bytes) };
    let in_flight = match run.mode {
        "get" | "bare" | "sendfile" => 1,
        "pipelined" => run.options.gets,
        _ => run.options.in_flight,
    };
    // Bare transfers rotate through the same memory as fetches.
    let bare = matches!(run.mode, "bare" | "sendfile");
    let buffers = if bare { run.options.in_flight } else { in_flight };
    // A step takes `bytes` of each peer; single samples are of one peer in turn.
    let bytes = count * run.sample_bytes;
    let parts = if single { 1 } else { peers };
    let mut memory: Vec<Vec<u8>> = (0..buffers).map(|_| vec![1; bytes * parts]).collect();
    let starts: Vec<_> = memory.iter_mut().map(Vec::as_mut_ptr).collect();
    let share_bytes = run.options.share_bytes();
    let mut batches = Batches { state: number as u64, count, sample_bytes: run.sample_bytes, share_bytes };
    if bare {
        let kind = if run.mode == "bare" { ASK_BARE } else { ASK_SENDFILE };
        let connect = |&address| TcpStream::connect(next_port(address));
        let mut sockets = run.addresses.iter().map(connect).collect::<Result<Vec<_>, _>>()?;
        let numbers = [count as u64, run.sample_bytes as u64, number as u64].map(u64::to_le_bytes).concat();
        start.wait();
        for socket in &mut sockets {
            socket.write_all(&[&[kind][..], &numbers].concat())?;
        }
        let mut received = Received::start(run.options);
        for at in 0.. {
            let mut over = false;
            for (peer, socket) in sockets.iter().enumerate() {
                let buffer = starts[at % buffers].wrapping_add(peer * bytes);
                let part = |at: usize| iovec(buffer.wrapping_add(at * run.sample_bytes), run.sample_bytes);
                // SAFETY: readv writes to parts of a buffer of this function.
                transfer_all((0..count).map(part).collect(), |parts| unsafe {
                    libc::readv(socket.as_raw_fd(), parts.as_ptr(), parts.len() as _)
                })?;
                over = received.add(bytes);
            }
            if over {
                break;
            }
        }
        return Ok(received);
    }
    let peer = |&address| PeerAddress { name: "server".into(), node: 0, addresses: vec![address] };
    let servers = run.addresses.iter().map(peer).collect();
    let mut fetch = FetcherOptions::new(Rank(number as u32), Secret::new(SECRET), STORE, servers);
    fetch.max_in_flight = in_flight * parts;
    fetch.checksum = run.mode != "unchecked";
    let fetcher = TcpFetcher::new(fetch)?;
    let far = Instant::now() + Duration::from_secs(600);
    fetcher.ready(far)?;
    start.wait();
    let mut received = Received::start(run.options);
    let mut tickets = VecDeque::new();
    for step in 0_usize.. {
        if tickets.len() == in_flight * parts {
            let mut over = false;
            for ticket in tickets.drain(..parts) {
                fetcher.wait(ticket, far)?;
                over = received.add(bytes);
            }
            if over {
                break;
            }
        }
        for part in 0..parts {
            let buffer = starts[step % buffers].wrapping_add(part * bytes);
            let peer = if single { step % peers } else { part };
            // One sample from anywhere, or a batch.
            let pieces = batches.next().enumerate().map(|(at, offset)| {
                let start = NonNull::new(buffer.wrapping_add(at * run.sample_bytes)).expect("a buffer");
                // SAFETY: the buffer's last request was answered; `memory` outlives the fetcher.
                Piece { offset: offset as u64, into: unsafe { Destination::new(start, run.sample_bytes) } }
            });
            let pieces: Vec<_> = pieces.collect();
            tickets.push_back(fetcher.fetch(Peer(peer), step as u64, &pieces)?);
        }
    }
    for ticket in tickets {
        fetcher.wait(ticket, far)?;
        received.add(bytes);
    }
    drop(fetcher);
    drop(memory);
    Ok(received)
}

/// Runs a mode; returns its rate \[MB/s\].
fn measure(run: Run<'_>) -> Result<f64, Failure> {
    let start = Barrier::new(run.clients + 1);
    let asked = run.options.cpu.unwrap_or(run.addresses[0]);
    if run.options.lockstep {
        println!("next");
        io::stdin().read_line(&mut String::new())?;
    }
    let (each, server, clients) = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..run.clients)
            .map(|number| {
                let start = &start;
                std::thread::Builder::new().spawn_scoped(scope, move || client(run, number, start))
            })
            .collect::<Result<_, _>>()?;
        let server = server_cpu_seconds(asked)?;
        let clients = cpu_seconds();
        start.wait();
        let each = threads
            .into_iter()
            .map(|thread| thread.join().map_err(|_| "a client has panicked")?)
            .collect::<Result<Vec<_>, _>>()?;
        let server = server_cpu_seconds(asked)? - server;
        Ok::<_, Failure>((each, server, cpu_seconds() - clients))
    })?;
    let seconds = run.options.seconds * (1.0 - WARM_UP);
    let rates: Vec<_> = each.iter().map(|one| one.timely as f64 / seconds / 1e6).collect();
    let of_clients: Vec<_> = rates.iter().map(|rate| format!("{rate:.2}")).collect();
    let rate: f64 = rates.iter().sum();
    let gib = each.iter().map(|one| one.all).sum::<u64>() as f64 / (1_u64 << 30) as f64;
    println!(
        "{{\"mode\": \"{}\", \"clients\": {}, \"sample_bytes\": {}, \"batch\": {}, \"mb_per_s\": {rate:.1}, \
         \"server_cpu_s_per_gib\": {:.3}, \"client_cpu_s_per_gib\": {:.3}, \"of_clients\": [{}]}}",
        run.mode,
        run.clients,
        run.sample_bytes,
        run.options.samples(run.sample_bytes),
        server / gib,
        clients / gib,
        of_clients.join(", ")
    );
    Ok(rate)
}

fn cpu_seconds() -> f64 {
    // SAFETY: getrusage fills the structure, of which all zeros is a valid value.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &raw mut usage);
        usage
    };
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    seconds(usage.ru_utime) + seconds(usage.ru_stime)
}

fn server_cpu_seconds(address: SocketAddr) -> io::Result<f64> {
    let mut socket = TcpStream::connect(next_port(address))?;
    socket.write_all(&[ASK_CPU])?;
    let mut bytes = [0; 8];
    socket.read_exact(&mut bytes)?;
    Ok(f64::from_le_bytes(bytes))
}

fn compare(options: &Options) -> Result<(), Failure> {
    let mut own = None;
    let addresses = if options.address.is_empty() {
        let free = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let address = SocketAddr::new(free.ip(), free.port() & !1);
        let mut server = Command::new(std::env::current_exe()?)
            .args(["serve", &format!("address={address}"), &format!("threads={}", options.threads)])
            .arg(format!("share_mib={}", options.share_mib))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut ready = [0; 6];
        server.stdout.take().ok_or("no output")?.read_exact(&mut ready)?;
        own = Some(server);
        vec![address]
    } else {
        options.address.clone()
    };
    let addresses = addresses.as_slice();
    let mut ratios: BTreeMap<(usize, String), Vec<f64>> = BTreeMap::new();
    for _ in 0..options.rounds {
        for &sample_bytes in &options.sample_bytes {
            let mut first = BTreeMap::new();
            for &clients in &options.clients {
                let mut bare = f64::NAN;
                for mode in &options.modes {
                    let rate = measure(Run { options, addresses, mode, clients, sample_bytes })?;
                    let mut add = |what: String, ratio: f64| {
                        ratios.entry((sample_bytes, what)).or_default().push(ratio);
                    };
                    if mode == "bare" {
                        bare = rate;
                    } else {
                        add(format!("{mode} / bare, {clients} clients"), rate / bare);
                    }
                    let one = *first.entry(mode.clone()).or_insert(rate);
                    if clients != options.clients[0] {
                        add(format!("{mode}, {} / {clients} clients", options.clients[0]), one / rate);
                    }
                }
            }
        }
    }
    for ((sample_bytes, what), mut ratios) in ratios {
        ratios.sort_by(f64::total_cmp);
        println!(
            "{{\"sample_bytes\": {sample_bytes}, \"ratio\": \"{what}\", \"median\": {:.3}, \"min\": {:.3}, \"max\": {:.3}}}",
            ratios[ratios.len() / 2],
            ratios[0],
            ratios[ratios.len() - 1]
        );
    }
    if let Some(mut server) = own {
        drop(server.stdin.take());
        server.wait()?;
    }
    Ok(())
}
