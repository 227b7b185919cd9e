//! What cannot be opened says what it is and what to do.

use std::fs;
use std::path::{Path, PathBuf};

use crate::support::dataset::{Scratch, build, index, open};
use crate::support::lmdb_writer::{Spec, records};
use forebay_format::lmdb::Dialect;
use forebay_format::{Dataset, DecodedUnits, Error, Format, OpenOptions};

/// The error of opening a path, or of building its index, as message and hint.
fn refusal(path: &Path) -> (String, String) {
    refusal_of(path, &OpenOptions::default())
}

fn refusal_of(path: &Path, options: &OpenOptions) -> (String, String) {
    let error = Dataset::open(&[path.to_owned()], options)
        .and_then(|dataset| dataset.build_index(1, &|_| true))
        .expect_err("something that cannot be read");
    let text = error.to_string();
    assert!(text.starts_with(&path.display().to_string()), "the path comes first: {text}");
    (text, error.hint().unwrap_or_default().to_owned())
}

#[test]
fn a_file_of_another_format_is_named() {
    let scratch = Scratch::new();
    for (mark, name) in [(&b"FEA1"[..], "Feather, version 1"), (b"\x8fFOREBAY", "a sidecar of Forebay")] {
        let path = scratch.write("data", &[mark, &[7; 5000]].concat());
        let (text, hint) = refusal(&path);
        assert!(text.ends_with(&format!("(it looks like {name})")), "{text}");
        assert!(hint.starts_with("formats that are read: lmdb, "), "{hint}");
    }
}

#[test]
fn a_compressed_file_is_refused_with_what_undoes_it() {
    let scratch = Scratch::new();
    let path = scratch.write("data", b"\x1f\x8b\x08 and so on");
    let (text, hint) = refusal(&path);
    assert!(text.ends_with("(it looks like a file compressed with gzip)"), "{text}");
    assert_eq!(hint, format!("decompress it: gunzip --keep {}", path.display()));
}

#[test]
fn a_file_of_no_known_format_is_shown() {
    let scratch = Scratch::new();
    let path = scratch.write("data", b"a letter");
    assert!(refusal(&path).0.ends_with("not supported: this format (it looks like text)"));
    let path = scratch.write("data", b"a letter".map(|byte| byte ^ 0x80).as_slice());
    let (text, hint) = refusal(&path);
    let found = "no format that is read begins with e1 a0 ec e5 f4 f4 e5 f2";
    assert!(text.ends_with(&format!("not supported: this format ({found})")), "{text}");
    assert!(hint.starts_with("formats that are read: lmdb, "), "{hint}");
    let (text, _) = refusal_of(&path, &OpenOptions { format: Some(Format::Lmdb), ..OpenOptions::default() });
    assert!(text.contains("expected a magic number at byte 12, 16 or 24, found a file of 8 bytes"), "{text}");
}

#[test]
fn an_empty_file_is_said_to_be_empty() {
    let scratch = Scratch::new();
    let path = scratch.write("data", b"");
    let (text, hint) = refusal(&path);
    assert!(text.ends_with("not supported: a dataset without samples (the file is empty)"), "{text}");
    assert!(hint.contains("format="), "{hint}");
    let (text, _) = refusal_of(&path, &OpenOptions { format: Some(Format::Lmdb), ..OpenOptions::default() });
    assert!(text.ends_with("expected a database, found an empty file"), "{text}");
}

#[test]
fn an_empty_database_has_no_records() {
    let scratch = Scratch::new();
    let (text, hint) = refusal(&scratch.lmdb("data", &vec![]));
    assert!(text.ends_with("not supported: a dataset without records (0 entries)"), "{text}");
    assert!(hint.contains("committed"), "{hint}");
}

#[test]
fn a_database_of_named_databases_names_them() {
    let scratch = Scratch::new();
    let named = [("test", records(1, 5, |_| 9)), ("train", records(1, 9, |_| 9))];
    let path = scratch.write("data", &Spec::new(Dialect::ALL[0], 4096).build_with(&[], &named).bytes);
    let (text, hint) = refusal(&path);
    assert!(text.ends_with("not supported: a dataset without samples (only named databases)"), "{text}");
    assert_eq!(hint, "name the database to read; the file holds: test, train");
    let options = OpenOptions { database: Some("valid".into()), ..OpenOptions::default() };
    let (text, hint) = refusal_of(&path, &options);
    assert!(text.contains("no database is named \"valid\""), "{text}");
    assert!(hint.contains("test, train"), "{hint}");
}

#[test]
fn a_database_of_nothing_but_counts_has_no_samples() {
    let scratch = Scratch::new();
    let only = vec![(b"__keys__".to_vec(), b"[]".to_vec()), (b"__len__".to_vec(), b"0".to_vec())];
    let (text, _) = refusal(&scratch.lmdb("data", &only));
    assert!(text.ends_with("(only records that are not samples: __keys__, __len__)"), "{text}");
}

#[test]
fn a_truncated_file_is_noticed_when_its_index_is_built() {
    let scratch = Scratch::new();
    let whole = Spec::new(Dialect::ALL[0], 4096).build(&records(1, 300, |_| 6000)).bytes;
    for share in [10, 50, 90, 99] {
        let path = scratch.write("data", &whole[..whole.len() * share / 100]);
        let (text, hint) = refusal(&path);
        assert!(text.contains("expected") && text.contains("at offset"), "{text}");
        assert!(hint.contains("truncated"), "{hint}");
    }
}

#[test]
fn a_file_truncated_after_its_index_was_built_is_noticed() {
    let scratch = Scratch::new();
    let path = scratch.lmdb("data", &records(1, 300, |_| 6000));
    let dataset = open(&[&path]);
    let index = index(&dataset);
    let file = fs::File::options().write(true).open(&path).expect("a file");
    file.set_len(fs::metadata(&path).expect("a file").len() / 2).expect("cut");
    let mut bad = 0;
    for sample in 0..300 {
        if let Err(error) =
            dataset.read_columns(&index, forebay_types::SampleId(sample), &DecodedUnits::default())
        {
            assert!(error.to_string().contains("found the end of the file after"), "{error}");
            bad += 1;
        }
    }
    assert!(bad > 100, "{bad}");
    let error = dataset.check_unchanged().expect_err("another length");
    assert!(matches!(error, Error::Modified { .. }), "{error}");
}

#[test]
fn a_directory_without_data_says_so() {
    let scratch = Scratch::new();
    let directory = scratch.path("train");
    fs::create_dir(&directory).expect("made");
    let (text, _) = refusal(&directory);
    assert!(text.ends_with("(the directory holds nothing that is not hidden)"), "{text}");
    fs::write(directory.join("zarr.json"), b"{}").expect("written");
    let (text, _) = refusal(&directory);
    assert!(text.ends_with("(it looks like a Zarr array)"), "{text}");
    fs::create_dir(directory.join("data.mdb")).expect("made");
    let (text, hint) = {
        let error =
            Dataset::open(&[directory], &OpenOptions::default()).expect_err("a directory as data file");
        (error.to_string(), error.hint().unwrap_or_default().to_owned())
    };
    assert!(text.contains("not a regular file") && hint.contains("data file"), "{text} {hint}");
}

#[test]
fn a_path_that_does_not_exist_or_may_not_be_read_is_named() {
    let scratch = Scratch::new();
    let (text, _) = refusal(&scratch.path("nothing"));
    assert!(text.contains("cannot open for reading: No such file or directory"), "{text}");
    // The tests may run as root, who may read anything: a file on the way that is no directory
    // fails like a permission, with the system's own words.
    let (text, _) = refusal(&scratch.write("file", b"x").join("data.mdb"));
    assert!(text.contains("cannot open for reading: Not a directory"), "{text}");
    let denied = Error::Io {
        action: "open for reading".into(),
        path: PathBuf::from("/data/train.mdb"),
        offset: None,
        source: std::io::Error::from_raw_os_error(13),
    };
    assert_eq!(
        denied.to_string(),
        "/data/train.mdb: cannot open for reading: Permission denied (os error 13)"
    );
}

#[test]
fn no_file_at_all_is_wrong_use() {
    let error = Dataset::open(&[], &OpenOptions::default()).expect_err("no file");
    assert!(matches!(error, Error::Usage { .. }), "{error}");
    assert_eq!(error.to_string(), "a dataset has at least one file, none was named");
}

#[test]
fn an_index_of_another_dataset_is_refused() {
    let scratch = Scratch::new();
    let first = open(&[&scratch.lmdb("a", &records(1, 300, |_| 60))]);
    let second = open(&[&scratch.lmdb("b", &records(1, 301, |_| 60))]);
    let error = second.index(std::sync::Arc::new(build(&first).bytes)).expect_err("another dataset");
    assert!(error.to_string().contains("its sidecar cannot be used: it is stale"), "{error}");
    assert_eq!(error.hint(), Some("build it again with `forebay index`"));
}
