//! Estimates the size of ragged values, per byte of their records.
//!
//! Together the values take about as much as the records. Only 64-bit integers expand: protobuf
//! writes small ones as one byte, so they can become eight times as large. The ratio is estimated
//! from a few samples. A batch that needs more moves to private memory, so a wrong estimate only
//! costs time.

use forebay_format::Index;
use forebay_types::{Dtype, Field, Layout};

use crate::dataset::IndexedDataset;

/// Number of probed samples: on remote storage they take a tenth of a second.
const PROBES: u64 = 16;

/// Ragged bytes per byte of a record; 1 if they cannot be more.
pub(crate) fn expansion_ratio(source: &IndexedDataset, index: &Index) -> f64 {
    let grows = |field: &Field| field.layout == Layout::Ragged && field.dtype == Dtype::Int64;
    if index.schema().is_identity() || !index.fields().iter().any(grows) {
        return 1.0;
    }
    let samples = index.samples();
    let probes = samples.min(PROBES);
    // A bad sample is reported when it is requested.
    let probed = (0..probes).filter_map(|probe| source.sample_of(index, samples / probes * probe).ok());
    let (mut seen, mut bytes) = (0_u64, 0_u64);
    for (fields, values) in probed {
        let ragged = fields.iter().zip(values).filter(|(field, _)| field.layout == Layout::Ragged);
        bytes += ragged.map(|(_, value)| value.len() as u64).sum::<u64>();
        seen += 1;
    }
    let mean_bytes = bytes as f64 / seen.max(1) as f64;
    (mean_bytes * samples as f64 / index.record_bytes().max(1) as f64).max(1.0)
}
