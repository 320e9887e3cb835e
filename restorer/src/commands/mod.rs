//! One module per verb.

pub(crate) mod compact;
pub(crate) mod completions;
pub(crate) mod copy;
pub(crate) mod init;
pub(crate) mod initialize;
pub(crate) mod inspect;
pub(crate) mod list;
pub(crate) mod own;
pub(crate) mod restore;
pub(crate) mod set_aside;
pub(crate) mod verify;

use clap::Subcommand;

use crate::cli::CommandContext;
use crate::failure::CommandFailure;
use crate::outcome::CommandOutcome;

/// The verbs of the program.
#[derive(Debug, Subcommand)]
pub enum RestorerCommand {
    /// List the snapshots of a backup as chains
    List(Box<list::ListArgs>),
    /// Verify that a backup can be restored, or that a data directory is valid
    Verify(Box<verify::VerifyArgs>),
    /// Restore a data directory from a backup
    Restore(Box<restore::RestoreArgs>),
    /// Verify a data directory and restore it if needed (without Kubernetes)
    Initialize(Box<initialize::InitializeArgs>),
    /// Decide whether etcd may start in a pod, and write its configuration
    Init(Box<init::InitArgs>),
    /// Compact a full snapshot and its deltas into a new full snapshot
    Compact(Box<compact::CompactArgs>),
    /// Copy backups from one store to another
    Copy(Box<copy::CopyArgs>),
    /// Show the content of a data directory, a snapshot or a backup
    Inspect(Box<inspect::InspectArgs>),
    /// Rename a data directory so that its member starts without data
    SetAside(set_aside::SetAsideArgs),
    /// Change the owner of a directory before a non-root container uses it
    Own(own::OwnArgs),
    /// Print a shell completion script
    Completions(completions::CompletionsArgs),
}

impl RestorerCommand {
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
