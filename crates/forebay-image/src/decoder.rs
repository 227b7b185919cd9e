//! One image to pixels of the size that a user asked for.

use std::panic::{AssertUnwindSafe, catch_unwind};

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
        let decoded = catch_unwind(AssertUnwindSafe(|| decode(data, spec, key)));
        let (pixels, crop) = decoded.unwrap_or_else(|_| {
            Err(ImageError::new("image", 0, "one that is sound", "a panic of its decoder"))
        })?;
        self.output.write(&pixels, spec, &crop, out);
        Ok(())
    }
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
