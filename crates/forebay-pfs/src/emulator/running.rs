//! All mounts of one backing directory.
use std::io::{BufWriter, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use fuser::Session;
use rustix::fs::{Mode, OFlags};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::emulator::calibration::Calibration;
use crate::emulator::clock::Clock;
use crate::emulator::error::{EmulatorError, doing, thread as thread_error};
use crate::emulator::nodes::Identities;
use crate::emulator::operations::MountFileSystem;
use crate::emulator::shared::{InFlight, Mounted, Shared, State, locked};
use crate::emulator::timers::Timers;
use crate::emulator::{errands, mounting, stats, system};
use crate::events::write_header;
use crate::faults::Fault;
use crate::model::{Model, ServerId};
use crate::spec::Spec;

/// How often new events are written to their file.
const WRITE_EVENTS: Duration = Duration::from_millis(100);

/// How long the end waits for the threads of a mount that programs still hold where we may not cut its connection.
const WAIT_FOR_MOUNT: Duration = Duration::from_secs(2);

/// What to emulate, and where.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Configuration {
    /// The directory that has the files.
    pub backing: PathBuf,
    /// Empty directories; each becomes a node.
    pub mounts: Vec<PathBuf>,
    /// The file system to imitate.
    pub spec: Spec,
    /// How many real seconds a model second takes.
    #[serde(default = "one")]
    pub time_scale: f64,
    /// Of the model's jitter.
    #[serde(default)]
    pub seed: u64,
    /// The control socket; also names the mounts.
    #[serde(default)]
    pub socket: PathBuf,
    /// Where to write all reads as they come.
    #[serde(default)]
    pub events: Option<PathBuf>,
    /// Threads that take the requests of one mount; one where the modelled disks seek, to keep the order.
    #[serde(default = "two")]
    pub loop_threads: usize,
    /// Threads that send replies at their time.
    #[serde(default = "two")]
    pub timer_threads: usize,
    /// What the kernel shall read ahead \[KiB\]; absent: the specification's read-ahead of mappings.
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
    /// A configuration with default values for all that is not named here.
    pub fn new(backing: impl Into<PathBuf>, mounts: Vec<PathBuf>, spec: Spec) -> Configuration {
        Configuration {
            backing: backing.into(),
            mounts,
            spec,
            time_scale: 1.0,
            seed: 0,
            socket: PathBuf::new(),
            events: None,
            loop_threads: 2,
            timer_threads: 2,
            read_ahead_kb: None,
        }
    }

    fn check(&self) -> Result<(), EmulatorError> {
        let expect = |holds: bool, text: String| if holds { Ok(()) } else { Err(EmulatorError::Wrong(text)) };
        let time_scale = self.time_scale;
        expect(
            (1e-3..=1e6).contains(&time_scale),
            format!("time_scale = {time_scale}: expected a factor from 0.001 to 1000000, 1 is none"),
        )?;
        for (name, threads) in [("loop_threads", self.loop_threads), ("timer_threads", self.timer_threads)] {
            expect((1..=64).contains(&threads), format!("{name} = {threads}: expected 1 to 64"))?;
        }
        expect(!self.mounts.is_empty(), "mounts: expected at least one mount point, found none".to_owned())
    }
}

/// A mount and the thread that runs it.
struct Running {
    mount: Arc<Mounted>,
    thread: JoinHandle<()>,
}

/// A running emulator.
pub struct Emulator {
    configuration: Configuration,
    shared: Arc<Shared>,
    running: Mutex<Vec<Running>>,
    helpers: Mutex<Vec<JoinHandle<()>>>,
    stop_events: Mutex<Option<Sender<()>>>,
    /// Called whenever a mount has ended.
    on_end: Arc<dyn Fn() + Send + Sync>,
    started_cpu_s: f64,
    ended: AtomicBool,
}

impl Emulator {
    /// Mounts everything; answers once all mounts can be used.
    pub fn start(configuration: &Configuration) -> Result<Emulator, EmulatorError> {
        Emulator::start_with(configuration, Arc::new(|| {}))
    }

    pub(crate) fn start_with(
        configuration: &Configuration,
        on_end: Arc<dyn Fn() + Send + Sync>,
    ) -> Result<Emulator, EmulatorError> {
        configuration.check()?;
        let backing = mounting::check_backing(&configuration.backing)?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root: OwnedFd = rustix::fs::open(&backing, flags, Mode::empty())
            .map_err(|error| doing("opening the backing directory", &backing)(error.into()))?;
        let configuration = Configuration { backing, ..configuration.clone() };
        raise_file_limit();

        let model = Model::new(configuration.spec.clone(), configuration.seed)?;
        let clock = Clock::new(configuration.time_scale);
        let timers = Timers::start(clock, configuration.timer_threads)
            .map_err(thread_error("the timer threads of the emulator"))?;
        let (errands, errands_left) = mpsc::channel();
        let shared = Arc::new(Shared {
            spec: configuration.spec.clone(),
            clock,
            root: Arc::new(root),
            state: Mutex::new(State::new(model)),
            identities: Mutex::new(Identities::default()),
            timers,
            errands,
            mounts: RwLock::default(),
            in_flight: InFlight::default(),
            sizes: RwLock::default(),
            calibration: Calibration::default(),
        });
        let emulator = Emulator {
            configuration,
            shared: shared.clone(),
            running: Mutex::default(),
            helpers: Mutex::default(),
            stop_events: Mutex::default(),
            on_end,
            started_cpu_s: stats::cpu_seconds(),
            ended: AtomicBool::new(false),
        };
        emulator.help("pfs-errands", move || errands::run(&shared, &errands_left))?;
        emulator.write_events()?;
        for mount in &emulator.configuration.mounts {
            // What is mounted already goes again when the emulator is dropped.
            emulator.mount(mount)?;
        }
        Ok(emulator)
    }

    /// What it was started with; paths are absolute.
    pub fn configuration(&self) -> &Configuration {
        &self.configuration
    }

    /// Where it is mounted now.
    pub fn mounts(&self) -> Vec<PathBuf> {
        self.shared.mounts().iter().map(|mount| mount.path.clone()).collect()
    }

    fn help(&self, name: &str, work: impl FnOnce() + Send + 'static) -> Result<(), EmulatorError> {
        let helper = thread::Builder::new().name(name.to_owned()).spawn(work);
        let helper = helper.map_err(thread_error(format!("thread \"{name}\" of the emulator")))?;
        locked(&self.helpers).push(helper);
        Ok(())
    }

    /// Starts the thread that writes the event file.
    fn write_events(&self) -> Result<(), EmulatorError> {
        let Some(path) = &self.configuration.events else { return Ok(()) };
        let file = std::fs::File::create(path).map_err(doing("creating the event file", path))?;
        let mut out = BufWriter::new(file);
        write_header(&mut out, &self.configuration.spec, self.configuration.time_scale)
            .map_err(doing("writing the event file", path))?;
        let (stop, stopped) = mpsc::channel();
        *locked(&self.stop_events) = Some(stop);
        let shared = self.shared.clone();
        let path = path.clone();
        self.help("pfs-events", move || {
            if let Err(error) = append_events(&shared, &mut out, &stopped) {
                eprintln!("forebay pfs: writing the event file {}: {error}", path.display());
            }
        })
    }

    /// Mounts once more: one more node.
    pub fn mount(&self, mount: &Path) -> Result<(), EmulatorError> {
        // One at a time, and none once the end has begun.
        let mut running = locked(&self.running);
        if self.ended.load(Ordering::SeqCst) {
            return Err(EmulatorError::mount(mount, "the emulator is ending", ""));
        }
        let path = mounting::check_mount_point(mount, &self.configuration.backing)?;
        let node = locked(&self.shared.state).model.add_node();
        let failed = |error: std::io::Error| mounting::explain(&path, &error);
        let mounted = Arc::new(Mounted::new(node, path.clone(), self.shared.root.clone()).map_err(failed)?);
        let filesystem = MountFileSystem::new(self.shared.clone(), mounted.clone());
        let source = mounting::text(self.configuration.socket.as_os_str());
        // Two threads may book two requests in the other order than they came; where disks seek, that would make them.
        let seeks = self.configuration.spec.seek_us > 0.0;
        let loop_threads = if seeks { 1 } else { self.configuration.loop_threads };
        let (acl, options) = mounting::session_options(loop_threads);
        let descriptor = mounting::mount(&path, &source).map_err(failed)?;
        let device = mounting::device_of(&path).unwrap_or_default();
        // Whatever fails from here on takes the mount along.
        let unmount = |error: std::io::Error| {
            let _ = mounting::unmount(&path, &device);
            failed(error)
        };
        let session = Session::from_fd(filesystem, descriptor, acl, options).map_err(unmount)?;
        let _ = mounted.notifier.set(session.notifier());
        let wanted_kb = self.configuration.read_ahead_kb;
        let wanted_kb = wanted_kb.unwrap_or(self.configuration.spec.read_ahead_mmap_bytes / 1024);
        if let Some(kb) = mounting::set_read_ahead(&device, wanted_kb) {
            let _ = mounted.read_ahead_kb.set(kb);
        }
        let _ = mounted.device.set(device.clone());
        write(&self.shared.mounts).push(mounted.clone());
        let (shared, on_end, ending) = (self.shared.clone(), self.on_end.clone(), mounted.clone());
        let run = move || {
            system::take_precedence();
            // Ends without error when the mount goes, and with one when its connection is cut, or a thread of it was refused.
            if let Err(error) = session.run()
                && !ending.cut.load(Ordering::SeqCst)
                && error.raw_os_error() == Some(libc::EAGAIN)
            {
                eprintln!("forebay pfs: {}: cannot start its threads: {error}", ending.path.display());
            }
            system::yield_precedence();
            if !ending.cut.load(Ordering::SeqCst) {
                write(&shared.mounts).retain(|other| !Arc::ptr_eq(other, &ending));
            }
            on_end();
        };
        let thread = thread::Builder::new().name(format!("pfs-mount-{}", node.0)).spawn(run);
        let thread = thread.map_err(|error| {
            write(&self.shared.mounts).retain(|other| !Arc::ptr_eq(other, &mounted));
            let _ = mounting::unmount(&path, &device);
            thread_error(format!("the thread of mount {}", path.display()))(error)
        })?;
        running.push(Running { mount: mounted, thread });
        if running.len() == 1 && !self.configuration.spec.is_free() {
            self.shared.calibration.measure(&path);
            self.shared.timers.reset();
        }
        Ok(())
    }

    fn find(&self, mount: &Path) -> Result<Arc<Mounted>, EmulatorError> {
        let path = std::path::absolute(mount).unwrap_or_else(|_| mount.to_owned());
        let all = self.shared.mounts();
        let found = all.iter().find(|one| one.path == path || one.path == mount).cloned();
        // A link in the path: resolve all but the last component, which may be a mount that does not answer.
        let found = found.or_else(|| {
            let parent = path.parent()?.canonicalize().ok()?.join(path.file_name()?);
            all.iter().find(|one| one.path == parent).cloned()
        });
        found.ok_or_else(|| {
            EmulatorError::mount(mount, "no mount of this emulator", "`forebay pfs list` shows all mounts")
        })
    }

    /// Takes a mount away, also while programs use it; answers whether it was the last one.
    pub fn unmount(&self, mount: &Path) -> Result<bool, EmulatorError> {
        let mounted = self.find(mount)?;
        self.take_away(&mounted)?;
        let mut running = locked(&self.running);
        if let Some(place) = running.iter().position(|one| Arc::ptr_eq(&one.mount, &mounted)) {
            join(running.swap_remove(place));
        }
        drop(running);
        Ok(self.shared.mounts().is_empty())
    }

    fn take_away(&self, mounted: &Arc<Mounted>) -> Result<(), EmulatorError> {
        let device = mounted.device.get().map_or("", String::as_str);
        mounting::unmount(&mounted.path, device).map_err(doing("unmounting", &mounted.path))?;
        // Where a program holds the mount and the connection may not be cut, requests go on coming.
        mounted.dead.store(true, Ordering::SeqCst);
        self.shared.timers.hurry(mounted.node);
        write(&self.shared.mounts).retain(|other| !Arc::ptr_eq(other, mounted));
        Ok(())
    }

    /// Makes one node cold: drops what the kernel caches for this mount, mapped pages included; answers of how many files.
    pub fn drop_caches(&self, mount: &Path) -> Result<u64, EmulatorError> {
        Ok(self.find(mount)?.drop_caches())
    }

    /// Sets all counters to zero and empties the queues. Events are kept; faults stay.
    pub fn reset(&self) {
        let mut state = locked(&self.shared.state);
        state.model.reset();
        state.counters = crate::counters::Counters::default();
        drop(state);
        self.shared.timers.reset();
        self.shared.in_flight.reset();
        for mount in self.shared.mounts() {
            mount.in_flight.reset();
        }
    }

    /// Breaks something, or repairs everything.
    pub fn fault(&self, fault: &Fault) -> Result<(), EmulatorError> {
        match fault {
            Fault::Eio { file, from, to } => {
                let found = self.file(file)?;
                if from >= to {
                    let text = format!(
                        "fault eio on {file}: from {from} to {to}: expected a range that is not empty"
                    );
                    return Err(EmulatorError::Wrong(text));
                }
                locked(&self.shared.state).faults.spoil(found, *from, *to);
            }
            Fault::Stall { server, for_seconds } => {
                if !(0.0..=1e9).contains(for_seconds) {
                    let text =
                        format!("fault stall: for_seconds = {for_seconds}: expected 0 to 1e9 model seconds");
                    return Err(EmulatorError::Wrong(text));
                }
                let until = self.shared.now() + (for_seconds * 1e9) as u64;
                let mut state = locked(&self.shared.state);
                state.model.stall(ServerId(*server), until)?;
                state.faults.stall(ServerId(*server), until);
            }
            Fault::Slow { server, factor } => {
                let mut state = locked(&self.shared.state);
                state.model.slow(ServerId(*server), *factor)?;
                state.faults.slow(ServerId(*server), *factor);
            }
            Fault::Partition { mount } => {
                let mounted = self.find(Path::new(mount))?;
                mounted.dead.store(true, Ordering::SeqCst);
                // Where we may not cut the connection, all that comes is refused, and all that waits is answered now.
                // Said before it is done, as the end of its session is the first to ask.
                mounted.cut.store(true, Ordering::SeqCst);
                let device = mounted.device.get().map_or("", String::as_str);
                mounted.cut.store(mounting::cut(&mounted.path, device), Ordering::SeqCst);
                self.shared.timers.hurry(mounted.node);
            }
            Fault::Clear => {
                let mut state = locked(&self.shared.state);
                let now = self.shared.now();
                let stalls = state.faults.stalled(now).next().is_some();
                for server in state.faults.clear() {
                    state.model.stall(server, 0)?;
                    state.model.slow(server, 1.0)?;
                }
                // What waits for the end of a stall is answered below, and nothing queues behind it.
                if stalls {
                    state.model.forget_transfers();
                }
                drop(state);
                for mount in self.shared.mounts() {
                    let cut = mount.cut.load(Ordering::SeqCst);
                    mount.dead.store(cut, Ordering::SeqCst);
                    if stalls {
                        self.shared.timers.hurry(mount.node);
                    }
                }
            }
        }
        Ok(())
    }

    /// The number of a file below the root; a new one when nobody has looked at it yet.
    fn file(&self, name: &str) -> Result<crate::model::FileId, EmulatorError> {
        let path = self.configuration.backing.join(name);
        let failed = |error: rustix::io::Errno| doing("finding the file of a fault", &path)(error.into());
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let resolve = rustix::fs::ResolveFlags::BENEATH;
        let opened = rustix::fs::openat2(&self.shared.root, name, flags, Mode::empty(), resolve);
        let status = crate::emulator::backing::Status::of(opened.map_err(failed)?)
            .map_err(doing("finding the file of a fault", &path))?;
        let identity = locked(&self.shared.identities).of(&status, || name.to_owned());
        identity
            .file
            .ok_or_else(|| EmulatorError::Wrong(format!("fault eio on {name}: expected a regular file")))
    }

    /// Everything that was counted, as `forebay pfs stats --json` prints it.
    pub fn stats(&self) -> Value {
        stats::json(&self.shared, stats::cpu_seconds() - self.started_cpu_s)
    }

    /// The same in the text format of Prometheus.
    pub fn prometheus(&self) -> String {
        stats::prometheus(&self.stats())
    }

    /// Reads from number `since` on that are still kept, and the number of the next one.
    pub fn events(&self, since: u64) -> (Vec<Value>, u64) {
        let state = locked(&self.shared.state);
        let (events, next) = (state.events.since(since), state.events.next());
        drop(state);
        let identities = locked(&self.shared.identities);
        (events.iter().map(|event| event.row(identities.name(event.file))).collect(), next)
    }

    /// Unmounts everything and waits until all threads are gone. Mounts that could not be taken away are the error.
    pub fn end(&self) -> Result<(), EmulatorError> {
        self.ended.store(true, Ordering::SeqCst);
        let mut result = Ok(());
        let running = std::mem::take(&mut *locked(&self.running));
        for one in &running {
            if let Err(error) = self.take_away(&one.mount) {
                result = Err(error);
            }
        }
        running.into_iter().for_each(join);
        self.shared.timers.stop();
        locked(&self.stop_events).take();
        let _ = self.shared.errands.send(errands::Errand::Stop);
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

fn write<T>(lock: &RwLock<T>) -> std::sync::RwLockWriteGuard<'_, T> {
    lock.write().unwrap_or_else(PoisonError::into_inner)
}

/// Waits for a mount's threads. Where a program holds the mount and we may not cut the connection, they go with the process.
fn join(running: Running) {
    let begun = Instant::now();
    while !running.thread.is_finished() && begun.elapsed() < WAIT_FOR_MOUNT {
        thread::sleep(Duration::from_millis(1));
    }
    if running.thread.is_finished() {
        let _ = running.thread.join();
    }
}

/// Directories are held by descriptors; a tree may have more than the usual 1024.
fn raise_file_limit() {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    // Refused never: up to the hard limit everybody may.
    let raised = rustix::process::Rlimit { current: limit.maximum, maximum: limit.maximum };
    let _ = rustix::process::setrlimit(rustix::process::Resource::Nofile, raised);
}

/// Writes events as they come, until told to stop, and then the last ones.
fn append_events(shared: &Shared, out: &mut impl Write, stopped: &Receiver<()>) -> std::io::Result<()> {
    let mut next = 0;
    loop {
        let ending = !matches!(stopped.recv_timeout(WRITE_EVENTS), Err(RecvTimeoutError::Timeout));
        let state = locked(&shared.state);
        let events = state.events.since(next);
        let end = state.events.next();
        drop(state);
        let lost = end - next - events.len() as u64;
        if lost > 0 {
            eprintln!("forebay pfs: {lost} events came faster than they could be written to the event file");
        }
        next = end;
        let mut rows = Vec::new();
        let identities = locked(&shared.identities);
        for event in events {
            writeln!(rows, "{}", event.row(identities.name(event.file)))?;
        }
        drop(identities);
        out.write_all(&rows)?;
        out.flush()?;
        if ending {
            return Ok(());
        }
    }
}
