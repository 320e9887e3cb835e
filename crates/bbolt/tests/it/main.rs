//! Tests through the public API: created files, appended files, crashes, hostile files.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod build;
mod crash;
mod damaged_files;
mod support;
