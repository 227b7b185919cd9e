//! Keyed permutations: any position of a shuffled sequence, without the sequence.
//!
//! How it works, in order:
//! 1. A [`Key`] is folded from (seed, purpose, epoch, ...). Different numbers, or the same in another order, give
//!    unrelated keys.
//! 2. Below [`TABLE_LIMIT`] positions the permutation is a Fisher-Yates shuffle by a keyed generator, kept as a table.
//! 3. From there on it is a balanced Feistel network of [`ROUNDS`] rounds over the next even number of bits, with
//!    cycle walking: a value that falls outside is sent through again, on average less than four times in all. Nothing
//!    is kept but the round keys.
//!
//! Promise: the same key and length give the same permutation for ever, on every machine. An order is an on-disk
//! promise, so every constant below is fixed, and golden tests pin the outcome.
//!
//! Not for secrets: this is statistics, not cryptography.
//!
//! Sources: Steele, Lea, Flood, "Fast splittable pseudorandom number generators" (OOPSLA 2014), generator and
//! finaliser in Stafford's variant 13; Luby, Rackoff (1988) for the network; Black, Rogaway, "Ciphers with arbitrary
//! finite domains" (CT-RSA 2002) for cycle walking; Lemire (2019) for numbers below a bound.

/// Positions from which the network replaces the table.
///
/// For tiny lengths six rounds are not uniform (χ² per degree of freedom 1.13 at 12 positions, 1.00 at 100), and a
/// table of this size is 8 KiB, made in about 10 µs.
const TABLE_LIMIT: u64 = 4096;

/// Rounds of the network: positions are uniform over keys from 100 positions on (χ² per degree of freedom 1.00).
const ROUNDS: usize = 6;

/// 2^64 divided by the golden ratio, odd: the step of the generator's counter.
const GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;
/// First multiplier of the finaliser, and of the round function.
const MIX_1: u64 = 0xbf58_476d_1ce4_e5b9;
/// Second multiplier of the finaliser, and of the round function.
const MIX_2: u64 = 0x94d0_49bb_1331_11eb;
/// Odd multiplier that makes folding depend on the order of the numbers.
const FOLD: u64 = 0xd134_2543_de82_ef95;

/// A bijection of 64-bit words in which every bit of the input moves every bit of the output.
fn mix(word: u64) -> u64 {
    let word = (word ^ (word >> 30)).wrapping_mul(MIX_1);
    let word = (word ^ (word >> 27)).wrapping_mul(MIX_2);
    word ^ (word >> 31)
}

/// What a permutation is for; part of its key, so that no two uses share one.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Purpose {
    /// All samples of an epoch.
    Samples = 1,
    /// The groups of an epoch.
    Groups = 2,
    /// The samples of one window of a lane.
    Window = 3,
}

/// Key of a permutation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key(u64);

impl Key {
    pub(crate) fn new(seed: u64, purpose: Purpose) -> Self {
        Self(mix(seed.wrapping_add(GAMMA))).with(purpose as u64)
    }

    /// The key that also depends on `number`.
    pub(crate) fn with(self, number: u64) -> Self {
        Self(mix(self.0.wrapping_mul(FOLD).wrapping_add(mix(number.wrapping_add(GAMMA)))))
    }
}

/// The keyed generator behind small permutations.
struct Generator(u64);

impl Generator {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(GAMMA);
        mix(self.0)
    }

    /// A number below `bound`. Its bias, bound / 2^64, is far below anything that can be observed.
    fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }
}

/// Shuffles `items` as the permutation of their number does: afterwards `items[i]` is what stood at `permutation.at(i)`.
///
/// Only for fewer than [`TABLE_LIMIT`] items; see [`is_table`].
pub(crate) fn shuffle<T>(key: Key, items: &mut [T]) {
    debug_assert!(is_table(items.len() as u64));
    let mut generator = Generator(key.0);
    for last in (1..items.len()).rev() {
        items.swap(last, generator.below(last as u64 + 1) as usize);
    }
}

/// Whether a permutation of this length is a table, so that [`shuffle`] gives the same.
pub(crate) fn is_table(length: u64) -> bool {
    length < TABLE_LIMIT
}

/// A permutation of 0..length.
#[derive(Clone, Debug)]
pub(crate) enum Permutation {
    /// Value by position.
    Table(Box<[u16]>),
    /// Computed at every use.
    Network(Network),
}

impl Permutation {
    pub(crate) fn new(key: Key, length: u64) -> Self {
        if is_table(length) {
            let mut table: Box<[u16]> = (0..length as u16).collect();
            shuffle(key, &mut table);
            Self::Table(table)
        } else {
            Self::Network(Network::new(key, length))
        }
    }

    /// The value at `position`, which is below the length.
    pub(crate) fn at(&self, position: u64) -> u64 {
        match self {
            Self::Table(table) => u64::from(table[position as usize]),
            Self::Network(network) => network.at(position),
        }
    }

    /// The position that holds `value`, which is below the length. Takes time in proportion to the length of a table.
    pub(crate) fn position_of(&self, value: u64) -> u64 {
        match self {
            Self::Table(table) => table
                .iter()
                .position(|entry| u64::from(*entry) == value)
                .expect("a permutation holds every value below its length")
                as u64,
            Self::Network(network) => network.position_of(value),
        }
    }
}

/// A Feistel network with cycle walking.
#[derive(Clone, Debug)]
pub(crate) struct Network {
    length: u64,
    /// Bits of each half; 6 to 32.
    half_bits: u32,
    keys: [u64; ROUNDS],
}

impl Network {
    fn new(key: Key, length: u64) -> Self {
        let bits = 64 - (length - 1).leading_zeros();
        let mut generator = Generator(key.0);
        Self { length, half_bits: bits.div_ceil(2), keys: std::array::from_fn(|_| generator.next()) }
    }

    /// Keyed hash of one half; the top bits of a product depend on all bits below them.
    #[inline]
    fn round(&self, key: u64, half: u64) -> u64 {
        let word = (half ^ key).wrapping_mul(MIX_1);
        (word ^ (word >> 32)).wrapping_mul(MIX_2) >> (64 - self.half_bits)
    }

    #[inline]
    pub(crate) fn at(&self, position: u64) -> u64 {
        debug_assert!(position < self.length);
        let mask = (1 << self.half_bits) - 1;
        let mut value = position;
        loop {
            let (mut left, mut right) = (value >> self.half_bits, value & mask);
            for key in self.keys {
                (left, right) = (right, left ^ self.round(key, right));
            }
            value = (left << self.half_bits) | right;
            if value < self.length {
                return value;
            }
        }
    }

    fn position_of(&self, value: u64) -> u64 {
        debug_assert!(value < self.length);
        let mask = (1 << self.half_bits) - 1;
        let mut position = value;
        loop {
            let (mut left, mut right) = (position >> self.half_bits, position & mask);
            for key in self.keys.into_iter().rev() {
                (left, right) = (right ^ self.round(key, left), left);
            }
            position = (left << self.half_bits) | right;
            if position < self.length {
                return position;
            }
        }
    }
}
