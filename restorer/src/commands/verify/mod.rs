//! `verify`: verifies a backup object by object ([`backup`]), or a data directory ([`crate::health`]).

pub(crate) mod backup;
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
    long_about = "Verifies that a backup can be restored, without restoring it; or, with --data-dir, that a \
        data directory is valid.\n\n\
        Backup: reads every object of the chain that a restore would use, decompresses it, compares its hash, \
        and checks that every revision from the full snapshot to the target is present. Needs no disk \
        space.\n\n\
        Data directory: reads every page, row and WAL record, and checks that they are consistent. Changes \
        nothing. Refuses a directory that a running etcd uses.",
    after_help = "Examples:\n  \
        # is the newest state of a backup restorable?\n  \
        mainstay-restorer verify --storage-provider S3 --store-container backups --store-prefix shoot-1/etcd-main\n\n  \
        # every object of the backup, as JSON\n  \
        mainstay-restorer verify --store-container etcd-backups --all -o json\n\n  \
        # is the state before an incident restorable?\n  \
        mainstay-restorer verify --store-container etcd-backups --to-time 2026-01-31T11:59:00Z\n\n  \
        # can etcd start on this directory?\n  \
        mainstay-restorer verify --data-dir /var/etcd/data/new.etcd"
)]
pub struct VerifyArgs {
    /// Verify this data directory instead of a backup
    #[arg(short, long, value_name = "DIR")]
    #[arg(conflicts_with_all = ["to_revision", "to_time", "from", "all", "skip_hash_check"])]
    pub data_dir: Option<PathBuf>,

    /// Depth of verifying a data directory: full after a crash, sanity after a clean shutdown
    #[arg(
        long,
        value_name = "MODE",
        default_value = "full",
        requires = "data_dir"
    )]
    #[arg(env = "MAINSTAY_VALIDATION_MODE")]
    pub(crate) validation_mode: ValidationMode,

    #[command(flatten)]
    pub(crate) store: StoreArgs,
    #[command(flatten)]
    pub(crate) target: TargetArgs,

    /// Read every object of the backup, not only the chain to the target
    #[arg(long)]
    pub(crate) all: bool,

    /// Accept a full snapshot without a hash, such as a copied database file
    #[arg(long, env = "MAINSTAY_SKIP_HASH_CHECK")]
    pub(crate) skip_hash_check: bool,
}

/// Verifies a backup or a data directory.
pub(crate) async fn run(
    args: VerifyArgs,
    context: &CommandContext,
) -> Result<CommandOutcome, CommandFailure> {
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
