//! Records of one length at regular places.

use std::convert::Infallible;

use forebay_types::{Extent, Located, SampleId, SamplePlaces, ShardId, Slice};
use serde::{Deserialize, Serialize};

use crate::error::Error;

/// Records of one length at regular places: raw records, npy, HDF5, `TFRecord`, folders, tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Uniform {
    /// Samples of all files.
    pub samples: u64,
    /// Files; each but the last has as many samples as the first.
    #[serde(default = "one")]
    pub files: u64,
    /// Bytes before the first record of a file \[B\].
    #[serde(default)]
    pub header_bytes: u64,
    /// Distance of two records of a file \[B\].
    pub stride_bytes: u64,
    /// Bytes of the record before its value \[B\].
    #[serde(default)]
    pub head_bytes: u64,
    /// Bytes of the value \[B\].
    pub sample_bytes: u64,
}

fn one() -> u64 {
    1
}

impl Uniform {
    /// Validates the numbers; the error names the first invalid one.
    pub fn check(&self) -> Result<(), Error> {
        let record_bytes = self.head_bytes.saturating_add(self.sample_bytes);
        if self.samples == 0 || self.samples > 1 << 48 {
            return Err(Error::job("dataset.samples", "1 to 2^48", &self.samples));
        }
        if self.files == 0 || self.files > self.samples {
            return Err(Error::job("dataset.files", format!("1 to {}", self.samples), &self.files));
        }
        if self.sample_bytes == 0 || self.sample_bytes > 1 << 40 {
            return Err(Error::job("dataset.sample_bytes", "1 to 2^40", &self.sample_bytes));
        }
        if self.stride_bytes < record_bytes || self.stride_bytes > 1 << 41 {
            return Err(Error::job(
                "dataset.stride_bytes",
                format!("{record_bytes} to 2^41"),
                &self.stride_bytes,
            ));
        }
        if self.header_bytes > 1 << 40 {
            return Err(Error::job("dataset.header_bytes", "0 to 2^40", &self.header_bytes));
        }
        if self.samples.checked_mul(self.stride_bytes).is_none_or(|bytes| bytes > 1 << 60) {
            return Err(Error::job("dataset", "at most 2^60 bytes in all", &"more"));
        }
        Ok(())
    }

    /// Samples of each file but the last.
    fn samples_of_file(&self) -> u64 {
        self.samples.div_ceil(self.files)
    }

    /// Length of a file \[B\].
    pub(crate) fn bytes_of_file(&self, file: u64) -> u64 {
        let each = self.samples_of_file();
        self.header_bytes + each.min(self.samples.saturating_sub(file * each)) * self.stride_bytes
    }

    /// Whether each sample is a file.
    pub fn has_sample_files(&self) -> bool {
        self.files == self.samples && self.samples > 1
    }

    /// Bytes of all files \[B\].
    pub fn file_bytes(&self) -> u64 {
        self.files * self.header_bytes + self.samples * self.stride_bytes
    }

    /// Bytes of all records \[B\].
    pub fn record_bytes(&self) -> u64 {
        self.samples * self.sample_bytes
    }
}

impl SamplePlaces for Uniform {
    type Error = Infallible;

    fn samples(&self) -> u64 {
        self.samples
    }

    fn shard_bytes(&self) -> Vec<u64> {
        if self.has_sample_files() {
            return Vec::new();
        }
        (0..self.files).map(|file| self.bytes_of_file(file)).collect()
    }

    fn locate(&self, ids: &[SampleId], out: &mut Located) -> Result<(), Infallible> {
        let each = self.samples_of_file();
        out.clear(1);
        for id in ids {
            let (file, place) = (id.0 / each, id.0 % each);
            let extent = Extent {
                shard: ShardId(file as u32),
                offset: self.header_bytes + place * self.stride_bytes,
                length: self.head_bytes + self.sample_bytes,
            };
            let unit = out.push_stored_unit(extent, 0);
            out.push_slice(Slice { unit, offset: self.head_bytes, length: self.sample_bytes });
            out.end_column();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use forebay_types::Piece;

    use super::*;

    #[test]
    fn records_lie_at_regular_places_of_their_files() {
        let places = Uniform {
            samples: 10,
            files: 3,
            header_bytes: 128,
            stride_bytes: 100,
            head_bytes: 16,
            sample_bytes: 80,
        };
        places.check().unwrap();
        assert_eq!(places.shard_bytes(), [528, 528, 328]);
        assert_eq!((places.file_bytes(), places.record_bytes()), (1384, 800));
        let mut located = Located::default();
        places.locate(&[SampleId(9), SampleId(0), SampleId(5)], &mut located).unwrap();
        let found: Vec<_> = located
            .pieces()
            .iter()
            .map(|piece| match piece {
                Piece::Extent(extent) => (extent.shard.0, extent.offset, extent.length),
                Piece::Literal { .. } => unreachable!("records have extents only"),
            })
            .collect();
        assert_eq!(found, [(2, 228, 96), (0, 128, 96), (1, 228, 96)]);
        assert_eq!(located.slices(1, 0), [Slice { unit: 1, offset: 16, length: 80 }]);
    }

    #[test]
    fn numbers_that_no_dataset_has_are_named() {
        let fine = Uniform {
            samples: 4,
            files: 1,
            header_bytes: 0,
            stride_bytes: 8,
            head_bytes: 0,
            sample_bytes: 8,
        };
        for (wrong, what) in [
            (Uniform { samples: 0, ..fine }, "dataset.samples: "),
            (Uniform { files: 5, ..fine }, "dataset.files: expected 1 to 4, found 5"),
            (Uniform { files: 0, ..fine }, "dataset.files: "),
            (Uniform { sample_bytes: 0, ..fine }, "dataset.sample_bytes: "),
            (Uniform { stride_bytes: 7, ..fine }, "dataset.stride_bytes: expected 8 to 2^41, found 7"),
            (Uniform { samples: 1 << 40, stride_bytes: 1 << 30, ..fine }, "dataset: expected at most"),
        ] {
            let error = wrong.check().unwrap_err().to_string();
            assert!(error.starts_with(what), "{error}");
        }
    }
}
