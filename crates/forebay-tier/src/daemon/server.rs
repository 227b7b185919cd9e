//! The daemon's loop: clients that come, ask and go.
//!
//! One thread; each request is answered before the next, so probes of levels have a deadline. It
//! ends when no client was there for the idle time.

use std::collections::{BTreeMap, HashMap};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use forebay_host::{PacketListener, PacketSocket, Received, Sent, SocketLock, SocketPath, runtime_directory};
use forebay_types::{ChunkId, Pieces};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::daemon::cache::Cache;
use crate::daemon::level::LevelParts;
use crate::daemon::run::Runs;
use crate::directory::TierDirectory;
use crate::directory_checks::size_warning;
use crate::entry::SlotId;
use crate::error::TierError;
use crate::offer::Copied;
use crate::probe::{ROUND_BYTES, probe, slower_first};
use crate::protocol::{
    Answer, AttachedLevel, Attachment, DataSetId, Request, RunAction, VERSION, from_memory, to_memory,
};
use crate::run_options::RunOptions;
use crate::slab_files::SlabFiles;
use crate::spec::TierSpec;

/// Pending connections.
const BACKLOG: i32 = 64;

/// Longest wait between two looks at `stop` and the idle time.
const INTERVAL: Timespec = Timespec { tv_sec: 0, tv_nsec: 500_000_000 };

/// Least idle time until a tier is used: the process that started the daemon has yet to ask for it.
const FIRST_USE_TIME: Duration = Duration::from_secs(5);

/// The socket of this user's daemon on this node.
///
/// # Errors
/// The runtime directory cannot be used.
pub fn socket_path() -> Result<SocketPath, TierError> {
    // Nodes may share the runtime directory.
    let boot = format!("{:032x}", boot_id());
    Ok(SocketPath::new(&runtime_directory()?, &["forebay tiers", &boot])?)
}

/// A running daemon.
pub struct Server {
    listener: PacketListener,
    _lock: SocketLock,
    cache: Arc<Mutex<Cache>>,
    runs: Runs,
    /// Levels by device and inode, with their locks.
    levels: HashMap<(u64, u64), OpenLevel>,
    clients: BTreeMap<u64, Client>,
    next_client: u64,
    idle: Duration,
    is_stopped: bool,
}

struct OpenLevel {
    number: u8,
    slabs: OwnedFd,
    is_probed: bool,
    /// How long it takes to write and read a little, where that is known.
    round: Option<Duration>,
    _lock: OwnedFd,
}

struct Client {
    socket: PacketSocket,
    pidfd: Option<OwnedFd>,
    data_sets: Vec<DataSetId>,
    runs: Vec<u32>,
}

impl Client {
    fn new(socket: PacketSocket) -> Self {
        Self { socket, pidfd: None, data_sets: Vec::new(), runs: Vec::new() }
    }
}

impl Server {
    /// Listens; `None` if there is a daemon at this socket already.
    ///
    /// # Errors
    /// The runtime directory cannot be used.
    pub fn start(path: &SocketPath, idle: Duration) -> Result<Option<Self>, TierError> {
        let Some(lock) = path.try_lock()? else { return Ok(None) };
        let listener = lock.listen(BACKLOG)?;
        Ok(Some(Self {
            listener,
            _lock: lock,
            cache: Arc::new(Mutex::new(Cache::new(boot_id()))),
            runs: Runs::default(),
            levels: HashMap::new(),
            clients: BTreeMap::new(),
            next_client: 0,
            idle,
            is_stopped: false,
        }))
    }

    /// Serves until no client was there for the idle time, or `stop` is set.
    pub fn run(mut self, stop: &AtomicBool) {
        let mut idle_since = Instant::now();
        loop {
            let mut polled = vec![PollFd::new(&self.listener, PollFlags::IN)];
            let mut owners = Vec::new();
            for (number, client) in &self.clients {
                polled.push(PollFd::new(&client.socket, PollFlags::IN));
                owners.push((*number, false));
                if let Some(pidfd) = &client.pidfd {
                    polled.push(PollFd::new(pidfd, PollFlags::IN));
                    owners.push((*number, true));
                }
            }
            match poll(&mut polled, Some(&INTERVAL)) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => {
                    tracing::error!(%error, "the tier daemon cannot wait for clients");
                    break;
                }
            }
            let is_ready: Vec<bool> = polled.iter().map(|one| !one.revents().is_empty()).collect();
            drop(polled);
            if is_ready[0] {
                while let Ok(Some(socket)) = self.listener.accept() {
                    self.clients.insert(self.next_client, Client::new(socket));
                    self.next_client += 1;
                }
            }
            for ((number, is_pidfd), _) in owners.iter().zip(&is_ready[1..]).filter(|(_, ready)| **ready) {
                if *is_pidfd {
                    self.leave(*number, true);
                } else if self.clients.contains_key(number) {
                    self.serve(*number);
                }
            }
            if !self.clients.is_empty() {
                idle_since = Instant::now();
            }
            let idle = if self.levels.is_empty() { self.idle.max(FIRST_USE_TIME) } else { self.idle };
            if stop.load(Ordering::Relaxed) || self.is_stopped || idle_since.elapsed() >= idle {
                break;
            }
        }
        self.runs.end_all();
        self.cache().end();
    }

    fn cache(&self) -> MutexGuard<'_, Cache> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn leave(&mut self, number: u64, died: bool) {
        let Some(client) = self.clients.remove(&number) else { return };
        for data_set in client.data_sets {
            self.cache().detach(data_set, died);
        }
        client.runs.into_iter().for_each(|run| self.runs.leave(run));
    }

    /// Answers what a client has sent.
    fn serve(&mut self, number: u64) {
        loop {
            let received = self.clients[&number].socket.try_receive();
            let packet = match received {
                Ok(Received::Packet(packet)) => packet,
                Ok(Received::Nothing) => return,
                // A client that ends without its pidfd being readable may still hold claims.
                Ok(Received::Closed) => return self.leave(number, true),
                Err(error) => {
                    tracing::info!(%error, "a client of the tier daemon is cut off");
                    return self.leave(number, true);
                }
            };
            let mut fds = Vec::new();
            let answer = match serde_json::from_slice(&packet.bytes) {
                Ok(request) => self.answer(number, request, packet.fds, &mut fds).unwrap_or_else(|error| {
                    let (hint, text) = (error.hint().unwrap_or_default().to_owned(), error.to_string());
                    match error {
                        TierError::Tier { tier, problem, hint } => Answer::Refused { tier, problem, hint },
                        _ => Answer::Refused { tier: String::new(), problem: text, hint },
                    }
                }),
                Err(error) => Answer::Refused {
                    tier: String::new(),
                    problem: format!("expected a request, found {error}"),
                    hint: String::new(),
                },
            };
            let bytes = serde_json::to_vec(&answer).expect("answers can be written as JSON");
            let borrowed: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
            match self.clients[&number].socket.try_send(&bytes, b"", &borrowed) {
                Ok(Sent::Yes) => {}
                // A client has one request under way: it cannot have left so many answers unread.
                _ => return self.leave(number, true),
            }
        }
    }

    fn answer(
        &mut self,
        number: u64,
        request: Request,
        received: Vec<OwnedFd>,
        fds: &mut Vec<OwnedFd>,
    ) -> Result<Answer, TierError> {
        let slot = |at: SlotId| (at.level, at.slab, at.slot);
        Ok(match request {
            Request::Attach { version, tiers } => self.attach(number, version, &tiers, received, fds)?,
            Request::Place { data_set, wanted } => {
                let wanted: Vec<_> =
                    wanted.into_iter().map(|(chunk, level)| (ChunkId(chunk), level)).collect();
                let placed = self.cache().place(data_set, &wanted);
                Answer::Placed { slots: placed.into_iter().map(|placed| placed.map(slot)).collect() }
            }
            Request::Publish { data_set, copied } => {
                let copied: Vec<_> = copied.into_iter().map(Copied::from).collect();
                self.cache().publish(data_set, &copied);
                Answer::Done
            }
            Request::Sums { data_set, chunks } => {
                let cache = self.cache();
                let sums = |chunk| {
                    let (at, sums) = cache.sums(data_set, ChunkId(chunk))?;
                    Some((chunk, slot(at), sums))
                };
                Answer::Sums { chunks: chunks.into_iter().filter_map(sums).collect() }
            }
            Request::Verified { data_set, good } => {
                let mut cache = self.cache();
                for (chunk, good) in good {
                    cache.verified(data_set, ChunkId(chunk), Pieces(good));
                }
                Answer::Done
            }
            Request::SourceDiffers { data_set, source } => {
                self.cache().source_differs(data_set, source);
                Answer::Done
            }
            Request::LevelFailed { level } => {
                self.cache().level_failed(level);
                Answer::Done
            }
            Request::OpenRun { version, tiers, options } => {
                self.open_run(number, version, &tiers, options, received)?
            }
            Request::Run { run, action } => {
                if !self.clients[&number].runs.contains(&run) {
                    let found = format!("run {run} of another one");
                    let expected = "a run of this client".into();
                    return Err(TierError::Protocol { attempt: "use a run", expected, found });
                }
                match action {
                    RunAction::Stage => self.runs.stage(run),
                    RunAction::Finish => self.runs.finish(run),
                    RunAction::Progress => return Ok(Answer::Run { facts: self.runs.progress(run) }),
                    RunAction::Summary => {
                        return Ok(Answer::Run { facts: self.runs.summary(run, &self.cache()) });
                    }
                }
                Answer::Done
            }
            Request::Runs => Answer::Runs { runs: self.runs.summaries(&self.cache()) },
            Request::Usage => {
                fds.push(to_memory(&self.cache().usage())?);
                Answer::Usage { clients: self.users(), pid: std::process::id() }
            }
            Request::Clear { directory, below } => {
                let level = self.levels.get(&directory).map(|level| level.number);
                let bytes = level.and_then(|level| match below {
                    Some(path) => Some(self.cache().clear_source(level, &path)),
                    None => self.cache().clear_one(level),
                });
                Answer::Cleared { is_level: level.is_some(), bytes }
            }
            Request::Drop { directory, sources, files } => {
                let level = self.levels.get(&directory).map(|level| level.number);
                let bytes = level.map(|level| {
                    let mut cache = self.cache();
                    for key in &sources {
                        cache.drop_copies(key, level);
                    }
                    cache.drop_files(level, &files)
                });
                Answer::Cleared { is_level: level.is_some(), bytes }
            }
            Request::Stop => {
                self.is_stopped = !self.cache().is_used() && !self.runs.is_used();
                Answer::Stopping { clients: self.users() }
            }
        })
    }

    /// Clients that use a data set or a run.
    fn users(&self) -> u32 {
        self.clients.values().filter(|client| !client.data_sets.is_empty() || !client.runs.is_empty()).count()
            as u32
    }

    fn attach(
        &mut self,
        number: u64,
        version: u32,
        tiers: &[TierSpec],
        received: Vec<OwnedFd>,
        fds: &mut Vec<OwnedFd>,
    ) -> Result<Answer, TierError> {
        let wrong =
            |expected: String, found: String| TierError::Protocol { attempt: "attach", expected, found };
        if version != VERSION {
            return Err(wrong(format!("version {VERSION}"), format!("version {version}")));
        }
        let [pidfd, sources]: [OwnedFd; 2] = received.try_into().map_err(|fds: Vec<_>| {
            wrong("a pidfd and memory".into(), format!("{} descriptors", fds.len()))
        })?;
        let sources = from_memory("attach", &sources)?;
        let (numbers, warnings) = self.open_levels(tiers)?;
        let mut cache = self.cache();
        let attached = cache.attach(sources, &numbers)?;
        drop(cache);
        let client = self.clients.get_mut(&number).expect("it has just asked");
        client.data_sets.push(attached.data_set);
        client.pidfd = Some(pidfd);
        let cache = self.cache();
        let data_set = cache.data_set(attached.data_set).expect("it was just attached");
        let duplicate = |fd: BorrowedFd<'_>| {
            fd.try_clone_to_owned().map_err(TierError::io("", "duplicate a descriptor of the tier daemon"))
        };
        fds.push(duplicate(data_set.table.descriptor())?);
        fds.push(duplicate(data_set.table.claims().descriptor())?);
        let mut levels = Vec::new();
        for level in &numbers {
            let slabs = self.levels.values().find(|open| open.number == *level).expect("levels are open");
            fds.push(duplicate(slabs.slabs.as_fd())?);
            levels.push(AttachedLevel {
                number: *level,
                name: cache.level_name(*level).to_owned(),
                slots: attached.slots[usize::from(*level)],
                is_memory: cache.level_parts(*level).storage.is_memory(),
            });
        }
        Ok(Answer::Attached(Attachment {
            data_set: attached.data_set,
            chunks: data_set.chunks(),
            levels,
            copied_chunks: attached.copied_chunks,
            warnings,
        }))
    }

    /// The levels of a client's tiers, in their order, and what should be told of them.
    fn open_levels(&mut self, tiers: &[TierSpec]) -> Result<(Vec<u8>, Vec<String>), TierError> {
        let mut numbers = Vec::new();
        let mut warnings = Vec::new();
        let opened: Vec<TierDirectory> = tiers.iter().map(TierDirectory::open).collect::<Result<_, _>>()?;
        let known = |one: &TierDirectory| self.levels.get(&one.identity).map(|level| level.number);
        let mut wanted: Vec<u8> = opened.iter().filter_map(known).chain(self.runs.levels()).collect();
        for (spec, opened) in tiers.iter().zip(opened) {
            let level = self.level(spec, opened, &wanted)?;
            wanted.push(level);
            if let Some(place) = numbers.iter().position(|known| *known == level) {
                return Err(spec.refuse(
                    format!(
                        "expected a directory of its own, found that of tier {}",
                        tiers[place].path.display()
                    ),
                    "name each directory once",
                ));
            }
            numbers.push(level);
            let storage = Arc::clone(&self.cache().level_parts(level).storage);
            // What cannot be inspected fails, with a warning, when it is used.
            warnings.extend(size_warning(spec, &*storage).ok().flatten());
        }
        warnings.extend(self.slower_first(&numbers));
        Ok((numbers, warnings))
    }

    fn open_run(
        &mut self,
        number: u64,
        version: u32,
        tiers: &[TierSpec],
        options: RunOptions,
        received: Vec<OwnedFd>,
    ) -> Result<Answer, TierError> {
        let wrong =
            |expected: String, found: String| TierError::Protocol { attempt: "open a run", expected, found };
        if version != VERSION {
            return Err(wrong(format!("version {VERSION}"), format!("version {version}")));
        }
        let [pidfd]: [OwnedFd; 1] = received
            .try_into()
            .map_err(|fds: Vec<_>| wrong("a pidfd".into(), format!("{} descriptors", fds.len())))?;
        let (levels, warnings) = self.open_levels(tiers)?;
        let (run, table) = self.runs.open(&self.cache, &levels, options)?;
        let client = self.clients.get_mut(&number).expect("it has just asked");
        client.runs.push(run);
        client.pidfd = Some(pidfd);
        Ok(Answer::OpenedRun { run, table, warnings })
    }

    /// Warnings of levels that are clearly slower than a later one. Each level is probed once, when
    /// it is first used beside others.
    fn slower_first(&mut self, numbers: &[u8]) -> Vec<String> {
        if numbers.len() < 2 {
            return Vec::new();
        }
        let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        let levels = &mut self.levels;
        let mut probed: Vec<&mut OpenLevel> =
            levels.values_mut().filter(|level| numbers.contains(&level.number) && !level.is_probed).collect();
        let slabs = probed.iter().map(|level| cache.spare_slab(level.number));
        let (places, spare): (Vec<usize>, Vec<_>) =
            slabs.enumerate().filter_map(|(place, slab)| Some((place, slab?))).unzip();
        for (place, took) in places.into_iter().zip(probe(spare)) {
            probed[place].round = took;
        }
        for level in probed {
            level.is_probed = true;
        }
        let known = numbers.iter().filter_map(|number| {
            let ((device, _), level) = levels.iter().find(|(_, level)| level.number == *number)?;
            Some((*device, level.round))
        });
        let known: Vec<_> = known.collect();
        let ms = |place: usize| known[place].1.unwrap_or_default().as_secs_f64() * 1e3;
        let name = |place: usize| cache.level_name(numbers[place]);
        let warning = |(first, later)| {
            format!(
                "tier {} is slower than tier {}, which comes after it (expected the faster one first, found {:.1} and \
                 {:.1} ms to write and read {} KiB)",
                name(first),
                name(later),
                ms(first),
                ms(later),
                ROUND_BYTES >> 10
            )
        };
        slower_first(&known).into_iter().map(warning).collect()
    }

    /// The number of a level, which is opened where it is not open, in the place of none of those
    /// that are `wanted`.
    fn level(&mut self, spec: &TierSpec, opened: TierDirectory, wanted: &[u8]) -> Result<u8, TierError> {
        if let Some(known) = self.levels.get(&opened.identity) {
            let number = known.number;
            if !is_removed(&known.slabs) {
                self.cache().set_limits(number, spec.bytes, spec.keep);
                return Ok(number);
            }
            // Another directory has its inode number now.
            self.cache().level_removed(number);
            self.levels.remove(&opened.identity);
        }
        let identity = opened.identity;
        let slabs = opened.slabs.try_clone().map_err(TierError::io(&opened.path, "open the slabs"))?;
        let (parts, lock) = locked(spec, opened)?;
        let number = self.cache().add_level(parts, wanted)?;
        // The number may be that of a level that nobody used.
        self.levels.retain(|_, open| open.number != number);
        self.levels.insert(identity, OpenLevel { number, slabs, is_probed: false, round: None, _lock: lock });
        Ok(number)
    }
}

/// A level that no other daemon may use while the lock is held.
pub(crate) fn locked(spec: &TierSpec, opened: TierDirectory) -> Result<(LevelParts, OwnedFd), TierError> {
    let lock = opened.lock(spec)?;
    let storage =
        SlabFiles::new(opened.slabs).map_err(TierError::io(&opened.path, "inspect the file system"))?;
    let parts = LevelParts {
        name: spec.path.display().to_string(),
        path: opened.path,
        directory: opened.directory,
        storage: Arc::new(storage),
        quota_bytes: spec.bytes,
        is_read_only: opened.is_read_only,
        keep: spec.keep,
    };
    Ok((parts, lock))
}

/// Whether an open directory was deleted.
fn is_removed(directory: &OwnedFd) -> bool {
    rustix::fs::fstat(directory).map_or(true, |stat| stat.st_nlink == 0)
}

/// The boot id of the machine; 0 where it is not known: then no copy of an earlier daemon is used
/// without a look.
pub(crate) fn boot_id() -> u128 {
    let text = std::fs::read_to_string(Path::new("/proc/sys/kernel/random/boot_id")).unwrap_or_default();
    u128::from_str_radix(&text.trim().replace('-', ""), 16).unwrap_or(0)
}
