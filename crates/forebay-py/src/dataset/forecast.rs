//! `forebay._native.tier_forecast`: what storage tiers would do for a run that was measured without
//! them.

use forebay_engine::Error;
use forebay_plan::{
    Copies, LastBatch, NodeReads, Order, OrderKind, OrderSpec, ReadRates, TierForecast, TierLevel,
    default_group,
};
use forebay_types::{CHUNK_BYTES, PIECE_BYTES};
use pyo3::prelude::*;
use serde_json::json;

use crate::dataset::json;
use crate::errors::{raise, wrong_option};

/// Forecasts `epochs` epochs with one empty tier of `tier_bytes` on each node; see
/// `python/forebay/_native.pyi`.
///
/// A tier of unknown speed is taken as never slower than the source or computing, so
/// `saved_seconds_share` is a bound.
#[pyfunction]
#[pyo3(signature = (
    *, order, group_samples, samples, global_batch, nodes, data_bytes, tier_bytes, epochs, source_rate, compute_s
))]
#[allow(clippy::too_many_arguments)] // the shape of a Python signature
pub(crate) fn tier_forecast<'py>(
    py: Python<'py>,
    order: &str,
    group_samples: Option<u64>,
    samples: u64,
    global_batch: u64,
    nodes: u64,
    data_bytes: u64,
    tier_bytes: u64,
    epochs: u64,
    source_rate: f64,
    compute_s: f64,
) -> PyResult<Bound<'py, PyAny>> {
    let mean_bytes = data_bytes as f64 / samples.max(1) as f64;
    let kind = match order {
        "sequential" => OrderKind::Sequential,
        "contiguous" => OrderKind::Contiguous,
        "shuffle" => OrderKind::Shuffle,
        "local-shuffle" => OrderKind::LocalShuffle { steps: 1 },
        "group" => {
            let (default, window) = default_group(samples, mean_bytes, 1);
            OrderKind::Group { samples: group_samples.unwrap_or(default), window }
        }
        _ => return Err(wrong_option(py, format!("order {order}: expected the name of an order"), "")),
    };
    let spec = OrderSpec {
        kind,
        last_batch: LastBatch::Partial,
        seed: 0,
        samples,
        batch: global_batch,
        ranks: 1,
        lanes: None,
    };
    let order = Order::new(spec).map_err(|error| raise(py, &Error::from(error)))?;
    let chunks = data_bytes.div_ceil(CHUNK_BYTES).max(1);
    let levels = [TierLevel { slots: tier_bytes / CHUNK_BYTES, held_chunks: 0, held_bytes: 0 }];
    let forecast = |copies| TierForecast {
        reads: NodeReads::of(&order, nodes, mean_bytes),
        data_bytes,
        chunks,
        chunk_bytes: CHUNK_BYTES,
        piece_bytes: PIECE_BYTES,
        levels: &levels,
        copies,
    };
    let copies = Copies::decide(&forecast(true), Some(epochs), false) == Copies::Pieces;
    let rates = ReadRates { source: source_rate, levels: vec![f64::INFINITY], compute_s };
    let forecast = forecast(copies);
    let held_share = if forecast.reads.repeats { forecast.read_share() } else { 1.0 };
    let epochs_of_source = forecast.epochs().take(usize::try_from(epochs).unwrap_or(usize::MAX));
    let source_bytes: Vec<f64> = epochs_of_source.map(|bytes| bytes.source).collect();
    json(
        py,
        &json!({
            "copies": copies,
            "whole_bytes": (chunks as f64 * held_share).ceil() as u64 * CHUNK_BYTES,
            "source_bytes": source_bytes,
            "saved_seconds_share": forecast.saved_share(epochs, &rates),
        }),
    )
}
