//! PNG: decodes a whole image. Alpha is dropped, 16 bits become 8.

use std::io::Cursor;

use png::{ColorType, Decoder, DecodingError, Limits, Reader, Transformations};

use crate::error::ImageError;
use crate::pixels::{Pixels, Plane, check_size, from_gray, from_rgb};
use crate::spec::Mode;

/// Memory of the decoder besides the pixels \[bytes\]: palettes, profiles, a row.
const MAX_OTHER_BYTES: usize = 64 << 20;

/// Longest palette \[bytes\]: 256 colors.
const MAX_PALETTE_BYTES: usize = 768;

/// An image whose header was read.
pub(crate) struct Png<'a> {
    reader: Reader<Cursor<&'a [u8]>>,
}

fn failed(error: &DecodingError) -> ImageError {
    let text = error.to_string();
    // A chunk is shown with all of its flags.
    let found = match text.split_once("ChunkType { type: ") {
        Some((before, rest)) => {
            let (name, flags) = rest.split_once(',').unwrap_or((rest, ""));
            let after = flags.split_once('}').map_or("", |(_, after)| after);
            format!("{before}{name}{after}")
        }
        None => text,
    };
    ImageError::new("PNG", 0, "an image", found)
}

impl<'a> Png<'a> {
    /// Reads the header, and checks the size.
    pub(crate) fn open(data: &'a [u8]) -> Result<Self, ImageError> {
        let mut decoder = Decoder::new_with_limits(Cursor::new(data), Limits { bytes: MAX_OTHER_BYTES });
        decoder.set_transformations(Transformations::EXPAND | Transformations::STRIP_16);
        decoder.set_ignore_text_chunk(true);
        decoder.set_ignore_iccp_chunk(true);
        let header = decoder.read_header_info().map_err(|error| failed(&error))?;
        check_size("PNG", 0, header.width, header.height)?;
        let reader = decoder.read_info().map_err(|error| failed(&error))?;
        let info = reader.info();
        if let (ColorType::Indexed, Some(palette)) = (info.color_type, &info.palette)
            && (palette.len() % 3 != 0 || palette.len() > MAX_PALETTE_BYTES)
        {
            let expected = format!("at most {MAX_PALETTE_BYTES} bytes, three for each color");
            return Err(ImageError::new("PNG: palette", 0, expected, palette.len().to_string()));
        }
        Ok(Self { reader })
    }

    /// Width and height.
    pub(crate) fn size(&self) -> (u32, u32) {
        (self.reader.info().width, self.reader.info().height)
    }

    /// Decodes the image.
    pub(crate) fn decode(mut self, mode: Mode) -> Result<Pixels, ImageError> {
        let (color, _) = self.reader.output_color_type();
        let Some(size) = self.reader.output_buffer_size() else {
            return Err(ImageError::new("PNG: size", 0, "one that fits memory", "an overflow"));
        };
        let mut bytes = vec![0; size];
        let frame = self.reader.next_frame(&mut bytes).map_err(|error| failed(&error))?;
        bytes.truncate(frame.buffer_size());
        let bytes = match (color, mode) {
            (ColorType::Rgb, Mode::Rgb) | (ColorType::Grayscale, Mode::Gray) => bytes,
            (ColorType::Rgb, Mode::Gray) => from_rgb(&bytes, 0, mode),
            (ColorType::Rgba, _) => from_rgb(&bytes, 1, mode),
            (ColorType::Grayscale, Mode::Rgb) => from_gray(&bytes, 0, mode),
            (ColorType::GrayscaleAlpha, _) => from_gray(&bytes, 1, mode),
            (ColorType::Indexed, _) => {
                return Err(ImageError::new("PNG: colors", 0, "a palette", "indices without one"));
            }
        };
        let (width, height) = (frame.width as usize, frame.height as usize);
        Ok(Pixels::Interleaved(Plane::new("PNG", bytes, mode.channels(), width, height)?))
    }
}
