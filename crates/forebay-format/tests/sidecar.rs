//! The file format of indexes: what is written is read again, what is on disk stays readable, and
//! nothing that is read is believed.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{env, fs};

use crate::support::lmdb_writer::Random;
use crate::support::table::{DATA, FINGERPRINT, classes, damaged, inside, shard, sidecar};
use forebay_format::sidecar::{IndexEntry, Part, PartPiece, Writer};
use forebay_format::{Format, Index, Schema, SidecarError};
use forebay_types::{CodecChain, Dtype, Extent, Field, Layout, Located, Piece, SampleId, ShardId};
use proptest::collection::vec;
use proptest::prelude::*;

fn open(bytes: Vec<u8>) -> Index {
    Index::from_bytes(Arc::new(bytes), FINGERPRINT).expect("a sidecar just written")
}

/// What the index says of every sample, as entries again.
fn entries(index: &Index) -> Vec<IndexEntry> {
    let ids: Vec<SampleId> = (0..index.samples()).map(SampleId).collect();
    let mut located = Located::default();
    index.locate(&ids, &mut located).expect("sound blocks");
    (0..ids.len())
        .map(|position| {
            let slices = located.slices(position, 0);
            if let [slice] = slices
                && let unit = located.units()[slice.unit as usize]
                && let [Piece::Extent(extent)] = located.pieces()[located.unit_pieces(slice.unit)]
                && let class = u8::from(unit.guard != 0)
                && slice.offset == 16 * u64::from(class)
                && extent.length == slice.offset + slice.length
            {
                return IndexEntry::Plain { class, start: extent.offset, length: slice.length };
            }
            let part = |slice: &forebay_types::Slice| {
                let unit = located.units()[slice.unit as usize];
                let stretch = |piece: &Piece| match *piece {
                    Piece::Extent(extent) => {
                        PartPiece::Extent { offset: extent.offset, length: extent.length }
                    }
                    Piece::Literal { first, length } => PartPiece::Literal(
                        located.literals()[first as usize..(first + length) as usize].to_vec(),
                    ),
                };
                Part {
                    pieces: located.pieces()[located.unit_pieces(slice.unit)].iter().map(stretch).collect(),
                    codecs: unit.codecs.0,
                    decoded_bytes: unit.decoded_bytes,
                    guard: unit.guard,
                    offset: slice.offset,
                    length: slice.length,
                }
            };
            IndexEntry::Exception(slices.iter().map(part).collect())
        })
        .collect()
}

/// Entries of every kind: tiled up and down, on pages of their own, anywhere, exceptional.
fn any_entries() -> impl Strategy<Value = Vec<IndexEntry>> {
    let place = |class: u8, start: u64, length: u64| IndexEntry::Plain { class, start, length };
    let anywhere = (DATA.start..DATA.end - 70_000, 0_u64..70_000)
        .prop_map(move |(start, length)| place(0, start, length));
    let big = (2_u64..1 << 20, 0_u64..70_000).prop_map(move |(page, length)| place(1, page * 4096, length));
    let stretch = prop_oneof![
        (DATA.start..DATA.end - 100, 0_u64..100)
            .prop_map(|(offset, length)| PartPiece::Extent { offset, length }),
        vec(any::<u8>(), 0..9).prop_map(PartPiece::Literal),
    ];
    let part = (vec(stretch, 0..4), any::<u64>(), 0_u64..1 << 20).prop_map(|(pieces, guard, cut)| {
        let bytes = pieces
            .iter()
            .map(|piece| match piece {
                PartPiece::Extent { length, .. } => *length,
                PartPiece::Literal(bytes) => bytes.len() as u64,
            })
            .sum();
        let offset = if bytes == 0 { 0 } else { cut % bytes };
        Part { pieces, codecs: 0, decoded_bytes: bytes, guard: guard | 1, offset, length: bytes - offset }
    });
    // Two parts: one part of one extent is a plain entry, and comes back as such.
    let exception =
        (part.clone(), part).prop_map(|(first, second)| IndexEntry::Exception(vec![first, second]));
    let tiled = (1_usize..300, 0_u64..3000, 0_u64..40, any::<bool>(), 0_u64..1000).prop_map(
        move |(count, length, overhead, down, page)| {
            let step = (overhead + length).next_multiple_of(2);
            let first = DATA.start + page * 4096;
            (0..count as u64)
                .map(|index| place(0, first + step * if down { count as u64 - index } else { index }, length))
                .collect::<Vec<_>>()
        },
    );
    let pages = (1_usize..300, 2_u64..1 << 19, 1_u64..9000).prop_map(move |(count, page, length)| {
        let step = (length + 15) / 4096 + 1;
        (0..count as u64).map(|index| place(1, (page + index * step) * 4096, length)).collect()
    });
    let some = prop_oneof![
        2 => tiled,
        2 => pages,
        1 => vec(prop_oneof![8 => anywhere, 8 => big, 1 => exception], 1..60),
    ];
    vec(some, 1..40).prop_map(|groups| groups.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if env::var_os("FOREBAY_LONG_TESTS").is_some() { 5000 } else { 200 }))]

    #[test]
    fn every_entry_comes_back(entries_in in any_entries()) {
        let index = open(sidecar(&entries_in));
        prop_assert_eq!(entries(&index), entries_in);
    }
}

#[test]
fn columns_of_one_sample_are_kept_apart() {
    let mut writer = Writer::new(vec![classes(), classes()]);
    for sample in 0..5000_u64 {
        let image = IndexEntry::Plain { class: 1, start: (2 + 2 * sample) * 4096, length: 5000 };
        let label = IndexEntry::Plain { class: 0, start: DATA.end - 8 * (sample + 1), length: 8 };
        writer.push([image, label]);
    }
    writer.end_shard(shard("a"));
    let fields = ["image", "label"].map(|name| Field::new(name, Dtype::Uint8, Layout::Ragged)).to_vec();
    let index = open(writer.finish(Format::Raw, Schema::Fields(fields), FINGERPRINT));
    let mut located = Located::default();
    index.locate(&[SampleId(4999), SampleId(0)], &mut located).expect("sound blocks");
    assert_eq!((located.samples(), located.columns()), (2, 2));
    let image = located.slices(0, 0)[0];
    assert_eq!((image.offset, image.length), (16, 5000));
    let unit = located.units()[image.unit as usize];
    assert_eq!((unit.guard, unit.codecs, unit.decoded_bytes), (10_000, CodecChain::STORED, 5016));
    let label = located.slices(1, 1)[0];
    let extent = Extent { shard: ShardId(0), offset: DATA.end - 8, length: 8 };
    assert_eq!(located.pieces()[located.unit_pieces(label.unit)], [Piece::Extent(extent)]);
}

/// The tables of the golden files.
fn golden_tables() -> Vec<(&'static str, Vec<IndexEntry>)> {
    let mut random = Random(42);
    let plain = |class, start, length| IndexEntry::Plain { class, start, length };
    let uniform = (0..10_000).map(|index| plain(1, (2 + index + index / 155) * 4096, 3073)).collect();
    let mut page = 2;
    let varied = (0..6000)
        .map(|_| {
            let length = 2000 + random.below(100_000);
            page += (length + 15) / 4096 + 1;
            plain(1, (page - (length + 15) / 4096 - 1) * 4096, length)
        })
        .collect();
    let mut upper = 3 * 4096;
    let inline = (0..9000)
        .map(|_| {
            let length = 150 + random.below(100);
            let node = (16 + length).next_multiple_of(2);
            if upper % 4096 < node + 60 {
                upper = (upper / 4096 + 2) * 4096;
            }
            upper -= node;
            plain(0, upper + 16, length)
        })
        .collect();
    let scattered =
        (0..300).map(|_| plain(0, DATA.start + random.below(1 << 30), random.below(3000))).collect();
    let extent = |offset, length| PartPiece::Extent { offset, length };
    let part = |pieces, decoded_bytes, offset, length| Part {
        pieces,
        codecs: 0,
        decoded_bytes,
        guard: 9,
        offset,
        length,
    };
    let exceptional = (0..50)
        .map(|index: u64| match index % 10 {
            3 => IndexEntry::Exception(vec![part(
                vec![extent(9000 + index, 40), PartPiece::Literal(vec![1, 2, 3, 4]), extent(20_000, 60)],
                104,
                4,
                100,
            )]),
            7 => IndexEntry::Exception(vec![
                part(vec![extent(50_000, 10)], 10, 0, 10),
                part(vec![extent(60_000, 500)], 500, 100, index),
            ]),
            _ => plain(0, 10_000 + 200 * index, 184),
        })
        .collect();
    vec![
        ("uniform", uniform),
        ("varied", varied),
        ("inline", inline),
        ("scattered", scattered),
        ("exceptional", exceptional),
    ]
}

/// Sidecars on disk must stay readable: users keep them for years.
///
/// A golden file that no longer reads means that the format changed: give it a new version
/// (`sidecar::VERSION`), say so in docs/formats/sidecar.md and CHANGELOG.md, and write new files
/// beside the old ones with
/// `FOREBAY_WRITE_GOLDEN=1 cargo test -p forebay-format --test sidecar golden`.
#[test]
fn golden_sidecars_still_read_as_the_tables_they_were_made_from() {
    for (name, table) in golden_tables() {
        let path = golden(name);
        if env::var_os("FOREBAY_WRITE_GOLDEN").is_some() {
            fs::write(&path, sidecar(&table)).expect("written");
        }
        let bytes = fs::read(&path).expect("a golden file; see this test's comment");
        assert_eq!(entries(&open(bytes.clone())), table, "{name}: see this test's comment");
        // The parts that no compressor touches are pinned to the byte; blocks may shrink when zstd
        // gets better.
        let now = sidecar(&table);
        assert_eq!(now[..40], bytes[..40], "{name}: the header changed; see this test's comment");
        let uncompressed = |bytes: &[u8]| {
            let number = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
            let meta = zstd::bulk::decompress(&bytes[80..80 + number(56) as usize], number(60) as usize);
            (number(48), number(52), String::from_utf8(meta.expect("a zstd frame")).expect("JSON"))
        };
        assert_eq!(
            uncompressed(&now),
            uncompressed(&bytes),
            "{name}: the description changed; see this test's comment"
        );
    }
}

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(format!("{name}.sidecar"))
}

#[test]
fn what_is_wrong_with_a_sidecar_is_said() {
    let sound = sidecar(&golden_tables()[0].1);
    let fault = |bytes: Vec<u8>, fingerprint: u128| {
        let error = Index::from_bytes(Arc::new(bytes), fingerprint).expect_err("a bad sidecar");
        assert!(error.hint().is_some());
        error.to_string()
    };
    let changed = |at: usize, value: u8| {
        let mut bytes = sound.clone();
        bytes[at] = value;
        bytes
    };
    let text = fault(vec![], FINGERPRINT);
    assert!(text.contains("it is not a sidecar"), "{text}");
    let text = fault(changed(0, 0), FINGERPRINT);
    assert!(text.contains("it is not a sidecar"), "{text}");
    let text = fault(changed(8, 9), FINGERPRINT);
    assert!(text.ends_with("it has version 9; this Forebay reads version 2"), "{text}");
    let text = fault(sound.clone(), 8);
    assert!(text.contains("it is stale: expected fingerprint 00000000000000000000000000000008"), "{text}");
    let text = fault(changed(33, 1), FINGERPRINT);
    assert!(text.contains("it is damaged: header checksum at offset 76"), "{text}");
    let text = fault(changed(90, sound[90] ^ 1), FINGERPRINT);
    assert!(text.contains("it is damaged: checksum of the meta part at offset 80"), "{text}");
    let text = fault(sound[..sound.len() - 1].to_vec(), FINGERPRINT);
    assert!(text.contains("it is damaged: length of the file at offset 40"), "{text}");
    let text = fault([&sound[..], &[0]].concat(), FINGERPRINT);
    assert!(text.contains("it is damaged: length of the file at offset 40"), "{text}");
    // A block is looked at when it is used; the others stay good.
    let index = open(changed(sound.len() - 1, sound[sound.len() - 1] ^ 1));
    let mut located = Located::default();
    index.locate(&[SampleId(0)], &mut located).expect("a sound block");
    let text = index.locate(&[SampleId(9999)], &mut located).expect_err("a damaged block").to_string();
    assert!(text.contains("it is damaged: block 2: checksum at offset"), "{text}");
}

#[test]
fn places_outside_the_file_are_refused_even_with_sound_checksums() {
    for (entry, what) in [
        (IndexEntry::Plain { class: 0, start: DATA.end - 4, length: 5 }, "record"),
        (IndexEntry::Plain { class: 0, start: DATA.start - 1, length: 5 }, "record"),
        (IndexEntry::Plain { class: 1, start: DATA.end - 4096, length: 4081 }, "record"),
        (
            IndexEntry::Exception(vec![Part {
                pieces: vec![PartPiece::Extent { offset: u64::MAX, length: 5 }],
                codecs: 0,
                decoded_bytes: 5,
                guard: 0,
                offset: 0,
                length: 5,
            }]),
            "extent",
        ),
        (
            IndexEntry::Exception(vec![Part {
                pieces: vec![PartPiece::Literal(vec![1; 5])],
                codecs: 1,
                decoded_bytes: 5,
                guard: 0,
                offset: 0,
                length: 5,
            }]),
            "codec chain",
        ),
        (
            IndexEntry::Exception(vec![Part {
                pieces: vec![PartPiece::Literal(vec![1; 5])],
                codecs: 0,
                decoded_bytes: 6,
                guard: 0,
                offset: 0,
                length: 5,
            }]),
            "stored unit",
        ),
        (
            IndexEntry::Exception(vec![Part {
                pieces: vec![PartPiece::Literal(vec![1; 5])],
                codecs: 0,
                decoded_bytes: 5,
                guard: 0,
                offset: 1,
                length: 5,
            }]),
            "slice",
        ),
    ] {
        let mut table = vec![IndexEntry::Plain { class: 0, start: DATA.start, length: 5 }; 3];
        table.push(entry);
        let error =
            open(sidecar(&table)).locate(&[SampleId(1)], &mut Located::default()).expect_err("out of bounds");
        let text = error.to_string();
        assert!(text.contains(&format!("damaged: block 0: {what} at offset")), "{text}");
    }
}

/// Damages sidecars in every way that a checksum would notice, repairs the checksums, and reads
/// them.
///
/// What comes out may differ from what was put in, but it lies in the shard, and nothing panics or
/// takes memory without bound.
#[test]
fn damaged_sidecars_with_repaired_checksums_never_lead_out_of_the_file() {
    let tables: Vec<Vec<u8>> =
        golden_tables().into_iter().map(|(_, table)| sidecar(&table[..table.len().min(700)])).collect();
    let rounds = if env::var_os("FOREBAY_LONG_TESTS").is_some() { 1_000_000 } else { 20_000 };
    let mut random = Random(2026);
    let (mut refused, mut read) = (0_u64, 0_u64);
    let mut located = Located::default();
    for round in 0..rounds {
        let sound = &tables[round % tables.len()];
        let bytes = damaged(sound, &mut random);
        let index = match Index::from_bytes(Arc::new(bytes), FINGERPRINT) {
            Ok(index) => index,
            Err(error) => {
                assert!(!error.to_string().is_empty());
                refused += 1;
                continue;
            }
        };
        assert!(index.samples() < 1 << 32);
        let last = index.samples().saturating_sub(1);
        let ids = [0, last / 2, last].map(SampleId);
        match index.locate(&ids, &mut located) {
            Ok(()) => {
                read += 1;
                assert!(inside(&located, index.shards()), "round {round}");
            }
            Err(error) => {
                assert!(!error.to_string().is_empty());
                refused += 1;
            }
        }
    }
    assert!(refused > 0 && read > 0, "{refused} refused, {read} read: the damage does not reach both");
}

#[test]
fn a_stale_sidecar_is_told_apart_from_a_damaged_one() {
    let bytes = sidecar(&golden_tables()[4].1);
    let error = Index::from_bytes(Arc::new(bytes), 0).expect_err("another fingerprint");
    let forebay_format::Error::Sidecar { source, .. } = error else { panic!("{error}") };
    assert_eq!(*source, SidecarError::Stale { expected: 0, found: FINGERPRINT });
}
