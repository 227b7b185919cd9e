//! Tiled columns: samples are found in chunks of any shape, chunks that are decoded are named once,
//! and nothing that a sidecar says about them is believed.

use std::collections::HashSet;
use std::sync::Arc;

use crate::support::lmdb_writer::Random;
use crate::support::table::{DATA, FINGERPRINT, damaged, inside, shard};
use forebay_format::sidecar::{IndexEntry, Part, PartPiece, RecordClass, StoredIn, Tiles, Writer};
use forebay_format::{Codec, Format, Index, Schema};
use forebay_types::{CodecChain, Dtype, Field, Layout, Located, Piece, SampleId};

const ITEM_BYTES: u64 = 4;
const FILL: [u8; 4] = [9, 8, 7, 6];

/// What a shard holds.
fn byte(shard: u32, offset: u64) -> u8 {
    (offset.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8 ^ shard as u8
}

fn class(name: &str) -> RecordClass {
    RecordClass {
        name: name.to_owned(),
        head_bytes: 0,
        tail_bytes: 0,
        align_bytes: 1,
        step_bytes: 1,
        page_bytes: 0,
        page_tail_bytes: 0,
        guard: false,
        stored_in: StoredIn::default(),
    }
}

/// Where a chunk is, and how it is stored.
#[derive(Clone)]
enum Chunk {
    Stored(u64),
    Shuffled(u64),
    Literal(Vec<u8>),
    Missing,
}

/// A made-up array of samples, cut into chunks, in every shard.
struct Array {
    sample: Vec<u64>,
    /// For each shard, its samples, the shape of its chunks, and the chunks.
    shards: Vec<(u64, Vec<u64>, Vec<Chunk>)>,
}

impl Array {
    fn new(random: &mut Random, sample: &[u64], shards: &[(u64, &[u64])]) -> Self {
        let mut start = DATA.start;
        let shards = shards
            .iter()
            .map(|(samples, shape)| {
                let counts =
                    [samples].into_iter().chain(sample).zip(*shape).map(|(all, one)| all.div_ceil(*one));
                let bytes = shape.iter().product::<u64>() * ITEM_BYTES;
                let chunks = (0..counts.product())
                    .map(|_| {
                        start += bytes + if random.below(5) == 0 { random.below(99) } else { 0 };
                        match random.below(8) {
                            0 => Chunk::Missing,
                            1 => Chunk::Literal(random.bytes(bytes as usize)),
                            2..=4 => Chunk::Stored(start),
                            _ => Chunk::Shuffled(start),
                        }
                    })
                    .collect();
                (*samples, shape.to_vec(), chunks)
            })
            .collect();
        Self { sample: sample.to_vec(), shards }
    }

    /// The bytes of a chunk when it is decoded.
    fn chunk(&self, shard: usize, number: usize) -> Vec<u8> {
        let (_, shape, chunks) = &self.shards[shard];
        let bytes = shape.iter().product::<u64>() * ITEM_BYTES;
        let read = |start: u64| (start..start + bytes).map(|at| byte(shard as u32, at)).collect::<Vec<_>>();
        match &chunks[number] {
            Chunk::Stored(start) => read(*start),
            Chunk::Literal(literal) => literal.clone(),
            Chunk::Missing => FILL.iter().copied().cycle().take(bytes as usize).collect(),
            Chunk::Shuffled(start) => {
                let planes = read(*start);
                let items = planes.len() / 4;
                (0..planes.len()).map(|at| planes[at % 4 * items + at / 4]).collect()
            }
        }
    }

    /// The bytes of a sample, element by element.
    fn sample(&self, shard: usize, row: u64) -> Vec<u8> {
        let (_, shape, _) = &self.shards[shard];
        let elements: u64 = self.sample.iter().product();
        let mut found = Vec::new();
        for flat in 0..elements {
            let (mut rest, mut chunk, mut within) = (flat, 0, 0);
            let (mut chunk_stride, mut stride) = (1, 1);
            for (extent, length) in self.sample.iter().zip(&shape[1..]).rev() {
                let position = rest % extent;
                rest /= extent;
                chunk += position / length * chunk_stride;
                chunk_stride *= extent.div_ceil(*length);
                within += position % length * stride;
                stride *= length;
            }
            chunk += row / shape[0] * chunk_stride;
            within += row % shape[0] * stride;
            let bytes = self.chunk(shard, chunk as usize);
            found.extend(&bytes[(within * ITEM_BYTES) as usize..][..ITEM_BYTES as usize]);
        }
        found
    }

    /// A sidecar of this array and of an ordinary column, whose record of sample *i* are the 5
    /// bytes from 9000 + 7 *i* on.
    fn sidecar(&self) -> Vec<u8> {
        let mut writer = Writer::new(vec![vec![class("shuffled"), class("stored")], vec![class("plain")]]);
        let shuffle = writer.chain(&[Codec::Shuffle { item_bytes: ITEM_BYTES as u32 }]);
        let fill = writer.chain(&[Codec::Fill { value: FILL.to_vec() }]);
        assert_eq!((writer.chain(&[]), writer.chain(&[Codec::Fill { value: FILL.to_vec() }])), (0, fill));
        let tiles = Tiles {
            item_bytes: ITEM_BYTES as u32,
            sample: self.sample.clone(),
            chains: vec![shuffle, 0],
            shapes: self.shards.iter().map(|(_, shape, _)| shape.clone()).collect(),
            shards: (0..self.shards.len() as u32).collect(),
        };
        writer.tile(0, tiles);
        for (number, (samples, shape, chunks)) in self.shards.iter().enumerate() {
            let length = shape.iter().product::<u64>() * ITEM_BYTES;
            let exception = |pieces, codecs| {
                IndexEntry::Exception(vec![Part {
                    pieces,
                    codecs,
                    decoded_bytes: length,
                    guard: 0,
                    offset: 0,
                    length,
                }])
            };
            for chunk in chunks {
                let entry = match chunk {
                    Chunk::Stored(start) => IndexEntry::Plain { class: 1, start: *start, length },
                    Chunk::Shuffled(start) => IndexEntry::Plain { class: 0, start: *start, length },
                    Chunk::Literal(bytes) => exception(vec![PartPiece::Literal(bytes.clone())], 0),
                    Chunk::Missing => exception(vec![], fill),
                };
                writer.push_chunk(0, entry);
            }
            for row in 0..*samples {
                writer.push([IndexEntry::Plain { class: 0, start: 9000 + 7 * row, length: 5 }]);
            }
            writer.end_shard(shard(&format!("{number}.h5")));
        }
        let field = |name| Field::new(name, Dtype::Uint8, Layout::Ragged);
        writer.finish(Format::Hdf5, Schema::Fields(vec![field("tiled"), field("plain")]), FINGERPRINT)
    }
}

/// The bytes of all columns of the samples, as a reader would get them.
fn gather(index: &Index, located: &Located) -> Vec<Vec<Vec<u8>>> {
    let decoded: Vec<Vec<u8>> = (0..located.units().len() as u32)
        .map(|number| {
            let unit = located.units()[number as usize];
            let mut encoded = Vec::new();
            for piece in &located.pieces()[located.unit_pieces(number)] {
                match piece {
                    Piece::Extent(extent) => {
                        encoded.extend((extent.offset..extent.end()).map(|at| byte(extent.shard.0, at)));
                    }
                    Piece::Literal { first, length } => {
                        encoded.extend(&located.literals()[*first as usize..][..*length as usize]);
                    }
                }
            }
            let mut into = vec![0; unit.decoded_bytes as usize];
            index.decode_unit(unit.codecs, &encoded, &mut into).expect("sound units");
            into
        })
        .collect();
    let bytes = |position, column| {
        let slices = located.slices(position, column).iter();
        slices
            .flat_map(|slice| &decoded[slice.unit as usize][slice.offset as usize..][..slice.length as usize])
            .copied()
            .collect()
    };
    (0..located.samples()).map(|position| vec![bytes(position, 0), bytes(position, 1)]).collect()
}

fn arrays(random: &mut Random) -> Vec<Array> {
    vec![
        Array::new(random, &[], &[(50, &[7])]),
        Array::new(random, &[5], &[(9, &[4, 5]), (0, &[4, 5]), (3, &[1, 2])]),
        Array::new(random, &[4, 3], &[(10, &[3, 4, 2]), (7, &[3, 3, 4])]),
        Array::new(random, &[2, 3, 4], &[(6, &[4, 1, 3, 4]), (2, &[2, 2, 3, 4])]),
        Array::new(random, &[0, 3], &[(6, &[4, 1, 3])]),
        Array::new(random, &[2], &[(20_000, &[2, 1])]),
    ]
}

#[test]
fn every_sample_is_found_in_its_chunks() {
    let mut random = Random(1);
    for array in arrays(&mut random) {
        let index = Index::from_bytes(Arc::new(array.sidecar()), FINGERPRINT).expect("just written");
        let mut all: Vec<(usize, u64)> = Vec::new();
        for (shard, (samples, ..)) in array.shards.iter().enumerate() {
            all.extend((0..*samples).map(|row| (shard, row)));
        }
        assert_eq!(index.samples(), all.len() as u64);
        let mut ids: Vec<SampleId> = (0..index.samples().min(200)).map(SampleId).collect();
        ids.extend((0..200).map(|_| SampleId(random.below(index.samples()))));
        let mut located = Located::default();
        index.locate(&ids, &mut located).expect("sound blocks");
        for (id, found) in ids.iter().zip(gather(&index, &located)) {
            let (shard, row) = all[id.0 as usize];
            let plain: Vec<u8> = (9000 + 7 * row..).take(5).map(|at| byte(shard as u32, at)).collect();
            assert_eq!(found, [array.sample(shard, row), plain], "sample {}", id.0);
        }
    }
}

#[test]
fn a_chunk_that_is_decoded_is_named_once_however_many_samples_it_holds() {
    let array = Array::new(&mut Random(2), &[6], &[(500, &[10, 4])]);
    let index = Index::from_bytes(Arc::new(array.sidecar()), FINGERPRINT).expect("just written");
    let ids: Vec<SampleId> = (0..500).chain(0..500).map(SampleId).collect();
    let mut located = Located::default();
    index.locate(&ids, &mut located).expect("sound blocks");
    let mut starts = HashSet::new();
    let mut decoded = 0;
    for (number, unit) in located.units().iter().enumerate() {
        if unit.codecs != CodecChain::STORED
            && let [piece @ Piece::Extent(extent)] = &located.pieces()[located.unit_pieces(number as u32)]
        {
            assert!(starts.insert(extent.offset), "{piece:?} again");
            decoded += 1;
        }
    }
    let shuffled = array.shards[0].2.iter().filter(|chunk| matches!(chunk, Chunk::Shuffled(_))).count();
    assert_eq!(decoded, shuffled);
    // Of a stored chunk a sample needs its own row.
    let class = |unit: &&forebay_types::Unit| unit.codecs == CodecChain::STORED && unit.decoded_bytes == 16;
    assert!(located.units().iter().filter(class).count() > 100);
}

#[test]
fn a_damaged_sidecar_of_tiles_is_refused_or_stays_within_its_shards() {
    let mut random = Random(3);
    let arrays = arrays(&mut random);
    let sound: Vec<Vec<u8>> = arrays[..5].iter().map(Array::sidecar).collect();
    let (mut refused, mut located) = (0, Located::default());
    for round in 0..6000 {
        let bytes = damaged(&sound[round % sound.len()], &mut random);
        let Ok(index) = Index::from_bytes(Arc::new(bytes), FINGERPRINT) else {
            refused += 1;
            continue;
        };
        let ids: Vec<SampleId> = (0..index.samples().min(60)).map(SampleId).collect();
        match index.locate(&ids, &mut located) {
            Ok(()) => assert!(inside(&located, index.shards()), "round {round}"),
            Err(_) => refused += 1,
        }
    }
    assert!(refused > 2000, "{refused}");
}
