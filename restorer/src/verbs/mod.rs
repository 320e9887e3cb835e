//! One module per verb.

pub mod compact;
pub mod completions;
pub mod initialize;
pub mod restore;

use clap::Subcommand;

use crate::cli::Context;
use crate::failure::Failure;
use crate::outcome::Outcome;

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// Restore a data directory from a backup
    Restore(Box<restore::RestoreArgs>),
    /// Verify a data directory, and restore it when that is needed
    Initialize(Box<initialize::InitializeArgs>),
    /// Fold a full snapshot and its deltas into a new full snapshot
    Compact(Box<compact::CompactArgs>),
    /// Print a completion script for a shell
    Completions(completions::CompletionsArgs),
}

impl Verb {
    /// Does it.
    pub async fn run(self, context: &Context) -> Result<Outcome, Failure> {
        match self {
            Self::Restore(args) => restore::run(*args, context).await,
            Self::Initialize(args) => initialize::run(*args, context).await,
            Self::Compact(args) => compact::run(*args, context).await,
            Self::Completions(args) => Ok(completions::run(&args)),
        }
    }
}
