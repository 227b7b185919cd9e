//! The frame header of a JPEG (ITU-T T.81, B.2): its size, and what kind of scan follows.
//!
//! The decoder reads the header again. This reads it before, as size and kind say which part of the
//! image to decode, and lets a decoder end after the last row that a crop needs.

use crate::error::ImageError;
use crate::jpeg_markers::{self, APP14, Checked, EOI, Marker, Markers, SOI, SOS, is_frame, wrong};

/// Where an Adobe segment says how colors are transformed; 0: they are not.
const ADOBE_TRANSFORM: usize = 11;

/// How pixels are coded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Coding {
    /// Row by row: Huffman-coded, sequential, in one scan.
    Sequential,
    /// Predicted, not transformed: there are no blocks to reduce.
    Lossless,
    /// In other scans.
    Scans,
}

/// What the header of a JPEG says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) width: u16,
    pub(crate) height: u16,
    pub(crate) components: u8,
    /// Rows of a block of the scan: 8 times the largest vertical sampling factor.
    pub(crate) unit_rows: u16,
    /// Whether it is gray or of luminance and chrominance, in one of the usual samplings. Of others
    /// the decoder does not crop the right part.
    pub(crate) is_usual: bool,
    /// Pixels of luminance per pixel of chrominance, across and down, if the decoder returns them
    /// in planes: one that is usual, and Huffman-coded.
    pub(crate) planes: Option<[usize; 2]>,
    /// Horizontal and vertical sampling factors of the first four components.
    pub(crate) sampling: [[u8; 2]; 4],
    /// The color transform that an Adobe marker states, whose programs store inverted inks.
    pub(crate) adobe: Option<u8>,
    pub(crate) coding: Coding,
    /// Whether scans lack coefficients, which are guessed from the whole image.
    pub(crate) is_guessed: bool,
    /// Offset of the header \[bytes\].
    pub(crate) offset: usize,
    /// Where the image ends \[bytes\].
    pub(crate) end: usize,
    /// Offset of the height \[bytes\].
    height_at: usize,
}

impl Frame {
    /// Reads the header.
    pub(crate) fn read(data: &[u8]) -> Result<Self, ImageError> {
        if data.get(..2) != Some(&[0xff, SOI]) {
            return Err(wrong("start of the image", 0, "ff d8", hex(data)));
        }
        let Checked { end, is_guessed } = jpeg_markers::check(data)?;
        let mut frame: Option<Self> = None;
        let mut adobe: Option<u8> = None;
        let mut markers = Markers::new(&data[..end]);
        while let Some(Marker { code, at, segment }) = markers.next()? {
            match code {
                _ if is_frame(code) => {
                    let [precision, h0, h1, w0, w1, components, rest @ ..] = segment else {
                        return Err(wrong("frame header", at, "6 bytes or more", segment.len().to_string()));
                    };
                    if *precision != 8 {
                        return Err(wrong("bits per sample", at + 2, "8", precision.to_string()));
                    }
                    let mut sampling = [[1; 2]; 4];
                    for (factors, one) in sampling.iter_mut().zip(rest.chunks_exact(3)) {
                        *factors = [one[1] >> 4, one[1] & 15];
                        if !factors.iter().all(|factor| (1..=4).contains(factor)) {
                            let found = format!("{} x {}", factors[0], factors[1]);
                            return Err(wrong("sampling of a component", at + 2, "1 to 4 x 1 to 4", found));
                        }
                    }
                    let coding = match code {
                        0xc0 | 0xc1 => Coding::Sequential,
                        0xc3 | 0xc7 | 0xcb | 0xcf => Coding::Lossless,
                        _ => Coding::Scans,
                    };
                    let vertical = sampling.iter().map(|[_, down]| u16::from(*down)).max();
                    frame = Some(Self {
                        width: u16::from_be_bytes([*w0, *w1]),
                        height: u16::from_be_bytes([*h0, *h1]),
                        components: *components,
                        unit_rows: 8 * vertical.unwrap_or(1),
                        is_usual: is_usual(rest) && coding != Coding::Lossless && !is_guessed,
                        planes: planes(rest, u16::from_be_bytes([*w0, *w1]))
                            .filter(|_| matches!(code, 0xc0..=0xc2)),
                        sampling,
                        adobe: None,
                        coding,
                        is_guessed,
                        offset: at - 2,
                        end,
                        height_at: at + 3,
                    });
                }
                APP14 if segment.starts_with(b"Adobe") => {
                    adobe = segment.get(ADOBE_TRANSFORM).copied();
                }
                SOS => {
                    let Some(frame) = frame else {
                        return Err(wrong("header", at - 2, "a frame before its scan", "a scan"));
                    };
                    let is_part = segment.first() != Some(&frame.components);
                    let coding = match frame.coding {
                        Coding::Sequential if is_part => Coding::Scans,
                        coding => coding,
                    };
                    let is_usual = frame.is_usual && !(adobe == Some(0) && frame.components == 3);
                    return Ok(Self {
                        is_usual,
                        planes: frame.planes.filter(|_| is_usual),
                        adobe,
                        coding,
                        ..frame
                    });
                }
                _ => {}
            }
        }
        Err(wrong("header", end, "a frame and a scan", "the end of the image"))
    }

    /// The image cut after the `rows` first rows, rounded up to whole blocks; `None` where that is
    /// not possible, or saves nothing.
    ///
    /// A sequential scan has its blocks row by row, so a lower height in the header is all that it
    /// takes. The end of the image has to be there: one that is cut off is an error wherever the
    /// crop is.
    pub(crate) fn cut(&self, data: &[u8], rows: usize) -> Option<Vec<u8>> {
        let unit = usize::from(self.unit_rows);
        let height = rows.div_ceil(unit) * unit;
        let has_end = data.ends_with(&[0xff, EOI]);
        if self.coding != Coding::Sequential || height >= usize::from(self.height) || !has_end {
            return None;
        }
        let mut cut = data.to_vec();
        cut[self.height_at..self.height_at + 2].copy_from_slice(&(height as u16).to_be_bytes());
        Some(cut)
    }
}

/// Whether components (id, sampling, table; 3 bytes each) are those of nearly all JPEGs: one, or
/// three of which the first has 1x1, 2x1 or 2x2 samples for each of the others. Three that are
/// named R, G and B are colors.
fn is_usual(components: &[u8]) -> bool {
    match components {
        [_, _, _] => true,
        [r, first, _, g, second, _, b, third, _] => {
            matches!(first, 0x11 | 0x21 | 0x22) && [*second, *third] == [0x11; 2] && [*r, *g, *b] != *b"RGB"
        }
        _ => false,
    }
}

/// Sampling of luminance against chrominance, across and down, of components in planes. Chrominance
/// of two columns or fewer is repeated, not interpolated (jdsample.c of libjpeg), which the decoder
/// does.
fn planes(components: &[u8], width: u16) -> Option<[usize; 2]> {
    match components {
        [_, 0x11, _] => Some([1, 1]),
        [_, first, ..] if components.len() == 9 && is_usual(components) && (*first == 0x11 || width > 4) => {
            Some([usize::from(first >> 4), usize::from(first & 15)])
        }
        _ => None,
    }
}

/// The first bytes of an image, for messages.
pub(crate) fn hex(data: &[u8]) -> String {
    if data.is_empty() {
        return "no bytes".into();
    }
    let bytes: Vec<String> = data.iter().take(4).map(|byte| format!("{byte:02x}")).collect();
    bytes.join(" ")
}
