//! Chains that a file may claim, and the lengths within them.

use super::*;

#[test]
fn lengths_within_a_chain_follow_from_its_ends() {
    let chain = [Codec::Fletcher32, Codec::Deflate, Codec::Shuffle { item_bytes: 4 }];
    assert_eq!(bytes_between(&chain, 1, 104, 400), Some(100));
    assert_eq!(bytes_between(&chain, 2, 104, 400), Some(400));
    let other = [Codec::Deflate, Codec::Fletcher32];
    assert_eq!(bytes_between(&other, 1, 104, 400), Some(404));
    assert_eq!(
        bytes_between(&[Codec::Deflate, Codec::Shuffle { item_bytes: 1 }, Codec::Zstd], 1, 104, 400),
        None
    );
}

#[test]
fn only_chains_with_one_compressor_and_sound_parameters_are_accepted() {
    let shuffle = |item_bytes| Codec::Shuffle { item_bytes };
    assert!(check_chain(&[]).is_ok());
    assert!(check_chain(&[Codec::Fletcher32, Codec::Deflate, shuffle(4)]).is_ok());
    assert!(check_chain(&[Codec::Deflate, Codec::Zstd]).is_err());
    assert!(check_chain(&[shuffle(0)]).is_err());
    assert!(check_chain(&[shuffle(1 << 17)]).is_err());
    assert!(check_chain(&vec![Codec::Fletcher32; 9]).is_err());
    assert!(check_chain(&[Codec::Fill { value: vec![] }]).is_err());
    assert!(check_chain(&[Codec::Fletcher32, Codec::Fill { value: vec![0] }]).is_err());
    let strings = |strings: &[(u32, u32)]| Codec::NulTerminated { item_bytes: 8, strings: strings.to_vec() };
    assert!(check_chain(&[Codec::Deflate, strings(&[(0, 8), (7, 1)])]).is_ok());
    for outside in [&[][..], &[(0, 0)], &[(0, 9)], &[(8, 1)], &[(1, u32::MAX)], &vec![(0, 1); 5000]] {
        assert!(check_chain(&[strings(outside)]).is_err(), "{} strings", outside.len());
    }
    let blocks = |block_items| Codec::Bitshuffle { item_bytes: 2, block_items, blocks: BlockCodec::Stored };
    assert!(check_chain(&[blocks(8)]).is_ok());
    for block_items in [0, 4, 12, u32::MAX - 7] {
        assert!(check_chain(&[blocks(block_items)]).is_err(), "{block_items}");
    }
}

#[test]
fn what_is_decoded_is_bounded_by_what_is_stored() {
    assert!(is_plausible(&[], 10, 10) && !is_plausible(&[], 10, 11));
    assert!(is_plausible(&[Codec::Fletcher32], 14, 10) && !is_plausible(&[Codec::Fletcher32], 3, 0));
    assert!(is_plausible(&[Codec::Zstd], 10, 1000) && !is_plausible(&[Codec::Zstd], 10, 1 << 40));
    assert!(is_plausible(&[Codec::Fill { value: vec![0] }], 0, 1 << 40));
}

#[test]
fn chains_are_kept_as_json_and_other_codecs_refused() {
    let chain = vec![Codec::Deflate, Codec::Shuffle { item_bytes: 4 }];
    let text = serde_json::to_string(&chain).expect("numbers and names");
    assert_eq!(text, r#"["deflate",{"shuffle":{"item-bytes":4}}]"#.replace("item-bytes", "item_bytes"));
    assert_eq!(serde_json::from_str::<Vec<Codec>>(&text).expect("as written"), chain);
    assert!(serde_json::from_str::<Vec<Codec>>(r#"["szip"]"#).is_err());
}
