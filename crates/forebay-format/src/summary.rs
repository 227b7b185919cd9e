//! Sizes and counts of a dataset, which its sidecar keeps.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Sizes and counts of a dataset.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Summary {
    /// Sum of the lengths of all records \[bytes\].
    pub record_bytes: u64,
    /// Length of the shortest record \[bytes\].
    pub shortest_record_bytes: u64,
    /// Length of the longest record \[bytes\].
    pub longest_record_bytes: u64,
    /// Records that are not samples, by name.
    pub excluded: BTreeMap<String, u64>,
    /// For each column, the number of records of each class.
    pub class_records: Vec<Vec<u64>>,
    /// Records that lie before their predecessor in the file: 0 for a file in order.
    pub backward_records: u64,
}
