//! What the tier daemon does for its clients; `forebay_host::Daemon` is its loop.
//!
//! Each request is answered before the next, so probes of levels have a deadline. The daemon ends
//! when no client was there for the idle time.

use std::collections::{BTreeMap, HashMap};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use forebay_host::{Caller, ClientId, Daemon, Packet, Reply, Service, SocketPath, runtime_directory};
use forebay_plan::options::TierSpec;
use forebay_types::{ChunkId, Pieces};

use crate::copy::offer::Copied;
use crate::daemon::cache::{Cache, Joined};
use crate::daemon::level::LevelParts;
use crate::daemon::protocol::{
    AttachedLevel, Attachment, DatasetId, RunAction, TierReply, TierRequest, VERSION, from_memory, to_memory,
};
use crate::daemon::run::Runs;
use crate::error::TierError;
use crate::level::directory::TierDirectory;
use crate::level::directory_checks::size_warning;
use crate::level::probe::{ROUND_BYTES, probe, slower_first};
use crate::level::slab_files::SlabFiles;
use crate::table::entry::SlotId;

/// Least idle time until a tier is used: the process that started the daemon has yet to ask for it.
const FIRST_USE_TIME: Duration = Duration::from_secs(5);

/// Requests that are checked for their version, as errors name them.
const ATTACH: &str = "attach";
const OPEN_RUN: &str = "open a run";

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
    daemon: Daemon,
    tiers: Tiers,
}

struct Tiers {
    cache: Arc<Mutex<Cache>>,
    runs: Runs,
    /// Levels by device and inode, with their locks.
    levels: HashMap<(u64, u64), OpenLevel>,
    /// Clients that use datasets or runs.
    users: BTreeMap<ClientId, User>,
    idle: Duration,
    /// When a client was last there.
    used: Instant,
    is_stopped: bool,
}

/// What a client uses.
#[derive(Default)]
struct User {
    datasets: Vec<DatasetId>,
    runs: Vec<u32>,
}

struct OpenLevel {
    number: u8,
    slabs: OwnedFd,
    is_probed: bool,
    /// How long it takes to write and read a little, where that is known.
    round: Option<Duration>,
    _lock: OwnedFd,
}

impl Server {
    /// Listens; `None` if there is a daemon at this socket already.
    ///
    /// # Errors
    /// The runtime directory cannot be used.
    pub fn start(path: &SocketPath, idle: Duration) -> Result<Option<Self>, TierError> {
        let Some(daemon) = Daemon::start(path)? else { return Ok(None) };
        let tiers = Tiers {
            cache: Arc::new(Mutex::new(Cache::new(boot_id()))),
            runs: Runs::default(),
            levels: HashMap::new(),
            users: BTreeMap::new(),
            idle,
            used: Instant::now(),
            is_stopped: false,
        };
        Ok(Some(Self { daemon, tiers }))
    }

    /// Serves until no client was there for the idle time, or `stop` is set.
    pub fn run(mut self, stop: &AtomicBool) {
        if let Err(error) = self.daemon.run(&mut self.tiers, stop) {
            tracing::error!(%error, "the tier daemon ends");
        }
        self.tiers.runs.end_all();
        self.tiers.cache().end();
    }
}

impl Service for Tiers {
    fn answer(&mut self, caller: Caller, packet: Packet) -> Reply {
        let mut reply = Reply::default();
        let answer = match serde_json::from_slice(&packet.bytes) {
            Ok(request) => {
                self.answered(caller.client, request, packet.fds, &mut reply).unwrap_or_else(|error| {
                    let (hint, text) = (error.hint().unwrap_or_default().to_owned(), error.to_string());
                    match error {
                        TierError::Tier { tier, problem, hint } => TierReply::Refused { tier, problem, hint },
                        _ => TierReply::Refused { tier: String::new(), problem: text, hint },
                    }
                })
            }
            Err(error) => TierReply::Refused {
                tier: String::new(),
                problem: format!("expected a request, found {error}"),
                hint: String::new(),
            },
        };
        reply.bytes = serde_json::to_vec(&answer).expect("answers can be written as JSON");
        reply
    }

    fn left(&mut self, client: ClientId) {
        let Some(user) = self.users.remove(&client) else { return };
        for dataset in user.datasets {
            self.cache().detach(dataset);
        }
        user.runs.into_iter().for_each(|run| self.runs.leave(run));
    }

    fn idle_left(&mut self, clients: usize) -> Duration {
        if self.is_stopped {
            return Duration::ZERO;
        }
        if clients > 0 {
            self.used = Instant::now();
        }
        let idle = if self.levels.is_empty() { self.idle.max(FIRST_USE_TIME) } else { self.idle };
        idle.saturating_sub(self.used.elapsed())
    }
}

impl Tiers {
    fn cache(&self) -> MutexGuard<'_, Cache> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn answered(
        &mut self,
        client: ClientId,
        request: TierRequest,
        received: Vec<OwnedFd>,
        reply: &mut Reply,
    ) -> Result<TierReply, TierError> {
        let slot = |at: SlotId| (at.level, at.slab, at.slot);
        Ok(match request {
            TierRequest::Attach { version, tiers } => {
                let [pidfd, sources] = with(ATTACH, version, received, "a pidfd and memory")?;
                let sources = from_memory(ATTACH, &sources)?;
                let (numbers, warnings) = self.open_levels(&tiers)?;
                let attached = self.cache().attach(sources, &numbers)?;
                self.attached(client, &attached, warnings, pidfd, reply)?
            }
            TierRequest::Join { version, dataset } => {
                let [pidfd] = with(ATTACH, version, received, "a pidfd")?;
                let joined = self.cache().join(dataset).ok_or_else(|| TierError::Protocol {
                    attempt: ATTACH,
                    expected: "a dataset that a client uses".into(),
                    found: format!("number {}", dataset.0),
                })?;
                self.attached(client, &joined, Vec::new(), pidfd, reply)?
            }
            TierRequest::Place { dataset, wanted } => {
                let wanted: Vec<_> =
                    wanted.into_iter().map(|(chunk, level)| (ChunkId(chunk), level)).collect();
                let placed = self.cache().place(dataset, &wanted);
                TierReply::Placed { slots: placed.into_iter().map(|placed| placed.map(slot)).collect() }
            }
            TierRequest::Publish { dataset, copied } => {
                let copied: Vec<_> = copied.into_iter().map(Copied::from).collect();
                self.cache().publish(dataset, &copied);
                TierReply::Done
            }
            TierRequest::Sums { dataset, chunks } => {
                let cache = self.cache();
                let sums = |chunk| {
                    let (at, sums) = cache.sums(dataset, ChunkId(chunk))?;
                    Some((chunk, slot(at), sums))
                };
                TierReply::Sums { chunks: chunks.into_iter().filter_map(sums).collect() }
            }
            TierRequest::Verified { dataset, good } => {
                let mut cache = self.cache();
                for (chunk, good) in good {
                    cache.verified(dataset, ChunkId(chunk), Pieces(good));
                }
                TierReply::Done
            }
            TierRequest::SourceDiffers { dataset, source } => {
                self.cache().source_differs(dataset, source);
                TierReply::Done
            }
            TierRequest::LevelFailed { level } => {
                self.cache().level_failed(level);
                TierReply::Done
            }
            TierRequest::OpenRun { version, tiers, options } => {
                let [pidfd] = with(OPEN_RUN, version, received, "a pidfd")?;
                let (levels, warnings) = self.open_levels(&tiers)?;
                let (run, table) = self.runs.open(&self.cache, &levels, options)?;
                self.users.entry(client).or_default().runs.push(run);
                reply.pidfd = Some(pidfd);
                TierReply::OpenedRun { run, table, warnings }
            }
            TierRequest::Run { run, action } => {
                if !self.users.get(&client).is_some_and(|user| user.runs.contains(&run)) {
                    let found = format!("run {run} of another one");
                    let expected = "a run of this client".into();
                    return Err(TierError::Protocol { attempt: "use a run", expected, found });
                }
                match action {
                    RunAction::Stage => self.runs.stage(run),
                    RunAction::Finish => self.runs.finish(run),
                    RunAction::Progress => return Ok(TierReply::Run { facts: self.runs.progress(run) }),
                    RunAction::Summary => {
                        return Ok(TierReply::Run { facts: self.runs.summary(run, &self.cache()) });
                    }
                }
                TierReply::Done
            }
            TierRequest::Runs => TierReply::Runs { runs: self.runs.summaries(&self.cache()) },
            TierRequest::Usage => {
                reply.fds.push(to_memory(&self.cache().usage())?);
                TierReply::Usage { clients: self.users.len() as u32, pid: std::process::id() }
            }
            TierRequest::Clear { directory, below } => {
                let level = self.levels.get(&directory).map(|level| level.number);
                let bytes = level.and_then(|level| match below {
                    Some(path) => Some(self.cache().clear_source(level, &path)),
                    None => self.cache().clear_one(level),
                });
                TierReply::Cleared { is_level: level.is_some(), bytes }
            }
            TierRequest::Drop { directory, sources, files } => {
                let level = self.levels.get(&directory).map(|level| level.number);
                let bytes = level.map(|level| {
                    let mut cache = self.cache();
                    for key in &sources {
                        cache.drop_copies(key, level);
                    }
                    cache.drop_files(level, &files)
                });
                TierReply::Cleared { is_level: level.is_some(), bytes }
            }
            TierRequest::Stop => {
                self.is_stopped = !self.cache().is_used() && !self.runs.is_used();
                TierReply::Stopping { clients: self.users.len() as u32 }
            }
        })
    }

    /// The answer to a client that uses a dataset from now on.
    fn attached(
        &mut self,
        client: ClientId,
        attached: &Joined,
        warnings: Vec<String>,
        pidfd: OwnedFd,
        reply: &mut Reply,
    ) -> Result<TierReply, TierError> {
        self.users.entry(client).or_default().datasets.push(attached.dataset);
        reply.pidfd = Some(pidfd);
        let cache = self.cache();
        let dataset = cache.dataset(attached.dataset).expect("it was just attached");
        let duplicate = |fd: BorrowedFd<'_>| {
            fd.try_clone_to_owned().map_err(TierError::io("", "duplicate a descriptor of the tier daemon"))
        };
        reply.fds.push(duplicate(dataset.table.descriptor())?);
        reply.fds.push(duplicate(dataset.table.claims().descriptor())?);
        let mut levels = Vec::new();
        for level in &dataset.levels {
            let slabs = self.levels.values().find(|open| open.number == *level).expect("levels are open");
            reply.fds.push(duplicate(slabs.slabs.as_fd())?);
            levels.push(AttachedLevel {
                number: *level,
                name: cache.level_name(*level).to_owned(),
                slots: attached.slots[usize::from(*level)],
                is_memory: cache.level_parts(*level).storage.is_memory(),
            });
        }
        Ok(TierReply::Attached(Attachment {
            dataset: attached.dataset,
            chunks: dataset.chunks(),
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
                return Err(TierError::of_tier(
                    spec,
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

/// The descriptors of a request of this version of the messages.
fn with<const COUNT: usize>(
    attempt: &'static str,
    version: u32,
    received: Vec<OwnedFd>,
    expected: &str,
) -> Result<[OwnedFd; COUNT], TierError> {
    let wrong = |expected: String, found: String| TierError::Protocol { attempt, expected, found };
    if version != VERSION {
        return Err(wrong(format!("version {VERSION}"), format!("version {version}")));
    }
    received.try_into().map_err(|fds: Vec<_>| wrong(expected.into(), format!("{} descriptors", fds.len())))
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
