//! Verifies a data directory and turns the report into a verdict.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use mainstay_datadir::{
    Depth, DirFacts, DirReport, DirVerdict, GuardError, GuardStatus, VerifyError,
    check_volume_guard, verify,
};
use mainstay_telemetry::format_bytes;
use mainstay_verdict::Verdict;

use crate::failure::{Classify, CommandFailure};
use crate::outcome::CommandOutcome;

/// Depth of the verification of a data directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ValidationMode {
    /// Every page, row and WAL record
    Full,
    /// A few pages only; sufficient after a clean shutdown
    Sanity,
}

impl From<ValidationMode> for Depth {
    fn from(mode: ValidationMode) -> Self {
        match mode {
            ValidationMode::Full => Self::Full,
            ValidationMode::Sanity => Self::Sanity,
        }
    }
}

impl Classify for VerifyError {
    fn verdict(&self) -> Verdict {
        match self {
            Self::Lock(error) => error.verdict(),
            _ => Verdict::Disk,
        }
    }
}

impl Classify for GuardError {
    fn verdict(&self) -> Verdict {
        match self {
            Self::OtherNamespace { .. } => Verdict::WrongVolume,
            _ => Verdict::Disk,
        }
    }
}

/// Verifies a directory on the blocking thread pool.
pub(crate) async fn verify_data_dir(
    data_dir: PathBuf,
    mode: ValidationMode,
) -> Result<DirReport, CommandFailure> {
    let work = tokio::task::spawn_blocking(move || verify(&data_dir, mode.into()));
    Ok(work
        .await
        .map_err(|error| CommandFailure::new(Verdict::Failed, &error))??)
}

/// Refuses a volume that belongs to another namespace; without a namespace nothing is checked.
pub(crate) fn refuse_foreign_volume(
    data_dir: &Path,
    namespace: Option<&str>,
) -> Result<(), CommandFailure> {
    let Some(namespace) = namespace else {
        return Ok(());
    };
    match check_volume_guard(data_dir, namespace)? {
        // A new volume has no mark yet.
        GuardStatus::Match | GuardStatus::Absent => Ok(()),
        GuardStatus::Mismatch { found } => {
            let reason = format!(
                "the volume of {} belongs to namespace {found:?}, expected {namespace:?}",
                data_dir.display()
            );
            Err(CommandFailure::from_reason(Verdict::WrongVolume, reason)
                .with_next_step("mount the volume of this namespace; nothing was changed"))
        }
    }
}

pub(crate) fn to_verdict(report: &DirReport) -> Verdict {
    match report.verdict {
        DirVerdict::Valid => Verdict::Valid,
        DirVerdict::Missing => Verdict::Missing,
        DirVerdict::Corrupt => Verdict::Corrupt,
        DirVerdict::InUse => Verdict::InUse,
    }
}

/// Turns a report into the result of a verb: only a valid directory is a success.
pub(crate) fn to_outcome(
    data_dir: &Path,
    report: &DirReport,
) -> Result<CommandOutcome, CommandFailure> {
    let verdict = to_verdict(report);
    let details = serde_json::json!({
        "dataDir": data_dir,
        "revision": report.facts.as_ref().map(|facts| facts.revision.0),
        "faults": report.faults,
        "warnings": report.warnings,
        "facts": report.facts,
    });
    if verdict == Verdict::Valid {
        return Ok(CommandOutcome::new(
            verdict,
            describe_report(data_dir, report),
            &details,
        ));
    }
    let failure = CommandFailure::from_reason(verdict, describe_faults(data_dir, report))
        .with_details(details);
    Err(match verdict {
        Verdict::Corrupt | Verdict::Missing => failure.with_next_step(
            "restore the data directory from a backup with `mainstay-restorer restore`",
        ),
        _ => failure.with_next_step(
            "stop the etcd that uses the data directory, then run the same command again",
        ),
    })
}

/// Describes what is wrong in one sentence.
pub(crate) fn describe_faults(data_dir: &Path, report: &DirReport) -> String {
    match report.verdict {
        DirVerdict::Missing => format!("data directory {} is missing or empty", data_dir.display()),
        DirVerdict::InUse => format!(
            "data directory {} is in use by another process",
            data_dir.display()
        ),
        _ => {
            let faults: Vec<String> = report.faults.iter().map(ToString::to_string).collect();
            faults.join("; ")
        }
    }
}

fn describe_report(data_dir: &Path, report: &DirReport) -> String {
    let mut text = format!("{} is valid", data_dir.display());
    if let Some(facts) = &report.facts {
        describe_facts(&mut text, facts);
    }
    text.push('\n');
    for warning in &report.warnings {
        let _ = writeln!(text, "warning: {warning}");
    }
    text
}

fn describe_facts(text: &mut String, facts: &DirFacts) {
    let _ = write!(text, ": revision {}", facts.revision);
    if let Some(keys) = facts.live_keys {
        let _ = write!(text, ", {keys} keys");
    }
    let _ = write!(text, ", database {}", format_bytes(facts.db_bytes));
    if let Some(index) = facts.last_wal_index {
        let _ = write!(text, ", WAL up to index {index}");
    }
    if let Some(writes) = facts.possible_writes_in_wal.filter(|writes| *writes > 0) {
        let _ = write!(text, " ({writes} WAL entries not in the database yet)");
    }
}

/// Returns the highest revision etcd can reach on this directory: the revision of the database, plus one for every WAL
/// entry that is not applied yet.
pub(crate) fn highest_revision(facts: &DirFacts) -> i64 {
    // An upper bound: an entry need not be a write, but a directory must not look older than it may be.
    let pending = facts.possible_writes_in_wal.unwrap_or(0);
    facts
        .revision
        .0
        .saturating_add(i64::try_from(pending).unwrap_or(i64::MAX))
}
