//! The random numbers of a sample: a pure function of seed, epoch and sample id.
//!
//! They are those of `numpy.random.Generator(Philox(key=seed + 2**64 * epoch, counter=2**192 * id +
//! 2**128))`: Philox4x64-10 (Salmon et al., *Parallel random numbers: as easy as 1, 2, 3*, SC
//! 2011).
//! The functions of `transform=` get another range of the same sample's counters
//! (`docs/per-sample.md`), so the two never share a number.

const MULTIPLIERS: [u64; 2] = [0xD2E7_470E_E14C_6C93, 0xCA5A_8263_9512_1157];
const WEYL: [u64; 2] = [0x9E37_79B9_7F4A_7C15, 0xBB67_AE85_84CA_A73B];
const ROUNDS: usize = 10;
/// Third word of the counter: which of the streams of a sample.
const STREAM: u64 = 1;

/// What the random numbers of a sample depend on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SampleKey {
    /// Seed of the loader.
    pub seed: u64,
    /// Epoch, counted from 0.
    pub epoch: u64,
    /// Id of the sample.
    pub sample: u64,
}

/// Random numbers of one sample, from the start of its stream.
pub(crate) struct Random {
    key: [u64; 2],
    counter: [u64; 4],
    block: [u64; 4],
    used: usize,
}

impl Random {
    pub(crate) fn new(key: SampleKey) -> Self {
        let counter = [0, 0, STREAM, key.sample];
        Self { key: [key.seed, key.epoch], counter, block: [0; 4], used: 4 }
    }

    fn next(&mut self) -> u64 {
        if self.used == self.block.len() {
            // Numpy counts before it generates. No sample takes 2**64 blocks.
            self.counter[0] += 1;
            self.block = philox(self.key, self.counter);
            self.used = 0;
        }
        self.used += 1;
        self.block[self.used - 1]
    }

    /// A number from 0 to below 1, as `Generator.random()`.
    pub(crate) fn unit(&mut self) -> f64 {
        const STEP: f64 = 1.0 / (1_u64 << 53) as f64;
        (self.next() >> 11) as f64 * STEP
    }
}

fn philox(mut key: [u64; 2], mut counter: [u64; 4]) -> [u64; 4] {
    for round in 0..ROUNDS {
        if round > 0 {
            key = [key[0].wrapping_add(WEYL[0]), key[1].wrapping_add(WEYL[1])];
        }
        let product = |multiplier: u64, word: u64| {
            let product = u128::from(multiplier) * u128::from(word);
            ((product >> 64) as u64, product as u64)
        };
        let (high0, low0) = product(MULTIPLIERS[0], counter[0]);
        let (high1, low1) = product(MULTIPLIERS[1], counter[2]);
        counter = [high1 ^ counter[1] ^ key[0], low1, high0 ^ counter[3] ^ key[1], low0];
    }
    counter
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_numpy() {
        // g = Generator(Philox(key=7 + 2**64 * 3, counter=2**192 * 11 + 2**128))
        let mut random = Random::new(SampleKey { seed: 7, epoch: 3, sample: 11 });
        // [int(n) for n in g.bit_generator.random_raw(6)]
        let expected: [u64; 6] = [
            9_248_041_626_657_627_879,
            11_554_678_659_322_593_339,
            17_652_760_300_531_969_033,
            4_215_966_412_270_084_617,
            5_248_310_979_053_124_289,
            8_068_704_514_829_613_173,
        ];
        assert_eq!(std::array::from_fn(|_| random.next()), expected);
    }

    #[test]
    fn every_part_of_the_key_changes_the_numbers() {
        let key = SampleKey { seed: 1, epoch: 2, sample: 3 };
        let first = |key| Random::new(key).next();
        for other in
            [SampleKey { seed: 2, ..key }, SampleKey { epoch: 3, ..key }, SampleKey { sample: 4, ..key }]
        {
            assert_ne!(first(key), first(other));
        }
    }
}
