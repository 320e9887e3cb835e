//! Conformance tests for every backing: files, and a ConfigMap on a real API server in `live`.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod conformance;
mod contention;
mod file;
mod live;
mod malformed_documents;
