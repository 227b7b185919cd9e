//! Estimates the mean length of the samples that a mixture draws.
//!
//! Sources differ in the length of their samples, and a mixture draws more of some of them than the
//! dataset has. The estimate follows from a few samples of each source.

use forebay_format::Index;
use forebay_plan::MixtureSpec;
use forebay_types::{Located, Piece, SampleId};

/// Number of probed samples of a source. The index locates them without a read of the files.
const PROBES: u64 = 64;

/// Bytes of as many records as the dataset has, drawn in the proportions of the mixture.
pub(crate) fn drawn_bytes(mixture: &MixtureSpec, index: &Index) -> u64 {
    // Samples of a chunk that is decoded together share its bytes.
    if index.is_coded() {
        return index.record_bytes();
    }
    let weights: u64 = mixture.sources.iter().map(|source| source.weight).sum();
    let (mut first, mut mean) = (0, 0.0);
    for source in &mixture.sources {
        let probes = source.samples.clamp(1, PROBES);
        let ids = (0..probes).map(|probe| SampleId(first + source.samples / probes * probe));
        let mut located = Located::default();
        // A damaged index, or samples that are no more, are reported when they are used.
        if index.locate(&ids.collect::<Vec<_>>(), &mut located).is_err() {
            return index.record_bytes();
        }
        let bytes = located.pieces().iter().map(|piece| match piece {
            Piece::Extent(extent) => extent.length,
            Piece::Literal { .. } => 0,
        });
        mean += bytes.sum::<u64>() as f64 / probes as f64 * source.weight as f64 / weights.max(1) as f64;
        first += source.samples;
    }
    (mean * index.samples() as f64) as u64
}
