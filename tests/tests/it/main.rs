//! Runs the programs as users do, on real backups, and verifies the results with real etcd servers.
//!
//! ```text
//! fixtures/ | Load + Recorder ─► bucket ─► mainstay-restorer (a child process) ─► directory ─► etcd
//!                    └────────── state of the source ───────────────── equal? ───────────────┘
//! ```
//!
//! A restored cluster is correct if a live etcd on it reports the same hash over the whole history and every key with its
//! revisions, version and lease, and continues to work.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that cannot go on fails where it is"
)]

mod cluster;
mod compact;
mod crashes;
mod fixtures;
mod point_in_time;
mod random_histories;
mod release;
mod restored_members;
mod servers;
mod sidecar;
mod stores;
mod support;
mod upstream;
