//! The IPv6 forwarding table.

use super::{NextHopId, fib4::FibFull, prefixes::Prefixes6};

/// IPv6 prefixes to next hops.
pub struct Fib6(Prefixes6);

impl Fib6 {
    /// An empty table.
    ///
    /// # Errors
    /// When there is not enough memory.
    pub fn new() -> std::io::Result<Self> {
        Ok(Self(Prefixes6::new()))
    }

    /// Makes the table anew.
    ///
    /// # Errors
    /// When it does not fit.
    pub fn build(&mut self, prefixes: &Prefixes6) -> Result<(), FibFull> {
        self.0 = prefixes.clone();
        Ok(())
    }

    /// The next hop of `address`, host order.
    pub fn lookup(&self, address: u128) -> NextHopId {
        self.0.longest_match(address).map_or(0, |(_, id)| id)
    }

    /// Asks for what the lookup will read first.
    pub fn prefetch_dir(&self, _address: u128) {}

    /// Looks up a burst's addresses.
    pub fn lookup_batch(&self, addresses: &[u128], out: &mut [NextHopId]) {
        for (&address, out) in addresses.iter().zip(out) {
            *out = self.lookup(address);
        }
    }
}
