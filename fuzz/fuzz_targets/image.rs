//! Any bytes as an image: an error or pixels, never a crash.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../crates/forebay-image/tests/support/any_image.rs"]
mod any_image;

fuzz_target!(|bytes: &[u8]| {
    let _ = any_image::decode(bytes);
});
