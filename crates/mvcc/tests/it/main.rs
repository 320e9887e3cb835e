//! Rows, hashes and compaction against the answers real servers gave.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod compaction;
mod faults;
mod hashes;
mod model;
mod support;
