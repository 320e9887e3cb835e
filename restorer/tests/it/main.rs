//! The restorer as a library, on buckets real etcd servers and the peer wrote.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod manual;
mod rebuild;
mod support;
mod synthetic;
