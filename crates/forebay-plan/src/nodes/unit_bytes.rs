//! How long the units are that the nodes of a job share out.
//!
//! Short units share out evenly. On disks each unit costs a seek when a node loads its share or
//! streams, which long units make up for.

use forebay_types::{CHUNK_BYTES, PIECE_BYTES};

/// Least samples of a unit, where there are enough: one sample of each unit lies across its end, in
/// a chunk of another node.
const UNIT_SAMPLES: u64 = 64;

/// Most units, about: all ranks keep two words for each.
const MOST_UNITS: u64 = 1 << 16;

/// Least units of each node, about: shares differ by up to one.
const UNITS_OF_NODE: u64 = 16;

/// Least units of each node in the order `opportunistic`, where units are longer than 1 MiB:
/// windows of this many units shuffle as well as longer ones.
const STREAM_UNITS_OF_NODE: u64 = 2048;

/// Least units of each node there, as far as units have 64 KiB: in a file sorted by class, windows
/// of fewer units hold few classes.
const LEAST_STREAM_UNITS_OF_NODE: u64 = 64;

/// Longest units that are chosen there \[bytes\]: disks that seek for 8 ms and transfer 3.7 GB/s,
/// as those of the preset `lustre-hdd`, take 11 % longer than for one long read.
const STREAM_UNIT_BYTES: u64 = 256 << 20;

/// Longest units of a store \[bytes\]. All nodes load their shares at the same time, so a disk
/// seeks for each unit: one that seeks for 8 ms and transfers 3.7 GB/s, as in the preset
/// `lustre-hdd`, takes 1.9 times as long as for one long read, and 8 times with units of 4 MiB.
/// Longer ones would slow orders that go through the file: the nodes that hold the units of the
/// steps in flight serve all ranks.
const STORE_UNIT_BYTES: u64 = 32 << 20;

/// Length of a unit \[bytes\]: a power of two.
#[must_use]
pub(crate) fn share_unit_bytes(data_bytes: u64, samples: u64, nodes: u64) -> u64 {
    let wanted = (UNIT_SAMPLES * (data_bytes / samples.max(1))).max(data_bytes / MOST_UNITS).max(CHUNK_BYTES);
    let most = data_bytes / (UNITS_OF_NODE * nodes.max(1));
    wanted.min(most).max(PIECE_BYTES).next_power_of_two()
}

/// Length of a unit of what nodes stream \[bytes\]: a power of two, `asked` if that leaves enough
/// units. On disks each unit costs a seek, which long ones make up for.
#[must_use]
pub(crate) fn stream_unit_bytes(data_bytes: u64, samples: u64, nodes: u64, asked: Option<u64>) -> u64 {
    let for_units = |units| for_units(units, data_bytes, nodes);
    if let Some(asked) = asked {
        return asked.next_power_of_two().min(for_units(UNITS_OF_NODE)).max(PIECE_BYTES);
    }
    let plain = share_unit_bytes(data_bytes, samples, nodes);
    let long = for_units(STREAM_UNITS_OF_NODE).min(STREAM_UNIT_BYTES);
    plain.min(for_units(LEAST_STREAM_UNITS_OF_NODE)).max(long).max(PIECE_BYTES)
}

/// Length of a unit of a store, where the order does not depend on the units \[bytes\]: a power of
/// two.
#[must_use]
pub(crate) fn store_unit_bytes(data_bytes: u64, samples: u64, nodes: u64) -> u64 {
    let long = for_units(UNITS_OF_NODE, data_bytes, nodes).min(STORE_UNIT_BYTES);
    share_unit_bytes(data_bytes, samples, nodes).max(long)
}

/// The longest power of two that leaves each node about `units` units: rounded down, as the fewest
/// units are a promise and the length is not.
fn for_units(units: u64, data_bytes: u64, nodes: u64) -> u64 {
    (data_bytes / (units * nodes.max(1)) + 1).next_power_of_two() / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: u64 = 1 << 10;
    const MIB: u64 = 1 << 20;

    #[test]
    fn units_of_a_stream_are_long_where_many_are_left() {
        for (data_bytes, sample_bytes, nodes, asked, expected) in [
            (60 * MIB, 3 * KIB, 4, None, 128 * KIB),
            (MIB, 3 * KIB, 4, None, 64 * KIB),
            (512 * MIB, 16 * KIB, 2, None, MIB),
            (140_000 * MIB, 110 * KIB, 4, None, 16 * MIB),
            (140_000 * MIB, 110 * KIB, 64, None, 8 * MIB),
            (10_000_000 * MIB, 110 * KIB, 8, None, 256 * MIB),
            (512 * MIB, 16 * KIB, 2, Some(10 * MIB), 16 * MIB),
            (512 * MIB, 16 * KIB, 2, Some(64 * MIB), 16 * MIB),
            (512 * MIB, 16 * KIB, 2, Some(64 * KIB), 64 * KIB),
        ] {
            let found = stream_unit_bytes(data_bytes, data_bytes / sample_bytes, nodes, asked);
            assert_eq!(found, expected, "{data_bytes} bytes on {nodes} nodes, {asked:?}");
        }
    }

    #[test]
    fn units_of_a_store_are_long_where_each_node_has_enough_of_them() {
        for (data_bytes, sample_bytes, nodes, expected) in [
            (147_000 * MIB, 3 * KIB, 256, 32 * MIB),
            (147_000 * MIB, 3 * KIB, 4, 32 * MIB),
            (147_000 * MIB, 3 * KIB, 1024, 8 * MIB),
            (600 * MIB, 3 * KIB, 4, 8 * MIB),
            (60 * MIB, 3 * KIB, 4, MIB),
            (4 * MIB, 3 * KIB, 16, 64 * KIB),
            // Samples that are long themselves.
            (147_000 * MIB, MIB, 256, 64 * MIB),
        ] {
            let found = store_unit_bytes(data_bytes, data_bytes / sample_bytes, nodes);
            assert_eq!(found, expected, "{data_bytes} bytes on {nodes} nodes");
            assert!(found >= share_unit_bytes(data_bytes, data_bytes / sample_bytes, nodes));
        }
    }
}
