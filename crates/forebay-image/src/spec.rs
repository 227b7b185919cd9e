//! What a user asks for: `forebay.image(...)`.

use serde::{Deserialize, Serialize};

/// Largest width and height of a result \[pixels\]: as much as a JPEG can have.
const MAX_SIDE: u32 = 65_500;

/// Channels of the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Red, green, blue.
    Rgb,
    /// Luminance alone.
    Gray,
}

impl Mode {
    /// Number of channels.
    #[must_use]
    pub const fn channels(self) -> usize {
        match self {
            Self::Rgb => 3,
            Self::Gray => 1,
        }
    }
}

/// Type of the values of the result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PixelType {
    /// From 0 to 255.
    #[default]
    Uint8,
    /// From 0 to 1, unless normalized.
    Float32,
    /// The same, rounded to half precision.
    Float16,
}

impl PixelType {
    /// Size of a value \[bytes\].
    #[must_use]
    pub const fn bytes(self) -> usize {
        match self {
            Self::Uint8 => 1,
            Self::Float16 => 2,
            Self::Float32 => 4,
        }
    }
}

/// Order of the axes of the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PixelLayout {
    /// Height, width, channels.
    Hwc,
    /// Channels, height, width.
    Chw,
}

/// Which part of an image becomes the result.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Resize {
    /// A random rectangle, as in torchvision's `RandomResizedCrop`.
    RandomCrop {
        /// Least and most area, relative to the image.
        scale: [f64; 2],
        /// Least and most width / height.
        ratio: [f64; 2],
    },
    /// The middle of the image, once its short side has this length \[pixels\].
    CenterCrop {
        /// Length of the short side.
        short_side: u32,
    },
    /// All of it; the ratio of width to height changes.
    Stretch,
}

/// How an encoded image becomes pixels.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ImageSpec {
    /// Height of the result \[pixels\].
    pub height: u32,
    /// Width of the result \[pixels\].
    pub width: u32,
    /// Channels.
    pub mode: Mode,
    /// Order of axes.
    pub layout: PixelLayout,
    /// Which part of the image.
    pub resize: Resize,
    /// Whether a random half of the samples is mirrored left to right.
    pub flip: bool,
    /// Type of a value.
    #[serde(default)]
    pub dtype: PixelType,
    /// What is subtracted from the values of each channel, which are from 0 to 1; for floats.
    #[serde(default)]
    pub mean: Option<[f64; 3]>,
    /// By what they are divided then.
    #[serde(default)]
    pub std: Option<[f64; 3]>,
}

impl ImageSpec {
    /// The shape of the result, in its layout.
    #[must_use]
    pub fn shape(&self) -> [u64; 3] {
        let (height, width) = (u64::from(self.height), u64::from(self.width));
        let channels = self.mode.channels() as u64;
        match self.layout {
            PixelLayout::Hwc => [height, width, channels],
            PixelLayout::Chw => [channels, height, width],
        }
    }

    /// Size of the result \[bytes\].
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.values() * self.dtype.bytes()
    }

    /// Number of values of the result.
    pub(crate) fn values(&self) -> usize {
        self.height as usize * self.width as usize * self.mode.channels()
    }

    /// Checks the values.
    ///
    /// # Errors
    /// What was expected, and what was found.
    pub fn check(&self) -> Result<(), String> {
        let is_side = |side: u32| (1..=MAX_SIDE).contains(&side);
        if !is_side(self.height) || !is_side(self.width) {
            let (height, width) = (self.height, self.width);
            return Err(format!("size=: expected 1 to {MAX_SIDE} pixels, found {height} x {width}"));
        }
        if self.dtype == PixelType::Uint8 && (self.mean.is_some() || self.std.is_some()) {
            return Err("mean= and std=: expected dtype=\"float32\" or \"float16\", found \"uint8\"".into());
        }
        let is_small = |value: f64| value.is_finite() && (value as f32).is_finite();
        if let Some(mean) = self.mean.filter(|mean| !mean.iter().all(|value| is_small(*value))) {
            return Err(format!("mean=: expected finite numbers, found {mean:?}"));
        }
        if let Some(std) =
            self.std.filter(|std| !std.iter().all(|value| is_small(*value) && *value as f32 > 0.0))
        {
            return Err(format!("std=: expected positive numbers, found {std:?}"));
        }
        match self.resize {
            Resize::RandomCrop { scale: [least, most], .. }
                if !(0.0 < least && least <= most && most <= 1.0) =>
            {
                Err(format!("scale=: expected 0 < least <= most <= 1, found ({least}, {most})"))
            }
            Resize::RandomCrop { ratio: [least, most], .. }
                if !(0.0 < least && least <= most && most.is_finite()) =>
            {
                Err(format!("ratio=: expected 0 < least <= most, found ({least}, {most})"))
            }
            Resize::CenterCrop { short_side }
                if !is_side(short_side) || short_side < self.height.max(self.width) =>
            {
                let side = self.height.max(self.width);
                Err(format!("short_side=: expected {side} to {MAX_SIDE} pixels, found {short_side}"))
            }
            _ => Ok(()),
        }
    }
}
