//! Tests of the store with a directory, a real S3 server, Azurite and a server for Google's XML API, also
//! over a faulty network.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
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
