//! Recipe files as input: whatever their bytes are, they are a recipe or refused.

use forebay_format::SidecarError;
use forebay_format::lmdb::Dialect;
use forebay_recipe::{
    KeyPattern, Lengths, NamedDatabase, Recipe, RecipeFile, ShardRecipe, SplitClass, Transactions,
};
use proptest::prelude::*;

const FINGERPRINT: u128 = 0x0123_4567_89ab_cdef;

fn recipe(records: u64) -> Recipe {
    let pattern = KeyPattern { prefix: b"image-".to_vec(), digits: 9, suffix: Vec::new(), start: 1 };
    Recipe {
        dialect: Dialect::ALL[2],
        page_bytes: 4096,
        checksum_bytes: 0,
        split_class: SplitClass::Modern,
        append: true,
        database: Some(NamedDatabase { name: "images".into(), own_transaction: true }),
        records,
        keys: Lengths::Constant(15),
        key_pattern: Some(pattern),
        values: (0..records).map(|record| 3000 + (record * record % 977) as u32).collect(),
        transactions: Transactions { first: vec![(7, 2)], then: Some(100) },
        excluded: vec![(1, records - 1)],
    }
}

fn file() -> RecipeFile {
    let shards = vec![
        ShardRecipe { recipe: recipe(900), digest: Some(7) },
        ShardRecipe { recipe: Recipe { values: Lengths::Constant(5), ..recipe(40) }, digest: None },
    ];
    RecipeFile { fingerprint: FINGERPRINT, shards }
}

/// Puts the right checksum at the end.
fn repaired(mut bytes: Vec<u8>) -> Vec<u8> {
    let end = bytes.len() - 4;
    let checksum = crc32c::crc32c(&bytes[..end]);
    bytes[end..].copy_from_slice(&checksum.to_le_bytes());
    bytes
}

#[test]
fn a_recipe_file_comes_back() {
    let file = file();
    assert_eq!(RecipeFile::decode(&file.encode(), FINGERPRINT, 2), Ok(file.clone()));
    assert!(!file.is_verified());
    assert!(file.recipe_bytes() < 200);
    assert!(file.list_bytes() > 900);
}

#[test]
fn a_file_of_another_dataset_is_stale() {
    let bytes = file().encode();
    let stale = RecipeFile::decode(&bytes, FINGERPRINT + 1, 2).expect_err("another fingerprint");
    assert!(matches!(stale, SidecarError::Stale { .. }), "{stale}");
    let fault = RecipeFile::decode(&bytes, FINGERPRINT, 3).expect_err("another number of shards");
    assert!(fault.to_string().contains("number of files"), "{fault}");
}

#[test]
fn a_cut_file_and_a_changed_byte_are_refused() {
    let bytes = file().encode();
    for length in 0..bytes.len() {
        assert!(RecipeFile::decode(&bytes[..length], FINGERPRINT, 2).is_err(), "{length} bytes");
    }
    for at in 0..bytes.len() {
        let mut changed = bytes.clone();
        changed[at] ^= 0x10;
        assert!(RecipeFile::decode(&changed, FINGERPRINT, 2).is_err(), "byte {at}");
    }
}

/// The layout to the byte of `docs/provenance.md`: whoever changes it raises the version.
#[test]
fn the_bytes_of_a_recipe_are_those_of_the_page() {
    let plain = Recipe {
        dialect: Dialect::ALL[0],
        append: false,
        database: None,
        records: 300,
        keys: Lengths::Constant(8),
        key_pattern: None,
        values: Lengths::Constant(3073),
        transactions: Transactions::every(100),
        excluded: Vec::new(),
        ..recipe(300)
    };
    assert_eq!(
        plain.encode(),
        [1, 0, 12, 0, 0xac, 2, 0, 8, 0, 0x81, 0x18, 0, 100, 0],
        "raise VERSION in forebay-recipe/src/encoding.rs and describe the new bytes in docs/provenance.md"
    );
}

proptest! {
    #[test]
    fn any_change_behind_the_checksum_is_read_or_refused(
        changes in proptest::collection::vec((8_usize..2000, any::<u8>()), 1..6)
    ) {
        let mut bytes = file().encode();
        for (at, byte) in changes {
            let at = 8 + at % (bytes.len() - 12);
            bytes[at] = byte;
        }
        if let Ok(file) = RecipeFile::decode(&repaired(bytes), FINGERPRINT, 2) {
            prop_assert_eq!(file.shards.len(), 2);
            prop_assert!(file.encode().len() < 4000);
        }
    }

    #[test]
    fn any_bytes_are_no_recipe_file(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        prop_assert!(RecipeFile::decode(&bytes, FINGERPRINT, 1).is_err());
    }
}
