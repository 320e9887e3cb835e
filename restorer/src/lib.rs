//! `mainstay-restorer`: verifies, restores, compacts and copies etcd backups without running etcd.
//!
//! ```text
//! args → verb → backup (store, catalogue) → chain → rebuild → data directory → verdict
//!               list                       choose   stream      staged, swapped
//! ```
//!
//! One module per verb below [`commands`]; each turns its flags into an [`outcome::Outcome`] or a
//! [`failure::Failure`]. Both carry a verdict: its name and its exit code are an interface.
//! Only [`cli`] reads the environment and the clock; verbs get them as arguments.

pub mod args;
pub mod backup;
pub mod cli;
pub mod fallback;
pub mod directory;
pub mod object_check;
pub mod failure;
pub mod health;
mod termination_message;
pub mod members;
pub mod outcome;
pub mod upstream;
pub mod rebuild;
pub mod data_dir_restore;
pub mod target;
pub mod commands;

use std::num::NonZeroUsize;

/// Number of CPU-bound threads to run in parallel; 1 if the number of CPUs is unknown.
pub fn available_threads() -> NonZeroUsize {
    std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN)
}
