//! Damaged images, and bytes that are none: an error or pixels, never a panic of the caller. So do
//! the seeds of the fuzz target `image`, which runs the same function.

use std::path::Path;

use forebay_image::{ImageDecoder, ImageSpec, Mode, PixelLayout, PixelType, Resize, SampleKey};
use libjpeg_turbo_rs::{Encoder, PixelFormat};
use proptest::prelude::*;

#[path = "support/any_image.rs"]
mod any_image;

/// A JPEG of 40 x 24 pixels in 4:2:0, and a PNG of 9 x 7: noise, by Pillow.
const IMAGES: [&[u8]; 3] = [
    include_bytes!("images/noise.jpg"),
    include_bytes!("images/progressive.jpg"),
    include_bytes!("images/noise.png"),
];

fn spec(resize: Resize, layout: PixelLayout) -> ImageSpec {
    ImageSpec {
        height: 5,
        width: 7,
        mode: Mode::Rgb,
        layout,
        resize,
        flip: true,
        dtype: PixelType::Uint8,
        mean: None,
        std: None,
    }
}

const RANDOM: Resize = Resize::RandomCrop { scale: [0.05, 1.0], ratio: [0.5, 2.0] };

fn decode(data: &[u8], sample: u64) -> Option<Vec<u8>> {
    let spec = spec(RANDOM, PixelLayout::Hwc);
    let mut out = vec![0; spec.bytes()];
    let key = SampleKey { seed: 1, epoch: 0, sample };
    ImageDecoder::default().decode(data, &spec, key, &mut out).ok().map(|()| out)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn any_bytes_are_an_image_or_an_error(data in prop::collection::vec(any::<u8>(), 0..300), kind in 0..3_usize) {
        let mut data = data;
        let start = &IMAGES[kind][..8];
        for (into, from) in data.iter_mut().zip(start) {
            *into = *from;
        }
        let _ = decode(&data, 0);
    }

    #[test]
    fn a_damaged_image_is_an_image_or_an_error(
        kind in 0..3_usize, sample: u64, damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let mut data = IMAGES[kind].to_vec();
        for (at, byte) in damage {
            let at = at.index(data.len());
            data[at] = byte;
        }
        let _ = decode(&data, sample);
    }

    #[test]
    fn any_size_and_resize_of_a_damaged_image_is_an_image_or_an_error(
        kind in 0..3_usize, how: [u8; 3], damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
    ) {
        let mut data = [&how, IMAGES[kind]].concat();
        for (at, byte) in damage {
            let at = at.index(data.len());
            data[at] = byte;
        }
        prop_assert!(any_image::decode(&data).is_some());
    }

    #[test]
    fn an_image_that_is_cut_off_is_an_error(kind in 0..3_usize, cut in 0.0_f64..0.9, sample: u64) {
        let data = IMAGES[kind];
        prop_assert!(decode(&data[..(data.len() as f64 * cut) as usize], sample).is_none());
    }
}

#[test]
fn an_image_of_arithmetic_coding_that_is_cut_off_is_an_error() {
    let pixels: Vec<u8> = (0..48 * 40 * 3).map(|at| (at * 7 % 251) as u8).collect();
    for is_progressive in [false, true] {
        let encoder = Encoder::new(&pixels, 48, 40, PixelFormat::Rgb).arithmetic(true).quality(90);
        let data = encoder.progressive(is_progressive).encode().expect("an image");
        assert!(decode(&data, 0).is_some());
        assert!(decode(&[&data[..], b"trailing bytes"].concat(), 0).is_some());
        for end in 0..data.len() {
            assert!(decode(&data[..end], 0).is_none(), "{end} of {} bytes", data.len());
        }
    }
}

#[test]
fn the_seeds_of_the_fuzz_target_are_images() {
    let seeds = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds/image");
    for name in ["noise-jpg", "progressive-jpg", "noise-png"] {
        let seed = std::fs::read(seeds.join(name)).expect("a seed");
        let decoded = any_image::decode(&seed).expect("more than three bytes");
        assert!(decoded.is_ok_and(|pixels| pixels.iter().any(|value| *value > 0)), "{name}");
    }
}

#[test]
fn a_sample_is_decoded_alike_by_any_decoder() {
    let mut used = ImageDecoder::default();
    for layout in [PixelLayout::Hwc, PixelLayout::Chw] {
        for resize in [RANDOM, Resize::CenterCrop { short_side: 9 }, Resize::Stretch] {
            let spec = spec(resize, layout);
            for (number, image) in IMAGES.iter().enumerate() {
                let key = SampleKey { seed: 3, epoch: 1, sample: number as u64 };
                let [mut first, mut second] = [vec![0; spec.bytes()], vec![1; spec.bytes()]];
                used.decode(image, &spec, key, &mut first).expect("a sound image");
                ImageDecoder::default().decode(image, &spec, key, &mut second).expect("a sound image");
                assert_eq!(first, second);
            }
        }
    }
}

#[test]
fn wrong_values_are_told() {
    let good = spec(RANDOM, PixelLayout::Hwc);
    assert_eq!(good.check(), Ok(()));
    let random = |scale, ratio| ImageSpec { resize: Resize::RandomCrop { scale, ratio }, ..good };
    for wrong in [
        ImageSpec { height: 0, ..good },
        ImageSpec { width: 70_000, ..good },
        random([0.0, 1.0], [1.0, 1.0]),
        random([0.5, 1.1], [1.0, 1.0]),
        random([0.5, 0.4], [1.0, 1.0]),
        random([0.5, 1.0], [2.0, 1.0]),
        random([f64::NAN, 1.0], [1.0, 1.0]),
        ImageSpec { resize: Resize::CenterCrop { short_side: 6 }, ..good },
    ] {
        let message = wrong.check().expect_err("a wrong value");
        assert!(message.contains("expected") && message.contains("found"), "{message}");
    }
}
