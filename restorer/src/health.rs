//! The state of a data directory, as a verdict.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use mainstay_datadir::{
    Depth, DirFacts, DirVerdict, GuardStatus, GuardError, DirReport, VerifyError, check_volume_guard, verify,
};
use mainstay_telemetry::format_bytes;

use crate::failure::{Classify, CommandFailure, ExitVerdict};
use crate::outcome::CommandOutcome;

/// How thoroughly a data directory is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ValidationMode {
    /// Every page, every row, every log record.
    Full,
    /// What can be told from a handful of pages; enough after a clean stop.
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
    fn verdict(&self) -> ExitVerdict {
        match self {
            Self::Lock(error) => error.verdict(),
            _ => ExitVerdict::Disk,
        }
    }
}

impl Classify for GuardError {
    fn verdict(&self) -> ExitVerdict {
        match self {
            Self::OtherNamespace { .. } => ExitVerdict::WrongVolume,
            _ => ExitVerdict::Disk,
        }
    }
}

/// Looks at a directory on the blocking pool.
pub async fn verify_data_dir(data_dir: PathBuf, mode: ValidationMode) -> Result<DirReport, CommandFailure> {
    let work = tokio::task::spawn_blocking(move || verify(&data_dir, mode.into()));
    Ok(work
        .await
        .map_err(|error| CommandFailure::new(ExitVerdict::Failed, &error))??)
}

/// Refuses a volume that belongs to another namespace; without a namespace nothing is asked.
pub fn refuse_foreign_volume(data_dir: &Path, namespace: Option<&str>) -> Result<(), CommandFailure> {
    let Some(namespace) = namespace else {
        return Ok(());
    };
    match check_volume_guard(data_dir, namespace)? {
        GuardStatus::Match | GuardStatus::Absent => Ok(()),
        GuardStatus::Mismatch { found } => {
            let reason = format!(
                "the volume of {} belongs to namespace {found:?}, not to {namespace:?}",
                data_dir.display()
            );
            Err(CommandFailure::from_reason(ExitVerdict::WrongVolume, reason)
                .with_next_step("mount the right volume; nothing is restored here"))
        }
    }
}

/// The verdict of a report.
pub fn to_verdict(report: &DirReport) -> ExitVerdict {
    match report.verdict {
        DirVerdict::Valid => ExitVerdict::Valid,
        DirVerdict::Missing => ExitVerdict::Missing,
        DirVerdict::Corrupt => ExitVerdict::Corrupt,
        DirVerdict::InUse => ExitVerdict::InUse,
    }
}

/// A report as the result of a verb.
pub fn to_outcome(data_dir: &Path, report: &DirReport) -> Result<CommandOutcome, CommandFailure> {
    let verdict = to_verdict(report);
    let details = serde_json::json!({
        "dataDir": data_dir,
        "revision": report.facts.as_ref().map(|facts| facts.revision.0),
        "faults": report.faults,
        "warnings": report.warnings,
        "facts": report.facts,
    });
    if verdict == ExitVerdict::Valid {
        return Ok(CommandOutcome::new(verdict, describe_report(data_dir, report), &details));
    }
    let failure = CommandFailure::from_reason(verdict, describe_faults(data_dir, report)).with_details(details);
    Err(match verdict {
        ExitVerdict::Corrupt | ExitVerdict::Missing => {
            failure.with_next_step("`mainstay-restorer restore` brings it back from a backup")
        }
        _ => failure.with_next_step("stop the etcd that uses it, then look again"),
    })
}

/// What is wrong, in one sentence.
pub fn describe_faults(data_dir: &Path, report: &DirReport) -> String {
    match report.verdict {
        DirVerdict::Missing => format!("there is no data in {}", data_dir.display()),
        DirVerdict::InUse => format!("{} is in use", data_dir.display()),
        _ => {
            let faults: Vec<String> = report.faults.iter().map(ToString::to_string).collect();
            faults.join("; ")
        }
    }
}

fn describe_report(data_dir: &Path, report: &DirReport) -> String {
    let mut text = format!("{} is sound", data_dir.display());
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
        let _ = write!(text, ", log up to index {index}");
    }
    if let Some(writes) = facts.possible_writes_in_wal.filter(|writes| *writes > 0) {
        let _ = write!(
            text,
            " ({writes} entries of it are not in the database yet)"
        );
    }
}

/// The highest revision etcd can reach on this directory: what the database holds, and one more for
/// every entry of the log that may still be applied.
pub fn highest_revision(facts: &DirFacts) -> i64 {
    let waiting = facts.possible_writes_in_wal.unwrap_or(0);
    facts
        .revision
        .0
        .saturating_add(i64::try_from(waiting).unwrap_or(i64::MAX))
}
