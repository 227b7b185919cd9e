//! Any bytes as a recipe, as a list of lengths, or as a recipe file with its checksum in order; small ones are carried out.
#![no_main]

use forebay_recipe::{Recipe, RecipeFile};
use libfuzzer_sys::fuzz_target;

/// First bytes of a recipe file, its version and one shard of the dataset with fingerprint 0.
const HEAD: &[u8] = b"\x8fFORERCP\x01\0\0\0\x01\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0";

/// Records that are put at most: a file would bound them.
const MAX_RECORDS: u64 = 20_000;

fn carry_out(recipe: &Recipe) {
    if recipe.records <= MAX_RECORDS {
        let mut records = 0;
        if recipe.places(|_, _, _| records += 1).is_ok() {
            assert_eq!(records, recipe.records);
        }
    }
}

fuzz_target!(|data: &[u8]| {
    if let Ok(recipe) = Recipe::decode(data, &|_| None) {
        let again = Recipe::decode(&recipe.encode(), &|_| None);
        assert_eq!(again.as_ref(), Ok(&recipe));
        carry_out(&recipe);
    }
    let mut file = [HEAD, data].concat();
    let checksum = crc32c::crc32c(&file);
    file.extend(checksum.to_le_bytes());
    if let Ok(file) = RecipeFile::decode(&file, 0, 1) {
        file.shards.iter().for_each(|shard| carry_out(&shard.recipe));
    }
});
