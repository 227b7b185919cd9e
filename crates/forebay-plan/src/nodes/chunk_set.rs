//! A set of chunks of a dataset, and the place of each among the chunks of the set.

use serde::{Deserialize, Serialize};

/// Chunks whose numbers share a word.
const WORD_CHUNKS: u64 = u64::BITS as u64;

/// A set of chunks. A bit and half a bit of memory per chunk of the dataset.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Vec<u64>", into = "Vec<u64>")]
pub struct ChunkSet {
    /// Bit c of word w is chunk w·64 + c.
    words: Box<[u64]>,
    /// Chunks of the set before each word.
    before: Box<[u32]>,
}

impl ChunkSet {
    /// The number of chunks in the set.
    #[must_use]
    pub fn len(&self) -> u64 {
        let last = self.words.last().map_or(0, |word| word.count_ones());
        u64::from(self.before.last().copied().unwrap_or_default() + last)
    }

    /// Whether the set has no chunk.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many chunks of the set have lower numbers than `chunk`; `None` if it is not in the set.
    #[must_use]
    pub fn place(&self, chunk: u64) -> Option<u64> {
        let word = usize::try_from(chunk / WORD_CHUNKS).ok()?;
        let bit = 1_u64 << (chunk % WORD_CHUNKS);
        let bits = *self.words.get(word)?;
        (bits & bit != 0).then(|| u64::from(self.before[word] + (bits & (bit - 1)).count_ones()))
    }
}

impl FromIterator<bool> for ChunkSet {
    /// Whether each chunk is in the set, in order.
    fn from_iter<I: IntoIterator<Item = bool>>(chunks: I) -> Self {
        let mut words = Vec::new();
        for (number, is_in) in (0_u64..).zip(chunks) {
            if number % WORD_CHUNKS == 0 {
                words.push(0);
            }
            if let Some(word) = words.last_mut() {
                *word |= u64::from(is_in) << (number % WORD_CHUNKS);
            }
        }
        Self::from(words)
    }
}

impl From<Vec<u64>> for ChunkSet {
    fn from(words: Vec<u64>) -> Self {
        let mut sum = 0;
        let count = |word: &u64| {
            let before = sum;
            sum += word.count_ones();
            before
        };
        Self { before: words.iter().map(count).collect(), words: words.into() }
    }
}

impl From<ChunkSet> for Vec<u64> {
    fn from(set: ChunkSet) -> Self {
        set.words.into_vec()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn chunks_have_the_places_of_a_list(chunks in prop::collection::vec(any::<bool>(), 0..300)) {
            let set: ChunkSet = chunks.iter().copied().collect();
            let mut next = 0;
            for (number, is_in) in (0..).zip(&chunks) {
                prop_assert_eq!(set.place(number), is_in.then_some(next));
                next += u64::from(*is_in);
            }
            prop_assert_eq!(set.len(), next);
            prop_assert_eq!(set.is_empty(), next == 0);
            prop_assert_eq!(set.place(chunks.len() as u64 + 64), None);
            let text = serde_json::to_string(&set).unwrap();
            prop_assert_eq!(serde_json::from_str::<ChunkSet>(&text).unwrap(), set);
        }
    }
}
