//! HDF5's filters and the codecs that undo them.

use serde::{Deserialize, Serialize};

use crate::codec::{BlockCodec, Codec};

/// Elements of a bitshuffled block where the file does not say: 8 KiB of them, at least 128
/// (bitshuffle's `bshuf_default_block_size`, which "needs to be absolutely stable between
/// versions").
const DEFAULT_BLOCK_BYTES: u32 = 8192;
const MIN_DEFAULT_BLOCK_ITEMS: u32 = 128;

/// One filter of a dataset's pipeline, as the file states it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Filter {
    /// Number by which it is registered.
    pub id: u32,
    /// Name, which a file may leave out.
    pub name: String,
    /// Its parameters ("client data").
    pub values: Vec<u32>,
}

/// The chain of codecs that reverses `filters`, of which a chunk has skipped those whose bit in
/// `mask` is set.
///
/// Fails with the filter that cannot be undone, in words.
pub fn chain(filters: &[Filter], mask: u32) -> Result<Vec<Codec>, String> {
    let applied = |place: &usize| place >= &32 || mask >> place & 1 == 0;
    let places: Vec<usize> = (0..filters.len()).filter(applied).collect();
    places.into_iter().rev().map(|place| codec(&filters[place])).collect()
}

/// The codec that undoes one filter.
fn codec(filter: &Filter) -> Result<Codec, String> {
    let Filter { id, name, values } = filter;
    let value = |place: usize| values.get(place).copied().filter(|value| *value > 0);
    let parameters = || format!("filter {id} ({}) with the parameters {values:?}", known_name(*id, name));
    match id {
        1 => Ok(Codec::Deflate),
        2 => Ok(Codec::Shuffle { item_bytes: value(0).ok_or_else(parameters)? }),
        3 => Ok(Codec::Fletcher32),
        32000 => Ok(Codec::Lzf),
        32004 => Ok(Codec::Lz4),
        32008 => {
            let item_bytes = value(2).ok_or_else(parameters)?;
            let default = (DEFAULT_BLOCK_BYTES / item_bytes / 8 * 8).max(MIN_DEFAULT_BLOCK_ITEMS);
            let block_items = value(3).unwrap_or(default);
            let blocks = match value(4) {
                None => BlockCodec::Stored,
                Some(2) => BlockCodec::Lz4,
                Some(3) => BlockCodec::Zstd,
                Some(_) => return Err(parameters()),
            };
            Ok(Codec::Bitshuffle { item_bytes, block_items, blocks })
        }
        32015 => Ok(Codec::Zstd),
        _ => Err(format!("filter {id} ({})", known_name(*id, name))),
    }
}

/// The name of a filter: the file's, else that of its registration.
fn known_name(id: u32, name: &str) -> &str {
    match (name, id) {
        ("", 1) => "deflate",
        ("", 2) => "shuffle",
        ("", 4) => "szip",
        ("", 5) => "nbit",
        ("", 6) => "scaleoffset",
        ("", 32001) => "blosc",
        ("", 32008) => "bitshuffle",
        ("", 32013) => "zfp",
        ("", 32017) => "sz",
        ("", 32026) => "blosc2",
        ("", _) => "without a name",
        _ => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filter(id: u32, values: &[u32]) -> Filter {
        Filter { id, name: String::new(), values: values.to_vec() }
    }

    #[test]
    fn filters_are_undone_from_the_last_to_the_first_without_those_that_a_chunk_skipped() {
        let filters = [filter(2, &[4]), filter(1, &[6]), filter(3, &[])];
        let all = [Codec::Fletcher32, Codec::Deflate, Codec::Shuffle { item_bytes: 4 }];
        assert_eq!(chain(&filters, 0).as_deref(), Ok(&all[..]));
        assert_eq!(
            chain(&filters, 2).as_deref(),
            Ok(&[Codec::Fletcher32, Codec::Shuffle { item_bytes: 4 }][..])
        );
        assert_eq!(chain(&filters, 7).as_deref(), Ok(&[][..]));
    }

    #[test]
    fn what_cannot_be_undone_is_refused_by_number_and_name() {
        assert_eq!(chain(&[filter(5, &[])], 0).expect_err("nbit"), "filter 5 (nbit)");
        assert_eq!(chain(&[filter(777, &[])], 0).expect_err("nobody's"), "filter 777 (without a name)");
        let named = Filter { name: "zfp 1.0".into(), ..filter(32013, &[]) };
        assert_eq!(chain(&[named], 0).expect_err("zfp"), "filter 32013 (zfp 1.0)");
        let strange = chain(&[filter(32008, &[0, 4, 4, 0, 9])], 0).expect_err("compressor 9");
        assert_eq!(strange, "filter 32008 (bitshuffle) with the parameters [0, 4, 4, 0, 9]");
        assert!(chain(&[filter(5, &[])], 1).is_ok(), "a filter that every chunk skipped");
    }

    #[test]
    fn blocks_of_bitshuffle_have_the_length_that_its_own_code_gives_them() {
        for (item_bytes, block_items) in [(1, 8192), (2, 4096), (3, 2728), (4, 2048), (100, 128)] {
            let found = chain(&[filter(32008, &[0, 4, item_bytes, 0, 0])], 0).expect("known");
            assert_eq!(found, [Codec::Bitshuffle { item_bytes, block_items, blocks: BlockCodec::Stored }]);
        }
    }
}
