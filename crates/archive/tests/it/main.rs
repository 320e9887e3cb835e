//! The crate against buckets the peer wrote, and against random input.

#![expect(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    reason = "tests may panic on what they built themselves"
)]

mod choosing;
mod fixtures;
mod props;
mod retention;
