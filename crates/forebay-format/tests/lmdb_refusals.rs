//! What is refused, and with which words: every check of the reader, one damaged field each.

use crate::support::lmdb_reader::read;
use crate::support::lmdb_writer::{Image, Kind, Records, Spec, put, records};
use forebay_format::Error;
use forebay_format::lmdb::{Dialect, Version};

/// LMDB 0.9, 64 bits, little-endian.
const OLD: Dialect = Dialect::ALL[0];
/// LMDB 1.0, 64 bits, little-endian.
const NEW: Dialect = Dialect::ALL[2];

/// A tree of three levels, with short values and some of two overflow pages.
fn sound(dialect: Dialect) -> Image {
    let records = records(1, 1600, |random| if random.below(10) == 0 { 700 } else { 12 });
    let image = Spec::new(dialect, 512).build(&records);
    assert_eq!(read(&image.bytes, None, 1).expect("a sound file"), records);
    image
}

/// The message about an image after a change.
fn message_after(dialect: Dialect, change: impl FnOnce(&mut Image)) -> String {
    let mut image = sound(dialect);
    change(&mut image);
    read(&image.bytes, None, 1).map(|records| records.len()).expect_err("refused").to_string()
}

/// Sets the `index`th field of that name in the `nth` unit of a kind.
fn set(image: &mut Image, kind: Kind, nth: usize, name: &str, index: usize, value: impl FnOnce(u64) -> u64) {
    let place = image.unit(kind, nth).place(name, index);
    let old = image.get(place);
    image.set(place, value(old));
}

fn set_meta(image: &mut Image, name: &str, value: impl FnOnce(u64) -> u64) {
    let place = image.meta(name);
    let old = image.get(place);
    image.set(place, value(old));
}

#[track_caller]
fn same(found: &str, expected: &str) {
    assert_eq!(found, format!("memory.mdb: {expected}"));
}

#[test]
fn meta_pages_are_checked() {
    let after = |name: &'static str, value: u64| message_after(OLD, |image| set_meta(image, name, |_| value));
    same(&after("number", 1), "LMDB meta page 0: page number at offset 0: expected 0, found 1");
    same(&after("type", 2), "LMDB meta page 0: page type at offset 10: expected 0x0008, found 0x0002");
    same(
        &after("page length", 1000),
        "LMDB meta page 0: page length at offset 40: expected a power of two from 256 to 32768, found 1000",
    );
    same(
        &after("page length", 65536),
        "LMDB meta page 0: page length at offset 40: expected a power of two from 256 to 32768, found 65536",
    );
    same(&after("page length", 1024), "LMDB meta page 1: page number at offset 1024: expected 1, found 2");
    same(
        &after("transaction number", 5),
        "LMDB meta page 0: transaction at offset 144: expected an even number, found 5",
    );
    same(&after("last page", 0), "LMDB meta page 0: last page at offset 136: expected at least 1, found 0");
    let other = message_after(OLD, |image| {
        let place = *image.metas[1].iter().find(|place| place.name == "magic").expect("a magic number");
        image.set(place, 0);
    });
    same(&other, "LMDB meta page 1: magic number at offset 528: expected 0xbeefc0de, found 0x00000000");
}

#[test]
fn what_the_database_says_about_its_tree_is_checked() {
    // The place of the fields differs from that in meta page 0's free tree, which comes first.
    let after = |name: &'static str, value: u64| {
        message_after(OLD, |image| {
            let place = *image.metas[0].iter().rev().find(|place| place.name == name).expect("a place");
            image.set(place, value);
        })
    };
    let image = sound(OLD);
    let last = image.get(image.meta("last page"));
    let count = |kind| image.units.iter().filter(|unit| unit.kind == kind).count();
    let leaves = count(Kind::Leaf);
    same(
        &after("depth", 33),
        &format!(
            "LMDB main database: depth at offset 88: expected 1 to 32, or 0 and no root for no entries, found depth 33, \
             1600 entries, root page {}",
            image.root
        ),
    );
    assert!(after("depth", 0).contains("LMDB main database: depth"));
    assert!(after("entries", 0).contains("LMDB main database: depth"));
    assert!(after("root", u64::MAX).contains("LMDB main database: depth"));
    same(
        &after("leaf pages", u64::MAX),
        &format!(
            "LMDB main database: pages at offset 88: expected at most {} of the file's, found {} branch, leaf and \
             overflow pages",
            last - 1,
            u64::MAX
        ),
    );
    same(
        &after("entries", 1 << 60),
        &format!(
            "LMDB main database: entries at offset 88: expected at most {} in {leaves} leaf pages, found {}",
            leaves * 51,
            1_u64 << 60
        ),
    );
    same(
        &after("flags", 0x10),
        "LMDB main database: flags at offset 88: expected no duplicate kind without DUPSORT, found 0x0010",
    );
    same(
        &after("flags", 0x100),
        "LMDB main database: flags at offset 88: expected known bits only (0x02, 0x08), found 0x0100",
    );
    same(&after("root", 1), &format!("LMDB page number at offset 88: expected 2 to {last}, found 1"));
    same(
        &after("root", last + 1),
        &format!("LMDB page number at offset 88: expected 2 to {last}, found {}", last + 1),
    );
    same(&after("entries", 1599), "LMDB database: entries at offset 88: expected 1599, found 1600 or more");
    same(&after("entries", 1601), "LMDB database: entries at offset 88: expected 1601, found 1600");
    let branches = count(Kind::Branch) as u64;
    same(
        &after("branch pages", branches - 1),
        &format!(
            "LMDB database: branch pages at offset 88: expected {}, found {branches} or more",
            branches - 1
        ),
    );
    same(
        &after("overflow page count", 2),
        "LMDB database: overflow pages at offset 88: expected 2, found 4 or more",
    );
    assert!(after("leaf pages", leaves as u64 - 1).contains("children at offset"));
    // There are three levels.
    assert!(after("depth", 2).contains("LMDB database: branch pages at offset"));
    assert!(after("depth", 4).contains(": children at offset"));
}

#[test]
fn pages_are_checked() {
    let leaf = sound(OLD).unit(Kind::Leaf, 3).clone();
    let (page, start) = (leaf.page, leaf.page * 512);
    let after = |name: &'static str, index: usize, value: u64| {
        message_after(OLD, |image| set(image, Kind::Leaf, 3, name, index, |_| value))
    };
    same(
        &after("number", 0, 9999),
        &format!("LMDB page {page}: page number at offset {start}: expected {page}, found 9999"),
    );
    for wrong in [1, 4, 8, 0x12, 0x22, 0x42] {
        same(
            &after("type", 0, wrong),
            &format!(
                "LMDB page {page}: page type at offset {}: expected 0x0002 (Leaf), found {wrong:#06x}",
                start + 10
            ),
        );
    }
    for (name, value) in
        [("lower", 15), ("lower", 16), ("lower", 17), ("lower", 600), ("upper", 16), ("upper", 65535)]
    {
        let message = after(name, 0, value);
        assert!(
            message
                .contains(&format!("LMDB page {page}: bounds at offset {}: expected 16 < lower", start + 12)),
            "{message}"
        );
    }
    let upper = sound(OLD).get(leaf.place("upper", 0));
    same(
        &after("pointer", 1, 511),
        &format!(
            "LMDB page {page}: pointer 1 at offset {}: expected an even offset from {upper} to 504, found 511",
            start + 18
        ),
    );
    assert!(after("pointer", 1, 0).contains(": pointer 1 at offset"));
    assert!(after("pointer", 1, upper).contains(": nodes at offset"), "aliased nodes");
    assert!(after("upper", 0, upper + 2).contains("an even offset from"));
    // The last leaf has room to spare.
    let message = message_after(OLD, |image| {
        let last = image.units.iter().filter(|unit| unit.kind == Kind::Leaf).count() - 1;
        set(image, Kind::Leaf, last, "upper", 0, |upper| upper - 2);
    });
    assert!(message.contains(": nodes at offset"), "{message}");
}

#[test]
fn nodes_are_checked() {
    let leaf = sound(OLD).unit(Kind::Leaf, 3).clone();
    let page = leaf.page;
    let node = leaf.place("value length", 2).offset;
    let after = |name: &'static str, value: u64| {
        message_after(OLD, |image| set(image, Kind::Leaf, 3, name, 2, |_| value))
    };
    same(
        &after("key length", 0),
        &format!("LMDB page {page}: node 2: key length at offset {}: expected at least 1, found 0", node + 6),
    );
    assert!(after("key length", 60000).contains(": node 2: key length at offset"));
    let message = after("value length", 1 << 31);
    assert!(
        message
            .contains(&format!("LMDB page {page}: node 2: value length at offset {node}: expected at most"))
    );
    assert!(after("value length", 40).contains(": nodes at offset"), "nodes overlap");
    for flags in [3, 4, 5, 6, 8] {
        same(
            &after("flags", flags),
            &format!(
                "LMDB page {page}: node 2: flags at offset {}: expected 0 (value), 1 (big value) or 2 (named database), \
                 found {flags:#06x}",
                node + 4
            ),
        );
    }
    same(
        &after("flags", 2),
        &format!(
            "LMDB page {page}: node 2: value length at offset {node}: expected a tree record of 48 bytes, found 12"
        ),
    );
    let message = message_after(OLD, |image| {
        let place = image.unit(Kind::Leaf, 3).place("key", 2);
        image.bytes[place.offset] = b'z';
    });
    assert!(
        message.contains(": order of keys at offset") && message.contains("expected a key after \"z"),
        "{message}"
    );
}

#[test]
fn children_are_checked() {
    let image = sound(OLD);
    let root = image.root;
    let last = image.get(image.meta("last page"));
    let branch = image.units.iter().position(|unit| unit.page == root).expect("the root");
    let other = image
        .units
        .iter()
        .find(|unit| unit.kind == Kind::Branch && unit.page != root)
        .expect("a branch")
        .page;
    let place = image.units[branch].place("child", 1);
    let after = |value: u64| message_after(OLD, |image| image.set(place, value));
    same(&after(0), &format!("LMDB page number at offset {}: expected 2 to {last}, found 0", place.offset));
    same(
        &after(last + 1),
        &format!("LMDB page number at offset {}: expected 2 to {last}, found {}", place.offset, last + 1),
    );
    for page in [root, other] {
        same(
            &after(page),
            &format!(
                "LMDB page {page}: number of references at offset {}: expected 1, found another one by page {root}",
                place.offset
            ),
        );
    }
    let leaves = image.units.iter().filter(|unit| unit.kind == Kind::Leaf).count();
    let leaf = image.unit(Kind::Leaf, leaves - 1).page;
    assert!(after(leaf).contains(&format!("LMDB page {leaf}: page type at offset")));
    let message = message_after(OLD, |image| {
        let key = image.units[branch].place("branch key", 2);
        image.bytes[key.offset] = b'!';
    });
    assert!(message.contains(&format!("LMDB page {root}: order of keys")), "{message}");
}

#[test]
fn overflow_runs_are_checked() {
    for dialect in Dialect::ALL {
        let image = sound(dialect);
        let last = image.get(image.meta("last page"));
        let nth = image
            .units
            .iter()
            .filter(|unit| unit.kind == Kind::Leaf)
            .position(|unit| unit.places.iter().any(|place| place.name == "overflow page"))
            .expect("a leaf with a big value");
        let after = |name: &'static str, value: u64| {
            message_after(dialect, |image| set(image, Kind::Leaf, nth, name, 0, |_| value))
        };
        for wrong in [0, 1, last, last + 1, u64::MAX] {
            let message = after("overflow page", wrong);
            assert!(
                message.contains(&format!("expected a run within pages 2 to {last}, found")),
                "{message}"
            );
        }
        let leaf = image.unit(Kind::Leaf, nth).page;
        let message = after("overflow page", leaf);
        assert!(message.contains(": number of references at offset"), "{message}");
        let second = image.unit(Kind::Overflow, 1).page;
        let message = after("overflow page", second);
        assert!(
            message.contains(&format!("LMDB page {second}: number of references at offset")),
            "{message}"
        );
        if dialect.version == Version::V1_0 {
            assert!(after("overflow pages", 1).contains("LMDB overflow run at offset"));
        }
    }
    // Headers are checked when a value is read.
    let overflow = sound(OLD).unit(Kind::Overflow, 0).clone();
    let (page, start) = (overflow.page, overflow.page * 512);
    let after = |name: &'static str, value: u64| {
        message_after(OLD, |image| set(image, Kind::Overflow, 0, name, 0, |_| value))
    };
    same(
        &after("number", 0),
        &format!("LMDB overflow page {page}: page number at offset {start}: expected {page}, found 0"),
    );
    same(
        &after("type", 2),
        &format!(
            "LMDB overflow page {page}: page type at offset {}: expected 0x0004, found 0x0002",
            start + 10
        ),
    );
    same(
        &after("pages", 1),
        &format!(
            "LMDB overflow page {page}: pages of the run at offset {}: expected at least 2 for 700 bytes, found 1",
            start + 12
        ),
    );
}

#[test]
fn truncated_files_say_where_they_end() {
    let image = sound(OLD);
    let cut = |length: usize| read(&image.bytes[..length], None, 1).expect_err("truncated").to_string();
    same(&cut(0), "LMDB meta page at offset 0: expected a database, found an empty file");
    same(
        &cut(20),
        "LMDB meta page at offset 0: expected a magic number at byte 12, 16 or 24, found a file of 20 bytes",
    );
    same(&cut(100), "LMDB meta page 0 at offset 0: expected 152 bytes, found a file of 100 bytes");
    same(&cut(512), "LMDB meta page 1 at offset 512: expected 152 bytes, found a file of 512 bytes");
    same(&cut(600), "LMDB meta page 1 at offset 512: expected 152 bytes, found a file of 600 bytes");
    let page = image.bytes.len() / 512 - 1;
    let message = cut(page * 512);
    assert!(message.contains(&format!("expected a file that holds page {page} of 512 bytes")), "{message}");
    let message = cut(image.unit(Kind::Leaf, 1).page as usize * 512);
    assert!(message.contains(", found "), "{message}");
}

#[test]
fn kinds_that_are_not_read_are_refused_with_a_way_out() {
    let refuse = |bytes: &[u8], database: Option<&str>| match read(bytes, database, 1).expect_err("refused") {
        error @ Error::Unsupported { .. } => (error.to_string(), error.hint().expect("a way out").to_owned()),
        other => panic!("{other}"),
    };
    let few = records(1, 20, |_| 10);
    for dialect in Dialect::ALL {
        let image = Spec { flags: 4, ..Spec::new(dialect, 512) }.build(&few);
        let (message, hint) = refuse(&image.bytes, None);
        same(
            &message,
            "not supported: a database with several values per key (flag DUPSORT in the main database)",
        );
        assert!(hint.contains("without MDB_DUPSORT"));
        let image =
            Spec { flags: 0x34, ..Spec::new(dialect, 512) }.build_with(&[], &[("train", few.clone())]);
        let (message, _) = refuse(&image.bytes, Some("train"));
        assert!(message.ends_with("flag DUPSORT in the \"train\" database)"), "{message}");

        let mut image = Spec::new(dialect, 512).build(&few);
        let versions =
            image.metas.clone().map(|meta| *meta.iter().find(|place| place.name == "version").expect("one"));
        for (version, word) in [(2, "mdb_dump of the library"), (999, "MDB_DEVEL")] {
            for place in versions {
                image.set(place, version);
            }
            let (message, hint) = refuse(&image.bytes, None);
            assert!(
                message
                    .contains(&format!("not supported: the LMDB data version (version {version} at offset"))
            );
            assert!(hint.contains(word), "{hint}");
        }
        if dialect.version == Version::V1_0 {
            let mut image = Spec::new(dialect, 512).build(&few);
            for meta in image.metas.clone() {
                let place = *meta.iter().find(|place| place.name == "environment flags").expect("one");
                image.set(place, 0x2008);
            }
            let (message, hint) = refuse(&image.bytes, None);
            same(&message, "not supported: an encrypted LMDB database (environment flags 0x2008)");
            assert!(hint.contains("without encryption"));
        }
    }
    let (message, hint) = refuse(b"\x89HDF\r\n\x1a\n0123456789012345678901234567890123456789", None);
    same(
        &message,
        "not supported: a file that is not an LMDB database (no magic number 0xbeefc0de at offset 12, 16 or 24, but \
         34 35 36 37 38 39 30 31 32 33 34 35 36 37 38 39)",
    );
    assert_eq!(hint, "name the directory or the data file of an LMDB database");
}

#[test]
fn a_checksum_longer_than_half_a_page_is_refused() {
    let mut image = sound(NEW);
    let offset = image.meta("checksum length").offset;
    put(NEW, &mut image.bytes, offset, 2, 300);
    let message = read(&image.bytes, None, 1).expect_err("refused").to_string();
    same(&message, "LMDB checksum length at offset 510: expected at most 256 bytes, found 300");
}

#[test]
fn an_unknown_name_lists_the_names_there_are() {
    for dialect in Dialect::ALL {
        let main: Records = records(1, 3, |_| 10);
        let named = [("train", records(1, 20, |_| 10)), ("validation", records(1, 20, |_| 10))];
        let with = Spec::new(dialect, 512).build_with(&main, &named);
        let error = read(&with.bytes, Some("test"), 1).expect_err("no such name");
        assert_eq!(error.to_string(), "memory.mdb: no database is named \"test\"");
        assert_eq!(error.hint(), Some("it holds: train, validation"));
        let without = Spec::new(dialect, 512).build(&main);
        let error = read(&without.bytes, Some("test"), 1).expect_err("no such name");
        assert_eq!(error.hint(), Some("the file holds no named database; leave the name out"));
        if dialect.version == Version::V0_9 {
            let error = read(&with.bytes, Some("000001"), 1).expect_err("a record");
            assert_eq!(
                error.to_string(),
                "memory.mdb: \"000001\" is a record of the main database, not a named database"
            );
        }
    }
}
