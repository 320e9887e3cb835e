//! One module per verb.

pub mod compact;
pub mod completions;
pub mod copy;
pub mod init;
pub mod initialize;
pub mod inspect;
pub mod list;
pub mod own;
pub mod restore;
pub mod set_aside;
pub mod verify;

use clap::Subcommand;

use crate::cli::CommandContext;
use crate::failure::CommandFailure;
use crate::outcome::CommandOutcome;

/// What to do.
#[derive(Debug, Subcommand)]
pub enum RestorerCommand {
    /// Show the snapshots of a prefix as chains
    List(Box<list::ListArgs>),
    /// Prove that a backup can be restored, or that a data directory is sound
    Verify(Box<verify::VerifyArgs>),
    /// Restore a data directory from a backup
    Restore(Box<restore::RestoreArgs>),
    /// Verify a data directory, and restore it when that is needed
    Initialize(Box<initialize::InitializeArgs>),
    /// Decide whether and how etcd may start in a pod, and write its configuration
    Init(Box<init::InitArgs>),
    /// Fold a full snapshot and its deltas into a new full snapshot
    Compact(Box<compact::CompactArgs>),
    /// Copy backups from one store to another
    Copy(Box<copy::CopyArgs>),
    /// Show what is in a data directory, a snapshot or a backup
    Inspect(Box<inspect::InspectArgs>),
    /// Put a data directory away without losing it
    SetAside(set_aside::SetAsideArgs),
    /// Give a directory to a user, before a container that is not root uses it
    Own(own::OwnArgs),
    /// Print a completion script for a shell
    Completions(completions::CompletionsArgs),
}

impl RestorerCommand {
    /// Does it.
    pub async fn run(self, context: &CommandContext) -> Result<CommandOutcome, CommandFailure> {
        match self {
            Self::List(args) => list::run(*args, context).await,
            Self::Verify(args) => verify::run(*args, context).await,
            Self::Restore(args) => restore::run(*args, context).await,
            Self::Initialize(args) => initialize::run(*args, context).await,
            Self::Init(args) => init::run(*args, context).await,
            Self::Compact(args) => compact::run(*args, context).await,
            Self::Copy(args) => copy::run(*args, context).await,
            Self::Inspect(args) => inspect::run(*args, context).await,
            Self::SetAside(args) => set_aside::run(args, context).await,
            Self::Own(args) => own::run(args).await,
            Self::Completions(args) => Ok(completions::run(&args)),
        }
    }
}
