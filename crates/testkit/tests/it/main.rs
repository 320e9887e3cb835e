//! Tests of the fixtures on every etcd version.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod etcd;
mod faults;
mod kubernetes;
mod recorder;
mod resources;
mod workload;
