//! Every dialect, page length and shape of tree gives back the records that were written.

use std::path::Path;
use std::sync::Arc;

use crate::support::lmdb_reader::{read, read_batched};
use crate::support::lmdb_writer::{Kind, Random, Records, Spec, records};
use forebay_format::lmdb::{ByteOrder, Database, Dialect, Version, WalkOptions, WalkReport};

/// Mostly short values, some around the inline limit, some of several pages.
fn mixed(page_bytes: u32) -> impl FnMut(&mut Random) -> usize {
    move |random| match random.below(8) {
        0 => 0,
        1 => random.below(u64::from(page_bytes) * 3) as usize,
        2 => (u64::from(page_bytes) / 2 - 40 + random.below(60)) as usize,
        _ => random.below(24) as usize,
    }
}

fn specs() -> Vec<Spec> {
    let mut specs = Vec::new();
    for dialect in Dialect::ALL {
        let largest = if dialect.version == Version::V1_0 { 65536 } else { 32768 };
        for page_bytes in [256, 512, 4096, 8192, largest] {
            specs.push(Spec::new(dialect, page_bytes));
            specs.push(Spec { scatter: Some(u64::from(page_bytes)), ..Spec::new(dialect, page_bytes) });
        }
        if dialect.version == Version::V1_0 {
            specs.push(Spec { checksum_bytes: 8, ..Spec::new(dialect, 512) });
            specs.push(Spec { checksum_bytes: 32, scatter: Some(1), ..Spec::new(dialect, 4096) });
        }
    }
    specs
}

#[test]
fn every_dialect_and_page_length_gives_back_its_records() {
    for spec in specs() {
        for count in [1, 2, 60, 900] {
            let records = records(count as u64, count, mixed(spec.page_bytes.min(8192)));
            let image = spec.build(&records);
            assert_eq!(read(&image.bytes, None, 1).expect("a sound file"), records, "{spec:?}");
        }
    }
}

#[test]
fn threads_and_batches_do_not_change_what_is_read() {
    for spec in specs() {
        let records = records(5, 400, mixed(spec.page_bytes.min(4096)));
        let image = spec.build(&records);
        for (threads, memory_bytes) in [(0, 0), (1, 3000), (3, 0), (4, 5000), (16, 1 << 26)] {
            let options = WalkOptions { threads, memory_bytes };
            assert_eq!(
                read_batched(&image.bytes, None, &options).expect("a sound file"),
                records,
                "{spec:?}"
            );
        }
    }
}

#[test]
fn named_databases_are_found_and_the_main_one_reports_them() {
    for spec in specs() {
        let main = records(1, 150, mixed(256));
        let named: Vec<(&str, Records)> = vec![
            ("000049-between the records", records(2, 70, mixed(256))),
            ("empty", Records::new()),
            ("train", records(3, 400, mixed(256))),
        ];
        let image = spec.build_with(&main, &named);
        for (name, expected) in &named {
            assert_eq!(
                &read(&image.bytes, Some(name), 1).expect("a sound file"),
                expected,
                "{spec:?} {name}"
            );
        }
        assert_eq!(read(&image.bytes, None, 1).expect("a sound file"), main, "{spec:?}");
        let database =
            Database::from_source(Arc::new(image.bytes), Path::new("x"), None).expect("a sound file");
        let report =
            database.walk(&WalkOptions::default(), &|_, _| true, &mut |_| Ok(())).expect("a sound file");
        assert_eq!(report.names, ["000049-between the records", "empty", "train"]);
        assert_eq!(database.entries(), 153);
    }
}

#[test]
fn keys_compared_backwards_and_integer_keys_are_in_their_own_order() {
    for dialect in Dialect::ALL {
        let mut reversed: Records =
            (0..300).map(|index| (format!("{index}").into_bytes(), vec![index as u8; 30])).collect();
        reversed.sort_by(|left, right| left.0.iter().rev().cmp(right.0.iter().rev()));
        let image = Spec { flags: 2, ..Spec::new(dialect, 512) }.build(&reversed);
        assert_eq!(read(&image.bytes, None, 1).expect("a sound file"), reversed);
        assert!(read(&Spec::new(dialect, 512).build(&reversed).bytes, None, 1).is_err());

        let integers: Records = (0..300_u32)
            .map(|index| {
                let key = match dialect.byte_order {
                    ByteOrder::Little => (index * 77).to_le_bytes(),
                    ByteOrder::Big => (index * 77).to_be_bytes(),
                };
                (key.to_vec(), vec![index as u8; 30])
            })
            .collect();
        let image = Spec { flags: 8, ..Spec::new(dialect, 512) }.build(&integers);
        assert_eq!(read(&image.bytes, None, 1).expect("a sound file"), integers);
    }
}

#[test]
fn the_last_transaction_wins() {
    for dialect in Dialect::ALL {
        for transaction in [1, 2, 3, 1001] {
            let records = records(1, 20, |_| 10);
            let image = Spec { transaction, ..Spec::new(dialect, 512) }.build(&records);
            assert_eq!(read(&image.bytes, None, 1).expect("a sound file"), records);
        }
    }
}

#[test]
fn a_walk_reads_meta_branch_and_leaf_pages_once_and_nothing_else() {
    for dialect in Dialect::ALL {
        for threads in [1, 4] {
            let records = records(1, 3000, |random| 3000 + random.below(3000) as usize);
            let image = Spec { scatter: Some(3), ..Spec::new(dialect, 4096) }.build(&records);
            let [branches, leaves] = [Kind::Branch, Kind::Leaf]
                .map(|kind| image.units.iter().filter(|unit| unit.kind == kind).count() as u64);
            let database =
                Database::from_source(Arc::new(image.bytes), Path::new("x"), None).expect("a sound file");
            let options = WalkOptions { threads, ..WalkOptions::default() };
            let report = database.walk(&options, &|_, _| true, &mut |_| Ok(())).expect("a sound file");
            let depth = u32::from(database.identity().tree.depth);
            let expected = WalkReport {
                records: 3000,
                read_bytes: (2 + branches + leaves) * 4096,
                reads: report.reads,
                rounds: 1 + depth,
                branch_pages: branches,
                leaf_pages: leaves,
                inline_records: 0,
                big_records: 3000,
                named_databases: 0,
                names: Vec::new(),
            };
            assert_eq!(report, expected);
            assert!(report.reads <= 1 + branches + leaves);
        }
    }
}

#[test]
fn neighbouring_leaves_are_read_together() {
    let records = records(1, 200_000, |_| 8);
    let image = Spec::new(Dialect::ALL[0], 4096).build(&records);
    let database = Database::from_source(Arc::new(image.bytes), Path::new("x"), None).expect("a sound file");
    let report = database.walk(&WalkOptions::default(), &|_, _| true, &mut |_| Ok(())).expect("a sound file");
    assert!(report.leaf_pages > 1000 && report.reads < 20, "{report:?}");
}

#[test]
fn progress_counts_leaves_and_can_stop_the_walk() {
    let records = records(1, 60_000, |_| 8);
    let image = Spec::new(Dialect::ALL[0], 512).build(&records);
    let database = Database::from_source(Arc::new(image.bytes), Path::new("x"), None).expect("a sound file");
    for threads in [1, 4] {
        let seen = std::sync::Mutex::new(Vec::new());
        let options = WalkOptions { threads, memory_bytes: 1 << 20 };
        let progress = |done, all| {
            let mut seen = seen.lock().expect("not poisoned");
            seen.push((done, all));
            seen.len() < 8
        };
        let error = database.walk(&options, &progress, &mut |_| Ok(())).expect_err("stopped");
        assert!(matches!(error, forebay_format::Error::Interrupted));
        let seen = seen.into_inner().expect("not poisoned");
        assert_eq!(seen.len(), 8);
        assert!(seen.is_sorted() && seen.iter().all(|(_, all)| *all == database.identity().tree.leaf_pages));
    }
}
