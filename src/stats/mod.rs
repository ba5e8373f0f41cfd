//! Counters: written by workers into shared memory with plain stores, read by other processes.

pub mod counters;
pub mod cpu;
pub mod file;
mod layout;
pub mod metrics;
pub mod netstat;
pub mod read;
pub mod rows;
pub mod view;
