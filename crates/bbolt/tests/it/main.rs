//! The engine as its users see it: built files, appended files, crashed files, hostile files.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod build;
mod crash;
mod hostile;
mod support;
