//! The state of a data directory, as a verdict.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use mainstay_datadir::{
    Depth, DirFacts, DirVerdict, Guard, GuardError, Report, VerifyError, check_guard, verify,
};
use mainstay_telemetry::human_bytes;

use crate::failure::{Classify, Failure, Verdict};
use crate::outcome::Outcome;

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
            Self::Taken { .. } => Verdict::WrongVolume,
            _ => Verdict::Disk,
        }
    }
}

/// Looks at a directory on the blocking pool.
pub async fn examine(data_dir: PathBuf, mode: ValidationMode) -> Result<Report, Failure> {
    let work = tokio::task::spawn_blocking(move || verify(&data_dir, mode.into()));
    Ok(work
        .await
        .map_err(|error| Failure::new(Verdict::Failed, &error))??)
}

/// Refuses a volume that belongs to another namespace; without a namespace nothing is asked.
pub fn refuse_foreign_volume(data_dir: &Path, namespace: Option<&str>) -> Result<(), Failure> {
    let Some(namespace) = namespace else {
        return Ok(());
    };
    match check_guard(data_dir, namespace)? {
        Guard::Match | Guard::Absent => Ok(()),
        Guard::Mismatch { found } => {
            let reason = format!(
                "the volume of {} belongs to namespace {found:?}, not to {namespace:?}",
                data_dir.display()
            );
            Err(Failure::because(Verdict::WrongVolume, reason)
                .with_next_step("mount the right volume; nothing is restored here"))
        }
    }
}

/// The verdict of a report.
pub fn verdict(report: &Report) -> Verdict {
    match report.verdict {
        DirVerdict::Valid => Verdict::Valid,
        DirVerdict::Missing => Verdict::Missing,
        DirVerdict::Corrupt => Verdict::Corrupt,
        DirVerdict::InUse => Verdict::InUse,
    }
}

/// A report as the result of a verb.
pub fn judge(data_dir: &Path, report: &Report) -> Result<Outcome, Failure> {
    let verdict = verdict(report);
    let details = serde_json::json!({
        "dataDir": data_dir,
        "revision": report.facts.as_ref().map(|facts| facts.revision.0),
        "faults": report.faults,
        "warnings": report.warnings,
        "facts": report.facts,
    });
    if verdict == Verdict::Valid {
        return Ok(Outcome::new(verdict, describe(data_dir, report), &details));
    }
    let failure = Failure::because(verdict, reason(data_dir, report)).with_details(details);
    Err(match verdict {
        Verdict::Corrupt | Verdict::Missing => {
            failure.with_next_step("`mainstay-restorer restore` brings it back from a backup")
        }
        _ => failure.with_next_step("stop the etcd that uses it, then look again"),
    })
}

/// What is wrong, in one sentence.
pub fn reason(data_dir: &Path, report: &Report) -> String {
    match report.verdict {
        DirVerdict::Missing => format!("there is no data in {}", data_dir.display()),
        DirVerdict::InUse => format!("{} is in use", data_dir.display()),
        _ => {
            let faults: Vec<String> = report.faults.iter().map(ToString::to_string).collect();
            faults.join("; ")
        }
    }
}

fn describe(data_dir: &Path, report: &Report) -> String {
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
    let _ = write!(text, ", database {}", human_bytes(facts.db_bytes));
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
