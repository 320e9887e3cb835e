//! `mainstay-restorer`: verifies, restores, compacts and copies etcd backups without an etcd.
//!
//! ```text
//! args → verb → backup (store, catalogue) → chain → rebuild → data directory → verdict
//!               locate                      choose   one pass    staged, swapped
//! ```
//!
//! One module per verb below [`verbs`]; each turns its flags into an [`outcome::Outcome`] or a
//! [`failure::Failure`], both of which carry a verdict that machines read and people understand.
//! The environment and the clock are read in [`cli`] and handed down.

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

/// Threads that may compute at the same time.
pub fn available_threads() -> NonZeroUsize {
    std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN)
}
