//! What workers do: the loop, one file per stage, and the verdicts.

pub mod bucket;
pub mod fragment;
pub mod icmp_error;
pub mod messages;
pub mod verdict;
