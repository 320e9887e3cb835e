//! `mainstay-restorer`: verifies, restores, compacts and copies etcd backups without running etcd.
//!
//! ```text
//! args → verb → backup (store, catalogue) → chain → rebuild → data directory → verdict
//!               list                       choose   stream      staged, swapped
//! ```
//!
//! One module per verb below [`verbs`]; each turns its flags into an [`outcome::Outcome`] or a
//! [`failure::Failure`]. Both carry a verdict: its name and its exit code are an interface.
//! Only [`cli`] reads the environment and the clock; verbs get them as arguments.

pub mod args;
pub mod backup;
pub mod cli;
pub mod detour;
pub mod directory;
pub mod examine;
pub mod failure;
pub mod health;
mod last_words;
pub mod members;
pub mod outcome;
pub mod peer;
pub mod rebuild;
pub mod reseat;
pub mod target;
pub mod verbs;

use std::num::NonZeroUsize;

/// Number of CPU-bound threads to run in parallel; 1 if the number of CPUs is unknown.
pub fn available_threads() -> NonZeroUsize {
    std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN)
}
