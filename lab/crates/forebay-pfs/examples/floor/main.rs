//! The emulator's own costs, and how close its times are to the model's.
//!
//! `cargo run --release -p forebay-pfs --example floor [floor|accuracy|all]`
//!
//! - **Floor**: on a file system without costs, alternate reads through the mount, of the backing
//!   file from the page cache, and through a FUSE server that answers from one buffer
//!   (`constant.rs`, the upper bound). Prints medians and ratios, once into one reused buffer,
//!   which stays in the processor's cache, and once into new memory. The backing file is written in
//!   one go, which gives large folios in the page cache, and in pieces, which gives small ones.
//! - **Accuracy**: two access patterns alternate on a modelled file system. Prints each median
//!   against the model's value in virtual time, and the spread of their ratio.

#![allow(clippy::disallowed_methods, reason = "an example may panic where there are no threads")]

mod constant;

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::time::Instant;

use forebay_model::virtual_time::{Action, Scenario, Stream, run};
use forebay_model::{AccessMethod, ReadAheadRules, Spec};
use forebay_pfs::{Configuration, Emulator};

const FILE_BYTES: u64 = 256 << 20;
const MIB: usize = 1 << 20;
const READ_AHEAD_KB: u64 = 1024;

type Failure = Box<dyn std::error::Error>;

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

/// Standard deviation over mean, and (max - min) over median, in percent.
fn spread(values: &[f64]) -> (f64, f64) {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (count - 1.0);
    let least = values.iter().copied().fold(f64::INFINITY, f64::min);
    let most = values.iter().copied().fold(0.0, f64::max);
    (100.0 * variance.sqrt() / mean, 100.0 * (most - least) / median(values))
}

fn open(path: &Path, direct: bool) -> std::io::Result<File> {
    let flags = if direct { libc::O_DIRECT } else { 0 };
    OpenOptions::new().read(true).custom_flags(flags).open(path)
}

/// Reads ranges in order; returns the duration \[s\].
fn read_all(file: &File, ranges: &[(u64, usize)]) -> std::io::Result<f64> {
    // Page-aligned for O_DIRECT: an offset would split each MiB into two requests.
    let longest = ranges.iter().map(|range| range.1).max().unwrap_or(0);
    let mut room = vec![0; longest + 4096];
    let skipped = room.as_ptr().align_offset(4096);
    let buffer = &mut room[skipped..];
    let begun = Instant::now();
    for &(offset, length) in ranges {
        file.read_exact_at(&mut buffer[..length], offset)?;
    }
    Ok(begun.elapsed().as_secs_f64())
}

/// Reads the whole file into new memory, 1 MiB at a time; returns the duration \[s\].
fn read_into_new_memory(file: &File) -> std::io::Result<f64> {
    let mut room = vec![0; FILE_BYTES as usize + 4096];
    let skipped = room.as_ptr().align_offset(4096);
    let begun = Instant::now();
    for (offset, piece) in (0..).step_by(MIB).zip(room[skipped..][..FILE_BYTES as usize].chunks_mut(MIB)) {
        file.read_exact_at(piece, offset)?;
    }
    Ok(begun.elapsed().as_secs_f64())
}

fn sequential(count: u64, length: usize) -> Vec<(u64, usize)> {
    (0..count).map(|number| (number * length as u64, length)).collect()
}

/// Fixed page-aligned offsets in random order, none adjacent to its predecessor.
fn scattered(count: u64, length: usize) -> Vec<(u64, usize)> {
    let pages = (FILE_BYTES - length as u64) / 4096;
    (0..count).map(|number| ((number * 40_503 + 17) * 2_654_435_761 % pages * 4096, length)).collect()
}

fn start(room: &Path, spec: Spec, time_scale: f64, read_ahead_kb: u64) -> Result<Emulator, Failure> {
    let mut configuration = Configuration::new(room.join("backing"), vec![room.join("mount")], spec);
    configuration.time_scale = time_scale;
    configuration.read_ahead_kb = Some(read_ahead_kb);
    Ok(Emulator::start(&configuration).map_err(|error| error.text())?)
}

/// Writes the backing file in pieces.
fn write_file(room: &Path, piece_bytes: usize) -> std::io::Result<()> {
    let bytes: Vec<u8> = (0..FILE_BYTES).map(|place| (place % 251) as u8).collect();
    let mut file = File::create(room.join("backing/file"))?;
    bytes.chunks(piece_bytes).try_for_each(|piece| file.write_all(piece))
}

fn floor(room: &Path) -> Result<(), Failure> {
    for (written, piece_bytes) in [("in pieces of 8 KiB", 8192), ("in one go", FILE_BYTES as usize)] {
        write_file(room, piece_bytes)?;
        println!("backing file written {written}:");
        floor_of_reads(room)?;
    }
    floor_of_small_reads(room)
}

fn floor_of_reads(room: &Path) -> Result<(), Failure> {
    let emulator = start(room, Spec::free(), 1.0, READ_AHEAD_KB)?;
    let constant = constant::mount(&room.join("constant"), FILE_BYTES, READ_AHEAD_KB)?;
    let (backing, mounted) = (room.join("backing/file"), room.join("mount/file"));
    let least = room.join("constant/file");
    let whole = sequential(FILE_BYTES / MIB as u64, MIB);
    let rate = |seconds: f64| FILE_BYTES as f64 / 1e6 / seconds;
    for (name, direct, fresh) in [
        ("buffered, 1 MiB", false, false),
        ("O_DIRECT, 1 MiB", true, false),
        ("buffered, 1 MiB, into new memory", false, true),
        ("O_DIRECT, 1 MiB, into new memory", true, true),
    ] {
        let read = |path: &Path, direct| {
            let file = open(path, direct)?;
            if fresh { read_into_new_memory(&file) } else { read_all(&file, &whole) }
        };
        let (mut plain, mut through, mut most) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..7 {
            emulator.drop_caches(&room.join("mount"))?;
            plain.push(rate(read(&backing, false)?));
            through.push(rate(read(&mounted, direct)?));
            most.push(rate(read(&least, direct)?));
        }
        let (plain, through, most) = (median(&plain), median(&through), median(&most));
        println!(
            "  {name}: {through:.0} MB/s, {:.2} of the backing file's {plain:.0} MB/s; a server that answers from one buffer \
             {most:.0} MB/s, {:.2}",
            through / plain,
            most / plain
        );
    }
    Ok(constant.umount_and_join()?)
}

fn floor_of_small_reads(room: &Path) -> Result<(), Failure> {
    let _emulator = start(room, Spec::free(), 1.0, READ_AHEAD_KB)?;
    let mounted = room.join("mount/file");
    for threads in [1_u64, 4] {
        let mut rates = Vec::new();
        for _ in 0..5 {
            let begun = Instant::now();
            let count = 20_000;
            std::thread::scope(|scope| {
                for _ in 0..threads {
                    scope.spawn(|| {
                        let read =
                            open(&mounted, true).and_then(|file| read_all(&file, &scattered(count, 4096)));
                        read.expect("the mount answers");
                    });
                }
            });
            rates.push(threads as f64 * count as f64 / begun.elapsed().as_secs_f64());
        }
        println!("O_DIRECT, 4 KiB, random, {threads} threads: {:.0} reads/s", median(&rates));
    }
    Ok(())
}

/// The duration of these reads in the model \[model s\].
fn predicted(spec: &Spec, ranges: &[(u64, usize)]) -> Result<f64, Failure> {
    let touch = |&(offset, length): &(u64, usize)| Action::Touch {
        file: 0,
        offset,
        length: length as u64,
        how: AccessMethod::Direct,
    };
    let scenario = Scenario {
        rules: ReadAheadRules::Linux { read_ahead_bytes: 0 },
        files: vec![FILE_BYTES],
        streams: vec![Stream { node: 0, actions: ranges.iter().map(touch).collect() }],
        ..Scenario::default()
    };
    Ok(run(spec, &scenario)?.end_ns as f64 / 1e9)
}

fn accuracy(room: &Path, name: &str, spec: &Spec, time_scale: f64) -> Result<(), Failure> {
    let emulator = start(room, spec.clone(), time_scale, READ_AHEAD_KB)?;
    let file = open(&room.join("mount/file"), true)?;
    let patterns = [("sequential 1 MiB", sequential(40, MIB)), ("random 4 KiB", scattered(200, 4096))];
    let mut found = [Vec::new(), Vec::new()];
    for _ in 0..9 {
        for (pattern, times) in patterns.iter().zip(&mut found) {
            emulator.reset();
            times.push(read_all(&file, &pattern.1)? / time_scale);
        }
    }
    println!("{name}, time scale {time_scale}:");
    let mut models = [0.0; 2];
    for (place, (label, ranges)) in patterns.iter().enumerate() {
        let model = predicted(spec, ranges)?;
        let (middle, (deviation, width)) = (median(&found[place]), spread(&found[place]));
        models[place] = model;
        println!(
            "  {label}: {:.1} ms, model {:.1} ms: {:+.1} %; cv {deviation:.1} %, max-min {width:.1} %",
            middle * 1e3,
            model * 1e3,
            100.0 * (middle / model - 1.0)
        );
    }
    let ratios: Vec<f64> =
        found[1].iter().zip(&found[0]).map(|(random, sequential)| random / sequential).collect();
    let (deviation, width) = spread(&ratios);
    let (middle, model) = (median(&ratios), models[1] / models[0]);
    println!(
        "  ratio of pairs: {middle:.3}, model {model:.3}: {:+.1} %; cv {deviation:.1} %, max-min {width:.1} %",
        100.0 * (middle / model - 1.0)
    );
    let stats = emulator.stats();
    let lateness = &stats["lateness_us"];
    println!(
        "  last run [model us]: lateness p50 {}, p99 {}, max {}; way {}",
        lateness["p50"], lateness["p99"], lateness["max"], stats["round_trip_us"]
    );
    Ok(())
}

fn main() -> Result<(), Failure> {
    let wanted = std::env::args().nth(1).unwrap_or_else(|| "all".to_owned());
    let room = tempfile::tempdir()?;
    for name in ["backing", "mount", "constant"] {
        std::fs::create_dir(room.path().join(name))?;
    }
    write_file(room.path(), FILE_BYTES as usize)?;
    if wanted != "accuracy" {
        floor(room.path())?;
    }
    if wanted != "floor" {
        let disks = Spec {
            name: "disks".to_owned(),
            targets: 4,
            target_bytes_per_second: 100e6,
            latency_us: 500.0,
            seek_us: 4000.0,
            stripe_count: 4,
            ..Spec::free()
        };
        let flash = Spec { name: "flash".to_owned(), seek_us: 0.0, ..disks.clone() };
        accuracy(room.path(), "disks: 4 x 100 MB/s, 0.5 ms, seek 4 ms", &disks, 1.0)?;
        accuracy(room.path(), "flash: 4 x 100 MB/s, 0.5 ms", &flash, 1.0)?;
        accuracy(room.path(), "flash: 4 x 100 MB/s, 0.5 ms", &flash, 4.0)?;
        let fefs = Spec::preset("fefs")?.with_targets(3);
        let factor = fefs.suggested_time_scale();
        accuracy(room.path(), "fefs with 3 targets", &fefs, factor)?;
    }
    Ok(())
}
