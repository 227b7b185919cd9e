//! Damaged sidecars of folders: an error, or names that lead to files below the folder and nowhere
//! else.
//!
//! 5,000 damaged sidecars by default, whose checksums fit; 200,000 with `FOREBAY_LONG_TESTS=1`.

use std::path::{Component, PathBuf};
use std::sync::Arc;
use std::{env, fs};

use crate::support::lmdb_writer::Random;
use crate::support::table::damaged;
use forebay_format::{Dataset, Index, OpenOptions};
use forebay_types::{Located, SampleId, ShardId};

/// Goes through everything that an index says; the names of the files, or `None` where it refuses.
fn names(index: &Index) -> Option<Vec<PathBuf>> {
    let mut located = Located::default();
    let mut names = Vec::new();
    for sample in 0..index.samples().min(200) {
        index.locate(&[SampleId(sample)], &mut located).ok()?;
        let file = index.sample_file(ShardId(sample as u32)).ok()?;
        assert!(
            file.name.components().all(|part| matches!(part, Component::Normal(_))),
            "{}",
            file.name.display()
        );
        assert!(file.shard < index.shards().len());
        names.push(file.name);
    }
    Some(names)
}

#[test]
fn damaged_names_give_an_error_or_lead_below_the_folder() {
    let scratch = tempfile::tempdir().expect("a directory");
    let mut expected = Vec::new();
    for number in 0..60 {
        let name = PathBuf::from(format!("class-{}/part-{}/{number:03}.jpg", number / 30, number / 10 % 3));
        let path = scratch.path().join(&name);
        fs::create_dir_all(path.parent().expect("a parent")).expect("made");
        fs::write(&path, vec![7; number]).expect("written");
        expected.push(name);
    }
    let dataset = Dataset::open(&[scratch.path().to_owned()], &OpenOptions::default()).expect("a folder");
    let sound = dataset.build_index(1, &|_| true).expect("built").bytes;
    let open = |bytes: Vec<u8>| Index::from_bytes(Arc::new(bytes), dataset.fingerprint());
    assert_eq!(names(&open(sound.clone()).expect("sound")), Some(expected.clone()));

    let long = env::var_os("FOREBAY_LONG_TESTS").is_some_and(|value| value == "1");
    let (mut refused, mut equal, mut other) = (0, 0, 0);
    for seed in 0..if long { 200_000 } else { 5_000 } {
        let bytes = damaged(&sound, &mut Random(seed));
        match open(bytes).ok().and_then(|index| if index.has_sample_files() { names(&index) } else { None }) {
            None => refused += 1,
            Some(names) if names == expected => equal += 1,
            Some(_) => other += 1,
        }
    }
    println!("{refused} refused, {equal} equal, {other} other names");
    assert!(refused > 100 && equal > 0 && other > 0, "{refused} {equal} {other}");
}
