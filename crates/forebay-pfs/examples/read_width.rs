//! How many blocks of a node should be read at once: the real order, schedule and plan on the cost model, in virtual time.
//!
//! Every node has readers as the engine has them: reader k takes the blocks q with q mod R = k, in order, and begins
//! block q only once all blocks up to q − width are filled. Ranks take samples at once, so storage is the bottleneck.
//!
//!     cargo run --release -p forebay-pfs --example read_width

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use forebay_pfs::{FileId, Kind as Direction, Model, NodeId, Spec};
use forebay_plan::{
    ConcurrencyTuner, IoLimits, Kind, Last, Next, Order, OrderSpec, Plan, Schedule, StagingRing,
    default_group, plan_into,
};
use forebay_types::{CodecChain, Extent, Located, Piece, Rank, ShardId, Slice};

const MIB: u64 = 1 << 20;
const RANKS: u32 = 4;
const BATCH: u64 = 16;
/// What one thread copies out of the page cache [bytes/ns].
const COPY: f64 = 5.0;
/// What one thread decodes [bytes/ns].
const DECODE: f64 = 0.8;

#[derive(Clone, Copy, PartialEq)]
enum How {
    /// Buffered, blocks announced in the order of the plan.
    Announced,
    /// Buffered, one `pread` after the other.
    Plain,
    /// Around the page cache, one `pread` after the other.
    Direct,
    /// Around the page cache, all reads of a block at once (`io_uring`).
    DirectRing,
}

#[derive(Clone, Copy)]
struct Case {
    how: How,
    readers: u64,
    read_bytes: u64,
    coded: bool,
}

#[derive(Clone, Copy)]
enum Width {
    Free,
    Fixed(u64),
    Tuned(u64),
}

struct Block {
    reads: Vec<(u64, u64)>,
    decoded_bytes: u64,
    length: u64,
}

fn blocks(
    kind: Kind,
    nodes: u32,
    node: u32,
    case: Case,
    sample: u64,
    samples: u64,
    bytes: u64,
) -> Vec<Block> {
    let spec = OrderSpec {
        kind,
        last: Last::Wrap,
        seed: 1,
        samples,
        batch: BATCH,
        ranks: u64::from(nodes * RANKS),
        lanes: None,
    };
    let order = Order::new(spec).unwrap();
    let ranks: Vec<Rank> = (node * RANKS..(node + 1) * RANKS).map(Rank).collect();
    let step = BATCH * u64::from(RANKS) * sample;
    let segment = if kind == Kind::Contiguous { 64 * MIB } else { 16 * MIB };
    let mut schedule = Schedule::new(&order, &ranks, 0, (4 * MIB / step).max(1)..=(segment / step).max(1));
    let limits = IoLimits {
        gap_bytes: 512 << 10,
        max_read_bytes: case.read_bytes,
        align_bytes: if matches!(case.how, How::Direct | How::DirectRing) { 4096 } else { 1 },
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

/// The engine's measuring around the tuner (`flight.rs`).
struct Tuning {
    tuner: Option<ConcurrencyTuner>,
    width: u64,
    most: u64,
    blocks: u64,
    bytes: u64,
    until: u64,
    draining: bool,
    begun: (u64, u64),
}

impl Tuning {
    fn landed(&mut self, bytes: u64, now: u64) {
        self.blocks += 1;
        self.bytes += bytes;
        if self.blocks < self.until {
            return;
        }
        let rate = (self.bytes - self.begun.0) as f64 / (now - self.begun.1).max(1) as f64;
        let draining = std::mem::take(&mut self.draining);
        let next = match self.tuner {
            None => ConcurrencyTuner::begin(self.width, self.most),
            Some(tuner) if draining => tuner,
            Some(tuner) => tuner.next(rate, self.most),
        };
        let drain = if next.width == self.width { 0 } else { self.width };
        self.draining = drain > 0;
        self.begun = (self.bytes, now);
        self.width = next.width;
        self.until = self.blocks + if drain > 0 { drain } else { next.blocks() };
        self.tuner = Some(next);
    }
}

struct Node {
    id: NodeId,
    blocks: Vec<Block>,
    filled: Vec<bool>,
    frontier: usize,
    /// (bytes, due) of what was announced, by block.
    pieces: Vec<Vec<(u64, u64)>>,
    announced: usize,
    tuning: Tuning,
    waiting: Vec<(u64, usize)>,
    end: u64,
    widths: u64,
    /// Per reader: (block, next read) under way.
    doing: Vec<Option<(usize, usize)>>,
}

/// Seconds, seeks, mean width.
fn simulate(
    spec: &Spec,
    kind: Kind,
    nodes: u32,
    case: Case,
    fixed: Width,
    sample: u64,
    bytes: u64,
) -> (f64, u64, f64) {
    let mut model = Model::new(spec.clone(), 7).unwrap();
    let samples = 4 * bytes * u64::from(nodes) / sample;
    let (first, most, tuned) = match fixed {
        Width::Free => (case.readers, case.readers, false),
        Width::Fixed(width) => (width, case.readers, false),
        Width::Tuned(first) => (first, case.readers, true),
    };
    let mut all: Vec<Node> = (0..nodes)
        .map(|node| {
            let blocks = blocks(kind, nodes, node, case, sample, samples, bytes);
            Node {
                id: model.add_node(),
                filled: vec![false; blocks.len()],
                pieces: vec![Vec::new(); blocks.len()],
                blocks,
                frontier: 0,
                announced: 0,
                tuning: Tuning {
                    tuner: None,
                    width: first,
                    most,
                    blocks: 0,
                    bytes: 0,
                    until: 0,
                    draining: false,
                    begun: (0, 0),
                },
                waiting: Vec::new(),
                end: 0,
                widths: 0,
                doing: vec![None; case.readers as usize],
            }
        })
        .collect();
    let mut events = BinaryHeap::new();
    let mut seeks = 0;
    let mut number = 0_u64;
    for node in 0..nodes as usize {
        for reader in 0..case.readers as usize {
            events.push(Reverse((0_u64, number, node, reader, reader)));
            number += 1;
        }
    }
    let mut buffer = Vec::new();
    // (time, number, node, reader, block): the reader wants to begin this block, or goes on with it.
    while let Some(Reverse((now, _, place, reader, q))) = events.pop() {
        let node = &mut all[place];
        if q >= node.blocks.len() {
            continue;
        }
        if node.doing[reader].is_none() {
            let width = node.tuning.width;
            if tuned && width < case.readers || matches!(fixed, Width::Fixed(_)) {
                while node.frontier < node.filled.len() && node.filled[node.frontier] {
                    node.frontier += 1;
                }
                if q as u64 >= node.frontier as u64 + width {
                    node.waiting.push((q as u64, reader));
                    continue;
                }
            }
            node.widths += width;
            if case.how == How::Announced {
                let ahead = width.max((8 * MIB / node.blocks[q].length.max(1)).min(16)) as usize;
                while node.announced <= (q + ahead).min(node.blocks.len() - 1) {
                    let at = node.announced;
                    for (offset, length) in &node.blocks[at].reads {
                        model.transfer(
                            now,
                            node.id,
                            FileId(0),
                            *offset,
                            *length,
                            Direction::Read,
                            &mut buffer,
                        );
                        seeks += buffer.iter().filter(|piece| piece.seek).count() as u64;
                        node.pieces[at].extend(buffer.iter().map(|piece| (piece.bytes, piece.due)));
                    }
                    node.announced += 1;
                }
                let mut end = now;
                for (bytes, due) in &node.pieces[q] {
                    end = end.max(*due) + (*bytes as f64 / COPY) as u64;
                }
                end += (node.blocks[q].decoded_bytes as f64 / DECODE) as u64;
                node.doing[reader] = Some((q, usize::MAX));
                events.push(Reverse((end, number, place, reader, q)));
                number += 1;
                continue;
            }
            if case.how == How::DirectRing {
                let mut end = now;
                for (offset, length) in &node.blocks[q].reads {
                    end = end.max(model.transfer(
                        now,
                        node.id,
                        FileId(0),
                        *offset,
                        *length,
                        Direction::Read,
                        &mut buffer,
                    ));
                    seeks += buffer.iter().filter(|piece| piece.seek).count() as u64;
                }
                end += (node.blocks[q].decoded_bytes as f64 / DECODE) as u64;
                node.doing[reader] = Some((q, usize::MAX));
                events.push(Reverse((end, number, place, reader, q)));
                number += 1;
                continue;
            }
            node.doing[reader] = Some((q, 0));
        }
        let (_, next) = node.doing[reader].unwrap();
        if next < node.blocks[q].reads.len() {
            let (offset, length) = node.blocks[q].reads[next];
            let mut due =
                model.transfer(now, node.id, FileId(0), offset, length, Direction::Read, &mut buffer);
            seeks += buffer.iter().filter(|piece| piece.seek).count() as u64;
            if case.how == How::Plain {
                due += (length as f64 / COPY) as u64;
            }
            if next + 1 == node.blocks[q].reads.len() {
                due += (node.blocks[q].decoded_bytes as f64 / DECODE) as u64;
            }
            node.doing[reader] = Some((q, next + 1));
            events.push(Reverse((due, number, place, reader, q)));
            number += 1;
            continue;
        }
        node.doing[reader] = None;
        node.filled[q] = true;
        node.end = node.end.max(now);
        let read = node.blocks[q].reads.iter().map(|read| read.1).sum();
        if tuned {
            node.tuning.landed(read, now);
        }
        for (q, reader) in std::mem::take(&mut node.waiting) {
            events.push(Reverse((now, number, place, reader, q as usize)));
            number += 1;
        }
        events.push(Reverse((now, number, place, reader, q + case.readers as usize)));
        number += 1;
    }
    let end = all.iter().map(|node| node.end).max().unwrap();
    let blocks: usize = all.iter().map(|node| node.blocks.len()).sum();
    let widths: u64 = all.iter().map(|node| node.widths).sum();
    (end as f64 / 1e9, seeks, widths as f64 / blocks as f64)
}

/// A median and the ends of what it stands for.
fn spread(mut ratios: Vec<f64>) -> String {
    ratios.sort_by(f64::total_cmp);
    let median = ratios[ratios.len() / 2];
    format!("{median:.2} ({:.2}–{:.2})", ratios[0], ratios[ratios.len() - 1])
}

fn main() {
    let announced = Case { how: How::Announced, readers: 2, read_bytes: 8 * MIB, coded: false };
    let coded = Case { how: How::Plain, readers: 8, read_bytes: MIB, coded: true };
    let cases = [
        ("buffered, announced; 2 readers", announced),
        ("O_DIRECT, io_uring; 2 readers", Case { how: How::DirectRing, ..announced }),
        ("O_DIRECT, pread; 2 readers", Case { how: How::Direct, ..announced }),
        ("coded, buffered; 8 readers", coded),
    ];
    let details = std::env::args().any(|one| one == "--details");
    println!("| reads | storage | one at a time | in the order of the plan | tuned |");
    println!("|---|---|---|---|---|");
    for (name, case) in cases {
        for disks in [false, true] {
            let mut ratios = [Vec::new(), Vec::new(), Vec::new()];
            for preset in Spec::preset_names() {
                let spec = Spec::preset(preset).unwrap();
                if spec.is_free() || *preset == "local-nvme" || (spec.seek_us > 0.0) != disks {
                    continue;
                }
                for nodes in [1, 4] {
                    let sample = if case.coded { 256 << 10 } else { 196 << 10 };
                    let bytes = 1 << 30;
                    let samples = 4 * bytes * u64::from(nodes) / sample;
                    let (group, window) = default_group(samples, sample as f64, 1);
                    let group = Kind::Group { samples: group, window };
                    for kind in [Kind::Sequential, Kind::Contiguous, group] {
                        let time = |width| simulate(&spec, kind, nodes, case, width, sample, bytes);
                        let (free, free_seeks, _) = time(Width::Free);
                        let first = if case.readers == 2 { 1 } else { case.readers };
                        let others = [Width::Fixed(1), Width::Fixed(case.readers), Width::Tuned(first)];
                        for (ratios, width) in ratios.iter_mut().zip(others) {
                            let (seconds, seeks, mean) = time(width);
                            ratios.push(seconds / free);
                            if details {
                                println!(
                                    "{preset} {nodes} {}: {free:.3} s {free_seeks} seeks, {seconds:.3} s {seeks} seeks at {mean:.1}",
                                    kind.name()
                                );
                            }
                        }
                    }
                }
            }
            let columns: Vec<String> = ratios.into_iter().map(spread).collect();
            println!("| {name} | {} | {} |", if disks { "disks" } else { "flash" }, columns.join(" | "));
        }
    }
}
