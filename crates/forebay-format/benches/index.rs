//! What an index costs: bytes per record, time to build, to open, to locate.
//!
//! `cargo bench -p forebay-format` measures made-up tables;
//! `cargo bench -p forebay-format -- PATH...` measures LMDB files. Times are medians of repeated
//! runs; compare them within one run only.

use std::hint::black_box;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use forebay_format::lmdb::{Dialect, Identity, TreeRecord};
use forebay_format::sidecar::{IndexEntry, RecordClass, StoredIn, Writer};
use forebay_format::{Dataset, FieldOut, Index, OpenOptions, Schema, SchemaChoice, ShardInfo, ShardState};
use forebay_types::{Located, SampleId};

const PAGE_BYTES: u64 = 4096;
const BATCH: usize = 256;

fn main() {
    let paths: Vec<PathBuf> =
        std::env::args().skip(1).filter(|text| !text.starts_with('-')).map(PathBuf::from).collect();
    if paths.is_empty() {
        table("200,000 of 3,073 bytes", 200_000, |_| 3073);
        table("200,000 of 200 bytes", 200_000, |_| 200);
        table("1,000,000 of random size, mean 110 KB", 1_000_000, |random| 20_000 + random % 180_000);
        table("20,000,000 of 3,073 bytes", 20_000_000, |_| 3073);
        datum();
    }
    for path in paths {
        let name = path.display().to_string();
        let dataset = Dataset::open(&[path], &OpenOptions::default()).expect("an LMDB file");
        let started = Instant::now();
        let built = dataset.build_index(2, &|_| true).expect("a sound file");
        println!("{name}: built in {:.3} s, {:?}", started.elapsed().as_secs_f64(), built.report);
        measure(&name, built.bytes, dataset.fingerprint());
    }
}

/// A table as one LMDB transaction would lay it out, with keys of 8 bytes and a leap every 1,000
/// records.
fn table(name: &str, samples: u64, mut length: impl FnMut(u64) -> u64) {
    let class = |name: &str, head_bytes, align_bytes: u64, step_bytes: u64, page_bytes: u64| RecordClass {
        name: name.to_owned(),
        head_bytes,
        tail_bytes: 0,
        align_bytes: align_bytes as u32,
        step_bytes: step_bytes as u32,
        page_bytes: page_bytes as u32,
        page_tail_bytes: 0,
        guard: head_bytes > 0,
        stored_in: StoredIn::default(),
    };
    let classes = vec![class("inline", 0, 1, 2, PAGE_BYTES), class("big", 16, PAGE_BYTES, PAGE_BYTES, 0)];
    let mut writer = Writer::new(vec![classes]);
    let started = Instant::now();
    let (mut page, mut upper, mut random) = (2, PAGE_BYTES, 1_u64);
    for sample in 0..samples {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let length = length(random >> 33);
        if length > 2000 {
            writer.push([IndexEntry::Plain { class: 1, start: page * PAGE_BYTES, length }]);
            page += (length + 15) / PAGE_BYTES
                + 1
                + u64::from(sample % 155 == 154)
                + 3 * u64::from(sample % 1000 == 999);
        } else {
            let node = (16 + length).next_multiple_of(2);
            if upper < node + 200 {
                (page, upper) = (page + 1, PAGE_BYTES);
            }
            upper -= node;
            writer.push([IndexEntry::Plain { class: 0, start: page * PAGE_BYTES + upper + 16, length }]);
        }
    }
    let tree = TreeRecord {
        flags: 0,
        depth: 3,
        branch_pages: 1,
        leaf_pages: 1,
        overflow_pages: 1,
        entries: samples,
        root: 2,
    };
    let identity = Identity {
        dialect: Dialect::ALL[0],
        page_bytes: PAGE_BYTES as u32,
        checksum_bytes: 0,
        transactions: [4, 3],
        last_page: page,
        main: tree,
        database: None,
        tree,
    };
    let bytes = (page + 1) * PAGE_BYTES;
    writer.end_shard(ShardInfo {
        name: "data.mdb".into(),
        bytes,
        modified_ns: 0,
        samples: 0,
        state: ShardState::Lmdb(identity),
    });
    let sidecar = writer.finish(forebay_format::Format::Lmdb, Schema::Raw, 7);
    println!("{name}: coded in {:.0} ns per record", started.elapsed().as_nanos() as f64 / samples as f64);
    measure(name, sidecar, 7);
}

fn measure(name: &str, sidecar: Vec<u8>, fingerprint: u128) {
    let sidecar: Arc<Vec<u8>> = Arc::new(sidecar);
    let open = || Index::from_bytes(sidecar.clone(), fingerprint).expect("a sound sidecar");
    let opened = median(5, || {
        let started = Instant::now();
        black_box(open());
        started.elapsed().as_nanos() as f64
    });
    let index = open();
    let samples = index.samples();
    println!(
        "{name}: sidecar {} bytes ({:.3} per record), opened in {:.2} ms",
        sidecar.len(),
        sidecar.len() as f64 / samples as f64,
        opened / 1e6
    );
    let mut located = Located::default();
    let cold = {
        let ids: Vec<SampleId> = (0..samples.min(1 << 20)).map(SampleId).collect();
        let started = Instant::now();
        for batch in ids.chunks(BATCH) {
            index.locate(batch, &mut located).expect("samples");
        }
        started.elapsed().as_nanos() as f64 / ids.len() as f64
    };
    println!("{name}: locate in order, blocks expanded at first use: {cold:.1} ns per sample");
    let mut random = 1_u64;
    let shuffled: Vec<SampleId> = (0..1 << 18)
        .map(|_| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            SampleId((random >> 20) % samples)
        })
        .collect();
    for (order, ids, batch) in [
        ("in order", &(0..samples.min(1 << 18)).map(SampleId).collect::<Vec<_>>(), BATCH),
        ("at random", &shuffled, BATCH),
        ("at random", &shuffled, 1 << 16),
    ] {
        let per_sample = median(5, || {
            let started = Instant::now();
            for ids in ids.chunks(batch) {
                index.locate(black_box(ids), &mut located).expect("samples");
            }
            started.elapsed().as_nanos() as f64 / ids.len() as f64
        });
        println!("{name}: locate {order}, {batch} at once: {per_sample:.1} ns per sample");
    }
    println!("{name}: expanded blocks take {} KiB", index.expanded_bytes() >> 10);
}

/// Decoding a Datum against copying its bytes.
fn datum() {
    let pixels = 3 * 32 * 32;
    let mut record = vec![0x08, 3, 0x10, 32, 0x18, 32, 0x22, 0x80, 0x18];
    record.extend(vec![9; pixels]);
    record.extend([0x28, 1]);
    let schema = Schema::CaffeDatum(forebay_format::DatumSchema {
        pixels: forebay_format::Pixels::Uint8,
        shape: [3, 32, 32],
    });
    let records = vec![record; 4096];
    let mut images = vec![0_u8; 4096 * pixels];
    let mut labels = vec![0_u8; 4096 * 8];
    let decoded = median(9, || {
        let started = Instant::now();
        for ((record, image), label) in
            records.iter().zip(images.chunks_mut(pixels)).zip(labels.chunks_mut(8))
        {
            schema.decode(&[record], &mut [FieldOut::Dense(image), FieldOut::Dense(label)]).expect("a Datum");
        }
        started.elapsed().as_nanos() as f64 / 4096.0
    });
    let copied = median(9, || {
        let started = Instant::now();
        for (record, image) in records.iter().zip(images.chunks_mut(pixels)) {
            black_box(&mut *image).copy_from_slice(&black_box(record)[9..9 + pixels]);
        }
        started.elapsed().as_nanos() as f64 / 4096.0
    });
    println!("Datum of 3,083 bytes: decoded in {decoded:.0} ns, its pixels copied in {copied:.0} ns");
    black_box((SchemaChoice::Auto, labels));
}

fn median(runs: usize, mut run: impl FnMut() -> f64) -> f64 {
    let mut figures: Vec<f64> = (0..runs).map(|_| run()).collect();
    figures.sort_by(f64::total_cmp);
    figures[runs / 2]
}
