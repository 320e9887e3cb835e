//! The sidecar against real parts.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that cannot go on should stop where it is"
)]

mod follow;
mod http;
mod kubernetes;
mod maintenance;
mod manual;
mod retention;
