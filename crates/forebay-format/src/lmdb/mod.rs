//! LMDB, read natively.
