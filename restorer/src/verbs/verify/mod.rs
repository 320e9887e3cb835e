//! `verify`: proves a backup, object by object, or a data directory.
//!
//! The two have nothing in common but the question, so each is a half of its own: [`backup`] and
//! [`crate::health`].

pub mod backup;
mod pool;

use std::path::PathBuf;

use clap::Args;
use mainstay_store::StoreArgs;

use crate::cli::CommandContext;
use crate::failure::CommandFailure;
use crate::health::{self, ValidationMode};
use crate::outcome::CommandOutcome;
use crate::rebuild::HashCheck;
use crate::target::TargetArgs;

/// Flags of `verify`.
#[derive(Debug, Args)]
#[command(
    long_about = "Proves that a backup can be restored, without restoring it; or, with --data-dir, that a \
        data directory is sound.\n\n\
        Of a backup, reads every object of the chain a restore would use: its compression must be whole, its hash \
        right, and every revision from the full snapshot to the target must be there. Needs no disk: \
        the revision a full snapshot really holds is found while it streams by.\n\n\
        Of a data directory, reads every page, every row and every record of the log, and how they \
        relate. Writes nothing. One that a running etcd uses is refused.",
    after_help = "Examples:\n  \
        # is the newest state of a bucket restorable?\n  \
        mainstay-restorer verify --storage-provider S3 --store-container backups --store-prefix shoot-1/etcd-main\n\n  \
        # every object of the prefix, with a report for machines\n  \
        mainstay-restorer verify --store-container etcd-backups --all -o json\n\n  \
        # could the state before an incident be had?\n  \
        mainstay-restorer verify --store-container etcd-backups --to-time 2026-01-31T11:59:00Z\n\n  \
        # can etcd start on this directory?\n  \
        mainstay-restorer verify --data-dir /var/etcd/data/new.etcd"
)]
pub struct VerifyArgs {
    /// Verify this data directory instead of a backup
    #[arg(short, long, value_name = "DIR")]
    #[arg(conflicts_with_all = ["to_revision", "to_time", "from", "all", "skip_hash_check"])]
    pub data_dir: Option<PathBuf>,

    /// How thoroughly to verify a data directory: full after a crash, sanity after a clean stop
    #[arg(
        long,
        value_name = "MODE",
        default_value = "full",
        requires = "data_dir"
    )]
    #[arg(env = "MAINSTAY_VALIDATION_MODE")]
    pub validation_mode: ValidationMode,

    /// The backup.
    #[command(flatten)]
    pub store: StoreArgs,
    /// Which state of it.
    #[command(flatten)]
    pub target: TargetArgs,

    /// Read every object of the prefix, not only those of the chain to the target
    #[arg(long)]
    pub all: bool,

    /// Accept a full snapshot that carries no hash, one copied out of a data directory
    #[arg(long, env = "MAINSTAY_SKIP_HASH_CHECK")]
    pub skip_hash_check: bool,
}

/// Verifies.
pub async fn run(args: VerifyArgs, context: &CommandContext) -> Result<CommandOutcome, CommandFailure> {
    let VerifyArgs {
        data_dir,
        validation_mode,
        store,
        target,
        all,
        skip_hash_check,
    } = args;
    if let Some(data_dir) = data_dir {
        let report = health::verify_data_dir(data_dir.clone(), validation_mode).await?;
        return health::to_outcome(&data_dir, &report);
    }
    let scope = if all {
        backup::VerifyScope::Prefix
    } else {
        backup::VerifyScope::Chain
    };
    let request = backup::VerifyRequest {
        store: store.into_config()?,
        target,
        scope,
        hash_check: if skip_hash_check {
            HashCheck::Skipped
        } else {
            HashCheck::Required
        },
    };
    backup::verify(request, context).await
}
