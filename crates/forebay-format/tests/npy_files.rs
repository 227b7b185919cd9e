//! Arrays of numpy: where their samples are, and what is refused with which words.

use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex};

use crate::support::npy_writer::{Member, npy, npy_of, zip};
use forebay_format::file::{Input, ReadAt};
use forebay_format::npy::{Arrays, ItemKind};
use forebay_format::{Error, SampleAxis};

const PATH: &str = "memory.npy";

fn input(source: Arc<dyn ReadAt>) -> Input {
    Input::from_source(Path::new(PATH), source).expect("a size")
}

fn open_npy(bytes: &[u8]) -> Result<Arrays, Error> {
    Arrays::npy(input(Arc::new(bytes.to_vec())), &[], SampleAxis::Auto)
}

fn open_npz(bytes: &[u8], fields: &[&str]) -> Result<Arrays, Error> {
    let fields: Vec<String> = fields.iter().map(|field| (*field).to_owned()).collect();
    Arrays::npz(input(Arc::new(bytes.to_vec())), &fields, SampleAxis::Auto)
}

/// Message and hint of a refusal.
fn refusal<T: std::fmt::Debug>(result: Result<T, Error>) -> String {
    let error = result.expect_err("something that cannot be read");
    let text = format!("{error}\nhint: {}", error.hint().unwrap_or_default());
    assert!(text.starts_with(&format!("{PATH}: ")), "the path comes first: {text}");
    text
}

/// Elements that differ.
fn elements(count: u64) -> Vec<u8> {
    (0..count).map(|number| (number % 251) as u8).collect()
}

/// Two arrays of equal first extent, named x and y.
fn pair() -> [Member; 2] {
    let array =
        |name, shape: &[u64], count| Member::stored(name, npy(1, "'<i2'", false, shape, &elements(count)));
    [array("x.npy", &[5, 3], 30), array("y.npy", &[5], 10)]
}

#[test]
fn each_version_gives_the_rows_of_the_first_axis() {
    for version in [1, 2, 3] {
        let bytes = npy(version, "'<f4'", false, &[7, 2, 3], &elements(7 * 24));
        let arrays = open_npy(&bytes).expect("sound");
        let (name, array) = &arrays.fields()[0];
        assert_eq!((name.as_str(), arrays.samples(), array.sample_bytes), ("data", 7, 24));
        let start = arrays.start(3, 0) as usize;
        assert_eq!(&bytes[start..start + 24], &elements(7 * 24)[72..96]);
        assert!(arrays.warnings().is_empty());
    }
}

#[test]
fn names_beyond_ascii_stand_in_headers_of_their_version() {
    for version in [2, 3] {
        let bytes = npy(version, "[('é', '<i4'), ('b', '>f8')]", false, &[2], &elements(24));
        let arrays = open_npy(&bytes).expect("sound");
        let described = ItemKind::Described("[('é', '<i4'), ('b', '>f8')]".into());
        assert_eq!(arrays.fields()[0].1.item.kind, described, "version {version}");
    }
    let mut bytes = npy(3, "'<i4'", false, &[1], &elements(4));
    bytes[14] = 0xff;
    assert!(refusal(open_npy(&bytes)).contains("npy: header at offset 14: expected UTF-8"));
}

#[test]
fn fortran_order_matters_where_samples_are_not_contiguous_only() {
    for shape in [&[6][..], &[6, 1], &[1, 6], &[1, 6, 1]] {
        open_npy(&npy(1, "'|u1'", true, shape, &elements(6))).expect("one axis");
    }
    let text = refusal(open_npy(&npy(1, "'|u1'", true, &[3, 2], &elements(6))));
    assert!(text.contains("not supported: npy: an array in Fortran order (shape [3, 2]"), "{text}");
    assert!(text.contains("hint: `forebay convert` writes it in C order"), "{text}");
}

#[test]
fn bytes_behind_an_array_are_told() {
    let bytes = npy(1, "'|u1'", false, &[4], &elements(9));
    let arrays = open_npy(&bytes).expect("sound");
    assert_eq!(arrays.warnings(), [format!("{PATH}: 5 bytes follow the array and are not read")]);
}

#[test]
fn an_npy_file_has_one_field_of_any_name() {
    let file = || input(Arc::new(npy(1, "'|u1'", false, &[4], &elements(4))));
    let named = Arrays::npy(file(), &["x".to_owned()], SampleAxis::First).expect("sound");
    assert_eq!(named.fields()[0].0, "x");
    let two = ["x".to_owned(), "y".to_owned()];
    let text = refusal(Arrays::npy(file(), &two, SampleAxis::Auto));
    assert!(text.contains("2 fields are asked for: x, y"), "{text}");
}

#[test]
fn what_no_array_may_claim_is_refused_with_its_place() {
    let sound = npy(1, "'<f4'", false, &[7, 2], &elements(56));
    let changed = |at: usize, byte: u8| {
        let mut bytes = sound.clone();
        bytes[at] = byte;
        refusal(open_npy(&bytes))
    };
    for (text, words) in [
        (refusal(open_npy(&sound[..9])), "length at offset 0: expected 10 bytes or more, found 9"),
        (refusal(open_npy(b"")), "found 0"),
        (changed(0, 0x92), "magic at offset 0"),
        (changed(6, 4), "a version other than 1, 2 or 3 (version 4.0"),
        (changed(7, 1), "minor version at offset 7: expected 0, found 1"),
        (changed(9, 0xff), "length of the header at offset 8: expected 174 bytes at most, found 65398"),
        (changed(10, b'('), "header at offset"),
        (
            refusal(open_npy(&sound[..183])),
            "expected 56 bytes of shape [7, 2], 4 per element, found 55 bytes",
        ),
    ] {
        assert!(text.contains(words), "{text}");
    }
}

#[test]
fn headers_that_say_something_else_are_refused() {
    let huge = u64::MAX;
    for (header, words) in [
        ("(1, 2)", "expected a dictionary of 'descr', 'fortran_order' and 'shape', found another literal"),
        ("{'descr': '<f4', 'shape': (1,)}", "found no 'fortran_order'"),
        ("{'descr': '<f4', 'fortran_order': False, 'shape': (1,), 'shape': (2,)}", "found 'shape' twice"),
        ("{'descr': '<f4', 'fortran_order': False, 'shape': (1,), 'x': 1}", "found 4 keys"),
        ("{'descr': '<f4', 'fortran_order': 0, 'shape': (1,)}", "neither True nor False"),
        ("{'descr': '<f4', 'fortran_order': False, 'shape': 1}", "no tuple of up to 64 integers"),
        ("{'descr': '<f4', 'fortran_order': False, 'shape': ('1',)}", "no integer from 0 on"),
        ("{'descr': '<f4', 'fortran_order': False, 'shape': (-1,)}", "expected a Python literal, found '-'"),
        ("{'descr': '<f4', 'fortran_order': False, 'shape': ()}", "an array without axes ("),
        ("{'descr': '<f4', 'fortran_order': False, 'shape': (9, 0)}", "an array of samples without bytes"),
        ("{'descr': '|V0', 'fortran_order': False, 'shape': (9,)}", "an array of samples without bytes"),
        ("{'descr': '|O', 'fortran_order': False, 'shape': (9,)}", "an array of objects ("),
        ("{'descr': 'float', 'fortran_order': False, 'shape': (9,)}", "the type of the elements"),
        (
            &format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({huge}, 2)}}"),
            "more than 2^64 bytes",
        ),
        (
            &format!("{{'descr': '<f4', 'fortran_order': False, 'shape': (0, {huge})}}"),
            "more than 2^64 bytes",
        ),
        ("{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999,)}", "expected 399999999996 bytes"),
        ("__import__('os').abort()", "expected a Python literal"),
    ] {
        let text = refusal(open_npy(&npy_of(1, header, &elements(64))));
        assert!(text.contains(words), "{header}: {text}");
    }
}

#[test]
fn members_of_an_archive_are_fields_in_the_order_of_their_places() {
    for wide in [false, true] {
        for comment in [&b""[..], b"a comment with PK\x05\x06 in it, and some more behind it"] {
            let bytes = zip(&pair(), wide, comment);
            let arrays = open_npz(&bytes, &[]).expect("sound");
            let names: Vec<_> = arrays.fields().iter().map(|(name, _)| name.as_str()).collect();
            assert_eq!((names, arrays.samples()), (vec!["x", "y"], 5));
            let (x, y) = (arrays.start(4, 0) as usize, arrays.start(4, 1) as usize);
            assert_eq!((&bytes[x..x + 6], &bytes[y..y + 2]), (&elements(30)[24..], &elements(10)[8..]));
        }
    }
    let bytes = zip(&pair(), false, b"");
    let chosen = open_npz(&bytes, &["y"]).expect("sound");
    assert_eq!((chosen.fields().len(), chosen.fields()[0].0.as_str()), (1, "y"));
    let turned = open_npz(&bytes, &["y", "x"]).expect("sound");
    assert_eq!(turned.fields()[0].0, "y");
}

#[test]
fn fields_that_are_not_there_or_asked_for_twice_are_refused() {
    let bytes = zip(&pair(), false, b"");
    for (fields, words) in [
        (&["z"][..], "no array is called \"z\"\nhint: the archive holds: x, y"),
        (&["x", "x"], "field \"x\" is asked for twice"),
    ] {
        let text = refusal(open_npz(&bytes, fields));
        assert!(text.contains(words), "{text}");
    }
}

#[test]
fn arrays_of_different_lengths_are_named() {
    let labels = Member::stored("names.npy", npy(1, "'<U3'", false, &[2], &elements(24)));
    let bytes = zip(&[&pair()[..], &[labels]].concat(), false, b"");
    let text = refusal(open_npz(&bytes, &[]));
    assert!(text.contains("x [5, 3], y [5], names [2]"), "{text}");
    assert!(text.contains("hint: choose those that belong together"), "{text}");
    open_npz(&bytes, &["x", "y"]).expect("those that belong together");
}

#[test]
fn members_that_are_not_stored_as_they_are_say_so() {
    for (method, flags, words) in [
        (8, 0, "it is deflated, as a whole)\nhint: `forebay convert` stores it"),
        (93, 0, "it is compressed by method 93"),
        (0, 1, "it is encrypted"),
    ] {
        let mut members = pair();
        (members[1].method, members[1].flags) = (method, flags);
        let bytes = zip(&members, false, b"");
        let text = refusal(open_npz(&bytes, &[]));
        assert!(text.contains("member \"y.npy\" that is not stored") && text.contains(words), "{text}");
        open_npz(&bytes, &["x"]).expect("the other one is stored");
    }
}

#[test]
fn archives_of_other_things_are_told() {
    let other = Member::stored("readme.txt", b"hello".to_vec());
    let text = refusal(open_npz(&zip(std::slice::from_ref(&other), false, b""), &[]));
    assert!(text.contains("an archive without arrays"), "{text}");
    assert_eq!(open_npz(&zip(&[], false, b""), &[]).expect("nothing").samples(), 0);
    let bytes = zip(&[&pair()[..], &[other]].concat(), false, b"");
    let warnings = open_npz(&bytes, &[]).expect("sound").warnings().to_vec();
    assert_eq!(warnings, [format!("{PATH}: member \"readme.txt\" is no npy file and is not read")]);
}

#[test]
fn damaged_archives_are_refused_with_the_place() {
    let sound = zip(&pair(), false, b"");
    let directory = sound.windows(4).position(|window| window == b"PK\x01\x02").expect("a directory");
    let end = sound.len() - 22;
    let changed = |at: usize, byte: u8| {
        let mut bytes = sound.clone();
        bytes[at] = byte;
        refusal(open_npz(&bytes, &[]))
    };
    let twice = [pair()[0].clone(), pair()[0].clone()];
    let mut overlapping = sound.clone();
    overlapping[directory + 20] = overlapping[directory + 20].wrapping_add(1);
    let latin = Member { name: "é.npy".into(), flags: 0, ..pair()[0].clone() };
    for (text, words) in [
        (refusal(open_npz(&sound[..sound.len() - 1], &[])), "end record"),
        (refusal(open_npz(b"PK\x03\x04", &[])), "end record"),
        (changed(end + 10, 3), "expected 3 members, found 2"),
        (changed(end + 4, 1), "an archive of several parts"),
        (changed(end + 16, 0), "place of the central directory"),
        (changed(directory, b'Q'), "central directory at offset"),
        (changed(0, b'Q'), "local header of \"x.npy\" at offset 0: expected its signature"),
        (changed(30, b'z'), "expected the name in the central directory"),
        (changed(8, 8), "expected method 0, found 8"),
        (refusal(open_npz(&overlapping, &[])), "before the next part of the archive"),
        (refusal(open_npz(&zip(&twice, false, b""), &[])), "expected each name once, found \"x.npy\" again"),
        (refusal(open_npz(&zip(&[latin], false, b""), &[])), "name of a member"),
    ] {
        assert!(text.contains(words), "expected {words:?} in: {text}");
    }
    // The size of a member beyond everything.
    let mut wide = zip(&pair(), true, b"");
    let directory = wide.windows(4).position(|window| window == b"PK\x01\x02").expect("a directory");
    let sizes = directory + 46 + 5 + 10;
    wide[sizes..sizes + 16].fill(0xff);
    let text = refusal(open_npz(&wide, &[]));
    assert!(text.contains("expected 18446744073709551615 bytes, before the next part"), "{text}");
}

/// A file that somebody writes while it is open.
#[derive(Debug)]
struct Rewritten(Mutex<Vec<u8>>);

impl ReadAt for Rewritten {
    fn bytes(&self) -> io::Result<u64> {
        self.0.lock().expect("not poisoned").bytes()
    }

    fn pread(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        self.0.lock().expect("not poisoned").pread(offset, into)
    }
}

#[test]
fn a_file_that_changed_since_it_was_opened_is_noticed() {
    let sound = zip(&pair(), false, b"");
    let source = Arc::new(Rewritten(Mutex::new(sound.clone())));
    let opened = Arrays::npz(input(source.clone()), &["y".to_owned()], SampleAxis::Auto).expect("sound");
    opened.check_unchanged().expect("nothing changed");
    let other = npy(1, "'<i2'", false, &[5, 2], &elements(20));
    let longer = zip(&[pair()[0].clone(), Member::stored("y.npy", other)], false, b"");
    let mut damaged = sound.clone();
    damaged[0] = 0;
    let mut retyped = sound.clone();
    let at = sound.windows(3).rposition(|window| window == b"<i2").expect("a type");
    retyped[at + 1] = b'u';
    for (bytes, words) in [
        (&longer, "size: expected 530 bytes, found 540 bytes"),
        (&damaged, "found memory.npy: zip: local header"),
        (&retyped, "headers: expected File"),
    ] {
        source.0.lock().expect("not poisoned").clone_from(bytes);
        let error = opened.check_unchanged().expect_err("a change");
        assert!(matches!(error, Error::Modified { .. }) && error.to_string().contains(words), "{error}");
    }
    source.0.lock().expect("not poisoned").clone_from(&sound);
    opened.check_unchanged().expect("as it was");
}
