//! What provenance costs: bytes of a recipe, time and memory for all offsets, and for the sidecar
//! made of them.
//!
//! `cargo bench -p forebay-recipe --bench provenance -- CASE [SAMPLES]` measures one case and
//! prints it as JSON; a process measures one case, so that its peak memory is that case's.
//! `lab/studies/provenance` makes the table.

use std::fs;
use std::time::Instant;

use forebay_format::lmdb::Dialect;
use forebay_format::sidecar::{IndexEntry, RecordClass, StoredIn, Writer};
use forebay_recipe::{Lengths, NamedDatabase, Recipe, RecipeFile, ShardRecipe, SplitClass, Transactions};

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|text| !text.starts_with('-')).collect();
    let Some(case) = arguments.first() else {
        println!("name a case: cifar, cifar-one-transaction, imagenet, inline, list");
        return;
    };
    let samples = arguments.get(1).and_then(|text| text.parse().ok());
    measure(case, &recipe(case, samples));
}

/// The datasets of the LMDBIO paper, as Caffe's converters write them, and others.
fn recipe(case: &str, samples: Option<u64>) -> Recipe {
    let of = |records, keys, values, transactions| Recipe {
        dialect: Dialect::ALL[0],
        page_bytes: 4096,
        checksum_bytes: 0,
        split_class: SplitClass::Modern,
        append: false,
        database: None,
        records,
        keys: Lengths::Constant(keys),
        key_pattern: None,
        values,
        transactions,
        excluded: Vec::new(),
    };
    let constant = Lengths::Constant;
    match case {
        // `convert_imageset`: keys `%08d_path`, a commit every 1,000 records.
        "cifar" => of(samples.unwrap_or(50_000_000), 24, constant(3083), Transactions::every(1000)),
        "cifar-one-transaction" => {
            of(samples.unwrap_or(50_000_000), 8, constant(3083), Transactions::default())
        }
        "imagenet" => of(samples.unwrap_or(6_000_000), 30, constant(196_630), Transactions::every(1000)),
        "inline" => of(samples.unwrap_or(50_000_000), 8, constant(200), Transactions::every(1000)),
        "list" => {
            let records = samples.unwrap_or(1_281_167);
            let mut random = 1_u64;
            let mut next = || {
                random =
                    random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (random >> 33) as u32
            };
            // Bell-shaped around 110 KB, as the sum of four even numbers is.
            let values = (0..records).map(|_| (0..4).map(|_| next() % 55_000).sum::<u32>()).collect();
            Recipe {
                append: true,
                database: Some(NamedDatabase { name: "images".into(), own_transaction: true }),
                ..of(records, 8, values, Transactions::every(1000))
            }
        }
        other => panic!("there is no case {other}"),
    }
}

fn measure(case: &str, recipe: &Recipe) {
    let file =
        RecipeFile { fingerprint: 0, shards: vec![ShardRecipe { recipe: recipe.clone(), digest: Some(0) }] };
    let before_bytes = peak_bytes();
    let started = Instant::now();
    let mut sum = 0_u64;
    let pages =
        recipe.places(|offset, length, _| sum = sum.wrapping_add(offset ^ length)).expect("a sound recipe");
    let offsets_s = started.elapsed().as_secs_f64();
    let offsets_bytes = peak_bytes() - before_bytes;

    let class = |name: &str, head_bytes, align_bytes, step_bytes, page_bytes| RecordClass {
        name: name.to_owned(),
        head_bytes,
        tail_bytes: 0,
        align_bytes,
        step_bytes,
        page_bytes,
        page_tail_bytes: 0,
        guard: head_bytes > 0,
        stored_in: StoredIn::default(),
    };
    let started = Instant::now();
    let mut writer = Writer::new(vec![vec![class("inline", 0, 1, 2, 4096), class("big", 16, 4096, 4096, 0)]]);
    recipe
        .places(|offset, length, big| {
            let start = if big { offset - 16 } else { offset };
            writer.push([IndexEntry::Plain { class: u8::from(big), start, length }]);
        })
        .expect("a sound recipe");
    let sidecar_s = started.elapsed().as_secs_f64();
    println!(
        "{{\"case\": \"{case}\", \"samples\": {}, \"recipe_bytes\": {}, \"list_bytes\": {}, \"file_bytes\": {}, \
         \"offsets_s\": {offsets_s:.3}, \"offsets_peak_bytes\": {offsets_bytes}, \"sidecar_s\": {sidecar_s:.3}, \
         \"sum\": {sum}, \"peak_bytes\": {}}}",
        recipe.records,
        file.recipe_bytes(),
        file.list_bytes(),
        pages * 4096,
        peak_bytes(),
    );
}

/// Most memory that this process has held so far \[bytes\].
fn peak_bytes() -> u64 {
    let status = fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a peak");
    1024 * line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number")
}
