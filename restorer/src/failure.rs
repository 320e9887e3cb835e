//! What a verb has to say when it did not go well: a verdict, a reason, and what to do next.
//!
//! The exit codes are an interface: `docs/reference/exit-codes.md` lists them and a test compares.

use std::error::Error;
use std::fmt;
use std::process::ExitCode;

use mainstay_telemetry::Chain;
use serde_json::{Value, json};

/// One word for how it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// The data directory is sound.
    Valid,
    /// The backup is sound and reaches the target.
    Restorable,
    /// A data directory was restored.
    Restored,
    /// A new full snapshot was made of a chain.
    Compacted,
    /// Backups were copied.
    Copied,
    /// The information asked for.
    Shown,
    /// There was nothing to do.
    Unchanged,
    /// What was to be prepared is ready: etcd may start.
    Ready,
    /// Something unforeseen.
    Failed,
    /// The command line is wrong.
    Usage,
    /// There is no data directory.
    Missing,
    /// The data directory is damaged.
    Corrupt,
    /// The data directory is sound and older than the backup.
    BehindBackup,
    /// The volume belongs to someone else.
    WrongVolume,
    /// Another process uses the data directory.
    InUse,
    /// The backup store holds no backup.
    NoBackup,
    /// The backup cannot give what was asked for.
    Incomplete,
    /// An object of the backup is damaged.
    DamagedBackup,
    /// The store cannot be reached or refuses.
    StoreUnavailable,
    /// The disk is full or broken.
    Disk,
    /// The data has to be restored before etcd may start.
    RestoreRequired,
    /// Somebody else has to act before etcd may start.
    Waiting,
    /// etcd must not start on this volume.
    Refused,
}

impl Verdict {
    /// Every verdict, in the order of the documentation.
    pub const ALL: [Self; 23] = [
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

    /// As machines read it.
    pub fn name(self) -> &'static str {
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

    /// The process's exit code as a number.
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

    /// The process's exit code.
    pub fn exit_code(self) -> ExitCode {
        ExitCode::from(self.code())
    }
}

/// Errors that reach the user say how it ended and what to do.
pub trait Classify: Error {
    /// One word for how it ended.
    fn verdict(&self) -> Verdict;

    /// What the user can do.
    fn next_step(&self) -> Option<String> {
        None
    }

    /// Fields for machines.
    fn details(&self) -> Value {
        Value::Null
    }
}

/// A verb that did not go well.
#[derive(Clone, Debug)]
pub struct Failure {
    verdict: Verdict,
    reason: String,
    next_step: Option<String>,
    details: Value,
}

impl Failure {
    /// A failure whose reason is the error with its causes.
    pub fn new(verdict: Verdict, error: &(dyn Error + 'static)) -> Self {
        let reason = Chain(error).to_string();
        Self {
            verdict,
            reason,
            next_step: None,
            details: Value::Null,
        }
    }

    /// A failure with a reason of its own.
    pub fn because(verdict: Verdict, reason: impl Into<String>) -> Self {
        Self {
            verdict,
            reason: reason.into(),
            next_step: None,
            details: Value::Null,
        }
    }

    /// Adds what the user can do.
    #[must_use]
    pub fn with_next_step(mut self, next_step: impl Into<String>) -> Self {
        self.next_step = Some(next_step.into());
        self
    }

    /// Adds fields for machines.
    #[must_use]
    pub fn with_details(mut self, details: Value) -> Self {
        self.details = details;
        self
    }

    /// The verdict.
    pub fn verdict(&self) -> Verdict {
        self.verdict
    }

    /// Why.
    pub fn reason(&self) -> &str {
        &self.reason
    }

    /// For machines.
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

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}: {}", self.verdict.name(), self.reason)?;
        match &self.next_step {
            Some(next) => writeln!(f, "what to do: {next}"),
            None => Ok(()),
        }
    }
}

impl<E: Classify + 'static> From<E> for Failure {
    fn from(error: E) -> Self {
        let failure = Self::new(error.verdict(), &error).with_details(error.details());
        match error.next_step() {
            Some(next) => failure.with_next_step(next),
            None => failure,
        }
    }
}

pub(crate) mod classes;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_failure_has_a_code_of_its_own() {
        let mut codes: Vec<u8> = Verdict::ALL
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
    fn the_documentation_lists_every_verdict_with_its_code() {
        let page = include_str!("../../docs/reference/exit-codes.md");
        for verdict in Verdict::ALL {
            let row = format!("| `{}` | {} |", verdict.name(), verdict.code());
            assert!(
                page.contains(&row),
                "docs/reference/exit-codes.md has no row {row}"
            );
        }
    }
}
