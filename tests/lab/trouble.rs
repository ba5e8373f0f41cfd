//! What changes while packets flow.
