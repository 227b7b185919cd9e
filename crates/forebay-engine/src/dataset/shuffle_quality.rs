//! Shuffle quality of an order, and the warning if it is not enough.

use forebay_format::Index;
use forebay_plan::{Convergence, LastBatch, Order, OrderKind, OrderSpec, Quality, default_group};
use serde::Serialize;

use crate::error::Error;

/// Samples and bytes of records below which there is no warning: tests and examples. An epoch of
/// such a dataset takes seconds, and studies of orders use at least 50,000 samples.
const SMALL_SAMPLES: u64 = 10_000;
/// See [`SMALL_SAMPLES`].
const SMALL_BYTES: u64 = 1 << 30;

/// An order's shuffle quality with all its numbers; keys as in docs/metrics.md.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct ShuffleQuality {
    /// Order entropy and same-group pairs.
    #[serde(flatten)]
    pub quality: Quality,
    /// Groups of the order; `None`, like all that follows, where no bound on the epochs applies.
    pub groups: Option<u64>,
    /// Convergence is proven unharmed for fewer epochs than this.
    pub proven_epochs: Option<u64>,
    /// The number of epochs, if known.
    pub epochs: Option<u64>,
    /// Whether these are few enough.
    pub within_bound: Option<bool>,
    /// Groups that would do where they are not.
    pub suggested_group: Option<GroupSize>,
}

/// Parameters of a group order.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct GroupSize {
    /// Samples per group.
    pub samples: u64,
    /// Groups per window.
    pub window: u64,
}

impl ShuffleQuality {
    /// Of an order; `epochs` where their number is known.
    #[must_use]
    pub fn of(order: &Order, epochs: Option<u64>, unit_samples: u64) -> Self {
        let bound = Convergence::of(order, epochs.unwrap_or(0), unit_samples);
        let asked = bound.filter(|_| epochs.is_some());
        Self {
            quality: order.quality(),
            groups: bound.map(|bound| bound.groups),
            proven_epochs: bound.map(|bound| bound.proven_epochs()),
            epochs: bound.and(epochs),
            within_bound: asked.map(|asked| asked.holds()),
            suggested_group: asked
                .and_then(|asked| asked.sufficient)
                .map(|(samples, window)| GroupSize { samples, window }),
        }
    }
}

/// Samples per group and groups per window that suit the dataset of an index.
pub(crate) fn group_of(index: &Index) -> (u64, u64) {
    let mean_bytes = index.record_bytes() as f64 / index.samples().max(1) as f64;
    default_group(index.samples(), mean_bytes, index.unit_samples())
}

/// The order that a dataset gets by default on this many ranks.
pub(crate) fn default_order(index: &Index, ranks: u64, batch: u64) -> Result<Order, Error> {
    let (samples, window) = group_of(index);
    Ok(Order::new(OrderSpec {
        kind: OrderKind::Group { samples, window },
        // A batch may be larger than the dataset.
        last_batch: LastBatch::Partial,
        seed: 0,
        samples: index.samples(),
        batch,
        ranks,
        lanes: None,
    })?)
}

/// The warning for an order that fails the condition while other groups would satisfy it. For a
/// dataset without such groups, or a small one ([`SMALL_SAMPLES`]), only [`ShuffleQuality`]
/// reports it.
pub(crate) fn warning(order: &Order, epochs: u64, index: &Index) -> Option<String> {
    warning_of(order, epochs, index.unit_samples(), index.record_bytes())
}

fn warning_of(order: &Order, epochs: u64, unit_samples: u64, record_bytes: u64) -> Option<String> {
    let bound = Convergence::of(order, epochs, unit_samples)?;
    let (samples, window) = bound.sufficient?;
    if bound.samples < SMALL_SAMPLES && record_bytes < SMALL_BYTES {
        return None;
    }
    let OrderKind::Group { samples: group, window: groups } = order.kind() else { return None };
    let memory = if samples * window > group * groups {
        let times = (samples * window) as f64 / (group * groups) as f64;
        format!("about {times:.1} times the memory for its windows")
    } else {
        "no more memory".into()
    };
    Some(format!(
        "training may converge more slowly than with a full shuffle: order {} is proven harmless for fewer than {} epochs, and \
         this is a training of {epochs} ({})\nhint: order=forebay.Group(samples={samples}, window={window}) is proven for \
         {epochs} epochs and takes {memory}; order=\"shuffle\" is a full shuffle and reads every sample by itself; to keep \
         the order as it is, ignore this (docs/orders.md)",
        order.kind(),
        bound.proven_epochs(),
        condition(&bound),
    ))
}

fn condition(bound: &Convergence) -> String {
    let Convergence { samples, groups, .. } = bound;
    let ratio = *samples as f64 / *groups as f64;
    format!("Meng et al.: epochs < N/n = {samples} samples / {groups} groups = {ratio:.1}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(samples: u64, group: u64) -> Order {
        let kind = OrderKind::Group { samples: group, window: 4 };
        let spec = OrderSpec {
            kind,
            last_batch: LastBatch::Fill,
            seed: 0,
            samples,
            batch: 8,
            ranks: 1,
            lanes: None,
        };
        Order::new(spec).unwrap()
    }

    #[test]
    fn a_warning_names_the_condition_and_sufficient_groups() {
        let order = order(1_281_167, 32);
        assert_eq!(warning_of(&order, 31, 1, 0), None);
        let text = warning_of(&order, 90, 1, 0).unwrap();
        for fact in [
            "fewer than 32 epochs",
            "N/n = 1281167 samples / 40037 groups = 32.0",
            "order=forebay.Group(samples=91, window=4)",
            "2.8 times the memory",
            "order=\"shuffle\"",
        ] {
            assert!(text.contains(fact), "{fact}: {text}");
        }
        let quality = |epochs| ShuffleQuality::of(&order, Some(epochs), 1);
        assert_eq!((quality(31).within_bound, quality(90).within_bound), (Some(true), Some(false)));
    }

    #[test]
    fn in_a_dataset_too_small_for_groups_that_would_do_nobody_is_warned() {
        let order = order(1000, 2);
        assert_eq!(warning_of(&order, 90, 1, u64::MAX), None);
        let quality = ShuffleQuality::of(&order, Some(90), 1);
        assert_eq!((quality.within_bound, quality.suggested_group.is_none()), (Some(false), true));
    }

    #[test]
    fn nobody_is_warned_of_a_test_run() {
        let warned = |samples, bytes| warning_of(&order(samples, 4), 20, 1, bytes).is_some();
        assert!(!warned(SMALL_SAMPLES - 1, SMALL_BYTES - 1));
        assert!(warned(SMALL_SAMPLES, 0) && warned(SMALL_SAMPLES - 1, SMALL_BYTES));
        assert_eq!(ShuffleQuality::of(&order(9000, 4), Some(20), 1).within_bound, Some(false));
    }

    #[test]
    fn numbers_are_left_out_where_no_bound_applies() {
        let quality = ShuffleQuality::of(&order(1000, 1), Some(90), 1);
        assert_eq!(
            (quality.groups, quality.proven_epochs, quality.epochs, quality.within_bound),
            (None, None, None, None)
        );
        let quality = ShuffleQuality::of(&order(100_000, 10), None, 1);
        assert_eq!(
            (quality.groups, quality.proven_epochs, quality.epochs, quality.within_bound),
            (Some(10_000), Some(10), None, None)
        );
        let quality = ShuffleQuality::of(&order(100_000, 10), Some(10), 1);
        assert_eq!((quality.epochs, quality.within_bound), (Some(10), Some(false)));
        assert_eq!(quality.suggested_group.map(|group| (group.samples, group.window)), Some((11, 4)));
    }
}
