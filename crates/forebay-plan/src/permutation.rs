//! Keyed permutations: any position of a shuffled sequence, without the sequence.
//!
//! How it works, in order:
//! 1. A [`Key`] is folded from (seed, purpose, epoch, ...). Different numbers, or the same in
//!    another order, give unrelated keys.
//! 2. Below [`TABLE_LIMIT`] positions the permutation is a Fisher-Yates shuffle by a keyed
//!    generator, kept as a table.
//! 3. From there on it is a Feistel network of [`ROUNDS`] rounds over pairs (left, right) with left
//!    < ⌈√n⌉ and right < ⌈n/⌈√n⌉⌉, in which the halves are added to in turn, modulo their size.
//!    These are at most √n pairs more than positions; a value that falls outside is sent through
//!    again (cycle walking), which hardly ever happens. Over halves of whole bits it would happen
//!    up to three times per position: 160 instead of 30 ns at n = 1,281,167. Nothing is kept but
//!    the round keys.
//!
//! Promise: the same key and length give the same permutation for ever, on every machine. An order
//! is an on-disk promise, so every constant below is fixed, and golden tests pin the outcome.
//!
//! Not for secrets: this is statistics, not cryptography.
//!
//! Sources: Steele, Lea, Flood, "Fast splittable pseudorandom number generators" (OOPSLA 2014),
//! generator and finaliser in Stafford's variant 13; Luby, Rackoff (1988) for the network; Bellare,
//! Ristenpart, Rogaway, Stegers, "Format-preserving encryption" (SAC 2009) for halves that are
//! numbers; Black, Rogaway, "Ciphers with arbitrary finite domains" (CT-RSA 2002) for cycle
//! walking; Lemire (2019) for numbers below a bound.

/// Positions from which the network replaces the table.
///
/// For tiny lengths six rounds are not uniform (χ² per degree of freedom 1.13 at 12 positions, 1.00
/// at 100), and a table of this size is 8 KiB, made in about 10 µs.
const TABLE_LIMIT: u64 = 4096;

/// Rounds of the network: positions are uniform over keys from 100 positions on (χ² per degree of
/// freedom 1.00).
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
    /// The chunks that storage tiers keep.
    Placement = 4,
    /// The units that each node holds.
    Shares = 5,
    /// The chunks that the shares of a store hold.
    Store = 6,
    /// The resident samples of a node.
    ResidentSamples = 7,
    /// The streamed units of an epoch.
    StreamedUnits = 8,
    /// The samples of one section of a node's streamed units.
    StreamSection = 9,
    /// What a turn takes of such sections.
    StreamTurn = 10,
    /// The samples of a pass over a source of a mixture.
    MixtureSamples = 11,
    /// The groups of a pass over a source of a mixture.
    MixtureGroups = 12,
    /// What a window of a lane draws of a pass over a source of a mixture.
    MixtureWindow = 13,
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

    /// The key as a number: a hash of all that it was folded from.
    pub(crate) fn word(self) -> u64 {
        self.0
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

/// Shuffles `items` as the permutation of their number does: afterwards `items[i]` is what stood at
/// `permutation.at(i)`.
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

    /// The position that holds `value`, which is below the length. Takes time in proportion to the
    /// length of a table.
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
    /// Values of the left half: ⌈√length⌉.
    left_size: u64,
    /// Values of the right half: as many as are needed.
    right_size: u64,
    keys: [u64; ROUNDS],
}

impl Network {
    /// For a length of at most 2^62.
    fn new(key: Key, length: u64) -> Self {
        let left_size = (length - 1).isqrt() + 1;
        let mut generator = Generator(key.0);
        let keys = std::array::from_fn(|_| generator.next());
        Self { length, left_size, right_size: length.div_ceil(left_size), keys }
    }

    /// Keyed hash of one half, below `size`; the top bits of a product depend on all bits below
    /// them.
    #[inline]
    fn hash(key: u64, half: u64, size: u64) -> u64 {
        let word = (half ^ key).wrapping_mul(MIX_1);
        let word = (word ^ (word >> 32)).wrapping_mul(MIX_2);
        ((u128::from(word) * u128::from(size)) >> 64) as u64
    }

    #[inline]
    pub(crate) fn at(&self, position: u64) -> u64 {
        debug_assert!(position < self.length);
        let mut value = position;
        loop {
            let (mut left, mut right) = (value % self.left_size, value / self.left_size);
            for keys in self.keys.as_chunks().0 {
                let [first, second] = *keys;
                left = add(left, Self::hash(first, right, self.left_size), self.left_size);
                right = add(right, Self::hash(second, left, self.right_size), self.right_size);
            }
            value = right * self.left_size + left;
            if value < self.length {
                return value;
            }
        }
    }

    fn position_of(&self, value: u64) -> u64 {
        debug_assert!(value < self.length);
        let mut position = value;
        loop {
            let (mut left, mut right) = (position % self.left_size, position / self.left_size);
            for keys in self.keys.as_chunks().0.iter().rev() {
                let [first, second] = *keys;
                right = subtract(right, Self::hash(second, left, self.right_size), self.right_size);
                left = subtract(left, Self::hash(first, right, self.left_size), self.left_size);
            }
            position = right * self.left_size + left;
            if position < self.length {
                return position;
            }
        }
    }
}

/// (one + other) mod size, of two numbers below it.
#[inline]
fn add(one: u64, other: u64, size: u64) -> u64 {
    let sum = one + other;
    if sum >= size { sum - size } else { sum }
}

/// (one − other) mod size, of two numbers below it.
#[inline]
fn subtract(one: u64, other: u64, size: u64) -> u64 {
    add(one, size - other, size)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn key(seed: u64) -> Key {
        Key::new(seed, Purpose::Samples)
    }

    proptest! {
        #[test]
        fn every_value_stands_at_one_position_and_is_found_there(seed: u64, length in 1_u64..9000) {
            let permutation = Permutation::new(key(seed), length);
            let mut seen = vec![false; length as usize];
            for position in 0..length {
                let value = permutation.at(position);
                prop_assert!(!std::mem::replace(&mut seen[value as usize], true));
            }
            let position = seed % length;
            prop_assert_eq!(permutation.position_of(permutation.at(position)), position);
        }

        #[test]
        fn a_network_of_any_length_goes_back_to_where_it_came_from(
            seed: u64, length in TABLE_LIMIT..1 << 62, position: u64,
        ) {
            let permutation = Permutation::new(key(seed), length);
            let value = permutation.at(position % length);
            prop_assert!(value < length);
            prop_assert_eq!(permutation.position_of(value), position % length);
        }
    }

    #[test]
    fn shuffling_in_place_is_looking_up_in_the_table() {
        let mut items: Vec<u64> = (0..1000).map(|item| item * 7).collect();
        shuffle(key(3), &mut items);
        let permutation = Permutation::new(key(3), 1000);
        assert!((0..1000).all(|position| items[position as usize] == permutation.at(position) * 7));
    }

    #[test]
    fn a_key_depends_on_every_number_and_on_their_order() {
        let keys = [
            key(0),
            key(1),
            Key::new(0, Purpose::Window),
            key(0).with(0),
            key(0).with(1),
            key(1).with(0),
            key(0).with(0).with(1),
            key(0).with(1).with(0),
        ];
        for (place, one) in keys.iter().enumerate() {
            assert!(keys[place + 1..].iter().all(|other| other != one), "key {place}");
        }
    }

    /// χ² per degree of freedom of the value at each of `positions`, over many keys, in `bins`
    /// equal bins.
    fn chi_square(length: u64, positions: &[u64], bins: u64, keys: u64) -> f64 {
        let mut counts = vec![0_u64; positions.len() * bins as usize];
        for seed in 0..keys {
            let permutation = Permutation::new(key(seed), length);
            for (row, position) in positions.iter().enumerate() {
                let bin =
                    (u128::from(permutation.at(*position)) * u128::from(bins) / u128::from(length)) as usize;
                counts[row * bins as usize + bin] += 1;
            }
        }
        let expected = keys as f64 / bins as f64;
        let sum: f64 = counts.iter().map(|count| (*count as f64 - expected).powi(2) / expected).sum();
        sum / (positions.len() as f64 * (bins as f64 - 1.0))
    }

    #[test]
    fn values_are_uniform_over_keys() {
        // Fixed keys, so the outcome is fixed. χ²/f strays from 1 by √(2/f): 0.32 and 0.12 in the
        // two tiny cases, at most 0.015 in the others.
        for (length, positions, bins) in [
            (5_u64, vec![0, 1, 2, 3, 4], 5_u64),
            (12, (0..12).collect(), 12),
            (1000, (0..1000).collect(), 10),
            (4096, (0..4096).step_by(16).collect(), 64),
            (5000, (0..5000).step_by(16).collect(), 64),
            (1_281_167, (0..1_281_167).step_by(4001).collect(), 64),
            (1 << 40, (0..200).collect(), 64),
        ] {
            let found = chi_square(length, &positions, bins, 4000);
            assert!(
                (found - 1.0).abs() < if length < 100 { 0.75 } else { 0.1 },
                "length {length}: {found:.3}"
            );
        }
    }

    #[test]
    fn neighbours_are_scattered_independently() {
        // Difference of the values of two neighbouring positions, modulo the length, in 16 bins.
        for length in [500_u64, 6000, 1_000_000] {
            let mut counts = [0_u64; 16];
            for seed in 0..200 {
                let permutation = Permutation::new(key(seed), length);
                for position in 0..100 {
                    let difference =
                        (permutation.at(position + 1) + length - permutation.at(position)) % length;
                    counts[(difference * 16 / length) as usize] += 1;
                }
            }
            let expected = 20_000.0 / 16.0;
            let sum: f64 = counts.iter().map(|count| (*count as f64 - expected).powi(2) / expected).sum();
            assert!(sum / 15.0 < 2.5, "length {length}: {:.3}", sum / 15.0);
        }
    }
}
