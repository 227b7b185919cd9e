//! Which tier is clearly slower than one that comes after it, from a few writes and reads of each.
//!
//! The daemon probes the levels of a client that has several, each once. A probe makes a slab that
//! the log does not know, so what a killed daemon leaves of it is deleted when the level is opened
//! again. It writes the slab to the device and reads it around the page cache, where that is
//! possible, for several rounds; the fastest counts. The levels are probed side by side, each by a
//! thread of its own, for at most [`WITHIN`]: a level that hangs delays no client longer than that.
//!
//! Memory is not probed: nothing is faster. Levels on one device are not compared, nor is one that
//! fails, is read-only, or does not finish a round in time: that is for [`Health`](crate::Health).

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::thread::Builder;
use std::time::{Duration, Instant};

use crate::level::storage::LevelStorage;

/// Longest duration of all probes of a client.
pub(crate) const WITHIN: Duration = Duration::from_millis(100);

/// Bytes that a round writes and reads.
pub(crate) const ROUND_BYTES: usize = 512 << 10;

const ROUNDS: u64 = 4;

/// A level is slower than another one if a round takes this many times as long...
const SLOWER_FACTOR: u32 = 2;

/// ...and this much longer: below it are differences between system calls.
const SLOWER_BY: Duration = Duration::from_micros(200);

/// Alignment of direct reads.
const ALIGNED_BYTES: usize = 4096;

/// Measures a round of each level, in a slab of this number; `None`: not known.
pub(crate) fn probe(levels: Vec<(Arc<dyn LevelStorage>, u32)>) -> Vec<Option<Duration>> {
    let deadline = Instant::now() + WITHIN;
    let begun: Vec<_> = levels.into_iter().map(|(storage, slab)| SpeedProbe::start(storage, slab)).collect();
    begun.into_iter().map(|probe| probe.end(deadline)).collect()
}

/// Pairs of an earlier and a later level of which the earlier one is clearly slower, by their
/// places. A level has its device, and its round where it is known.
pub(crate) fn slower_first(levels: &[(u64, Option<Duration>)]) -> Vec<(usize, usize)> {
    let is_slower =
        |first: &(u64, Option<Duration>), later: &(u64, Option<Duration>)| match (first.1, later.1) {
            (Some(took), Some(less)) => {
                first.0 != later.0 && took >= SLOWER_FACTOR * less && took >= less + SLOWER_BY
            }
            _ => false,
        };
    let faster =
        |place: usize| (place + 1..levels.len()).find(|later| is_slower(&levels[place], &levels[*later]));
    (0..levels.len()).filter_map(|place| Some((place, faster(place)?))).collect()
}

enum SpeedProbe {
    Known(Option<Duration>),
    /// A thread sends what it found, and stores the fastest round until then [ns].
    Running(std::sync::mpsc::Receiver<io::Result<()>>, Arc<AtomicU64>),
}

impl SpeedProbe {
    fn start(storage: Arc<dyn LevelStorage>, slab: u32) -> Self {
        if storage.is_memory() {
            return Self::Known(Some(Duration::ZERO));
        }
        let (sender, receiver) = sync_channel(1);
        let fastest = Arc::new(AtomicU64::new(u64::MAX));
        let known = Arc::clone(&fastest);
        let probed = move |sender: SyncSender<io::Result<()>>| {
            let result = rounds(&*storage, slab, &known);
            let _ = storage.remove(slab);
            // The receiver may wait no longer.
            let _ = sender.send(result);
        };
        // Without a thread nothing is known.
        let started = Builder::new().name("forebay-probe".into()).spawn(move || probed(sender));
        started.map_or(Self::Known(None), |_| Self::Running(receiver, fastest))
    }

    fn end(self, deadline: Instant) -> Option<Duration> {
        let (receiver, fastest) = match self {
            Self::Known(known) => return known,
            Self::Running(receiver, fastest) => (receiver, fastest),
        };
        match receiver.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(Ok(())) | Err(RecvTimeoutError::Timeout) => {
                let fastest = fastest.load(Ordering::Relaxed);
                (fastest != u64::MAX).then(|| Duration::from_nanos(fastest))
            }
            Ok(Err(_)) | Err(RecvTimeoutError::Disconnected) => None,
        }
    }
}

fn rounds(storage: &dyn LevelStorage, slab: u32, fastest: &AtomicU64) -> io::Result<()> {
    let bytes = ROUND_BYTES as u64;
    storage.create(slab)?;
    storage.allocate(slab, bytes * ROUNDS)?;
    let mut buffer = vec![0x5a; ROUND_BYTES + ALIGNED_BYTES];
    let start = buffer.as_ptr().align_offset(ALIGNED_BYTES);
    let buffer = &mut buffer[start..start + ROUND_BYTES];
    for round in 0..ROUNDS {
        let begun = Instant::now();
        storage.write(slab, round * bytes, buffer)?;
        storage.finish_flush(slab, round * bytes, bytes)?;
        let is_direct = storage.open(slab, true).is_ok_and(|file| {
            rustix::io::pread(&file, &mut *buffer, round * bytes).is_ok_and(|read| read == ROUND_BYTES)
        });
        if !is_direct {
            storage.read(slab, round * bytes, buffer)?;
        }
        let took = u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX - 1);
        fastest.fetch_min(took, Ordering::Relaxed);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::level::faulty::{Call, Fault, FaultyLevel};
    use crate::level::slab_files::SlabFiles;

    const SLAB: u32 = 3;

    fn slab_files(directory: &tempfile::TempDir) -> Arc<dyn LevelStorage> {
        Arc::new(SlabFiles::new(std::fs::File::open(directory.path()).unwrap().into()).unwrap())
    }

    #[test]
    fn a_slow_level_is_found_by_its_fastest_round_and_leaves_nothing() {
        let place = tempfile::tempdir().unwrap();
        let delay = |call: Call| Duration::from_millis(10 * u64::from(call == Call::Write));
        let slow =
            FaultyLevel::new(slab_files(&place)).with_rule(move |call| Some(Fault::Delay(delay(call))));
        let slow: Arc<dyn LevelStorage> = Arc::new(slow);
        let mut took = None;
        // On a busy machine no round may end in time.
        while took.is_none() {
            took = probe(vec![(Arc::clone(&slow), SLAB)])[0];
            // The thread may still be at it.
            while !slow.slabs().unwrap().is_empty() {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        assert!(took.unwrap() >= Duration::from_millis(10));
    }

    #[test]
    fn a_level_that_fails_or_hangs_is_not_known() {
        let place = tempfile::tempdir().unwrap();
        for failing in [Call::Create, Call::Allocate, Call::Write, Call::FinishFlush] {
            let fault = move |call| (call == failing).then_some(Fault::Errno(libc::EIO));
            let level = FaultyLevel::new(slab_files(&place)).with_rule(fault);
            let took = probe(vec![(Arc::new(level), SLAB)]);
            // One that is not created within the time has failed as well.
            assert_eq!(took, [None], "{failing:?}");
            while !slab_files(&place).slabs().unwrap().is_empty() {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        let hangs = |call| (call == Call::Write).then_some(Fault::Delay(2 * WITHIN));
        let level = FaultyLevel::new(slab_files(&place)).with_rule(hangs);
        assert_eq!(probe(vec![(Arc::new(level), SLAB)]), [None]);
    }

    #[test]
    fn memory_needs_no_probe() {
        let place = tempfile::tempdir_in("/dev/shm").unwrap();
        assert_eq!(probe(vec![(slab_files(&place), SLAB)]), [Some(Duration::ZERO)]);
    }

    #[test]
    fn a_level_that_is_twice_as_slow_as_a_later_one_on_another_device_is_named_with_it() {
        let ms = |ms| Some(Duration::from_millis(ms));
        for (levels, expected) in [
            (vec![(1, ms(0)), (2, ms(4))], vec![]),
            (vec![(1, ms(4)), (2, ms(0))], vec![(0, 1)]),
            (vec![(1, ms(7)), (2, ms(4))], vec![]),
            (vec![(1, ms(8)), (2, ms(4))], vec![(0, 1)]),
            // One device, or nothing known.
            (vec![(1, ms(8)), (1, ms(4))], vec![]),
            (vec![(1, ms(8)), (2, None)], vec![]),
            (vec![(1, None), (2, ms(4))], vec![]),
            (vec![(1, ms(8)), (2, ms(9)), (3, ms(1))], vec![(0, 2), (1, 2)]),
            // System calls differ by this much.
            (vec![(1, Some(Duration::from_micros(150))), (2, Some(Duration::from_micros(10)))], vec![]),
        ] {
            assert_eq!(slower_first(&levels), expected, "{levels:?}");
        }
    }
}
