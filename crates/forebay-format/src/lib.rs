//! What is on disk: container formats, indexes, sidecars.
//!
//! [`Dataset::open`] looks at headers only. [`Dataset::build_index`] walks the container once and returns the bytes of
//! a sidecar; [`Dataset::find_sidecar`] finds one that was kept. [`Index::from_bytes`] answers from those bytes where
//! samples lie, and [`Schema::decode`] turns a record into fields. Nothing here keeps threads, caches data or knows
//! about ranks.
#![forbid(unsafe_code)]

/// Codecs of units: public for fuzz targets, tests and tools, not a stable interface.
#[doc(hidden)]
pub mod codec;
mod compressed;
mod container;
mod dataset;
mod error;
/// How files are read: public for fuzz targets and tests, not a stable interface.
#[doc(hidden)]
pub mod file;
mod folder;
mod framed;
/// HDF5 below the datasets: public for fuzz targets, tests and tools, not a stable interface.
#[doc(hidden)]
pub mod hdf5;
mod headers;
mod index;
/// The LMDB reader below the datasets: public for fuzz targets, integration tests and tools, not a stable interface.
#[doc(hidden)]
pub mod lmdb;
/// Arrays of numpy below the datasets: public for fuzz targets, integration tests and tools, not a stable interface.
#[doc(hidden)]
pub mod npy;
/// Layouts computed from recipes: public for tests, fuzz targets and tools, not a stable interface.
#[doc(hidden)]
pub mod provenance;
mod raw;
/// `MXNet`'s container: public for fuzz targets and tests, not a stable interface.
#[doc(hidden)]
pub mod recordio;
mod schema;
/// The file format of indexes: public for tests, fuzz targets and tools, not a stable interface.
#[doc(hidden)]
pub mod sidecar;
/// `WebDataset`'s container: public for fuzz targets and tests, not a stable interface.
#[doc(hidden)]
pub mod tar;
/// `TensorFlow`'s container: public for fuzz targets and tests, not a stable interface.
#[doc(hidden)]
pub mod tfrecord;
mod threads;

pub use codec::{Codec, CodecError};
pub use container::Format;
pub use dataset::{
    BadSample, BuiltIndex, CachePolicy, Dataset, Found, FoundRecipe, IndexReport, Keep, Lookup, OpenOptions,
    Place, Progress, RecipeLookup, Recorded, SampleAxis, SampleCursor, SamplePlace, Shard, ShardBytes,
    Verification,
};
pub use error::Error;
pub use index::Index;
pub use raw::RawLayout;
pub use schema::{
    DatumSchema, ExampleSchema, Feature, FeatureKind, FieldOut, ImageRecordSchema, Labels, Pixels, Schema,
    SchemaChoice, SchemaError, Values,
};
pub use sidecar::{Meta, ShardInfo, ShardState, SidecarFault, Summary};
