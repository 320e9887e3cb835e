//! Collects what is found on the way, and tells damage from being unable to look.

use std::fmt;
use std::path::Path;

use super::error::VerifyError;
use super::report::{Fault, FaultKind, Finding, Warning, WarningKind};

/// Why a check stopped.
#[derive(Debug)]
pub(super) enum Stop {
    /// Something is damaged. Other files can still be looked at.
    Damage(Fault),
    /// Nothing can be said.
    Blocked(VerifyError),
}

impl Stop {
    pub(super) fn damage(
        what: FaultKind,
        file: &Path,
        place: impl fmt::Display,
        reason: String,
    ) -> Self {
        Self::Damage(Finding::new(what, file, place, reason))
    }
}

impl From<VerifyError> for Stop {
    fn from(error: VerifyError) -> Self {
        Self::Blocked(error)
    }
}

/// What was found so far.
#[derive(Debug, Default)]
pub(super) struct Findings {
    pub(super) faults: Vec<Fault>,
    pub(super) warnings: Vec<Warning>,
}

impl Findings {
    pub(super) fn fault(
        &mut self,
        what: FaultKind,
        file: &Path,
        place: impl fmt::Display,
        reason: String,
    ) {
        self.faults.push(Finding::new(what, file, place, reason));
    }

    pub(super) fn warn(
        &mut self,
        what: WarningKind,
        file: &Path,
        place: impl fmt::Display,
        reason: String,
    ) {
        self.warnings.push(Finding::new(what, file, place, reason));
    }

    /// Writes damage down and goes on without the result of the check.
    pub(super) fn settle<T>(&mut self, result: Result<T, Stop>) -> Result<Option<T>, VerifyError> {
        match result {
            Ok(value) => Ok(Some(value)),
            Err(Stop::Damage(fault)) => {
                self.faults.push(fault);
                Ok(None)
            }
            Err(Stop::Blocked(error)) => Err(error),
        }
    }

    pub(super) fn merge(&mut self, other: Self) {
        self.faults.extend(other.faults);
        self.warnings.extend(other.warnings);
    }
}
