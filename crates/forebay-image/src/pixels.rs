//! Pixels of a part of an image, perhaps at a reduced size.

use std::ops::Range;

use crate::error::ImageError;
use crate::spec::Mode;

/// Largest image that is decoded \[pixels\]: 134 million, more than cameras have. It takes up to
/// 400 MB while it is decoded.
pub const MAX_PIXELS: u64 = 1 << 27;

/// Decoded pixels of an image.
#[expect(clippy::large_enum_variant, reason = "one per image, on the stack")]
pub(crate) enum Pixels {
    /// All channels of a pixel side by side, as the mode says.
    Interleaved(Plane),
    /// Luminance, and blue and red chrominance, which may have fewer pixels.
    YCbCr([Plane; 3]),
    /// Luminance alone, of any mode.
    Luminance(Plane),
}

/// Pixels row by row.
pub(crate) struct Plane {
    pub(crate) bytes: Vec<u8>,
    /// Pixels of a row in `bytes`.
    pub(crate) row_pixels: usize,
    /// Rows in `bytes`.
    pub(crate) rows: usize,
    /// The columns and rows that hold pixels of the image.
    pub(crate) valid: [Range<usize>; 2],
    /// Where the first pixel of `bytes` lies, in pixels of the plane: column and row.
    pub(crate) origin: [usize; 2],
    /// Pixels of the plane per pixel of the image: across, and down.
    pub(crate) scale: [f64; 2],
}

impl Plane {
    /// Pixels of the whole image, all of them valid.
    ///
    /// # Errors
    /// If a decoder of `format` returned another number of bytes, or no pixels.
    pub(crate) fn new(
        format: &str,
        bytes: Vec<u8>,
        channels: usize,
        row_pixels: usize,
        rows: usize,
    ) -> Result<Self, ImageError> {
        if bytes.is_empty() || bytes.len() != row_pixels * rows * channels {
            let found = bytes.len().to_string();
            let expected = format!("{row_pixels} x {rows} pixels");
            return Err(ImageError::new(format!("{format}: decoded bytes"), 0, expected, found));
        }
        let valid = [0..row_pixels, 0..rows];
        Ok(Self { bytes, row_pixels, rows, valid, origin: [0; 2], scale: [1.0; 2] })
    }
}

/// Converts pixels of red, green, blue, and `skip` bytes more, to a mode.
pub(crate) fn from_rgb(bytes: &[u8], skip: usize, mode: Mode) -> Vec<u8> {
    let pixels = bytes.chunks_exact(3 + skip);
    match mode {
        Mode::Rgb => pixels.flat_map(|pixel| [pixel[0], pixel[1], pixel[2]]).collect(),
        Mode::Gray => pixels.map(|pixel| luminance([pixel[0], pixel[1], pixel[2]])).collect(),
    }
}

/// Converts gray pixels, and `skip` bytes more, to a mode.
pub(crate) fn from_gray(bytes: &[u8], skip: usize, mode: Mode) -> Vec<u8> {
    let pixels = bytes.chunks_exact(1 + skip).map(|pixel| pixel[0]);
    match mode {
        Mode::Rgb => pixels.flat_map(|gray| [gray; 3]).collect(),
        Mode::Gray => pixels.collect(),
    }
}

/// Converts cyan, magenta, yellow and black, without a color profile; `inverted` as Adobe's
/// programs write it.
pub(crate) fn from_cmyk(bytes: &[u8], inverted: bool, mode: Mode) -> Vec<u8> {
    let light = |ink: u8| u16::from(if inverted { ink } else { 255 - ink });
    let pixels = bytes.chunks_exact(4).map(|pixel| {
        let black = light(pixel[3]);
        [0, 1, 2].map(|channel: usize| ((light(pixel[channel]) * black + 127) / 255) as u8)
    });
    match mode {
        Mode::Rgb => pixels.flatten().collect(),
        Mode::Gray => pixels.map(luminance).collect(),
    }
}

/// Converts luminance, blue and red chrominance and black to inks, in place: cyan, magenta and
/// yellow are what red, green and blue lack.
pub(crate) fn inks_of_ycck(pixels: &mut [u8]) {
    // Parts of 65,536, as libjpeg-turbo rounds them (jdcolor.c).
    const HALF: i32 = 1 << 15;
    for pixel in pixels.as_chunks_mut::<4>().0 {
        let [luminance, blue, red] = [pixel[0], pixel[1], pixel[2]].map(i32::from);
        let (blue, red) = (blue - 128, red - 128);
        let colors = [
            luminance + ((91_881 * red + HALF) >> 16),
            luminance + ((-22_554 * blue - 46_802 * red + HALF) >> 16),
            luminance + ((116_130 * blue + HALF) >> 16),
        ];
        for (ink, color) in pixel.iter_mut().zip(colors) {
            *ink = (255 - color).clamp(0, 255) as u8;
        }
    }
}

/// ITU-R BT.601, which JPEG has as well.
fn luminance([red, green, blue]: [u8; 3]) -> u8 {
    let sum = 19_595 * u32::from(red) + 38_470 * u32::from(green) + 7_471 * u32::from(blue);
    ((sum + (1 << 15)) >> 16) as u8
}

/// Checks the size that an image claims, before anything is allocated for it.
pub(crate) fn check_size(what: &str, offset: usize, width: u32, height: u32) -> Result<(), ImageError> {
    let pixels = u64::from(width) * u64::from(height);
    if pixels == 0 || pixels > MAX_PIXELS {
        return Err(ImageError::new(
            format!("{what}: size"),
            offset,
            format!("1 to {MAX_PIXELS} pixels"),
            format!("{width} x {height}"),
        ));
    }
    Ok(())
}
