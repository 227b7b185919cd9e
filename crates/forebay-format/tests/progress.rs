//! What is told while an index is built: of which thing how much, with an end that is right.

use std::fs;
use std::path::PathBuf;
use std::sync::Mutex;

use forebay_format::{Dataset, Format, OpenOptions, Progress, RawLayout};

/// All that building an index of `paths` tells, as (what, done, total).
fn told(paths: &[PathBuf], options: &OpenOptions) -> Vec<(&'static str, u64, u64)> {
    let dataset = Dataset::open(paths, options).expect("sound");
    let told = Mutex::new(Vec::new());
    let built = dataset.build_index(1, &|Progress { what, done, total }| {
        told.lock().expect("no panic").push((what, done, total));
        true
    });
    built.expect("an index");
    told.into_inner().expect("no panic")
}

#[test]
fn folders_tell_files_and_their_number_when_all_are_found() {
    let scratch = tempfile::tempdir().expect("a directory");
    let folders = [("one", 3), ("two", 5)].map(|(name, files)| {
        let folder = scratch.path().join(name);
        for number in 0..files {
            let class = folder.join(format!("class-{}", number % 2));
            fs::create_dir_all(&class).expect("made");
            fs::write(class.join(format!("{number}.jpg")), [7; 1000]).expect("written");
        }
        folder
    });
    let told = told(&folders, &OpenOptions::default());
    assert_eq!(
        told,
        [("files", 2, 0), ("files", 3, 0), ("files", 6, 0), ("files", 8, 0), ("files", 8, 8)],
        "after each directory, then all"
    );
}

#[test]
fn files_tell_bytes_of_all_of_them() {
    let scratch = tempfile::tempdir().expect("a directory");
    let paths = ["a.bin", "b.bin"].map(|name| {
        let path = scratch.path().join(name);
        fs::write(&path, [7; 1000]).expect("written");
        path
    });
    let raw = RawLayout { record_bytes: 10, ..RawLayout::default() };
    let options = OpenOptions { format: Some(Format::Raw), raw: Some(raw), ..OpenOptions::default() };
    assert_eq!(told(&paths, &options), [("bytes", 0, 2000), ("bytes", 1000, 2000), ("bytes", 2000, 2000)]);
}
