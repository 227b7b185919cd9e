//! A process's connection to the tier daemon, for one dataset.
//!
//! Readers never wait for the daemon to look a chunk up: they use the table. Writers ask it for
//! slots and to publish. When the daemon is gone, copies that are known can still be read; the next
//! request of a writer starts a daemon again, at most once a second.
//!
//! A reader asks for the checksums of copies of earlier jobs. It waits for [`BRIEFLY`] once; then
//! it reads the source until the daemon has answered.
//!
//! `connection` sends its requests; `run` is the same for a run, and `clear` deletes copies.

pub(crate) mod clear;
pub(crate) mod connection;
pub(crate) mod run;

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, TryLockError};
use std::time::{Duration, Instant};

use forebay_host::{Packet, own_pidfd};
use forebay_plan::options::TierSpec;
use forebay_types::{ChunkId, Pieces};

use crate::client::connection::{
    ANSWER_WITHIN, CHUNKS_AT_ONCE, DaemonAddress, NEVER, TierConnection, Wait, opened, unexpected,
};
use crate::copy::offer::Copied;
use crate::daemon::protocol::{
    AttachedLevel, CopiedMessage, DatasetId, TierReply, TierRequest, VERSION, to_memory,
};
use crate::error::{ENDED, TierError};
use crate::level::slab_files::SlabFiles;
use crate::level::storage::LevelStorage;
use crate::log::PieceSum;
use crate::source::identity::Source;
use crate::table::Table;
use crate::table::claims::Claims;
use crate::table::entry::{ChunkEntry, MAX_LEVELS, SlotId};

/// Longest wait of a read for an answer.
const BRIEFLY: Duration = Duration::from_secs(1);

/// Interval between two looks whether another thread has done with the connection.
const LOOK_FOR_LINK_EVERY: Duration = Duration::from_millis(1);

/// Shortest time between two attempts to start a daemon again.
const RESTART_EVERY: Duration = Duration::from_secs(1);

/// Attempts to attach: a daemon may end, as nobody used it, when the client has just connected.
const ATTACH_TRIES: u32 = 3;

/// What a client knows since it attached.
pub struct Attached {
    /// Number of the dataset.
    id: DatasetId,
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

/// A chunk whose copy must be compared with its checksums before it is used.
pub(crate) struct UnverifiedChunk {
    pub(crate) chunk: ChunkId,
    /// Its slot; the level is the tier's place in the client's order.
    pub(crate) at: SlotId,
    pub(crate) sums: Vec<PieceSum>,
}

/// What a tier holds of a dataset.
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
            if let ChunkEntry::Present { at, pieces } | ChunkEntry::Unverified { at, pieces } =
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

    /// Number of the tier at this place of the client's order; none if it is left out.
    fn number_of(&self, place: u8) -> Option<u8> {
        let number = self.levels.get(usize::from(place))?.number;
        self.place_of(number).map(|_| number)
    }

    /// Place of a level in the client's order, by its number in the table.
    #[must_use]
    pub fn place_of(&self, number: u8) -> Option<usize> {
        self.places.get(usize::from(number)).copied().flatten().map(usize::from)
    }
}

/// See the module header.
pub struct TierClient {
    tiers: Vec<TierSpec>,
    sources: Vec<Source>,
    daemon: DaemonAddress,
    /// Device and inode of the directory of each tier when the client attached first.
    directories: Vec<(u64, u64)>,
    connection: Mutex<Link>,
    /// The client no longer wants a daemon.
    is_closed: AtomicBool,
    /// A read waited in vain for the daemon.
    is_slow: AtomicBool,
    /// Tiers that failed, by their place.
    failed: AtomicU8,
    warnings: Mutex<Vec<String>>,
    attached: RwLock<Arc<Attached>>,
}

/// The connection of a client, which one thread uses at a time.
struct Link {
    connection: Option<TierConnection>,
    last_try: Instant,
    /// Tiers that a daemon was told of, by their place.
    told: u8,
}

impl Link {
    /// Uses the connection, which ends where that fails.
    fn exchange<T>(
        &mut self,
        using: impl FnOnce(&TierConnection) -> Result<T, TierError>,
    ) -> Result<T, TierError> {
        let ended = || TierError::Daemon { attempt: "ask", problem: ENDED.into() };
        let outcome = using(self.connection.as_ref().ok_or_else(ended)?);
        if matches!(outcome, Err(TierError::Daemon { .. } | TierError::Protocol { .. } | TierError::Host(_)))
        {
            self.connection = None;
            self.last_try = Instant::now();
        }
        outcome
    }
}

impl TierClient {
    /// Attaches to the daemon, which is started where there is none.
    ///
    /// # Errors
    /// A tier cannot be used, or the daemon does not start.
    pub fn attach(
        tiers: Vec<TierSpec>,
        sources: Vec<Source>,
        daemon: DaemonAddress,
    ) -> Result<Arc<Self>, TierError> {
        Ok(Self::of(attach(&NEVER, &tiers, &sources, &daemon)?, tiers, sources, daemon))
    }

    /// Attaches to the dataset that another process of the node has from [`TierClient::dataset`].
    /// If that one's daemon is gone, attaches to the next as [`TierClient::attach`] does.
    ///
    /// # Errors
    /// A tier cannot be used, or the daemon does not start.
    pub fn join(
        dataset: DatasetId,
        tiers: Vec<TierSpec>,
        sources: Vec<Source>,
        daemon: DaemonAddress,
    ) -> Result<Arc<Self>, TierError> {
        let pidfd = own_pidfd()?;
        let request = TierRequest::Join { version: VERSION, dataset };
        let joined = match attach_once(&NEVER, &request, &[pidfd.as_fd()], tiers.len(), &daemon) {
            Err(TierError::Daemon { problem, .. }) => {
                tracing::info!(problem, "the tier daemon does not know the dataset");
                attach(&NEVER, &tiers, &sources, &daemon)?
            }
            other => other?,
        };
        Ok(Self::of(joined, tiers, sources, daemon))
    }

    fn of(
        (connection, attached, warnings): (TierConnection, Attached, Vec<String>),
        tiers: Vec<TierSpec>,
        sources: Vec<Source>,
        daemon: DaemonAddress,
    ) -> Arc<Self> {
        let link = Link { connection: Some(connection), last_try: Instant::now(), told: 0 };
        Arc::new(Self {
            tiers,
            sources,
            daemon,
            directories: attached.directories.clone(),
            connection: Mutex::new(link),
            is_closed: AtomicBool::new(false),
            is_slow: AtomicBool::new(false),
            failed: AtomicU8::new(0),
            warnings: Mutex::new(warnings),
            attached: RwLock::new(Arc::new(attached)),
        })
    }

    /// The dataset, for [`TierClient::join`] in other processes of the node.
    #[must_use]
    pub fn dataset(&self) -> DatasetId {
        self.attached().id
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

    /// Makes a request about the dataset; attaches again where the daemon is gone.
    fn request(
        &self,
        attempt: &'static str,
        request: impl Fn(DatasetId) -> TierRequest,
    ) -> Result<TierReply, TierError> {
        let mut link = self.link();
        if link.connection.is_none() {
            if self.is_closed() || link.last_try.elapsed() < RESTART_EVERY {
                return Err(TierError::Daemon { attempt, problem: ENDED.into() });
            }
            let again = attach(&self.is_closed, &self.tiers, &self.sources, &self.daemon);
            link.last_try = Instant::now();
            let (connection, mut attached, _) = again?;
            attached.leave_out_others(&self.directories);
            tracing::info!("attached to a new tier daemon");
            link.connection = Some(connection);
            *self.attached.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(attached);
        }
        let wait = Wait { within: ANSWER_WITHIN, is_closed: &self.is_closed };
        let request = request(self.attached().id);
        let answer = link.exchange(|connection| connection.ask_within(wait, attempt, &request, &[]));
        self.report_failed(&mut link);
        answer.map(|(answer, _)| answer)
    }

    /// Makes a request that a read waits for: not long, and not for a new daemon.
    fn request_briefly(
        &self,
        attempt: &'static str,
        request: impl Fn(DatasetId) -> TierRequest,
    ) -> Result<TierReply, TierError> {
        let is_slow = self.is_slow.load(Ordering::Relaxed);
        let answer = self.ask_briefly(attempt, request, if is_slow { Duration::ZERO } else { BRIEFLY })?;
        self.is_slow.store(answer.is_none(), Ordering::Relaxed);
        let late = || TierError::Daemon { attempt, problem: "it does not answer at once".into() };
        Ok(opened(attempt, answer.ok_or_else(late)?)?.0)
    }

    fn ask_briefly(
        &self,
        attempt: &'static str,
        request: impl Fn(DatasetId) -> TierRequest,
        within: Duration,
    ) -> Result<Option<Packet>, TierError> {
        let Some(mut link) = self.link_within(within) else { return Ok(None) };
        let request = request(self.attached().id);
        link.exchange(|connection| {
            if connection.is_late()? {
                return Ok(None);
            }
            connection.send(attempt, &request, &[])?;
            connection.receive(attempt, Wait { within: BRIEFLY, is_closed: &self.is_closed })
        })
    }

    /// Leaves the daemon. Copies that are known can still be read.
    pub fn close(&self) {
        // Who waits for the daemon then soon gives up.
        self.is_closed.store(true, Ordering::Relaxed);
        self.link().connection = None;
    }

    fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Relaxed)
    }

    fn link_within(&self, within: Duration) -> Option<MutexGuard<'_, Link>> {
        let begun = Instant::now();
        loop {
            match self.connection.try_lock() {
                Ok(link) => return Some(link),
                Err(TryLockError::Poisoned(link)) => return Some(link.into_inner()),
                Err(TryLockError::WouldBlock) if begun.elapsed() >= within => return None,
                Err(TryLockError::WouldBlock) => std::thread::sleep(LOOK_FOR_LINK_EVERY),
            }
        }
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
            let answer = self.request("place", |dataset| {
                let levels = &self.attached().levels;
                let number = |place: u8| levels.get(usize::from(place)).map_or(u8::MAX, |level| level.number);
                let wanted = wanted.iter().map(|(chunk, place)| (chunk.0, number(*place))).collect();
                TierRequest::Place { dataset, wanted }
            })?;
            match answer {
                TierReply::Placed { slots } if slots.len() == wanted.len() => {
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
            self.request("publish", |dataset| {
                let attached = self.attached();
                let numbered = copied.iter().filter_map(|copied| {
                    let number = attached.number_of(copied.at.level)?;
                    let at = SlotId { level: number, ..copied.at };
                    Some(CopiedMessage::from(&Copied { at, ..copied.clone() }))
                });
                TierRequest::Publish { dataset, copied: numbered.collect() }
            })?;
        }
        Ok(())
    }

    /// Slots and checksums of the chunks, of at most [`CHUNKS_AT_ONCE`], that must be compared
    /// before they are used.
    ///
    /// # Errors
    /// The daemon is gone.
    pub(crate) fn sums(&self, chunks: &[ChunkId]) -> Result<Vec<UnverifiedChunk>, TierError> {
        let chunks: Vec<u64> = chunks.iter().map(|chunk| chunk.0).collect();
        let request = |dataset| TierRequest::Sums { dataset, chunks: chunks.clone() };
        match self.request_briefly("verify", request)? {
            TierReply::Sums { chunks } => {
                let attached = self.attached();
                let found = |(chunk, (number, slab, slot), sums)| {
                    let level = attached.place_of(number)? as u8;
                    Some(UnverifiedChunk { chunk: ChunkId(chunk), at: SlotId { level, slab, slot }, sums })
                };
                Ok(chunks.into_iter().filter_map(found).collect())
            }
            other => Err(unexpected("verify", &other)),
        }
    }

    /// Tells which pieces of chunks are right.
    ///
    /// # Errors
    /// The daemon is gone.
    pub fn verified(&self, good: &[(ChunkId, Pieces)]) -> Result<(), TierError> {
        let good: Vec<(u64, u16)> = good.iter().map(|(chunk, pieces)| (chunk.0, pieces.0)).collect();
        let request = |dataset| TierRequest::Verified { dataset, good: good.clone() };
        self.request_briefly("verify", request).map(|_| ())
    }

    /// Tells that the copies of a source, by its number in the dataset, are not its bytes.
    ///
    /// # Errors
    /// The daemon is gone.
    pub fn source_differs(&self, source: usize) -> Result<(), TierError> {
        let request = |dataset| TierRequest::SourceDiffers { dataset, source };
        self.request("drop copies", request).map(|_| ())
    }

    /// Tells that the tier at this place of the client's order fails. Waits for nobody: it is a
    /// read that has met the fault.
    pub fn level_failed(&self, place: u8) {
        self.failed.fetch_or(1 << place, Ordering::Relaxed);
        // Else who has the connection tells it.
        if let Some(mut link) = self.link_within(Duration::ZERO) {
            self.report_failed(&mut link);
        }
    }

    /// Tells the daemon which tiers failed; each is told once.
    fn report_failed(&self, link: &mut Link) {
        let failed = self.failed.load(Ordering::Relaxed) & !link.told;
        // Not the time to start a daemon.
        if failed == 0 || link.connection.is_none() {
            return;
        }
        link.told |= failed;
        let attached = self.attached();
        for number in (0..u8::BITS as u8).filter(|place| failed & (1 << place) != 0) {
            let Some(level) = attached.number_of(number) else { continue };
            let request = TierRequest::LevelFailed { level };
            let _ = link.exchange(|connection| connection.send("give a tier up", &request, &[]));
        }
    }
}

/// Connects and attaches; where the daemon ends meanwhile, to the next one.
fn attach(
    is_closed: &AtomicBool,
    tiers: &[TierSpec],
    sources: &[Source],
    daemon: &DaemonAddress,
) -> Result<(TierConnection, Attached, Vec<String>), TierError> {
    let (pidfd, sources) = (own_pidfd()?, to_memory(sources)?);
    let request = TierRequest::Attach { version: VERSION, tiers: tiers.to_vec() };
    let passed = [pidfd.as_fd(), sources.as_fd()];
    let mut tries = 1;
    loop {
        match attach_once(is_closed, &request, &passed, tiers.len(), daemon) {
            Err(TierError::Daemon { problem, .. }) if problem == ENDED && tries < ATTACH_TRIES => tries += 1,
            other => return other,
        }
    }
}

/// Connects and attaches by this request, with `tiers` tiers.
fn attach_once(
    is_closed: &AtomicBool,
    request: &TierRequest,
    passed: &[BorrowedFd<'_>],
    tiers: usize,
    daemon: &DaemonAddress,
) -> Result<(TierConnection, Attached, Vec<String>), TierError> {
    let connection = TierConnection::start_unless(is_closed, daemon)?;
    let wait = Wait { within: ANSWER_WITHIN, is_closed };
    let (answer, fds) = connection.ask_within(wait, "attach", request, passed)?;
    let TierReply::Attached(told) = answer else { return Err(unexpected("attach", &answer)) };
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
    if storages.len() != tiers || table.chunks() != told.chunks {
        return Err(TierError::Protocol {
            attempt: "attach",
            expected: format!("{tiers} levels, {} chunks", table.chunks()),
            found: format!("{} levels, {} chunks", storages.len(), told.chunks),
        });
    }
    let (id, levels, copied_chunks) = (told.dataset, told.levels, told.copied_chunks);
    let attached = Attached { id, table, claims, levels, storages, directories, places, copied_chunks };
    Ok((connection, attached, told.warnings))
}

#[cfg(test)]
mod tests {
    use forebay_host::{PacketSocket, Received, Sent, SocketPath};

    use super::*;
    use crate::client::connection::{CLOSED, TRY_EVERY};
    use crate::daemon::Server;
    use crate::source::identity::SourceKey;

    /// A client whose daemon takes requests and does not answer.
    struct Hanging {
        client: Arc<TierClient>,
        daemon: PacketSocket,
        _directory: tempfile::TempDir,
    }

    impl Hanging {
        fn new() -> Self {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("tier");
            std::fs::create_dir(&path).unwrap();
            let socket = SocketPath::new(directory.path(), &["tiers"]).unwrap();
            let server = Server::start(&socket, Duration::from_secs(60)).unwrap().unwrap();
            let stop = Arc::new(AtomicBool::new(false));
            let stopped = Arc::clone(&stop);
            let thread = std::thread::Builder::new().spawn(move || server.run(&stopped)).unwrap();
            let spec = TierSpec { path, bytes: 8 << 20, keep: false, force: false };
            let source = Source { key: SourceKey([7; 16]), path: "/a".into(), chunks: 4, bytes: 4 << 20 };
            let address = DaemonAddress { socket: socket.socket().to_owned(), command: vec![] };
            let client = TierClient::attach(vec![spec], vec![source], address).unwrap();
            stop.store(true, Ordering::Relaxed);
            client.link().connection = None;
            thread.join().unwrap();
            let lock = socket.try_lock().unwrap().unwrap();
            let listener = lock.listen(1).unwrap();
            client.link().connection = TierConnection::existing(socket.socket()).unwrap();
            let daemon = listener.accept().unwrap().unwrap();
            Self { client, daemon, _directory: directory }
        }

        fn received(&self) -> Vec<TierRequest> {
            let packets = std::iter::from_fn(|| match self.daemon.try_receive().unwrap() {
                Received::Packet(packet) => Some(serde_json::from_slice(&packet.bytes).unwrap()),
                _ => None,
            });
            packets.collect()
        }

        fn answer(&self, answer: &TierReply) {
            let bytes = serde_json::to_vec(answer).unwrap();
            assert!(matches!(self.daemon.try_send(&bytes, b"", &[]), Ok(Sent::Yes)));
        }
    }

    #[test]
    fn a_read_does_not_wait_for_a_daemon_that_hangs() {
        let hanging = Hanging::new();
        let client = &hanging.client;
        // Each failure is told once, and its answer is not waited for.
        client.level_failed(0);
        client.level_failed(0);
        assert!(matches!(hanging.received()[..], [TierRequest::LevelFailed { level: 0 }]));
        assert!(client.sums(&[ChunkId(1)]).is_err());
        // Nor is that of a writer.
        let held = client.link();
        client.level_failed(1);
        let good = [(ChunkId(1), Pieces::ALL)];
        assert!(client.sums(&[ChunkId(1)]).is_err() && client.verified(&good).is_err());
        drop(held);
        assert!(client.link().connection.is_some() && hanging.received().is_empty());
        // Two late answers come before the next one.
        hanging.answer(&TierReply::Done);
        let answer = TierReply::Sums { chunks: Vec::new() };
        (0..2).for_each(|_| hanging.answer(&answer));
        assert!(client.sums(&[ChunkId(1)]).is_ok_and(|chunks| chunks.is_empty()));
    }

    #[test]
    fn a_client_that_is_closed_waits_for_no_daemon() {
        let hanging = Hanging::new();
        std::thread::scope(|scope| {
            let client = &hanging.client;
            let writer = std::thread::Builder::new();
            let writer = writer.spawn_scoped(scope, || client.place(&[(ChunkId(0), 0)])).unwrap();
            while hanging.received().is_empty() {
                std::thread::sleep(TRY_EVERY);
            }
            client.close();
            let ended = writer.join().unwrap();
            assert!(matches!(ended, Err(TierError::Daemon { problem, .. }) if problem == CLOSED));
        });
    }
}
