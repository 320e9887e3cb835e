//! Compares rows, hashes and compaction with the results of real servers.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod compaction;
mod faults;
mod hashes;
mod model;
mod support;
