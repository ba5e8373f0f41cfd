//! The two processor instructions that lookups are made of: counting bits and prefetching.

/// Number of set bits in `bits`.
///
/// On x86-64 a portable build has no POPCNT and would spend a dozen instructions here, twice a
/// packet, so the instruction is written out; [`check`] makes sure that it is there.
#[inline(always)]
pub(crate) fn count_ones(bits: u64) -> usize {
    #[cfg(all(target_arch = "x86_64", not(target_feature = "popcnt"), not(miri)))]
    {
        let count: u64;
        // SAFETY: touches nothing but the two registers; every FIB's constructor calls `check`
        // and fails on a processor without the instruction.
        unsafe {
            std::arch::asm!("popcnt {}, {}", out(reg) count, in(reg) bits,
                options(pure, nomem, nostack));
        }
        count as usize
    }
    #[cfg(not(all(target_arch = "x86_64", not(target_feature = "popcnt"), not(miri))))]
    {
        bits.count_ones() as usize
    }
}

/// Fails when this processor lacks what the lookups need.
pub(crate) fn check() -> std::io::Result<()> {
    #[cfg(target_arch = "x86_64")]
    if !std::is_x86_feature_detected!("popcnt") {
        return Err(std::io::Error::new(
            std::io::ErrorKind::Unsupported,
            "this processor has no POPCNT instruction: use one made after 2008",
        ));
    }
    Ok(())
}

/// Asks for the cache line at `address`; any address is allowed.
#[inline(always)]
pub(crate) fn prefetch<T>(address: *const T) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) }
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a prefetch never faults and changes no register or flag.
    unsafe {
        std::arch::asm!("prfm pldl1keep, [{}]", in(reg) address, options(readonly, nostack, preserves_flags));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = address;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_counted() {
        assert!(check().is_ok());
        for shift in 0..64 {
            assert_eq!(count_ones(u64::MAX >> shift), 64 - shift);
        }
        assert_eq!(count_ones(0), 0);
    }
}
