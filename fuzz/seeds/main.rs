//! Writes the seeds of the corpora: small files of every kind.

#[path = "../../crates/forebay-format/tests/support/datum.rs"]
mod datum;
#[path = "../../crates/forebay-format/tests/support/example_writer.rs"]
mod example_writer;
#[path = "../../crates/forebay-format/tests/support/hdf5_writer.rs"]
mod hdf5_writer;
#[path = "../../crates/forebay-format/tests/support/lmdb_writer.rs"]
#[allow(dead_code)]
mod lmdb_writer;
#[path = "../../crates/forebay-format/tests/support/npy_writer.rs"]
mod npy_writer;
#[path = "../../crates/forebay-format/tests/support/record_writer.rs"]
mod record_writer;
#[path = "../../crates/forebay-format/tests/support/table.rs"]
#[allow(dead_code)]
mod table;
#[path = "../../crates/forebay-format/tests/support/tar_writer.rs"]
#[allow(dead_code)]
mod tar_writer;

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use forebay_format::lmdb::Dialect;
use forebay_format::sidecar::{IndexEntry, Part, PartPiece};
use forebay_table::{
    CopyFile, CopyIdentity, Flags, Identity, Layout, RecordId, RecordState, Settings, SourceFile, SourcePrefix,
    TableWriter,
};
use lmdb_writer::{Spec, records};
use npy_writer::{Member, npy, zip};
use serde_json::Value;
use tar_writer::Kind;

/// Images of the crate that decodes them; how each is decoded stands before it.
const IMAGES: [(&str, [u8; 3], &[u8]); 3] = [
    ("noise-jpg", [0x46, 0, 1], include_bytes!("../../crates/forebay-image/tests/images/noise.jpg")),
    ("progressive-jpg", [0x46, 66, 7], include_bytes!("../../crates/forebay-image/tests/images/progressive.jpg")),
    ("noise-png", [0x46, 129, 3], include_bytes!("../../crates/forebay-image/tests/images/noise.png")),
];

fn main() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("seeds");
    let write = |target: &str, name: &str, bytes: &[u8]| {
        let directory = here.join(target);
        fs::create_dir_all(&directory).expect("made");
        fs::write(directory.join(name), bytes).expect("written");
    };
    for (number, dialect) in Dialect::ALL.into_iter().enumerate() {
        let some = records(1, 12, |random| random.below(200) as usize);
        let named = [("train", records(2, 5, |random| random.below(300) as usize))];
        let image = Spec::new(dialect, 256).build_with(&some, &named);
        write("lmdb", &format!("dialect-{number}"), &image.bytes);
    }
    let plain = |class, start, length| IndexEntry::Plain { class, start, length };
    let indexes: [(&str, Vec<IndexEntry>); 4] = [
        ("uniform", (0..300).map(|index| plain(1, (2 + index + index / 50) * 4096, 3073)).collect()),
        ("inline", (0..300).map(|index| plain(0, (1 << 20) - 200 * index, 150 + index % 30)).collect()),
        ("mixed", (0..300).map(|index| plain((index % 2) as u8, (2 + index) * 4096, 7 * index)).collect()),
        ("exceptional", {
            let extent = PartPiece::Extent { offset: 9000, length: 40 };
            let pieces = vec![extent, PartPiece::Literal(vec![1, 2, 3])];
            let part = Part { pieces, codecs: 0, decoded_bytes: 43, guard: 9, offset: 4, length: 30 };
            vec![plain(0, 8192, 9), IndexEntry::Exception(vec![part.clone(), part]), plain(1, 12288, 3)]
        }),
    ];
    for (name, table) in indexes {
        let bytes = table::sidecar(&table);
        let parts = table::Parts::of(&bytes).expect("a sound sidecar");
        write("sidecar", &format!("{name}-file"), &[&[1], &bytes[..]].concat());
        write(
            "sidecar",
            &format!("{name}-body"),
            &[&[2], &table::body(&parts.blocks[0]).expect("a body")[..]].concat(),
        );
        write(
            "sidecar",
            &format!("{name}-description"),
            &[&[3], &parts.description().expect("JSON")[..]].concat(),
        );
    }
    let members = [("a/0.jpg".to_owned(), vec![7; 600]), (format!("{}/0.cls", "a/".repeat(60)), vec![49])];
    for (name, kind) in [("ustar", Kind::Ustar), ("gnu", Kind::Gnu), ("pax", Kind::Pax)] {
        write("tar", name, &tar_writer::archive(kind, &members));
    }
    let structured = "[('a', '<i4'), (('title', 'b'), [('c', '>f8', (2,))]), ('', '|V4')]";
    let arrays = [("floats", 1, "'<f4'", 4), ("text", 2, "'<U2'", 8), ("structured", 3, structured, 24)].map(
        |(name, version, descr, item_bytes)| {
            (name, npy(version, descr, false, &[3, 2], &vec![7; 6 * item_bytes]))
        },
    );
    for (name, bytes) in &arrays {
        write("npy", &format!("{name}.npy"), bytes);
    }
    let members = arrays.map(|(name, bytes)| Member::stored(&format!("{name}.npy"), bytes));
    for (name, wide) in [("narrow.npz", false), ("wide.npz", true)] {
        write("npy", name, &zip(&members, wide, b"a comment"));
    }
    for (name, message) in [
        ("bytes", datum::image([1, 2, 3], b"pixels", -3)),
        ("encoded", datum::encoded([0, 0, 0], b"jpeg", 300)),
        ("floats", datum::floats([1, 2, 3], &[1.0; 6], 3)),
        ("packed", datum::packed_floats([1, 2, 3], &[1.0; 6], 3)),
    ] {
        write("sidecar", &format!("datum-{name}"), &[&[4], &message[..]].concat());
    }
    let golden = here.join("../../tests/formats/golden");
    for (target, name) in [
        ("offset_table", "mds/columns/shard.00001.mds"),
        ("offset_table", "mds/tokens/shard.00000.mds"),
        ("array_record", "arrayrecord/zstd.array_record"),
        ("array_record", "arrayrecord/grouped.array_record"),
    ] {
        let bytes = fs::read(golden.join(name)).expect("a golden file");
        write(target, &name.replace('/', "-"), &bytes);
    }
    for (number, name) in [(2, "trees/chunk-0-1.bin"), (1, "leaf/chunk-0-0.bin")] {
        let bytes = fs::read(golden.join("litdata").join(name)).expect("a golden file");
        // The first byte chooses the leaves.
        write("offset_table", &name.replace('/', "-"), &[&[number], &bytes[..]].concat());
    }
    let some: Vec<Vec<u8>> = (0..6).map(|length| vec![7; 9 * length]).collect();
    write("records", "tfrecord", &record_writer::tfrecords(&some).0);
    write("records", "recordio", &record_writer::recordios(&some).0);
    write("records", "recordio.idx", b"0\t0\n1\t8\n2\t28\n");
    for (name, features) in [
        (
            "fixed",
            [
                ("a", example_writer::strings(&[b"four"])),
                ("c", example_writer::packed_floats(&[1.0, -2.0])),
                ("e", example_writer::plain_ints(&[1, -2, 300])),
            ],
        ),
        (
            "varying",
            [
                ("b", example_writer::strings(&[b"one", b"", b"three"])),
                ("d", example_writer::plain_floats(&[1.0, -2.0, 3.0])),
                ("f", example_writer::packed_ints(&[-1])),
            ],
        ),
    ] {
        let features = features.map(|(name, value)| [example_writer::key(name), value].concat());
        let message = example_writer::example(&features);
        write("example", name, &message);
        let steps = [example_writer::packed_ints(&[1]), example_writer::plain_floats(&[2.0])];
        let lists = example_writer::feature_lists(&[("frames", &steps), ("times", &[])]);
        write("example", &format!("sequence-{name}"), &[message, lists].concat());
    }
    for (name, labels) in [("one", &[][..]), ("two", &[1.0, 2.0]), ("three", &[1.0, 2.0, 3.0])] {
        write("example", &format!("image-{name}"), &record_writer::image_record(labels, 1.0, 7, b"7 bytes"));
    }
    let (description, table) = hdf5_writer::structure();
    write("hdf5", "structure", &hdf5_writer::join(&description, &table));
    write("hdf5", "superblock", &hdf5_writer::file()[..64]);
    for (number, encoded) in golden_chunks().into_iter().enumerate() {
        // The first byte chooses how much is decoded, and of what items.
        write("hdf5", &format!("chunk-{number}"), &[&[0x30][..], &encoded].concat());
    }
    for (name, bytes) in tables() {
        write(name.rsplit('.').next().expect("a suffix"), &name, &bytes);
    }
    write("tier_log", "example", &tier_log());
    write("tier_log", "header", &tier_log()[..16]);
    write("file_table", "example", &file_table());
    write("file_table", "header", &file_table()[..512]);
    for (name, how, image) in IMAGES {
        write("image", name, &[&how, image].concat());
    }
}

/// Arrow and Parquet files, as pyarrow wrote them.
fn tables() -> Vec<(String, Vec<u8>)> {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/forebay-format/tests/golden/tables");
    let entries = fs::read_dir(golden).expect("the golden tables");
    let read = |path: &Path| fs::read(path).expect("a golden table");
    let named = |entry: fs::DirEntry| (entry.file_name().into_string().expect("a name"), read(&entry.path()));
    entries.map(|entry| named(entry.expect("an entry"))).collect()
}

/// The beginning of a table with a record of each kind that is in an index; the rest is zeros.
fn file_table() -> Vec<u8> {
    let layout = Layout::new(4, 2).expect("a layout");
    let words: Vec<AtomicU64> = (0..layout.bytes() / 8).map(|_| AtomicU64::new(0)).collect();
    let settings = Settings {
        flags: Flags { frozen: true, check: false },
        generation: 1,
        levels: &[b"/scratch/forebay-0/v1"],
        prefixes: &[SourcePrefix { device: 1, path: b"/data" }],
    };
    let mut writer = TableWriter::create(&words, layout, &settings).expect("a table");
    for inode in 1..4 {
        let identity = Identity { device: 1, inode, bytes: 3, modified_ns: 4, changed_ns: 5 };
        let source = SourceFile { identity, mode: 0o100_644, links: 1, block_bytes: 4096, ..SourceFile::default() };
        let record = writer.add(&source, Some(b"/data/a")).expect("room");
        if inode > 1 {
            let identity = CopyIdentity { device: 2, inode, modified_ns: 6, changed_ns: 7 };
            writer.publish(record, &CopyFile { level: 0, number: inode, identity }).expect("room");
        }
    }
    writer.advance(RecordId(2), RecordState::Stale);
    let used = 19456 + 4 * (112 + 3 * 6);
    words.iter().flat_map(|word| word.load(Ordering::Relaxed).to_le_bytes()).take(used).collect()
}

/// The log that docs/formats/tier.md shows: a record of each kind.
fn tier_log() -> Vec<u8> {
    let page = include_str!("../../docs/formats/tier.md");
    let example = page.split("## Example").nth(1).expect("an example");
    let lines = example.lines().filter(|line| line.starts_with("    "));
    let digits = lines.flat_map(|line| line.split_whitespace().skip(1));
    digits.map(|byte| u8::from_str_radix(byte, 16).expect("hexadecimal")).collect()
}

/// Chunks of every filter, as the libraries of the filters wrote them; the small ones.
fn golden_chunks() -> Vec<Vec<u8>> {
    let text = include_str!("../../crates/forebay-format/tests/golden/codecs.json");
    let chunks: Vec<Value> = serde_json::from_str(text).expect("the golden chunks");
    let bytes = |digits: &str| {
        let digit = |at| u8::from_str_radix(&digits[at..at + 2], 16).expect("hexadecimal");
        (0..digits.len()).step_by(2).map(digit).collect::<Vec<u8>>()
    };
    let encoded = chunks.iter().filter_map(|chunk| chunk["encoded"].as_str()).map(bytes);
    encoded.filter(|encoded| encoded.len() < 1024).collect()
}
