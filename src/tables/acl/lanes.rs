//! Eight words side by side, with the vector instructions that the processor has or without.

/// Words side by side.
pub(super) const LANES: usize = 8;

/// Eight words.
pub(super) trait Lanes: Copy {
    /// # Safety
    /// The processor has the instructions; so for all that follow.
    unsafe fn load(words: &[u32; LANES]) -> Self;
    /// The same word eight times.
    ///
    /// # Safety
    /// As above.
    unsafe fn all(word: u32) -> Self;
    /// # Safety
    /// As above.
    unsafe fn store(self, words: &mut [u32; LANES]);
    /// # Safety
    /// As above.
    unsafe fn or(self, other: Self) -> Self;
    /// Lane by lane, the bits of `mask` in which it is not `value`.
    ///
    /// # Safety
    /// As above.
    unsafe fn differs(self, value: &[u32; LANES], mask: &[u32; LANES]) -> Self;
    /// Lane by lane and half by half, 0 when it is `lowest` or one of so many that follow.
    ///
    /// # Safety
    /// As above.
    unsafe fn beyond(self, lowest: &[u32; LANES], follow: &[u32; LANES]) -> Self;
    /// One bit for each lane that is 0.
    ///
    /// # Safety
    /// As above.
    unsafe fn zeroes(self) -> u32;
    /// Lane by lane, `new` where it is 0, else `old`.
    ///
    /// # Safety
    /// As above.
    unsafe fn choose(self, new: &[u32; LANES], old: Self) -> Self;
}

/// For every processor.
#[derive(Clone, Copy)]
pub(super) struct Plain([u32; LANES]);

impl Lanes for Plain {
    #[inline(always)]
    unsafe fn load(words: &[u32; LANES]) -> Self {
        Self(*words)
    }

    #[inline(always)]
    unsafe fn all(word: u32) -> Self {
        Self([word; LANES])
    }

    #[inline(always)]
    unsafe fn store(self, words: &mut [u32; LANES]) {
        *words = self.0;
    }

    #[inline(always)]
    unsafe fn or(self, other: Self) -> Self {
        Self(std::array::from_fn(|lane| self.0[lane] | other.0[lane]))
    }

    #[inline(always)]
    unsafe fn differs(self, value: &[u32; LANES], mask: &[u32; LANES]) -> Self {
        Self(std::array::from_fn(|lane| (self.0[lane] ^ value[lane]) & mask[lane]))
    }

    #[inline(always)]
    unsafe fn beyond(self, lowest: &[u32; LANES], follow: &[u32; LANES]) -> Self {
        let beyond = |lane: usize, shift: u32| {
            let half = |word: u32| (word >> shift) as u16;
            let above = half(self.0[lane]).wrapping_sub(half(lowest[lane]));
            u32::from(above.saturating_sub(half(follow[lane]))) << shift
        };
        Self(std::array::from_fn(|lane| beyond(lane, 0) | beyond(lane, 16)))
    }

    #[inline(always)]
    unsafe fn zeroes(self) -> u32 {
        self.0.iter().enumerate().fold(0, |bits, (lane, word)| bits | u32::from(*word == 0) << lane)
    }

    #[inline(always)]
    unsafe fn choose(self, new: &[u32; LANES], old: Self) -> Self {
        Self(std::array::from_fn(|lane| if self.0[lane] == 0 { new[lane] } else { old.0[lane] }))
    }
}

/// For processors with AVX2.
#[cfg(target_arch = "x86_64")]
pub(super) mod avx2 {
    use std::arch::x86_64::*;

    use super::LANES;

    #[derive(Clone, Copy)]
    pub(in super::super) struct Avx2(__m256i);

    impl Avx2 {
        /// # Safety
        /// The processor has AVX2.
        #[inline(always)]
        unsafe fn read(words: &[u32; LANES]) -> __m256i {
            // SAFETY: eight words are 32 bytes; the load asks for no alignment.
            unsafe { _mm256_loadu_si256(words.as_ptr().cast()) }
        }
    }

    impl super::Lanes for Avx2 {
        #[inline(always)]
        unsafe fn load(words: &[u32; LANES]) -> Self {
            // SAFETY: the caller's.
            Self(unsafe { Self::read(words) })
        }

        #[inline(always)]
        unsafe fn all(word: u32) -> Self {
            // SAFETY: the caller's.
            Self(unsafe { _mm256_set1_epi32(word as i32) })
        }

        #[inline(always)]
        unsafe fn store(self, words: &mut [u32; LANES]) {
            // SAFETY: eight words are 32 bytes; the store asks for no alignment.
            unsafe { _mm256_storeu_si256(words.as_mut_ptr().cast(), self.0) }
        }

        #[inline(always)]
        unsafe fn or(self, other: Self) -> Self {
            // SAFETY: the caller's.
            Self(unsafe { _mm256_or_si256(self.0, other.0) })
        }

        #[inline(always)]
        unsafe fn differs(self, value: &[u32; LANES], mask: &[u32; LANES]) -> Self {
            // SAFETY: the caller's.
            Self(unsafe { _mm256_and_si256(_mm256_xor_si256(self.0, Self::read(value)), Self::read(mask)) })
        }

        #[inline(always)]
        unsafe fn beyond(self, lowest: &[u32; LANES], follow: &[u32; LANES]) -> Self {
            // SAFETY: the caller's.
            unsafe {
                let above = _mm256_sub_epi16(self.0, Self::read(lowest));
                Self(_mm256_subs_epu16(above, Self::read(follow)))
            }
        }

        #[inline(always)]
        unsafe fn zeroes(self) -> u32 {
            // SAFETY: the caller's.
            unsafe {
                let zeroes = _mm256_cmpeq_epi32(self.0, _mm256_setzero_si256());
                _mm256_movemask_ps(_mm256_castsi256_ps(zeroes)) as u32
            }
        }

        #[inline(always)]
        unsafe fn choose(self, new: &[u32; LANES], old: Self) -> Self {
            // SAFETY: the caller's.
            unsafe {
                let zeroes = _mm256_cmpeq_epi32(self.0, _mm256_setzero_si256());
                Self(_mm256_blendv_epi8(old.0, Self::read(new), zeroes))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tables::synthetic::Random;

    /// All that `L` does with these.
    unsafe fn all<L: Lanes>(words: &[[u32; LANES]; 4]) -> [[u32; LANES]; 4] {
        let [one, value, mask, other] = words;
        // SAFETY: the caller's.
        unsafe {
            let (lanes, other) = (L::load(one), L::load(other));
            let differs = lanes.differs(value, mask);
            let beyond = lanes.beyond(value, mask);
            let results = [differs.or(other), beyond, differs.choose(value, other), L::all(beyond.zeroes())];
            results.map(|result| {
                let mut words = [0; LANES];
                result.store(&mut words);
                words
            })
        }
    }

    #[test]
    fn vector_instructions_say_what_plain_ones_do() {
        let mut random = Random::new(1);
        for _ in 0..20_000 {
            let mut words: [[u32; LANES]; 4] =
                std::array::from_fn(|_| std::array::from_fn(|_| random.bits() as u32));
            // Ports at the borders of small ranges, and masks that leave nothing.
            let [ports, first, reach, _] = &mut words;
            for ((port, first), reach) in ports.iter_mut().zip(first).zip(reach) {
                *reach &= [u32::MAX, 0x0003_0003, 0, 0xffff][random.below(4)];
                if random.below(2) == 0 {
                    let near = [0, 0x0001_0001, 0x0003_0003, 0x0004_0004][random.below(4)];
                    *port = first.wrapping_add(near);
                }
            }
            // SAFETY: every processor has these.
            let plain = unsafe { all::<Plain>(&words) };
            let bits =
                plain[1].iter().enumerate().fold(0, |bits, (k, word)| bits | u32::from(*word == 0) << k);
            assert_eq!(plain[3], [bits; LANES]);
            let [ports, first, reach, _] = words;
            for (lane, out) in plain[1].iter().enumerate() {
                let in_range = |shift: u32| {
                    let half = |word: u32| word >> shift & 0xffff;
                    let above = (half(ports[lane]) + 0x1_0000 - half(first[lane])) & 0xffff;
                    above <= half(reach[lane])
                };
                assert_eq!(*out == 0, in_range(0) && in_range(16));
            }
            #[cfg(target_arch = "x86_64")]
            if std::is_x86_feature_detected!("avx2") {
                // SAFETY: it has them.
                assert_eq!(unsafe { all::<avx2::Avx2>(&words) }, plain);
            }
        }
    }
}
