//! Making copies of chunks: `offer` is what a read hands over, in one of the `buffers`;
//! `writer` writes it to a level, and `flush` bounds the dirty pages of that.

pub(crate) mod buffers;
pub(crate) mod flush;
pub(crate) mod offer;
pub(crate) mod writer;
