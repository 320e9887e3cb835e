//! Tests the crate with buckets written by etcd-backup-restore, and with random input.

#![expect(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    reason = "tests may panic on what they built themselves"
)]

mod chain_selection;
mod fixtures;
mod props;
mod retention;
