//! Promises of the store, kept by a directory, a real S3 server, Azurite and a server of Google's
//! XML dialect, also when the network misbehaves.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that cannot go on should stop where it is"
)]

mod azure;
mod conformance;
mod data;
mod faults;
mod gcs;
mod local;
mod memory;
mod proxy;
mod s3;
mod secrets;
mod servers;
mod tls;
