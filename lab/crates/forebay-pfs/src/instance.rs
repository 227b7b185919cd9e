//! A running emulator: all mounts of one backing directory.
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex, RwLock};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use forebay_model::{FileId, Model, ServerId, Spec};
use fuser::{Config, Session, SessionACL};
use rustix::fs::{Mode, OFlags, ResolveFlags};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::context::{Context, EmulatorState};
use crate::deferred::{self, Deferred};
use crate::error::{EmulatorError, doing, thread as thread_error};
use crate::files::backing::Status;
use crate::files::inodes::FileNumbers;
use crate::filesystem::MountFileSystem;
use crate::locks::{locked, write_locked};
use crate::mount::{InFlight, Mount, MountState};
use crate::records::counters::Counters;
use crate::records::faults::Fault;
use crate::timing::clock::Clock;
use crate::timing::reply_scheduler::ReplyScheduler;
use crate::timing::round_trip::RoundTrip;
use crate::{event_file, mount_point, stats, system};

/// How long the end waits for the thread of a mount that programs hold and that cannot be aborted.
const MAX_JOIN: Duration = Duration::from_secs(2);

/// What to emulate, and where.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Configuration {
    /// The directory that holds the files.
    pub backing: PathBuf,
    /// Mount points: empty directories, one per node.
    pub mounts: Vec<PathBuf>,
    /// The file system to emulate.
    pub spec: Spec,
    /// Real seconds per model second.
    #[serde(default = "one")]
    pub time_scale: f64,
    /// Seed of the model's jitter.
    #[serde(default)]
    pub seed: u64,
    /// Path of the control socket, which also names the mounts.
    #[serde(default)]
    pub socket: PathBuf,
    /// File for all events.
    #[serde(default)]
    pub events: Option<PathBuf>,
    /// Threads that receive the requests of one mount. If the modelled disks seek, one thread keeps
    /// the order of requests.
    #[serde(default = "two")]
    pub request_threads: usize,
    /// Threads that send replies.
    #[serde(default = "two")]
    pub reply_threads: usize,
    /// The kernel's read-ahead \[KiB\]; absent: the specification's window for page faults.
    #[serde(default)]
    pub read_ahead_kb: Option<u64>,
}

fn one() -> f64 {
    1.0
}

fn two() -> usize {
    2
}

impl Configuration {
    /// A configuration with default values otherwise.
    pub fn new(backing: impl Into<PathBuf>, mounts: Vec<PathBuf>, spec: Spec) -> Configuration {
        Configuration {
            backing: backing.into(),
            mounts,
            spec,
            time_scale: 1.0,
            seed: 0,
            socket: PathBuf::new(),
            events: None,
            request_threads: 2,
            reply_threads: 2,
            read_ahead_kb: None,
        }
    }

    fn check(&self) -> Result<(), EmulatorError> {
        let expect = |holds: bool, text: String| if holds { Ok(()) } else { Err(EmulatorError::Wrong(text)) };
        let time_scale = self.time_scale;
        expect(
            (1e-3..=1e6).contains(&time_scale),
            format!("time_scale = {time_scale}: expected 0.001 to 1000000 (1 is real time)"),
        )?;
        for (name, threads) in
            [("request_threads", self.request_threads), ("reply_threads", self.reply_threads)]
        {
            expect((1..=64).contains(&threads), format!("{name} = {threads}: expected 1 to 64"))?;
        }
        expect(!self.mounts.is_empty(), "mounts: expected at least one mount point, found none".to_owned())
    }
}

/// A mount, and the thread that runs its session.
struct Running {
    mount: Arc<Mount>,
    thread: JoinHandle<()>,
}

/// A running emulator.
pub struct Emulator {
    configuration: Configuration,
    context: Arc<Context>,
    /// The sessions; `None` once the emulator has ended. Held while one is mounted or unmounted.
    running: Mutex<Option<Vec<Running>>>,
    helpers: Mutex<Vec<JoinHandle<()>>>,
    /// Closing it ends the thread of the event file.
    stop_events: Mutex<Option<Sender<()>>>,
    /// Called whenever a mount has ended.
    on_end: Arc<dyn Fn() + Send + Sync>,
    started_cpu_s: f64,
}

impl Emulator {
    /// Mounts everything; returns once all mounts are ready.
    pub fn start(configuration: &Configuration) -> Result<Emulator, EmulatorError> {
        Emulator::start_with(configuration, Arc::new(|| {}))
    }

    pub(crate) fn start_with(
        configuration: &Configuration,
        on_end: Arc<dyn Fn() + Send + Sync>,
    ) -> Result<Emulator, EmulatorError> {
        configuration.check()?;
        let backing = mount_point::check_backing(&configuration.backing)?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root: OwnedFd = rustix::fs::open(&backing, flags, Mode::empty())
            .map_err(|error| doing("opening the backing directory", &backing)(error.into()))?;
        let configuration = Configuration { backing, ..configuration.clone() };
        raise_file_limit();

        let model = Model::new(configuration.spec.clone(), configuration.seed)?;
        let clock = Clock::new(configuration.time_scale);
        let scheduler = ReplyScheduler::start(clock, configuration.reply_threads)
            .map_err(thread_error("the reply threads of the emulator"))?;
        let (sender, deferred_work) = mpsc::channel();
        let mounts = Arc::new(RwLock::default());
        let context = Arc::new(Context {
            spec: configuration.spec.clone(),
            clock,
            root: Arc::new(root),
            state: Mutex::new(EmulatorState::new(model)),
            numbers: Mutex::new(FileNumbers::default()),
            scheduler,
            deferred: sender,
            mounts: Arc::clone(&mounts),
            in_flight: InFlight::default(),
            sizes: RwLock::default(),
            round_trip: RoundTrip::default(),
        });
        let emulator = Emulator {
            configuration,
            context,
            running: Mutex::new(Some(Vec::new())),
            helpers: Mutex::default(),
            stop_events: Mutex::default(),
            on_end,
            started_cpu_s: stats::cpu_seconds(),
        };
        emulator.start_helper("pfs-deferred", move || deferred::run(&mounts, &deferred_work))?;
        emulator.start_event_file()?;
        for mount in &emulator.configuration.mounts {
            // On failure, dropping the emulator unmounts the earlier ones.
            emulator.mount(mount)?;
        }
        Ok(emulator)
    }

    /// The configuration, with absolute paths.
    pub fn configuration(&self) -> &Configuration {
        &self.configuration
    }

    /// The current mount points.
    pub fn mounts(&self) -> Vec<PathBuf> {
        self.context.mounts().iter().map(|mount| mount.path.clone()).collect()
    }

    fn start_helper(&self, name: &str, work: impl FnOnce() + Send + 'static) -> Result<(), EmulatorError> {
        let helper = thread::Builder::new().name(name.to_owned()).spawn(work);
        let helper = helper.map_err(thread_error(format!("thread \"{name}\" of the emulator")))?;
        locked(&self.helpers).push(helper);
        Ok(())
    }

    fn start_event_file(&self) -> Result<(), EmulatorError> {
        let Some(path) = self.configuration.events.clone() else { return Ok(()) };
        let mut file = event_file::create(&path, &self.configuration.spec, self.configuration.time_scale)
            .map_err(doing("creating the event file", &path))?;
        let (stop, stopped) = mpsc::channel();
        *locked(&self.stop_events) = Some(stop);
        let context = self.context.clone();
        self.start_helper("pfs-events", move || {
            if let Err(error) = event_file::append(&context, &mut file, &stopped) {
                eprintln!("forebay pfs: writing the event file {}: {error}", path.display());
            }
        })
    }

    /// Adds a mount: one more node.
    pub fn mount(&self, mount: &Path) -> Result<(), EmulatorError> {
        let mut running = locked(&self.running);
        let Some(running) = &mut *running else {
            return Err(EmulatorError::mount(mount, "the emulator has ended", ""));
        };
        let path = mount_point::check_mount_point(mount, &self.configuration.backing)?;
        let node = locked(&self.context.state).model.add_node();
        let failed = |error: std::io::Error| mount_point::explain(&path, &error);
        let mount = Arc::new(Mount::new(node, path.clone(), self.context.root.clone()).map_err(failed)?);
        let descriptor = mount_point::mount(&path, &self.configuration.socket).map_err(failed)?;
        let device = mount_point::device_of(&path).unwrap_or_default();
        let session = self.session(&mount, descriptor).map_err(|error| {
            let _ = mount_point::unmount(&path, &device);
            failed(error)
        })?;
        let _ = mount.notifier.set(session.notifier());
        let wanted_kb = self.configuration.read_ahead_kb;
        let wanted_kb = wanted_kb.unwrap_or(self.configuration.spec.read_ahead_mmap_bytes / 1024);
        if let Some(kb) = mount_point::set_read_ahead(&device, wanted_kb) {
            let _ = mount.read_ahead_kb.set(kb);
        }
        let _ = mount.device.set(device.clone());
        write_locked(&self.context.mounts).push(mount.clone());
        let thread = self.run_session(session, &mount).map_err(|error| {
            self.remove(&mount);
            let _ = mount_point::unmount(&path, &device);
            thread_error(format!("the thread of mount {}", path.display()))(error)
        })?;
        running.push(Running { mount, thread });
        if running.len() == 1 && !self.configuration.spec.is_free() {
            self.context.round_trip.measure(&path);
            self.context.scheduler.reset();
        }
        Ok(())
    }

    fn session(&self, mount: &Arc<Mount>, descriptor: OwnedFd) -> std::io::Result<Session<MountFileSystem>> {
        let mut options = Config::default();
        // Two threads may book two requests in reverse order. If disks seek, that would cost seeks.
        let seeks = self.configuration.spec.seek_us > 0.0;
        options.n_threads = Some(if seeks { 1 } else { self.configuration.request_threads });
        let file_system = MountFileSystem::new(self.context.clone(), mount.clone());
        Session::from_fd(file_system, descriptor, SessionACL::Owner, options)
    }

    fn run_session(
        &self,
        session: Session<MountFileSystem>,
        mount: &Arc<Mount>,
    ) -> std::io::Result<JoinHandle<()>> {
        let (mount, mounts, on_end) = (mount.clone(), self.context.mounts.clone(), self.on_end.clone());
        thread::Builder::new().name(format!("pfs-mount-{}", mount.node.0)).spawn(move || {
            system::use_real_time_priority();
            // Ok: unmounted. Err: the connection was aborted, or the session's threads were
            // refused.
            let result = session.run();
            system::use_ordinary_priority();
            // A partitioned mount stays in the list until it is unmounted.
            if mount.connection() != MountState::Aborted {
                if let Err(error) = result
                    && error.raw_os_error() == Some(libc::EAGAIN)
                {
                    let path = mount.path.display();
                    eprintln!("forebay pfs: mount {path}: cannot start its threads: {error}");
                }
                write_locked(&mounts).retain(|other| !Arc::ptr_eq(other, &mount));
            }
            on_end();
        })
    }

    fn remove(&self, mount: &Arc<Mount>) {
        write_locked(&self.context.mounts).retain(|other| !Arc::ptr_eq(other, mount));
    }

    fn find(&self, mount: &Path) -> Result<Arc<Mount>, EmulatorError> {
        let path = std::path::absolute(mount).unwrap_or_else(|_| mount.to_owned());
        let all = self.context.mounts();
        let found = all.iter().find(|one| one.path == path || one.path == mount).cloned();
        // Resolve links in all but the last component, which may be a mount that does not answer.
        let found = found.or_else(|| {
            let resolved = path.parent()?.canonicalize().ok()?.join(path.file_name()?);
            all.iter().find(|one| one.path == resolved).cloned()
        });
        found.ok_or_else(|| {
            EmulatorError::mount(mount, "not a mount of this emulator", "`forebay pfs list` shows all mounts")
        })
    }

    /// Unmounts, also while programs use the mount; returns whether it was the last one.
    pub fn unmount(&self, mount: &Path) -> Result<bool, EmulatorError> {
        let mount = self.find(mount)?;
        self.unmount_found(&mount)?;
        if let Some(running) = &mut *locked(&self.running)
            && let Some(index) = running.iter().position(|one| Arc::ptr_eq(&one.mount, &mount))
        {
            join(running.swap_remove(index));
        }
        Ok(self.context.mounts().is_empty())
    }

    fn unmount_found(&self, mount: &Arc<Mount>) -> Result<(), EmulatorError> {
        let device = mount.device.get().map_or("", String::as_str);
        mount_point::unmount(&mount.path, device).map_err(doing("unmounting", &mount.path))?;
        // If a program holds the mount and the connection cannot be aborted, requests still arrive.
        mount.replace_connection(MountState::Serving, MountState::Refusing);
        self.context.scheduler.expedite(mount.node);
        self.remove(mount);
        Ok(())
    }

    /// Empties the kernel's page cache of one node; returns the number of files.
    pub fn drop_caches(&self, mount: &Path) -> Result<u64, EmulatorError> {
        Ok(self.find(mount)?.drop_caches())
    }

    /// Sets all counters to zero and empties the model's queues. Events and faults stay.
    pub fn reset(&self) {
        let mut state = locked(&self.context.state);
        state.model.reset();
        state.counters = Counters::default();
        drop(state);
        self.context.scheduler.reset();
        self.context.in_flight.reset();
        for mount in self.context.mounts() {
            mount.in_flight.reset();
        }
    }

    /// Injects a fault, or clears all.
    pub fn fault(&self, fault: &Fault) -> Result<(), EmulatorError> {
        match fault {
            Fault::Eio { file, from, to } => {
                let found = self.file(file)?;
                if from >= to {
                    return Err(EmulatorError::Wrong(format!(
                        "fault eio on {file}: expected a non-empty range, found from {from} to {to}"
                    )));
                }
                locked(&self.context.state).faults.add_unreadable(found, *from, *to);
            }
            Fault::Stall { server, for_seconds } => {
                if !(0.0..=1e9).contains(for_seconds) {
                    return Err(EmulatorError::Wrong(format!(
                        "fault stall: for_seconds: expected 0 to 1e9 model seconds, found {for_seconds}"
                    )));
                }
                let until = self.context.clock.model_now() + (for_seconds * 1e9) as u64;
                let mut state = locked(&self.context.state);
                state.model.stall(ServerId(*server), until)?;
                state.faults.stall(ServerId(*server), until);
            }
            Fault::Slow { server, factor } => {
                let mut state = locked(&self.context.state);
                state.model.slow(ServerId(*server), *factor)?;
                state.faults.slow(ServerId(*server), *factor);
            }
            Fault::Partition { mount } => {
                let mount = self.find(Path::new(mount))?;
                // Set first, because the thread of the session reads it as soon as it ends.
                mount.set_connection(MountState::Aborted);
                let device = mount.device.get().map_or("", String::as_str);
                if !mount_point::abort_connection(&mount.path, device) {
                    mount.set_connection(MountState::Refusing);
                }
                self.context.scheduler.expedite(mount.node);
            }
            Fault::Clear => self.clear_faults()?,
        }
        Ok(())
    }

    fn clear_faults(&self) -> Result<(), EmulatorError> {
        let mut state = locked(&self.context.state);
        let stalls = state.faults.stalled(self.context.clock.model_now()).next().is_some();
        for server in state.faults.clear() {
            state.model.stall(server, 0)?;
            state.model.slow(server, 1.0)?;
        }
        if stalls {
            // The requests that wait for a stall are answered below; later ones do not queue behind
            // them.
            state.model.clear_transfers();
        }
        drop(state);
        for mount in self.context.mounts() {
            mount.replace_connection(MountState::Refusing, MountState::Serving);
            if stalls {
                self.context.scheduler.expedite(mount.node);
            }
        }
        Ok(())
    }

    /// The number of a file below the root.
    fn file(&self, name: &str) -> Result<FileId, EmulatorError> {
        let path = self.configuration.backing.join(name);
        let failed = || doing("finding the file of a fault", &path);
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let opened =
            rustix::fs::openat2(&self.context.root, name, flags, Mode::empty(), ResolveFlags::BENEATH);
        let status = Status::of(opened.map_err(|error| failed()(error.into()))?).map_err(failed())?;
        let numbers = locked(&self.context.numbers).of(&status, || name.to_owned());
        numbers
            .file
            .ok_or_else(|| EmulatorError::Wrong(format!("fault eio on {name}: expected a regular file")))
    }

    /// All counters, as `forebay pfs stats --json` prints them.
    pub fn stats(&self) -> Value {
        stats::json(&self.context, stats::cpu_seconds() - self.started_cpu_s)
    }

    /// All counters in the text format of Prometheus.
    pub fn prometheus(&self) -> String {
        stats::prometheus(&self.stats())
    }

    /// The kept events from number `since` on, and the number of the next one.
    pub fn events(&self, since: u64) -> (Vec<Value>, u64) {
        let state = locked(&self.context.state);
        let (events, next) = (state.events.since(since), state.events.next());
        drop(state);
        let numbers = locked(&self.context.numbers);
        (events.iter().map(|event| event.row(numbers.name(event.file))).collect(), next)
    }

    /// Unmounts everything and joins all threads. Fails if a mount cannot be unmounted.
    pub fn end(&self) -> Result<(), EmulatorError> {
        let mut result = Ok(());
        let running = locked(&self.running).take().unwrap_or_default();
        for one in &running {
            if let Err(error) = self.unmount_found(&one.mount) {
                result = Err(error);
            }
        }
        running.into_iter().for_each(join);
        self.context.scheduler.stop();
        locked(&self.stop_events).take();
        let _ = self.context.deferred.send(Deferred::Stop);
        for helper in locked(&self.helpers).drain(..) {
            let _ = helper.join();
        }
        result
    }
}

impl Drop for Emulator {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            eprintln!("forebay pfs: {}", error.text());
        }
    }
}

/// Joins the thread of a mount. If programs hold a mount that cannot be aborted, the thread ends
/// with the process.
fn join(running: Running) {
    let begun = Instant::now();
    while !running.thread.is_finished() && begun.elapsed() < MAX_JOIN {
        thread::sleep(Duration::from_millis(1));
    }
    if running.thread.is_finished() {
        let _ = running.thread.join();
    }
}

/// Raises the limit on open files: each directory of the tree is held by a descriptor.
fn raise_file_limit() {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    // Every user may raise the limit up to the hard one.
    let raised = rustix::process::Rlimit { current: limit.maximum, maximum: limit.maximum };
    let _ = rustix::process::setrlimit(rustix::process::Resource::Nofile, raised);
}
