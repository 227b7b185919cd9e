//! Damaged tables are refused, or answer something; they never panic. So do the seeds of the fuzz
//! target `file_table`, which runs the same checks.
#![cfg(not(loom))]

use std::path::Path;

use forebay_table::TableError;

#[path = "support/any_table.rs"]
mod any_table;

const SEEDS: [&str; 2] = ["example", "header"];

fn seed(name: &str) -> Vec<u8> {
    let seeds = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds/file_table");
    std::fs::read(seeds.join(name)).expect("a seed")
}

/// Numbers that are different for every seed (xorshift).
fn random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

#[test]
fn the_seeds_are_read() {
    assert_eq!(any_table::read(&any_table::expanded(&seed("example"))), Ok(3));
    assert!(matches!(any_table::read(&seed("header")), Err(TableError::Short { .. })));
}

#[test]
fn damaged_tables_do_not_panic() {
    let mut state = 0x9e37_79b9_7f4a_7c15;
    let cases = if std::env::var_os("FOREBAY_LONG_TESTS").is_some() { 100_000 } else { 1000 };
    let mut refused = 0;
    for case in 0..cases {
        let mut bytes = any_table::expanded(&seed(SEEDS[case % SEEDS.len()]));
        let used = bytes.len().min(if case % 4 < 2 { 80 } else { 24_000 });
        for _ in 0..=random(&mut state) % 8 {
            let at = random(&mut state) as usize % used;
            bytes[at] = match random(&mut state) % 3 {
                0 => 0,
                1 => 0xff,
                _ => random(&mut state) as u8,
            };
        }
        if random(&mut state).is_multiple_of(8) {
            bytes.truncate(random(&mut state) as usize % bytes.len());
        }
        refused += u32::from(any_table::read(&bytes).is_err());
    }
    assert!(refused > 0);
}
