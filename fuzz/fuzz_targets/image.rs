//! Any bytes as an image: an error or pixels, never a crash.
#![no_main]

use forebay_image::{ImageDecoder, ImageSpec, Mode, PixelLayout, Resize, SampleKey};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let [size, kind, sample, data @ ..] = input else { return };
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
    };
    let mut out = vec![0; spec.bytes()];
    let key = SampleKey { seed: 0, epoch: 0, sample: u64::from(*sample) };
    let _ = ImageDecoder::default().decode(data, &spec, key, &mut out);
});
