//! A `TFRecord` file of 100 GiB: its index reads the headers and no more. The file is sparse and
//! takes 50 MB.

use std::fs::File;
use std::os::unix::fs::FileExt;

use crate::support::dataset::{Scratch, build, open_as};
use forebay_format::{SchemaChoice, tfrecord};
use forebay_types::{Located, Piece, SampleId};

const RECORDS: u64 = 6400;
const RECORD_BYTES: u64 = 16 << 20;

#[test]
fn the_index_of_a_hundred_gibibytes_reads_headers_only() {
    let scratch = Scratch::new();
    let path = scratch.path("large.tfrecord");
    let file = File::create(&path).expect("created");
    let unit_bytes = RECORD_BYTES + 16;
    if let Err(error) = file.set_len(RECORDS * unit_bytes) {
        println!("skipped: this file system takes no file of 100 GiB: {error}");
        return;
    }
    let length = RECORD_BYTES.to_le_bytes();
    let header = [&length[..], &tfrecord::masked_crc32c(&length).to_le_bytes()].concat();
    for record in 0..RECORDS {
        file.write_all_at(&header, record * unit_bytes).expect("written");
    }
    let dataset = open_as(&[&path], SchemaChoice::Raw);
    let built = build(&dataset);
    assert_eq!(built.report.samples, RECORDS);
    // A page when the file is opened, one when it is walked, and twelve bytes per record.
    assert!(built.report.read_bytes <= 2 * 4096 + 12 * RECORDS, "{:?}", built.report);
    assert!(built.report.sidecar_bytes < 2048, "{:?}", built.report);
    let index = dataset.index(std::sync::Arc::new(built.bytes)).expect("an index just built");
    let mut located = Located::default();
    index.locate(&[SampleId(RECORDS - 1)], &mut located).expect("there");
    let Piece::Extent(extent) = located.pieces()[0] else { panic!("an extent") };
    assert_eq!((extent.offset, extent.length), ((RECORDS - 1) * unit_bytes, unit_bytes));
}
