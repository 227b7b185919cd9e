//! What has been done: operations and bytes for each node, server and file, and how late replies were.
//!
//! Pure bookkeeping; whoever books a transfer with the model tells it here in the same breath, so that both see the same order. Times are
//! model nanoseconds, except those of [`Histogram`], which holds whatever its owner puts in.
use std::collections::{BTreeMap, HashMap};

use crate::layout::Layout;
use crate::model::{FileId, Kind, ModelTime, NodeId, Piece, ServerId};
use crate::spec::Spec;

/// Operations and bytes of one node, server or file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Requests to read, or pieces of them on a server.
    pub reads: u64,
    /// Bytes that they asked for.
    pub read_bytes: u64,
    /// Requests to write, or pieces of them on a server.
    pub writes: u64,
    /// Bytes that they carried.
    pub written_bytes: u64,
    /// Reads that begin where the last read ended: of that file by that node, or of that object on that server.
    pub sequential_reads: u64,
    /// How long its pieces waited for their turn, all together \[ns\].
    pub queue_ns: u64,
}

impl Tally {
    fn count(&mut self, kind: Kind, bytes: u64, sequential: bool, queue_ns: u64) {
        match kind {
            Kind::Read => {
                self.reads += 1;
                self.read_bytes += bytes;
                self.sequential_reads += u64::from(sequential);
            }
            Kind::Write => {
                self.writes += 1;
                self.written_bytes += bytes;
            }
        }
        self.queue_ns += queue_ns;
    }
}

/// What one node asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeCounters {
    /// Its requests.
    pub tally: Tally,
    /// Its operations on the metadata server.
    pub metadata: u64,
    /// How many reads had which size \[B\].
    pub sizes: BTreeMap<u64, u64>,
}

/// What one server did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerCounters {
    /// Its pieces.
    pub tally: Tally,
    /// Pieces that made it seek.
    pub seeks: u64,
    /// How long it worked \[ns\].
    pub busy_ns: u64,
}

/// What was asked of one file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FileCounters {
    /// Its requests.
    pub tally: Tally,
    /// When it was first read.
    pub first: Option<ModelTime>,
}

/// One request, as the file system got it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// When it came.
    pub time: ModelTime,
    /// Who asked.
    pub node: NodeId,
    /// Of which file.
    pub file: FileId,
    /// Where it begins \[B\].
    pub offset: u64,
    /// How long it is \[B\].
    pub length: u64,
    /// In which direction.
    pub kind: Kind,
}

/// All counters of one file system.
#[derive(Clone, Debug, Default)]
pub struct Counters {
    nodes: BTreeMap<NodeId, NodeCounters>,
    servers: BTreeMap<ServerId, ServerCounters>,
    files: BTreeMap<FileId, FileCounters>,
    /// Where the last read of each file by each node ended.
    node_ends: HashMap<(NodeId, FileId), u64>,
    /// Where the last piece of each object ended.
    object_ends: HashMap<(ServerId, FileId), u64>,
}

impl Counters {
    /// Counts one transfer and its pieces.
    pub fn transfer(&mut self, spec: &Spec, transfer: &Transfer, pieces: &[Piece]) {
        let Transfer { time, node, file, offset, length, kind } = *transfer;
        let end = offset + length;
        let mut sequential = false;
        if kind == Kind::Read {
            // The first read of a file is sequential where it begins at the beginning.
            sequential = self.node_ends.insert((node, file), end).unwrap_or(0) == offset;
        }
        let mut queue_ns = 0;
        let layout = Layout::of(spec, file);
        for piece in pieces {
            queue_ns += piece.queue_ns;
            let (_, object_offset) = layout.locate(piece.offset);
            let last = self.object_ends.insert((piece.server, file), object_offset + piece.bytes);
            let server = self.servers.entry(piece.server).or_default();
            server.tally.count(kind, piece.bytes, last.unwrap_or(0) == object_offset, piece.queue_ns);
            server.seeks += u64::from(piece.seek);
            server.busy_ns += piece.end - piece.start;
        }
        let counted = self.nodes.entry(node).or_default();
        counted.tally.count(kind, length, sequential, queue_ns);
        if kind == Kind::Read {
            *counted.sizes.entry(length).or_default() += 1;
        }
        let counted = self.files.entry(file).or_default();
        counted.tally.count(kind, length, sequential, queue_ns);
        if kind == Kind::Read {
            counted.first.get_or_insert(time);
        }
    }

    /// Counts one operation of the metadata server.
    pub fn metadata(&mut self, node: NodeId) {
        self.nodes.entry(node).or_default().metadata += 1;
    }

    /// What this node asked for.
    pub fn node(&self, node: NodeId) -> NodeCounters {
        self.nodes.get(&node).cloned().unwrap_or_default()
    }

    /// What this server did.
    pub fn server(&self, server: ServerId) -> ServerCounters {
        self.servers.get(&server).cloned().unwrap_or_default()
    }

    /// All files that were read or written, in the order of their numbers.
    pub fn files(&self) -> impl Iterator<Item = (FileId, &FileCounters)> {
        self.files.iter().map(|(&file, counters)| (file, counters))
    }
}

/// Steps of a histogram for each doubling; a quantile is at most 1/8 too high.
const STEPS: u64 = 8;

/// How often which value came up, in classes of equal ratio.
#[derive(Clone, Debug)]
pub struct Histogram {
    classes: Vec<u64>,
    count: u64,
    most: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        // Values below `STEPS` have a class each; every doubling above has `STEPS`.
        Histogram { classes: vec![0; (STEPS * (64 - 3 + 1)) as usize], count: 0, most: 0 }
    }
}

impl Histogram {
    /// Counts one value.
    pub fn record(&mut self, value: u64) {
        self.classes[Self::class(value)] += 1;
        self.count += 1;
        self.most = self.most.max(value);
    }

    /// The value that the fraction `part` of all values do not exceed, or the top of its class; 0 when there are none.
    pub fn quantile(&self, part: f64) -> u64 {
        let wanted = (part * self.count as f64).ceil().max(1.0) as u64;
        let mut seen = 0;
        for (class, &count) in self.classes.iter().enumerate() {
            seen += count;
            if seen >= wanted {
                return Self::top(class).min(self.most);
            }
        }
        self.most
    }

    /// The highest value.
    pub fn max(&self) -> u64 {
        self.most
    }

    /// How many values were counted.
    pub fn count(&self) -> u64 {
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
    use crate::model::Model;

    fn transfer(node: NodeId, offset: u64, length: u64, kind: Kind) -> Transfer {
        Transfer { time: 5, node, file: FileId(0), offset, length, kind }
    }

    #[test]
    fn bytes_sizes_and_sequential_reads_are_counted_for_node_server_and_file() {
        let spec = Spec { stripe_bytes: 4096, stripe_count: 2, ..Spec::free().with_targets(2) };
        let mut model = Model::new(spec.clone(), 0).unwrap();
        let node = model.add_node();
        let mut counters = Counters::default();
        let mut pieces = Vec::new();
        for (offset, length) in [(0, 8192), (8192, 4096), (0, 100)] {
            let one = transfer(node, offset, length, Kind::Read);
            model.transfer(5, node, one.file, offset, length, Kind::Read, &mut pieces);
            counters.transfer(&spec, &one, &pieces);
        }
        let one = transfer(node, 0, 10, Kind::Write);
        model.transfer(5, node, one.file, 0, 10, Kind::Write, &mut pieces);
        counters.transfer(&spec, &one, &pieces);

        let found = counters.node(node);
        assert_eq!((found.tally.reads, found.tally.read_bytes, found.tally.sequential_reads), (3, 12388, 2));
        assert_eq!((found.tally.writes, found.tally.written_bytes), (1, 10));
        assert_eq!(found.sizes, BTreeMap::from([(100, 1), (4096, 1), (8192, 1)]));
        // Stripes 0 and 2 are on server 0, behind each other in its object.
        let first = counters.server(ServerId(0));
        assert_eq!((first.tally.reads, first.tally.read_bytes, first.tally.sequential_reads), (3, 8292, 2));
        assert_eq!(counters.server(ServerId(1)).tally.reads, 1);
        let (_, file) = counters.files().next().unwrap();
        assert_eq!((file.tally.reads, file.first), (3, Some(5)));
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
