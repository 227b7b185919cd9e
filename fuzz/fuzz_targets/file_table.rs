//! Any bytes as a file table, as they are and with zeros up to the length in the header.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../crates/forebay-table/tests/support/any_table.rs"]
mod any_table;

fuzz_target!(|bytes: &[u8]| {
    let _ = any_table::read(bytes);
    let _ = any_table::read(&any_table::expanded(bytes));
});
