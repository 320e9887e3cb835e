//! `copy`: copies backups from one store to another and verifies them on the way.
//!
//! ```text
//! source, destination ─► plan ─► each object: download ─┬─► upload ─ wait for its turn ─► visible
//!  (final snapshot?)   chains,                          └─► decompress, compare the hash
//!                      newest first
//! ```
//!
//! Invariants:
//! * The bytes of an object are not changed, and nothing is overwritten.
//! * A damaged object is not copied; the others are.
//! * An object becomes visible after every object planned before it, a full snapshot before its deltas. The
//!   destination can therefore be restored at any moment.
//! * Memory is bounded, see the module `transfer`.
//! * After a crash, visible objects are complete; the next run copies the missing ones.

mod plan;
mod transfer;
mod wait;

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Args;
use mainstay_backup::list_snapshots;
use mainstay_store::{SnapStore, SourceStoreArgs, StoreArgs, StoreConfig};
use mainstay_telemetry::{ProgressReporter, format_bytes};
use mainstay_verdict::Verdict;
use serde::Serialize;

use self::plan::{CopyLimits, CopyPlan, DestinationConflict};
use self::transfer::{CopyError, Transfer};
use self::wait::WaitOutcome;
use crate::backup::describe_location;
use crate::cli::CommandContext;
use crate::directory::sample_progress;
use crate::failure::CommandFailure;
use crate::outcome::CommandOutcome;
use crate::rebuild::{HashCheck, Meter};

/// Interval of listing the source for a final snapshot; the value of etcd-backup-restore.
const POLL_INTERVAL: Duration = Duration::from_secs(15);

/// Flags of `copy`.
#[derive(Debug, Args)]
#[command(
    long_about = "Copies backups from one store to another, between any two providers.\n\n\
        Decompresses every object and compares its hash during the copy. Reports damaged objects and does \
        not copy them; the others are copied. Skips objects that the destination already has, so an \
        interrupted run continues when it is started again. Overwrites nothing. Copies the newest backup first, \
        and a full snapshot before its deltas: the destination can be restored at any moment. Removes the \
        suffix .final from names, as etcd-backup-restore does.",
    after_help = "Examples:\n  \
        # all backups of a control plane that is migrated\n  \
        mainstay-restorer copy --source-storage-provider GCS --source-store-container old --source-store-prefix shoot-1/etcd-main \\\n    \
        --storage-provider S3 --store-container new --store-prefix shoot-1/etcd-main --wait-for-final-snapshot\n\n  \
        # the two newest backups to a local store below $HOME\n  \
        mainstay-restorer copy --source-storage-provider S3 --source-store-container backups --store-container backups.copy --max-backups-to-copy 2\n\n  \
        # list what would be copied\n  \
        mainstay-restorer copy --source-store-container a --store-container b --dry-run"
)]
pub struct CopyArgs {
    #[command(flatten)]
    pub source: SourceStoreArgs,
    /// The destination.
    #[command(flatten)]
    pub store: StoreArgs,
    #[command(flatten)]
    pub(crate) selection: CopySelectionArgs,
}

/// Flags that select the backups to copy.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Copying")]
pub(crate) struct CopySelectionArgs {
    /// Copy this many of the newest backups; -1 copies all
    ///
    /// A backup is a full snapshot with its deltas.
    #[arg(long, value_name = "COUNT", default_value_t = -1, allow_negative_numbers = true)]
    #[arg(env = "MAINSTAY_MAX_BACKUPS_TO_COPY")]
    pub(crate) max_backups_to_copy: i64,

    /// Copy backups whose newest object is at most this many days old; -1 for any age
    #[arg(long, value_name = "DAYS", default_value_t = -1, allow_negative_numbers = true)]
    #[arg(env = "MAINSTAY_MAX_BACKUP_AGE")]
    pub(crate) max_backup_age: i64,

    /// Maximum number of objects copied in parallel
    ///
    /// Large objects reduce the number, because all copies share a memory budget.
    #[arg(long, value_name = "COUNT", default_value_t = 10)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=256))]
    #[arg(env = "MAINSTAY_MAX_PARALLEL_COPY_OPERATIONS")]
    pub(crate) max_parallel_copy_operations: u16,

    /// Wait until one of the four newest full snapshots of the source is final
    #[arg(long, num_args = 0..=1, default_value_t = false, default_missing_value = "true")]
    #[arg(require_equals = true, action = clap::ArgAction::Set)]
    #[arg(env = "MAINSTAY_WAIT_FOR_FINAL_SNAPSHOT")]
    pub(crate) wait_for_final_snapshot: bool,

    /// Timeout of waiting for a final snapshot, such as 30m; 0 waits forever
    ///
    /// After the timeout the existing snapshots are copied.
    #[arg(long, value_name = "DURATION", default_value = "0", value_parser = wait::parse_duration)]
    #[arg(env = "MAINSTAY_WAIT_FOR_FINAL_SNAPSHOT_TIMEOUT")]
    pub(crate) wait_for_final_snapshot_timeout: Duration,

    /// Accept a full snapshot without a hash, such as a copied database file
    #[arg(long, env = "MAINSTAY_SKIP_HASH_CHECK")]
    pub(crate) skip_hash_check: bool,

    /// Print what would be copied and exit
    #[arg(long)]
    pub(crate) dry_run: bool,
}

/// The result of a copy.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct CopyReport {
    source: String,
    destination: String,
    /// Whether the final snapshot appeared; `None` if it was not waited for.
    final_snapshot: Option<bool>,
    /// Names in the destination.
    copied: Vec<String>,
    /// Objects that the destination already had.
    present: usize,
    /// Deltas older than every full snapshot, which no restore can use.
    without_base: usize,
    bytes: u64,
    damaged: Vec<RejectedObject>,
    conflicts: Vec<RejectedObject>,
    seconds: f64,
}

/// An object that was not copied.
#[derive(Clone, Debug, Serialize)]
struct RejectedObject {
    name: String,
    reason: String,
}

/// Copies the backups.
pub(crate) async fn run(
    args: CopyArgs,
    context: &CommandContext,
) -> Result<CommandOutcome, CommandFailure> {
    let CopyArgs {
        source,
        store,
        selection,
    } = args;
    let (from_config, to_config) = (source.into_config()?, store.into_config()?);
    refuse_same_location(&from_config, &to_config)?;
    let from = SnapStore::open(&from_config, &context.environment)?;
    let destination = SnapStore::open(&to_config, &context.environment)?;
    let mut report = CopyReport {
        source: describe_location(&from),
        destination: describe_location(&destination),
        ..CopyReport::default()
    };
    if selection.wait_for_final_snapshot && !selection.dry_run {
        let timeout = selection.wait_for_final_snapshot_timeout;
        let waited = wait::wait_for_final_snapshot(&from, POLL_INTERVAL, timeout).await?;
        report.final_snapshot = Some(waited == WaitOutcome::Found);
    }
    // Listed after the wait, so that the final snapshot is included.
    let (have, there) = (
        list_snapshots(&from).await?,
        list_snapshots(&destination).await?,
    );
    if have.is_empty() {
        let reason = format!("no snapshot found in {}", report.source);
        return Err(CommandFailure::from_reason(Verdict::NoBackup, reason)
            .with_next_step("check --source-store-container and --source-store-prefix"));
    }
    let limits = CopyLimits {
        count: usize::try_from(selection.max_backups_to_copy).ok(),
        not_before: plan::age_cutoff(context.now, selection.max_backup_age),
    };
    let plan = CopyPlan::new(&have, &there, limits);
    report.present = plan.already_present;
    report.without_base = plan.deltas_without_base;
    report.conflicts = plan
        .conflicts
        .iter()
        .map(RejectedObject::from_conflict)
        .collect();
    if selection.dry_run {
        return Ok(describe_dry_run(&plan, report));
    }
    let transfer = Transfer {
        source: from,
        destination,
        destination_effort: to_config.transfer,
        parallelism: usize::from(selection.max_parallel_copy_operations),
        hash_check: if selection.skip_hash_check {
            HashCheck::Skipped
        } else {
            HashCheck::Required
        },
    };
    execute_plan(transfer, &plan, report).await
}

fn refuse_same_location(from: &StoreConfig, to: &StoreConfig) -> Result<(), CommandFailure> {
    let is_same = from.provider == to.provider
        && from.container == to.container
        && from.prefix == to.prefix
        && from.endpoint == to.endpoint;
    if is_same {
        return Err(CommandFailure::from_reason(
            Verdict::Usage,
            "source and destination are the same",
        ));
    }
    Ok(())
}

fn describe_dry_run(plan: &CopyPlan, mut report: CopyReport) -> CommandOutcome {
    let names: Vec<String> = plan
        .tasks
        .iter()
        .map(|task| task.name.to_string())
        .collect();
    report.bytes = plan.total_bytes();
    let mut text = format!(
        "would copy {} objects ({}) from {} to {}; {} already present\n",
        names.len(),
        format_bytes(report.bytes),
        report.source,
        report.destination,
        report.present
    );
    for name in &names {
        let _ = writeln!(text, "  {name}");
    }
    for conflict in &report.conflicts {
        let _ = writeln!(text, "  skipped {}: {}", conflict.name, conflict.reason);
    }
    let mut details = serde_json::to_value(&report).unwrap_or_default();
    if let Some(object) = details.as_object_mut() {
        object.remove("copied");
        object.insert("wouldCopy".into(), names.into());
    }
    CommandOutcome::new(Verdict::Shown, text, &details)
}

async fn execute_plan(
    transfer: Transfer,
    plan: &CopyPlan,
    mut report: CopyReport,
) -> Result<CommandOutcome, CommandFailure> {
    let started = Instant::now();
    let meter = Arc::new(Meter::default());
    meter.add_total(plan.total_bytes());
    let watched = Arc::clone(&meter);
    let progress = ProgressReporter::start("copy", move || sample_progress(&watched));
    let results = transfer.run(&plan.tasks, &meter).await?;
    drop(progress);
    report.seconds = started.elapsed().as_secs_f64();
    let mut interrupted = None;
    for (task, result) in plan.tasks.iter().zip(results) {
        match result {
            Some(Ok(bytes)) => {
                report.copied.push(task.name.to_string());
                report.bytes += bytes;
            }
            Some(Err(error)) if error.is_object_error() => report.damaged.push(RejectedObject {
                name: task.object.name.to_string(),
                reason: mainstay_telemetry::ErrorChain(&error).to_string(),
            }),
            Some(Err(error)) => interrupted = interrupted.or(Some(error)),
            None => {}
        }
    }
    build_outcome(&report, interrupted)
}

fn build_outcome(
    report: &CopyReport,
    interrupted: Option<CopyError>,
) -> Result<CommandOutcome, CommandFailure> {
    let details = serde_json::to_value(report).unwrap_or_default();
    let refused: Vec<&str> = report
        .damaged
        .iter()
        .chain(&report.conflicts)
        .map(|r| r.reason.as_str())
        .collect();
    let summary = format!(
        "copied {} objects ({}) from {} to {} in {:.1} s; {} already present",
        report.copied.len(),
        format_bytes(report.bytes),
        report.source,
        report.destination,
        report.seconds,
        report.present
    );
    // First, because the next run continues and reports damaged objects again.
    if let Some(error) = interrupted {
        return Err(CommandFailure::from(error)
            .with_next_step(format!("run the same command again to continue; {summary}"))
            .with_details(details));
    }
    if !refused.is_empty() {
        return Err(
            CommandFailure::from_reason(Verdict::DamagedBackup, refused.join("; "))
                .with_next_step(format!(
                    "repair or remove the objects named in the reason; {summary}"
                ))
                .with_details(details),
        );
    }
    let verdict = if report.copied.is_empty() {
        Verdict::Unchanged
    } else {
        Verdict::Copied
    };
    let waited = match report.final_snapshot {
        Some(false) => "no final snapshot appeared before the timeout\n",
        _ => "",
    };
    Ok(CommandOutcome::new(
        verdict,
        format!("{waited}{summary}\n"),
        report,
    ))
}

impl RejectedObject {
    fn from_conflict(conflict: &DestinationConflict) -> Self {
        Self {
            name: conflict.name.to_string(),
            reason: conflict.to_string(),
        }
    }
}
