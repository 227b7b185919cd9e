//! Enlarges a component of a JPEG that has fewer samples than pixels, as libjpeg-turbo does by
//! default (`jdsample.c`): by 2 with a triangle filter ("fancy upsampling"), else by repetition.

/// Columns that are repeated, not interpolated: as libjpeg-turbo.
const MAX_REPEATED_WIDTH: usize = 2;

/// Samples of a component, row by row.
pub(crate) struct Samples<'a> {
    pub(crate) bytes: &'a [u8],
    /// From one row to the next; blocks have more than `width`.
    pub(crate) row_bytes: usize,
    /// Samples of a row, and rows, that belong to pixels.
    pub(crate) width: usize,
    pub(crate) height: usize,
}

impl Samples<'_> {
    fn row(&self, number: usize) -> &[u8] {
        &self.bytes[number * self.row_bytes..][..self.width]
    }

    /// The nearer row counts three times, the other once; by fours.
    fn weighted(&self, near: usize, far: usize) -> Vec<u16> {
        let rows = self.row(near).iter().zip(self.row(far));
        rows.map(|(near, far)| 3 * u16::from(*near) + u16::from(*far)).collect()
    }
}

/// Enlarges samples by the factors across and down to `width` x `height` pixels.
pub(crate) fn enlarge(samples: &Samples<'_>, factors: [usize; 2], width: usize, height: usize) -> Vec<u8> {
    let mut pixels = Vec::with_capacity(width * height);
    for y in 0..height {
        let at = y / factors[1];
        // The nearest row on the other side of the pixel; the border repeats.
        let beside = if y % 2 == 0 { at.saturating_sub(1) } else { (at + 1).min(samples.height - 1) };
        let is_wide = samples.width > MAX_REPEATED_WIDTH;
        match factors {
            [2, 1] if is_wide => {
                let row: Vec<u16> = samples.row(at).iter().map(|sample| u16::from(*sample)).collect();
                pixels.extend(across(&row, 2, [1, 2]).take(width));
            }
            [2, 2] if is_wide => pixels.extend(across(&samples.weighted(at, beside), 4, [8, 7]).take(width)),
            [1, 2] => {
                let bias = if y % 2 == 0 { 1 } else { 2 };
                let row = samples.weighted(at, beside).into_iter().map(|sum| ((sum + bias) >> 2) as u8);
                pixels.extend(row.take(width));
            }
            _ => pixels.extend((0..width).map(|x| samples.row(at)[x / factors[0]])),
        }
    }
    pixels
}

/// Enlarges a row by 2. Sums of three parts of the nearer sample and one of the other are shifted
/// by `shift` bits, once `bias` is added: to those on the left, and on the right of a sample.
fn across(row: &[u16], shift: u32, bias: [u16; 2]) -> impl Iterator<Item = u8> {
    (0..2 * row.len()).map(move |x| {
        let at = x / 2;
        let beside = if x % 2 == 0 { at.saturating_sub(1) } else { (at + 1).min(row.len() - 1) };
        ((3 * row[at] + row[beside] + bias[x % 2]) >> shift) as u8
    })
}
