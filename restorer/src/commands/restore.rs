//! `restore`: restores a data directory from a backup, or from a newer data directory.

use std::path::{Path, PathBuf};

use clap::Args;
use mainstay_archive::chain::SnapshotChain;
use mainstay_datadir::VolumeFence;
use mainstay_store::StoreArgs;
use mainstay_telemetry::format_bytes;
use mainstay_verdict::Verdict;

use crate::backup::{Backup, newest_revision, to_store_config};
use crate::cli::CommandContext;
use crate::data_dir_restore::{DataDirCandidate, restore_from_data_dir};
use crate::directory::{self, RestorePlan};
use crate::failure::CommandFailure;
use crate::fallback::ChainSelection;
use crate::health::refuse_foreign_volume;
use crate::members::RestoreMemberArgs;
use crate::outcome::CommandOutcome;
use crate::restore_options::RestoreOptionsArgs;
use crate::target::TargetArgs;
use crate::upstream::UpstreamRestoreArgs;

/// Flags of `restore`.
#[derive(Debug, Args)]
#[command(
    long_about = "Restores a data directory from the newest full snapshot and the deltas after it.\n\n\
        Builds the new directory beside the target, syncs it, and swaps it in by rename: after a crash, the target \
        is either the complete old directory or the complete new one. The old one is kept as \
        <DIR>.before-<time>. Verifies every hash and requires every revision; a gap is reported before anything \
        is replaced.",
    after_help = "Examples:\n  \
        # the newest state of a bucket, for a single member\n  \
        mainstay-restorer restore --storage-provider S3 --store-container backups --store-prefix shoot-1/etcd-main -d /var/etcd/data/new.etcd\n\n  \
        # the state before a bad delete\n  \
        mainstay-restorer restore -d restored.etcd --to-time 2026-01-31T11:59:00Z\n\n  \
        # the data directories of a new cluster with three members\n  \
        mainstay-restorer restore -d members --all-members --initial-cluster a=http://a:2380,b=http://b:2380,c=http://c:2380\n\n  \
        # make Kubernetes clients discard what they cached before the restore\n  \
        mainstay-restorer restore -d restored.etcd --bump-revision 1000000000 --mark-compacted"
)]
pub struct RestoreArgs {
    #[command(flatten)]
    pub store: StoreArgs,
    #[command(flatten)]
    pub target: TargetArgs,
    #[command(flatten)]
    pub members: RestoreMemberArgs,
    #[command(flatten)]
    pub options: RestoreOptionsArgs,
    #[command(flatten)]
    pub(crate) upstream: UpstreamRestoreArgs,

    /// Use this data directory instead of the backup if it is valid and at least as new
    ///
    /// It may be the directory that is replaced.
    #[arg(long, value_name = "DIR", env = "MAINSTAY_PREFER_DATA_DIR")]
    #[arg(conflicts_with_all = ["to_revision", "to_time", "from"])]
    pub(crate) prefer_data_dir: Option<PathBuf>,

    /// Namespace of the volume; a volume of another namespace is refused
    #[arg(long, value_name = "NAMESPACE", env = "POD_NAMESPACE")]
    pub(crate) namespace: Option<String>,

    /// Identifies this writer on the volume; a later writer fences it off
    ///
    /// The data directory is not replaced once a later writer has recorded its token on the volume.
    #[arg(long, value_name = "TOKEN", env = "MAINSTAY_FENCE")]
    pub(crate) fence: Option<String>,

    /// Print what would be restored and exit
    #[arg(long)]
    pub(crate) dry_run: bool,
}

/// Restores the data directory.
pub(crate) async fn run(
    args: RestoreArgs,
    context: &CommandContext,
) -> Result<CommandOutcome, CommandFailure> {
    let RestoreArgs {
        store,
        target,
        members,
        options,
        upstream: _,
        prefer_data_dir,
        namespace,
        fence,
        dry_run,
    } = args;
    let cluster = members.build_new_cluster(context.now)?;
    // Before the fence, which already writes to the volume.
    refuse_foreign_volume(&members.data_dir, namespace.as_deref())?;
    // A dry run records nothing on the volume.
    let fence = enter_fence(&members.data_dir, fence.filter(|_| !dry_run))?;
    let candidate = match prefer_data_dir {
        Some(data_dir) => DataDirCandidate::verify(data_dir).await?,
        None => None,
    };
    let config = match &candidate {
        Some(_) => to_store_config(store)?, // a backup is optional if the preferred directory is usable
        None => Some(store.into_config()?),
    };
    let backup = match &config {
        Some(config) => Some(Backup::open(config, &context.environment).await?),
        None => None,
    };
    let catalogue = backup.as_ref().map(|backup| &backup.catalogue);
    let newest = catalogue.and_then(newest_revision);
    // Never go back behind the backup: clients have seen its newest revision.
    if let Some(candidate) = candidate.filter(|candidate| candidate.is_as_new_as(newest)) {
        if dry_run {
            return Ok(describe_data_dir_plan(&candidate));
        }
        let bump = options.revision_bump(newest);
        return restore_from_data_dir(candidate, cluster, bump, (fence, context.now)).await;
    }
    let Some(backup) = backup else {
        let reason = "neither a usable data directory nor a backup exists";
        return Err(CommandFailure::from_reason(Verdict::NoBackup, reason));
    };
    let selection = ChainSelection::find(&backup.catalogue, target.chain_request())?;
    if dry_run {
        return Ok(describe_chain_plan(&selection.chain));
    }
    let plan = RestorePlan {
        selection,
        cluster,
        options: options.rebuild_options(&target),
        bump: options.revision_bump(newest),
        expected_hash: options.expect_hash_kv,
        fence,
        now: context.now,
    };
    let restored = directory::restore(&backup, plan).await?;
    let text = restored.to_string();
    Ok(CommandOutcome::new(Verdict::Restored, text, &restored))
}

/// Records the token of this writer on the volume, if there is one.
fn enter_fence(
    data_dir: &Path,
    token: Option<String>,
) -> Result<Option<VolumeFence>, CommandFailure> {
    let fence = token.map(|token| VolumeFence::acquire(data_dir, &token));
    Ok(fence.transpose()?)
}

fn describe_data_dir_plan(candidate: &DataDirCandidate) -> CommandOutcome {
    let DataDirCandidate {
        data_dir, revision, ..
    } = candidate;
    let text = format!(
        "would restore revision {revision} from data directory {}",
        data_dir.display()
    );
    let details = serde_json::json!({ "reaches": revision, "fromDataDir": data_dir });
    CommandOutcome::new(Verdict::Restorable, text, &details)
}

fn describe_chain_plan(chain: &SnapshotChain) -> CommandOutcome {
    let objects: Vec<String> = std::iter::once(&chain.base)
        .chain(chain.deltas.iter().map(|link| &link.object))
        .map(|object| object.name.to_string())
        .collect();
    let bytes: u64 = chain.base.size
        + chain
            .deltas
            .iter()
            .map(|link| link.object.size)
            .sum::<u64>();
    let text = format!(
        "would restore up to revision {} from {} objects ({}):\n  {}\n",
        chain.last_revision,
        objects.len(),
        format_bytes(bytes),
        objects.join("\n  ")
    );
    let details = serde_json::json!({
        "reaches": chain.last_revision.0, "objects": objects, "bytes": bytes,
    });
    CommandOutcome::new(Verdict::Restorable, text, &details)
}
