//! What is on disk: container formats, indexes, sidecars.
//!
//! [`Dataset::open`] reads headers only. [`Dataset::build_index`] scans the container once and
//! returns the bytes of a sidecar; [`Dataset::find_sidecar`] finds one that was kept.
//! [`Index::from_bytes`] locates samples from those bytes, and [`Schema::decode`] decodes a record
//! into fields. The crate keeps no threads, caches no data and knows nothing of ranks.
#![forbid(unsafe_code)]

/// Codecs of units: public for fuzz targets, tests and tools, not a stable interface.
#[doc(hidden)]
pub mod codec;
mod container;
mod dataset;
mod decoded_units;
mod error;
/// How files are read: public for fuzz targets and tests, not a stable interface.
#[doc(hidden)]
pub mod file;
mod format;
mod index;
mod options;
mod schema;
mod summary;
mod threads;
mod unit_check;
/// Integers of variable length: public for recipes, not a stable interface.
#[doc(hidden)]
pub mod varint;

pub use codec::{Codec, CodecError};
/// The container formats: public for fuzz targets, tests and tools, not a stable interface.
#[doc(hidden)]
pub use container::{
    ScanSummary, array_record, arrow, hdf5, litdata, lmdb, mds, npy, offset_table, parquet, recordio, tar,
    tfrecord,
};
pub use dataset::{
    BadSample, BuiltIndex, CachePolicy, Computation, ComputeIndex, ComputedIndex, Dataset, FoundSidecar,
    IndexReport, Lookup, Progress, SampleCursor, Shard, ShardBytes, SidecarLocation, ValueSink, Verification,
};
pub use decoded_units::{DecodedUnits, UnitKey};
pub use error::{Error, SchemaError, SidecarError};
pub use format::Format;
/// The file format of indexes: public for tests, fuzz targets and tools, not a stable interface.
#[doc(hidden)]
pub use index::sidecar;
pub use index::sidecar::{Meta, ShardInfo, ShardState, describe as describe_sidecar};
pub use index::{Index, Selection};
pub use options::{
    Documents, Manifest, Nulls, OpenOptions, RawLayout, SampleAxis, SchemaChoice, TokenLayout,
};
pub use schema::{
    DatumSchema, ExampleSchema, Feature, FeatureKind, FieldOut, ImageRecordSchema, Labels, Pixels, Schema,
    Values,
};
pub use summary::Summary;
