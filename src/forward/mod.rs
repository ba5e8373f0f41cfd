//! What workers do: the loop, one file per stage, and the verdicts.

pub mod assembly;
pub mod bell;
pub mod bucket;
pub mod builtin;
pub mod burst;
pub mod clock;
pub mod flow_hash;
pub mod flows;
pub mod fragment;
pub mod hand_over;
pub mod handover;
pub mod hold;
pub mod icmp_error;
pub mod idle;
pub mod ipv4_options;
pub mod messages;
pub mod outputs;
pub mod parse;
pub mod reverse_path;
pub mod rewrite;
pub mod route;
pub mod slow;
pub mod sums;
pub mod used;
pub mod verdict;
pub mod worker;
