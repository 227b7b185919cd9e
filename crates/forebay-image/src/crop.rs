//! Which rectangle of an image becomes the result.

use crate::random::{Random, SampleKey};
use crate::spec::{ImageSpec, Resize};

/// Rectangles that are drawn before the middle of the image is taken, as in torchvision.
const TRIES: usize = 10;

/// A rectangle of an image \[pixels\]; inside it, and not empty.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Crop {
    pub(crate) left: f64,
    pub(crate) top: f64,
    pub(crate) width: f64,
    pub(crate) height: f64,
    /// Whether it is mirrored left to right.
    pub(crate) flip: bool,
}

/// The rectangle of an image of this size, which is not empty.
///
/// The first random number decides about the flip, also where none is wanted, so that crops are the
/// same with and without. Then each try takes two numbers, area and ratio, and the rectangle that
/// fits takes two more, top and left.
pub(crate) fn crop(spec: &ImageSpec, width: u32, height: u32, key: SampleKey) -> Crop {
    let mut random = Random::new(key);
    let flip = random.unit() < 0.5 && spec.flip;
    let [left, top, wide, high] = match spec.resize {
        Resize::Stretch => [0.0, 0.0, f64::from(width), f64::from(height)],
        Resize::CenterCrop { short_side } => {
            // Pixels of the image per pixel of the resized one.
            let factor = f64::from(width.min(height)) / f64::from(short_side);
            let wide = (f64::from(spec.width) * factor).min(f64::from(width));
            let high = (f64::from(spec.height) * factor).min(f64::from(height));
            [(f64::from(width) - wide) / 2.0, (f64::from(height) - high) / 2.0, wide, high]
        }
        Resize::RandomCrop { scale, ratio } => random_crop(&mut random, width, height, scale, ratio),
    };
    Crop { left, top, width: wide, height: high, flip }
}

/// As `RandomResizedCrop.get_params` of torchvision.
fn random_crop(random: &mut Random, width: u32, height: u32, scale: [f64; 2], ratio: [f64; 2]) -> [f64; 4] {
    let (image_width, image_height) = (f64::from(width), f64::from(height));
    let mut between = |[least, most]: [f64; 2]| least + (most - least) * random.unit();
    for _ in 0..TRIES {
        let area = image_width * image_height * between(scale);
        let ratio = between(ratio.map(f64::ln)).exp();
        let wide = (area * ratio).sqrt().round_ties_even();
        let high = (area / ratio).sqrt().round_ties_even();
        if 0.0 < wide && wide <= image_width && 0.0 < high && high <= image_height {
            let top = between([0.0, image_height - high + 1.0]).floor();
            let left = between([0.0, image_width - wide + 1.0]).floor();
            // Rounding can reach the end of a range.
            return [left.min(image_width - wide), top.min(image_height - high), wide, high];
        }
    }
    let found = image_width / image_height;
    let (wide, high) = if found < ratio[0] {
        (image_width, (image_width / ratio[0]).round_ties_even().min(image_height))
    } else if found > ratio[1] {
        ((image_height * ratio[1]).round_ties_even().min(image_width), image_height)
    } else {
        (image_width, image_height)
    };
    let (wide, high) = (wide.max(1.0), high.max(1.0));
    [((image_width - wide) / 2.0).floor(), ((image_height - high) / 2.0).floor(), wide, high]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::{Mode, PixelLayout, PixelType};
    use proptest::prelude::*;

    fn spec(resize: Resize) -> ImageSpec {
        ImageSpec {
            height: 64,
            width: 48,
            mode: Mode::Rgb,
            layout: PixelLayout::Hwc,
            resize,
            flip: true,
            dtype: PixelType::Uint8,
            mean: None,
            std: None,
        }
    }

    proptest! {
        #[test]
        fn every_crop_lies_in_its_image(
            (width, height) in (1_u32..5000, 1_u32..5000), sample: u64, kind in 0..3, scale in 1e-6_f64..1.0,
            ratio in 0.01_f64..50.0,
        ) {
            let resize = match kind {
                0 => Resize::RandomCrop { scale: [scale, 1.0], ratio: [ratio, ratio * 1.5] },
                1 => Resize::CenterCrop { short_side: 64 },
                _ => Resize::Stretch,
            };
            let found = crop(&spec(resize), width, height, SampleKey { seed: 1, epoch: 0, sample });
            prop_assert!(found.width > 0.0 && found.height > 0.0 && found.left >= 0.0 && found.top >= 0.0);
            prop_assert!(found.left + found.width <= f64::from(width) + 1e-6);
            prop_assert!(found.top + found.height <= f64::from(height) + 1e-6);
        }
    }

    #[test]
    fn a_crop_in_the_middle_takes_its_part_of_the_short_side() {
        let found = crop(&spec(Resize::CenterCrop { short_side: 128 }), 400, 256, SampleKey::default());
        assert_eq!((found.left, found.top, found.width, found.height), (152.0, 64.0, 96.0, 128.0));
    }
}
