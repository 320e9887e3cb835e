//! `mainstay-restorer`: verifies, restores, compacts and copies etcd backups without running etcd.
//!
//! ```text
//! args → verb → backup (store, catalogue) → chain → rebuild → data directory → verdict
//!               list                       choose   stream      staged, swapped
//! ```
//!
//! One module per verb below [`commands`]; each turns its flags into an [`outcome::CommandOutcome`] or a
//! [`failure::CommandFailure`]. Both carry a verdict: its name and its exit code are an interface.
//! Only [`cli`] reads the environment and the clock; verbs get them as arguments.

#![expect(
    missing_docs,
    reason = "a program: only its own tests use what is public"
)]

pub mod args;
pub mod backup;
pub mod cli;
pub mod commands;
pub(crate) mod data_dir_restore;
pub mod directory;
pub mod failure;
pub mod fallback;
pub(crate) mod health;
pub(crate) mod history_check;
pub(crate) mod members;
pub mod outcome;
pub mod rebuild;
pub mod restore_options;
pub(crate) mod target;
mod termination_message;
pub(crate) mod upstream;

use std::num::NonZeroUsize;

/// Number of CPU-bound threads to run in parallel; 1 if the number of CPUs is unknown.
pub(crate) fn available_threads() -> NonZeroUsize {
    std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN)
}
