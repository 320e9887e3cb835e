//! `initialize`: verify a data directory, and restore it when that is needed.
//!
//! ```text
//! wrong volume, in use ───────────────────────────────► refuse
//! valid and not older than the backup ────────────────► leave it
//! missing, corrupt, older than the backup ─┬ a backup ► restore
//!                                          ├ none, missing ► leave it: etcd starts a new cluster
//!                                          └ none, damaged ► refuse
//! store cannot be reached ────────────────────────────► refuse: that is not an empty backup
//! ```

use clap::Args;
use mainstay_archive::catalogue::Catalogue;
use mainstay_archive::chain::{ChainRequest, ChainTarget};
use mainstay_datadir::{DirVerdict, DirReport, write_volume_guard};
use mainstay_store::StoreArgs;

use super::restore::RestoreOptionsArgs;
use crate::backup::Backup;
use crate::cli::CommandContext;
use crate::detour::ChainSelection;
use crate::directory::{self, RestorePlan};
use crate::failure::{CommandFailure, ExitVerdict};
use crate::health::{self, ValidationMode};
use crate::members::{RestoreMemberArgs, NewCluster};
use crate::outcome::CommandOutcome;
use crate::peer::UpstreamRestoreArgs;
use crate::target::TargetArgs;

/// Flags of `initialize`.
#[derive(Debug, Args)]
#[command(
    long_about = "Makes sure etcd can start: verifies the data directory, and restores it from the \
        backup when it is missing, damaged, or older than the backup.\n\n\
        For machines without Kubernetes, as a step before etcd. Never touches a sound directory, \
        never restores over a volume of another namespace, never takes an unreachable store for an \
        empty one.",
    after_help = "Example:\n  \
        mainstay-restorer initialize --store-container backups --store-prefix etcd-main -d /var/lib/etcd && etcd --data-dir /var/lib/etcd"
)]
pub struct InitializeArgs {
    /// How thoroughly to verify: full after a crash, sanity after a clean stop
    #[arg(
        long,
        value_name = "MODE",
        default_value = "full",
        env = "MAINSTAY_VALIDATION_MODE"
    )]
    pub validation_mode: ValidationMode,

    /// Namespace the volume belongs to; a volume marked for another one is refused
    #[arg(long, value_name = "NAMESPACE", env = "POD_NAMESPACE")]
    pub namespace: Option<String>,

    /// The backup.
    #[command(flatten)]
    pub store: StoreArgs,
    /// For whom.
    #[command(flatten)]
    pub members: RestoreMemberArgs,
    /// How.
    #[command(flatten)]
    pub options: RestoreOptionsArgs,
    /// Flags of the peer.
    #[command(flatten)]
    pub upstream: UpstreamRestoreArgs,
}

/// What to do about a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataDirAction {
    /// etcd can start on it.
    Keep,
    /// There is neither data nor backup: etcd starts a new cluster.
    Bootstrap,
    /// Restore it.
    Restore,
    /// It is damaged and there is no backup.
    Refuse,
}

/// Decides, from the directory and the newest revision of the backup, if there is one.
///
/// Only a single member must not be behind the backup: one of several catches up from the others.
pub fn decide(report: &DirReport, newest_backup: Option<i64>, members: usize) -> DataDirAction {
    match (report.verdict, newest_backup) {
        (DirVerdict::InUse, _) | (DirVerdict::Corrupt, None) => DataDirAction::Refuse,
        (DirVerdict::Missing, None) => DataDirAction::Bootstrap,
        (DirVerdict::Missing | DirVerdict::Corrupt, Some(_)) => DataDirAction::Restore,
        (DirVerdict::Valid, newest) => {
            let reached = report.facts.as_ref().map_or(0, health::highest_revision);
            if members == 1 && newest.is_some_and(|newest| reached < newest) {
                DataDirAction::Restore
            } else {
                DataDirAction::Keep
            }
        }
    }
}

/// The newest revision the names of a backup promise.
pub(super) fn newest_revision(catalogue: &Catalogue) -> Option<i64> {
    let objects = catalogue.fulls.iter().chain(&catalogue.deltas);
    objects.map(|object| object.name.last.0).max()
}

/// Verifies, and restores when needed.
pub async fn run(args: InitializeArgs, context: &CommandContext) -> Result<CommandOutcome, CommandFailure> {
    let InitializeArgs {
        validation_mode,
        namespace,
        store,
        members,
        options,
        upstream: _,
    } = args;
    let data_dir = members.data_dir.clone();
    if members.all_members {
        return Err(
            CommandFailure::from_reason(ExitVerdict::Usage, "initialize is about one member").with_next_step(
                "use `restore --all-members` to make the directories of a new cluster",
            ),
        );
    }
    health::refuse_foreign_volume(&data_dir, namespace.as_deref())?;
    let report = health::verify_data_dir(data_dir.clone(), validation_mode).await?;
    if report.verdict == DirVerdict::InUse {
        return health::to_outcome(&data_dir, &report);
    }
    let backup = Backup::open(&store.into_config()?, &context.environment).await?;
    let newest = newest_revision(&backup.catalogue);
    let count = members
        .initial_cluster
        .as_ref()
        .map_or(1, |listed| listed.members().len());
    let outcome = match decide(&report, newest, count) {
        DataDirAction::Keep => health::to_outcome(&data_dir, &report)?,
        DataDirAction::Bootstrap => {
            let text = "there is neither data nor a backup: etcd starts a new cluster";
            CommandOutcome::new(
                ExitVerdict::Unchanged,
                text,
                &serde_json::json!({"dataDir": data_dir}),
            )
        }
        DataDirAction::Refuse => return health::to_outcome(&data_dir, &report),
        DataDirAction::Restore => {
            refuse_multi_member_restore(count)?;
            let seating = members.build_new_cluster(context.now)?;
            restore(&backup, seating, &options, context).await?
        }
    };
    if let Some(namespace) = namespace {
        write_volume_guard(&data_dir, &namespace)?;
    }
    Ok(outcome)
}

/// One member of several is not restored alone: it would begin a cluster of its own.
fn refuse_multi_member_restore(members: usize) -> Result<(), CommandFailure> {
    if members == 1 {
        return Ok(());
    }
    let reason = "the data directory of one of several members is unusable";
    Err(CommandFailure::from_reason(ExitVerdict::Corrupt, reason).with_next_step(
        "with a healthy majority, remove the member and add it again as a learner; without one, \
         restore all members with `restore --all-members`",
    ))
}

async fn restore(
    backup: &Backup,
    seating: NewCluster,
    options: &RestoreOptionsArgs,
    context: &CommandContext,
) -> Result<CommandOutcome, CommandFailure> {
    let plan = RestorePlan {
        selection: ChainSelection::find(&backup.catalogue, ChainRequest::new(ChainTarget::Latest))?,
        cluster: seating,
        options: options.rebuild_options(&TargetArgs::default()),
        bump: options.revision_bump(newest_revision(&backup.catalogue)),
        expected_hash: options.expect_hash_kv,
        fence: None,
        now: context.now,
    };
    let restored = directory::restore(backup, plan).await?;
    Ok(CommandOutcome::new(
        ExitVerdict::Restored,
        restored.to_string(),
        &restored,
    ))
}
