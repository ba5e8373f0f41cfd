//! What makes the tables: the keeper's thread follows the kernel, keeps the routing information
//! base, resolves neighbours, and publishes what workers read. Nothing but the commands imports
//! this.

mod advice;
mod apply;
pub mod barrier;
pub mod buckets;
pub mod capture;
pub mod diff;
pub mod flows;
mod follower;
pub mod keeper;
pub mod kernel;
mod learned;
pub mod metrics;
pub mod next_hops;
pub mod reload;
pub mod requests;
mod resolver;
pub mod rib;
pub mod setup;
pub mod show;
pub mod socket;
pub mod translation;
mod watch;

pub use keeper::{
    Changed, Changer, Keeper, KeeperConfig, KeeperError, KeeperPort, Notice, Settings, WorkerLine,
};
