//! Any bytes as a way to decode and an image: an error, or pixels. For the fuzz target and the
//! tests.

use forebay_image::{ImageDecoder, ImageError, ImageSpec, Mode, PixelLayout, PixelType, Resize, SampleKey};

/// Decodes an image as its first three bytes say: size, resize with mode and layout, sample id.
/// `None` if there are fewer bytes.
pub fn decode(bytes: &[u8]) -> Option<Result<Vec<u8>, ImageError>> {
    let [size, kind, sample, image @ ..] = bytes else { return None };
    let resize = match kind % 3 {
        0 => Resize::RandomCrop { scale: [0.01, 1.0], ratio: [0.3, 3.0] },
        1 => Resize::CenterCrop { short_side: 300 },
        _ => Resize::Stretch,
    };
    let spec = ImageSpec {
        height: u32::from(size & 15) + 1,
        width: u32::from(size >> 4) + 1,
        mode: if kind & 64 == 0 { Mode::Rgb } else { Mode::Gray },
        layout: if kind & 128 == 0 { PixelLayout::Hwc } else { PixelLayout::Chw },
        resize,
        flip: true,
        dtype: if kind & 32 == 0 { PixelType::Uint8 } else { PixelType::Float16 },
        mean: None,
        std: None,
    };
    let key = SampleKey { seed: 0, epoch: 0, sample: u64::from(*sample) };
    let mut pixels = vec![0; spec.bytes()];
    let decoded = ImageDecoder::default().decode(image, &spec, key, &mut pixels);
    Some(decoded.map(|()| pixels))
}
