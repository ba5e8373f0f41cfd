//! What workers do: the loop, one file per stage, and the verdicts.

pub mod bucket;
pub mod builtin;
pub mod fragment;
pub mod hold;
pub mod icmp_error;
pub mod ipv4_options;
pub mod messages;
pub mod verdict;
