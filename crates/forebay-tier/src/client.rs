//! A process's connection to the tier daemon, for one data set.
//!
//! Readers never wait for the daemon to look a chunk up: they use the table. Writers ask it for
//! slots and to publish. When the daemon is gone, copies that are known can still be read; the next
//! request starts a daemon again, at most once a second.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

use forebay_host::{PacketSocket, Received, Sent, own_pidfd};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::chunk::{ChunkId, Pieces};
use crate::claims::Claims;
use crate::daemon::socket_path;
use crate::entry::{Entry, MAX_LEVELS, SlotId};
use crate::error::TierError;
use crate::log::PieceSum;
use crate::offer::Copied;
use crate::protocol::{
    Answer, AttachedLevel, CopiedMessage, DataSetId, LevelUsage, Request, VERSION, from_memory, to_memory,
};
use crate::slab_files::SlabFiles;
use crate::source::Source;
use crate::spec::TierSpec;
use crate::storage::LevelStorage;
use crate::table::Table;

/// Longest wait for an answer: the daemon may delete many slabs first.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// Longest wait for a daemon that was started: Python on a busy machine.
const START_WITHIN: Duration = Duration::from_secs(30);

/// Interval between attempts to reach a daemon that is starting.
const TRY_EVERY: Duration = Duration::from_millis(5);

/// Shortest time between two attempts to start a daemon again.
const RESTART_EVERY: Duration = Duration::from_secs(1);

/// Attempts to attach: a daemon may end, as nobody used it, when the client has just connected.
const ATTACH_TRIES: u32 = 3;

/// The daemon closed the connection.
const ENDED: &str = "it has ended";

/// Requests with chunks have at most so many, to fit into a packet.
pub(crate) const CHUNKS_AT_ONCE: usize = 16;

/// How the daemon is reached, and started where there is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DaemonAddress {
    /// Its socket.
    pub socket: PathBuf,
    /// The command that starts it; it ends when the daemon listens.
    pub command: Vec<String>,
}

impl DaemonAddress {
    /// This user's daemon on this node.
    ///
    /// # Errors
    /// The runtime directory cannot be used.
    pub fn of_this_node(command: Vec<String>) -> Result<Self, TierError> {
        Ok(Self { socket: socket_path()?.socket().to_owned(), command })
    }
}

/// A connection without a data set.
pub struct Connection {
    socket: PacketSocket,
}

impl Connection {
    /// Connects to a daemon; `None` if there is none.
    ///
    /// # Errors
    /// The system refuses a socket.
    pub fn existing(socket: &Path) -> Result<Option<Self>, TierError> {
        Ok(PacketSocket::connect(socket)?.map(|socket| Self { socket }))
    }

    /// The same; starts a daemon where there is none.
    ///
    /// # Errors
    /// The daemon does not start.
    pub fn start(daemon: &DaemonAddress) -> Result<Self, TierError> {
        let failed = |problem: String| TierError::Daemon { attempt: "start", problem };
        let begun = Instant::now();
        let mut is_started = false;
        loop {
            if let Some(found) = Self::existing(&daemon.socket)? {
                return Ok(found);
            }
            if !is_started {
                is_started = true;
                run_until(&daemon.command, begun + START_WITHIN).map_err(failed)?;
            }
            if begun.elapsed() > START_WITHIN {
                return Err(failed(format!("it does not listen after {} s", START_WITHIN.as_secs())));
            }
            std::thread::sleep(TRY_EVERY);
        }
    }

    /// Sends a request and waits for its answer.
    fn ask(
        &self,
        attempt: &'static str,
        request: &Request,
        fds: &[BorrowedFd<'_>],
    ) -> Result<(Answer, Vec<OwnedFd>), TierError> {
        let failed = |problem: &str| TierError::Daemon { attempt, problem: problem.into() };
        let bytes = serde_json::to_vec(request).expect("requests can be written as JSON");
        if bytes.len() > self.socket.max_packet_bytes() {
            return Err(failed("the request is too long for a packet"));
        }
        match self.socket.try_send(&bytes, b"", fds)? {
            Sent::Yes => {}
            Sent::Full => return Err(failed("it does not take requests")),
            Sent::Closed => return Err(failed(ENDED)),
        }
        let begun = Instant::now();
        let packet = loop {
            match self.socket.try_receive()? {
                Received::Packet(packet) => break packet,
                Received::Closed => return Err(failed(ENDED)),
                Received::Nothing => {}
            }
            let left = ANSWER_WITHIN.saturating_sub(begun.elapsed());
            if left.is_zero() {
                return Err(failed(&format!("no answer within {} s", ANSWER_WITHIN.as_secs())));
            }
            let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
            match poll(&mut [PollFd::new(&self.socket, PollFlags::IN)], Some(&left)) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(failed(&std::io::Error::from(error).to_string())),
            }
        };
        match serde_json::from_slice(&packet.bytes) {
            Ok(Answer::Refused { tier, problem, .. }) if tier.is_empty() => {
                Err(TierError::Daemon { attempt, problem })
            }
            Ok(Answer::Refused { tier, problem, hint }) => Err(TierError::Tier { tier, problem, hint }),
            Ok(answer) => Ok((answer, packet.fds)),
            Err(error) => {
                Err(TierError::Protocol { attempt, expected: "an answer".into(), found: error.to_string() })
            }
        }
    }

    /// What the levels hold, how many clients use a data set, and the daemon's process id.
    ///
    /// # Errors
    /// The daemon is gone.
    pub fn usage(&self) -> Result<(Vec<LevelUsage>, u32, u32), TierError> {
        match self.ask("usage", &Request::Usage, &[])? {
            (Answer::Usage { clients, pid }, fds) if fds.len() == 1 => {
                Ok((from_memory("usage", &fds[0])?, clients, pid))
            }
            (other, _) => Err(unexpected("usage", &other)),
        }
    }

    /// Deletes what nobody uses from the level whose directory has this device and inode; returns
    /// the space that was given back, `None` if it is no level of this daemon \[bytes\].
    ///
    /// The daemon deletes a slab at a time, and answers others between them. `go_on` gets the space
    /// given back until then.
    ///
    /// # Errors
    /// The daemon is gone.
    pub fn clear(
        &self,
        directory: (u64, u64),
        go_on: &mut dyn FnMut(u64) -> bool,
    ) -> Result<Option<u64>, TierError> {
        let mut freed = 0;
        while go_on(freed) {
            match self.ask("clear", &Request::Clear { directory }, &[])?.0 {
                Answer::Cleared { is_level: false, .. } => return Ok(None),
                Answer::Cleared { bytes: None, .. } => break,
                Answer::Cleared { bytes: Some(bytes), .. } => freed += bytes,
                other => return Err(unexpected("clear", &other)),
            }
        }
        Ok(Some(freed))
    }

    /// Ends the daemon, unless clients use a data set; returns how many do.
    ///
    /// # Errors
    /// The daemon is gone.
    pub fn stop(&self) -> Result<u32, TierError> {
        match self.ask("stop", &Request::Stop, &[])?.0 {
            Answer::Stopping { clients } => Ok(clients),
            other => Err(unexpected("stop", &other)),
        }
    }
}

/// Runs a command, which is killed at the deadline; returns what went wrong.
fn run_until(command: &[String], deadline: Instant) -> Result<(), String> {
    let [program, arguments @ ..] = command else {
        return Err("expected a command, found none".into());
    };
    let failed = |error: std::io::Error| format!("{program}: {error}");
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    while child.try_wait().map_err(failed)?.is_none() {
        if Instant::now() > deadline {
            let _ = child.kill();
            let _ = child.wait();
            return Err(format!("{program} does not end within {} s", START_WITHIN.as_secs()));
        }
        std::thread::sleep(TRY_EVERY);
    }
    let ended = child.wait_with_output().map_err(failed)?;
    if ended.status.success() {
        return Ok(());
    }
    Err(format!("{}: {}", ended.status, String::from_utf8_lossy(&ended.stderr).trim()))
}

fn unexpected(attempt: &'static str, answer: &Answer) -> TierError {
    TierError::Protocol { attempt, expected: "its answer".into(), found: format!("{answer:?}") }
}

/// What a client knows since it attached.
pub struct Attached {
    /// Number of the data set.
    id: DataSetId,
    /// Where copies are.
    pub table: Table,
    /// What clients are copying.
    pub claims: Claims,
    /// The tiers, in the client's order.
    pub levels: Vec<AttachedLevel>,
    /// Slabs of each tier, in the same order.
    pub storages: Vec<Arc<dyn LevelStorage>>,
    /// Device and inode of the directory of the slabs of each tier.
    directories: Vec<(u64, u64)>,
    /// Place of a level's number in these lists.
    places: [Option<u8>; MAX_LEVELS],
    /// Chunks that had a copy when the client attached.
    pub copied_chunks: u64,
}

/// What a tier holds of a data set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Chunks that have a slot.
    pub chunks: u64,
    /// Pieces of them that can be read.
    pub pieces: u64,
}

impl Attached {
    /// What each tier holds now.
    #[must_use]
    pub fn held(&self) -> Vec<Held> {
        let mut held = vec![Held::default(); self.levels.len()];
        for chunk in 0..self.table.chunks() {
            if let Entry::Present { at, pieces } | Entry::Unverified { at, pieces } =
                self.table.get(ChunkId(chunk))
                && let Some(place) = self.place_of(at.level)
            {
                held[place].chunks += 1;
                held[place].pieces += u64::from(pieces.count());
            }
        }
        held
    }

    /// Leaves out tiers whose directory was made anew: the process still has files of the old one.
    fn leave_out_others(&mut self, directories: &[(u64, u64)]) {
        for place in &mut self.places {
            *place = place.filter(|place| {
                self.directories.get(usize::from(*place)) == directories.get(usize::from(*place))
            });
        }
    }

    /// Place of a level in the client's order, by its number in the table.
    #[must_use]
    pub fn place_of(&self, number: u8) -> Option<usize> {
        self.places.get(usize::from(number)).copied().flatten().map(usize::from)
    }
}

/// See the module header.
pub struct Client {
    tiers: Vec<TierSpec>,
    sources: Vec<Source>,
    daemon: DaemonAddress,
    /// Device and inode of the directory of each tier when the client attached first.
    directories: Vec<(u64, u64)>,
    connection: Mutex<Link>,
    /// Tiers that failed and that the daemon has not been told of, by their place.
    failed: AtomicU8,
    warnings: Mutex<Vec<String>>,
    attached: RwLock<Arc<Attached>>,
}

struct Link {
    connection: Option<Connection>,
    /// The client no longer wants a daemon.
    is_closed: bool,
    last_try: Instant,
}

impl Client {
    /// Attaches to the daemon, which is started where there is none.
    ///
    /// # Errors
    /// A tier cannot be used, or the daemon does not start.
    pub fn attach(
        tiers: Vec<TierSpec>,
        sources: Vec<Source>,
        daemon: DaemonAddress,
    ) -> Result<Arc<Self>, TierError> {
        let (connection, attached, warnings) = attach(&tiers, &sources, &daemon)?;
        let link = Link { connection: Some(connection), is_closed: false, last_try: Instant::now() };
        Ok(Arc::new(Self {
            tiers,
            sources,
            daemon,
            directories: attached.directories.clone(),
            connection: Mutex::new(link),
            failed: AtomicU8::new(0),
            warnings: Mutex::new(warnings),
            attached: RwLock::new(Arc::new(attached)),
        }))
    }

    /// Takes what the daemon found worth telling the user.
    pub fn take_warnings(&self) -> Vec<String> {
        std::mem::take(&mut self.warnings.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// What is known since the client attached.
    #[must_use]
    pub fn attached(&self) -> Arc<Attached> {
        Arc::clone(&self.attached.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Makes a request about the data set; attaches again where the daemon is gone.
    fn request(
        &self,
        attempt: &'static str,
        request: impl Fn(DataSetId) -> Request,
    ) -> Result<Answer, TierError> {
        let mut link = self.link();
        let answer = self.request_on(&mut link, attempt, request);
        self.report_failed(&mut link);
        answer
    }

    fn request_on(
        &self,
        link: &mut Link,
        attempt: &'static str,
        request: impl Fn(DataSetId) -> Request,
    ) -> Result<Answer, TierError> {
        if link.connection.is_none() {
            if link.is_closed || link.last_try.elapsed() < RESTART_EVERY {
                return Err(TierError::Daemon { attempt, problem: ENDED.into() });
            }
            let again = attach(&self.tiers, &self.sources, &self.daemon);
            link.last_try = Instant::now();
            let (connection, mut attached, _) = again?;
            attached.leave_out_others(&self.directories);
            tracing::info!("attached to a new tier daemon");
            link.connection = Some(connection);
            *self.attached.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(attached);
        }
        let id = self.attached().id;
        let connection = link.connection.as_ref().expect("it was just made");
        let answer = connection.ask(attempt, &request(id), &[]);
        if matches!(answer, Err(TierError::Daemon { .. } | TierError::Protocol { .. } | TierError::Host(_))) {
            // An answer that comes late must not be taken for that of the next request.
            link.connection = None;
            link.last_try = Instant::now();
        }
        answer.map(|(answer, _)| answer)
    }

    /// Leaves the daemon. Copies that are known can still be read.
    pub fn close(&self) {
        let mut link = self.link();
        link.is_closed = true;
        link.connection = None;
    }

    fn link(&self) -> MutexGuard<'_, Link> {
        self.connection.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Slots for chunks, each on the tier at this place of the client's order, as in the answer.
    ///
    /// # Errors
    /// The daemon is gone.
    pub fn place(&self, wanted: &[(ChunkId, u8)]) -> Result<Vec<Option<SlotId>>, TierError> {
        let mut placed = Vec::with_capacity(wanted.len());
        for wanted in wanted.chunks(CHUNKS_AT_ONCE) {
            let answer = self.request("place", |data_set| {
                let levels = &self.attached().levels;
                let number = |place: u8| levels.get(usize::from(place)).map_or(u8::MAX, |level| level.number);
                let wanted = wanted.iter().map(|(chunk, place)| (chunk.0, number(*place))).collect();
                Request::Place { data_set, wanted }
            })?;
            match answer {
                Answer::Placed { slots } if slots.len() == wanted.len() => {
                    let attached = self.attached();
                    // A chunk may have a slot on a tier that is not of this client.
                    placed.extend(slots.into_iter().map(|slot| {
                        let (number, slab, slot) = slot?;
                        Some(SlotId { level: attached.place_of(number)? as u8, slab, slot })
                    }));
                }
                other => return Err(unexpected("place", &other)),
            }
        }
        Ok(placed)
    }

    /// Publishes copies that stand in their slots.
    ///
    /// # Errors
    /// The daemon is gone.
    pub fn publish(&self, copied: &[Copied]) -> Result<(), TierError> {
        for copied in copied.chunks(CHUNKS_AT_ONCE) {
            self.request("publish", |data_set| {
                let attached = self.attached();
                let numbered = copied.iter().filter_map(|copied| {
                    let number = attached.levels.get(usize::from(copied.at.level))?.number;
                    let at = SlotId { level: number, ..copied.at };
                    Some(CopiedMessage::from(&Copied { at, ..copied.clone() }))
                });
                Request::Publish { data_set, copied: numbered.collect() }
            })?;
        }
        Ok(())
    }

    /// Checksums of a chunk that must be compared before it is used.
    ///
    /// # Errors
    /// The daemon is gone.
    pub fn sums(&self, chunk: ChunkId) -> Result<Option<(SlotId, Vec<PieceSum>)>, TierError> {
        match self.request("verify", |data_set| Request::Sums { data_set, chunk: chunk.0 })? {
            Answer::Sums { at, sums } => Ok(at.and_then(|(number, slab, slot)| {
                Some((SlotId { level: self.attached().place_of(number)? as u8, slab, slot }, sums))
            })),
            other => Err(unexpected("verify", &other)),
        }
    }

    /// Tells which pieces of a chunk are right.
    ///
    /// # Errors
    /// The daemon is gone.
    pub fn verified(&self, chunk: ChunkId, good: Pieces) -> Result<(), TierError> {
        let request = |data_set| Request::Verified { data_set, chunk: chunk.0, good: good.0 };
        self.request("verify", request).map(|_| ())
    }

    /// Tells that the tier at this place of the client's order fails.
    pub fn level_failed(&self, place: u8) {
        self.failed.fetch_or(1 << place, Ordering::Relaxed);
        // A read has met the fault: it must not wait for a writer that waits for the daemon. That
        // one then tells the daemon.
        if let Ok(mut link) = self.connection.try_lock() {
            self.report_failed(&mut link);
        }
    }

    /// Tells the daemon which tiers failed since the last call.
    fn report_failed(&self, link: &mut Link) {
        // Not the time to start one.
        if link.connection.is_none() {
            return;
        }
        let failed = self.failed.swap(0, Ordering::Relaxed);
        let attached = self.attached();
        for (_, level) in attached.levels.iter().enumerate().filter(|(place, _)| failed & (1 << place) != 0) {
            let request = |_| Request::LevelFailed { level: level.number };
            let _ = self.request_on(link, "give a tier up", request);
        }
    }
}

/// Connects and attaches; where the daemon ends meanwhile, to the next one.
fn attach(
    tiers: &[TierSpec],
    sources: &[Source],
    daemon: &DaemonAddress,
) -> Result<(Connection, Attached, Vec<String>), TierError> {
    let mut tries = 1;
    loop {
        match attach_once(tiers, sources, daemon) {
            Err(TierError::Daemon { problem, .. }) if problem == ENDED && tries < ATTACH_TRIES => tries += 1,
            other => return other,
        }
    }
}

fn attach_once(
    tiers: &[TierSpec],
    sources: &[Source],
    daemon: &DaemonAddress,
) -> Result<(Connection, Attached, Vec<String>), TierError> {
    let connection = Connection::start(daemon)?;
    let (pidfd, sources) = (own_pidfd()?, to_memory(sources)?);
    let request = Request::Attach { version: VERSION, tiers: tiers.to_vec() };
    let (answer, fds) = connection.ask("attach", &request, &[pidfd.as_fd(), sources.as_fd()])?;
    let Answer::Attached(told) = answer else { return Err(unexpected("attach", &answer)) };
    let mut fds = fds.into_iter();
    let (Some(table), Some(claims)) = (fds.next(), fds.next()) else {
        return Err(TierError::Protocol {
            attempt: "attach",
            expected: "a table and claims".into(),
            found: "fewer descriptors".into(),
        });
    };
    let table = Table::open(table)?;
    let claims = Claims::open(claims, table.chunks())?;
    let mut storages: Vec<Arc<dyn LevelStorage>> = Vec::new();
    let mut directories = Vec::new();
    let mut places = [None; MAX_LEVELS];
    for (place, (level, slabs)) in told.levels.iter().zip(fds).enumerate() {
        let stat = rustix::fs::fstat(&slabs).map_err(TierError::io(&level.name, "inspect the slabs"))?;
        directories.push((stat.st_dev, stat.st_ino));
        let slabs = SlabFiles::new(slabs).map_err(TierError::io(&level.name, "inspect the file system"))?;
        storages.push(Arc::new(slabs));
        if let Some(entry) = places.get_mut(usize::from(level.number)) {
            *entry = Some(place as u8);
        }
    }
    if storages.len() != tiers.len() || table.chunks() != told.chunks {
        return Err(TierError::Protocol {
            attempt: "attach",
            expected: format!("{} levels, {} chunks", tiers.len(), table.chunks()),
            found: format!("{} levels, {} chunks", storages.len(), told.chunks),
        });
    }
    let (id, levels, copied_chunks) = (told.data_set, told.levels, told.copied_chunks);
    let attached = Attached { id, table, claims, levels, storages, directories, places, copied_chunks };
    Ok((connection, attached, told.warnings))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_that_does_not_end_is_killed() {
        let run = |command: &[&str]| {
            let command: Vec<String> = command.iter().map(|word| (*word).to_owned()).collect();
            run_until(&command, Instant::now() + Duration::from_millis(20))
        };
        assert!(run(&["sleep", "1000"]).is_err());
        assert!(run(&["/no/such/program"]).is_err() && run(&[]).is_err());
        let deadline = Instant::now() + START_WITHIN;
        assert_eq!(run_until(&["true".into()], deadline), Ok(()));
        let said = run_until(&["sh".into(), "-c".into(), "echo why >&2; exit 3".into()], deadline);
        assert!(said.unwrap_err().contains("why"));
    }
}
