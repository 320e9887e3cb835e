//! `initialize`: verifies a data directory and restores it if needed. For machines without Kubernetes; pods use `init`.
//!
//! ```text
//! wrong volume, in use ───────────────────────────────► refuse
//! valid and not older than the backup ────────────────► keep it
//! valid, an only member, the backup has newer names ──► compare rows (`history_check`)
//!   the backup continues the data ────────────────────► restore
//!   another or an unknown history ────────────────────► keep it and refuse; restore with --accept-history
//! missing, corrupt ────────────────────────┬ a backup ► restore
//!                                          ├ none, missing ► keep it: etcd bootstraps a new cluster
//!                                          └ none, corrupt ► refuse
//! store unreachable ──────────────────────────────────► refuse: this is not an empty backup
//! ```

use std::collections::BTreeSet;
use std::path::Path;

use clap::Args;
use mainstay_archive::chain::{ChainRequest, ChainTarget};
use mainstay_datadir::{DirReport, DirVerdict, write_volume_guard};
use mainstay_store::StoreArgs;
use mainstay_verdict::{BackupRelation, Verdict};

use crate::backup::{Backup, newest_revision};
use crate::cli::CommandContext;
use crate::directory::{self, RestorePlan};
use crate::failure::CommandFailure;
use crate::fallback::ChainSelection;
use crate::health::{self, ValidationMode};
use crate::history_check::{BackupComparison, compare_with_backup};
use crate::members::{NewCluster, RestoreMemberArgs};
use crate::outcome::CommandOutcome;
use crate::restore_options::RestoreOptionsArgs;
use crate::target::TargetArgs;
use crate::upstream::UpstreamRestoreArgs;

/// Flags of `initialize`.
#[derive(Debug, Args)]
#[command(
    long_about = "Verifies the data directory, and restores it from the backup if it is missing, corrupt, or \
        older than the backup and of the same history.\n\n\
        For machines without Kubernetes, as a step before etcd starts. In a pod, use `init`. Never changes a \
        valid directory that is up to date, never restores to a volume of another namespace, and never treats \
        an unreachable store as an empty one.",
    after_help = "Example:\n  \
        mainstay-restorer initialize --store-container backups --store-prefix etcd-main -d /var/lib/etcd && etcd --data-dir /var/lib/etcd"
)]
pub struct InitializeArgs {
    /// Depth of the verification: full after a crash, sanity after a clean shutdown
    #[arg(
        long,
        value_name = "MODE",
        default_value = "full",
        env = "MAINSTAY_VALIDATION_MODE"
    )]
    pub(crate) validation_mode: ValidationMode,

    /// Namespace of the volume; a volume of another namespace is refused
    #[arg(long, value_name = "NAMESPACE", env = "POD_NAMESPACE")]
    pub(crate) namespace: Option<String>,

    /// Restore over valid data although the backup has another history, or an unknown one
    ///
    /// The data is kept as `<DIR>.before-<time>`.
    #[arg(long, env = "MAINSTAY_ACCEPT_HISTORY")]
    pub(crate) accept_history: bool,

    #[command(flatten)]
    pub(crate) store: StoreArgs,
    #[command(flatten)]
    pub(crate) members: RestoreMemberArgs,
    #[command(flatten)]
    pub(crate) options: RestoreOptionsArgs,
    #[command(flatten)]
    pub(crate) upstream: UpstreamRestoreArgs,
}

/// Decision about a data directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DataDirAction {
    /// etcd can start on it.
    Keep,
    /// The names of the backup are newer: rows decide whether it continues the data.
    Compare,
    /// There is neither data nor a backup: etcd bootstraps a new cluster.
    Bootstrap,
    Restore,
    /// The directory is in use, or corrupt without a backup.
    Refuse,
}

/// Decides from the state of the directory and the newest revision of the backup; `None` means no backup.
///
/// Only a single member is restored for lagging behind the backup: one of several catches up from the others.
pub(crate) fn decide(
    report: &DirReport,
    newest_backup: Option<i64>,
    members: usize,
) -> DataDirAction {
    match (report.verdict, newest_backup) {
        (DirVerdict::InUse, _) | (DirVerdict::Corrupt, None) => DataDirAction::Refuse,
        (DirVerdict::Missing, None) => DataDirAction::Bootstrap,
        (DirVerdict::Missing | DirVerdict::Corrupt, Some(_)) => DataDirAction::Restore,
        (DirVerdict::Valid, newest) => {
            let reached = report.facts.as_ref().map_or(0, health::highest_revision);
            // The WAL counts: etcd applies its entries after the start and may reach the backup.
            if members == 1 && newest.is_some_and(|newest| reached < newest) {
                DataDirAction::Compare
            } else {
                DataDirAction::Keep
            }
        }
    }
}

/// Compares valid data with its backup. Fails if it is unproven that the backup continues the data, unless the user
/// accepts that.
fn decide_compared(
    check: &BackupComparison,
    is_accepted: bool,
) -> Result<DataDirAction, CommandFailure> {
    let (verdict, what) = match check.relation {
        Some(BackupRelation::Behind) => return Ok(DataDirAction::Restore),
        Some(BackupRelation::Equal | BackupRelation::Ahead) | None => {
            return Ok(DataDirAction::Keep);
        }
        Some(_) if is_accepted => return Ok(DataDirAction::Restore),
        Some(BackupRelation::Diverged) => (
            Verdict::HistoryDiverged,
            "the data directory is valid and has another history than its newer backup",
        ),
        Some(BackupRelation::Unknown) => (
            Verdict::HistoryUnknown,
            "the data directory is valid, and it is unproven that its newer backup has the same history",
        ),
    };
    let failure = CommandFailure::from_reason(verdict, format!("{what}: {check}"));
    Err(failure.with_next_step(
        "check --store-prefix; to keep the data, use another prefix; to replace it by the backup, add --accept-history",
    ))
}

/// Verifies the data directory and restores it if needed.
pub(crate) async fn run(
    args: InitializeArgs,
    context: &CommandContext,
) -> Result<CommandOutcome, CommandFailure> {
    let InitializeArgs {
        validation_mode,
        namespace,
        accept_history,
        store,
        members,
        options,
        upstream: _,
    } = args;
    let data_dir = members.data_dir.clone();
    refuse_all_members(&members)?;
    // Before the directory is read: the data of another namespace must not influence the decision.
    health::refuse_foreign_volume(&data_dir, namespace.as_deref())?;
    let report = health::verify_data_dir(data_dir.clone(), validation_mode).await?;
    // Before the store is opened: a directory in use is refused whatever the backup holds.
    if report.verdict == DirVerdict::InUse {
        return health::to_outcome(&data_dir, &report);
    }
    let backup = Backup::open(&store.into_config()?, &context.environment).await?;
    let newest = newest_revision(&backup.catalogue);
    let count = members
        .initial_cluster
        .as_ref()
        .map_or(1, |listed| listed.members().len());
    let mut excluded = BTreeSet::new();
    let mut action = decide(&report, newest, count);
    if action == DataDirAction::Compare {
        let check = compare_with_backup(&data_dir, &backup).await?;
        action = decide_compared(&check, accept_history)?;
        excluded = check.unreadable;
    }
    let outcome = match action {
        DataDirAction::Keep | DataDirAction::Compare => health::to_outcome(&data_dir, &report)?,
        DataDirAction::Bootstrap => report_bootstrap(&data_dir),
        DataDirAction::Refuse => return health::to_outcome(&data_dir, &report),
        DataDirAction::Restore => {
            refuse_multi_member_restore(count)?;
            let seating = members.build_new_cluster(context.now)?;
            restore(&backup, excluded, seating, (&options, context)).await?
        }
    };
    // Last: a volume is marked only once it holds, or may hold, data of this namespace.
    if let Some(namespace) = namespace {
        write_volume_guard(&data_dir, &namespace)?;
    }
    Ok(outcome)
}

fn refuse_all_members(members: &RestoreMemberArgs) -> Result<(), CommandFailure> {
    if !members.all_members {
        return Ok(());
    }
    let reason = "initialize does not support --all-members";
    Err(CommandFailure::from_reason(Verdict::Usage, reason)
        .with_next_step("use `restore --all-members` to restore the directories of all members"))
}

fn report_bootstrap(data_dir: &Path) -> CommandOutcome {
    let text = "neither data nor a backup exists: etcd bootstraps a new cluster";
    let details = serde_json::json!({"dataDir": data_dir});
    CommandOutcome::new(Verdict::Unchanged, text, &details)
}

/// Refuses to restore one member of several: it would bootstrap its own cluster.
fn refuse_multi_member_restore(members: usize) -> Result<(), CommandFailure> {
    if members == 1 {
        return Ok(());
    }
    let reason = "data directory of one member of a multi-member cluster is missing or corrupt";
    Err(CommandFailure::from_reason(Verdict::Corrupt, reason).with_next_step(
        "with quorum, remove the member and add it again as a learner; without quorum, restore all \
         members with `restore --all-members`",
    ))
}

async fn restore(
    backup: &Backup,
    excluded: BTreeSet<String>,
    cluster: NewCluster,
    (options, context): (&RestoreOptionsArgs, &CommandContext),
) -> Result<CommandOutcome, CommandFailure> {
    // Without the objects that the comparison found unreadable.
    let request = ChainRequest {
        excluded,
        ..ChainRequest::new(ChainTarget::Latest)
    };
    let plan = RestorePlan {
        selection: ChainSelection::find(&backup.catalogue, request)?,
        cluster,
        options: options.rebuild_options(&TargetArgs::default()),
        bump: options.revision_bump(newest_revision(&backup.catalogue)),
        expected_hash: options.expect_hash_kv,
        fence: None,
        now: context.now,
    };
    let restored = directory::restore(backup, plan).await?;
    Ok(CommandOutcome::new(
        Verdict::Restored,
        restored.to_string(),
        &restored,
    ))
}
