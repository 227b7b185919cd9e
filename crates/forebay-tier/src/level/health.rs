//! Which levels work: from the errors and times of the requests that this process makes of them.
//!
//! A level begins as [`LevelState::Open`]. If no more can be allocated, or it is read-only, it
//! becomes [`LevelState::Full`]: it goes on serving, without a warning. If a read or a write of it
//! fails, or it is much slower than the source for a while, it becomes [`LevelState::Out`], with
//! one warning. It never returns. While a read of it hangs, it counts as out, too.
//!
//! What a read asks and records are atomic operations. Only warnings take a lock.

use std::fmt;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::table::LevelState;

/// Requests over which the times of a level and of the source are compared.
const WINDOW: usize = 32;

/// A level is slow if its median is more than this many times that of the source.
const SLOW_FACTOR: u64 = 4;

/// Windows in a row in which a level is slow before it is left out: a burst of other work on its
/// device is over by then.
const SLOW_WINDOWS: u32 = 4;

/// Whatever the source does, a level that answers as fast as one busy disk is not slow: 10 ms for
/// each request and 10 ns for each byte (100 MB/s). Where reads of the source come from the page
/// cache, any device is slow beside it.
const DISK_REQUEST_NS: u64 = 10_000_000;
const DISK_BYTE_NS: u64 = 10;

/// A read that takes longer than this hangs: new ones go elsewhere until it is answered.
const HANG: Duration = Duration::from_secs(5);

/// Reads of a level that are marked at a time; more go unmarked.
const MARKS: usize = 32;

/// What was attempted when a level failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LevelOperation {
    /// A copy was to be read.
    Read,
    /// A copy was to be written.
    Write,
    /// Space for copies was to be reserved.
    Allocate,
}

impl LevelOperation {
    fn verb(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Allocate => "allocate",
        }
    }
}

/// The health of all levels, as far as this process knows.
pub struct Health {
    levels: Vec<LevelHealth>,
    source: ReadTimes,
    warnings: Mutex<Vec<String>>,
    /// Times are counted from here.
    begun: Instant,
    hang: Duration,
}

struct LevelHealth {
    /// The user's path.
    tier: String,
    /// A [`LevelState`], which only grows.
    state: AtomicU8,
    has_warned: AtomicBool,
    times: ReadTimes,
    /// Windows in a row in which it was slow.
    slow_windows: AtomicU32,
    /// When each read that is under way began [ns since `Health::begun`, at least 1]; 0: free.
    under_way: [AtomicU64; MARKS],
}

impl Health {
    /// The health of levels that nothing is known of; `levels` are the paths that the user gave.
    #[must_use]
    pub fn new(levels: &[String]) -> Arc<Self> {
        Arc::new(Self::with_hang(levels, HANG))
    }

    fn with_hang(levels: &[String], hang: Duration) -> Self {
        let level = |tier: &String| LevelHealth {
            tier: tier.clone(),
            state: AtomicU8::new(LevelState::Open as u8),
            has_warned: AtomicBool::new(false),
            times: ReadTimes::default(),
            slow_windows: AtomicU32::new(0),
            under_way: [const { AtomicU64::new(0) }; MARKS],
        };
        Self {
            levels: levels.iter().map(level).collect(),
            source: ReadTimes::default(),
            warnings: Mutex::default(),
            begun: Instant::now(),
            hang,
        }
    }

    /// What a level can be used for; one that does not exist is out.
    #[must_use]
    pub fn state(&self, level: u8) -> LevelState {
        let Some(level) = self.levels.get(usize::from(level)) else { return LevelState::Out };
        let state = level.state();
        if state != LevelState::Out && self.hangs(level) {
            let seconds = self.hang.as_secs();
            self.warn(level, format_args!("read: no answer for {seconds} s: not used until it answers"));
            return LevelState::Out;
        }
        state
    }

    /// Marks a read of a level from now on, until the mark is dropped. [`ReadMark::end`] also
    /// records how long it took.
    pub fn begin_read(&self, level: u8) -> ReadMark<'_> {
        let begun = Instant::now();
        let place = self.levels.get(usize::from(level)).and_then(|level| {
            let now = (begun - self.begun).as_nanos().max(1) as u64;
            let first = level.times.count.load(Ordering::Relaxed) as usize;
            (0..MARKS).map(|next| &level.under_way[(first + next) % MARKS]).find(|place| {
                place.load(Ordering::Relaxed) == 0
                    && place.compare_exchange(0, now, Ordering::Relaxed, Ordering::Relaxed).is_ok()
            })
        });
        ReadMark { health: self, level, begun, place }
    }

    /// Records a read that brought bytes, of a level or (`None`) of the source.
    pub fn read(&self, level: Option<u8>, bytes: u64, took: Duration) {
        if bytes == 0 {
            return;
        }
        let Some(number) = level else {
            self.source.record(bytes, took);
            return;
        };
        let Some(level) = self.levels.get(usize::from(number)) else { return };
        if !level.times.record(bytes, took) {
            return;
        }
        let Some(source) = self.source.window() else { return };
        let Some(own) = level.times.window() else { return };
        if !is_slow(&own, &source) {
            level.slow_windows.store(0, Ordering::Relaxed);
        } else if level.slow_windows.fetch_add(1, Ordering::Relaxed) + 1 >= SLOW_WINDOWS {
            let ms = |window: &[ReadTime]| median(window, ReadTime::of_request) / 1_000_000;
            let (own, source) = (ms(&own), ms(&source));
            self.leave_out(level, format_args!("read: {own} ms a request (the source: {source} ms)"));
        }
    }

    /// Records that a level failed; returns whether it is left out, now or since before.
    pub fn failed(&self, level: u8, operation: LevelOperation, error: &io::Error) -> bool {
        let Some(level) = self.levels.get(usize::from(level)) else { return true };
        match effect(operation, error) {
            None => {}
            Some(LevelState::Out) => {
                self.leave_out(level, format_args!("{}: {}", operation.verb(), cause(error)));
            }
            Some(state) => {
                level.state.fetch_max(state as u8, Ordering::Relaxed);
            }
        }
        level.state() == LevelState::Out
    }

    /// Records that the daemon no longer uses a level.
    pub fn given_up(&self, level: u8) {
        if let Some(level) = self.levels.get(usize::from(level)) {
            self.leave_out(level, format_args!("the tier daemon cannot use it"));
        }
    }

    /// The warnings since the last call, at most one for each level in all.
    #[must_use]
    pub fn take_warnings(&self) -> Vec<String> {
        std::mem::take(&mut *self.warnings.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Whether a read of the level is under way.
    #[must_use]
    pub fn is_reading(&self, level: u8) -> bool {
        let level = self.levels.get(usize::from(level));
        level.is_some_and(|level| level.under_way.iter().any(|begun| begun.load(Ordering::Relaxed) != 0))
    }

    fn hangs(&self, level: &LevelHealth) -> bool {
        let begun = level.under_way.iter().map(|begun| begun.load(Ordering::Relaxed));
        let oldest = begun.filter(|begun| *begun != 0).min();
        oldest.is_some_and(|oldest| {
            self.begun.elapsed().saturating_sub(Duration::from_nanos(oldest)) >= self.hang
        })
    }

    fn leave_out(&self, level: &LevelHealth, problem: fmt::Arguments<'_>) {
        let before = level.state.fetch_max(LevelState::Out as u8, Ordering::Relaxed);
        if before != LevelState::Out as u8 {
            self.warn(level, format_args!("{problem}: no longer used"));
        }
    }

    fn warn(&self, level: &LevelHealth, problem: fmt::Arguments<'_>) {
        if level.has_warned.swap(true, Ordering::Relaxed) {
            return;
        }
        let warning = format!("tier {}: {problem}; reads go to the source", level.tier);
        self.warnings.lock().unwrap_or_else(PoisonError::into_inner).push(warning);
    }
}

impl LevelHealth {
    fn state(&self) -> LevelState {
        let state = self.state.load(Ordering::Relaxed);
        [LevelState::Open, LevelState::Full]
            .into_iter()
            .find(|known| *known as u8 == state)
            .unwrap_or(LevelState::Out)
    }
}

/// A read of a level that is under way.
pub struct ReadMark<'a> {
    health: &'a Health,
    level: u8,
    begun: Instant,
    place: Option<&'a AtomicU64>,
}

impl ReadMark<'_> {
    /// The read brought so many bytes; none: it failed.
    pub fn end(self, bytes: u64) {
        self.health.read(Some(self.level), bytes, self.begun.elapsed());
    }
}

impl Drop for ReadMark<'_> {
    fn drop(&mut self) {
        if let Some(place) = self.place {
            place.store(0, Ordering::Relaxed);
        }
    }
}

/// What a failure makes of a level; `None`: it is no fault of the level.
fn effect(operation: LevelOperation, error: &io::Error) -> Option<LevelState> {
    match (error.raw_os_error(), operation) {
        // The process lacks memory, descriptors or time.
        (Some(libc::EINTR | libc::EAGAIN | libc::ENOMEM | libc::EMFILE | libc::ENFILE), _) => None,
        // EFBIG is RLIMIT_FSIZE of the process. Space is reserved before it is written, so ENOSPC
        // of a write means that the level does not keep what it reserves.
        (Some(libc::ENOSPC | libc::EDQUOT), LevelOperation::Allocate)
        | (Some(libc::EROFS | libc::EFBIG), _) => Some(LevelState::Full),
        _ => Some(LevelState::Out),
    }
}

/// The error in words, without its number.
fn cause(error: &io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or_default().to_owned()
}

/// The last reads of one storage.
#[derive(Default)]
struct ReadTimes {
    count: AtomicU64,
    /// Packed [`ReadTime`]s.
    last: [AtomicU64; WINDOW],
}

/// How long a read took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ReadTime {
    took_ns: u64,
    bytes: u64,
}

/// Lengths are counted in units of this [bytes].
const PACKED_BYTES: u64 = 64;
const PACKED_BITS: u32 = 24;

impl ReadTime {
    /// One word: the time in 40 bits (18 minutes), the length in 24 (1 GiB).
    fn pack(self) -> u64 {
        let bytes = self.bytes.div_ceil(PACKED_BYTES).clamp(1, (1 << PACKED_BITS) - 1);
        (self.took_ns.min((1 << (64 - PACKED_BITS)) - 1) << PACKED_BITS) | bytes
    }

    fn unpack(word: u64) -> Self {
        Self { took_ns: word >> PACKED_BITS, bytes: (word & ((1 << PACKED_BITS) - 1)) * PACKED_BYTES }
    }

    fn of_request(self) -> u64 {
        self.took_ns
    }

    fn of_mib(self) -> u64 {
        (u128::from(self.took_ns) * (1 << 20) / u128::from(self.bytes.max(1))) as u64
    }

    fn of_disk(self) -> u64 {
        self.took_ns.saturating_sub(DISK_REQUEST_NS + self.bytes * DISK_BYTE_NS)
    }
}

impl ReadTimes {
    /// Returns whether a window ends with this read.
    fn record(&self, bytes: u64, took: Duration) -> bool {
        let took_ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        let number = self.count.fetch_add(1, Ordering::Relaxed) as usize;
        self.last[number % WINDOW].store(ReadTime { took_ns, bytes }.pack(), Ordering::Relaxed);
        number % WINDOW == WINDOW - 1
    }

    /// The last reads; `None` if there were not enough.
    fn window(&self) -> Option<[ReadTime; WINDOW]> {
        let is_full = self.count.load(Ordering::Relaxed) >= WINDOW as u64;
        is_full
            .then(|| std::array::from_fn(|place| ReadTime::unpack(self.last[place].load(Ordering::Relaxed))))
    }
}

fn median(window: &[ReadTime], of: impl Fn(ReadTime) -> u64) -> u64 {
    let mut values: Vec<u64> = window.iter().map(|read| of(*read)).collect();
    values.sort_unstable();
    values[values.len() / 2]
}

/// Whether a level is much slower than the source, for each request and for each byte: reads of
/// the two may differ in length, and the shorter ones take longer for each byte.
fn is_slow(level: &[ReadTime], source: &[ReadTime]) -> bool {
    let exceeds =
        |of: fn(ReadTime) -> u64| median(level, of) > SLOW_FACTOR.saturating_mul(median(source, of));
    exceeds(ReadTime::of_request) && exceeds(ReadTime::of_mib) && median(level, ReadTime::of_disk) > 0
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn health() -> Health {
        Health::with_hang(&["/fast".into(), "/big".into()], HANG)
    }

    fn error(number: i32) -> io::Error {
        io::Error::from_raw_os_error(number)
    }

    fn record(health: &Health, level: Option<u8>, times: usize, bytes: u64, took_ms: u64) {
        (0..times).for_each(|_| health.read(level, bytes, Duration::from_millis(took_ms)));
    }

    #[test]
    fn an_error_leaves_a_level_out_and_a_lack_of_space_only_closes_it() {
        use LevelOperation::{Allocate, Read, Write};
        let table = [
            (Allocate, libc::ENOSPC, LevelState::Full),
            (Allocate, libc::EDQUOT, LevelState::Full),
            (Allocate, libc::EROFS, LevelState::Full),
            (Write, libc::EROFS, LevelState::Full),
            (Write, libc::EFBIG, LevelState::Full),
            (Write, libc::ENOSPC, LevelState::Out),
            (Write, libc::EIO, LevelState::Out),
            (Allocate, libc::EIO, LevelState::Out),
            (Read, libc::EIO, LevelState::Out),
            (Read, libc::ENOENT, LevelState::Out),
            (Read, libc::ESTALE, LevelState::Out),
            (Read, libc::EMFILE, LevelState::Open),
            (Write, libc::ENOMEM, LevelState::Open),
        ];
        for (operation, number, state) in table {
            let health = health();
            for _ in 0..3 {
                assert_eq!(health.failed(1, operation, &error(number)), state == LevelState::Out);
                assert!(health.failed(7, operation, &error(number)));
            }
            assert_eq!(
                (health.state(1), health.state(0)),
                (state, LevelState::Open),
                "{operation:?} {number}"
            );
            let warnings = health.take_warnings();
            assert_eq!(warnings.len(), usize::from(state == LevelState::Out), "{warnings:?}");
            assert!(
                warnings.iter().all(|warning| warning.contains("/big")) && health.take_warnings().is_empty()
            );
        }
        assert_eq!(health().state(2), LevelState::Out);
    }

    #[test]
    fn a_level_that_is_out_stays_so() {
        let health = health();
        health.failed(0, LevelOperation::Read, &error(libc::EIO));
        health.failed(0, LevelOperation::Allocate, &error(libc::ENOSPC));
        assert_eq!(health.state(0), LevelState::Out);
        health.failed(0, LevelOperation::Write, &error(libc::EIO));
        assert_eq!(health.take_warnings().len(), 1);
    }

    #[test]
    fn a_level_is_slow_if_it_is_slower_by_request_and_by_byte_and_slower_than_a_disk() {
        let mib = 1 << 20;
        for (level, source, slow) in [
            ((100, mib), (20, mib), true),
            ((100, mib), (30, mib), false),
            // Shorter requests and yet slower; longer ones, but no slower for each byte.
            ((100, mib / 16), (20, mib), true),
            ((100, 16 * mib), (20, mib), false),
            // Shorter requests: slower for each byte alone.
            ((20, mib / 16), (20, mib), false),
            // The source comes from the page cache.
            ((15, mib), (0, mib), false),
            ((25, mib), (0, mib), true),
        ] {
            let window =
                |(took_ms, bytes): (u64, u64)| [ReadTime { took_ns: took_ms * 1_000_000, bytes }; WINDOW];
            assert_eq!(is_slow(&window(level), &window(source)), slow, "{level:?} {source:?}");
        }
    }

    #[test]
    fn a_level_is_left_out_after_several_slow_windows_and_not_after_a_stall() {
        let health = health();
        record(&health, Some(0), 10 * WINDOW, 1 << 16, 100);
        assert_eq!(health.state(0), LevelState::Open, "nothing is known of the source");
        record(&health, None, WINDOW, 1 << 16, 1);
        record(&health, Some(0), WINDOW, 0, 100);
        for _ in 0..2 * SLOW_WINDOWS {
            // A stall holds up less than half of a window, or all of a few windows.
            record(&health, Some(0), WINDOW / 2 - 1, 1 << 16, 4000);
            record(&health, Some(0), WINDOW / 2 + 1, 1 << 16, 1);
        }
        record(&health, Some(0), 3 * WINDOW, 1 << 16, 4000);
        record(&health, Some(0), WINDOW, 1 << 16, 1);
        assert_eq!(health.state(0), LevelState::Open);
        record(&health, Some(0), 3 * WINDOW, 1 << 16, 100);
        assert_eq!(health.state(0), LevelState::Open);
        record(&health, Some(0), 3 * WINDOW, 1 << 16, 100);
        assert_eq!((health.state(0), health.state(1)), (LevelState::Out, LevelState::Open));
        assert_eq!(health.take_warnings().len(), 1);
    }

    #[test]
    fn a_level_is_not_used_while_a_read_of_it_hangs() {
        let health = Health::with_hang(&["/fast".into(), "/big".into()], Duration::ZERO);
        let (one, two) = (health.begin_read(0), health.begin_read(0));
        assert_eq!((health.state(0), health.state(1)), (LevelState::Out, LevelState::Open));
        one.end(10);
        assert!(health.is_reading(0) && health.state(0) == LevelState::Out);
        drop(two);
        assert!(!health.is_reading(0) && health.state(0) == LevelState::Open);
        assert_eq!(health.take_warnings().len(), 1);
    }

    #[test]
    fn reads_beyond_the_marks_go_unmarked() {
        let health = health();
        let marks: Vec<_> = (0..MARKS + 2).map(|_| health.begin_read(1)).collect();
        assert_eq!(marks.iter().filter(|mark| mark.place.is_none()).count(), 2);
        drop(marks);
        assert!(!health.is_reading(1) && health.begin_read(9).place.is_none());
    }

    /// Any request and its outcome.
    fn any_event() -> impl Strategy<Value = (Option<u8>, u64, u64, Option<(LevelOperation, i32)>)> {
        let operation =
            prop::sample::select(vec![LevelOperation::Read, LevelOperation::Write, LevelOperation::Allocate]);
        let number = prop::sample::select(vec![libc::ENOSPC, libc::EROFS, libc::EINTR, libc::EIO]);
        let failure = prop::option::weighted(0.02, (operation, number));
        (prop::option::of(0..3_u8), any::<u64>(), any::<u64>(), failure)
    }

    proptest! {
        #[test]
        fn states_only_get_worse_and_each_level_warns_once(events in prop::collection::vec(any_event(), 0..900)) {
            let health = health();
            let (mut before, mut warnings) = ([LevelState::Open; 2], Vec::new());
            for (level, bytes, took_ns, failure) in events {
                health.read(level, bytes, Duration::from_nanos(took_ns));
                if let Some((operation, number)) = failure {
                    health.failed(level.unwrap_or(0), operation, &error(number));
                }
                let now = [health.state(0), health.state(1)];
                prop_assert!(now.iter().zip(before).all(|(now, before)| *now as u8 >= before as u8));
                before = now;
                warnings.extend(health.take_warnings());
            }
            prop_assert_eq!(warnings.len(), before.iter().filter(|state| **state == LevelState::Out).count());
        }

        #[test]
        fn a_packed_time_keeps_its_value(took_ns in 0_u64..1 << 40, units in 1_u64..1 << 24) {
            let time = ReadTime { took_ns, bytes: units * PACKED_BYTES };
            prop_assert_eq!(ReadTime::unpack(time.pack()), time);
        }
    }
}
