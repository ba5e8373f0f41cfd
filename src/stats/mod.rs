//! Counters: written by workers into shared memory with plain stores, read by other processes.

pub mod counters;
