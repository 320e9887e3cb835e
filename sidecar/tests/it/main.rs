//! The sidecar against real parts.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that cannot go on fails"
)]

mod maintenance;
mod retention;
