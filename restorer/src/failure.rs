//! The failure of a verb: verdict, reason and next step.
//!
//! Names and exit codes of verdicts are an interface: a test compares them with `docs/reference/exit-codes.md`.

use std::error::Error;
use std::fmt;
use std::process::ExitCode;

use mainstay_telemetry::ErrorChain;
use serde_json::{Value, json};

/// Result of a run, reported by name and by exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ExitVerdict {
    /// The data directory is valid.
    Valid,
    /// The backup is intact and reaches the target.
    Restorable,
    /// A data directory was restored.
    Restored,
    /// A chain was compacted into a new full snapshot.
    Compacted,
    /// Backups were copied.
    Copied,
    /// The requested information was printed.
    Shown,
    /// Nothing had to be done.
    Unchanged,
    /// The preparation succeeded: etcd may start.
    Ready,
    /// An unexpected error occurred.
    Failed,
    /// The command line is invalid.
    Usage,
    /// The data directory is missing.
    Missing,
    /// The data directory is corrupt.
    Corrupt,
    /// The data directory is valid but older than the backup.
    BehindBackup,
    /// The volume belongs to another namespace or member.
    WrongVolume,
    /// Another process uses the data directory, or a later writer fenced this one off.
    InUse,
    /// The store holds no backup.
    NoBackup,
    /// The backup does not contain the requested state.
    Incomplete,
    /// An object of the backup is damaged.
    DamagedBackup,
    /// The store cannot be reached or denies access.
    StoreUnavailable,
    /// The disk is full or broken.
    Disk,
    /// The data must be restored before etcd may start.
    RestoreRequired,
    /// The controller or an operator must act before etcd may start.
    Waiting,
    /// etcd must not start on this volume.
    Refused,
}

impl ExitVerdict {
    /// Every verdict, in the order of the documentation.
    #[cfg(test)]
    const ALL: [Self; 23] = [
        Self::Valid,
        Self::Restorable,
        Self::Restored,
        Self::Compacted,
        Self::Copied,
        Self::Shown,
        Self::Unchanged,
        Self::Ready,
        Self::Failed,
        Self::Usage,
        Self::Missing,
        Self::Corrupt,
        Self::BehindBackup,
        Self::WrongVolume,
        Self::InUse,
        Self::NoBackup,
        Self::Incomplete,
        Self::DamagedBackup,
        Self::StoreUnavailable,
        Self::Disk,
        Self::RestoreRequired,
        Self::Waiting,
        Self::Refused,
    ];

    /// Name in JSON output and documentation.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Valid => "valid",
            Self::Restorable => "restorable",
            Self::Restored => "restored",
            Self::Compacted => "compacted",
            Self::Copied => "copied",
            Self::Shown => "shown",
            Self::Unchanged => "unchanged",
            Self::Ready => "ready",
            Self::Failed => "failed",
            Self::Usage => "usage",
            Self::Missing => "missing",
            Self::Corrupt => "corrupt",
            Self::BehindBackup => "behind-backup",
            Self::WrongVolume => "wrong-volume",
            Self::InUse => "in-use",
            Self::NoBackup => "no-backup",
            Self::Incomplete => "incomplete",
            Self::DamagedBackup => "damaged-backup",
            Self::StoreUnavailable => "store-unavailable",
            Self::Disk => "disk",
            Self::RestoreRequired => "restore-required",
            Self::Waiting => "waiting",
            Self::Refused => "refused",
        }
    }

    pub fn code(self) -> u8 {
        match self {
            Self::Valid
            | Self::Restorable
            | Self::Restored
            | Self::Compacted
            | Self::Copied
            | Self::Shown
            | Self::Unchanged
            | Self::Ready => 0,
            Self::Failed => 1,
            Self::Usage => 2,
            Self::Missing => 10,
            Self::Corrupt => 11,
            Self::BehindBackup => 12,
            Self::WrongVolume => 13,
            Self::InUse => 14,
            Self::NoBackup => 20,
            Self::Incomplete => 21,
            Self::DamagedBackup => 22,
            Self::StoreUnavailable => 23,
            Self::Disk => 30,
            Self::RestoreRequired => 40,
            Self::Waiting => 41,
            Self::Refused => 42,
        }
    }

    pub(crate) fn exit_code(self) -> ExitCode {
        ExitCode::from(self.code())
    }
}

/// An error that maps to a verdict, and to what the user can do about it.
pub(crate) trait Classify: Error {
    fn verdict(&self) -> ExitVerdict;

    /// What the user can do; `None` if the reason already says it.
    fn next_step(&self) -> Option<String> {
        None
    }

    /// Additional fields of the JSON output, as an object; `Null` for none.
    fn details(&self) -> Value {
        Value::Null
    }
}

/// The failure of a verb.
#[derive(Clone, Debug)]
pub struct CommandFailure {
    verdict: ExitVerdict,
    reason: String,
    next_step: Option<String>,
    details: Value,
}

impl CommandFailure {
    /// Creates a failure whose reason is the error with its sources.
    pub(crate) fn new(verdict: ExitVerdict, error: &(dyn Error + 'static)) -> Self {
        let reason = ErrorChain(error).to_string();
        Self {
            verdict,
            reason,
            next_step: None,
            details: Value::Null,
        }
    }

    /// Creates a failure from a sentence.
    pub(crate) fn from_reason(verdict: ExitVerdict, reason: impl Into<String>) -> Self {
        Self {
            verdict,
            reason: reason.into(),
            next_step: None,
            details: Value::Null,
        }
    }

    #[must_use]
    pub(crate) fn with_next_step(mut self, next_step: impl Into<String>) -> Self {
        self.next_step = Some(next_step.into());
        self
    }

    /// Adds fields to the JSON output.
    #[must_use]
    pub(crate) fn with_details(mut self, details: Value) -> Self {
        self.details = details;
        self
    }

    pub fn verdict(&self) -> ExitVerdict {
        self.verdict
    }

    pub fn reason(&self) -> &str {
        &self.reason
    }

    /// Returns verdict, reason, next step and details as one object.
    pub fn to_json(&self) -> Value {
        let mut object = json!({"verdict": self.verdict.name(), "reason": self.reason});
        if let (Some(object), Some(next)) = (object.as_object_mut(), &self.next_step) {
            object.insert("nextStep".into(), next.as_str().into());
        }
        if let (Some(object), Value::Object(details)) = (object.as_object_mut(), &self.details) {
            object.extend(details.clone());
        }
        object
    }
}

impl fmt::Display for CommandFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}: {}", self.verdict.name(), self.reason)?;
        match &self.next_step {
            Some(next) => writeln!(f, "next step: {next}"),
            None => Ok(()),
        }
    }
}

impl<E: Classify + 'static> From<E> for CommandFailure {
    fn from(error: E) -> Self {
        let failure = Self::new(error.verdict(), &error).with_details(error.details());
        match error.next_step() {
            Some(next) => failure.with_next_step(next),
            None => failure,
        }
    }
}

pub(crate) mod classification;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_failure_has_a_unique_exit_code() {
        let mut codes: Vec<u8> = ExitVerdict::ALL
            .iter()
            .map(|v| v.code())
            .filter(|c| *c > 0)
            .collect();
        let count = codes.len();
        codes.sort_unstable();
        codes.dedup();
        assert_eq!(codes.len(), count);
    }

    #[test]
    fn documentation_lists_every_verdict_with_its_exit_code() {
        let page = include_str!("../../docs/reference/exit-codes.md");
        for verdict in ExitVerdict::ALL {
            let row = format!("| `{}` | {} |", verdict.name(), verdict.code());
            assert!(
                page.contains(&row),
                "docs/reference/exit-codes.md has no row {row}"
            );
        }
    }
}
