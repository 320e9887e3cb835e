//! Runs the controller against a real API server and, where members matter, real etcd servers.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails at the line that cannot continue"
)]

mod live;
mod man_page;
