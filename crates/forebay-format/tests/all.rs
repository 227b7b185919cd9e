//! All tests of the crate in one program: it is linked once.

mod codecs;
mod cursor;
mod datum;
mod example;
mod folder_mutations;
mod hdf5;
mod image_record;
mod index;
mod lmdb_dialects;
mod lmdb_files;
mod lmdb_mutations;
mod lmdb_refusals;
mod npy_files;
mod npy_mutations;
mod places;
mod progress;
mod records_large;
mod records_mutations;
mod refusals;
mod schema_inference;
mod shard_mutations;
mod sidecar;
mod tables_mutations;
mod tar_mutations;
mod tiles;
mod value_sink;
mod verify;

mod support {
    pub mod allocation;
    pub mod dataset;
    pub mod datum;
    pub mod example_writer;
    pub mod hdf5_writer;
    pub mod lmdb_reader;
    pub mod lmdb_writer;
    pub mod npy_writer;
    pub mod record_writer;
    pub mod table;
    pub mod tar_writer;
}
