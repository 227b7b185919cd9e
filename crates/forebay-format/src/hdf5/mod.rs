//! HDF5: chunks and contiguous data in place, found by h5py and read without it.

mod filters;

pub use filters::{Filter, chain};
