//! `restore`: a data directory from a backup.

use std::path::{Path, PathBuf};

use clap::Args;
use jiff::SignedDuration;
use mainstay_archive::chain::SnapshotChain;
use mainstay_datadir::VolumeFence;
use mainstay_ids::{HashKv, Revision};
use mainstay_store::StoreArgs;
use mainstay_telemetry::format_bytes;

use super::init::to_store_config;
use super::initialize::newest_revision;
use crate::backup::Backup;
use crate::cli::CommandContext;
use crate::detour::ChainSelection;
use crate::directory::{self, RestorePlan};
use crate::failure::{CommandFailure, ExitVerdict};
use crate::health::refuse_foreign_volume;
use crate::members::RestoreMemberArgs;
use crate::outcome::CommandOutcome;
use crate::peer::UpstreamRestoreArgs;
use crate::rebuild::finish::RevisionBump;
use crate::rebuild::{HashCheck, RebuildOptions};
use crate::reseat::{DataDirCandidate, restore_from_data_dir};
use crate::target::TargetArgs;
use crate::available_threads;

/// Flags of `restore`.
#[derive(Debug, Args)]
#[command(
    long_about = "Restores a data directory from the newest full snapshot and the deltas behind it.\n\n\
        Builds beside the target, syncs, and swaps by rename: whatever happens, the target is the old \
        directory or the new one, whole. The old one is kept as <DIR>.before-<time>. Every hash is \
        compared and every revision must be there; a gap is named before anything is replaced.",
    after_help = "Examples:\n  \
        # the newest state of a bucket, for a single member\n  \
        mainstay-restorer restore --storage-provider S3 --store-container backups --store-prefix shoot-1/etcd-main -d /var/etcd/data/new.etcd\n\n  \
        # the state before a bad delete\n  \
        mainstay-restorer restore -d restored.etcd --to-time 2026-01-31T11:59:00Z\n\n  \
        # three directories of a new cluster\n  \
        mainstay-restorer restore -d members --all-members --initial-cluster a=http://a:2380,b=http://b:2380,c=http://c:2380\n\n  \
        # so that Kubernetes clients notice that time went back\n  \
        mainstay-restorer restore -d restored.etcd --bump-revision 1000000000 --mark-compacted"
)]
pub struct RestoreArgs {
    /// The backup.
    #[command(flatten)]
    pub store: StoreArgs,
    /// Which state.
    #[command(flatten)]
    pub target: TargetArgs,
    /// For whom.
    #[command(flatten)]
    pub members: RestoreMemberArgs,
    /// How.
    #[command(flatten)]
    pub options: RestoreOptionsArgs,
    /// Flags of the peer.
    #[command(flatten)]
    pub upstream: UpstreamRestoreArgs,

    /// Take this data directory instead of the backup, when it is sound and at least as new. It may be
    /// the one that is replaced
    #[arg(long, value_name = "DIR", env = "MAINSTAY_PREFER_DATA_DIR")]
    #[arg(conflicts_with_all = ["to_revision", "to_time", "from"])]
    pub prefer_data_dir: Option<PathBuf>,

    /// Namespace the volume belongs to; nothing is restored on a volume marked for another one
    #[arg(long, value_name = "NAMESPACE", env = "POD_NAMESPACE")]
    pub namespace: Option<String>,

    /// Names this writer on the volume: nothing is put in place once another one has come
    #[arg(long, value_name = "TOKEN", env = "MAINSTAY_FENCE")]
    pub fence: Option<String>,

    /// Say what would be restored, and stop
    #[arg(long)]
    pub dry_run: bool,
}

/// How a directory is restored.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Restored state")]
pub struct RestoreOptionsArgs {
    /// Add this to the newest revision of the backup, whatever is restored of it, so that no client sees a revision it has
    /// seen before
    #[arg(
        long,
        value_name = "COUNT",
        default_value_t = 0,
        requires = "mark_compacted"
    )]
    #[arg(env = "MAINSTAY_BUMP_REVISION")]
    pub bump_revision: u64,

    /// Mark everything up to the newest revision compacted: clients that watch from before the
    /// restore are told to list again
    #[arg(long, env = "MAINSTAY_MARK_COMPACTED")]
    pub mark_compacted: bool,

    /// Life of a lease that keys hang on and whose granted life no object of the backup tells
    #[arg(
        long,
        value_name = "DURATION",
        default_value = "1h",
        env = "MAINSTAY_DEFAULT_LEASE_TTL"
    )]
    pub default_lease_ttl: SignedDuration,

    /// Accept a full snapshot that carries no hash, one copied out of a data directory
    #[arg(long, env = "MAINSTAY_SKIP_HASH_CHECK")]
    pub skip_hash_check: bool,

    /// What a live etcd answered to `HashKV`: nothing is restored unless the backup holds the same. Revision, compacted
    /// revision (0 for none) and hash (8 hexadecimal digits), with colons between them
    #[arg(long, value_name = "HASH", env = "MAINSTAY_EXPECT_HASH_KV")]
    pub expect_hash_kv: Option<HashKv>,
}

impl RestoreOptionsArgs {
    /// As the rebuild takes it.
    pub fn rebuild_options(&self, target: &TargetArgs) -> RebuildOptions {
        RebuildOptions {
            stop: target.stop_point(),
            hash_check: if self.skip_hash_check {
                HashCheck::Skipped
            } else {
                HashCheck::Required
            },
            default_lease_seconds: self.default_lease_ttl.as_secs().max(1),
            threads: available_threads(),
        }
    }

    /// As the finish takes it, with the newest revision of the backup.
    pub fn revision_bump(&self, newest: Option<i64>) -> RevisionBump {
        RevisionBump {
            by: self.bump_revision,
            newest: Revision(newest.unwrap_or_default()),
            mark_compacted: self.mark_compacted,
        }
    }
}

/// Restores.
pub async fn run(args: RestoreArgs, context: &CommandContext) -> Result<CommandOutcome, CommandFailure> {
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
    let seating = members.build_new_cluster(context.now)?;
    refuse_foreign_volume(&members.data_dir, namespace.as_deref())?;
    let fence = enter_fence(&members.data_dir, fence.filter(|_| !dry_run))?;
    let candidate = match prefer_data_dir {
        Some(data_dir) => DataDirCandidate::verify(data_dir).await?,
        None => None,
    };
    let config = match &candidate {
        Some(_) => to_store_config(store)?, // with data at hand there need not be a backup
        None => Some(store.into_config()?),
    };
    let backup = match &config {
        Some(config) => Some(Backup::open(config, &context.environment).await?),
        None => None,
    };
    let newest = backup
        .as_ref()
        .and_then(|backup| newest_revision(&backup.catalogue));
    if let Some(candidate) = candidate.filter(|candidate| candidate.is_as_new_as(newest)) {
        if dry_run {
            return Ok(describe_data_dir_plan(&candidate));
        }
        return restore_from_data_dir(candidate, seating, options.revision_bump(newest), (fence, context.now)).await;
    }
    let Some(backup) = backup else {
        let reason = "there is neither usable data nor a backup";
        return Err(CommandFailure::from_reason(ExitVerdict::NoBackup, reason));
    };
    let route = ChainSelection::find(&backup.catalogue, target.chain_request())?;
    if dry_run {
        return Ok(describe_chain_plan(&route.chain));
    }
    let plan = RestorePlan {
        selection: route,
        cluster: seating,
        options: options.rebuild_options(&target),
        bump: options.revision_bump(newest),
        expected_hash: options.expect_hash_kv,
        fence,
        now: context.now,
    };
    let restored = directory::restore(&backup, plan).await?;
    Ok(CommandOutcome::new(
        ExitVerdict::Restored,
        restored.to_string(),
        &restored,
    ))
}

/// Takes the volume, where somebody has to be told from others.
fn enter_fence(data_dir: &Path, token: Option<String>) -> Result<Option<VolumeFence>, CommandFailure> {
    let fence = token.map(|token| VolumeFence::acquire(data_dir, &token));
    Ok(fence.transpose()?)
}

fn describe_data_dir_plan(candidate: &DataDirCandidate) -> CommandOutcome {
    let DataDirCandidate {
        data_dir, revision, ..
    } = candidate;
    let text = format!(
        "would take revision {revision} over from {}",
        data_dir.display()
    );
    let details = serde_json::json!({ "reaches": revision, "fromDataDir": data_dir });
    CommandOutcome::new(ExitVerdict::Restorable, text, &details)
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
    CommandOutcome::new(ExitVerdict::Restorable, text, &details)
}
