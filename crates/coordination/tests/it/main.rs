//! The promises of coordination, kept by every backing: files here, a ConfigMap of a real API server in `live`.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod conformance;
mod contention;
mod file;
mod hostile;
mod live;
