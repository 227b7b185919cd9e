//! Damaged images, and bytes that are none: an error or pixels, never a panic of the caller.

use forebay_image::{ImageDecoder, ImageSpec, Mode, PixelLayout, Resize, SampleKey};
use proptest::prelude::*;

/// A JPEG of 40 x 24 pixels in 4:2:0, and a PNG of 9 x 7: noise, by Pillow.
const IMAGES: [&[u8]; 3] = [
    include_bytes!("images/noise.jpg"),
    include_bytes!("images/progressive.jpg"),
    include_bytes!("images/noise.png"),
];

fn spec(resize: Resize, layout: PixelLayout) -> ImageSpec {
    ImageSpec { height: 5, width: 7, mode: Mode::Rgb, layout, resize, flip: true }
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
    fn an_image_that_is_cut_off_is_an_error(kind in 0..3_usize, cut in 0.0_f64..0.9, sample: u64) {
        let data = IMAGES[kind];
        prop_assert!(decode(&data[..(data.len() as f64 * cut) as usize], sample).is_none());
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
