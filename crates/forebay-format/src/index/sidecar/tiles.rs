//! Tiles: columns whose records are not samples but chunks of many.
//!
//! A shard of such a column is an array whose rows are samples, cut into chunks of one shape.
//! Chunks at the edges are as large as the others, and their contents beyond the array are
//! meaningless. The blocks of the column hold the locations of the chunks, in C order of their
//! grid. The parts of chunks that make up a sample follow from the shapes ([`Grid`]), and are the
//! same for all rows of a shard.

use serde::{Deserialize, Serialize};

use super::block::OFFSET_LIMIT;

/// Most runs of bytes in a sample, over all shapes of chunks of a column: with chunks of single
/// elements the locations would take more memory than the samples.
pub(crate) const MAX_RUNS: u64 = 1 << 20;

/// Most dimensions of a sample; HDF5 has 32, with that of the samples.
const MAX_DIMENSIONS: usize = 31;

/// How the chunks of a column lie.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tiles {
    /// Length of an element \[bytes\].
    pub item_bytes: u32,
    /// Shape of a sample.
    pub sample: Vec<u64>,
    /// For each class of the column its codec chain.
    pub chains: Vec<u16>,
    /// Shapes of chunks: rows, then as many numbers as `sample` has.
    pub shapes: Vec<Vec<u64>>,
    /// For each shard the number of its shape.
    pub shards: Vec<u32>,
}

/// A run of bytes of a sample, which lies in one row of one chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ByteRun {
    /// Number of the chunk among those that hold the row.
    pub(crate) chunk: u32,
    /// First byte in the row of the chunk.
    pub(crate) offset: u64,
    /// Length \[bytes\].
    pub(crate) length: u64,
}

/// Chunks of one shape, measured out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Grid {
    /// Rows of a chunk.
    pub(crate) rows: u64,
    /// Chunks that hold one row together.
    pub(crate) row_chunks: u64,
    /// Length of one row of a chunk \[bytes\].
    pub(crate) row_bytes: u64,
    /// Length of a chunk \[bytes\].
    pub(crate) chunk_bytes: u64,
    /// The bytes of a sample, in order.
    pub(crate) runs: Vec<ByteRun>,
}

impl Tiles {
    /// Length of a sample \[bytes\], or why there is none.
    pub(crate) fn sample_bytes(&self) -> Result<u64, String> {
        product(u64::from(self.item_bytes), &self.sample)
    }

    /// The grids of all shapes; checks tiles that a file claims.
    pub(crate) fn grids(&self) -> Result<Vec<Grid>, String> {
        let mut left = MAX_RUNS;
        let grid = |shape: &Vec<u64>| {
            let grid = Grid::new(self.item_bytes, &self.sample, shape, left)?;
            left -= grid.runs.len() as u64;
            Ok(grid)
        };
        self.shapes.iter().map(grid).collect()
    }
}

impl Grid {
    /// The grid of chunks; checks the shapes.
    pub(crate) fn new(item_bytes: u32, sample: &[u64], chunk: &[u64], max_runs: u64) -> Result<Self, String> {
        let wrong = || format!("samples of shape {sample:?}, {item_bytes} bytes each, in chunks {chunk:?}");
        let Some((rows, chunk)) = chunk.split_first() else { return Err(wrong()) };
        if item_bytes == 0
            || sample.len() > MAX_DIMENSIONS
            || chunk.len() != sample.len()
            || *rows == 0
            || chunk.contains(&0)
        {
            return Err(wrong());
        }
        let item_bytes = u64::from(item_bytes);
        product(item_bytes, sample)?;
        let row_bytes = product(item_bytes, chunk)?;
        let chunk_bytes = product(row_bytes, &[*rows])?;
        let counts: Vec<u64> =
            sample.iter().zip(chunk).map(|(sample, chunk)| sample.div_ceil(*chunk)).collect();
        let row_chunks = product(1, &counts)?;
        // After the last dimension in which chunks end elsewhere than samples, both are one.
        let cut = (0..sample.len()).rev().find(|axis| sample[*axis] != chunk[*axis]);
        let outer = cut.map_or(Ok(1), |cut| product(1, &sample[..cut]))?;
        let runs = product(outer, &[cut.map_or(1, |cut| counts[cut])])?;
        if row_chunks > MAX_RUNS || runs > max_runs {
            return Err(format!("{}: a sample is {runs} runs of bytes", wrong()));
        }
        let mut grid = Self { rows: *rows, row_chunks, row_bytes, chunk_bytes, runs: Vec::new() };
        if row_chunks > 0 {
            grid.runs.reserve(runs as usize);
            let axes = sample.len();
            // Distance between neighbours in a row of a chunk [bytes], and among the chunks of a
            // row.
            let (mut strides, mut chunk_strides) = (vec![item_bytes; axes], vec![1; axes]);
            for axis in (1..axes).rev() {
                strides[axis - 1] = strides[axis] * chunk[axis];
                chunk_strides[axis - 1] = chunk_strides[axis] * counts[axis];
            }
            let axes: Vec<Axis> = (0..axes)
                .map(|axis| Axis {
                    sample: sample[axis],
                    chunk: chunk[axis],
                    stride_bytes: strides[axis],
                    chunk_stride: chunk_strides[axis],
                })
                .collect();
            grid.lay(&axes[..cut.map_or(0, |cut| cut + 1)], 0, 0);
        }
        Ok(grid)
    }

    /// Adds the runs of a part of a sample: the dimensions before `axes` are fixed, and lead to
    /// `chunk` and `offset`.
    fn lay(&mut self, axes: &[Axis], chunk: u64, offset: u64) {
        match axes {
            [] => self.runs.push(ByteRun { chunk: chunk as u32, offset, length: self.row_bytes }),
            [cut] => {
                for first in (0..cut.sample).step_by(cut.chunk as usize) {
                    let length = cut.chunk.min(cut.sample - first) * cut.stride_bytes;
                    let chunk = chunk + first / cut.chunk * cut.chunk_stride;
                    self.runs.push(ByteRun { chunk: chunk as u32, offset, length });
                }
            }
            [axis, inner @ ..] => {
                for position in 0..axis.sample {
                    let chunk = chunk + position / axis.chunk * axis.chunk_stride;
                    self.lay(inner, chunk, offset + position % axis.chunk * axis.stride_bytes);
                }
            }
        }
    }

    /// Number of chunks of a shard with this many samples; `None` if it is too large.
    pub(crate) fn chunks(&self, samples: u64) -> Option<u64> {
        samples.div_ceil(self.rows).checked_mul(self.row_chunks)
    }
}

/// One dimension of a sample.
#[derive(Clone, Copy)]
struct Axis {
    /// Length of the sample, and of a chunk.
    sample: u64,
    chunk: u64,
    /// Distance between neighbours in the row of a chunk \[bytes\].
    stride_bytes: u64,
    /// Distance between neighbours among the chunks of a row.
    chunk_stride: u64,
}

/// The product of all numbers, which has to stay below what offsets can be.
fn product(first: u64, numbers: &[u64]) -> Result<u64, String> {
    if first == 0 || numbers.contains(&0) {
        return Ok(0);
    }
    numbers
        .iter()
        .try_fold(first, |product, number| product.checked_mul(*number))
        .filter(|product| *product < OFFSET_LIMIT)
        .ok_or_else(|| format!("{first} × {numbers:?} is too large"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grid(sample: &[u64], chunk: &[u64]) -> Grid {
        Grid::new(2, sample, chunk, MAX_RUNS).expect("a sound shape")
    }

    /// The bytes of the elements of a sample, from chunks in which every element is its own
    /// position.
    fn gathered(sample: &[u64], chunk: &[u64]) -> Vec<u64> {
        let grid = grid(sample, chunk);
        let counts: Vec<u64> = sample.iter().zip(&chunk[1..]).map(|(all, one)| all.div_ceil(*one)).collect();
        let mut found = Vec::new();
        for run in &grid.runs {
            assert!(run.offset + run.length <= grid.row_bytes && run.length > 0);
            for item in (run.offset..run.offset + run.length).step_by(2) {
                // Positions from the last dimension to the first: in the chunk, and of the chunk.
                let (mut within, mut number, mut stride, mut flat) = (item / 2, u64::from(run.chunk), 1, 0);
                for axis in (0..sample.len()).rev() {
                    let (extent, count) = (chunk[axis + 1], counts[axis]);
                    let position = number % count * extent + within % extent;
                    assert!(position < sample[axis], "padding");
                    flat += position * stride;
                    (within, number, stride) = (within / extent, number / count, stride * sample[axis]);
                }
                found.push(flat);
            }
        }
        found
    }

    #[test]
    fn runs_hold_every_element_of_a_sample_once_and_in_order() {
        for (sample, chunk) in [
            (&[][..], &[7][..]),
            (&[5], &[1, 5]),
            (&[5], &[3, 2]),
            (&[5], &[3, 8]),
            (&[4, 6], &[2, 4, 6]),
            (&[4, 6], &[2, 3, 6]),
            (&[4, 6], &[2, 4, 4]),
            (&[4, 6], &[2, 5, 7]),
            (&[3, 4, 5, 2], &[9, 2, 3, 5, 2]),
            (&[3, 4, 5, 2], &[9, 2, 3, 2, 2]),
            (&[3, 4, 5, 2], &[9, 3, 4, 5, 1]),
        ] {
            let elements: u64 = sample.iter().product();
            assert_eq!(gathered(sample, chunk), (0..elements).collect::<Vec<_>>(), "{sample:?} {chunk:?}");
        }
    }

    #[test]
    fn whole_rows_are_one_run_and_cut_ones_as_few_as_can_be() {
        assert_eq!(grid(&[4, 6], &[8, 4, 6]).runs, [ByteRun { chunk: 0, offset: 0, length: 48 }]);
        assert_eq!(grid(&[4, 6], &[8, 2, 6]).runs.len(), 2);
        assert_eq!(grid(&[4, 6], &[8, 4, 3]).runs.len(), 8);
        let empty = grid(&[4, 0], &[8, 4, 3]);
        assert_eq!((empty.runs.len(), empty.chunks(100)), (0, Some(0)));
        assert_eq!(grid(&[4, 6], &[8, 2, 4]).chunks(17), Some(3 * 4));
    }

    #[test]
    fn shapes_that_cannot_be_are_refused() {
        let refused = |sample: &[u64], chunk: &[u64], most| {
            assert!(Grid::new(4, sample, chunk, most).is_err(), "{sample:?} {chunk:?}");
        };
        refused(&[4], &[], MAX_RUNS);
        refused(&[4], &[1], MAX_RUNS);
        refused(&[4], &[0, 4], MAX_RUNS);
        refused(&[4], &[1, 0], MAX_RUNS);
        refused(&[1 << 60], &[1, 1 << 60], MAX_RUNS);
        refused(&[1 << 30, 1 << 30], &[1, 1, 1], MAX_RUNS);
        refused(&[1 << 40], &[1, 1], MAX_RUNS);
        refused(&[1 << 20, 2], &[1, 1 << 20, 1], MAX_RUNS);
        refused(&[3], &[1, 1], 2);
        refused(&[1 << 20, 2, 0], &[1 << 62, 1 << 20, 1, 1], MAX_RUNS);
        refused(&vec![1; 32], &vec![1; 33], MAX_RUNS);
        assert!(Grid::new(0, &[4], &[1, 4], MAX_RUNS).is_err());
    }
}
