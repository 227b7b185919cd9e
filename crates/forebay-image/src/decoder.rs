//! One image to pixels of the size that a user asked for.

use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

use crate::crop::{Crop, crop};
use crate::error::ImageError;
use crate::jpeg;
use crate::jpeg_frame::hex;
use crate::output::Output;
use crate::pixels::Pixels;
use crate::png::Png;
use crate::random::SampleKey;
use crate::spec::ImageSpec;

const PNG_START: [u8; 8] = [0x89, b'P', b'N', b'G', 0x0d, 0x0a, 0x1a, 0x0a];

/// Formats that are recognized, for messages; the first bytes of each, at an offset.
const OTHERS: [(&str, usize, &[u8]); 7] = [
    ("GIF", 0, b"GIF8"),
    ("WebP", 8, b"WEBP"),
    ("BMP", 0, b"BM"),
    ("TIFF", 0, b"II*\0"),
    ("TIFF", 0, b"MM\0*"),
    ("JPEG 2000", 4, b"jP  "),
    ("AVIF or HEIC", 4, b"ftyp"),
];

/// Decodes images; keeps memory from one to the next. Each thread has its own.
#[derive(Default)]
pub struct ImageDecoder {
    output: Output,
}

impl ImageDecoder {
    /// Decodes an image into `out`, which has [`ImageSpec::bytes`] bytes. What is random follows
    /// from `key` alone.
    ///
    /// # Errors
    /// If the bytes are no image, a broken one, or one that is too large. `out` may be partly
    /// written.
    ///
    /// # Panics
    /// If `out` has another length.
    pub fn decode(
        &mut self,
        data: &[u8],
        spec: &ImageSpec,
        key: SampleKey,
        out: &mut [u8],
    ) -> Result<(), ImageError> {
        assert_eq!(out.len(), spec.bytes(), "a buffer for an image");
        let output = &mut self.output;
        let decoded = guarded(|| {
            let (pixels, crop) = decode(data, spec, key)?;
            output.write(&pixels, spec, &crop, out);
            Ok(())
        });
        decoded.unwrap_or_else(|panic| {
            // What it kept may be in any state.
            self.output = Output::default();
            let found = format!("a panic of its decoder: {panic}");
            Err(ImageError::new("image", 0, "one that is sound", found))
        })
    }
}

thread_local! {
    /// Whether a panic of this thread is caught, and becomes an error.
    static IS_GUARDED: Cell<bool> = const { Cell::new(false) };
}

/// Calls a function; a panic returns its message, and prints nothing.
fn guarded<T>(function: impl FnOnce() -> T) -> Result<T, String> {
    static QUIET: Once = Once::new();
    QUIET.call_once(|| {
        let others = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            // A thread that ends has no such variable any more, and decodes nothing.
            if !IS_GUARDED.try_with(Cell::get).unwrap_or(false) {
                others(panic);
            }
        }));
    });
    let before = IS_GUARDED.replace(true);
    let result = catch_unwind(AssertUnwindSafe(function));
    IS_GUARDED.set(before);
    result.map_err(|panic| message(&*panic))
}

/// The message of a panic: a string, as of all macros.
fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("of no message").to_owned()
}

fn decode(data: &[u8], spec: &ImageSpec, key: SampleKey) -> Result<(Pixels, Crop), ImageError> {
    if data.starts_with(&PNG_START) {
        let png = Png::open(data)?;
        let (width, height) = png.size();
        let crop = crop(spec, width, height, key);
        return Ok((png.decode(spec.mode)?, crop));
    }
    if data.starts_with(&[0xff, 0xd8]) {
        let (frame, width, height) = jpeg::size(data)?;
        let crop = crop(spec, width, height, key);
        return Ok((jpeg::decode(data, &frame, spec, &crop)?, crop));
    }
    let other =
        OTHERS.iter().find(|(_, at, start)| data.get(*at..).is_some_and(|rest| rest.starts_with(start)));
    let found = other.map_or_else(|| hex(data), |(name, ..)| (*name).to_owned());
    Err(ImageError::new("start of the image", 0, "that of a JPEG or PNG", found))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_its_message_and_the_next_call_is_not_affected() {
        let index = std::hint::black_box(7);
        assert_eq!(
            guarded(|| [1, 2][index]),
            Err("index out of bounds: the len is 2 but the index is 7".into())
        );
        assert_eq!(guarded(|| std::panic::panic_any(1)), Err::<(), _>("of no message".into()));
        assert!(!IS_GUARDED.get());
        assert_eq!(guarded(|| 3), Ok(3));
    }
}
