//! What workers do: the loop, one file per stage, and the verdicts.

pub mod messages;
pub mod verdict;
