//! Opening shards: what is checked, and what is said.

use crate::support::Shards;
use forebay_io::{AccessProbe, ReadError, ShardFiles};

#[test]
fn a_file_of_another_size_than_indexed_is_refused() {
    let shards = Shards::new(&[1000]);
    let path = shards.paths[0].clone();
    let error = ShardFiles::open(&[(path.clone(), 1001)], false).expect_err("refused");
    assert_eq!(
        error.to_string(),
        format!("{}: size of the file: expected 1001 bytes, found 1000", path.display())
    );
    assert!(error.hint().is_some());
}

#[test]
fn a_missing_file_and_a_directory_are_refused_by_name() {
    let shards = Shards::new(&[]);
    let path = shards.directory.path().join("missing");
    let error = ShardFiles::open(&[(path.clone(), 1)], false).expect_err("refused");
    assert_eq!(
        error.to_string(),
        format!("{}: cannot open for reading: No such file or directory (os error 2)", path.display())
    );
    let error = ShardFiles::open(&[(shards.directory.path().to_owned(), 1)], false).expect_err("refused");
    assert!(matches!(error, ReadError::NoFile { .. }), "{error}");
}

#[test]
fn a_fifo_is_refused_and_not_waited_for() {
    let shards = Shards::new(&[]);
    let path = shards.directory.path().join("fifo");
    rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR, 0)
        .expect("a fifo");
    let error = ShardFiles::open(&[(path, 0)], false).expect_err("refused");
    assert!(matches!(error, ReadError::NoFile { .. }), "{error}");
}

#[test]
fn the_file_system_of_every_shard_is_named() {
    let shards = Shards::new(&[10, 20]);
    let files = shards.open(false);
    assert_eq!((files.len(), files.traits().count(), files.is_empty()), (2, 2, false));
    assert!(!files.file_system_name().is_empty());
    assert_eq!(files.is_local(), files.traits().all(|kind| kind.local));
    assert!(!files.is_direct());
}

#[test]
fn a_file_system_that_refuses_o_direct_is_named_with_the_reason() {
    let path = std::path::PathBuf::from("/proc/version");
    let files = ShardFiles::open(&[(path.clone(), 0)], true).expect("opens without O_DIRECT");
    assert!(!files.is_direct() && !files.direct_works() && !files.is_local());
    let reason = files.direct_refused().expect("a reason");
    assert!(reason.contains("/proc/version") && reason.contains("O_DIRECT"), "{reason}");
    let probe = AccessProbe::at(&path).expect("can be inspected");
    assert_eq!(probe.direct, Err(reason.to_owned()));
}

#[test]
fn the_probe_and_the_open_files_agree() {
    let shards = Shards::new(&[10]);
    let probe = AccessProbe::at(&shards.paths[0]).expect("can be inspected");
    let files = shards.open(true);
    assert_eq!(probe.direct.is_ok(), files.is_direct());
    assert_eq!(files.direct_works(), files.is_direct());
    assert_eq!(Some(&probe.file_system), files.traits().next());
}
