//! The daemon's own sources of the publication, built with loom's atomics in place of the
//! standard ones: `RUSTFLAGS="--cfg loom" cargo test --manifest-path loom/Cargo.toml`.
#![cfg(loom)]

#[path = "../../src/tables/publish.rs"]
pub mod publish;
#[path = "../../src/tables/sync.rs"]
mod sync;
