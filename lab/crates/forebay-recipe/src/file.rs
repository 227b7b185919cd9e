//! The recipe file: what is kept beside a sidecar.
//!
//! A header with the fingerprint of the dataset, for each shard its recipe, whether it was derived
//! from the file or declared by a user, the digest of the layout where there is one, the lists that
//! it names, and a checksum. All integers are little-endian; to the byte in `docs/provenance.md`.

use std::sync::Arc;

use forebay_format::SidecarError;

use crate::facts::Recipe;
use crate::lengths::LengthList;

/// First bytes of every recipe file.
const MAGIC: [u8; 8] = *b"\x8fFORERCP";

/// The version that is written, and the only one that is read.
const VERSION: u32 = 1;

/// Most lists of one recipe.
const MAX_LISTS: u8 = 2;

/// A recipe, and whether it is verified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardRecipe {
    /// What was inserted and when it was committed.
    pub recipe: Recipe,
    /// Digest of where all records lie, taken from the file; `None`: a user's word, not verified.
    pub digest: Option<u128>,
}

/// The recipes of a dataset's shards.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecipeFile {
    /// Fingerprint of the dataset.
    pub fingerprint: u128,
    /// One per shard.
    pub shards: Vec<ShardRecipe>,
}

impl RecipeFile {
    /// Whether all of it was compared with a scan of the files.
    pub fn is_verified(&self) -> bool {
        self.shards.iter().all(|shard| shard.digest.is_some())
    }

    /// Length of the recipes alone, without lists \[bytes\].
    pub fn recipe_bytes(&self) -> u64 {
        self.shards.iter().map(|shard| shard.recipe.encode().len() as u64).sum()
    }

    /// Length of the lists that the recipes name \[bytes\].
    pub fn list_bytes(&self) -> u64 {
        self.shards.iter().flat_map(|shard| shard.recipe.lists()).map(|list| list.bytes().len() as u64).sum()
    }

    /// The file.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        out.extend(VERSION.to_le_bytes());
        out.extend((self.shards.len() as u32).to_le_bytes());
        out.extend(self.fingerprint.to_le_bytes());
        for ShardRecipe { recipe, digest } in &self.shards {
            let encoded = recipe.encode();
            let lists: Vec<_> = recipe.lists().collect();
            out.extend([u8::from(digest.is_some()), lists.len() as u8]);
            out.extend(digest.unwrap_or(0).to_le_bytes());
            out.extend((encoded.len() as u32).to_le_bytes());
            out.extend(encoded);
            for list in lists {
                out.extend((list.bytes().len() as u64).to_le_bytes());
                out.extend(list.bytes());
            }
        }
        let checksum = crc32c::crc32c(&out);
        out.extend(checksum.to_le_bytes());
        out
    }

    /// Reads a file of a dataset with this fingerprint and number of shards.
    pub fn decode(bytes: &[u8], fingerprint: u128, shards: usize) -> Result<Self, SidecarError> {
        if bytes.get(..8) != Some(&MAGIC) {
            let found = &bytes[..bytes.len().min(8)];
            return Err(SidecarError::damaged(
                0,
                "magic number",
                format!("{MAGIC:02x?}"),
                format!("{found:02x?}"),
            ));
        }
        let mut reader = ByteReader { bytes, at: 8 };
        let version = reader.u32("version")?;
        if version != VERSION {
            return Err(SidecarError::damaged(8, "version", VERSION, version));
        }
        let Some((body, checksum)) = bytes.split_last_chunk::<4>() else {
            return Err(reader.short("checksum"));
        };
        let (expected, found) = (crc32c::crc32c(body), u32::from_le_bytes(*checksum));
        if expected != found {
            let (expected, found) = (format!("{expected:#010x}"), format!("{found:#010x}"));
            return Err(SidecarError::damaged(body.len(), "checksum", expected, found));
        }
        reader.bytes = body;
        let count = reader.u32("number of files")?;
        let found = reader.u128("fingerprint")?;
        if found != fingerprint {
            return Err(SidecarError::Stale { expected: fingerprint, found });
        }
        if count as usize != shards {
            return Err(SidecarError::damaged(12, "number of files", shards, count));
        }
        let shards = (0..count).map(|_| reader.shard()).collect::<Result<_, _>>()?;
        if reader.at != body.len() {
            return Err(SidecarError::damaged(reader.at, "end of the recipes", reader.at, body.len()));
        }
        Ok(Self { fingerprint, shards })
    }
}

/// Reads from untrusted bytes, and knows where.
struct ByteReader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> ByteReader<'a> {
    fn short(&self, what: &str) -> SidecarError {
        SidecarError::damaged(self.at, what, "more bytes", "the end of the file")
    }

    fn take(&mut self, count: u64, what: &str) -> Result<&'a [u8], SidecarError> {
        let end = usize::try_from(count).ok().and_then(|count| self.at.checked_add(count));
        let taken = end.and_then(|end| self.bytes.get(self.at..end)).ok_or_else(|| self.short(what))?;
        self.at += taken.len();
        Ok(taken)
    }

    fn u32(&mut self, what: &str) -> Result<u32, SidecarError> {
        let bytes = self.take(4, what)?;
        Ok(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
    }

    fn u128(&mut self, what: &str) -> Result<u128, SidecarError> {
        let mut number = [0; 16];
        number.copy_from_slice(self.take(16, what)?);
        Ok(u128::from_le_bytes(number))
    }

    fn shard(&mut self) -> Result<ShardRecipe, SidecarError> {
        let at = self.at;
        let head = self.take(2, "kind of a recipe")?;
        let (kind, lists) = (head[0], head[1]);
        if kind > 1 || lists > MAX_LISTS {
            let expected = format!("kind 0 or 1, 0 to {MAX_LISTS} lists");
            return Err(SidecarError::damaged(at, "kind of a recipe", expected, format!("{kind}, {lists}")));
        }
        let digest = Some(self.u128("digest")?).filter(|_| kind == 1);
        let encoding = self.u32("length of a recipe")?;
        let recipe_at = self.at;
        let encoded = self.take(u64::from(encoding), "recipe")?;
        let mut held = Vec::new();
        for _ in 0..lists {
            let at = self.at;
            let mut length = [0; 8];
            length.copy_from_slice(self.take(8, "length of a list")?);
            let bytes = self.take(u64::from_le_bytes(length), "list of lengths")?.to_vec();
            let list = LengthList::from_bytes(bytes)
                .map_err(|found| SidecarError::damaged(at, "list of lengths", "a packed list", found))?;
            held.push((list.digest(), Arc::new(list)));
        }
        let find = |digest| held.iter().find(|(held, _)| *held == digest).map(|(_, list)| Arc::clone(list));
        let recipe = Recipe::decode(encoded, &find)
            .map_err(|error| SidecarError::damaged(recipe_at, "recipe", "a valid one", error.0))?;
        Ok(ShardRecipe { recipe, digest })
    }
}
