//! The fixtures keep their promises on every etcd.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod etcd;
mod faults;
mod kubernetes;
mod load;
mod recorder;
mod resources;
