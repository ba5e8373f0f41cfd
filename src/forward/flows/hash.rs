//! The hash under which flows are found: keyed, so that nobody outside can aim at one bucket.
//!
//! It is the pair-multiply-shift of Thorup ("High speed hashing for integers and strings", section
//! 3.5): words are taken two at a time, each gets a secret 64-bit number added, and the upper half
//! of the sum of the products is the hash. Over the choice of the secret, any two different keys
//! have equal hashes with a probability of 2⁻³², whoever chose the keys: that is proved, and costs
//! two multiplications for IPv4. A cryptographic hash would promise more than is needed (nobody
//! outside sees a hash) at several times the cost; one that uses the processor's AES would be no
//! faster, and not be there on every machine.

use std::io;

/// Words in the longest key.
const WORDS: usize = 10;

/// Scatters what the sum leaves in a row, without making two equal that were not: MurmurHash3's
/// last step. Keys in a row would otherwise give hashes in a row, and fill some buckets more than
/// others.
#[inline(always)]
const fn scatter(hash: u32) -> u32 {
    let hash = (hash ^ hash >> 16).wrapping_mul(0x85eb_ca6b);
    let hash = (hash ^ hash >> 13).wrapping_mul(0xc2b2_ae35);
    hash ^ hash >> 16
}

/// The secret numbers; made anew at every start.
#[derive(Clone)]
pub struct Secret {
    add: [u64; WORDS],
    last: u64,
}

impl Secret {
    /// Numbers from the system's random generator.
    ///
    /// # Errors
    /// When the system has none.
    pub fn random() -> io::Result<Self> {
        let mut bytes = [0; 8 * (WORDS + 1)];
        getrandom::fill(&mut bytes).map_err(|e| io::Error::other(e.to_string()))?;
        let mut words = bytes.chunks_exact(8).map(|b| b.iter().fold(0, |n, b| n << 8 | u64::from(*b)));
        let mut next = || words.next().unwrap_or_default();
        Ok(Self { add: std::array::from_fn(|_| next()), last: next() })
    }

    /// Numbers that follow from `seed`: for tests and benchmarks, which are to be repeatable.
    pub fn from_seed(seed: u64) -> Self {
        let mut state = seed;
        // splitmix64
        let mut next = || {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let z = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^ z >> 31
        };
        Self { add: std::array::from_fn(|_| next()), last: next() }
    }

    /// The hash of `N` words, an even number, at most ten. Keys of different lengths are to differ
    /// in their first words.
    #[inline(always)]
    pub fn hash<const N: usize>(&self, words: &[u32; N]) -> u32 {
        const { assert!(N.is_multiple_of(2) && N <= WORDS) };
        let mut sum = self.last;
        for k in (0..N).step_by(2) {
            let one = self.add[k].wrapping_add(words[k + 1].into());
            let other = self.add[k + 1].wrapping_add(words[k].into());
            sum = sum.wrapping_add(one.wrapping_mul(other));
        }
        scatter((sum >> 32) as u32)
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How far from even the hashes of these keys fall into 256 bins: chi-squared.
    fn unevenness(secret: &Secret, shift: u32, keys: impl Iterator<Item = [u32; 4]>) -> f64 {
        let mut bins = [0f64; 256];
        let mut n = 0.0;
        for key in keys {
            bins[(secret.hash(&key) >> shift & 255) as usize] += 1.0;
            n += 1.0;
        }
        let mean = n / 256.0;
        bins.iter().map(|count| (count - mean).powi(2) / mean).sum()
    }

    #[test]
    fn keys_in_a_row_fall_evenly_for_every_secret() {
        for seed in 0..20 {
            let secret = Secret::from_seed(seed);
            for shift in [0, 8, 24] {
                let hosts = (0..65536).map(|i| [6, 443, 0x0a00_0000 + i, 0xc633_6401]);
                let ports = (0..65536).map(|i| [17, i << 16 | 53, 0x0a00_0001, 0xc633_6401]);
                // 255 degrees of freedom: 255 on average, 22.6 the deviation.
                for worst in [unevenness(&secret, shift, hosts), unevenness(&secret, shift, ports)] {
                    assert!(worst < 500.0, "seed {seed}, bits from {shift}: {worst}");
                }
            }
        }
    }

    #[test]
    fn another_secret_gives_other_hashes() {
        let key = [1, 2, 3, 4];
        let hashes: std::collections::HashSet<u32> =
            (0..1000).map(|seed| Secret::from_seed(seed).hash(&key)).collect();
        assert!(hashes.len() > 990);
        assert_ne!(Secret::random().unwrap().add, Secret::random().unwrap().add);
    }

    #[test]
    fn every_word_counts() {
        let secret = Secret::from_seed(7);
        let key = [0u32; 10];
        for word in 0..10 {
            for bit in 0..32 {
                let mut other = key;
                other[word] ^= 1 << bit;
                assert_ne!(secret.hash(&key), secret.hash(&other), "bit {bit} of word {word}");
            }
        }
    }
}
