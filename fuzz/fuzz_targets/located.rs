//! Locates samples of an index of any bytes: each extent has to lie within the file.

use std::sync::Arc;

use forebay_format::{Error, Index};
use forebay_types::{Located, Piece, SampleId};

pub fn locate(file_bytes: u64, indexed: Result<Vec<u8>, Error>) {
    let Ok(bytes) = indexed else { return };
    let index = Index::from_bytes(Arc::new(bytes), 0).expect("an index just made");
    let ids: Vec<SampleId> = (0..index.samples().min(50)).map(SampleId).collect();
    let mut located = Located::default();
    index.locate(&ids, &mut located).expect("sound blocks");
    for piece in located.pieces() {
        if let Piece::Extent(extent) = piece {
            assert!(extent.end() <= file_bytes, "an extent within the file");
        }
    }
}
