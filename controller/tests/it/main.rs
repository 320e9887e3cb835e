//! The controller against a real API server, and real etcd servers where members matter.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that cannot go on fails where it is"
)]

mod live;
mod manual;
