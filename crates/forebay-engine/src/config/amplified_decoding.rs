//! The warning of an order that decodes units again and again.

use forebay_plan::config::{DataFacts, Settings};
use forebay_plan::{OrderKind, warns_of_amplification};

const MIB: f64 = (1 << 20) as f64;

/// The warning, if there is reason for one.
pub(crate) fn warning(settings: &Settings, data: &DataFacts, order: OrderKind) -> Option<String> {
    let amplification = settings.decode_amplification;
    if !warns_of_amplification(amplification, data.record_bytes) {
        return None;
    }
    Some(format!(
        "order {} decodes about {amplification:.0} samples for each one that it delivers: up to {} samples are decoded \
         together (a row group, batch or chunk of the files), and {:.0} of {:.0} MiB of decoded data have room in memory\n\
         hint: order=\"group\", the default, decodes each about once per epoch; or give node_memory=, or write the files with \
         fewer samples per row group or chunk (docs/troubleshooting.md)",
        order.name(),
        data.unit_samples,
        settings.kept_unit_bytes as f64 / MIB,
        data.record_bytes as f64 / MIB,
    ))
}
