//! The programs as people run them, on real backups, judged by real etcd servers.
//!
//! ```text
//! fixtures/ | Load + Recorder ─► bucket ─► mainstay-restorer (a child process) ─► directory ─► etcd
//!                    └────────── what the source answered ──────────── equal? ───────────────┘
//! ```
//!
//! A restored cluster is right when a live etcd says so: the hash over its whole history, every key
//! with its revisions, version and lease, and that it goes on working.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that cannot go on fails where it is"
)]

mod cluster;
mod compact;
mod crashes;
mod fixtures;
mod loads;
mod members;
mod moments;
mod servers;
mod sidecar;
mod stores;
mod support;
