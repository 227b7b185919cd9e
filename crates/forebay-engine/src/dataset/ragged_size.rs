//! How much longer the values of ragged fields are than the records that they come from.
//!
//! Together they take about the bytes of the records, whatever their number. Only integers of 64
//! bits become more than what is written: one byte where they are small (protobuf), so up to eight
//! times as much. How much that is in this data set, a look at a few samples tells. A batch that
//! needs more moves to private memory, so this is a matter of speed only.

use forebay_format::Index;
use forebay_types::{Dtype, Field, Layout};

use crate::dataset::IndexedDataset;

/// Samples that are looked at: reading them takes a tenth of a second where storage is far away.
const LOOKS: u64 = 16;

/// Ragged bytes for each byte of a record; 1 where they cannot be more.
pub(crate) fn expansion_ratio(source: &IndexedDataset, index: &Index) -> f64 {
    let grows = |field: &Field| field.layout == Layout::Ragged && field.dtype == Dtype::Int64;
    if index.schema().is_identity() || !index.fields().iter().any(grows) {
        return 1.0;
    }
    let samples = index.samples();
    let looks = samples.min(LOOKS);
    // What is bad here is met again, and told of, where it is asked for.
    let looked = (0..looks).filter_map(|look| source.sample_of(index, samples / looks * look).ok());
    let (mut seen, mut bytes) = (0_u64, 0_u64);
    for (fields, values) in looked {
        let ragged = fields.iter().zip(values).filter(|(field, _)| field.layout == Layout::Ragged);
        bytes += ragged.map(|(_, value)| value.len() as u64).sum::<u64>();
        seen += 1;
    }
    let mean_bytes = bytes as f64 / seen.max(1) as f64;
    (mean_bytes * samples as f64 / index.summary().record_bytes.max(1) as f64).max(1.0)
}
