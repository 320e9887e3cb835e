//! Integration tests of the sidecar against real servers.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that cannot continue should fail at once"
)]

mod http;
mod kubernetes;
mod maintenance;
mod man_page;
mod retention;
mod watcher;
