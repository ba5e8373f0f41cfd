//! Counters: written by workers into shared memory with plain stores, read by other processes.

pub mod counters;
pub mod file;
mod layout;
pub mod netstat;
pub mod read;
pub mod view;
