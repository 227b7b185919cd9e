//! Tests of whole loaders of one rank, over small datasets in files.

use forebay_format::OpenOptions;
use forebay_io::probe_io_uring;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde_json::{Value, json};

use super::*;
use crate::batch::layout::{Batch, FieldPlacement};
use crate::host::NoHost;
use crate::loader::one_rank::{Container, OneRank};

/// A batch as the script gets it.
#[derive(Clone, Debug, PartialEq)]
struct Received {
    epoch: u64,
    step: u64,
    ids: Vec<u64>,
    values: Vec<Vec<u8>>,
    repeated: Option<Vec<bool>>,
}

fn bytes_of(batch: &Batch, offset: u64, length: u64) -> Vec<u8> {
    assert!(offset + length <= batch.layout().bytes);
    // SAFETY: inside of the buffer, which nothing writes while the batch lives.
    unsafe { std::slice::from_raw_parts(batch.address(offset), length as usize) }.to_vec()
}

fn ids_of(batch: &Batch) -> Vec<u64> {
    let bytes = bytes_of(batch, 0, 8 * batch.samples() as u64);
    bytes.as_chunks::<8>().0.iter().map(|id| u64::from_le_bytes(*id)).collect()
}

/// The values of the only field.
fn values_of(batch: &Batch) -> Vec<Vec<u8>> {
    let value = |sample| match batch.layout().places[0] {
        FieldPlacement::Dense { offset, sample_bytes } => {
            bytes_of(batch, offset + sample * sample_bytes, sample_bytes)
        }
        FieldPlacement::Ragged { table, .. } => {
            let range = batch.value(table, sample);
            bytes_of(batch, range.start, range.end - range.start)
        }
    };
    (0..batch.samples() as u64).map(value).collect()
}

/// Iterates from a step of an epoch to the epoch's end, or to the first error.
fn deliver(engine: &Engine, epoch: u64, step: u64) -> (Vec<Received>, Option<Error>) {
    let iteration = engine.start(epoch, step, &NoHost).unwrap();
    let mut steps = Vec::new();
    loop {
        match engine.next(iteration, &NoHost) {
            Ok(Some(delivered)) => steps.push(Received {
                epoch: delivered.epoch,
                step: delivered.step,
                ids: ids_of(&delivered.batch),
                values: values_of(&delivered.batch),
                repeated: delivered.repeated,
            }),
            Ok(None) => return (steps, None),
            Err(error) => return (steps, Some(error)),
        }
    }
}

fn epoch_of(engine: &Engine, epoch: u64) -> Vec<Received> {
    let (steps, error) = deliver(engine, epoch, 0);
    assert!(error.is_none(), "{error:?}");
    steps
}

fn ids(steps: &[Received]) -> Vec<u64> {
    steps.iter().flat_map(|step| step.ids.iter().copied()).collect()
}

/// Accesses that work here.
fn accesses() -> impl Iterator<Item = &'static str> {
    ["pread", "mmap", "auto", "io_uring"]
        .into_iter()
        .filter(|access| *access != "io_uring" || probe_io_uring().is_ok())
}

fn ordered(kind: &str, access: &str) -> impl FnOnce(&mut Value) {
    let (kind, access) = (kind.to_owned(), access.to_owned());
    move |values| {
        values["order"]["kind"] = kind.into();
        values["last_batch"] = "partial".into();
        values["strategy"] = json!({"access": access});
    }
}

#[test]
fn every_access_delivers_each_sample_of_each_container_once_per_epoch_in_the_same_steps() {
    for container in Container::ALL {
        for kind in ["sequential", "shuffle", "group"] {
            let mut plain: Option<[Vec<Received>; 2]> = None;
            for access in accesses() {
                let case = format!("{container:?}, {kind}, {access}");
                let (engine, _directory) = OneRank::of(container, ordered(kind, access)).engine().unwrap();
                let epochs = [0, 1].map(|epoch| epoch_of(&engine, epoch));
                for steps in &epochs {
                    let mut all = ids(steps);
                    assert_eq!(all.is_sorted(), kind == "sequential", "{case}");
                    for (id, value) in all.iter().zip(steps.iter().flat_map(|step| &step.values)) {
                        assert_eq!(*value, container.sample(*id), "{case}, sample {id}");
                    }
                    all.sort_unstable();
                    assert!(all.into_iter().eq(0..OneRank::SAMPLES), "{case}");
                }
                assert_eq!(plain.get_or_insert_with(|| epochs.clone()), &epochs, "{case}");
            }
        }
    }
}

#[test]
fn a_loader_that_starts_at_a_step_delivers_the_rest_of_an_uninterrupted_epoch() {
    for kind in ["sequential", "shuffle", "group"] {
        let (engine, _directory) = OneRank::new(ordered(kind, "pread")).engine().unwrap();
        let whole = [0, 1].map(|epoch| epoch_of(&engine, epoch));
        for (epoch, step) in [(0, 5), (1, 0), (1, 12), (0, 13), (0, 1)] {
            let rest = &whole[epoch as usize][step as usize..];
            let (resumed, _directory) = OneRank::new(ordered(kind, "mmap")).engine().unwrap();
            for (engine, how) in [(&resumed, "a new loader"), (&engine, "a jump")] {
                let (steps, error) = deliver(engine, epoch, step);
                assert!(error.is_none(), "{error:?}");
                assert_eq!(steps, rest, "{kind}, epoch {epoch}, step {step}, {how}");
            }
        }
        let error = engine.start(0, 14, &NoHost).unwrap_err();
        assert!(error.to_string().contains("step 14 of 13 steps"), "{error}");
    }
}

#[test]
fn the_end_of_an_epoch_is_what_last_batch_says() {
    // Steps, samples and repeated ones of the last step, first sample of the next epoch.
    let cases =
        [("fill", 13, 8, 4, 0), ("partial", 13, 4, 0, 0), ("drop", 12, 8, 0, 0), ("carry", 13, 8, 0, 4)];
    for (last_batch, count, samples, repeats, first) in cases {
        let rank = OneRank::new(|values| values["last_batch"] = last_batch.into());
        let (engine, _directory) = rank.engine().unwrap();
        let steps = epoch_of(&engine, 0);
        let last = steps.last().unwrap();
        let repeated = last.repeated.iter().flatten().filter(|repeats| **repeats).count();
        let found = (steps.len(), last.ids.len(), repeated, epoch_of(&engine, 1)[0].ids[0]);
        assert_eq!(found, (count, samples, repeats, first), "{last_batch}");
    }
}

#[test]
fn an_order_of_the_user_is_delivered_as_it_was_given() {
    let rank = OneRank::new(|values| values["order"]["kind"] = "given".into());
    let (engine, _directory) = rank.engine().unwrap();
    let given: Vec<i64> = (0..OneRank::SAMPLES as i64).rev().collect();
    engine.give_order(0, &given).unwrap();
    let steps = epoch_of(&engine, 0);
    assert!(ids(&steps).into_iter().take(given.len()).map(|id| id as i64).eq(given));
    assert_eq!(steps[3].values[0], Container::Npy.sample(75));
    assert!(engine.give_order(1, &[0; 100]).is_err(), "a sample twice");
}

#[test]
fn a_damaged_sample_is_an_error_with_its_place_or_is_replaced_by_the_one_before() {
    for access in accesses() {
        let rank = |skips: bool| {
            OneRank::damaged(Container::TfRecord, Some(10), |values| {
                values["checksums"] = true.into();
                values["skips_bad_samples"] = skips.into();
                values["strategy"] = json!({"access": access});
            })
        };
        let strict = rank(false);
        // The checksum follows the data.
        let offset = strict.start_of(10) + Container::TfRecord.sample(10).len() as u64;
        let (engine, _directory) = strict.engine().unwrap();
        let (steps, error) = deliver(&engine, 0, 0);
        let error = error.expect("the sample is bad");
        assert_eq!(steps.len(), 1, "{access}");
        assert!(matches!(error, Error::Format(_)), "{access}: {error:?}");
        for part in ["samples: ".into(), format!("offset {offset}"), "checksum".into()] {
            assert!(error.to_string().contains(&part), "{access}: {error} names {part}");
        }
        let (engine, _directory) = rank(true).engine().unwrap();
        let steps = epoch_of(&engine, 0);
        assert_eq!(steps[1].ids, [8, 9, 9, 11, 12, 13, 14, 15], "{access}");
        assert_eq!(steps[1].values[2], Container::TfRecord.sample(9), "{access}");
        let bad = engine.bad_samples();
        assert_eq!(bad.len(), 1, "{access}");
        assert!(bad[0].0 == 10 && bad[0].1.contains("checksum"), "{access}: {bad:?}");
    }
}

#[test]
fn a_file_that_is_cut_while_it_is_read_is_an_error_with_its_path_and_offset() {
    for container in [Container::Npy, Container::TfRecord] {
        for access in accesses() {
            let case = format!("{container:?}, {access}");
            let rank = OneRank::of(container, ordered("sequential", access));
            let (path, cut) = (rank.path().to_owned(), rank.start_of(50) + 2);
            let (engine, _directory) = rank.engine().unwrap();
            std::fs::File::options().write(true).open(&path).unwrap().set_len(cut).unwrap();
            let (steps, error) = deliver(&engine, 0, 0);
            let error = error.expect("half of the samples are gone");
            let Error::Storage(details) = &error else { panic!("{case}: {error:?}") };
            assert_eq!(details.path(), Some(&*path), "{case}");
            assert!(error.to_string().contains(&path.display().to_string()), "{case}: {error}");
            assert!(error.to_string().contains("offset"), "{case}: {error}");
            for step in &steps {
                for (id, value) in step.ids.iter().zip(&step.values) {
                    assert_eq!(*value, container.sample(*id), "{case}, sample {id}");
                }
            }
            assert_eq!(engine.next(1, &NoHost).err().unwrap().to_string(), error.to_string(), "{case}");
        }
    }
}

#[test]
fn a_rank_with_one_core_delivers_what_one_with_several_does() {
    let (several, _directory) = OneRank::new(ordered("shuffle", "mmap")).engine().unwrap();
    let allowed = sched_getaffinity(None).unwrap();
    let mut one = CpuSet::new();
    one.set((0..CpuSet::MAX_CPU).find(|core| allowed.is_set(*core)).unwrap());
    sched_setaffinity(None, &one).unwrap();
    let (engine, _directory) = OneRank::new(ordered("shuffle", "mmap")).engine().unwrap();
    assert_eq!(engine.cores(), 1);
    for epoch in 0..3 {
        assert_eq!(epoch_of(&engine, epoch), epoch_of(&several, epoch));
    }
    sched_setaffinity(None, &allowed).unwrap();
}

/// A caller that keeps what it is warned of.
#[derive(Default)]
struct Warned(Mutex<Vec<String>>);

impl Host for Warned {
    fn find_structure(&self, _path: &std::path::Path, _options: &OpenOptions) -> Option<Vec<u8>> {
        None
    }

    fn warn(&self, text: &str) {
        self.0.lock().unwrap().push(text.into());
    }
}

#[test]
fn batches_that_the_script_keeps_stay_as_they_are_also_after_the_loader() {
    let (engine, _directory) = OneRank::of(Container::Lmdb, |_| ()).engine().unwrap();
    let warned = Warned::default();
    let iteration = engine.start(0, 0, &NoHost).unwrap();
    let mut kept = Vec::new();
    while let Some(delivered) = engine.next(iteration, &warned).unwrap() {
        kept.push(delivered.batch);
    }
    drop(engine);
    let warnings = warned.0.into_inner().unwrap();
    assert!(warnings.len() == 1 && warnings[0].contains("batch buffers"), "{warnings:?}");
    for batch in &kept {
        for (id, value) in ids_of(batch).into_iter().zip(values_of(batch)) {
            assert_eq!(value, Container::Lmdb.sample(id));
        }
    }
    assert_eq!((kept.len(), kept.iter().any(Batch::is_private)), (13, true));
}

#[test]
fn a_loader_can_be_left_begun_anew_and_closed_while_its_threads_read() {
    for access in accesses() {
        let (engine, _directory) = OneRank::new(ordered("shuffle", access)).engine().unwrap();
        let whole = epoch_of(&engine, 0);
        for taken in [0, 1, 3] {
            let iteration = engine.start(0, 0, &NoHost).unwrap();
            for step in &whole[..taken] {
                let delivered = engine.next(iteration, &NoHost).unwrap().unwrap();
                assert_eq!(ids_of(&delivered.batch), step.ids, "{access}");
            }
            engine.leave(Some(iteration)).unwrap();
            assert!(matches!(engine.next(iteration, &NoHost), Err(Error::Stale)), "{access}");
        }
        let iteration = engine.start(0, 0, &NoHost).unwrap();
        let delivered = engine.next(iteration, &NoHost).unwrap().unwrap();
        engine.close();
        assert!(matches!(engine.next(iteration, &NoHost), Err(Error::Closed)), "{access}");
        assert!(matches!(engine.start(0, 0, &NoHost), Err(Error::Closed)), "{access}");
        drop(engine);
        assert_eq!(values_of(&delivered.batch), whole[0].values, "{access}");
    }
}
