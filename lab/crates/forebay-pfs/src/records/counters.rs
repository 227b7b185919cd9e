//! Counters of requests and bytes, per node, server and file, and a histogram of lateness.
//!
//! A transfer is counted under the lock under which the model books it, so both see one order.
//! Times are model nanoseconds; a [`Histogram`] holds values of any unit.
use std::collections::{BTreeMap, HashMap};

use forebay_model::{Direction, FileId, Layout, ModelTime, NodeId, Piece, ServerId, Spec};

/// Requests and bytes of one node, server or file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RequestCounters {
    /// Read requests; on a server, pieces of them.
    pub(crate) reads: u64,
    /// Bytes of the read requests.
    pub(crate) read_bytes: u64,
    /// Write requests; on a server, pieces of them.
    pub(crate) writes: u64,
    /// Bytes of the write requests.
    pub(crate) written_bytes: u64,
    /// Reads that begin where the last read of that file by that node ended; on a server, where the
    /// last piece of that object ended.
    pub(crate) sequential_reads: u64,
    /// Time that the pieces waited for servers, summed \[ns\].
    pub(crate) queue_ns: u64,
}

impl RequestCounters {
    fn count(&mut self, direction: Direction, bytes: u64, sequential: bool, queue_ns: u64) {
        match direction {
            Direction::Read => {
                self.reads += 1;
                self.read_bytes += bytes;
                self.sequential_reads += u64::from(sequential);
            }
            Direction::Write => {
                self.writes += 1;
                self.written_bytes += bytes;
            }
        }
        self.queue_ns += queue_ns;
    }
}

/// Counters of one node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct NodeCounters {
    /// Reads and writes.
    pub(crate) requests: RequestCounters,
    /// Metadata operations.
    pub(crate) metadata: u64,
    /// Number of reads per size \[B\].
    pub(crate) sizes: BTreeMap<u64, u64>,
}

/// Counters of one server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ServerCounters {
    /// Pieces of reads and writes.
    pub(crate) requests: RequestCounters,
    /// Pieces that began with a seek.
    pub(crate) seeks: u64,
    /// Time spent working \[ns\].
    pub(crate) busy_ns: u64,
}

/// Counters of one file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct FileCounters {
    /// Reads and writes.
    pub(crate) requests: RequestCounters,
    /// Time of the first read.
    pub(crate) first_read: Option<ModelTime>,
}

/// One request as it arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Transfer {
    /// Time of arrival.
    pub(crate) time: ModelTime,
    /// The node that sent it.
    pub(crate) node: NodeId,
    /// The file.
    pub(crate) file: FileId,
    /// Offset \[B\].
    pub(crate) offset: u64,
    /// Length \[B\].
    pub(crate) length: u64,
    /// Read or write.
    pub(crate) direction: Direction,
}

/// All counters of one file system.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counters {
    nodes: BTreeMap<NodeId, NodeCounters>,
    servers: BTreeMap<ServerId, ServerCounters>,
    files: BTreeMap<FileId, FileCounters>,
    /// End of the last read of each file by each node \[B\].
    node_ends: HashMap<(NodeId, FileId), u64>,
    /// End of the last piece of each object \[B\].
    object_ends: HashMap<(ServerId, FileId), u64>,
}

impl Counters {
    /// Counts one transfer and its pieces.
    pub(crate) fn transfer(&mut self, spec: &Spec, transfer: &Transfer, pieces: &[Piece]) {
        let Transfer { time, node, file, offset, length, direction } = *transfer;
        let end = offset + length;
        let mut sequential = false;
        if direction == Direction::Read {
            // The first read of a file is sequential if it begins at 0.
            sequential = self.node_ends.insert((node, file), end).unwrap_or(0) == offset;
        }
        let mut queue_ns = 0;
        let layout = Layout::of(spec, file);
        for piece in pieces {
            queue_ns += piece.queue_ns;
            let (_, object_offset) = layout.locate(piece.offset);
            let last = self.object_ends.insert((piece.server, file), object_offset + piece.bytes);
            let server = self.servers.entry(piece.server).or_default();
            server.requests.count(direction, piece.bytes, last.unwrap_or(0) == object_offset, piece.queue_ns);
            server.seeks += u64::from(piece.seek);
            server.busy_ns += piece.end - piece.start;
        }
        let counted = self.nodes.entry(node).or_default();
        counted.requests.count(direction, length, sequential, queue_ns);
        if direction == Direction::Read {
            *counted.sizes.entry(length).or_default() += 1;
        }
        let counted = self.files.entry(file).or_default();
        counted.requests.count(direction, length, sequential, queue_ns);
        if direction == Direction::Read {
            counted.first_read.get_or_insert(time);
        }
    }

    /// Counts one metadata operation.
    pub(crate) fn metadata(&mut self, node: NodeId) {
        self.nodes.entry(node).or_default().metadata += 1;
    }

    /// Counters of a node.
    pub(crate) fn node(&self, node: NodeId) -> NodeCounters {
        self.nodes.get(&node).cloned().unwrap_or_default()
    }

    /// Counters of a server.
    pub(crate) fn server(&self, server: ServerId) -> ServerCounters {
        self.servers.get(&server).cloned().unwrap_or_default()
    }

    /// Counters of all files that were read or written, by number.
    pub(crate) fn files(&self) -> impl Iterator<Item = (FileId, &FileCounters)> {
        self.files.iter().map(|(&file, counters)| (file, counters))
    }
}

/// Classes per doubling of the value; a quantile is at most 1/8 too high.
const STEPS: u64 = 8;

/// Frequencies of values in classes of equal ratio.
#[derive(Clone, Debug)]
pub(crate) struct Histogram {
    classes: Vec<u64>,
    count: u64,
    max: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        // Each value below `STEPS` has its own class; each doubling above has `STEPS` classes.
        Histogram { classes: vec![0; (STEPS * (64 - 3 + 1)) as usize], count: 0, max: 0 }
    }
}

impl Histogram {
    /// Counts one value.
    pub(crate) fn record(&mut self, value: u64) {
        self.classes[Self::class(value)] += 1;
        self.count += 1;
        self.max = self.max.max(value);
    }

    /// The `fraction` quantile, rounded up to the top of its class; 0 without values.
    pub(crate) fn quantile(&self, fraction: f64) -> u64 {
        let wanted = (fraction * self.count as f64).ceil().max(1.0) as u64;
        let mut seen = 0;
        for (class, &count) in self.classes.iter().enumerate() {
            seen += count;
            if seen >= wanted {
                return Self::top(class).min(self.max);
            }
        }
        self.max
    }

    /// The largest value.
    pub(crate) fn max(&self) -> u64 {
        self.max
    }

    /// The number of values.
    #[cfg(test)]
    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    fn class(value: u64) -> usize {
        if value < STEPS {
            return value as usize;
        }
        let doubling = u64::from(value.ilog2()) - 3;
        ((doubling + 1) * STEPS + ((value >> doubling) - STEPS)) as usize
    }

    fn top(class: usize) -> u64 {
        let class = class as u64;
        if class < STEPS {
            return class;
        }
        let doubling = class / STEPS - 1;
        let step = u128::from(STEPS + class % STEPS + 1) << doubling;
        (step - 1).min(u128::from(u64::MAX)) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_model::Model;

    fn transfer(node: NodeId, offset: u64, length: u64, direction: Direction) -> Transfer {
        Transfer { time: 5, node, file: FileId(0), offset, length, direction }
    }

    #[test]
    fn bytes_sizes_and_sequential_reads_are_counted_for_node_server_and_file() {
        let spec = Spec { stripe_bytes: 4096, stripe_count: 2, ..Spec::free().with_targets(2) };
        let mut model = Model::new(spec.clone(), 0).unwrap();
        let node = model.add_node();
        let mut counters = Counters::default();
        let mut pieces = Vec::new();
        for (offset, length) in [(0, 8192), (8192, 4096), (0, 100)] {
            let one = transfer(node, offset, length, Direction::Read);
            model.transfer(5, node, one.file, offset, length, Direction::Read, &mut pieces);
            counters.transfer(&spec, &one, &pieces);
        }
        let one = transfer(node, 0, 10, Direction::Write);
        model.transfer(5, node, one.file, 0, 10, Direction::Write, &mut pieces);
        counters.transfer(&spec, &one, &pieces);

        let found = counters.node(node);
        assert_eq!(
            (found.requests.reads, found.requests.read_bytes, found.requests.sequential_reads),
            (3, 12388, 2)
        );
        assert_eq!((found.requests.writes, found.requests.written_bytes), (1, 10));
        assert_eq!(found.sizes, BTreeMap::from([(100, 1), (4096, 1), (8192, 1)]));
        // Stripes 0 and 2 are on server 0, adjacent in its object.
        let first = counters.server(ServerId(0));
        assert_eq!(
            (first.requests.reads, first.requests.read_bytes, first.requests.sequential_reads),
            (3, 8292, 2)
        );
        assert_eq!(counters.server(ServerId(1)).requests.reads, 1);
        let (_, file) = counters.files().next().unwrap();
        assert_eq!((file.requests.reads, file.first_read), (3, Some(5)));
    }

    #[test]
    fn a_quantile_is_never_below_the_value_and_at_most_an_eighth_above_it() {
        for value in [0, 1, 7, 8, 9, 1000, 123_456_789, u64::MAX / 3, u64::MAX] {
            let mut histogram = Histogram::default();
            histogram.record(value);
            histogram.record(u64::MAX);
            let found = histogram.quantile(0.5);
            assert!(found >= value, "{found} < {value}");
            assert!(found - value <= value / 8, "{found} is far above {value}");
        }
    }

    #[test]
    fn quantiles_of_a_thousand_values_are_where_they_belong() {
        let mut histogram = Histogram::default();
        assert_eq!(histogram.quantile(0.99), 0);
        (1..=1000).for_each(|value| histogram.record(value));
        assert!((500..=563).contains(&histogram.quantile(0.5)));
        assert!((990..=1000).contains(&histogram.quantile(0.99)));
        assert_eq!((histogram.max(), histogram.count()), (1000, 1000));
    }
}
