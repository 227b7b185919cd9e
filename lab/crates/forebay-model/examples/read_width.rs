//! How many blocks a node should read at once: the real order, schedule and plan on the cost model,
//! in virtual time.
//!
//! Each node has readers as in the engine: reader k reads the blocks q with q mod R = k, in order,
//! and does not wait for the others. Ranks consume samples at once, so storage is the bottleneck.
//!
//!     cargo run --release -p forebay-model --example read_width

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use forebay_model::{Direction, FileId, Model, NodeId, Spec};
use forebay_plan::{
    IoLimits, LastBatch, Next, Order, OrderKind, OrderSpec, Plan, Schedule, StagingRing, default_group,
    plan_into,
};
use forebay_types::{CodecChain, Extent, Located, Piece, Rank, ShardId, Slice};

const MIB: u64 = 1 << 20;
const RANKS: u32 = 4;
const BATCH: u64 = 16;
/// Rate at which one thread copies from the page cache [bytes/ns].
const COPY: f64 = 5.0;
/// Rate at which one thread decodes [bytes/ns].
const DECODE: f64 = 0.8;

#[derive(Clone, Copy, PartialEq)]
enum How {
    /// Buffered, blocks announced in the order of the plan.
    Announced,
    /// Buffered, one `pread` at a time.
    Plain,
    /// `O_DIRECT`, one `pread` at a time.
    Direct,
    /// `O_DIRECT`, all reads of a block at once (`io_uring`).
    DirectRing,
    /// `O_DIRECT`, one block per reader at once, requested in the order
    /// of the plan.
    DirectInOrder,
}

#[derive(Clone, Copy)]
struct Case {
    how: How,
    readers: u64,
    read_bytes: u64,
    coded: bool,
}

struct Block {
    reads: Vec<(u64, u64)>,
    decoded_bytes: u64,
    length: u64,
}

fn blocks(
    kind: OrderKind,
    nodes: u32,
    node: u32,
    case: Case,
    sample: u64,
    samples: u64,
    bytes: u64,
) -> Vec<Block> {
    let spec = OrderSpec {
        kind,
        last_batch: LastBatch::Fill,
        seed: 1,
        samples,
        batch: BATCH,
        ranks: u64::from(nodes * RANKS),
        lanes: None,
    };
    let order = Order::new(spec).unwrap();
    let ranks: Vec<Rank> = (node * RANKS..(node + 1) * RANKS).map(Rank).collect();
    let step = BATCH * u64::from(RANKS) * sample;
    let segment = if kind == OrderKind::Contiguous { 64 * MIB } else { 16 * MIB };
    let mut schedule = Schedule::new(&order, &ranks, 0, (4 * MIB / step).max(1)..=(segment / step).max(1));
    let limits = IoLimits {
        gap_bytes: 512 << 10,
        max_read_bytes: case.read_bytes,
        align_bytes: if matches!(case.how, How::Direct | How::DirectRing | How::DirectInOrder) {
            4096
        } else {
            1
        },
        boundary_bytes: Some(case.read_bytes),
        in_place_bytes: None,
        block_bytes: case.read_bytes,
        reads_per_block: 64,
    };
    let mut ring = StagingRing::new(1 << 40, 1 << 30);
    let (mut plan, mut located) = (Plan::default(), Located::default());
    let (mut blocks, mut read) = (Vec::new(), 0);
    while read < bytes {
        let Next::Segment(segment) = schedule.next(|_| None) else { unreachable!() };
        located.clear(1);
        for demand in &segment.demands {
            let extent = Extent { shard: ShardId(0), offset: demand.sample.0 * sample, length: sample };
            let unit = if case.coded {
                located.push_unit(&[Piece::Extent(extent)], CodecChain(1), 2 * sample, 0)
            } else {
                located.push_stored_unit(extent, 0)
            };
            located.push_slice(Slice { unit, offset: 0, length: sample });
            located.end_column();
        }
        plan_into(&segment, &located, &[samples * sample], &limits, &mut ring, &mut plan);
        for block in &plan.blocks {
            let first = block.first_read as usize;
            let reads: Vec<_> = plan.reads[first..first + block.reads as usize]
                .iter()
                .map(|read| (read.file_offset, read.length))
                .collect();
            read += reads.iter().map(|read| read.1).sum::<u64>();
            blocks.push(Block {
                reads,
                decoded_bytes: if case.coded { block.length } else { 0 },
                length: block.length,
            });
        }
    }
    blocks
}

struct Node {
    id: NodeId,
    blocks: Vec<Block>,
    /// (bytes, due) of what was announced, by block.
    pieces: Vec<Vec<(u64, u64)>>,
    announced: usize,
    end: u64,
    /// Reads of the block at hand that are done, by reader.
    doing: Vec<usize>,
}

/// The model's seconds until all nodes have read `bytes` bytes each.
fn simulate(spec: &Spec, kind: OrderKind, nodes: u32, case: Case, sample: u64, bytes: u64) -> f64 {
    let mut model = Model::new(spec.clone(), 7).unwrap();
    let samples = 4 * bytes * u64::from(nodes) / sample;
    let readers = case.readers as usize;
    let mut all: Vec<Node> = (0..nodes)
        .map(|node| {
            let blocks = blocks(kind, nodes, node, case, sample, samples, bytes);
            Node {
                id: model.add_node(),
                pieces: vec![Vec::new(); blocks.len()],
                blocks,
                announced: 0,
                doing: vec![0; readers],
                end: 0,
            }
        })
        .collect(); // (time, sequence number, node, reader, block): the reader begins or continues the block.
    let mut events = BinaryHeap::new();
    let mut number = 0_u64;
    for node in 0..nodes as usize {
        for reader in 0..readers {
            events.push(Reverse((0_u64, number, node, reader, reader)));
            number += 1;
        }
    }
    let mut buffer = Vec::new();
    while let Some(Reverse((now, _, place, reader, block))) = events.pop() {
        let node = &mut all[place];
        if block >= node.blocks.len() {
            continue;
        }
        let reads = node.blocks[block].reads.len();
        let done = node.doing[reader];
        let (due, next) = if done == reads {
            node.doing[reader] = 0;
            node.end = node.end.max(now);
            (now, block + readers)
        } else if case.how == How::Plain || case.how == How::Direct {
            let (offset, length) = node.blocks[block].reads[done];
            let due = model.transfer(now, node.id, FileId(0), offset, length, Direction::Read, &mut buffer);
            node.doing[reader] += 1;
            (due + if case.how == How::Plain { (length as f64 / COPY) as u64 } else { 0 }, block)
        } else {
            node.doing[reader] = reads;
            (node.read_at_once(&mut model, case, now, block), block)
        };
        let decodes = next == block && node.doing[reader] == reads;
        let decoding = if decodes { node.blocks[block].decoded_bytes as f64 / DECODE } else { 0.0 };
        events.push(Reverse((due + decoding as u64, number, place, reader, next)));
        number += 1;
    }
    all.iter().map(|node| node.end).max().unwrap() as f64 / 1e9
}

impl Node {
    /// Requests all reads of a block and, if announced, of later blocks; returns when the block is
    /// there.
    fn read_at_once(&mut self, model: &mut Model, case: Case, now: u64, block: usize) -> u64 {
        let announced = case.how == How::Announced;
        let ahead = case.readers.max((8 * MIB / self.blocks[block].length.max(1)).min(16)) as usize;
        let (first, last) = match case.how {
            How::Announced => (self.announced, block + ahead),
            How::DirectInOrder => (self.announced, block + case.readers as usize - 1),
            _ => (block, block),
        };
        let mut buffer = Vec::new();
        for at in first..=last.min(self.blocks.len() - 1) {
            for (offset, length) in &self.blocks[at].reads {
                model.transfer(now, self.id, FileId(0), *offset, *length, Direction::Read, &mut buffer);
                self.pieces[at].extend(buffer.iter().map(|piece| (piece.bytes, piece.due)));
            }
            self.announced = at + 1;
        }
        let copy = |bytes: u64| if announced { (bytes as f64 / COPY) as u64 } else { 0 };
        self.pieces[block].iter().fold(now, |end, (bytes, due)| end.max(*due) + copy(*bytes))
    }
}

/// A median and the ends of what it stands for.
fn spread(mut ratios: Vec<f64>) -> String {
    ratios.sort_by(f64::total_cmp);
    let median = ratios[ratios.len() / 2];
    format!("{median:.2} ({:.2}–{:.2})", ratios[0], ratios[ratios.len() - 1])
}

/// The model's seconds over all presets with seeks (disks) or without, numbers of nodes and orders.
fn times(disks: bool, case: Case) -> Vec<f64> {
    let (mut times, bytes) = (Vec::new(), 1 << 30);
    let sample = if case.coded { 256 << 10 } else { 196 << 10 };
    for preset in Spec::preset_names() {
        let spec = Spec::preset(preset).unwrap();
        if spec.is_free() || *preset == "local-nvme" || (spec.seek_us > 0.0) != disks {
            continue;
        }
        for nodes in [1, 4] {
            let samples = 4 * bytes * u64::from(nodes) / sample;
            let (group, window) = default_group(samples, sample as f64, 1);
            for kind in
                [OrderKind::Sequential, OrderKind::Contiguous, OrderKind::Group { samples: group, window }]
            {
                times.push(simulate(&spec, kind, nodes, case, sample, bytes));
            }
        }
    }
    times
}

/// Prints each case's times over those of the default.
fn compare(title: &str, default: Case, cases: &[(&str, Case)]) {
    println!("\n| {title} | Flash | Disks |\n|---|---|---|");
    let defaults = [times(false, default), times(true, default)];
    for (name, case) in cases {
        let ratios = [false, true].map(|disks| {
            let times = times(disks, *case);
            spread(
                times
                    .iter()
                    .zip(&defaults[usize::from(disks)])
                    .map(|(time, default)| time / default)
                    .collect(),
            )
        });
        println!("| {name} | {} | {} |", ratios[0], ratios[1]);
    }
}

fn main() {
    let announced = Case { how: How::Announced, readers: 4, read_bytes: 8 * MIB, coded: false };
    let in_order = Case { how: How::DirectInOrder, ..announced };
    let ring = Case { how: How::DirectRing, readers: 2, ..announced };
    let pread = Case { how: How::Direct, ..ring };
    compare(
        "Default: announced, 4 readers",
        announced,
        &[
            ("announced, 2 readers", Case { readers: 2, ..announced }),
            ("announced, 8 readers", Case { readers: 8, ..announced }),
            ("`O_DIRECT` by `io_uring`, 1 reader", Case { readers: 1, ..ring }),
            ("`O_DIRECT` by `io_uring`, 2 readers", ring),
            ("`O_DIRECT` by `io_uring`, 4 readers", Case { readers: 4, ..ring }),
            ("`O_DIRECT` by `pread`, 1 reader", Case { readers: 1, ..pread }),
            ("`O_DIRECT` by `pread`, 2 readers", pread),
            ("`O_DIRECT` by `pread`, 4 readers", Case { readers: 4, ..pread }),
            ("`O_DIRECT` in the order of the plan, 2 readers", Case { readers: 2, ..in_order }),
            ("`O_DIRECT` in the order of the plan, 4 readers", in_order),
        ],
    );
    let coded = Case { how: How::Announced, readers: 8, read_bytes: MIB, coded: true };
    let plain = Case { how: How::Plain, ..coded };
    compare(
        "Coded; default: announced, 8 readers, blocks of 1 MiB",
        coded,
        &[
            ("announced, 16 readers", Case { readers: 16, ..coded }),
            ("announced, 8 readers, blocks of 8 MiB", Case { read_bytes: 8 * MIB, ..coded }),
            ("not announced, 8 readers", plain),
            ("not announced, 16 readers", Case { readers: 16, ..plain }),
            ("`O_DIRECT` by `pread`, 8 readers", Case { how: How::Direct, ..coded }),
        ],
    );
}
