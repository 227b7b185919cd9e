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
