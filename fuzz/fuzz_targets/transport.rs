//! Any bytes as messages between nodes: handshake, answer, and a request to a share.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| forebay_transport::untrusted::parse_any(bytes));
