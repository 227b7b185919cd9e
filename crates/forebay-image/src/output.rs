//! Decoded pixels to a result: resizes, mirrors, converts colors, and orders the axes.
//!
//! Luminance and chrominance of a JPEG become the rows of the result one by one. Then the
//! chrominance of these rows is enlarged, their colors are converted, and all channels together
//! become the columns of the result. That is less work than to do so with all rows of the image,
//! and differs by the rounding of a channel. Floats are looked up: a channel has 256 of them.

use fast_image_resize::images::{TypedCroppedImage, TypedImage, TypedImageRef};
use fast_image_resize::pixels::{U8, U8x3};
use fast_image_resize::{FilterType, PixelTrait, ResizeAlg, ResizeOptions, Resizer};
use half::f16;
use libjpeg_turbo_rs::simd::{SimdRoutines, detect};

use crate::crop::Crop;
use crate::pixels::{Pixels, Plane};
use crate::spec::{ImageSpec, Mode, PixelLayout, PixelType};

/// Writes results; keeps memory from one to the next.
pub(crate) struct Output {
    resizer: Resizer,
    routines: SimdRoutines,
    /// Rows of the result of luminance and both chrominances, or gray pixels.
    planes: [Vec<u8>; 3],
    /// A row of both chrominances that is enlarged.
    enlarged: [Vec<u8>; 2],
    /// Rows of the result with all columns of the image.
    rows: Vec<u8>,
    /// Pixels in order of height, width, channels, where the result has another, or floats.
    interleaved: Vec<u8>,
    /// The floats of the last spec that had some.
    lookup: Lookup,
}

impl Default for Output {
    fn default() -> Self {
        let (resizer, planes, enlarged, rows, interleaved, lookup) = Default::default();
        Self { resizer, routines: detect(), planes, enlarged, rows, interleaved, lookup }
    }
}

impl Output {
    /// Writes the crop of `pixels` into `out`, which has as many bytes as `spec` says.
    pub(crate) fn write(&mut self, pixels: &Pixels, spec: &ImageSpec, crop: &Crop, out: &mut [u8]) {
        let is_in_order = spec.layout == PixelLayout::Hwc || spec.mode == Mode::Gray;
        if is_in_order && spec.dtype == PixelType::Uint8 {
            return self.interleave(pixels, spec, crop, out);
        }
        let mut interleaved = std::mem::take(&mut self.interleaved);
        interleaved.resize(spec.values(), 0);
        self.interleave(pixels, spec, crop, &mut interleaved);
        match spec.dtype {
            PixelType::Uint8 => arrange(spec, &interleaved, |value, _| [value], out),
            PixelType::Float32 => {
                let floats = self.lookup.of(spec);
                let value = |value: u8, channel: usize| floats[channel][usize::from(value)].to_ne_bytes();
                arrange(spec, &interleaved, value, out);
            }
            PixelType::Float16 => {
                let floats = self
                    .lookup
                    .of(spec)
                    .map(|channel| channel.map(|float| f16::from_f32(float).to_ne_bytes()));
                arrange(spec, &interleaved, |value, channel| floats[channel][usize::from(value)], out);
            }
        }
        self.interleaved = interleaved;
    }

    /// Writes pixels in order of height, width, channels.
    fn interleave(&mut self, pixels: &Pixels, spec: &ImageSpec, crop: &Crop, out: &mut [u8]) {
        let size = [spec.width, spec.height];
        let resizer = &mut self.resizer;
        match (pixels, spec.mode) {
            (
                Pixels::Interleaved(plane) | Pixels::Luminance(plane) | Pixels::YCbCr([plane, ..]),
                Mode::Gray,
            ) => {
                resize::<U8>(resizer, plane, part(plane, crop), size, out);
            }
            (Pixels::Interleaved(plane), Mode::Rgb) => {
                resize::<U8x3>(resizer, plane, part(plane, crop), size, out);
            }
            (Pixels::Luminance(plane), Mode::Rgb) => {
                let gray = &mut self.planes[0];
                gray.resize(out.len() / 3, 0);
                resize::<U8>(resizer, plane, part(plane, crop), size, gray);
                for (pixel, gray) in out.chunks_exact_mut(3).zip(gray) {
                    pixel.fill(*gray);
                }
            }
            (Pixels::YCbCr(planes), Mode::Rgb) => {
                let rows = self.rows(planes, spec, crop);
                let [left, _, wide, _] = part(&planes[0], crop);
                let part = [left, 0.0, wide, f64::from(spec.height)];
                resize::<U8x3>(&mut self.resizer, &rows, part, size, out);
                self.rows = rows.bytes;
            }
        }
        if crop.flip {
            let rows = out.chunks_exact_mut(spec.width as usize * spec.mode.channels());
            match spec.mode {
                Mode::Rgb => rows.for_each(|row| row.as_chunks_mut::<3>().0.reverse()),
                Mode::Gray => rows.for_each(<[u8]>::reverse),
            }
        }
    }

    /// The rows of the result, in color, with the valid columns of luminance.
    fn rows(&mut self, planes: &[Plane; 3], spec: &ImageSpec, crop: &Crop) -> Plane {
        let height = spec.height as usize;
        let [luminance, blue, red] = std::array::from_fn(|number| {
            let plane = &planes[number];
            let columns = plane.valid[0].len();
            let [_, top, _, high] = part(plane, crop);
            let (part, size) = ([0.0, top, columns as f64, high], [columns as u32, spec.height]);
            let mut resized = std::mem::take(&mut self.planes[number]);
            resized.resize(columns * height, 0);
            resize::<U8>(&mut self.resizer, plane, part, size, &mut resized);
            resized
        });
        let (width, narrow) = (planes[0].valid[0].len(), planes[1].valid[0].len());
        let is_narrow = planes[1].scale[0] < 1.0;
        for row in &mut self.enlarged {
            row.resize(2 * narrow, 0);
        }
        let mut bytes = std::mem::take(&mut self.rows);
        bytes.resize(3 * width * height, 0);
        for (number, row) in bytes.chunks_exact_mut(3 * width).enumerate() {
            let chrominance = [&blue[number * narrow..][..narrow], &red[number * narrow..][..narrow]];
            let [blue, red] = if is_narrow {
                for (narrow, wide) in chrominance.iter().zip(&mut self.enlarged) {
                    self.routines.fancy_upsample_h2v1(narrow, narrow.len(), wide);
                }
                self.enlarged.each_ref().map(Vec::as_slice)
            } else {
                chrominance
            };
            self.routines.ycbcr_to_rgb_row(&luminance[number * width..][..width], blue, red, row, width);
        }
        self.planes = [luminance, blue, red];
        let valid = [0..width, 0..height];
        Plane { bytes, row_pixels: width, rows: height, valid, origin: [0; 2], scale: [1.0; 2] }
    }
}

/// Writes the value of each pixel and channel, which are in order of height, width, channels, in
/// the order of the spec.
fn arrange<const BYTES: usize>(
    spec: &ImageSpec,
    pixels: &[u8],
    value: impl Fn(u8, usize) -> [u8; BYTES],
    out: &mut [u8],
) {
    let (out, _) = out.as_chunks_mut::<BYTES>();
    match (spec.mode, spec.layout) {
        (Mode::Gray, _) => {
            for (into, pixel) in out.iter_mut().zip(pixels) {
                *into = value(*pixel, 0);
            }
        }
        (Mode::Rgb, PixelLayout::Hwc) => {
            for (into, pixel) in out.as_chunks_mut::<3>().0.iter_mut().zip(pixels.as_chunks::<3>().0) {
                *into = [value(pixel[0], 0), value(pixel[1], 1), value(pixel[2], 2)];
            }
        }
        (Mode::Rgb, PixelLayout::Chw) => {
            for (channel, plane) in out.chunks_exact_mut(pixels.len() / 3).enumerate() {
                for (into, pixel) in plane.iter_mut().zip(pixels.as_chunks::<3>().0) {
                    *into = value(pixel[channel], channel);
                }
            }
        }
    }
}

/// The float of each value of each channel.
struct Lookup {
    mean: Option<[f64; 3]>,
    std: Option<[f64; 3]>,
    floats: [[f32; 256]; 3],
}

impl Default for Lookup {
    fn default() -> Self {
        let mut lookup = Self { mean: None, std: None, floats: [[0.0; 256]; 3] };
        lookup.fill();
        lookup
    }
}

impl Lookup {
    fn of(&mut self, spec: &ImageSpec) -> &[[f32; 256]; 3] {
        if (self.mean, self.std) != (spec.mean, spec.std) {
            (self.mean, self.std) = (spec.mean, spec.std);
            self.fill();
        }
        &self.floats
    }

    /// As `Normalize` of torchvision, in the same order of the same 32-bit operations.
    fn fill(&mut self) {
        for (channel, floats) in self.floats.iter_mut().enumerate() {
            for (value, float) in floats.iter_mut().enumerate() {
                *float = value as f32 / 255.0;
                if let Some(mean) = self.mean {
                    *float -= mean[channel] as f32;
                }
                if let Some(std) = self.std {
                    *float /= std[channel] as f32;
                }
            }
        }
    }
}

/// The crop in the valid pixels of a plane: left, top, width and height.
fn part(plane: &Plane, crop: &Crop) -> [f64; 4] {
    let [columns, rows] = &plane.valid;
    let (width, height) = (columns.len() as f64, rows.len() as f64);
    let [across, down] = plane.scale;
    let left = (crop.left * across - (plane.origin[0] + columns.start) as f64).clamp(0.0, width - 1.0);
    let top = (crop.top * down - (plane.origin[1] + rows.start) as f64).clamp(0.0, height - 1.0);
    [left, top, (crop.width * across).min(width - left), (crop.height * down).min(height - top)]
}

/// Resizes a part of the valid pixels of a plane to a width and height. (With the type of pixels
/// at run time, the crate would be compiled for all of its types.)
fn resize<P: PixelTrait>(
    resizer: &mut Resizer,
    plane: &Plane,
    [left, top, wide, high]: [f64; 4],
    [width, height]: [u32; 2],
    out: &mut [u8],
) {
    let [columns, rows] = &plane.valid;
    let all = TypedImageRef::<P>::from_buffer(plane.row_pixels as u32, plane.rows as u32, &plane.bytes);
    let all = all.expect("the number of bytes was checked");
    let (x, y) = (columns.start as u32, rows.start as u32);
    let from = TypedCroppedImage::new(all, x, y, columns.len() as u32, rows.len() as u32);
    let from = from.expect("valid pixels lie in the plane");
    let into = TypedImage::<P>::from_buffer(width, height, out);
    let mut into = into.expect("as long as the spec says");
    let options = ResizeOptions::new()
        .crop(left, top, wide, high)
        .resize_alg(ResizeAlg::Convolution(FilterType::Bilinear))
        .use_alpha(false);
    resizer.resize_typed(&from, &mut into, &options).expect("a crop inside of the image");
}
