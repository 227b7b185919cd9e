//! Decoded pixels to a result: resizes, mirrors, converts colors, and orders the axes.
//!
//! Luminance and chrominance of a JPEG become the rows of the result one by one. Then the
//! chrominance of these rows is enlarged, their colors are converted, and all channels together
//! become the columns of the result. That is less work than to do so with all rows of the image,
//! and differs by the rounding of a channel.

use fast_image_resize::images::{TypedCroppedImage, TypedImage, TypedImageRef};
use fast_image_resize::pixels::{U8, U8x3};
use fast_image_resize::{FilterType, PixelTrait, ResizeAlg, ResizeOptions, Resizer};
use libjpeg_turbo_rs::simd::{SimdRoutines, detect};

use crate::crop::Crop;
use crate::pixels::{Pixels, Plane};
use crate::spec::{ImageSpec, Mode, PixelLayout};

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
    /// Pixels in order of height, width, channels, where the result has another.
    interleaved: Vec<u8>,
}

impl Default for Output {
    fn default() -> Self {
        let (resizer, planes, enlarged, rows, interleaved) = Default::default();
        Self { resizer, routines: detect(), planes, enlarged, rows, interleaved }
    }
}

impl Output {
    /// Writes the crop of `pixels` into `out`, which has as many bytes as `spec` says.
    pub(crate) fn write(&mut self, pixels: &Pixels, spec: &ImageSpec, crop: &Crop, out: &mut [u8]) {
        if spec.layout == PixelLayout::Hwc || spec.mode == Mode::Gray {
            return self.interleave(pixels, spec, crop, out);
        }
        let mut interleaved = std::mem::take(&mut self.interleaved);
        interleaved.resize(out.len(), 0);
        self.interleave(pixels, spec, crop, &mut interleaved);
        let channels = spec.mode.channels();
        for (channel, plane) in out.chunks_exact_mut(interleaved.len() / channels).enumerate() {
            for (into, pixel) in plane.iter_mut().zip(interleaved.chunks_exact(channels)) {
                *into = pixel[channel];
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
