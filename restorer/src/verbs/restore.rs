//! `restore`: a data directory from a backup.

use std::path::{Path, PathBuf};

use clap::Args;
use jiff::SignedDuration;
use mainstay_archive::chain::Chain;
use mainstay_datadir::Fence;
use mainstay_ids::{HashKv, Revision};
use mainstay_store::StoreArgs;
use mainstay_telemetry::human_bytes;

use super::init::configured_store;
use super::initialize::newest_revision;
use crate::backup::Backup;
use crate::cli::Context;
use crate::detour::Route;
use crate::directory::{self, Plan};
use crate::failure::{Failure, Verdict};
use crate::health::refuse_foreign_volume;
use crate::members::MemberArgs;
use crate::outcome::Outcome;
use crate::peer::PeerRestoreArgs;
use crate::rebuild::finish::Bump;
use crate::rebuild::{HashCheck, Options};
use crate::reseat::{Candidate, reseat};
use crate::target::TargetArgs;
use crate::threads;

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
    pub members: MemberArgs,
    /// How.
    #[command(flatten)]
    pub how: HowArgs,
    /// Flags of the peer.
    #[command(flatten)]
    pub peer: PeerRestoreArgs,

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
pub struct HowArgs {
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

impl HowArgs {
    /// As the rebuild takes it.
    pub fn options(&self, target: &TargetArgs) -> Options {
        Options {
            stop: target.stop(),
            hash_check: if self.skip_hash_check {
                HashCheck::Skipped
            } else {
                HashCheck::Required
            },
            default_lease_seconds: self.default_lease_ttl.as_secs().max(1),
            threads: threads(),
        }
    }

    /// As the finish takes it, with the newest revision of the backup.
    pub fn bump(&self, newest: Option<i64>) -> Bump {
        Bump {
            by: self.bump_revision,
            newest: Revision(newest.unwrap_or_default()),
            mark_compacted: self.mark_compacted,
        }
    }
}

/// Restores.
pub async fn run(args: RestoreArgs, context: &Context) -> Result<Outcome, Failure> {
    let RestoreArgs {
        store,
        target,
        members,
        how,
        peer: _,
        prefer_data_dir,
        namespace,
        fence,
        dry_run,
    } = args;
    let seating = members.seating(context.now)?;
    refuse_foreign_volume(&members.data_dir, namespace.as_deref())?;
    let fence = enter(&members.data_dir, fence.filter(|_| !dry_run))?;
    let candidate = match prefer_data_dir {
        Some(data_dir) => Candidate::find(data_dir).await?,
        None => None,
    };
    let config = match &candidate {
        Some(_) => configured_store(store)?, // with data at hand there need not be a backup
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
            return Ok(taken_over(&candidate));
        }
        return reseat(candidate, seating, how.bump(newest), (fence, context.now)).await;
    }
    let Some(backup) = backup else {
        let reason = "there is neither usable data nor a backup";
        return Err(Failure::because(Verdict::NoBackup, reason));
    };
    let route = Route::find(&backup.catalogue, target.request())?;
    if dry_run {
        return Ok(planned(&route.chain));
    }
    let plan = Plan {
        route,
        seating,
        options: how.options(&target),
        bump: how.bump(newest),
        expected: how.expect_hash_kv,
        fence,
        now: context.now,
    };
    let restored = directory::restore(&backup, plan).await?;
    Ok(Outcome::new(
        Verdict::Restored,
        restored.to_string(),
        &restored,
    ))
}

/// Takes the volume, where somebody has to be told from others.
fn enter(data_dir: &Path, token: Option<String>) -> Result<Option<Fence>, Failure> {
    let fence = token.map(|token| Fence::enter(data_dir, &token));
    Ok(fence.transpose()?)
}

fn taken_over(candidate: &Candidate) -> Outcome {
    let Candidate {
        data_dir, revision, ..
    } = candidate;
    let text = format!(
        "would take revision {revision} over from {}",
        data_dir.display()
    );
    let details = serde_json::json!({ "reaches": revision, "fromDataDir": data_dir });
    Outcome::new(Verdict::Restorable, text, &details)
}

fn planned(chain: &Chain) -> Outcome {
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
        chain.reaches,
        objects.len(),
        human_bytes(bytes),
        objects.join("\n  ")
    );
    let details = serde_json::json!({
        "reaches": chain.reaches.0, "objects": objects, "bytes": bytes,
    });
    Outcome::new(Verdict::Restorable, text, &details)
}
