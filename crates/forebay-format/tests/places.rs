//! Where sidecars are kept, which are believed, and how they are written.

use std::ffi::OsString;
use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown, symlink};
use std::path::Path;

use crate::support::dataset::{Scratch, build, open, open_as};
use crate::support::lmdb_writer::{Records, records};
use forebay_format::{CachePolicy, Dataset, Error, Lookup, OpenOptions, SchemaChoice, SidecarLocation};

/// A user who is nobody here.
const STRANGER: u32 = 54_321;

fn some_records() -> Records {
    records(1, 300, |random| random.below(3000) as usize)
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).expect("a file").permissions().mode() & 0o777
}

/// Says why a test that needs to give files away does nothing.
fn is_root() -> bool {
    let root = fs::metadata("/proc/self").is_ok_and(|status| status.uid() == 0);
    if !root {
        eprintln!("skipped: only root can give files to another user");
    }
    root
}

/// The only warning of a search that finds nothing.
fn the_warning(dataset: &Dataset, cache: &CachePolicy) -> String {
    let lookup = dataset.find_sidecar(cache);
    assert_eq!((lookup.found, lookup.warnings.len()), (None, 1), "{:?}", lookup.warnings);
    lookup.warnings[0].clone()
}

#[test]
fn a_sidecar_is_found_in_the_cache_and_before_that_beside_the_data() {
    let scratch = Scratch::new();
    let dataset = open(&[&scratch.lmdb("train.lmdb", &some_records())]);
    let cache = scratch.cache();
    assert_eq!(dataset.find_sidecar(&cache), Lookup::default(), "nothing there, nothing to warn of");
    let bytes = build(&dataset).bytes;
    let cached = dataset.write_sidecar(&bytes, SidecarLocation::Cache, &cache).expect("written");
    assert_eq!(cached.parent(), cache.directory());
    assert_eq!((mode(&cached), mode(cached.parent().expect("a directory"))), (0o600, 0o700));
    let found = dataset.find_sidecar(&cache).found.expect("the cached one");
    assert_eq!((found.path, found.place, found.bytes), (cached, SidecarLocation::Cache, bytes.clone()));

    let beside = dataset.write_sidecar(&bytes, SidecarLocation::Beside, &cache).expect("written");
    assert_eq!(beside, scratch.path("train.lmdb.forebay"));
    let lookup = dataset.find_sidecar(&cache);
    assert_eq!(lookup.warnings, Vec::<String>::new());
    let found = lookup.found.expect("the one beside the data");
    assert_eq!((found.path, found.place), (beside.clone(), SidecarLocation::Beside));
    dataset.index(std::sync::Arc::new(found.bytes)).expect("a sound index");
    let found = dataset.find_sidecar(&CachePolicy::none()).found.expect("the one beside the data");
    assert_eq!(found.path, beside);
}

#[test]
fn writing_leaves_nothing_behind_and_replaces_in_one_step() {
    let scratch = Scratch::new();
    let dataset = open(&[&scratch.lmdb("data.mdb", &some_records())]);
    for place in [SidecarLocation::Cache, SidecarLocation::Beside] {
        let path = dataset.write_sidecar(b"an old one", place, &scratch.cache()).expect("written");
        let old = fs::File::open(&path).expect("a file");
        dataset.write_sidecar(b"a new one", place, &scratch.cache()).expect("written");
        assert_eq!(fs::read(&path).expect("a file"), b"a new one");
        assert_eq!(std::io::read_to_string(&old).expect("the file that was opened"), "an old one");
        let directory = fs::read_dir(path.parent().expect("a directory")).expect("a directory");
        let names: Vec<OsString> = directory.map(|entry| entry.expect("an entry").file_name()).collect();
        assert!(!names.iter().any(|name| name.to_string_lossy().ends_with("tmp")), "{names:?}");
    }
}

#[test]
fn other_options_and_other_files_have_sidecars_of_their_own() {
    let scratch = Scratch::new();
    let first = scratch.lmdb("a", &some_records());
    let second = scratch.lmdb("b", &some_records());
    let raw = open_as(&[&first], SchemaChoice::Raw);
    for place in [SidecarLocation::Cache, SidecarLocation::Beside] {
        let write = |dataset: &Dataset| dataset.write_sidecar(&[], place, &scratch.cache()).expect("written");
        let paths = [
            write(&open(&[&first])),
            write(&raw),
            write(&open(&[&second])),
            write(&open(&[&first, &second])),
            write(&open(&[&second, &first])),
        ];
        let different: std::collections::HashSet<_> = paths.iter().collect();
        assert_eq!(different.len(), paths.len(), "{paths:?}");
    }
}

#[test]
fn the_same_file_by_another_path_has_the_same_cached_sidecar() {
    let scratch = Scratch::new();
    let path = scratch.lmdb("a", &some_records());
    let link = scratch.path("link");
    symlink(&path, &link).expect("a link");
    let write = |path: &Path| {
        open(&[path]).write_sidecar(&[], SidecarLocation::Cache, &scratch.cache()).expect("written")
    };
    assert_eq!(write(&path), write(&link));
}

#[test]
fn a_stale_sidecar_is_passed_over_with_the_reason() {
    let scratch = Scratch::new();
    let path = scratch.lmdb("data.mdb", &some_records());
    let dataset = open(&[&path]);
    dataset
        .write_sidecar(&build(&dataset).bytes, SidecarLocation::Beside, &scratch.cache())
        .expect("written");
    scratch.lmdb("data.mdb", &records(2, 400, |_| 9));
    let warning = the_warning(&open(&[&path]), &scratch.cache());
    assert!(
        warning.contains("data.mdb.forebay: sidecar ignored: it is stale: expected fingerprint"),
        "{warning}"
    );
}

#[test]
fn a_stale_sidecar_of_the_users_own_cache_is_no_warning() {
    let scratch = Scratch::new();
    let path = scratch.lmdb("data.mdb", &some_records());
    let dataset = open(&[&path]);
    let built = build(&dataset).bytes;
    dataset.write_sidecar(&built, SidecarLocation::Cache, &scratch.cache()).expect("written");
    scratch.lmdb("data.mdb", &records(2, 400, |_| 9));
    let lookup = open(&[&path]).find_sidecar(&scratch.cache());
    assert_eq!((lookup.found, lookup.warnings), (None, Vec::new()));
    let [reason] = &lookup.stale[..] else { panic!("{:?}", lookup.stale) };
    assert!(reason.contains("sidecar ignored: it is stale: expected fingerprint"), "{reason}");
}

#[test]
fn a_damaged_or_newer_sidecar_is_passed_over_with_the_reason() {
    let scratch = Scratch::new();
    let dataset = open(&[&scratch.lmdb("data.mdb", &some_records())]);
    let sound = build(&dataset).bytes;
    let write = |bytes: &[u8]| {
        dataset.write_sidecar(bytes, SidecarLocation::Cache, &scratch.cache()).expect("written")
    };
    for (at, what) in
        [(0, "it is not a sidecar"), (40, "header checksum"), (100, "checksum of the meta part")]
    {
        let mut bytes = sound.clone();
        bytes[at] ^= 1;
        write(&bytes);
        let warning = the_warning(&dataset, &scratch.cache());
        assert!(warning.contains("sidecar ignored: it is ") && warning.contains(what), "{warning}");
    }
    let mut bytes = sound.clone();
    *bytes.last_mut().expect("bytes") ^= 1;
    write(&bytes);
    let warning = the_warning(&dataset, &scratch.cache());
    assert!(warning.contains("it is damaged: block 0: checksum"), "blocks are looked at as well: {warning}");
    write(&sound[..sound.len() / 2]);
    let warning = the_warning(&dataset, &scratch.cache());
    assert!(warning.contains("it is damaged: length of the file"), "{warning}");
    let mut bytes = sound;
    bytes[8] = 3;
    write(&bytes);
    let warning = the_warning(&dataset, &scratch.cache());
    assert!(warning.contains("sidecar ignored: it has version 3; this Forebay reads version 2"), "{warning}");
}

#[test]
fn a_sidecar_of_an_earlier_version_is_passed_over_and_no_warning_in_the_users_own_cache() {
    let scratch = Scratch::new();
    let dataset = open(&[&scratch.lmdb("data.mdb", &some_records())]);
    let mut bytes = build(&dataset).bytes;
    bytes[8] = 1;
    dataset.write_sidecar(&bytes, SidecarLocation::Cache, &scratch.cache()).expect("written");
    let lookup = dataset.find_sidecar(&scratch.cache());
    assert_eq!((lookup.found, lookup.warnings), (None, Vec::new()));
    let expected = "sidecar ignored: it has version 1; this Forebay reads version 2";
    let [reason] = &lookup.stale[..] else { panic!("{:?}", lookup.stale) };
    assert!(reason.contains(expected), "{reason}");
    dataset.write_sidecar(&bytes, SidecarLocation::Beside, &scratch.cache()).expect("written");
    let warnings = dataset.find_sidecar(&scratch.cache()).warnings;
    assert!(warnings.len() == 1 && warnings[0].contains(expected), "{warnings:?}");
}

#[test]
fn a_sidecar_that_is_a_link_a_directory_or_a_pipe_is_not_followed() {
    let scratch = Scratch::new();
    let dataset = open(&[&scratch.lmdb("data.mdb", &some_records())]);
    let beside = dataset
        .write_sidecar(&build(&dataset).bytes, SidecarLocation::Beside, &scratch.cache())
        .expect("written");
    let moved = scratch.path("elsewhere");
    fs::rename(&beside, &moved).expect("moved");
    symlink(&moved, &beside).expect("a link");
    let warning = the_warning(&dataset, &scratch.cache());
    assert!(warning.ends_with("sidecar ignored: it is a symbolic link"), "{warning}");
    fs::remove_file(&beside).expect("removed");
    fs::create_dir(&beside).expect("made");
    let warning = the_warning(&dataset, &scratch.cache());
    assert!(warning.ends_with("sidecar ignored: it is not a regular file"), "{warning}");
    fs::remove_dir(&beside).expect("removed");
    let made = std::process::Command::new("mkfifo").arg(&beside).status().expect("mkfifo runs");
    assert!(made.success());
    let warning = the_warning(&dataset, &scratch.cache());
    assert!(warning.ends_with("sidecar ignored: it is not a regular file"), "{warning}");
}

#[test]
fn writing_over_a_link_replaces_the_link_and_not_what_it_points_to() {
    let scratch = Scratch::new();
    let dataset = open(&[&scratch.lmdb("data.mdb", &some_records())]);
    let precious = scratch.write("precious", b"precious");
    symlink(&precious, scratch.path("data.mdb.forebay")).expect("a link");
    let path =
        dataset.write_sidecar(b"an index", SidecarLocation::Beside, &scratch.cache()).expect("written");
    assert!(!fs::symlink_metadata(&path).expect("a file").is_symlink());
    assert_eq!(fs::read(precious).expect("a file"), b"precious");
}

#[test]
fn an_implausibly_large_sidecar_is_not_read() {
    let scratch = Scratch::new();
    let dataset = open(&[&scratch.lmdb("data.mdb", &some_records())]);
    let path = dataset.write_sidecar(&[], SidecarLocation::Beside, &scratch.cache()).expect("written");
    fs::File::options().write(true).open(path).expect("a file").set_len(1 << 30).expect("sparse");
    let warning = the_warning(&dataset, &scratch.cache());
    assert!(warning.contains("it has 1073741824 bytes, at most 67128064 are plausible"), "{warning}");
}

#[test]
fn a_strangers_sidecar_beside_the_data_is_passed_over() {
    if !is_root() {
        return;
    }
    let scratch = Scratch::new();
    let data = scratch.lmdb("data.mdb", &some_records());
    let dataset = open(&[&data]);
    let path = dataset
        .write_sidecar(&build(&dataset).bytes, SidecarLocation::Beside, &scratch.cache())
        .expect("written");
    chown(&path, Some(STRANGER), None).expect("given away");
    let warning = the_warning(&dataset, &scratch.cache());
    let expected =
        "sidecar ignored: it belongs to user 54321, not to the owner of the data (0), root or you (0)";
    assert!(warning.ends_with(expected), "{warning}");
    // It is the stranger's data: then the stranger's sidecar is as good as they are.
    chown(&data, Some(STRANGER), None).expect("given away");
    assert!(dataset.find_sidecar(&scratch.cache()).found.is_some());
}

#[test]
fn a_cache_directory_open_to_others_is_refused() {
    let scratch = Scratch::new();
    let dataset = open(&[&scratch.lmdb("data.mdb", &some_records())]);
    let directory = scratch.path("cache");
    fs::create_dir(&directory).expect("made");
    fs::set_permissions(&directory, Permissions::from_mode(0o755)).expect("opened");
    let warning = the_warning(&dataset, &scratch.cache());
    assert!(
        warning.contains("not used as cache directory: it is open to others (mode 755, expected 700)"),
        "{warning}"
    );
    assert!(warning.contains("chmod 700"), "{warning}");
    let error = dataset.write_sidecar(&[], SidecarLocation::Cache, &scratch.cache()).expect_err("refused");
    assert!(matches!(error, Error::Usage { .. }), "{error}");
    assert!(error.hint().expect("a hint").contains("chmod 700"));
    assert_eq!(mode(&directory), 0o755, "left as it is");
}

#[test]
fn a_cache_directory_of_another_user_is_refused() {
    if !is_root() {
        return;
    }
    let scratch = Scratch::new();
    let dataset = open(&[&scratch.lmdb("data.mdb", &some_records())]);
    let directory = scratch.path("cache");
    fs::create_dir(&directory).expect("made");
    fs::set_permissions(&directory, Permissions::from_mode(0o700)).expect("closed");
    chown(&directory, Some(STRANGER), None).expect("given away");
    let warning = the_warning(&dataset, &scratch.cache());
    assert!(
        warning.contains("not used as cache directory: it belongs to user 54321, not to user 0"),
        "{warning}"
    );
    let error = dataset.write_sidecar(&[], SidecarLocation::Cache, &scratch.cache()).expect_err("refused");
    assert!(matches!(error, Error::Usage { .. }), "{error}");
}

#[test]
fn a_cache_directory_that_is_a_link_or_a_file_is_refused() {
    let scratch = Scratch::new();
    let dataset = open(&[&scratch.lmdb("data.mdb", &some_records())]);
    let real = scratch.path("real");
    fs::create_dir(&real).expect("made");
    symlink(&real, scratch.path("cache")).expect("a link");
    let warning = the_warning(&dataset, &scratch.cache());
    assert!(
        warning.contains("not used as cache directory: it is a symbolic link or no directory"),
        "{warning}"
    );
    assert!(dataset.write_sidecar(&[], SidecarLocation::Cache, &scratch.cache()).is_err());
    fs::remove_file(scratch.path("cache")).expect("removed");
    scratch.write("cache", b"");
    let error = dataset.write_sidecar(&[], SidecarLocation::Cache, &scratch.cache()).expect_err("refused");
    assert!(error.to_string().contains("it is a symbolic link or no directory"), "{error}");
}

#[test]
fn directories_on_the_way_to_the_cache_are_made_closed_to_others() {
    let scratch = Scratch::new();
    let dataset = open(&[&scratch.lmdb("data.mdb", &some_records())]);
    let cache = CachePolicy::at(scratch.path("a/b/forebay"));
    dataset.write_sidecar(&[], SidecarLocation::Cache, &cache).expect("written");
    for directory in ["a", "a/b", "a/b/forebay"] {
        assert_eq!(mode(&scratch.path(directory)), 0o700, "{directory}");
    }
    let error = dataset
        .write_sidecar(&[], SidecarLocation::Cache, &CachePolicy::none())
        .expect_err("nowhere to write");
    assert_eq!(error.hint(), Some("name one in FOREBAY_CACHE_DIR"));
}

#[test]
fn a_missing_place_is_an_error_that_names_the_file() {
    let scratch = Scratch::new();
    let directory = scratch.path("gone");
    fs::create_dir(&directory).expect("made");
    let path = scratch.lmdb("gone/data.mdb", &some_records());
    let dataset = Dataset::open(&[path], &OpenOptions::default()).expect("a sound dataset");
    fs::remove_dir_all(&directory).expect("removed");
    let error =
        dataset.write_sidecar(&[], SidecarLocation::Beside, &scratch.cache()).expect_err("no directory");
    let expected = format!("{}: cannot open the directory of the data", directory.display());
    assert!(error.to_string().starts_with(&expected), "{error}");
    let lookup = dataset.find_sidecar(&scratch.cache());
    assert_eq!(lookup.found, None, "and nothing panics");
}
