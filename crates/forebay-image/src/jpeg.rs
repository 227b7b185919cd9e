//! JPEG: decodes the part of an image that a crop needs, at a reduced size if that is enough.
//!
//! - Rows after the crop are not decoded at all (`jpeg_frame`), rows before it only as far as the
//!   entropy coding needs.
//! - The inverse DCT makes 1/2, 1/4 or 1/8 of the size where the result is still larger by
//!   `REDUCED_MARGIN`.
//!
//! Progressive images, restart markers and gray images are decoded; CMYK is converted without a
//! profile. Images of unusual colors or sampling are decoded whole. The orientation of EXIF and
//! color profiles are ignored. 12 and 16 bits are errors.

use libjpeg_turbo_rs::{DecodeLimits, Decoder, JpegError, PixelFormat, ScalingFactor};

use crate::crop::Crop;
use crate::decoder::MAX_PIXELS;
use crate::error::ImageError;
use crate::jpeg_frame::Frame;
use crate::pixels::{Pixels, check_size, from_cmyk};
use crate::spec::{ImageSpec, Mode};

/// How much larger than the result a reduced image is at least: the reduction itself is a coarse
/// filter, which the one of the resize has to outweigh.
const REDUCED_MARGIN: f64 = 1.5;
/// Scans of a progressive image, at most: a real one has a dozen, and each costs a pass over it.
const MAX_SCANS: usize = 256;

/// Reads the size of an image: width and height.
pub(crate) fn size(data: &[u8]) -> Result<(Frame, u32, u32), ImageError> {
    let frame = Frame::read(data)?;
    let (width, height) = (u32::from(frame.width), u32::from(frame.height));
    check_size("JPEG", frame.offset, width, height, MAX_PIXELS)?;
    if !matches!(frame.components, 1 | 3 | 4) {
        return Err(ImageError::new(
            "JPEG: components",
            frame.offset,
            "1, 3 or 4",
            frame.components.to_string(),
        ));
    }
    Ok((frame, width, height))
}

/// Decodes what `crop` needs for a result of `spec`.
pub(crate) fn decode(
    data: &[u8],
    frame: &Frame,
    spec: &ImageSpec,
    crop: &Crop,
) -> Result<Pixels, ImageError> {
    let eighths = reduced(spec, crop);
    let scale = f64::from(eighths) / 8.0;
    // In pixels of the reduced image, rounded outwards.
    let reduce = |pixels: u16| (usize::from(pixels) * eighths as usize).div_ceil(8);
    let (whole_width, whole_height) = (reduce(frame.width), reduce(frame.height));
    let (mut left, mut top, mut right, mut bottom) = (0, 0, whole_width, whole_height);
    let mut cut = None;
    if frame.is_usual {
        left = ((crop.left * scale).floor() as usize).min(whole_width - 1);
        top = ((crop.top * scale).floor() as usize).min(whole_height - 1);
        right = (((crop.left + crop.width) * scale).ceil() as usize).clamp(left + 1, whole_width);
        bottom = (((crop.top + crop.height) * scale).ceil() as usize).clamp(top + 1, whole_height);
        cut = frame.cut(data, (bottom * 8).div_ceil(eighths as usize));
    }
    let limits = DecodeLimits { max_pixels: MAX_PIXELS, max_scans: MAX_SCANS, ..DecodeLimits::default() };
    let failed = |error: JpegError| ImageError::new("JPEG", 0, "an image", error.to_string());
    let mut decoder = Decoder::new_with_limits(cut.as_deref().unwrap_or(data), limits).map_err(failed)?;
    decoder.set_output_format(match (frame.components, spec.mode) {
        (4, _) => PixelFormat::Cmyk,
        (_, Mode::Rgb) => PixelFormat::Rgb,
        (_, Mode::Gray) => PixelFormat::Grayscale,
    });
    decoder.set_scale(ScalingFactor::try_new(1, 8 / eighths).map_err(failed)?);
    if frame.is_usual {
        decoder.set_crop_region(left, top, right - left, bottom - top);
    }
    let image = decoder.decode_image().map_err(failed)?;
    let bytes =
        if frame.components == 4 { from_cmyk(&image.data, frame.is_adobe, spec.mode) } else { image.data };
    // The decoder begins at a whole block, to the left of the crop.
    let pixels = Pixels {
        bytes,
        width: image.width,
        height: image.height,
        left: (left + (right - left)).saturating_sub(image.width),
        top,
        scale,
    };
    let expected = pixels.width * pixels.height * spec.mode.channels();
    if pixels.bytes.len() != expected {
        let found = format!("{}", pixels.bytes.len());
        return Err(ImageError::new("JPEG: decoded bytes", 0, expected.to_string(), found));
    }
    Ok(pixels)
}

/// By which eighth of the size the image is large enough.
fn reduced(spec: &ImageSpec, crop: &Crop) -> u32 {
    let is_enough = |eighths: &u32| {
        let scale = f64::from(*eighths) / 8.0 / REDUCED_MARGIN;
        crop.width * scale >= f64::from(spec.width) && crop.height * scale >= f64::from(spec.height)
    };
    [1, 2, 4].into_iter().find(is_enough).unwrap_or(8)
}
