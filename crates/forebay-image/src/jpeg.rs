//! JPEG: decodes the part of an image that a crop needs, at a reduced size if that is enough.
//!
//! - Rows after the crop are not decoded at all (`jpeg_frame`), rows before it only as far as the
//!   entropy coding needs.
//! - The inverse DCT makes 1/2, 1/4 or 1/8 of the size where the result is still larger by
//!   `REDUCED_MARGIN`.
//! - Without that, luminance and chrominance stay apart: `output` converts the colors of the rows
//!   of the result alone.
//!
//! Progressive images, restart markers and gray images are decoded; CMYK is converted without a
//! profile. Images of unusual colors or sampling are decoded whole; those of four components with
//! fewer samples of some (`inks`) and lossless ones at full size, too. The orientation of EXIF and
//! color profiles are ignored. 12 and 16 bits are errors.

use libjpeg_turbo_rs::{DecodeLimits, Decoder, JpegError, PixelFormat, ScalingFactor};

use crate::crop::Crop;
use crate::error::ImageError;
use crate::jpeg_enlarge::{Samples, enlarge};
use crate::jpeg_frame::{Coding, Frame};
use crate::pixels::{MAX_PIXELS, Pixels, Plane, check_size, from_cmyk, from_rgb, inks_of_ycck};
use crate::spec::{ImageSpec, Mode};

/// How much larger than the result a reduced image is at least: the reduction itself is a coarse
/// filter, which the one of the resize has to outweigh.
const REDUCED_MARGIN: f64 = 1.5;
/// How much more rows than its crop a result has at most that is made from planes: with more, the
/// ways to enlarge chrominance differ by more than rounding.
const MAX_ENLARGED: f64 = 2.0;
/// Pixels beside a crop, at least, that make a difference: chrominance that is enlarged, and
/// rounding.
const EDGE: f64 = 2.0;
/// What the decoder calls corrupt and is only rare: how its messages begin, and what they mean.
const UNSUPPORTED: [(&str, &str); 2] = [
    ("corrupt data: chroma upsample factor zero", "chrominance of more samples than luminance"),
    ("corrupt data: non-interleaved baseline scan has", "scans of two of three components"),
];
/// Scans of a progressive image, at most: a real one has a dozen, and each costs a pass over it.
const MAX_SCANS: usize = 256;

/// Reads the size of an image: width and height.
pub(crate) fn size(data: &[u8]) -> Result<(Frame, u32, u32), ImageError> {
    let frame = Frame::read(data)?;
    let (width, height) = (u32::from(frame.width), u32::from(frame.height));
    check_size("JPEG", frame.offset, width, height)?;
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

fn failed(error: &JpegError) -> ImageError {
    let text = error.to_string();
    let unsupported = UNSUPPORTED.iter().find(|(start, _)| text.starts_with(start));
    match unsupported {
        Some((_, found)) => ImageError::new("JPEG", 0, "a kind that is supported", *found),
        None => ImageError::new("JPEG", 0, "an image", text),
    }
}

/// A decoder that is bounded.
fn bounded(data: &[u8]) -> Result<Decoder<'_>, ImageError> {
    let limits = DecodeLimits { max_pixels: MAX_PIXELS, max_scans: MAX_SCANS, ..DecodeLimits::default() };
    let mut decoder = Decoder::new_with_limits(data, limits).map_err(|error| failed(&error))?;
    decoder.set_block_smoothing(true);
    Ok(decoder)
}

/// Decodes what `crop` needs for a result of `spec`.
pub(crate) fn decode(
    data: &[u8],
    frame: &Frame,
    spec: &ImageSpec,
    crop: &Crop,
) -> Result<Pixels, ImageError> {
    // Nothing after the end counts, also no scan.
    let data = &data[..frame.end];
    let is_lossless = frame.coding == Coding::Lossless;
    if frame.components == 4 && !is_lossless && frame.sampling != [frame.sampling[0]; 4] {
        return inks(data, frame, spec);
    }
    let is_enlarged = crop.height * MAX_ENLARGED < f64::from(spec.height);
    let eighths = if is_lossless || frame.is_guessed { 8 } else { reduced(spec, crop) };
    match (eighths, frame.planes) {
        (8, Some(sampling)) if !is_enlarged => in_planes(data, frame, sampling, spec, crop),
        (eighths, _) => interleaved(data, frame, spec, crop, eighths),
    }
}

/// Pixels beside a crop that the filter of its resize uses, across and down, where so many pixels
/// become one.
fn edges(spec: &ImageSpec, crop: &Crop, scale: f64) -> [f64; 2] {
    let edge = |pixels: f64, into: u32| EDGE.max((pixels * scale / f64::from(into) / 2.0).ceil() + 1.0);
    [edge(crop.width, spec.width), edge(crop.height, spec.height)]
}

/// Decodes the pixels of a crop, as the JPEG has them.
fn in_planes(
    data: &[u8],
    frame: &Frame,
    sampling: [usize; 2],
    spec: &ImageSpec,
    crop: &Crop,
) -> Result<Pixels, ImageError> {
    let [beside, above] = edges(spec, crop, 1.0);
    let (width, height) = (usize::from(frame.width), usize::from(frame.height));
    // The first pixel is one of chrominance, too.
    let first =
        |start: f64, step: usize, size: usize| (start.max(0.0).floor() as usize).min(size - 1) / step * step;
    let end = |end: f64, size: usize| (end.ceil() as usize).min(size);
    let left = first(crop.left - beside, sampling[0], width);
    let right = end(crop.left + crop.width + beside, width);
    let top = first(crop.top - above, sampling[1], height);
    let bottom = end(crop.top + crop.height + above, height);
    let cut = frame.cut(data, bottom);
    let mut decoder = bounded(cut.as_deref().unwrap_or(data))?;
    decoder.set_crop_y(top, bottom - top);
    let image = decoder.decode_raw().map_err(|error| failed(&error))?;
    let sizes = image.plane_widths.into_iter().zip(image.plane_heights);
    let mut planes = image.planes.into_iter().zip(sizes).enumerate().map(|(number, (bytes, size))| {
        let [across, down] = if number == 0 { [1, 1] } else { sampling };
        let plane = Plane::new("JPEG", bytes, 1, size.0, size.1)?;
        let columns = left / across..right.div_ceil(across).min(plane.row_pixels);
        let rows = top / down..bottom.div_ceil(down).min(plane.rows);
        let scale = [1.0 / across as f64, 1.0 / down as f64];
        Ok(Plane { valid: [columns, rows], scale, ..plane })
    });
    match [planes.next(), planes.next(), planes.next()] {
        [Some(luminance), Some(blue), Some(red)] => Ok(Pixels::YCbCr([luminance?, blue?, red?])),
        [Some(luminance), ..] => Ok(Pixels::Luminance(luminance?)),
        [None, ..] => Err(ImageError::new("JPEG", 0, "an image", "no component")),
    }
}

/// Decodes a crop, or the whole image if it is unusual, at a number of eighths of its size.
fn interleaved(
    data: &[u8],
    frame: &Frame,
    spec: &ImageSpec,
    crop: &Crop,
    eighths: u32,
) -> Result<Pixels, ImageError> {
    let scale = f64::from(eighths) / 8.0;
    // In pixels of the reduced image, rounded outwards.
    let reduce = |pixels: u16| (usize::from(pixels) * eighths as usize).div_ceil(8);
    let (whole_width, whole_height) = (reduce(frame.width), reduce(frame.height));
    let (mut left, mut top, mut right, mut bottom) = (0, 0, whole_width, whole_height);
    let mut cut = None;
    if frame.is_usual {
        let [beside, above] = edges(spec, crop, scale);
        let first = |start: f64, size: usize| (start.max(0.0).floor() as usize).min(size - 1);
        left = first(crop.left * scale - beside, whole_width);
        top = first(crop.top * scale - above, whole_height);
        right = (((crop.left + crop.width) * scale + beside).ceil() as usize).clamp(left + 1, whole_width);
        bottom = (((crop.top + crop.height) * scale + above).ceil() as usize).clamp(top + 1, whole_height);
        // The last rows need those of the next block, too.
        cut = frame.cut(data, (bottom * 8).div_ceil(eighths as usize) + usize::from(frame.unit_rows));
    }
    let mut decoder = bounded(cut.as_deref().unwrap_or(data))?;
    decoder.set_output_format(match (frame.components, spec.mode) {
        (4, _) => PixelFormat::Cmyk,
        // Colors that are predicted have no luminance of their own.
        (3, Mode::Gray) if frame.coding == Coding::Lossless => PixelFormat::Rgb,
        (_, Mode::Rgb) => PixelFormat::Rgb,
        (_, Mode::Gray) => PixelFormat::Grayscale,
    });
    decoder.set_scale(ScalingFactor::try_new(1, 8 / eighths).map_err(|error| failed(&error))?);
    if frame.is_usual {
        decoder.set_crop_region(left, top, right - left, bottom - top);
    }
    let image = decoder.decode_image().map_err(|error| failed(&error))?;
    let bytes = if frame.components == 4 {
        from_cmyk(&image.data, frame.adobe.is_some(), spec.mode)
    } else if frame.components == 3 && frame.coding == Coding::Lossless {
        from_rgb(&image.data, 0, spec.mode)
    } else {
        image.data
    };
    let plane = Plane::new("JPEG", bytes, spec.mode.channels(), image.width, image.height)?;
    // The decoder begins at a whole block, to the left of the crop.
    let origin = [right.saturating_sub(image.width), top];
    Ok(Pixels::Interleaved(Plane { origin, scale: [scale; 2], ..plane }))
}

/// Decodes a whole image of four components that are sampled differently, which the decoder does
/// not enlarge.
fn inks(data: &[u8], frame: &Frame, spec: &ImageSpec) -> Result<Pixels, ImageError> {
    if frame.is_guessed {
        let found = "scans that lack coefficients";
        return Err(ImageError::new("JPEG: four sampled components", frame.offset, "all scans", found));
    }
    let image = bounded(data)?.decode_raw().map_err(|error| failed(&error))?;
    let (width, height) = (usize::from(frame.width), usize::from(frame.height));
    let most = [0, 1].map(|axis| frame.sampling.map(|factors| factors[axis]).into_iter().max().unwrap_or(1));
    let mut planes = Vec::with_capacity(4);
    for (number, factors) in frame.sampling.iter().enumerate() {
        if most[0] % factors[0] != 0 || most[1] % factors[1] != 0 {
            let found = format!("{} x {} of {} x {}", factors[0], factors[1], most[0], most[1]);
            return Err(ImageError::new("JPEG: sampling", frame.offset, "whole parts", found));
        }
        let rows = Samples {
            bytes: &image.planes[number],
            row_bytes: image.plane_widths[number],
            // As many as belong to pixels; blocks may have more.
            width: (width * usize::from(factors[0])).div_ceil(usize::from(most[0])),
            height: (height * usize::from(factors[1])).div_ceil(usize::from(most[1])),
        };
        planes.push(enlarge(
            &rows,
            [most[0] / factors[0], most[1] / factors[1]].map(usize::from),
            width,
            height,
        ));
    }
    let mut bytes: Vec<u8> = Vec::with_capacity(4 * width * height);
    for at in 0..width * height {
        bytes.extend(planes.iter().map(|plane| plane[at]));
    }
    // Without an Adobe marker, they are inks.
    if frame.adobe.is_some_and(|transform| transform != 0) {
        inks_of_ycck(&mut bytes);
    }
    let bytes = from_cmyk(&bytes, frame.adobe.is_some(), spec.mode);
    Ok(Pixels::Interleaved(Plane::new("JPEG", bytes, spec.mode.channels(), width, height)?))
}

/// By which eighth of the size the image is large enough.
fn reduced(spec: &ImageSpec, crop: &Crop) -> u32 {
    let is_enough = |eighths: &u32| {
        let scale = f64::from(*eighths) / 8.0 / REDUCED_MARGIN;
        crop.width * scale >= f64::from(spec.width) && crop.height * scale >= f64::from(spec.height)
    };
    [1, 2, 4].into_iter().find(is_enough).unwrap_or(8)
}
