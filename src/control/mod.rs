//! What makes the tables: the keeper's thread follows the kernel, keeps the routing information
//! base, resolves neighbours, and publishes what workers read. Nothing but the commands imports
//! this.

mod buckets;
pub mod kernel;
pub mod next_hops;
pub mod rib;
