//! Encoded images to pixels of a fixed size.
//!
//! In order:
//!
//! - `spec`: what a user asks for: size, mode, layout, how to resize.
//! - `random`: the random numbers of a sample.
//! - `crop`: which part of an image becomes the result.
//! - `jpeg_frame`, `jpeg_enlarge`, `jpeg`, `png`: decoders. A JPEG is decoded where the crop is, at
//!   a reduced size if that is enough.
//! - `output`: resizes what was decoded, and converts colors.
//! - `decoder`: puts them together.
//!
//! An image is recognized by its first bytes, never by a name. Every size that an image claims is
//! checked before memory is allocated for it. A decoder that panics is an error of its image.

#![forbid(unsafe_code)]

mod crop;
mod decoder;
mod error;
mod jpeg;
mod jpeg_enlarge;
mod jpeg_frame;
mod jpeg_markers;
mod output;
mod pixels;
mod png;
mod random;
mod spec;

pub use decoder::ImageDecoder;
pub use error::ImageError;
pub use pixels::MAX_PIXELS;
pub use random::SampleKey;
pub use spec::{ImageSpec, Mode, PixelLayout, PixelType, Resize};
